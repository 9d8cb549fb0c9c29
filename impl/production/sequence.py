"""What the cache knows of one sequence."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kvproof.impl.production.groups import Layout
from kvproof.impl.production.index import NOWHERE, Chunk, Descriptor
from kvproof.impl.production.records import Table

NEVER = sys.maxsize
"""A length that no sequence reaches, a table entry that none has."""

NOT_LAUNCHED = 0
"""The step of a pass that no begin_step has launched; steps count from 1."""


class SequenceState:
    """Mutable, and private to the cache. Lengths in tokens.

    tokens: those known, computed or not. computed: how many of them have their keys and values in the blocks of `tables`, one table for each group.
    target: what `computed` becomes at the commit of the extend in flight, drafts aside; 0 without one. drafts: those of that extend.
    step: the step that launched it. sources: blocks that its copies read, held until they ran. copies: the copies themselves, until launched.
    room: up to here it may write without a look at the tables: the tails have slots, nobody shares them, and the index promises them to nobody.
    milestone: nothing happens at a commit below this length: no block fills up, none leaves a window.
    chunks, depths, cursors: for each prefix chain, the tokens cut into whole blocks, how many of these were offered to the index, and the node there.
    passed: for each group, how many leading blocks have left the window. stale: for each group, the first table entry that the device side does not have yet.
    publishes: False after a reset, for as long as the sequence holds anything from before it. hosts: for each group, the host blocks while it is swapped out.
    """

    __slots__ = (
        "chunks",
        "computed",
        "copies",
        "cursors",
        "depths",
        "drafts",
        "hosts",
        "milestone",
        "mirrored",
        "namespace",
        "passed",
        "publishes",
        "room",
        "seq",
        "sources",
        "stale",
        "step",
        "tables",
        "target",
        "tokens",
    )

    def __init__(self, seq: int, tokens: Iterable[int], namespace: Descriptor, groups: int, chains: int) -> None:
        self.seq = seq
        self.tokens = list(tokens)
        self.namespace = namespace
        self.chunks: list[list[Chunk]] = [[] for _ in range(chains)]
        self.stale = [0] * groups
        self.mirrored = False
        self.hosts: list[Table] | None = None
        self.hold_nothing(groups, chains)

    def hold_nothing(self, groups: int, chains: int) -> None:
        """The state of a sequence that is known and has computed nothing. What it held is the cache's business."""
        self.tables: list[Table] = [[] for _ in range(groups)]
        self.passed = [0] * groups
        self.computed = self.room = self.target = 0
        self.milestone = NEVER
        self.drafts: tuple[int, ...] = ()
        self.step = NOT_LAUNCHED
        self.sources: list[int] = []
        self.copies: tuple[tuple[int, int, int], ...] = ()
        self.depths = [0] * chains
        self.cursors = [NOWHERE] * chains
        self.publishes = True

    def cut(self, chain: int, size: int, end: int) -> list[Chunk]:
        """The known tokens of a chain in whole blocks of `size`, at least the first `end` of them."""
        chunks = self.chunks[chain]
        have = len(chunks)
        if have < end:
            tokens = iter(self.tokens[have * size : end * size])
            chunks.extend(zip(*[tokens] * size, strict=True))
        return chunks


def deepest_first(tables: list[Table], layouts: tuple[Layout, ...]) -> list[int]:
    """The blocks of all groups in the order in which they are let go: later positions first, so that they are evicted before those they build on."""
    if len(tables) == 1:
        table = tables[0]
        return [block for block in reversed(table) if block is not None]
    ends = [
        ((index + 1) * layout.size, layout.group, block)
        for layout in layouts
        for index, block in enumerate(tables[layout.group])
        if block is not None
    ]
    ends.sort(reverse=True)
    return [block for _, _, block in ends]
