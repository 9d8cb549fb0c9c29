"""Operations are data: frozen, serialisable structs. A program is a list of them, and there is no second way to drive a cache.

An operation whose precondition does not hold in the current state is skipped, so every sub-list of a program can be run: shrinking depends on it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

Tokens: TypeAlias = tuple[int, ...]
"""Token ids, position 0 first."""

ReleaseReason: TypeAlias = Literal["finish", "cancel", "error", "preempt"]
"""Why a sequence lets go. The first three are final; after `preempt` it stays known and can be extended again."""

RELEASE_REASONS: tuple[ReleaseReason, ...] = get_args(ReleaseReason)


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must agree, besides the tokens, before two requests may share a block: every field is compared, None included."""

    tenant: str | None = None
    model: str | None = None
    adapter: str | None = None
    media: str | None = None
    rope: str | None = None
    layout: str | None = None
    dtype: str | None = None
    template: str | None = None


NAMESPACE_FIELDS: tuple[str, ...] = Namespace.__struct_fields__
NO_NAMESPACE = Namespace()


class Op(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True):
    """Base of all operations."""


class Admit(Op, frozen=True):
    """A request is known; it holds nothing yet. Its number was never used before."""

    seq: int
    prompt: Tokens
    namespace: Namespace = NO_NAMESPACE


class Match(Op, frozen=True):
    """How long a prefix could be reused now, for a sequence that holds nothing."""

    seq: int


class Extend(Op, frozen=True):
    """Adopt the last match if this is the first extend; make room for the next `count` known tokens and then for the draft tokens.

    `count` counts from the adopted tokens and is cut to the known ones. Drafts come only where `count` reaches the last known token, and never on a first extend.
    """

    seq: int
    count: int
    drafts: Tokens = ()


class Commit(Op, frozen=True):
    """The pass of the last extend is done: its tokens and the first `accepted` drafts are computed, the other drafts never were."""

    seq: int
    accepted: int = 0


class Append(Op, frozen=True):
    """Tokens become known (sampled, or the next turn of the user); none is computed yet."""

    seq: int
    tokens: Tokens


class Truncate(Op, frozen=True):
    """Roll back: the first `length` tokens (1 <= length <= computed) stay known and computed, the rest is forgotten."""

    seq: int
    length: int


class Fork(Op, frozen=True):
    """`child`, a new number, knows parent's tokens and has computed all that parent has, by sharing blocks or by copies."""

    parent: int
    child: int


class Release(Op, frozen=True):
    """The sequence lets go of everything. Repeating it changes nothing."""

    seq: int
    reason: ReleaseReason = "finish"


class BeginStep(Op, frozen=True):
    """Device work is launched for every extend that was neither launched nor released before."""


class EndStep(Op, frozen=True):
    """The device work of an open step has finished. `step` counts the open steps from the oldest, 0.

    A device runs its queue in order, so today only 0 is enabled; the number is there for completion events in any order.
    """

    step: int = 0


class Evict(Op, frozen=True):
    """Make these physical blocks unmatchable. Blocks that the pool does not have are left out."""

    blocks: tuple[int, ...]


class Reset(Op, frozen=True):
    """Make everything unmatchable."""


class SwapOut(Op, frozen=True):
    """Move a sequence to the slower tier."""

    seq: int


class SwapIn(Op, frozen=True):
    """Move a sequence back from the slower tier."""

    seq: int


AnyOp: TypeAlias = (
    Admit | Match | Extend | Commit | Append | Truncate | Fork | Release | BeginStep | EndStep | Evict | Reset | SwapOut | SwapIn
)
"""Every operation. msgspec decodes it by the `op` tag."""

OP_TYPES: tuple[type[Op], ...] = get_args(AnyOp)

CAPABILITY_OF: dict[type[Op], str] = {
    Match: "prefix",
    Fork: "fork",
    Truncate: "truncate",
    BeginStep: "steps",
    EndStep: "steps",
    Evict: "evict",
    Reset: "reset",
    SwapOut: "swap",
    SwapIn: "swap",
}
"""The capability that an operation needs; those that are not here, every cache has."""


def op_name(op: Op) -> str:
    """The name of the operation in programs, reports and the command line: `extend`, `swapout`, ..."""
    return type(op).__name__.lower()


def sequences_of(op: Op) -> tuple[int, ...]:
    """The sequences that an operation is about."""
    if type(op) in _OF_ONE_SEQUENCE:  # asked of every operation; `isinstance` costs ten times as much on a struct
        return (op.seq,)  # type: ignore[attr-defined]
    return (op.parent, op.child) if isinstance(op, Fork) else ()


_OF_ONE_SEQUENCE: frozenset[type[Op]] = frozenset(kind for kind in OP_TYPES if "seq" in kind.__struct_fields__)
