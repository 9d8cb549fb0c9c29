"""Who holds which block: reference counts, a stack of clean blocks, and an intrusive list of cached ones in the order of their last use."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.impl.production.errors import BadConfiguration, BlockNotHeld

UNFILED = -1
"""The label of a block that the prefix index does not know."""


class BlockPool:
    """A fixed set of blocks, ids 0 to num_blocks-1; there is no null block. Every operation costs O(1) for each block it names.

    A block that nobody holds waits in one of two places: `clean` ones on a stack, the last used on top, and filed (matchable) ones in a
    doubly linked list from the least to the most recently used. Clean ones are handed out first. The list is threaded through two
    preallocated lists of ints, with `num_blocks` as the sentinel.
    """

    __slots__ = ("_after", "_before", "clean", "idle", "labels", "num_blocks", "refs")

    def __init__(self, num_blocks: int) -> None:
        """Raises BadConfiguration for fewer than one block."""
        if num_blocks < 1:
            raise BadConfiguration(f"a pool of {num_blocks} blocks; it needs at least one")
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        """How many holders each block has: tables that list it, and device work that pins it."""
        self.labels = [UNFILED] * num_blocks
        """Where the prefix index filed each block, or UNFILED. The index writes it."""
        self.clean = list(range(num_blocks - 1, -1, -1))
        self.idle = 0
        """How many blocks the list of cached, unheld blocks has."""
        self._after = [num_blocks] * (num_blocks + 1)
        self._before = [num_blocks] * (num_blocks + 1)

    def lists(self) -> list[list[int]]:
        """Who holds which block, where it is filed, and in which order the unheld ones go: where these are the same, the whole pool is."""
        return [self.refs, self.labels, self.clean, self._after]

    @property
    def available(self) -> int:
        """How many blocks can be handed out now, evictable ones included."""
        return len(self.clean) + self.idle

    def take(self, count: int) -> list[int]:
        """Hands out `count` blocks, which the caller has found to be `available`, with one holder each.

        The clean ones come first. The rest are still filed, and evicted by this: the caller tells the index.
        """
        clean = self.clean
        refs = self.refs
        split = len(clean) - count
        if split >= 0:
            blocks = clean[split:]
            del clean[split:]
            blocks.reverse()
        else:
            blocks = clean[::-1]
            clean.clear()
        for block in blocks:
            refs[block] = 1
        if split < 0:
            self._take_idle(blocks, -split)
        return blocks

    def _take_idle(self, blocks: list[int], count: int) -> None:
        after, refs, end = self._after, self.refs, self.num_blocks
        block = after[end]
        for _ in range(count):
            refs[block] = 1
            blocks.append(block)
            block = after[block]
        after[end] = block
        self._before[block] = end
        self.idle -= count

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each block. An unheld one leaves the list."""
        refs, after, before = self.refs, self._after, self._before
        revived = 0
        for block in blocks:
            count = refs[block]
            refs[block] = count + 1
            if not count:
                left, right = before[block], after[block]
                after[left] = right
                before[right] = left
                revived += 1
        self.idle -= revived

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each block, deepest first: the last to come is the last to be evicted. Raises BlockNotHeld."""
        refs, labels, clean, after, before, end = self.refs, self.labels, self.clean, self._after, self._before, self.num_blocks
        last = before[end]
        idle = 0
        for block in blocks:
            count = refs[block]
            if count != 1:
                if count < 1:
                    raise BlockNotHeld(f"block {block} was let go, and nobody held it")
                refs[block] = count - 1
                continue
            refs[block] = 0
            if labels[block] < 0:
                clean.append(block)
            else:
                after[last] = block
                before[block] = last
                last = block
                idle += 1
        if idle:
            after[last] = end
            before[end] = last
            self.idle += idle

    def unfiled(self, block: int) -> None:
        """The index let go of this block: if nobody holds it, it is clean now."""
        self.labels[block] = UNFILED
        if not self.refs[block]:
            left, right = self._before[block], self._after[block]
            self._after[left] = right
            self._before[right] = left
            self.idle -= 1
            self.clean.append(block)

    def free_order(self) -> list[int]:
        """The blocks that can be handed out, in that order."""
        order = self.clean[::-1]
        block = self._after[self.num_blocks]
        while block != self.num_blocks:
            order.append(block)
            block = self._after[block]
        return order
