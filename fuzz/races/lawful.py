"""What a thread may ask for, so that no scenario makes a call that the contract forbids, whatever the other threads do.

    view = ThreadView(capabilities)                  # of the setup, which is one thread
    if view.may(op): view.learn(op, answer)
    own = view.of_thread(scenario, 0)          # what thread 0 knows when it begins

A cache need not guard against calls that an engine never makes. The preconditions of the contract must therefore hold in the execution itself, not only in some order that the judge finds afterwards: each
thread asks by what it knows from its own calls, and leaves out what it cannot know to be allowed. It knows its own sequences, since nobody else may change them. It commits a pass only if it has seen the step
completed that launched it, and it can tell which step that was only if no other thread launches. It completes steps from the oldest on.

Two kinds of calls may come too late, because another thread was faster: for a sequence that was cancelled, and for a step that was completed already. The judge takes an error or nothing as their answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from kvproof.fuzz.races.scenarios import Scenario
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Op,
    Release,
    SwapIn,
    SwapOut,
    Truncate,
    sequences_of,
)
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused
from kvproof.models.preconditions import ENABLED, MAX_OPEN_STEPS


def check_homes(scenario: Scenario) -> None:
    """Raises ValueError where two threads work on one sequence: all that a thread may do to another's sequence is to release it for good."""
    home: dict[int, int] = {}
    for thread, calls in enumerate(scenario.threads):
        for op in calls:
            for seq in () if isinstance(op, Release) and op.reason != "preempt" else sequences_of(op):
                if home.setdefault(seq, thread) != thread:
                    raise ValueError(
                        f"In the scenario {scenario.name!r} the threads {home[seq]} and {thread} both work on sequence {seq}; "
                        "give each sequence one thread: any other may only release it, and not to preempt it."
                    )


class Out:
    """A pass that is out. `step`: the number of the step that launched it, None while that is not known."""

    def __init__(self, count: int, drafts: tuple[int, ...], *, finished: bool) -> None:
        self.count = count
        self.drafts = drafts
        self.finished = finished
        self.step: int | None = None


class Held:
    """A sequence as its thread knows it."""

    def __init__(self, known: tuple[int, ...], computed: int = 0) -> None:
        self.known = known
        self.computed = computed
        self.out: Out | None = None
        self.swapped = False


class ThreadView:
    """What one thread knows by its own calls and those of the setup. Steps are counted in the order in which it came to know them."""

    def __init__(self, capabilities: Capabilities, *, any_order: bool = False) -> None:
        self.capabilities = capabilities
        self.any_order = any_order
        self.live: dict[int, Held] = {}
        self.numbers: set[int] = set()
        """All that were ever known: a second release of one is allowed."""
        self.begun = 0
        self.open: list[int] = []
        """The steps that it has not seen completed, oldest first."""
        self.from_setup = 0
        self.others_begin = 0
        """How many steps other threads may begin."""

    def of_thread(self, scenario: Scenario, thread: int) -> ThreadView:
        """The view of a thread that goes on from here."""
        own = copy.copy(self)
        own.live, own.numbers, own.open = copy.deepcopy(self.live), set(self.numbers), list(self.open)
        own.from_setup = self.begun
        own.others_begin = sum(isinstance(op, BeginStep) for number, ops in enumerate(scenario.threads) if number != thread for op in ops)
        return own

    def may(self, op: Op) -> bool:
        """Whether the contract allows `op`, whatever other threads have done meanwhile, but for a call that comes too late."""
        return _MAY[type(op)](self, op)

    def learn(self, op: Op, answer: Any) -> None:  # noqa: ANN401 -- whatever a cache answers
        """Take note of what `op` was answered; a plain exception says that it came too late."""
        if isinstance(op, BeginStep):
            self._begun(answer)
        elif isinstance(op, EndStep):
            if not isinstance(answer, Refused):
                self._ended(op.step)
        elif isinstance(answer, OutOfBlocks | Refused):
            return
        elif isinstance(answer, Exception):
            for seq in sequences_of(op):
                self.live.pop(seq, None)
        elif type(op) in _LEARN:
            _LEARN[type(op)](self, op, answer)

    def _begun(self, answer: Any) -> None:  # noqa: ANN401 -- whatever a cache answers
        number, self.begun = self.begun, self.begun + 1
        if not isinstance(answer, int):
            return
        self.open.append(number)
        if not self.others_begin:
            for out in self._out():
                if out.step is None:
                    out.step = number

    def _ended(self, step: int) -> None:
        self.open.remove(step)
        for out in self._out():
            out.finished = out.finished or out.step == step

    def _out(self) -> list[Out]:
        return [held.out for held in self.live.values() if held.out is not None]


