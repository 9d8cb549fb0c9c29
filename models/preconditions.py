"""When an operation may come: a program skips those whose precondition does not hold in the state that the spec is in.

Each function answers for one operation, and `ENABLED` finds it. So every sub-list of a program can be run, and shrinking only has to delete.

They ask a `View`: the spec knows everything, and a thread of a race what its own calls tell it (`fuzz/races/lawful.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sized
from typing import TYPE_CHECKING, Final, Protocol

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
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)

if TYPE_CHECKING:
    from kvproof.models.spec import Spec

MAX_OPEN_STEPS: Final = 3
"""Engines keep at most two or three steps in flight; more finds nothing new and makes programs long."""


class PassOut(Protocol):
    """A pass that was extended and not committed yet."""

    @property
    def drafts(self) -> Sized:
        """The draft tokens behind what it computes."""

    @property
    def finished(self) -> bool:
        """Whether it is known to have run."""


class Live(Protocol):
    """A sequence that is not released."""

    @property
    def known(self) -> Sized:
        """Its tokens."""

    @property
    def computed(self) -> int:
        """How many of them are computed."""

    @property
    def out(self) -> PassOut | None:
        """Its pass."""

    @property
    def swapped(self) -> bool:
        """Whether it lies in the slower tier."""


class View(Protocol):
    """What whoever asks knows of the requests."""

    @property
    def capabilities(self) -> Capabilities:
        """What the cache claims."""

    @property
    def live(self) -> Mapping[int, Live]:
        """Sequence -> what is known of it."""

    @property
    def numbers(self) -> Collection[int]:
        """All sequences that were ever known."""


def can_admit(view: View, op: Admit) -> bool:
    """The number was never used, and there is something to compute."""
    return op.seq not in view.numbers and len(op.prompt) > 0


def can_match(view: View, op: Match) -> bool:
    """The sequence holds nothing yet."""
    sequence = _idle(view, op.seq)
    return view.capabilities.prefix and sequence is not None and sequence.computed == 0 and len(sequence.known) > 0


def can_extend(view: View, op: Extend) -> bool:
    """There is a known token to compute. Drafts follow the last known token, and never come with a first extend."""
    sequence = _idle(view, op.seq)
    if sequence is None or op.count < 1 or sequence.computed >= len(sequence.known):
        return False
    if not op.drafts:
        return True
    return view.capabilities.drafts and sequence.computed > 0 and sequence.computed + op.count >= len(sequence.known)


def can_commit(view: View, op: Commit) -> bool:
    """The pass of the sequence has finished, and it had so many drafts."""
    sequence = view.live.get(op.seq)
    return sequence is not None and sequence.out is not None and sequence.out.finished and 0 <= op.accepted <= len(sequence.out.drafts)


def can_append(view: View, op: Append) -> bool:
    """No pass is out that computes what is known."""
    return _idle(view, op.seq) is not None and len(op.tokens) > 0


def can_truncate(view: View, op: Truncate) -> bool:
    """What stays was computed."""
    sequence = _idle(view, op.seq)
    return view.capabilities.truncate and sequence is not None and 1 <= op.length <= sequence.computed


def can_fork(view: View, op: Fork) -> bool:
    """The child's number was never used."""
    return view.capabilities.fork and _idle(view, op.parent) is not None and op.child not in view.numbers


def can_release(view: View, op: Release) -> bool:
    """The sequence was known at some time; it may have been released already."""
    return op.seq in view.numbers


def can_begin(spec: Spec, op: BeginStep) -> bool:
    """Not too many steps are open."""
    return spec.capabilities.steps and (spec.concurrent or len(spec.steps) < MAX_OPEN_STEPS)


def can_end(spec: Spec, op: EndStep) -> bool:
    """The step is open, and, where completions come in order, the oldest."""
    return spec.capabilities.steps and 0 <= op.step < (len(spec.steps) if spec.concurrent else min(1, len(spec.steps)))


def can_evict(spec: Spec, op: Evict) -> bool:
    """The pool has one of the blocks."""
    return spec.capabilities.evict and any(block in spec.universe for block in op.blocks)


def can_reset(view: View, op: Reset) -> bool:
    """At any time."""
    return view.capabilities.reset


def can_swap_out(view: View, op: SwapOut) -> bool:
    """There is something to move."""
    sequence = _idle(view, op.seq)
    return view.capabilities.swap and sequence is not None and sequence.computed > 0


def can_swap_in(view: View, op: SwapIn) -> bool:
    """The sequence was swapped out."""
    sequence = view.live.get(op.seq)
    return view.capabilities.swap and sequence is not None and sequence.swapped


def _idle(view: View, seq: int) -> Live | None:
    """The sequence, if it is live, on the device, and has no pass out."""
    sequence = view.live.get(seq)
    return sequence if sequence and sequence.out is None and not sequence.swapped else None


ENABLED: Final[dict[type[Op], Callable[..., bool]]] = {
    Admit: can_admit,
    Match: can_match,
    Extend: can_extend,
    Commit: can_commit,
    Append: can_append,
    Truncate: can_truncate,
    Fork: can_fork,
    Release: can_release,
    BeginStep: can_begin,
    EndStep: can_end,
    Evict: can_evict,
    Reset: can_reset,
    SwapOut: can_swap_out,
    SwapIn: can_swap_in,
}
"""The precondition of each operation."""
