"""What several threads asked of one cache, when, and what it answered.

    run = Run(scenario, Adapter)       # a fresh cache in the state that the scenario starts from
    run.thread(0); run.thread(1)       # each in a thread of its own
    history = run.finish()             # the cache is looked at and drained

Threads share nothing but the cache: each keeps its own list of calls, and the clock orders them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kvproof.fuzz.races.lawful import ThreadView
from kvproof.fuzz.races.scenarios import Scenario
from kvproof.impl.checker import AdapterFault, Checked, Raises, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    AnyOp,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
    op_name,
)
from kvproof.models.outcomes import Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.spec import Spec
from kvproof.models.state import Seen, Tables
from kvproof.properties.drain import DRAIN_TOKEN, FINAL_REASONS, whole_pool_tokens

SETUP_THREAD = -1
"""The number under which the calls before and after the threads go."""


class Call(msgspec.Struct, frozen=True):
    """One call: its thread, the operation, the answer, and when it began and ended (nanoseconds of one clock).

    The step of an EndStep is the id that the cache gave it. `tables`: those of the sequence concerned, as its thread saw them directly after; None where they were
    not looked at, or the cache no longer knew the sequence.
    """

    thread: int
    op: AnyOp
    answer: Outcome
    began: int
    ended: int
    tables: Tables | None = None


class Look(msgspec.Struct, frozen=True):
    """A call of the drain, with everything that the cache showed after it. Tables that it would not show are left out."""

    call: Call
    seen: Seen


class History(msgspec.Struct, frozen=True):
    """One run of a scenario: the setup, one list of calls for each thread, and the drain."""

    scenario: Scenario
    setup: list[Look]
    threads: list[list[Call]]
    drain: list[Look]


class Raw(NamedTuple):
    """A call as its thread noted it down: `answer` and `tables` are whatever came back, an exception included."""

    op: Op
    answer: Any
    began: int
    ended: int
    tables: Any


Todo: TypeAlias = tuple[Op, Callable[[Any, Any], Any], int | None, bool]
"""An operation, how it is called, the sequence whose tables are looked at afterwards, and whether it begins a step."""


def todo(op: Op) -> Todo:
    """Everything about `op` that can be settled before the threads begin."""
    return op, _CALLS[type(op)], changed_sequence(op), isinstance(op, BeginStep)


class Caller:
    """One thread's way to the cache. It only notes down, and in plain calls: whatever runs beside the cache is more for a scheduler to switch in, and `frontrun` takes
    every reflective call for an access to what it is given.
    """

    def __init__(self, thread: int, adapter: Any, groups: int, steps: list[int], view: ThreadView) -> None:  # noqa: ANN401 -- it may break the protocol
        self.thread = thread
        self.adapter = adapter
        self.groups = list(range(groups))
        self.view = view
        self.steps: list[Any] = steps
        """The ids of the steps that this thread may end."""
        self.raw: list[Raw] = []

    def lawful(self, what: Todo) -> bool:
        """Make the call if the contract allows it by now, as far as this thread can know; else leave it out."""
        op = what[0]
        if not self.view.may(op):
            return False
        if isinstance(op, EndStep):
            self.end_step(op.step)
        else:
            self.call(what)
        self.view.learn(op, self.raw[-1].answer)
        return True

    def call(self, what: Todo) -> None:
        """Make the call, and look at the tables that it may have changed."""
        op, make, seq, begins = what
        adapter = self.adapter
        began = perf_counter_ns()
        try:
            answer = make(adapter, op)
        except Exception as error:  # noqa: BLE001 -- whatever a cache raises is its answer
            answer = error
        ended = perf_counter_ns()
        tables: Any = None
        if seq is not None:
            try:
                tables = []
                for group in self.groups:
                    tables.append([*adapter.block_table(seq, group)])
            except Exception as error:  # noqa: BLE001 -- the sequence may be gone
                tables = error
        if begins:
            self.steps.append(answer)
        self.raw.append(Raw(op, answer, began, ended, tables))

    def end_step(self, ordinal: int) -> None:
        """End a step by its number among those that this thread knows."""
        self.call((EndStep(self.steps[ordinal]), _end_step, None, False))


class Playback:
    """Stands in for the adapter after the run, so that the checker of the protocol can look at what came back."""

    raised_by_cache = None
    """Whose exception it is makes no difference here: no order of the calls explains it."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def __getattr__(self, method: str) -> Any:  # noqa: ANN401 -- a method of an adapter
        return self._table if method == "block_table" else self._answer

    def _answer(self, *_: object) -> Any:  # noqa: ANN401 -- whatever the cache answered
        if isinstance(self._raw.answer, Exception):
            raise self._raw.answer
        return self._raw.answer

    def _table(self, seq: int, group: int) -> Any:  # noqa: ARG002, ANN401 -- whatever the cache answered
        if isinstance(self._raw.tables, Exception):
            raise self._raw.tables
        return self._raw.tables[group]


