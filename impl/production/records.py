"""What the cache answers: grants, step plans, host copies, events, books and counters. All frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Table: TypeAlias = "list[int | None]"
"""The physical block of each logical block, position order; None where a window has passed."""


@dataclass(frozen=True, slots=True)
class ExtendGrant:
    """The answer of `extend`.

    `copies`: (group, source block, destination block), to run before the pass; as one gather and scatter, if the engine likes.
    `adopted`: how many leading tokens became computed without a pass (first extend only).
    """

    copies: tuple[tuple[int, int, int], ...] = ()
    adopted: int = 0


@dataclass(frozen=True, slots=True)
class TableDelta:
    """One splice of a device-side block table: from entry `start` on it becomes `entries`. 0 starts a new or a resumed sequence."""

    seq: int
    group: int
    start: int
    entries: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The answer of `begin_step`: what the device has to do, in this order.

    `dropped`: sequences whose device-side tables go away. `tables`: splices that make the other tables equal to the manager's.
    `copies`: (group, source, destination) for all launched passes, one sound batch that runs before them. `sequences`: whose passes.
    """

    step: int
    sequences: tuple[int, ...] = ()
    copies: tuple[tuple[int, int, int], ...] = ()
    dropped: tuple[int, ...] = ()
    tables: tuple[TableDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCopies:
    """The answer of `swap_out` (device to host) and `swap_in` (host to device): (group, device block, host block).

    Issue them on the stream of the passes, before the next step: the source may be given to others now, who write later on that stream.
    """

    seq: int
    blocks: tuple[tuple[int, int, int], ...] = ()


RemovalReason: TypeAlias = Literal["evicted", "requested", "rewritten"]
"""`evicted`: handed out. `requested`: the engine asked. `rewritten`: its holder goes on inside it, and no block was free for a copy."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """One change of the matchable set: `stored` and `removed` name blocks, `cleared` empties the set.

    `group` is that of stored blocks, else -1.
    """

    kind: Literal["stored", "removed", "cleared"]
    blocks: tuple[int, ...] = ()
    group: int = -1
    reason: RemovalReason | None = None


@dataclass(frozen=True, slots=True)
class Books:
    """The books on every block, for auditors.

    `refcounts`: how many tables list each held block. `free`: what can be handed out now, in that order, matchable blocks included.
    `cached`: the matchable blocks, held or not. `retiring`: blocks in no table that device work still pins.
    """

    refcounts: Mapping[int, int]
    free: tuple[int, ...]
    cached: frozenset[int]
    retiring: frozenset[int]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Numbers for an operator.

    Now: `used_blocks` + `free_blocks` = `num_blocks`; `cached_blocks` are the matchable ones of either; `retiring_blocks` are in no table
    and wait for device work; `fragmentation_tokens` is room for tokens that is allocated and not computed.
    So far: `lookup_tokens` known and `hit_tokens` adopted at first extends, blocks evicted for reuse, blocks copied on write, and so on.
    """

    num_blocks: int
    used_blocks: int
    free_blocks: int
    cached_blocks: int
    retiring_blocks: int
    host_blocks_used: int
    sequences: int
    fragmentation_tokens: int
    lookup_tokens: int
    hit_tokens: int
    evicted_blocks: int
    preemptions: int
    swaps_out: int
    swaps_in: int
    copied_blocks: int

    @property
    def hit_rate(self) -> float:
        """Adopted tokens over known tokens at first extends; 0 before the first."""
        return self.hit_tokens / self.lookup_tokens if self.lookup_tokens else 0.0

    @property
    def usage(self) -> float:
        """Used blocks over all blocks."""
        return self.used_blocks / self.num_blocks
