"""What a correct cache must remember, up to its free choices: who knows which tokens, what each slot holds, which device work is out, and when blocks were used.

`Spec` is this and the judgement of each operation (`spec.py`). Operations move it (`meanings.py`), laws and generators read it; nothing here knows of either.
What was seen of the cache itself is in `seen` (`observed.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import Final

from kvproof.models.capabilities import Capabilities
from kvproof.models.deferrals import Deferrals
from kvproof.models.layouts import blocks_for, pool_shares, window_low
from kvproof.models.memory import GhostMemory
from kvproof.models.numbers import Numbers
from kvproof.models.observed import Entry, Observed
from kvproof.models.ops import Extend, Fork, Op
from kvproof.models.prefixes import PrefixTree
from kvproof.models.recency import Recency
from kvproof.models.state import Evicted, Pass, Sequence, Table, Tables, Transfer

TREE_SLACK: Final = 20_000
"""How many interned prefixes may be kept beyond one and a half times those that were needed at the last clearing: clearing walks the whole tree."""

MOST_GONE: Final = 4096
"""How many sequences that are gone are remembered with their tokens, to say what became of them."""

MOST_GONE_TOKENS: Final = 65_536
"""How many tokens those may have together, if the pool has not more slots than that."""


class Remembered:
    """The state of one cache. Memory is bounded by what is live, and by the limits above."""

    def __init__(self, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        self._describe(capabilities, num_blocks, block_size)
        self.step = 0
        """How many operations were judged."""
        self.seen = Observed(len(self.block_sizes))
        self.owners: dict[int, dict[Entry, None]] = self.seen.owners
        """Block -> (sequence, group, index) of every table entry that lists it."""
        self.tree = PrefixTree()
        self.memory = GhostMemory(num_blocks, max(self.block_sizes))
        self._most_nodes = TREE_SLACK
        self._begin_with_nobody()
        self._begin_without_work()
        self._begin_unused()

    def _describe(self, capabilities: Capabilities, num_blocks: int, block_size: int) -> None:
        """What is claimed of the pool: it stays as it is, but for blocks that are set aside."""
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.block_sizes = tuple(group.block_size or block_size for group in capabilities.groups)
        self.windows = tuple(group.window if group.kind == "sliding_window" else None for group in capabilities.groups)
        self.groups = tuple(zip(range(len(self.windows)), self.block_sizes, self.windows, strict=True))
        """(number, tokens of a block, window) of each group."""
        self.lru = "lru" in capabilities.policy
        self.tight = "tight" in capabilities.policy
        self.exact = "exact" in capabilities.policy
        self.rewrites = "rewrites" in capabilities.policy
        self.null_blocks = frozenset(capabilities.null_blocks)
        self.universe = frozenset(range(num_blocks)) - self.null_blocks
        self.judged = self.universe
        """The blocks that laws are asked of: all, until some are set aside."""
        self.usable = _usable(capabilities, num_blocks, len(self.universe))
        self.shares: list[frozenset[int]] = []
        """The blocks of each group, where the groups do not share the pool."""
        if capabilities.split_pool:
            self.shares = [self.universe.intersection(share) for share in pool_shares(num_blocks, len(self.groups))]

    def _begin_with_nobody(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        """Every sequence, those that are gone included as long as they are remembered."""
        self.live: dict[int, Sequence] = {}
        self.numbers = Numbers()
        """Every number that a sequence ever had."""
        self.gone: deque[Sequence] = deque()
        """Those that are gone and remembered, the oldest first."""
        self._gone_tokens = 0
        self._born = 0

    def _begin_without_work(self) -> None:
        self.passes: list[Pass] = []
        """Passes that were extended and are neither committed, abandoned nor (if released in flight) finished."""
        self.steps: list[list[Pass]] = []
        """The passes of each open step, oldest step first."""
        self.transfers: list[Transfer] = []
        """Those that a cache may still wait for, the oldest first."""
        self.deferrals = Deferrals()
        """Drops of blocks while work was out or a step was open: a cache may go on counting them, or keep the blocks back, for a while."""
        self.awaited: set[int] = set()
        """Those of them that launched work still touches, so that they must be kept back."""
        self.unowned = 0
        """How many launched passes belong to a sequence that let go of them."""

    def _begin_unused(self) -> None:
        self.recency = Recency()
        self.hits: dict[int, int] = {}
        """What match said of a sequence since anything last changed."""
        self.evicted: list[Evicted] = []
        """Matchable blocks that this operation handed out."""
        self.past_evictions: deque[Evicted] = deque(maxlen=16)
        """The last such blocks of earlier operations."""
        self.any_drop = False
        """Whether any holder has let go of any block so far."""

    # -- sequences come and go ----------------------------------------------------------------------------------------------------------------

    def know(self, sequence: Sequence) -> None:
        """A sequence is known from now on."""
        self.sequences[sequence.seq] = self.live[sequence.seq] = sequence
        self.numbers.add(sequence.seq)
        sequence.born, self._born = self._born, self._born + 1

    def bury(self, sequence: Sequence) -> None:
        """The sequence is gone; the oldest of those that are gone are forgotten, but for their numbers."""
        sequence.gone = True
        del self.live[sequence.seq]
        self.gone.append(sequence)
        self._gone_tokens += len(sequence.known)
        most = max(MOST_GONE_TOKENS, len(self.memory.slots))
        while len(self.gone) > MOST_GONE or (self._gone_tokens > most and len(self.gone) > 1):
            oldest = self.gone.popleft()
            self._gone_tokens -= len(oldest.known)
            del self.sequences[oldest.seq]

    def forget_prefixes(self) -> None:
        """Let go of the interned prefixes that neither a sequence nor a slot needs, where there are many."""
        if len(self.tree) <= self._most_nodes:
            return
        groups = len(self.block_sizes)
        needed = {content // groups for content in self.memory.contents()}
        for sequence in self.sequences.values():
            needed.update(sequence.path)
            needed.update(content // groups for saved in sequence.saved for _, content in saved)
        for out in self.passes:
            needed.update(out.path)
            needed.update(content // groups for _, content in out.work.writes)
        self.tree.keep_only(needed)
        self._most_nodes = len(self.tree) * 3 // 2 + TREE_SLACK

    # -- what a sequence must show ------------------------------------------------------------------------------------------------------------

    def content(self, sequence: Sequence, group: int, position: int) -> int:
        """The ghost that `position` of `sequence` must show in `group`."""
        return sequence.path[position] * len(self.block_sizes) + group

    def slot(self, group: int, table: Table, position: int) -> int | None:
        """The slot in ghost memory of `position`, or None where the table has no block for it."""
        index, offset = divmod(position, self.block_sizes[group])
        block = table[index] if index < len(table) else None
        return None if block is None else block * self.memory.stride + offset

    def readable(self, sequence: Sequence, group: int) -> range:
        """The positions that the next token of `sequence` reads in `group`."""
        return range(window_low(sequence.computed, self.windows[group]), sequence.computed)

    def tables(self, sequence: Sequence) -> Tables:
        """The block tables last seen of `sequence`."""
        return self.seen.tables.get(sequence.seq) or self.seen.no_tables

    # -- what device work keeps ---------------------------------------------------------------------------------------------------------------

    def pins(self, block: int) -> int:
        """How many holders of `block` besides tables a cache may count: passes out, their copies, transfers, and drops deferred until they finish."""
        pins = self.deferrals.count(block)
        for out in self.passes:
            pins += (block in out.listed) + (block in out.copied)
        for transfer in self.transfers:
            pins += transfer.blocks[block]
        return pins

    def pinned(self) -> set[int]:
        """All blocks that have pins."""
        return set(self.deferrals).union(*(out.listed for out in self.passes), *(transfer.blocks for transfer in self.transfers))

    def is_busy(self) -> bool:
        """Whether anything is out that a cache may wait for."""
        return bool(self.passes or self.steps or self.transfers)

    def fenced(self) -> dict[int, Pass]:
        """The blocks that launched device work may still read or write."""
        if not self.steps:
            return {}
        return {block: out for step in self.steps for out in step for block in out.blocks}

    def fence(self, block: int) -> Pass | None:
        """The launched device work that may still read or write `block`."""
        return next((out for step in self.steps for out in step if block in out.blocks), None)

    # -- room ---------------------------------------------------------------------------------------------------------------------------------

    def exhausted(self, op: Op) -> bool:
        """Whether the pool has no room for `op`, an extend or fork, even if everything evictable is taken and the tail need not be copied."""
        taken = set(self.owners) | self.fenced().keys()
        if isinstance(op, Fork):
            return not self.room_for([1] * max(1, len(self.shares)), taken)
        if not isinstance(op, Extend):
            return False
        sequence = self.live[op.seq]
        end = min(sequence.computed + op.count, len(sequence.known)) + len(op.drafts)
        need = [blocks_for(end, size) - len(table) for size, table in zip(self.block_sizes, self.tables(sequence), strict=True)]
        return not self.room_for(need, taken)

    def room_for(self, need: Iterable[int], taken: Set[int]) -> bool:
        """Whether so many blocks of each group fit beside the blocks that are `taken`."""
        if not self.shares:
            return sum(need) <= self.usable - len(taken)
        spare = len(self.judged) - self.usable
        return all(blocks <= len((share & self.judged) - taken) - spare for blocks, share in zip(need, self.shares, strict=True))


def _usable(capabilities: Capabilities, num_blocks: int, universe: int) -> int:
    capacity = capabilities.capacity
    if capacity is None:
        return universe
    return min(universe, capacity if isinstance(capacity, int) else capacity(num_blocks))
