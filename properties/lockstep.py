"""Lockstep: one driver that runs operations on a cache beside the spec. Every generator and every tool drives caches through it.

    lockstep = Lockstep(Adapter, num_blocks=8, block_size=2)
    for op in program.ops:
        lockstep.do(op)            # raises LawBroken, AdapterFault or Hung
    lockstep.spec.exercised        # how often each law was put to the test

`run(program, Adapter)` does that for a whole program and returns what came of it as data.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

import msgspec

from kvproof.impl.checker import AdapterFault, Checked, Hung, Raises, call_of, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.evidence import Evidence
from kvproof.models.observed import NOTHING
from kvproof.models.ops import Admit, AnyOp, BeginStep, Commit, EndStep, Extend, Fork, Match, Op, Release, op_name, sequences_of
from kvproof.models.outcomes import ContractBroken, Died, Differs, Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.spec import Spec, Violation
from kvproof.models.state import Seen, Tables

OP_SECONDS: Final = 10.0
"""Default time limit of one operation. Real operations take microseconds; a slow machine under load still takes far less than a second."""

SERVED: Final = "served-equals-contiguous"
"""The law that an adapter judges itself: only it has the tensors."""

_CHANGES_WHO_LIVES: Final = frozenset({Admit, Fork, Release})
_FAILED: Final = frozenset({OutOfBlocksSeen, RefusedSeen})

EVENTS_EVERY: Final = 7
"""In pools with an even number of blocks, events are taken after every seventh operation: their order must be right across the passes in between."""


class LawBroken(AssertionError):
    """The cache broke a law."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.law}: {violation.reason}")
        self.violation = violation


class Step(msgspec.Struct, frozen=True):
    """One operation of a run, what it answered, and what was seen afterwards."""

    op: AnyOp
    outcome: Outcome
    seen: Seen


