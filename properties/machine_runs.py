"""Runs of the state machine as a part of a larger search: counted, stopped at the first find, neither shrunk nor printed."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, settings, target
from hypothesis import seed as seeded
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test

from kvproof.impl.checker import AdapterFault, Hung
from kvproof.models.ops import Op
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import OP_SECONDS, LawBroken, time_limit
from kvproof.properties.machine import CacheMachine, cache_machine
from kvproof.properties.situations import names
from kvproof.properties.strategies import Pool


class Found(msgspec.Struct, frozen=True):
    """The first thing that a run of the machine found: one of `violation`, `fault` and `hang`, and the whole program that showed it."""

    ops: tuple[Op, ...]
    num_blocks: int
    block_size: int
    violation: Violation | None = None
    fault: str = ""
    hang: str = ""


class _Stop(BaseException):
    """Ends a captured run at once. Not an Exception: Hypothesis must pass it on instead of calling it a failing example."""

    def __init__(self, found: Found | None = None) -> None:
        super().__init__()
        self.found = found


class _Capture:
    """What a captured run has done."""

    def __init__(self, deadline: float | None, *, looking_further: bool) -> None:
        self.deadline = deadline
        self.looking_further = looking_further
        """Whether Hypothesis is told how many situations a program reached."""
        self.programs = 0
        self.operations = 0
        self.exercised: Counter[str] = Counter()
        self.machine: CacheMachine | None = None
        self.at_work = False
        """Whether the target runs, and not Hypothesis."""

    def found(self, *, violation: Violation | None = None, fault: str = "", hang: str = "") -> Found:
        """What the current program showed."""
        lockstep = getattr(self.machine, "lockstep", None)
        if lockstep is None:
            pool = getattr(self.machine, "pool", Pool(1, 1))
            return Found((), pool.num_blocks, pool.block_size, violation, fault, hang)
        return Found(tuple(lockstep.ops), lockstep.num_blocks, lockstep.block_size, violation, fault, hang)

    def count(self) -> None:
        """Add the current program to the totals, once."""
        lockstep = getattr(self.machine, "lockstep", None)
        self.machine = None
        if lockstep is not None:
            self.programs += 1
            self.operations += len(lockstep.ops)
            self.exercised.update(lockstep.spec.exercised)


def run_machine(
    adapter: type,
    *,
    seed: int,
    examples: int,
    steps: int,
    deadline: float | None = None,
    op_seconds: float = OP_SECONDS,
    database: ExampleDatabase | None = None,
) -> tuple[int, int, Counter[str], Found | None]:
    """Run up to `examples` programs of up to `steps` rules each, the same ones for the same `seed` and `database`; stop at the first find or at
    `deadline` (monotonic clock).

    With a `database` Hypothesis begins with examples that it keeps there, and keeps those that reach many situations for their size. Nothing is shrunk or printed. Returns the number of programs and of operations, how often each law was exercised, and the find.
    Never raises for what the cache or its adapter do.
    """
    capture = _Capture(deadline, looking_further=database is not None)
    try:
        with time_limit(op_seconds, lambda: capture.at_work):  # what Hypothesis does between two operations may take long on a busy machine
            _run_captured(cache_machine(adapter), capture, seed, examples, steps, database)
        found = None
    except _Stop as stop:
        found = stop.found
    except AdapterFault as fault:
        found = capture.found(fault=str(fault))
    except Hung as hung:
        found = capture.found(hang=str(hung))
    capture.count()
    return capture.programs, capture.operations, capture.exercised, found


def _run_captured(
    machine_type: type[CacheMachine], capture: _Capture, seed: int, examples: int, steps: int, database: ExampleDatabase | None
) -> None:
    captured = _captured(machine_type)

    @seeded(seed)
    def factory() -> CacheMachine:
        return captured(capture)

    quiet = settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=database,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate] if database is None else [Phase.reuse, Phase.generate],
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    try:
        run_state_machine_as_test(factory, settings=quiet)  # type: ignore[arg-type]
    except (Flaky, Unsatisfiable):
        # The cache chose differently in an equal situation, or no example ran to its end: neither breaks a law, and what ran was counted.
        return


@functools.cache
def _captured(machine_type: type[CacheMachine]) -> Callable[[_Capture], CacheMachine]:
    """The same machine, counting what it does and stopping the run at the first find."""

    class Captured(machine_type):  # type: ignore[misc, valid-type]
        def __init__(self, capture: _Capture) -> None:
            super().__init__()
            capture.count()
            capture.machine = self
            self.capture = capture

        @contextmanager
        def target_at_work(self) -> Iterator[None]:
            self.capture.at_work = True
            try:
                yield
            finally:
                self.capture.at_work = False

        def tell_situations(self) -> None:
            """Nobody looks at the statistics of a captured run; how much was reached decides whether an example is kept."""
            if self.capture.looking_further:
                target(float(len(names(self.watcher.reached))), label="situations")

        def do(self, op: Op) -> bool:
            capture = self.capture
            if capture.deadline is not None and time.monotonic() > capture.deadline:
                self._over = True
                raise _Stop
            try:
                with self.target_at_work():
                    ran = self.lockstep.do(op)
                return bool(self._note(op, ran))
            except LawBroken as broken:
                self._over = True
                raise _Stop(capture.found(violation=broken.violation)) from None
            except AdapterFault as fault:
                self._over = True
                raise _Stop(capture.found(fault=str(fault))) from None
            except BaseException:
                self._over = True
                raise

    return Captured
