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
        windowed = [(layout, _runs(self.blocks[layout.group])) for layout in self._layouts if layout.window is not None]
        for length in range(self.top, 0, -self._step):
            if all(_serves(layout, runs, length) for layout, runs in windowed):
                yield length
        yield 0

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


def _runs(blocks: list[int]) -> list[int]:
    """For each n, how many filed blocks in a row end with the n-th."""
    runs = [0]
    for block in blocks:
        runs.append(0 if block < 0 else runs[-1] + 1)
    return runs


def _serves(layout: Layout, runs: list[int], length: int) -> bool:
    end = length // layout.size
    return runs[end] >= end - layout.first_needed(length)
