"""A program in a process of its own, told operation by operation: whatever kills or blocks that process is known to the operation.

Forking costs some milliseconds a program, so only what a worker was lost with is run like this, and what is shrunk for killing its process.
"""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kvproof.fuzz.campaigns.orders import Order
from kvproof.fuzz.leaps import in_smaller_pools
from kvproof.fuzz.processes import how_it_ended, kill_with_parent
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.runs import MACHINE_SECONDS, Ran, Search, Tally, hypothesis_batch, run_kept, run_program
from kvproof.fuzz.shrink import Shrinker
from kvproof.fuzz.simpler import Candidate
from kvproof.impl.checker import call_of
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import AnyOp, Op
from kvproof.properties.lockstep import Lockstep, Result, sign_of_life

PATIENCE: Final = 3.0
"""How many time limits of an operation a process may be silent before it counts as stalled: its own alarm should have stopped it after one."""

SHRINK_SECONDS: Final = 10.0
"""Time to shrink a program that kills its process; each try is a process."""


QUICK_OP_SECONDS: Final = 0.3
"""Time limit of an operation while a program that blocks its process is shrunk: each try that blocks costs PATIENCE times as long."""


_PROCESS: Final = "The process "
"""How every such fault begins."""


_SURVIVED: Final = 41
"""The exit code of a batch that came to its end: a target that leaves with status 0 did not."""


class Apart(msgspec.Struct):
    """How a program ended in its own process. `how` is empty where the process lived: then `ran` says what came of the program."""

    how: str
    program: Program
    ran: Ran | None = None
    tally: Tally = msgspec.field(default_factory=Tally)


class _Started(msgspec.Struct, tag="started"):
    num_blocks: int
    block_size: int


class _Next(msgspec.Struct, tag="next"):
    op: AnyOp


class _Done(msgspec.Struct, tag="done"):
    ran: Ran
    programs: int
    operations: int
    exercised: dict[str, int]
    refusals: dict[str, int]

    @property
    def tally(self) -> Tally:
        return Tally(self.programs, self.operations, Counter(self.exercised), Counter(self.refusals))


class _Crashed(msgspec.Struct, tag="crashed"):
    traceback: str


_Message = _Started | _Next | _Done | _Crashed


def seed_apart(search: Search, seed: str, parents: tuple[Program, ...] = ()) -> Apart:
    """Run the program of `seed` in a process of its own."""
    return _apart(search, seed, lambda driver, tally: run_program(search, seed, tally, parents=parents, driver=driver))


def program_apart(search: Search, program: Program) -> Apart:
    """Run a kept program in a process of its own."""
    return _apart(search, str(program.seed or ""), lambda driver, tally: run_kept(search, program, tally, driver=driver))


def shrink_apart(search: Search, program: Program) -> Program:
    """The simplest program found that ends its process in the same way."""
    shrinker = _DeathShrinker(search, program, SHRINK_SECONDS)
    best = shrinker.shrink(Candidate(program.config, program.ops))
    if shrinker.result is None:
        return program
    return msgspec.structs.replace(program, config=best.config, ops=best.ops, fault=shrinker.result.fault, unfinished=shrinker.unfinished)


