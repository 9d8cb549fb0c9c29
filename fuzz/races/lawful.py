"""What a thread may ask for, so that no scenario makes a call that the contract forbids, whatever the other threads do.

    view = View(capabilities)                  # of the setup, which is one thread
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
    CAPABILITY_OF,
    Admit,
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
    sequences_of,
)
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused
from kvproof.models.preconditions import MAX_OPEN_STEPS


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


class Held:
    """A sequence as its thread knows it, lengths in tokens. `out`: how many its pass computes, 0 without one. `step`: the number of the step that launched the pass."""

    def __init__(self, known: int, computed: int = 0) -> None:
        self.known = known
        self.computed = computed
        self.out = 0
        self.drafts = 0
        self.step: int | None = None
        self.swapped = False


class View:
    """What one thread knows by its own calls and those of the setup. Steps are counted in the order in which it came to know them."""

    def __init__(self, capabilities: Capabilities, *, any_order: bool = False) -> None:
        self.capabilities = capabilities
        self.any_order = any_order
        self.sequences: dict[int, Held] = {}
        self.numbers: set[int] = set()
        """All that were ever known: a second release of one is allowed."""
        self.begun = 0
        self.open: list[int] = []
        """The steps that it has not seen completed, oldest first."""
        self.from_setup = 0
        self.others_begin = 0
        """How many steps other threads may begin."""

    def of_thread(self, scenario: Scenario, thread: int) -> View:
        """The view of a thread that goes on from here."""
        own = copy.copy(self)
        own.sequences = {seq: copy.copy(held) for seq, held in self.sequences.items()}
        own.numbers, own.open = set(self.numbers), list(self.open)
        own.from_setup = self.begun
        own.others_begin = sum(isinstance(op, BeginStep) for number, ops in enumerate(scenario.threads) if number != thread for op in ops)
        return own

    def may(self, op: Op) -> bool:
        """Whether the contract allows `op`, whatever other threads have done meanwhile, but for a call that comes too late."""
        need = CAPABILITY_OF.get(type(op))
        return (need is None or bool(getattr(self.capabilities, need))) and _MAY[type(op)](self, op)

    def learn(self, op: Op, answer: Any) -> None:  # noqa: ANN401 -- whatever a cache answers
        """Take note of what `op` was answered; a plain exception says that it came too late."""
        if isinstance(op, BeginStep):
            self._begun(answer)
        elif isinstance(op, EndStep):
            if not isinstance(answer, Refused):
                self.open.remove(op.step)
        elif isinstance(answer, OutOfBlocks | Refused):
            return
        elif isinstance(answer, Exception):
            for seq in sequences_of(op):
                self.sequences.pop(seq, None)
        elif type(op) in _LEARN:
            _LEARN[type(op)](self, op, answer)

    def _begun(self, answer: Any) -> None:  # noqa: ANN401 -- whatever a cache answers
        number, self.begun = self.begun, self.begun + 1
        if not isinstance(answer, int):
            return
        self.open.append(number)
        if not self.others_begin:
            for held in self.sequences.values():
                if held.out and held.step is None:
                    held.step = number

    def idle(self, seq: int) -> Held | None:
        """The sequence, if it is live, on the device, and has no pass out."""
        held = self.sequences.get(seq)
        return held if held and not held.out and not held.swapped else None


# -- preconditions --------------------------------------------------------------------------------------------------------------------------------


def _may_admit(view: View, op: Admit) -> bool:
    return op.seq not in view.numbers and bool(op.prompt)


def _may_match(view: View, op: Match) -> bool:
    held = view.idle(op.seq)
    return held is not None and not held.computed


def _may_extend(view: View, op: Extend) -> bool:
    held = view.idle(op.seq)
    if held is None or op.count < 1 or held.computed >= held.known:
        return False
    return not op.drafts or (view.capabilities.drafts and held.computed > 0 and held.computed + op.count >= held.known)


def _may_commit(view: View, op: Commit) -> bool:
    held = view.sequences.get(op.seq)
    if held is None or not held.out or not 0 <= op.accepted <= held.drafts:
        return False
    return not view.capabilities.steps or (held.step is not None and held.step not in view.open)


def _may_append(view: View, op: Append) -> bool:
    return view.idle(op.seq) is not None and bool(op.tokens)


def _may_truncate(view: View, op: Truncate) -> bool:
    held = view.idle(op.seq)
    return held is not None and 1 <= op.length <= held.computed


def _may_fork(view: View, op: Fork) -> bool:
    return view.idle(op.parent) is not None and op.child not in view.numbers


def _may_begin(view: View, op: BeginStep) -> bool:  # noqa: ARG001 -- one precondition is called like another
    return len(view.open) + view.others_begin < MAX_OPEN_STEPS


def _may_end(view: View, op: EndStep) -> bool:
    """A step of another thread may be older than one that was begun beside it."""
    if op.step not in view.open or view.any_order:
        return op.step in view.open
    return op.step == view.open[0] and (op.step < view.from_setup or not view.others_begin)


def _may_swap_out(view: View, op: SwapOut) -> bool:
    held = view.idle(op.seq)
    return held is not None and held.computed > 0


def _may_swap_in(view: View, op: SwapIn) -> bool:
    held = view.sequences.get(op.seq)
    return held is not None and held.swapped


_MAY: Final[dict[type[Op], Callable[..., bool]]] = {
    Admit: _may_admit,
    Match: _may_match,
    Extend: _may_extend,
    Commit: _may_commit,
    Append: _may_append,
    Truncate: _may_truncate,
    Fork: _may_fork,
    Release: lambda view, op: op.seq in view.numbers,
    BeginStep: _may_begin,
    EndStep: _may_end,
    Evict: lambda _, op: bool(op.blocks),
    Reset: lambda *_: True,
    SwapOut: _may_swap_out,
    SwapIn: _may_swap_in,
}


# -- what an answer tells -------------------------------------------------------------------------------------------------------------------------


def _admitted(view: View, op: Admit, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.numbers.add(op.seq)
    view.sequences[op.seq] = Held(len(op.prompt))


def _extended(view: View, op: Extend, answer: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.sequences[op.seq]
    if not isinstance(answer, Grant) or not isinstance(answer.adopted, int):
        del view.sequences[op.seq]  # the checker of the protocol will say so
        return
    held.computed = held.computed or answer.adopted
    held.out, held.drafts, held.step = min(op.count, held.known - held.computed), len(op.drafts), None


def _committed(view: View, op: Commit, _: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.sequences[op.seq]
    held.computed += held.out + op.accepted
    held.known += op.accepted
    held.out = held.drafts = 0


def _appended(view: View, op: Append, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.sequences[op.seq].known += len(op.tokens)


def _truncated(view: View, op: Truncate, _: Any) -> None:  # noqa: ANN401 -- the answer
    view.sequences[op.seq] = Held(op.length, op.length)


def _forked(view: View, op: Fork, _: Any) -> None:  # noqa: ANN401 -- the answer
    parent = view.sequences[op.parent]
    view.numbers.add(op.child)
    view.sequences[op.child] = Held(parent.known, parent.computed)


def _released(view: View, op: Release, _: Any) -> None:  # noqa: ANN401 -- the answer
    held = view.sequences.pop(op.seq, None)
    if held is not None and op.reason == "preempt":
        view.sequences[op.seq] = Held(held.known)


def _swapped_out(view: View, op: SwapOut, answer: Any) -> None:  # noqa: ANN401 -- the answer
    view.sequences[op.seq].swapped = answer is True


def _swapped_in(view: View, op: SwapIn, answer: Any) -> None:  # noqa: ANN401 -- the answer
    view.sequences[op.seq].swapped = answer is not True


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