class Run:
    """One fresh cache on which the threads of a scenario run. Raises AdapterFault for an adapter that breaks the protocol."""

    def __init__(self, scenario: Scenario, target: type, capabilities: Capabilities | None = None) -> None:
        self.scenario = scenario
        self.capabilities = capabilities or read_capabilities(target)
        self._size = {"num_blocks": scenario.num_blocks, "block_size": scenario.block_size}
        self._checked = Checked(target, self.capabilities, **self._size)
        self._checker = Checked(target, self.capabilities, **self._size)
        self._groups = len(self.capabilities.groups)
        view = ThreadView(self.capabilities, any_order=scenario.any_order)
        self._main = Caller(SETUP_THREAD, self._checked.adapter, self._groups, [], view)
        self._numbers: list[int] = []
        self._replayed: set[int] = set()
        self._todo = [[todo(op) for op in calls] for calls in scenario.threads]
        self.setup = [self._look() for op in scenario.setup if self._main.lawful(todo(op))]
        self._callers = [
            Caller(thread, self._checked.adapter, self._groups, list(self._main.steps), view.of_thread(scenario, thread))
            for thread in range(len(scenario.threads))
        ]

    def thread(self, index: int) -> None:
        """The program of one thread."""
        caller = self._callers[index]
        for what in self._todo[index]:
            caller.lawful(what)

    def finish(self) -> History:
        """Look at the cache when all threads are done, then let go of everything and take the whole pool. Raises AdapterFault."""
        threads = [[self._read(caller.thread, raw) for raw in caller.raw] for caller in self._callers]
        for call in (call for calls in threads for call in calls):
            self._know(call)
        drain = [self._looked(op) for op in self._drain(threads)]
        return History(self.scenario, self.setup, threads, drain)

    def _looked(self, op: Op) -> Look:
        if isinstance(op, EndStep):
            self._main.end_step(op.step)
        else:
            self._main.call(todo(op))
        return self._look()

    def _look(self) -> Look:
        """The last call of the main thread, and all that the cache shows now."""
        call = self._read(SETUP_THREAD, self._main.raw[-1])
        self._know(call)
        return Look(call, self._seen())

    def _know(self, call: Call) -> None:
        """Sequences are looked at as soon as there may be one of that number."""
        if isinstance(call.op, Admit | Fork) and not isinstance(call.answer, Raised | OutOfBlocksSeen | RefusedSeen):
            number = call.op.seq if isinstance(call.op, Admit) else call.op.child
            if number not in self._numbers:
                self._numbers.append(number)

    def _read(self, thread: int, raw: Raw) -> Call:
        """The call as the spec understands it. Raises AdapterFault."""
        checker = self._checker
        checker.adapter = Playback(raw)
        tables = None
        if raw.tables is not None and not isinstance(raw.tables, Exception):
            tables = checker.tables(0)
        return Call(thread, raw.op, self._answer(checker, raw), raw.began, raw.ended, tables)  # type: ignore[arg-type]  # every Op is one of AnyOp

    def _answer(self, checker: Checked, raw: Raw) -> Outcome:
        if isinstance(raw.op, BeginStep | EndStep):
            # The checker would keep a list of open steps; here threads may end them twice.
            return Raised(f"{type(raw.answer).__name__}: {raw.answer}") if isinstance(raw.answer, Exception) else self._step(raw)
        try:
            return checker.do(raw.op)
        except Raises as error:
            return Raised(error.error)

    def _step(self, raw: Raw) -> Outcome:
        expected = int if isinstance(raw.op, BeginStep) else type(None)
        if not isinstance(raw.answer, expected) or isinstance(raw.answer, bool):
            raise AdapterFault(f"{op_name(raw.op)} returned {raw.answer!r}; begin_step returns the id of the step, and end_step nothing.")
        answer: Outcome = raw.answer
        return answer

    def _seen(self) -> Seen:
        tables = {}
        for seq in self._numbers:
            with suppress(AdapterFault):
                tables[seq] = self._checked.tables(seq)
        return Seen(tables, self._checked.books(), {}, self._matchable())

    def _matchable(self) -> frozenset[int] | None:
        if not self.capabilities.events:
            return None
        for event in self._checked.events():
            if event.kind == "stored":
                self._replayed.update(event.blocks)
            elif event.kind == "removed":
                self._replayed.difference_update(event.blocks)
            else:
                self._replayed.clear()
        return frozenset(self._replayed)

    def _drain(self, threads: list[list[Call]]) -> list[Op]:
        """First an operation that changes nothing, so that the state is seen as the threads left it."""
        tokens = max(
            1, whole_pool_tokens(Spec(self.capabilities, num_blocks=self.scenario.num_blocks, block_size=self.scenario.block_size))
        )
        fresh = 1 + max(
            [number for calls in (self.scenario.setup, *self.scenario.threads) for op in calls for number in _numbers_in(op)], default=0
        )
        calls = [*(look.call for look in self.setup), *(call for calls in threads for call in calls)]
        self._main.steps = _left_open(calls)
        return [
            Admit(fresh, (DRAIN_TOKEN,) * tokens),
            *(EndStep(index) for index in range(len(self._main.steps))),
            *(Release(seq, FINAL_REASONS[seq % len(FINAL_REASONS)]) for seq in self._numbers),
            Extend(fresh, tokens),
        ]


