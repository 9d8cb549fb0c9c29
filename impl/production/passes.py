"""Passes: the room that one needs before it runs, and what becomes of its tokens when it is done.

The middle layer, between `holdings.py` and `cache.py`. A failure is found before anything has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvproof.impl.production.errors import TooManyAccepted
from kvproof.impl.production.groups import Layout
from kvproof.impl.production.holdings import Holdings
from kvproof.impl.production.index import RootKey, run_at
from kvproof.impl.production.records import BlockEvent, ExtendGrant, Table
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import NEVER, SequenceState
from kvproof.impl.production.tokens import extended

NO_COPIES = ExtendGrant()


class Passes(Holdings):
    """Room to write, and commits. Private to the cache."""

    # The first extend.

    def _look_up(self, state: SequenceState) -> Reuse | None:
        """What the index has for all but the last known token; None where it has nothing."""
        find, known = self._index.find, max(0, len(state.tokens) - 1)
        paths = [find(_root_key(state, size), state.data(0, known - known % size)) for size in self._chain_sizes]
        return Reuse(self._layouts, self._hit_step, paths) if all(paths) else None

    def _longest(self, reuse: Reuse) -> int:
        return next(reuse.lengths()) if self._windowed else reuse.top

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        """The first extend: adopts what fits, then makes room.

        All groups adopt before any takes fresh blocks, which could evict what another adopts.
        """
        known = len(state.tokens)
        reuse = self._look_up(state) if self._caching else None
        adopted = self._affordable(state, reuse, count)
        if reuse is not None:
            self._adopt(state, reuse, adopted)
        if self._caching:
            self._stand(state, reuse)
            self._counts["lookup_tokens"] += known
            self._counts["hit_tokens"] += adopted
        self._append_blocks(state, min(adopted + count, known))
        state.computed = adopted
        self._set_milestone(state)
        self._renewed(state)
        return ExtendGrant(adopted=adopted) if adopted else NO_COPIES

    def _affordable(self, state: SequenceState, reuse: Reuse | None, count: int) -> int:
        """The longest adoption, in tokens, that leaves blocks for the pass. Adopting a block that nobody holds uses it up as well.

        Raises OutOfBlocks.
        """
        known = len(state.tokens)
        available = self._pool.available
        longest = 0 if reuse is None else self._longest(reuse)
        if self._blocks_for(min(longest + count, known)) <= available:
            return longest
        if reuse is not None:
            costs = reuse.costs(self._pool)
            for length in reuse.lengths():
                need = self._blocks_for(min(length + count, known))
                for layout in self._layouts:
                    first, end = layout.first_needed(length), length // layout.size
                    need += costs[layout.group][end] - costs[layout.group][first] - end
                if need <= available:
                    return length
        raise self._exhausted(state, self._blocks_for(min(count, known)))

    def _adopt(self, state: SequenceState, reuse: Reuse, length: int) -> None:
        for layout in self._layouts:
            blocks = reuse.adopted(layout, length)
            self._pool.share(blocks)
            state.passed[layout.group] = first = layout.first_needed(length)
            table: Table = [None] * first
            table += blocks
            state.tables[layout.group] = table
        for chain, size in enumerate(self._chain_sizes):
            state.depths[chain] = length // size

    def _stand(self, state: SequenceState, reuse: Reuse | None) -> None:
        """Puts the cursors where the adopted blocks end."""
        for chain, depth in enumerate(state.depths):
            if depth and reuse is not None:
                state.cursors[chain] = run = run_at(reuse.paths[chain], depth)
                run.cursors += 1
            else:
                state.cursors[chain] = self._index.root(_root_key(state, self._chain_sizes[chain]), self._chain_groups[chain])

    # Room to write.

    def _grow(self, state: SequenceState, end: int) -> ExtendGrant:
        """Room for a pass up to `end`, on a sequence that has computed something. Raises OutOfBlocks before anything has changed."""
        refs, labels = self._pool.refs, self._pool.labels
        start = state.computed
        need = 0
        shared = []
        promised = []
        for layout in self._layouts:
            table = state.tables[layout.group]
            need += -(-end // layout.size) - len(table)
            if start % layout.size:
                tail = _tail(table)
                if refs[tail] > 1:
                    shared.append(layout.group)
                elif labels[tail] >= 0:
                    promised.append(layout.group)
        need += len(shared)
        available = self._pool.available
        if need > available:
            raise self._exhausted(state, need)
        if promised and need + len(promised) > available:
            # Only the index still reads these tails. To break its promise costs a later hit; a copy would cost a block that there is not.
            self._forget([_tail(state.tables[group]) for group in promised], "rewritten")
            promised = []
        copies = self._copy_tails(state, shared + promised) if shared or promised else ()
        self._append_blocks(state, end)
        if self._steps:
            self._log.changed(state)
        return ExtendGrant(copies) if copies else NO_COPIES

    def _append_blocks(self, state: SequenceState, end: int) -> None:
        """Adds fresh blocks to the tables, up to token `end`. From here on every tail is the sequence's own, and promised to nobody."""
        room = NEVER
        for layout in self._layouts:
            table = state.tables[layout.group]
            held = len(table)
            wanted = -(-end // layout.size)
            if wanted > held:
                if held < state.stale[layout.group]:
                    state.stale[layout.group] = held
                table += self._take(wanted - held)
            if wanted * layout.size < room:
                room = wanted * layout.size
        state.room = room

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
        """Puts fresh blocks in place of tails."""
        copies = []
        for group in groups:
            table = state.tables[group]
            source = _tail(table)
            [destination] = self._take(1)
            table[-1] = destination
            state.stale[group] = min(state.stale[group], len(table) - 1)
            # The table's hold on the source becomes that of the copy, until it has run.
            state.sources.append(source)
            copies.append((group, source, destination))
        state.copies = tuple(copies)
        self._counts["copied_blocks"] += len(copies)
        return state.copies

    # Commits.

    def _settle(self, state: SequenceState, accepted: int) -> None:
        """What the pass has computed counts; its copies have run."""
        computed = state.target
        if state.drafts or accepted:
            computed += self._accept(state, accepted)
        state.computed = computed
        if state.sources:
            self._pool.drop(state.sources)
            state.sources = []
        if computed >= state.milestone:
            self._pass_milestone(state)

    def _accept(self, state: SequenceState, accepted: int) -> int:
        """Accepted drafts become known tokens; blocks that only the others needed are freed."""
        self._check_accepted(state, accepted)
        drafts = state.drafts
        packed = extended(state.tokens, drafts[:accepted])
        if packed is not state.tokens:
            self._widen(state, packed)
        state.drafts = ()
        if accepted < len(drafts):
            self._trim(state, state.target + accepted)
        return accepted

    def _check_accepted(self, state: SequenceState, accepted: int) -> None:
        if not 0 <= accepted <= len(state.drafts):
            raise TooManyAccepted(f"sequence {state.seq} was extended by {len(state.drafts)} drafts; accept 0 up to that, not {accepted}")

    def _pass_milestone(self, state: SequenceState) -> None:
        """Blocks have filled up or left a window. They are published first: what leaves a window can still serve others."""
        if self._plain and self._publish_next(state, state.computed):
            return
        if self._caching and state.publishes:
            self._publish(state)
        if self._windowed:
            self._pass_windows(state)
        self._set_milestone(state)

    def _publish_next(self, state: SequenceState, computed: int) -> bool:
        """Publishes a block, if just one has filled up and no other sequence stands in the way. For caches of one full group."""
        [cursor], [depth], [table] = state.cursors, state.depths, state.tables
        size = self._chain_sizes[0]
        end = (depth + 1) * size
        if cursor is None or computed != end:
            return False
        block = table[depth]
        if block is None or not self._index.publish_next(cursor, depth, state.tokens[end - size : end].tobytes(), block):
            return False
        state.depths[0] = depth + 1
        state.milestone = end + size
        if self._events is not None:
            self._events.append(BlockEvent("stored", (block,), 0))
        return True

    def _publish(self, state: SequenceState) -> None:
        for chain, size in enumerate(self._chain_sizes):
            cursor, depth, full = state.cursors[chain], state.depths[chain], state.computed // size
            if full == depth or cursor is None:
                continue
            columns = [(group, _blocks(state.tables[group], depth, full)) for group in self._chain_groups[chain]]
            state.cursors[chain], stored = self._index.publish(cursor, depth, state.data(depth * size, full * size), columns)
            state.depths[chain] = full
            if self._events is not None:
                for (group, _), blocks in zip(columns, stored, strict=True):
                    if blocks:
                        self._events.append(BlockEvent("stored", tuple(blocks), group))

    def _widen(self, state: SequenceState, packed: array[int]) -> None:
        """A token came that does not fit in 32 bits.

        What such a sequence computes would be filed in another tree, where its beginning is not.
        """
        state.tokens = packed
        if state.computed:
            self._leave_index(state)
            self._stop_publishing(state)

    def _stop_publishing(self, state: SequenceState) -> None:
        """Until it holds nothing, the sequence publishes nothing."""
        state.publishes = False
        self._set_milestone(state)

    def _pass_windows(self, state: SequenceState) -> None:
        left: list[tuple[Table, Layout, int]] = []
        for layout in self._windowed:
            group, table = layout.group, state.tables[layout.group]
            passed, needed = state.passed[group], layout.first_needed(state.computed)
            if needed > passed:
                left.append((table[passed:needed], layout, passed))
                table[passed:needed] = [None] * (needed - passed)
                state.passed[group] = needed
                state.stale[group] = min(state.stale[group], passed)
        self._drop_positioned(state, left)

    def _set_milestone(self, state: SequenceState) -> None:
        milestone = NEVER
        if self._caching and state.publishes:
            for depth, size in zip(state.depths, self._chain_sizes, strict=True):
                filled = (depth + 1) * size
                if filled < milestone:  # half the time of min(), here where every block of every sequence comes by
                    milestone = filled
        for layout in self._windowed:
            milestone = min(milestone, layout.first_free(state.passed[layout.group]))
        state.milestone = milestone

    # The way back.

    def _cut_back(self, state: SequenceState, length: int) -> None:
        """Truncates tokens, tables and prefix chains to a length that was found possible."""
        del state.tokens[length:]
        for chain, size in enumerate(self._chain_sizes):
            whole = length // size
            # The cursor may stay on a later run: the index finds the way back by the depth.
            state.depths[chain] = min(state.depths[chain], whole)
        state.computed = length
        self._trim(state, length)
        # The new tail may be published, or shared: the next extend has to look.
        state.room = length
        self._set_milestone(state)


def _root_key(state: SequenceState, size: int) -> RootKey:
    return (size, state.tokens.itemsize, state.namespace)


def _tail(table: Table) -> int:
    tail = table[-1]
    assert tail is not None, "no window passes the block that is written next"
    return tail


def _blocks(table: Table, start: int, end: int) -> list[int]:
    """The entries from `start` to `end` of a table, where no window can have passed yet."""
    return table[start:end]  # type: ignore[return-value]