class Lockstep:
    """A fresh cache and the spec beside it."""

    def __init__(
        self, target: type, *, num_blocks: int, block_size: int, capabilities: Capabilities | None = None, keep_trace: bool = False
    ) -> None:
        self.capabilities = capabilities or read_capabilities(target)
        self.cache = Checked(target, self.capabilities, num_blocks=num_blocks, block_size=block_size)
        self.spec = Spec(self.capabilities, num_blocks=num_blocks, block_size=block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ops: list[Op] = []
        """Every operation that ran, in order, skipped ones left out."""
        self.refusals: Counter[str] = Counter()
        self.trace: list[Step] | None = [] if keep_trace else None
        self.last_seen = Seen()
        self.last_outcome: Outcome = None
        """What the last operation answered."""
        self.at_end = False
        """Whether the next operation is the last one of its program: events are taken after it in any pool."""
        self._launches = (BeginStep if self.capabilities.steps else Extend) if self.capabilities.mirror else None
        """The operation that launches passes, whose tables the device side then has to have."""
        self._matchable: frozenset[int] | None = frozenset() if self.capabilities.events else None

    def do(self, op: Op) -> bool:
        """Run `op` on both; False if its precondition does not hold and it was skipped. Raises LawBroken, AdapterFault, Hung."""
        spec = self.spec
        if not spec.enabled(op):
            return False
        self.ops.append(op)
        _WATCH.beats += 1
        _WATCH.asked = ""
        compared = self._compared(op) if self.capabilities.tensors else 0
        try:
            outcome = self.cache.do(op)
        except Differs as differs:
            if self.trace is not None:
                self.trace.append(Step(op, Raised("Differs"), self._observe(op, None)))  # type: ignore[arg-type]
            raise LawBroken(Violation(SERVED, spec.step, str(differs), Evidence(sequences=sequences_of(op)))) from differs
        except Raises as error:
            if error.by_cache and isinstance(op, Match):
                outcome = RefusedSeen(error.error)  # the extend that follows looks up again, and is judged for it
            elif error.by_cache or spec.exhausted(op):
                self._died(op, error)
            else:
                raise
        seen = self._observe(op, outcome)
        if type(outcome) is RefusedSeen:
            self.refusals[op_name(op)] += 1
        if self.trace is not None:
            self.trace.append(Step(op, outcome, seen))  # type: ignore[arg-type]
        try:
            violation = spec.apply(op, outcome, seen)
        except ContractBroken as error:
            raise AdapterFault(f"{error}.") from error
        if violation is not None:
            raise LawBroken(violation)
        if compared:
            spec.exercised[SERVED] += compared
        self.last_seen, self.last_outcome = seen, outcome
        return True

    def _compared(self, op: Op) -> int:
        """How many passes `op` ends, whose tensors the adapter compares."""
        if isinstance(op, EndStep):
            return len(self.spec.steps[op.step])
        return int(isinstance(op, Commit) and not self.capabilities.steps)

    def _died(self, op: Op, error: Raises) -> NoReturn:
        """An exception of the cache's own, or one where the pool really had no room.

        If it left its mark on the cache, or denied room that there was, that is a law of the cache; else the adapter's fault.
        """
        outcome = Died(error.error) if error.by_cache else Raised(error.error)
        try:
            seen = self._observe(op, RefusedSeen())
        except AdapterFault:
            raise error from None
        why = "in the cache's own code" if error.by_cache else "the pool had no room for it"
        violation = self.spec.apply(op, outcome, seen)
        if violation is None:
            raise error
        reason = f"{violation.reason} ({op_name(op)} raised {error.error}; {why})"
        if self.trace is not None:
            self.trace.append(Step(op, outcome, seen))  # type: ignore[arg-type]
        raise LawBroken(msgspec.structs.replace(violation, reason=reason)) from error

    def _observe(self, op: Op, outcome: Outcome) -> Seen:
        """All that is seen of the cache now. Where none of it moved, that is the very observation of the last operation."""
        cache, last, kind = self.cache, self.last_seen, type(op)
        _WATCH.asked = "block_table"
        tables = cache.all_tables(self._live_after(op, outcome) if kind in _CHANGES_WHO_LIVES else self.spec.live, last.tables)
        _WATCH.asked = "snapshot"
        books = cache.books(last.books)
        worker_tables = self._worker_tables(op) if kind is self._launches and type(outcome) not in _FAILED else NOTHING
        matchable = self._replay_events()
        _WATCH.asked = ""
        if tables is last.tables and books is last.books and worker_tables is last.worker_tables and matchable is last.matchable_by_events:
            return last
        return Seen(tables, books, worker_tables, matchable)

    def _live_after(self, op: Op, outcome: Outcome) -> Collection[int]:
        live = self.spec.live
        if type(outcome) in _FAILED:
            return live
        if type(op) is Admit:
            return (*live, op.seq)
        if type(op) is Fork:
            return (*live, op.child)
        assert isinstance(op, Release)
        return live if op.reason == "preempt" else [seq for seq in live if seq != op.seq]

    def _worker_tables(self, op: Op) -> Mapping[int, Tables]:
        """The device's tables of the sequences whose pass is launched by this operation: one that failed launched none, and there may be no table yet."""
        _WATCH.asked = "worker_table"
        launched = [op.seq] if isinstance(op, Extend) else [out.seq for out in self.spec.passes if not out.launched]
        return {seq: self.cache.worker_tables(seq) for seq in launched}

    def _replay_events(self) -> frozenset[int] | None:
        """The matchable set by the events, taken after every operation or, in half of the pools, now and then: engines take them once a step."""
        if self._matchable is None or (self.num_blocks % 2 == 0 and len(self.ops) % EVENTS_EVERY and not self.at_end):
            return None
        _WATCH.asked = "take_events"
        events = self.cache.events()
        if events:
            matchable = set(self._matchable)
            for event in events:
                if event.kind == "stored":
                    matchable.update(event.blocks)
                elif event.kind == "removed":
                    matchable.difference_update(event.blocks)
                else:
                    matchable.clear()
            self._matchable = frozenset(matchable)
        return self._matchable


class Result(msgspec.Struct):
    """What came of running one program: at most one of `violation`, `fault` and `hang` is set."""

    ran: list[Op]
    exercised: Counter[str]
    refusals: Counter[str]
    violation: Violation | None = None
    fault: str = ""
    hang: str = ""
    trace: list[Step] | None = None

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return self.violation is None and not self.fault and not self.hang


def run(
    ops: Sequence[Op],
    target: type,
    *,
    num_blocks: int,
    block_size: int,
    capabilities: Capabilities | None = None,
    keep_trace: bool = False,
    op_seconds: float = OP_SECONDS,
) -> Result:
    """Run the operations on a fresh cache beside the spec. Never raises for what the cache or its adapter do."""
    lockstep = None
    try:
        with time_limit(op_seconds):
            lockstep = Lockstep(target, num_blocks=num_blocks, block_size=block_size, capabilities=capabilities, keep_trace=keep_trace)
            last = len(ops) - 1
            for i, op in enumerate(ops):
                lockstep.at_end = i == last
                lockstep.do(op)
    except LawBroken as broken:
        return outcome_of(lockstep, violation=broken.violation)
    except AdapterFault as fault:
        return outcome_of(lockstep, fault=str(fault))
    except Hung as hung:
        return outcome_of(lockstep, hang=str(hung))
    return outcome_of(lockstep)


def outcome_of(lockstep: Lockstep | None, *, violation: Violation | None = None, fault: str = "", hang: str = "") -> Result:
    """The result of a run that ended in this way."""
    if lockstep is None:
        return Result([], Counter(), Counter(), violation, fault, hang)
    return Result(lockstep.ops, lockstep.spec.exercised, lockstep.refusals, violation, fault, hang, lockstep.trace)


AGAIN: Final = 5
"""The tick of ten to which an alarm goes back: by the next one all that unwinds has long unwound."""

_OPERATION: Final = "one operation"
"""What Hung says was running, where it was no look at what the operation left."""


class _Watch:
    """Counts operations, so that a timer can see whether the current one has been running for too long."""

    beats = 0
    asked = ""
    """The method that is asked what the operation left, once it has come to its end."""

    def __init__(self) -> None:
        self.alive: Callable[[], None] = lambda: None


_WATCH = _Watch()


def show_life_to(told: Callable[[], None]) -> None:
    """Have `told` called about ten times within the time limit of an operation, for as long as operations come to an end: whoever waits for this process can then tell a
    long program, or one that is being shrunk, from a stall.
    """
    _WATCH.alive = told


def sign_of_life() -> None:
    """Tell whoever waits that work goes on, where the operations run in another process."""
    _WATCH.alive()


def told_hang(ops: Sequence[Op], how: str) -> str:
    """A sentence that names what hung, as the text of Hung says: the last of `ops`, or what was asked after it."""
    call, what = call_of(ops[-1]) if ops else "building the cache", what_hung(how)
    return f"{call} hung: {how}." if what == _OPERATION else f"{what} hung after {call}: it{how.removeprefix(what)}."


ONLY_ONCE: Final = (
    ", but not when the same program was run again: this machine may have stalled, or the target waits for something now and then; "
    "a larger --op-seconds tells which"
)
"""What is said of a hang that did not come again, behind what hung."""


def what_hung(how: str) -> str:
    """The beginning of the text of Hung: the method that was asked, or that it was the operation itself."""
    return how.partition(" ran for ")[0]


def _swallows(frame: FrameType | None) -> bool:
    """Whether an exception that is raised in `frame` is printed and dropped: below a finalizer, or a callback of the garbage collector."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


@contextmanager
def time_limit(op_seconds: float, at_work: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within it, an operation that runs longer than `op_seconds` is stopped with Hung. `at_work`: whether it is the target that runs; the time of others does not count.

    One timer ticks for all operations, so it costs nothing per operation. It needs the main thread and a POSIX timer; elsewhere nothing is limited. Where Python would swallow
    what is raised (`_swallows`), Hung waits for that to end, once more as long at most; what was swallowed all the same is soon raised again.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    _WATCH.asked = ""
    beats, ticks = _WATCH.beats, 0
    tick = op_seconds / 10

    def on_tick(_: int, frame: FrameType | None) -> None:
        nonlocal beats, ticks
        if _WATCH.beats != beats:
            _WATCH.alive()
        ticks = ticks + 1 if _WATCH.beats == beats and at_work() else 0
        beats = _WATCH.beats
        if ticks >= (20 if _swallows(frame) else 10):
            ticks = AGAIN
            raise Hung(f"{_WATCH.asked or _OPERATION} ran for more than {op_seconds:g} s")

    previous = signal.signal(signal.SIGALRM, on_tick)
    old = signal.setitimer(signal.ITIMER_REAL, tick, tick)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old)
        signal.signal(signal.SIGALRM, previous)
