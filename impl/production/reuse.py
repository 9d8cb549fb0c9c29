"""How much of a prompt is cached: the longest length that every group can serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from kvproof.impl.production.groups import Layout
from kvproof.impl.production.index import NO_BLOCK, Path, blocks_on
from kvproof.impl.production.pool import BlockPool


class Reuse:
    """What the index has for one prompt: for each chain the runs it passes, for each group the block that is filed at each position."""

    __slots__ = ("_layouts", "_step", "blocks", "paths", "top")

    def __init__(self, layouts: Sequence[Layout], step: int, paths: list[Path]) -> None:
        """`step`: the least common multiple of the groups' block sizes; a joint hit is a multiple of it."""
        self._layouts = layouts
        self._step = step
        self.paths = paths
        self.blocks = blocks = [blocks_on(paths[layout.chain], layout.group) for layout in layouts]
        top = min([_reach(layout, blocks[layout.group]) for layout in layouts])
        self.top = top - top % step
        """No joint hit is longer, in tokens. Without windows every multiple of the step up to it is one."""

    def lengths(self) -> Iterator[int]:
        """The lengths in tokens that every group can serve, longest first; the last is 0."""
        windowed = [layout for layout in self._layouts if layout.window is not None]
        length = self.top
        while length > 0:
            reach = min([self._without_gap(layout, length) for layout in windowed], default=length)
            if reach == length:
                yield length
                reach -= 1
            length = reach - reach % self._step
        yield 0

    def _without_gap(self, layout: Layout, length: int) -> int:
        """`length`, if a windowed group has all blocks that it needs there; else where the last one that is missing begins: no length between serves."""
        first, end = layout.first_needed(length), length // layout.size
        needed = self.blocks[layout.group][first:end]
        if NO_BLOCK not in needed:
            return length
        return (end - 1 - needed[::-1].index(NO_BLOCK)) * layout.size

    def adopted(self, layout: Layout, length: int) -> list[int]:
        """The blocks that a group needs from a hit of `length` tokens; those before them have left its window."""
        return self.blocks[layout.group][layout.first_needed(length) : length // layout.size]

    def costs(self, pool: BlockPool) -> list[list[int]]:
        """For each group, how many of its first n blocks nobody holds: these an adoption takes away from what can be handed out."""
        refs = pool.refs
        return [list(accumulate((block >= 0 and not refs[block] for block in blocks), initial=0)) for blocks in self.blocks]


def _reach(layout: Layout, blocks: list[int]) -> int:
    """How many tokens the group could serve at most: a full group up to its first gap."""
    if layout.window is None and NO_BLOCK in blocks:
        return blocks.index(NO_BLOCK) * layout.size
    return len(blocks) * layout.size
