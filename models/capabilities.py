"""What a cache claims to do. A claim is tested; what is not claimed is reported as not applicable, never as held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

import msgspec

GroupKind: TypeAlias = Literal["full", "sliding_window", "compressed", "state"]


class Group(msgspec.Struct, frozen=True):
    """Layers that keep their blocks together.

    `full`: every position stays readable. `sliding_window`: a query at position p reads p-window+1..p, so older blocks may be freed.
    `compressed` and `state` are named by the contract and not driven yet. `block_size` None means the one given to `__init__`, in tokens.
    """

    kind: GroupKind = "full"
    block_size: int | None = None
    window: int | None = None


Capacity: TypeAlias = int | Callable[[int], int] | None


class Capabilities(msgspec.Struct, frozen=True):
    """The claims of a cache, read once before anything else is called.

    `policy`: any of `lru` (evicts the least recently used block, deeper blocks first), `groups-together` and `groups-in-turn` (with `lru`, what one release lets go of
    in several groups goes by position, the deepest of all groups first, or group by group), `tight` (tables are never longer than needed),
    `exact` (extend succeeds whenever free and evictable blocks suffice), `rewrites` (a pass may write again what a shared slot already holds).
    `capacity`: blocks really usable out of `num_blocks`, where that differs: a number, or a function of `num_blocks`.
    `split_pool`: the groups do not share the pool; each has an even share of the ids for itself, the first group the first, and what is over goes to the first groups.
    `tensors`: behind the adapter real passes run on real keys and values, and it raises `Differs` where they give the wrong numbers.
    `null_blocks`: ids that are never handed out (padding sinks). `block_sizes`, `max_blocks`: what the suite may ask for.
    """

    groups: Sequence[Group] = (Group(),)
    prefix: bool = False
    fork: bool = False
    truncate: bool = False
    drafts: bool = False
    steps: bool = False
    evict: bool = False
    reset: bool = False
    swap: bool = False
    transfer: bool = False
    snapshot: bool = False
    events: bool = False
    mirror: bool = False
    tensors: bool = False
    namespace_fields: Collection[str] = frozenset()
    null_blocks: Collection[int] = frozenset()
    policy: Collection[str] = frozenset()
    capacity: Capacity = None
    split_pool: bool = False
    block_sizes: Sequence[int] = (1, 2, 3, 4, 16)
    max_blocks: int = 64
