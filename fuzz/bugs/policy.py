"""Which block goes first: eviction orders that the cache does not claim."""

from __future__ import annotations

from functools import cached_property

from kvproof.fuzz.bugs.registry import SynchronousHybridAdapter, seeded
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.sequence import SequenceState


class ReorderedCache(PagedCache):
    """Puts the idle blocks in an order of its own before it evicts. Not a bug by itself: that depends on the order."""

    def order(self, idle: list[int]) -> list[int]:
        """`idle`, the next to be evicted first; it comes in the right order."""
        raise NotImplementedError

    def _take(self, count: int) -> list[int]:
        pool = self._pool
        idle = self.order(list(pool.free_order())[len(pool.clean) :])
        pool.share(idle)
        pool.drop(idle)
        return super()._take(count)


@seeded(
    "newest-is-evicted-first",
    laws=("eviction-follows-policy",),
    story="The hit rate of a busy server is that of an empty one.",
    like=("B23",),
    needs_long=True,
)
class NewestIsEvictedFirst(ReorderedCache):
    """Last in, first out."""

    def order(self, idle: list[int]) -> list[int]:
        """From the most to the least recently used."""
        return idle[::-1]


@seeded(
    "shallow-blocks-are-evicted-first",
    laws=("eviction-follows-policy",),
    story="Long prompts stay in the cache and never hit, because their beginning is gone.",
    like=("B91",),
)
class ShallowBlocksAreEvictedFirst(ReorderedCache):
    """Evicts a chain from its root."""

    def order(self, idle: list[int]) -> list[int]:
        """By position, the first blocks of a prompt first."""
        return sorted(idle, key=lambda block: self._pool.labels[block])


@seeded(
    "use-does-not-renew",
    laws=("eviction-follows-policy",),
    story="The system prompt that every request shares is evicted before prompts that came once.",
    like=("B08",),
    needs_long=True,
)
class UseDoesNotRenew(ReorderedCache):
    """A block keeps the time at which it was first filed, also when its content changes."""

    @cached_property
    def _filed_at(self) -> dict[int, int]:
        return {}

    def _publish(self, state: SequenceState) -> None:
        super()._publish(state)
        now = len(self._filed_at)
        for block in state.tables[0][: state.depths[0]]:
            self._filed_at.setdefault(block or 0, now)

    def order(self, idle: list[int]) -> list[int]:
        """First filed, first evicted."""
        return sorted(idle, key=lambda block: self._filed_at.get(block, 0))


@seeded(
    "groups-go-in-turn",
    laws=("eviction-follows-policy",),
    story="A model with full and sliding-window layers keeps the blocks of one kind, and no prompt hits any more.",
    like=("B22",),
    on=SynchronousHybridAdapter,
)
class GroupsGoInTurn(PagedCache):
    """What a sequence let go of is evicted group by group."""

    def _let_go(self, state: SequenceState) -> None:
        tables = [list(table) for table in state.tables]
        super()._let_go(state)
        pool = self._pool
        idle = set(list(pool.free_order())[len(pool.clean) :])
        again = [block for table in tables for block in reversed(table) if block in idle]
        pool.share(again)
        pool.drop(again)