def _left_open(calls: list[Call]) -> list[int]:
    """The ids of the steps that nobody completed, in the order of their begins. Of two that were begun at once the lower id is taken for the older one."""
    ends = [call for call in calls if isinstance(call.op, EndStep) and call.answer is None]
    launches = [call for call in calls if isinstance(call.op, BeginStep) and isinstance(call.answer, int)]
    # A cache may give an id again once its step was completed.
    launches = [call for call in launches if not any(end.op.step == call.answer and end.ended > call.began for end in ends)]  # type: ignore[union-attr]
    steps: list[int] = []
    while launches:
        oldest = min(call.answer for call in launches if not any(other.ended < call.began for other in launches))  # type: ignore[type-var]
        steps.append(oldest)  # type: ignore[arg-type]  # the answers are ids
        launches = [call for call in launches if call.answer != oldest]
    return steps


def _numbers_in(op: Op) -> list[int]:
    return [getattr(op, field) for field in ("seq", "parent", "child") if hasattr(op, field)]


def changed_sequence(op: Op) -> int | None:
    """The sequence whose tables the operation may change, and that is still known after it."""
    if isinstance(op, Fork):
        return op.child
    if isinstance(op, Extend | Commit | Truncate | SwapIn | SwapOut):
        return op.seq
    return op.seq if isinstance(op, Release) and op.reason == "preempt" else None


def _end_step(adapter: Any, op: Any) -> Any:  # noqa: ANN401 -- whatever the cache answers
    return adapter.end_step(op.step)


_CALLS: Final[dict[type[Op], Callable[[Any, Any], Any]]] = {
    Admit: lambda adapter, op: adapter.admit(op.seq, op.prompt, op.namespace),
    Match: lambda adapter, op: adapter.match(op.seq),
    Extend: lambda adapter, op: adapter.extend(op.seq, op.count, op.drafts),
    Commit: lambda adapter, op: adapter.commit(op.seq, op.accepted),
    Append: lambda adapter, op: adapter.append(op.seq, op.tokens),
    Truncate: lambda adapter, op: adapter.truncate(op.seq, op.length),
    Fork: lambda adapter, op: adapter.fork(op.parent, op.child),
    Release: lambda adapter, op: adapter.release(op.seq, op.reason),
    BeginStep: lambda adapter, _: adapter.begin_step(),
    EndStep: _end_step,
    Evict: lambda adapter, op: adapter.evict(op.blocks),
    Reset: lambda adapter, _: adapter.reset(),
    SwapOut: lambda adapter, op: adapter.swap_out(op.seq),
    SwapIn: lambda adapter, op: adapter.swap_in(op.seq),
}
"""The method of an adapter that each operation calls."""
