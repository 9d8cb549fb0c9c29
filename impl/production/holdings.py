"""What sequences hold: the state of a cache, how blocks are taken, shared and let go of, and why an operation is ruled out.

The lowest of three layers. Nothing here takes the lock or looks whether the engine may ask for it: `cache.py` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import lcm

from kvproof.impl.production.books import Auditor
from kvproof.impl.production.errors import (
    BadConfiguration,
    CacheError,
    NothingToCommit,
    OutOfBlocks,
    PassNotFinished,
    SwappedOut,
    UncommittedPass,
    UnknownSequence,
)
from kvproof.impl.production.groups import GroupSpec, Layout, layouts_of
from kvproof.impl.production.index import PrefixIndex
from kvproof.impl.production.mirror import TableLog
from kvproof.impl.production.pool import BlockPool
from kvproof.impl.production.records import BlockEvent, RemovalReason, Table
from kvproof.impl.production.sequence import NEVER, NOT_LAUNCHED, SequenceState, deepest_first


class Holdings:
    """The state that all layers share. Private to the cache."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Sequence[GroupSpec],
        prefix_caching: bool,
        steps: bool,
        host_blocks: int,
        events: bool,
    ) -> None:
        if host_blocks < 0:
            raise BadConfiguration(f"a host tier of {host_blocks} blocks; 0 is none")
        self._layouts = layouts_of(tuple(groups), block_size)
        self._plain = len(self._layouts) == 1 and self._layouts[0].window is None
        """Whether one full group is all there is, which lets what happens for every block be done in fewer steps."""
        self._windowed = tuple(layout for layout in self._layouts if layout.window is not None)
        self._chain_sizes = tuple(dict.fromkeys(layout.size for layout in self._layouts))
        self._chain_groups = [[layout.group for layout in self._layouts if layout.size == size] for size in self._chain_sizes]
        self._hit_step = lcm(*self._chain_sizes)
        self._pool = BlockPool(num_blocks)
        self._auditor = Auditor(self._pool)
        self._index = PrefixIndex(self._pool, len(self._layouts))
        self._caching = prefix_caching
        self._steps = steps
        self._sequences: dict[int, SequenceState] = {}
        self._unlaunched: dict[int, SequenceState] = {}
        self._open: dict[int, list[int]] = {}
        """What each open step pins besides the tables: sources of its copies, and blocks of the sequences released while in it."""
        self._last_step = NOT_LAUNCHED
        self._log = TableLog(len(self._layouts))
        self._host_blocks = host_blocks
        self._host_free = list(range(host_blocks - 1, -1, -1))
        self._events: list[BlockEvent] | None = [] if events else None
        self._counts: Counter[str] = Counter()

    def _blocks_for(self, length: int) -> int:
        """How many blocks all groups together need for that many tokens."""
        need = 0
        for layout in self._layouts:
            need += -(-length // layout.size)
        return need

    def _take(self, count: int) -> list[int]:
        """Fresh blocks, found to be available; the cached ones among them are evicted."""
        pool = self._pool
        evicted = count - len(pool.clean)
        blocks = pool.take(count)
        if evicted > 0:
            gone = blocks[-evicted:]
            self._index.forget_taken(gone)
            self._counts["evicted_blocks"] += evicted
            if self._events is not None:
                self._events.append(BlockEvent("removed", tuple(gone), reason="evicted"))
        return blocks

    def _forget(self, blocks: Iterable[int], reason: RemovalReason) -> int:
        gone = self._index.forget(blocks)
        if gone and self._events is not None:
            self._events.append(BlockEvent("removed", tuple(gone), reason=reason))
        return len(gone)

    def _drop_positioned(self, state: SequenceState, left: list[tuple[Table, Layout, int]]) -> None:
        """Drops blocks that tables no longer list, those of later positions first. `left`: parts of tables, each with its first entry's index."""
        if not left:
            return
        if len(left) == 1:
            self._pool.drop([block for block in reversed(left[0][0]) if block is not None])
        else:
            gone = [place for part in left for place in _positioned(*part)]
            gone.sort(reverse=True)
            self._pool.drop([block for _, _, block in gone])
        if self._steps:
            self._log.changed(state)

    def _trim(self, state: SequenceState, length: int) -> None:
        """Frees the blocks past `length` tokens."""
        left: list[tuple[Table, Layout, int]] = []
        room = NEVER
        for layout in self._layouts:
            group, table = layout.group, state.tables[layout.group]
            keep = -(-length // layout.size)
            if len(table) > keep:
                left.append((table[keep:], layout, keep))
                del table[keep:]
                state.passed[group] = min(state.passed[group], keep)
                state.stale[group] = min(state.stale[group], keep)
            room = min(room, keep * layout.size)
        state.room = room
        self._drop_positioned(state, left)

    def _share(self, state: SequenceState, twin: SequenceState) -> None:
        for group, table in enumerate(state.tables):
            self._pool.share([block for block in table if block is not None])
            twin.tables[group] = list(table)
        for cursor in state.cursors:
            if cursor is not None:
                cursor.cursors += 1
        twin.cursors = list(state.cursors)
        twin.depths = list(state.depths)
        twin.passed = list(state.passed)
        twin.publishes = state.publishes
        twin.milestone = state.milestone
        # Both have to look before they write: the tail is shared now.
        twin.computed = twin.room = state.room = state.computed
        self._renewed(twin)

    def _let_go(self, state: SequenceState) -> None:
        """Lets go of everything. What the device still uses is handed to the step in flight, which frees it at its end."""
        blocks = deepest_first(state.tables, self._layouts)
        pinned = None
        if state.target and self._steps:
            if state.step == NOT_LAUNCHED:
                del self._unlaunched[state.seq]
            else:
                pinned = self._open.get(state.step)
        if state.sources:
            # These copies never run. A tail lies deeper than all of its table that anyone can match.
            blocks = state.sources + blocks
        if pinned is None:
            self._pool.drop(blocks)
        else:
            pinned += blocks
        if state.hosts is not None:
            self._host_free += [host for table in state.hosts for host in table if host is not None]
            state.hosts = None
        self._leave_index(state)
        self._log.dropped(state)

    def _leave_index(self, state: SequenceState) -> None:
        for cursor in state.cursors:
            if cursor is not None:
                self._index.leave(cursor)
        state.cursors = [None] * len(self._chain_sizes)

    def _renewed(self, state: SequenceState) -> None:
        if self._steps:
            self._log.renewed(state)

    # Why not.

    def _known(self, seq: int) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None:
            raise UnknownSequence(f"sequence {seq} was never admitted, or is gone; admit it first")
        return state

    def _why_not(self, seq: int, verb: str) -> CacheError:
        """The error for an operation that the state of the sequence rules out."""
        state = self._sequences.get(seq)
        if state is None:
            return UnknownSequence(f"cannot {verb} sequence {seq}: it was never admitted, or is gone; admit it first")
        if state.hosts is not None:
            return SwappedOut(f"cannot {verb} sequence {seq}: it is on the host tier; swap it in first")
        if state.target:
            return UncommittedPass(f"cannot {verb} sequence {seq}: its last extend is not committed; commit or release it first")
        return NothingToCommit(f"cannot {verb} sequence {seq}: it has no uncommitted extend; extend it first")

    def _unfinished(self, state: SequenceState) -> PassNotFinished:
        if state.step == NOT_LAUNCHED:
            return PassNotFinished(f"the pass of sequence {state.seq} was not launched; call begin_step and end_step before its commit")
        return PassNotFinished(f"the pass of sequence {state.seq} is in step {state.step}; call end_step({state.step}) before its commit")

    def _exhausted(self, state: SequenceState, need: int) -> OutOfBlocks:
        return OutOfBlocks(
            f"sequence {state.seq} needs {need} blocks, and {self._pool.available} of {self._pool.num_blocks} can be handed out;"
            " preempt a sequence, or end a step that pins blocks"
        )


def _positioned(blocks: Table, layout: Layout, first: int) -> list[tuple[int, int, int]]:
    """(end position, group, block) of the blocks of a table from entry `first` on."""
    return [((first + offset + 1) * layout.size, layout.group, block) for offset, block in enumerate(blocks) if block is not None]
