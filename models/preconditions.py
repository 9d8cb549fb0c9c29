"""When an operation may come: a program skips those whose precondition does not hold in the state that the spec is in.

Each function answers for one operation, and `ENABLED` finds it. So every sub-list of a program can be run, and shrinking only has to delete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

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
from kvproof.models.state import Sequence

if TYPE_CHECKING:
    from kvproof.models.spec import Spec

MAX_OPEN_STEPS: Final = 3
"""Engines keep at most two or three steps in flight; more finds nothing new and makes programs long."""


def can_admit(spec: Spec, op: Admit) -> bool:
    """The number was never used, and there is something to compute."""
    return op.seq not in spec.numbers and len(op.prompt) > 0


def can_match(spec: Spec, op: Match) -> bool:
    """The sequence holds nothing yet."""
    sequence = _idle(spec, op.seq)
    return spec.capabilities.prefix and sequence is not None and sequence.computed == 0 and len(sequence.known) > 0


def can_extend(spec: Spec, op: Extend) -> bool:
    """There is a known token to compute. Drafts follow the last known token, and never come with a first extend."""
    sequence = _idle(spec, op.seq)
    if sequence is None or op.count < 1 or sequence.computed >= len(sequence.known):
        return False
    if not op.drafts:
        return True
    return spec.capabilities.drafts and sequence.computed > 0 and sequence.computed + op.count >= len(sequence.known)


def can_commit(spec: Spec, op: Commit) -> bool:
    """The pass of the sequence has finished, and it had so many drafts."""
    sequence = spec.live.get(op.seq)
    return sequence is not None and sequence.out is not None and sequence.out.finished and 0 <= op.accepted <= len(sequence.out.drafts)


def can_append(spec: Spec, op: Append) -> bool:
    """No pass is out that computes what is known."""
    return _idle(spec, op.seq) is not None and len(op.tokens) > 0


def can_truncate(spec: Spec, op: Truncate) -> bool:
    """What stays was computed."""
    sequence = _idle(spec, op.seq)
    return spec.capabilities.truncate and sequence is not None and 1 <= op.length <= sequence.computed


def can_fork(spec: Spec, op: Fork) -> bool:
    """The child's number was never used."""
    return spec.capabilities.fork and _idle(spec, op.parent) is not None and op.child not in spec.numbers


def can_release(spec: Spec, op: Release) -> bool:
    """The sequence was known at some time; it may have been released already."""
    return op.seq in spec.numbers


def can_begin(spec: Spec, op: BeginStep) -> bool:
    """Not too many steps are open."""
    return spec.capabilities.steps and (spec.concurrent or len(spec.steps) < MAX_OPEN_STEPS)


def can_end(spec: Spec, op: EndStep) -> bool:
    """The step is open, and, where completions come in order, the oldest."""
    return spec.capabilities.steps and 0 <= op.step < (len(spec.steps) if spec.concurrent else min(1, len(spec.steps)))


def can_evict(spec: Spec, op: Evict) -> bool:
    """The pool has one of the blocks."""
    return spec.capabilities.evict and any(block in spec.universe for block in op.blocks)


def can_reset(spec: Spec, op: Reset) -> bool:
    """At any time."""
    return spec.capabilities.reset


def can_swap_out(spec: Spec, op: SwapOut) -> bool:
    """There is something to move."""
    sequence = _idle(spec, op.seq)
    return spec.capabilities.swap and sequence is not None and sequence.computed > 0


def can_swap_in(spec: Spec, op: SwapIn) -> bool:
    """The sequence was swapped out."""
    sequence = spec.live.get(op.seq)
    return spec.capabilities.swap and sequence is not None and sequence.swapped


def _idle(spec: Spec, seq: int) -> Sequence | None:
    """The sequence, if it is live, on the device, and has no pass out."""
    sequence = spec.live.get(seq)
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
