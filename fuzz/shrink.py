"""From a program that breaks a law to a short one that breaks the same law.

Every pass proposes candidates, and a candidate is kept if it breaks the law and is simpler. A program is simpler if it has fewer operations, then fewer tokens, then
a smaller pool, then smaller numbers. Operations that a candidate makes impossible are skipped by the driver and so fall out by themselves. The result is a local minimum of
all passes, unless the time runs out first. From one that is not very short a random walk looks for a way out.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Final

import msgspec

from kvproof.fuzz.leaps import leaps, worth_a_leap
from kvproof.fuzz.processes import end_with_work_or_parent, process_context
from kvproof.fuzz.programs import Program
from kvproof.fuzz.runnable import runnable
from kvproof.fuzz.shake import shaken
from kvproof.fuzz.simpler import PASSES, Candidate, Pass, Size, recent
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import OP_SECONDS, Result, run, what_hung

HANG_SHRINK_OP_SECONDS: Final = 0.5
"""Time limit of an operation while a program that is known to hang is shrunk."""

SHRINK_SECONDS: Final = 10.0
"""Default time for one program: most reach their minimum in well under a second."""

WALK_RUNS: Final = 600
"""How many programs a walk away from a local minimum tries: about half a second's worth."""

WORTH_A_WALK: Final = 6
"""Programs of fewer operations are not walked away from: of 80 programs of the seeded bugs, 49 ended so short, and no walk made one of them shorter, for two thirds of all runs."""

STEADY_RUNS: Final = 10
"""How often a program is run to see whether its failure is flaky."""

LONG_OPERATIONS: Final = 2000
"""A program of more operations is run only once for that: a run takes a second for each ten thousand or so."""

TICK_SECONDS: Final = 0.25
"""How often a parallel shrink reports the time."""

ALSO: Final[dict[str, str]] = {"no-leak": "no-spurious-exhaustion"}
"""A shorter program may break this law instead: nothing needs to have been released for the pool to be short of blocks."""


