"""What has been seen of a cache, kept up to date by what changed in each operation.

The laws ask for the block tables, who lists which block, and the cache's own books. A pool may have a hundred thousand blocks, and an operation changes a handful,
so nothing here is built anew: `difference` finds what changed between two full observations, `take` applies it, and both say what it was before.

    observed = Observed(groups=1)
    observed.take(observed.difference(seen))
    observed.owners[7]        # who lists block 7
    observed.listed           # the table entries that the last operation changed
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from kvproof.models.state import Books, Seen, Table, Tables

Entry: TypeAlias = tuple[int, int, int]
"""(sequence, group, index): one place in one block table."""


class Moved(msgspec.Struct, frozen=True):
    """What joined and what left a set of blocks. On a free list a block counts as often as it is listed."""

    joined: Collection[int] = ()
    left: Collection[int] = ()


UNMOVED: Final = Moved()

NOTHING: Final[Mapping[int, Any]] = {}
"""No sequence or block changed."""


class Change(msgspec.Struct, frozen=True):
    """What one operation was seen to change. A field of the books that is None was not looked at.

    `tables`: sequence -> its tables now, or None where it is gone; sequences that did not change are left out.
    `refcounts`: block -> its count now, for the counts that changed.
    `events`: what the events taken after this operation did to the matchable set that they replay; None where none were taken.
    `still`: it is known that nothing changed, and that the same books were looked at as before. Two operations in three change nothing that can be seen.
    """

    tables: Mapping[int, Tables | None] = {}
    refcounts: Mapping[int, int] | None = None
    free: Moved | None = None
    cached: Moved | None = None
    retiring: Moved | None = None
    events: Moved | None = None
    worker_tables: Mapping[int, Tables] = {}
    free_count: int | None = None
    still: bool = False


class Ledger:
    """The cache's books as they stand. A field that was not looked at after the last operation is None."""

    def __init__(self) -> None:
        self.refcounts: dict[int, int] | None = None
        self.free: dict[int, int] | None = None
        """block -> how often it is on the free list."""
        self.cached: set[int] | None = None
        self.retiring: set[int] | None = None
        self.free_count: int | None = None
        """What the cache's own counter of free blocks shows."""
        self.kept_counts: dict[int, int] = {}
        """This and the next three: each book at the last look."""
        self.kept_free: dict[int, int] = {}
        self.kept_cached: set[int] = set()
        self.kept_retiring: set[int] = set()
        self.counts_before: dict[int, int] = {}
        """The reference counts before the last operation, of those that it changed."""
        self._looked_at = Books()
        """The last books that were compared."""

    def difference(
        self,
        books: Books,
        tables: Mapping[int, Tables | None] = NOTHING,
        events: Moved | None = None,
        worker_tables: Mapping[int, Tables] = NOTHING,
    ) -> Change:
        """What `books` say that was not so at the last look, beside what else changed. Books, or parts of them, that are the very ones of the last look did not change."""
        last, self._looked_at = self._looked_at, books
        return Change(
            tables,
            _counts_difference(self.kept_counts, last.refcounts, books.refcounts),
            _list_difference(self.kept_free, last.free, books.free),
            _set_difference(self.kept_cached, last.cached, books.cached),
            _set_difference(self.kept_retiring, last.retiring, books.retiring),
            events,
            worker_tables,
            books.free_count,
            still=books is last and not tables and (events is None or events is UNMOVED),
        )

    def rest(self) -> None:
        """The books are as they were."""
        if self.counts_before:
            self.counts_before = {}

    def take(self, change: Change) -> None:
        """The books are now as `change` says."""
        counts, free, cached, retiring = change.refcounts, change.free, change.cached, change.retiring
        self.rest()
        if counts:
            self._count(counts)
        if free is not None and free is not UNMOVED:
            self._move_free(free)
        if cached is not None and cached is not UNMOVED:
            self.kept_cached.difference_update(cached.left)
            self.kept_cached.update(cached.joined)
        if retiring is not None and retiring is not UNMOVED:
            self.kept_retiring.difference_update(retiring.left)
            self.kept_retiring.update(retiring.joined)
        self.refcounts = None if counts is None else self.kept_counts
        self.free = None if free is None else self.kept_free
        self.cached = None if cached is None else self.kept_cached
        self.retiring = None if retiring is None else self.kept_retiring
        self.free_count = change.free_count

    def _count(self, changed: Mapping[int, int]) -> None:
        counts, before = self.kept_counts, self.counts_before
        for block, count in changed.items():
            before[block] = counts.get(block, 0)
            if count:
                counts[block] = count
            else:
                counts.pop(block, None)

    def _move_free(self, moved: Moved) -> None:
        free = self.kept_free
        for blocks, times in ((moved.left, -1), (moved.joined, 1)):
            for block in blocks:
                now = free.get(block, 0) + times
                if now:
                    free[block] = now
                else:
                    del free[block]


