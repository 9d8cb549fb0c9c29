"""What the cache says of itself: events, reserved blocks, the size of its tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.fuzz.bugs.registry import SynchronousHybridAdapter, seeded
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.records import BlockEvent
from kvproof.impl.production.sequence import SequenceState
from kvproof.models.capabilities import Capabilities
from kvproof.models.outcomes import Event

# -- events ------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "eviction-is-not-announced",
    laws=("events-replay-index",),
    story="The router sends requests to a worker that has long evicted their prompt.",
)
class EvictionIsNotAnnounced(SynchronousAdapter):
    """Says what was dropped on demand, and not what was evicted for room."""

    def take_events(self) -> Sequence[Event]:
        """All events but one kind."""
        return [event for event in super().take_events() if event.reason != "evicted"]


@seeded(
    "reset-is-not-announced",
    laws=("events-replay-index",),
    story="After a reset, the router takes a cold worker for the warmest.",
)
class ResetIsNotAnnounced(SynchronousAdapter):
    """Forgets everything in silence."""

    def take_events(self) -> Sequence[Event]:
        """All events but one kind."""
        return [event for event in super().take_events() if event.kind != "cleared"]


@seeded(
    "private-block-is-announced",
    laws=("events-replay-index",),
    story="The router counts blocks that no request can hit.",
)
class PrivateBlockIsAnnounced(PagedCache):
    """Announces every whole block of a sequence, also where another with the same content is matchable already."""

    def _publish(self, state: SequenceState) -> None:
        depth = state.depths[0]
        super()._publish(state)
        whole = [block for block in state.tables[0][depth : state.depths[0]] if block is not None]
        if whole and self._events is not None:
            self._events.append(BlockEvent("stored", tuple(whole), 0))


# -- reserved blocks ---------------------------------------------------------------------------------------------------------------------------


class NullBlockAdapter(SynchronousHybridAdapter):
    """Block 0 stands where a window has passed, and is never handed out: the pool is one block smaller."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.reserve()

    def reserve(self) -> None:
        """Takes the null block, the first of all."""
        self.cache._pool.take(1)

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the production cache, and a null block."""
        return msgspec.structs.replace(super().capabilities(), null_blocks=frozenset({0}))

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The table, with the null block where a window has passed."""
        return [block or 0 for block in super().block_table(seq, group)]


@seeded(
    "null-block-is-freed-with-the-table",
    laws=("pool-conserved",),
    story="After the first long request has finished, the block that must stay empty is handed out.",
    like=("B25",),
    on=NullBlockAdapter,
)
class NullBlockIsFreedWithTheTable(PagedCache):
    """Counts the null block down like any other."""

    def _let_go(self, state: SequenceState) -> None:
        passed = any(None in table for table in state.tables)
        super()._let_go(state)
        if passed:
            self._pool.drop([0])


@seeded(
    "null-block-is-another",
    laws=("refcount-equals-holders", "pool-conserved"),
    story="One request in a thousand gets a block that all kernels skip.",
    like=("B74",),
)
class NullBlockIsAnother(NullBlockAdapter):
    """Takes whatever block comes first for the null block, after somebody else has taken one."""

    def reserve(self) -> None:
        """Takes the second block."""
        [first] = self.cache._pool.take(1)
        if self.cache._pool.available:
            self.cache._pool.take(1)
        self.cache._pool.drop([first])


def all_but_one(num_blocks: int) -> int:
    """The capacity of a pool that keeps one block back."""
    return num_blocks - 1


@seeded(
    "reserved-block-is-not-kept-back",
    laws=("ledger-adds-up",),
    story="The block that is meant for padding fills up with the text of a request.",
    like=("B74",),
)
class ReservedBlockIsNotKeptBack(SynchronousAdapter):
    """Says that one block is kept back, and keeps none."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the production cache, less one block."""
        return msgspec.structs.replace(super().capabilities(), capacity=all_but_one)


# -- tables ------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "table-is-a-block-ahead",
    laws=("tail-waste-bounded",),
    story="Each running request holds a block that it may never need, and fewer run at once.",
)
class TableIsABlockAhead(PagedCache):
    """Takes the next block as soon as the last one is full."""

    def _append_blocks(self, state: SequenceState, end: int) -> None:
        super()._append_blocks(state, end)
        for table in state.tables:
            if end % self._layouts[0].size == 0 and self._pool.available:
                table += self._take(1)


@seeded(
    "truncation-keeps-the-blocks",
    laws=("tail-waste-bounded",),
    story="Rolling a conversation back frees no memory.",
    like=("B52",),
)
class TruncationKeepsTheBlocks(PagedCache):
    """Cuts the tokens, and leaves the table as it is."""

    def _trim(self, state: SequenceState, length: int) -> None:
        state.room = length