def _may_begin(view: ThreadView, op: BeginStep) -> bool:  # noqa: ARG001 -- one precondition is called like another
    return view.capabilities.steps and len(view.open) + view.others_begin < MAX_OPEN_STEPS


def _may_end(view: ThreadView, op: EndStep) -> bool:
    """A step of another thread may be older than one that was begun beside it."""
    if op.step not in view.open or view.any_order:
        return op.step in view.open
    return op.step == view.open[0] and (op.step < view.from_setup or not view.others_begin)


_MAY: Final[dict[type[Op], Callable[..., bool]]] = {
    **ENABLED,
    BeginStep: _may_begin,
    EndStep: _may_end,
    Evict: lambda view, op: view.capabilities.evict and bool(op.blocks),
}
"""The preconditions, asked of what a thread knows. Only steps are another matter among threads, and which blocks there are is settled by the scenario."""


# -- what an answer tells -------------------------------------------------------------------------------------------------------------------------


def _admitted(view: ThreadView, op: Admit, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.numbers.add(op.seq)
    view.live[op.seq] = Held(op.prompt)


def _extended(view: ThreadView, op: Extend, answer: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.live[op.seq]
    if not isinstance(answer, Grant) or not isinstance(answer.adopted, int):
        del view.live[op.seq]  # the checker of the protocol will say so
        return
    held.computed = held.computed or answer.adopted
    held.out = Out(min(op.count, len(held.known) - held.computed), op.drafts, finished=not view.capabilities.steps)


def _committed(view: ThreadView, op: Commit, _: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.live[op.seq]
    if held.out is not None:
        held.computed += held.out.count + op.accepted
        held.known += held.out.drafts[: op.accepted]
    held.out = None


def _appended(view: ThreadView, op: Append, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.live[op.seq].known += op.tokens


def _truncated(view: ThreadView, op: Truncate, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.live[op.seq] = Held(view.live[op.seq].known[: op.length], op.length)


def _forked(view: ThreadView, op: Fork, _: Any) -> None:  # noqa: ANN401 -- the answer
    parent = view.live[op.parent]
    view.numbers.add(op.child)
    view.live[op.child] = Held(parent.known, parent.computed)


def _released(view: ThreadView, op: Release, _: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.live.pop(op.seq, None)
    if held is not None and op.reason == "preempt":
        view.live[op.seq] = Held(held.known)


def _swapped_out(view: ThreadView, op: SwapOut, answer: Any) -> None:  # noqa: ANN401 -- the answer
    view.live[op.seq].swapped = answer is True


def _swapped_in(view: ThreadView, op: SwapIn, answer: Any) -> None:  # noqa: ANN401 -- the answer
    view.live[op.seq].swapped = answer is not True


_LEARN: Final[dict[type[Op], Callable[..., None]]] = {
    Admit: _admitted,
    Extend: _extended,
    Commit: _committed,
    Append: _appended,
    Truncate: _truncated,
    Fork: _forked,
    Release: _released,
    SwapOut: _swapped_out,
    SwapIn: _swapped_in,
}
