"""What a cache answers: the values that adapters return, the exceptions that they may raise, and what an operation came to, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec


class OutOfBlocks(Exception):
    """The cache cannot make the room that was asked for. Nothing has changed."""


class Refused(Exception):
    """The engine that owns this cache would never do that here. Nothing has changed."""


class Differs(Exception):
    """What a pass computed from real keys and values is not what the contiguous sequence gives. Only adapters that claim `tensors` raise it.

    The message says whose pass it was, and how far it is off: it is the reason of a broken `served-equals-contiguous`.
    """


class Hit(msgspec.Struct, frozen=True, tag_field="answer", tag="hit"):
    """The answer of `match`: how many leading tokens could be reused now."""

    tokens: int = 0


class Grant(msgspec.Struct, frozen=True, tag_field="answer", tag="grant", omit_defaults=True):
    """The answer of `extend` and `fork`.

    `copies`: (group, source block, destination block) copies that must run before the pass, as one batch.
    `zeroed`: blocks to clear before the copies run.
    `adopted`: how many leading tokens became computed without a pass (first extend only).
    """

    copies: Sequence[tuple[int, int, int]] = ()
    zeroed: Sequence[int] = ()
    adopted: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """What the cache's own books say. A field that the cache keeps no books on is None, and the laws that need it do not apply.

    `refcounts`: block -> count; a block that is missing counts 0.
    `free`: the blocks that can be handed out now, in order, matchable ones included.
    `cached`: the blocks whose content is matchable, held or not.
    `retiring`: the blocks that wait for device work.
    `free_count`: how many blocks the cache's own counter says can be handed out.
    """

    refcounts: Mapping[int, int] | None = None
    free: Sequence[int] | None = None
    cached: Collection[int] | None = None
    retiring: Collection[int] | None = None
    free_count: int | None = None


class Event(msgspec.Struct, frozen=True):
    """One change of the matchable set: `stored` and `removed` name blocks, `cleared` empties the set."""

    kind: Literal["stored", "removed", "cleared"]
    blocks: Sequence[int] = ()
    reason: str = ""


# -- what an operation came to ---------------------------------------------------------------------------------------------------------------


class OutOfBlocksSeen(msgspec.Struct, frozen=True, tag_field="answer", tag="out-of-blocks"):
    """The cache raised OutOfBlocks."""


class RefusedSeen(msgspec.Struct, frozen=True, tag_field="answer", tag="refused"):
    """The cache raised Refused."""

    reason: str = ""


class Raised(msgspec.Struct, frozen=True, tag_field="answer", tag="raised"):
    """The cache raised an exception of its own where the contract says that nothing happens (a repeated release)."""

    error: str


class Died(Raised, frozen=True):
    """The cache's own code failed in the middle of an operation: it is no fault of the adapter's."""


Outcome: TypeAlias = Hit | Grant | bool | int | OutOfBlocksSeen | RefusedSeen | Raised | None
"""What an operation answered."""


class ContractBroken(Exception):
    """The adapter answered something that the contract rules out whatever the cache did."""
