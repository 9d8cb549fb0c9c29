"""What the cache's books say, for auditors and operators. All of it is counted on demand: nothing here costs an operation anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvproof.impl.production.groups import Layout
from kvproof.impl.production.pool import BlockPool
from kvproof.impl.production.records import Books
from kvproof.impl.production.sequence import SequenceState

NONE: frozenset[int] = frozenset()


def pins(open_steps: Iterable[Sequence[int]], sequences: Iterable[SequenceState]) -> dict[int, int]:
    """How often device work that is launched, or will be, pins each block besides the tables."""
    count: dict[int, int] = {}
    for pinned in (*open_steps, *[state.sources for state in sequences if state.sources]):
        for block in pinned:
            count[block] = count.get(block, 0) + 1
    return count


class Auditor:
    """Reads the books of one pool. As long as nothing has moved it shows the same ones: to compare lists takes a tenth of the time of a walk."""

    __slots__ = ("_books", "_pool", "_read")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._books = Books({}, (), NONE, NONE)
        self._read: object = None
        """All that the last books were read from."""

    def books(self, pinned: Mapping[int, int]) -> Books:
        """The books on every block."""
        lists = self._pool.lists()
        if [lists, pinned] != self._read:
            self._read = [[one[:] for one in lists], pinned]
            self._books = audit(self._pool, pinned)
        return self._books


def audit(pool: BlockPool, pinned: Mapping[int, int]) -> Books:
    """The books on every block, read by a walk over the pool."""
    holders = {block: count for block, count in enumerate(pool.refs) if count}
    for block, count in pinned.items():
        holders[block] -= count
        if not holders[block]:
            del holders[block]
    return Books(
        refcounts=holders,
        free=tuple(pool.free_order()),
        cached=frozenset([block for block, label in enumerate(pool.labels) if label >= 0]),
        retiring=frozenset(pinned.keys() - holders.keys()) if pinned else NONE,
    )


def fragmentation(sequences: Iterable[SequenceState], layouts: Sequence[Layout]) -> int:
    """Room for tokens that is allocated and not computed, a shared block counted once, by the longest of its holders."""
    room: dict[int, int] = {}
    for state in sequences:
        for layout in layouts:
            # Full blocks too: one that is full for one holder may have room for another, which was cut back.
            for end, block in enumerate(state.tables[layout.group], 1):
                if block is not None:
                    empty = min(layout.size, max(0, end * layout.size - state.computed))
                    room[block] = min(empty, room.get(block, empty))
    return sum(room.values())
