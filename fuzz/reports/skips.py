"""Why an operation was skipped, told in a few words from what the spec knows at that moment."""

from __future__ import annotations

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
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.preconditions import MAX_OPEN_STEPS
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence


def why_skipped(spec: Spec, op: Op) -> str:
    """Why the precondition of `op` does not hold now; empty where it cannot be told."""
    claim = CAPABILITY_OF.get(type(op))
    if claim is not None and not getattr(spec.capabilities, claim):
        return f"{claim} not claimed"
    match op:
        case Admit():
            return f"{op.seq} already known" if op.seq in spec.numbers else "empty prompt"
        case BeginStep():
            return f"{MAX_OPEN_STEPS} steps open already"
        case EndStep():
            return "not the oldest step" if spec.steps else "no step open"
        case Evict():
            return "no such block"
        case Fork():
            return _unusable(spec, op.parent) or f"{op.child} already known"
        case Release():
            return _unusable(spec, op.seq)
    seq = getattr(op, "seq", None)
    return (
        ""
        if seq is None
        else _unusable(spec, seq, pass_expected=isinstance(op, Commit), swap_expected=isinstance(op, SwapIn))
        or _idle(spec, spec.live[seq], op)
    )


def _unusable(spec: Spec, seq: int, *, pass_expected: bool = False, swap_expected: bool = False) -> str:
    """Why nothing can be asked of `seq` as it is; empty where something could."""
    sequence = spec.live.get(seq)
    if sequence is None:
        return f"{seq} was released" if seq in spec.numbers else f"unknown sequence {seq}"
    if sequence.swapped and not swap_expected:
        return f"{seq} is swapped out"
    if sequence.out is not None and not pass_expected and not swap_expected:
        return f"{seq} has a pass out"
    return ""


def _idle(spec: Spec, sequence: Sequence, op: Op) -> str:
    """Why `op` cannot be asked of a sequence that is otherwise in order."""
    match op:
        case Match():
            return "tokens computed already"
        case Extend():
            return _extend(spec, sequence, op)
        case Commit():
            return _commit(sequence, op)
        case Append():
            return "no tokens given"
        case Truncate():
            return "length below 1" if op.length < 1 else f"only {sequence.computed} computed"
        case SwapOut():
            return "nothing computed yet"
        case SwapIn():
            return "not swapped out"
    return ""


def _extend(spec: Spec, sequence: Sequence, op: Extend) -> str:
    if op.count < 1:
        return "count below 1"
    if sequence.computed >= len(sequence.known):
        return "nothing to compute"
    if not spec.capabilities.drafts:
        return "drafts not claimed"
    return "drafts before the last known token" if sequence.computed else "drafts on a first extend"


def _commit(sequence: Sequence, op: Commit) -> str:
    out = sequence.out
    if out is None:
        return "no pass out"
    if not out.finished:
        return "its step has not ended" if out.launched else "pass not launched"
    return f"{len(out.drafts)} drafts, {op.accepted} accepted"