class Observed:
    """Block tables, who lists which block, and books, as they were seen after the last operation."""

    def __init__(self, groups: int) -> None:
        self.no_tables: Tables = ((),) * groups
        self.tables: dict[int, Tables] = {}
        """The tables of each sequence; those of one that never held a block are left out."""
        self.owners: dict[int, dict[Entry, None]] = {}
        """block -> every table entry that lists it, the oldest first."""
        self.held_twice: set[int] = set()
        """Blocks that more than one table entry lists."""
        self.holding: dict[int, int] = {}
        """sequence -> how many blocks its tables list, where they list any."""
        self.books = Ledger()
        self.replayed: set[int] = set()
        """The matchable set by the events taken so far."""
        self._seen = Seen()
        """The last full observation."""
        self.last = Change()
        self.before = Change()
        """The last change but one."""
        self.was: dict[int, Tables] = {}
        """The tables before the last operation of the sequences whose tables it changed."""
        self.listed: list[Entry] = []
        """Table entries that list another block than before."""
        self.unlisted: list[tuple[Entry, int]] = []
        """Table entries that no longer list the block that they did."""
        self.relisted: set[int] = set()
        """Blocks that some entry lists or lists no more since the last operation."""
        self.newly_held: set[int] = set()
        """Those that nobody listed before."""
        self.orphaned: set[int] = set()
        """Those whose oldest entry went away while others remain."""

    def tables_before(self, seq: int) -> Tables | None:
        """The tables of `seq` before the last operation."""
        return self.was[seq] if seq in self.was else self.tables.get(seq)

    def was_held(self, block: int) -> bool:
        """Whether any table listed `block` before the last operation. Asked of blocks that a table lists now."""
        return block not in self.newly_held or any(dropped == block for _, dropped in self.unlisted)

    def was_cached(self, block: int) -> bool:
        """Whether the books called `block` matchable before the last operation."""
        moved = self.last.cached
        if self.before.cached is None or moved is None:
            return False
        return block in moved.left or (block in self.books.kept_cached and block not in moved.joined)

    def was_private(self, block: int) -> bool:
        """Whether the books, where they are kept, did not call `block` matchable before the last operation."""
        return self.before.cached is not None and self.last.cached is not None and not self.was_cached(block)

    def was_free(self, block: int) -> bool:
        """Whether `block` was on the free list before the last operation."""
        moved = self.last.free
        if self.before.free is None or moved is None:
            return False
        return block in moved.left or (block in self.books.kept_free and block not in moved.joined)

    def difference(self, seen: Seen) -> Change:
        """What a full observation shows that is not known yet. If it, or parts of it, are the very ones of the last look, they did not change."""
        last, self._seen = self._seen, seen
        if seen is last and self.last.still:
            return self.last
        changed = NOTHING if seen.tables is last.tables else self._tables_difference(seen.tables)
        events = _set_difference(self.replayed, last.matchable_by_events, seen.matchable_by_events)
        return self.books.difference(seen.books, changed, events, seen.worker_tables)

    def _tables_difference(self, now: Mapping[int, Tables]) -> dict[int, Tables | None]:
        known = self.tables
        changed: dict[int, Tables | None] = {}
        for seq, tables in now.items():
            before = known.get(seq, self.no_tables)
            if before is not tables and before != tables:
                changed[seq] = tables
        for seq in known.keys() - now.keys():
            changed[seq] = None
        return changed

    def take(self, change: Change) -> None:
        """The cache is now as `change` says."""
        self.before, self.last = self.last, change
        if self.was:
            for gathered in (self.was, self.listed, self.unlisted, self.relisted, self.newly_held, self.orphaned):
                gathered.clear()
        if change.still:
            self.books.rest()
            return
        for seq, tables in change.tables.items():
            self._replace(seq, tables)
        self.books.take(change)
        if change.events is not None and change.events is not UNMOVED:
            self.replayed.difference_update(change.events.left)
            self.replayed.update(change.events.joined)

    def _replace(self, seq: int, tables: Tables | None) -> None:
        old = self.tables.get(seq, self.no_tables)
        if tables is None:
            self.tables.pop(seq, None)
            tables = self.no_tables
        else:
            self.tables[seq] = tables
        if tables == old:  # it was admitted, or is gone, and held nothing
            return
        self.was[seq] = old
        for group, had in enumerate(old):
            has = tables[group]
            if had is not has and had != has:
                self._replace_table(seq, group, had, has)

    def _replace_table(self, seq: int, group: int, had: Table, has: Table) -> None:
        shorter = min(len(had), len(has))
        if had[:shorter] != has[:shorter]:
            for index in range(shorter):
                if had[index] != has[index]:
                    self._unlist(seq, group, index, had[index : index + 1])
                    self._list(seq, group, index, has[index : index + 1])
        if len(had) > shorter:
            self._unlist(seq, group, shorter, had[shorter:])
        elif len(has) > shorter:
            self._list(seq, group, shorter, has[shorter:])

    def _list(self, seq: int, group: int, start: int, blocks: Table) -> None:
        """The table lists `blocks` from entry `start` on, where it had none."""
        owners, entries = self.owners, []
        for index, block in enumerate(blocks, start):
            if block is None:
                continue
            entry = seq, group, index
            entries.append(entry)
            if block in owners:
                owners[block][entry] = None
                self.held_twice.add(block)
            else:
                owners[block] = {entry: None}
                self.newly_held.add(block)
            self.relisted.add(block)
        if entries:
            self.listed += entries
            self.holding[seq] = self.holding.get(seq, 0) + len(entries)

    def _unlist(self, seq: int, group: int, start: int, blocks: Table) -> None:
        """The table no longer lists `blocks`, which it had from entry `start` on."""
        owners, gone = self.owners, []
        for index, block in enumerate(blocks, start):
            if block is None:
                continue
            entry = seq, group, index
            gone.append((entry, block))
            entries = owners[block]
            if len(entries) == 1:
                del owners[block]
                self.orphaned.discard(block)
            else:
                if next(iter(entries)) == entry:
                    self.orphaned.add(block)
                del entries[entry]
                if len(entries) == 1:
                    self.held_twice.discard(block)
            self.relisted.add(block)
        if gone:
            self.unlisted += gone
            self.holding[seq] -= len(gone)
            if not self.holding[seq]:
                del self.holding[seq]


def _counts_difference(kept: dict[int, int], last: object, now: Mapping[int, int] | None) -> Mapping[int, int] | None:
    """The counts that changed; None where nobody looked. This and the next two have kept what they know, and were shown `last` at the last look."""
    if now is None:
        return None
    if now is last or now == kept:
        return NOTHING
    return dict.fromkeys(kept.keys() - now.keys(), 0) | dict(now.items() - kept.items())


def _list_difference(kept: dict[int, int], last: object, now: Collection[int] | None) -> Moved | None:
    if now is None:
        return None
    if now is last:
        return UNMOVED
    listed = set(now)
    joined, left = list(listed - kept.keys()), list(kept.keys() - listed)
    if len(listed) < len(now):
        seen: set[int] = set()
        joined += [block for block in now if block in seen or seen.add(block)]  # type: ignore[func-returns-value]
    return Moved(joined, left) if joined or left else UNMOVED


def _set_difference(kept: set[int], last: object, now: frozenset[int] | None) -> Moved | None:
    if now is None:
        return None
    return UNMOVED if now is last or now == kept else Moved(now - kept, kept - now)
