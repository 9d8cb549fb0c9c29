"""What the cache knows of one sequence."""

from __future__ import annotations

import sys
from array import array

from kvproof.impl.production.groups import Layout
from kvproof.impl.production.index import Descriptor, Run
from kvproof.impl.production.records import Table

NEVER = sys.maxsize
"""A length that no sequence reaches, and a table entry that none has."""

NOT_LAUNCHED = 0
"""The step of a pass that no begin_step has launched; steps count from 1."""


class SequenceState:
    """Mutable, and private to the cache. Lengths in tokens.

    tokens: those known, computed or not. computed: how many of them have keys and values in the blocks of `tables`, one for each group.
    target: what `computed` becomes at the commit of the extend in flight, drafts aside; 0 without one. drafts: those of that extend.
    step: the step that launched it. copies: those to run before it. sources: the blocks that they read, held until they ran.
    room: up to here it may write without a look at the tables: the tails have slots, nobody shares them, the index promises them to nobody.
    milestone: nothing happens at a commit below this length: no block fills up, none leaves a window.
    calm: a decode that commits less than this many tokens, milestone or not, finds a slot for the next as well; 0 where nobody looked.
    depths, cursors: for each prefix chain, how many of its whole blocks were offered to the index, and where in the index it stands since.
    passed: for each group, how many leading blocks have left the window.
    stale: for each group, the first table entry that the device side does not have yet. mirrored: whether the device side has any.
    publishes: False after a reset, for as long as the sequence holds anything from before it.
    hosts: for each group, the host blocks while it is swapped out.
    """

    __slots__ = (
        "calm",
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

    def __init__(self, seq: int, tokens: array[int], namespace: Descriptor, groups: int, chains: int) -> None:
        self.seq = seq
        self.tokens = tokens
        self.namespace = namespace
        self.stale = [0] * groups
        self.mirrored = False
        self.hosts: list[Table] | None = None
        self.hold_nothing(groups, chains)

    def hold_nothing(self, groups: int, chains: int) -> None:
        """The state of a sequence that is known and has computed nothing. What it held is the cache's business."""
        self.tables: list[Table] = [[] for _ in range(groups)]
        self.passed = [0] * groups
        self.computed = self.room = self.target = self.calm = 0
        self.milestone = NEVER
        self.drafts: tuple[int, ...] = ()
        self.step = NOT_LAUNCHED
        self.sources: list[int] = []
        self.copies: tuple[tuple[int, int, int], ...] = ()
        self.depths = [0] * chains
        self.cursors: list[Run | None] = [None] * chains
        self.publishes = True

    def data(self, start: int, end: int) -> bytes:
        """The known tokens from `start` to `end`, as the index compares them."""
        return self.tokens[start:end].tobytes()


def deepest_first(tables: list[Table], layouts: tuple[Layout, ...]) -> list[int]:
    """The blocks of all groups, later positions first: let go in this order, they are evicted before those they build on."""
    if len(tables) == 1 and layouts[0].window is None:
        return tables[0][::-1]  # type: ignore[return-value]
    if len({layout.size for layout in layouts}) == 1:
        rows = zip(*map(reversed, tables), strict=True)
        return [block for row in rows for block in row if block is not None]
    ends = [
        ((index + 1) * layout.size, block) for layout in layouts for index, block in enumerate(tables[layout.group]) if block is not None
    ]
    ends.sort(reverse=True)
    return [block for _, block in ends]