def survives(search: Search, order: Order) -> bool:
    """Whether a process of its own gets to the end of a batch, and finds nothing in it."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        kill_with_parent(parent)
        os._exit(_batch(search, order))
    late = time.monotonic() + 2 * MACHINE_SECONDS + PATIENCE * search.op_seconds
    while time.monotonic() < late:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == _SURVIVED
        sign_of_life()
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _batch(search: Search, order: Order) -> int:
    """Run a batch from nothing; the exit code that says how it went."""
    try:
        if order.kind == "machine":
            found = hypothesis_batch(search, order.seed, Tally()) is not None
        else:
            found = any(run_program(search, f"{order.seed}:{index}", Tally()).found for index in range(order.programs))
    except BaseException:  # noqa: BLE001 -- nothing of the parent may run on in the child
        return 1
    return 1 if found else _SURVIVED


def ends_its_process(program: Program) -> bool:
    """Whether running the program again would end, or block, the process that does it."""
    return program.fault.startswith(_PROCESS)


class _DeathShrinker(Shrinker):
    """Shrinks a program that kills or blocks its process."""

    def __init__(self, search: Search, program: Program, seconds: float) -> None:
        kind = _kind(program.fault)
        super().__init__(search.target, lambda result: _kind(result.fault) == kind, seconds=seconds, op_seconds=search.op_seconds)
        quick = min(search.op_seconds, QUICK_OP_SECONDS)
        self.search = msgspec.structs.replace(search, op_seconds=quick)

    def _leaps(self, best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
        """No restarts: they run the program in this process, which would end with it."""
        return in_smaller_pools(best, capabilities)

    def _run(self, candidate: Candidate) -> Result:
        self.runs += 1
        program = Program(FORMAT, self.search.name, candidate.config, candidate.ops)  # type: ignore[arg-type]
        apart = program_apart(self.search, program)
        tally = apart.tally
        return Result(list(apart.program.ops), tally.exercised, tally.refusals, fault=apart.how)


def _kind(how: str) -> str:
    """`The process died with exit code 7 in commit(0, 0).` without its numbers of seconds and the call."""
    return how.partition(" in ")[0].partition(" for ")[0]


# -- the process -----------------------------------------------------------------------------------------------------------------------------


def _apart(search: Search, seed: str, run: Callable[[Callable[..., Lockstep], Tally], Ran]) -> Apart:
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        kill_with_parent(parent)
        os.close(reading)
        _be_the_child(writing, run)
    os.close(writing)
    messages = _Messages(reading)
    try:
        stalled = messages.read_all(PATIENCE * search.op_seconds)
    finally:
        os.close(reading)
        if messages.done is None:
            _kill(child)
        _, status = os.waitpid(child, 0)
    if messages.crashed:
        raise RuntimeError(f"kvproof failed in a process of its own:\n{messages.crashed}")
    pool = messages.pool or PoolConfig(1, 1)
    program = Program(FORMAT, search.name, pool, tuple(messages.ops), seed)  # type: ignore[arg-type]
    if messages.done is not None:
        return Apart("", messages.done.ran.program, messages.done.ran, messages.done.tally)
    where = call_of(messages.ops[-1]) if messages.ops else "building the cache"
    how = (
        f"gave no sign of life for {PATIENCE * search.op_seconds:g} s"
        if stalled
        else f"died with {how_it_ended(os.waitstatus_to_exitcode(status))}"
    )
    how = f"{_PROCESS}{how} in {where}."
    return Apart(how, msgspec.structs.replace(program, fault=how), None, Tally(1, len(messages.ops)))


def _be_the_child(writing: int, run: Callable[[Callable[..., Lockstep], Tally], Ran]) -> None:
    """Run the program and tell it; never returns."""

    def tell(message: _Message) -> None:
        data = msgspec.json.encode(message) + b"\n"
        while data:
            data = data[os.write(writing, data) :]

    class Telling(Lockstep):
        def __init__(self, target: type, **how: object) -> None:
            tell(_Started(how["num_blocks"], how["block_size"]))  # type: ignore[arg-type]
            super().__init__(target, **how)  # type: ignore[arg-type]

        def do(self, op: Op) -> bool:
            if self.spec.enabled(op):
                tell(_Next(op))  # type: ignore[arg-type]
            return super().do(op)

    try:
        tally = Tally()
        ran = run(Telling, tally)
        tell(_Done(ran, tally.programs, tally.operations, tally.exercised, tally.refusals))
        os._exit(0)
    except Exception:  # noqa: BLE001 -- told to the parent, which raises it
        tell(_Crashed(traceback.format_exc()))
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- the target's own: a KeyboardInterrupt, say, which ends a process that does not look out for it
        os._exit(1)


class _Messages:
    """What the child has told so far."""

    def __init__(self, reading: int) -> None:
        self.reading = reading
        self.pool: PoolConfig | None = None
        self.ops: list[Op] = []
        self.done: _Done | None = None
        self.crashed = ""

    def read_all(self, patience_seconds: float) -> bool:
        """Read until the child ends; True if it was silent for too long instead."""
        rest = b""
        heard = time.monotonic()
        while True:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, heard + patience_seconds - time.monotonic()))
            if not ready:
                return True
            data = os.read(self.reading, 65536)
            if not data:
                return False
            heard = time.monotonic()
            sign_of_life()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(msgspec.json.decode(line, type=_Message))

    def _take(self, message: _Message) -> None:
        match message:
            case _Started():
                self.pool = PoolConfig(message.num_blocks, message.block_size)
            case _Next():
                self.ops.append(message.op)
            case _Done():
                self.done = message
            case _Crashed():
                self.crashed = message.traceback


def _kill(child: int) -> None:
    """A child that told its end is about to exit; any other one may have to be made to."""
    for _ in range(20):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
