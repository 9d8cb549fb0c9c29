"""When each block was last used, by every notion of use that a cache may have, and which idle block a cache that evicts the least recently used should take."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from kvproof.models.state import Evicted

LetGo = tuple[int, int, int, int]
"""(step, sequence, group, index) of the release that left a block unheld."""


class Recency:
    """Steps of the last uses of blocks. Blocks that were never used are missing."""

    def __init__(self) -> None:
        self.used_at: dict[int, int] = {}
        """Step at which a holder last used the block, for those that holders let go of."""
        self.seen_at: dict[int, int] = {}
        """Last step that any notion of recency could take for the block's last use: a use, a match, or being let go."""
        self.let_go: dict[int, LetGo] = {}
        self.settled_at: dict[int, int] = {}
        """block -> step at which it could be evicted at the earliest: when it was let go of, or when the work that touched it ended."""
        self._together: dict[tuple[int, int], set[int]] = {}
        """(step, sequence) -> the blocks, of all groups, that this release left unheld."""
        self._idle: list[tuple[int, int]] = []
        """Heap of (seen_at, block), of blocks that may be idle and matchable. A block used since stands there too early, and is put right when it is met."""
        self._waiting: set[int] = set()

    def see(self, blocks: Iterable[int], step: int) -> None:
        """Some notion of recency takes `step` for the last use of `blocks`."""
        self.seen_at.update(dict.fromkeys(blocks, step))

    def use(self, block: int, step: int) -> None:
        """Every notion of recency takes `step` for a use of `block`."""
        if step > self.used_at.get(block, 0):
            self.used_at[block] = step

    def settle(self, blocks: Iterable[int], step: int) -> None:
        """From `step` on, `blocks` could be evicted at the earliest; some notion takes that for a use."""
        at = dict.fromkeys(blocks, step)
        self.seen_at.update(at)
        self.settled_at.update(at)

    def drop(self, block: int, where: LetGo) -> None:
        """The release `where` left `block` unheld."""
        old = self.let_go.get(block)
        if old is not None:
            together = self._together[old[:2]]
            together.discard(block)
            if not together:
                del self._together[old[:2]]
        self.let_go[block] = where
        self._together.setdefault(where[:2], set()).add(block)

    def idle(self, blocks: Iterable[int]) -> None:
        """`blocks` may be idle and matchable from now on."""
        for block in blocks:
            if block not in self._waiting:
                self._waiting.add(block)
                heapq.heappush(self._idle, (self.seen_at.get(block, 0), block))

    def older(self, step: int, *, idle: Callable[[int], bool]) -> Iterator[int]:
        """The idle blocks, least recently seen first, up to the first one that was seen at `step` or later, which is included."""
        met = []
        heap = self._idle
        while heap:
            at, block = heap[0]
            now = self.seen_at.get(block, 0)
            if not idle(block):
                heapq.heappop(heap)
                self._waiting.discard(block)
            elif now != at:
                heapq.heapreplace(heap, (now, block))
            else:
                met.append(heapq.heappop(heap))
                if now >= step:
                    break
        for item in met:
            heapq.heappush(heap, item)
        yield from (block for _, block in met)

    def companions(self, out: Evicted) -> Iterable[int]:
        """The blocks that the sequence that let go of `out` let go of with it."""
        return () if out.let_go is None else tuple(self._together.get(out.let_go[:2], ()))

    def evicted(self, block: int, step: int) -> Evicted:
        """What is known of `block`, which was handed out in `step`."""
        return Evicted(
            block, step, self.used_at.get(block, 0), self.seen_at.get(block, 0), self.settled_at.get(block, 0), self.let_go.get(block)
        )