class Shrinker:
    """Shrinks one program for one kind of failure."""

    def __init__(
        self,
        target: type,
        wanted: Callable[[Result], bool],
        *,
        seconds: float,
        op_seconds: float = OP_SECONDS,
        tries: int = 1,
        walk_seed: int = 0,
    ) -> None:
        """`tries`: how often a candidate is run before it counts as one that does not fail: more than once for a flaky failure."""
        self.target = target
        self.capabilities: Capabilities = read_capabilities(target)
        self.wanted = wanted
        self.tries = tries
        self.walk_seed = walk_seed
        self.deadline = time.monotonic() + seconds
        self.op_seconds = op_seconds
        self.runs = 0
        self.unfinished = False
        """Whether the time ran out, so that a pass might still make the final program simpler."""
        self.reached = 0
        """How many runs it took to come to the final number of operations."""
        self.best: Candidate | None = None
        self.result: Result | None = None
        self._tried: set[Candidate] = set()
        self._failed: Candidate | None = None

    def shrink(self, start: Candidate) -> Candidate:
        """The simplest candidate found. `self.result` is what it gave; None if not even `start` fails as wanted."""
        if not self._try(start):
            return start
        self._leap()
        simpler = self.unfinished = True
        while simpler and not self._late():
            self._take_away()
            self.unfinished = self._late()
            simpler = self._walk()
        self.unfinished |= simpler
        assert self.best is not None
        return self.best

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _leap(self) -> None:
        """While the program is long, or its pool large: the passes that shorten it at a stroke."""
        before: Size | None = None
        while self.best is not None and before != self.best.size and worth_a_leap(self.best) and not self._late():
            before = self.best.size
            self._pass(recent)
            self._pass(self._leaps)

    def _leaps(self, best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
        """What may be much shorter at a stroke. This one runs the program here."""
        return leaps(best, self.target, capabilities, self.op_seconds)

    def _take_away(self) -> None:
        """All passes, until none of them finds anything."""
        before: Size | None = None
        while self.best is not None and before != self.best.size and not self._late():
            before = self.best.size
            self._pass(recent)
            self._cut()
            for propose in PASSES:
                if self._late():
                    return
                self._pass(propose)

    def _cut(self) -> None:
        """Leave out runs of operations, long runs first, late ones first. After a success the next run is tried, not all of them again."""
        assert self.best is not None
        run_length = len(self.best.ops) // 2
        while run_length >= 1:
            start = len(self.best.ops) - run_length
            while start >= 0 and not self._late():
                ops = self.best.ops
                if self._try(Candidate(self.best.config, ops[:start] + ops[start + run_length :])):
                    start = min(start, len(self.best.ops) - run_length)
                else:
                    start -= max(1, run_length // 2)
            run_length //= 2

    def _walk(self) -> bool:
        """Walk over programs that are no longer and fail in the same way; True as soon as one is simpler."""
        here = self.best
        assert here is not None
        if len(here.ops) < WORTH_A_WALK:
            return False
        most, rng = len(here.ops), random.Random(self.walk_seed)
        for _ in range(WALK_RUNS):
            if self._late():
                break
            candidate = shaken(here, rng)
            if self._try(candidate):
                return True
            if self._failed is not None and len(self._failed.ops) <= most:
                here = self._failed
        return False

    def _pass(self, propose: Pass) -> None:
        """Try what `propose` makes of the best candidate, and start over from each improvement."""
        improved = True
        while improved and not self._late():
            improved = False
            assert self.best is not None
            for candidate in propose(self.best, self.capabilities):
                if self._late():
                    return
                if self._try(candidate):
                    improved = True
                    break

    def _try(self, candidate: Candidate) -> bool:
        """Run `candidate`; whether it fails as wanted and is simpler than the best. `_failed` is what of it ran, if it failed as wanted."""
        self._failed = None
        candidate = Candidate(candidate.config, runnable(candidate.ops))
        if candidate in self._tried:
            return False
        self._tried.add(candidate)
        result = None
        for _ in range(self.tries):
            tried = self._run(candidate)
            if self.wanted(tried):
                result = tried
                break
            self._tried.add(Candidate(candidate.config, tuple(tried.ran)))
        if result is None:
            return False
        self._failed = ran = Candidate(candidate.config, tuple(result.ran))
        if self.best is not None and ran.size >= self.best.size:
            return False
        if self.best is None or len(ran.ops) < len(self.best.ops):
            self.reached = self.runs
        self.best, self.result = ran, result
        return True

    def _run(self, candidate: Candidate) -> Result:
        self.runs += 1
        pool = candidate.config
        return run(
            candidate.ops,
            self.target,
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            capabilities=self.capabilities,
            op_seconds=self.op_seconds,
        )


class Steadiness(msgspec.Struct, frozen=True):
    """How often a program broke its law in how many runs."""

    failures: int
    runs: int

    @property
    def flaky(self) -> bool:
        """The same program sometimes breaks the law and sometimes does not: the cache depends on more than its operations."""
        return 0 < self.failures < self.runs

    @property
    def tries(self) -> int:
        """How many runs it takes to see the failure with 95 % certainty, at most 20."""
        if not self.flaky:
            return 1
        return min(20, math.ceil(math.log(0.05) / math.log(1 - self.failures / self.runs)))


def steadiness(program: Program, target: type, law: str) -> Steadiness:
    """Run `program` several times, and count how often it breaks `law`. A long program is run less often."""
    runs = STEADY_RUNS if len(program.ops) <= LONG_OPERATIONS else 1
    pool = program.config
    results = (run(program.ops, target, num_blocks=pool.num_blocks, block_size=pool.block_size) for _ in range(runs))
    return Steadiness(sum(breaks(result, law) for result in results), runs)


def shrink(
    program: Program, target: type, *, seconds: float = SHRINK_SECONDS, op_seconds: float = OP_SECONDS, tries: int = 1, walk_seed: int = 0
) -> Program:
    """The simplest program found that breaks the same law as `program`, with its violation. A program that breaks none comes back as it is.

    `tries`: see Shrinker. Raises AdapterFault if the target cannot be driven at all.
    """
    violation = program.violation or first_violation(program, target, op_seconds=op_seconds)
    if violation is None:
        return program
    law = violation.law
    shrinker = Shrinker(
        target, lambda result: breaks(result, law), seconds=seconds, op_seconds=op_seconds, tries=tries, walk_seed=walk_seed
    )
    return _shrunk(program, shrinker)


def shrink_in_parallel(
    program: Program, target: type, *, seconds: float, workers: int, tries: int = 1, on_tick: Callable[[float], None] = lambda _: None
) -> Program:
    """`shrink` in several processes, each of which leaves its local minima on another walk; the simplest of their results.

    `on_tick` is told the seconds that have passed, a few times a second.
    """
    start = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=process_context(), initializer=end_with_work_or_parent) as pool:
        walks = [pool.submit(shrink, program, target, seconds=seconds, tries=tries, walk_seed=seed) for seed in range(workers)]
        while wait(walks, timeout=TICK_SECONDS).not_done:
            on_tick(time.monotonic() - start)
    return min((walk.result() for walk in walks), key=lambda result: (Candidate(result.config, result.ops).size, result.unfinished))


def shrink_fault(program: Program, target: type, *, seconds: float = SHRINK_SECONDS, op_seconds: float = OP_SECONDS) -> Program:
    """The simplest program found that shows a fault of the adapter of the same kind (the same call, the same complaint)."""
    kind = kind_of_fault(program.fault)

    def same_kind(result: Result) -> bool:
        return bool(result.fault) and kind_of_fault(result.fault) == kind

    return _shrunk(program, Shrinker(target, same_kind, seconds=seconds, op_seconds=op_seconds))


def shrink_hang(program: Program, target: type, *, seconds: float, op_seconds: float) -> Program:
    """The simplest program found that hangs in the same way, where an operation of `op_seconds` counts as hung."""
    what = what_hung(program.fault)
    return _shrunk(program, Shrinker(target, lambda result: what_hung(result.hang) == what, seconds=seconds, op_seconds=op_seconds))


def hangs_again(program: Program, target: type, *, op_seconds: float) -> bool:
    """Whether `program` hangs in the same way when it is run once more. Time is that of a clock on the wall, so a machine that stalls looks like a cache that hangs."""
    pool = program.config
    result = run(program.ops, target, num_blocks=pool.num_blocks, block_size=pool.block_size, op_seconds=op_seconds)
    return what_hung(result.hang) == what_hung(program.fault)


def _shrunk(program: Program, shrinker: Shrinker) -> Program:
    """The simplest program found that fails as wanted, with what it shows; `program` itself if it does not fail so."""
    best = shrinker.shrink(Candidate(program.config, program.ops))
    if shrinker.result is None:
        return program
    result = shrinker.result
    fault = result.fault or program.fault
    return msgspec.structs.replace(
        program, config=best.config, ops=best.ops, violation=result.violation, fault=fault, unfinished=shrinker.unfinished
    )


def breaks(result: Result, law: str) -> bool:
    """Whether `result` breaks `law`, or the law that a shorter program may break instead."""
    violation: Violation | None = result.violation
    return violation is not None and (violation.law == law or violation.law == ALSO.get(law))


def first_violation(program: Program, target: type, *, op_seconds: float = OP_SECONDS) -> Violation | None:
    """What `program` breaks on `target`, if anything. Raises AdapterFault."""
    pool = program.config
    result = run(program.ops, target, num_blocks=pool.num_blocks, block_size=pool.block_size, op_seconds=op_seconds)
    if result.fault:
        raise AdapterFault(result.fault)
    return result.violation


def kind_of_fault(fault: str) -> str:
    """A fault without its numbers: `extend(3, 1) raised KeyError: 3` and `extend(0, 2) raised KeyError: 0` are the same."""
    return "".join(character for character in fault if not character.isdigit()).partition("(")[0]
