"""Groups of layers that keep their blocks together: full attention, and sliding windows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from kvproof.impl.production.errors import BadConfiguration


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One group of layers. `block_size` and `window` in tokens; a block_size of None is the cache's own.

    In a `sliding_window` group a query at position p reads positions p-window+1 to p; in a `full` group it reads all up to p.
    """

    kind: Literal["full", "sliding_window"] = "full"
    block_size: int | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A group with its numbers filled in. `chain` says which of the cache's prefix chains (one for each block size) its blocks follow."""

    group: int
    size: int
    window: int | None
    chain: int

    def first_needed(self, computed: int) -> int:
        """Index of the first block that the query at position `computed`, or any later one, still reads or writes."""
        if self.window is None:
            return 0
        return max(0, computed - self.window + 1) // self.size

    def first_free(self, passed: int) -> int:
        """The number of computed tokens from which on another block has left the window, where `passed` of them have."""
        if self.window is None:
            return sys.maxsize
        return (passed + 1) * self.size + self.window - 1


def layouts_of(groups: tuple[GroupSpec, ...], block_size: int) -> tuple[Layout, ...]:
    """Checks the groups and fills in their numbers. Raises BadConfiguration."""
    if not groups:
        raise BadConfiguration("a cache needs at least one group; pass groups=(GroupSpec(),)")
    sizes: list[int] = []
    layouts = []
    for number, group in enumerate(groups):
        size = block_size if group.block_size is None else group.block_size
        if size < 1:
            raise BadConfiguration(f"group {number} has blocks of {size} tokens; a block holds at least one")
        if (group.kind == "sliding_window") != (group.window is not None):
            raise BadConfiguration(
                f"group {number} is a {group.kind!r} one with window {group.window}; sliding_window groups have one, and only they"
            )
        if group.window is not None and group.window < 1:
            raise BadConfiguration(f"group {number} has a window of {group.window} tokens; a token reads at least itself")
        if size not in sizes:
            sizes.append(size)
        layouts.append(Layout(group=number, size=size, window=group.window, chain=sizes.index(size)))
    return tuple(layouts)
