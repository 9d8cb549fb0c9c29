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
from typing import Final, TypeAlias

import msgspec

from kvproof.models.state import Books, Seen, Table, Tables

Entry: TypeAlias = tuple[int, int, int]
"""(sequence, group, index): one place in one block table."""


class Moved(msgspec.Struct, frozen=True):
    """What joined and what left a set of blocks. On a free list a block counts as often as it is listed."""

    joined: Collection[int] = ()
    left: Collection[int] = ()


UNMOVED: Final = Moved()


class Change(msgspec.Struct, frozen=True):
    """What one operation was seen to change. A field of the books that is None was not looked at.

    `tables`: sequence -> its tables now, or None where it is gone; sequences that did not change are left out.
    `refcounts`: block -> its count now, for the counts that changed.
    `events`: what the events taken after this operation did to the matchable set that they replay; None where none were taken.
    """

    tables: Mapping[int, Tables | None] = {}
    refcounts: Mapping[int, int] | None = None
    free: Moved | None = None
    cached: Moved | None = None
    retiring: Moved | None = None
    events: Moved | None = None
    worker_tables: Mapping[int, Tables] = {}


class Ledger:
    """The cache's books as they stand. A field that was not looked at after the last operation is None."""

    def __init__(self) -> None:
        self.refcounts: dict[int, int] | None = None
        self.free: dict[int, int] | None = None
        """block -> how often it is on the free list."""
        self.cached: set[int] | None = None
        self.retiring: set[int] | None = None
        self.kept: dict[str, dict[int, int] | set[int]] = {"refcounts": {}, "free": {}, "cached": set(), "retiring": set()}
        """The same at the last look."""
        self.counts_before: dict[int, int] = {}
        """The reference counts before the last operation, of those that it changed."""
        self._looked_at: Books | None = None
        """The last books that were compared."""

    def difference(self, books: Books) -> Change:
        """What `books` say that was not so at the last look."""
        if books is self._looked_at:
            return _unchanged(books)
        self._looked_at = books
        return Change(
            refcounts=None if books.refcounts is None else _counts_difference(self.kept["refcounts"], books.refcounts),
            free=None if books.free is None else _list_difference(self.kept["free"], books.free),
            cached=None if books.cached is None else _set_difference(self.kept["cached"], books.cached),
            retiring=None if books.retiring is None else _set_difference(self.kept["retiring"], books.retiring),
        )

    def take(self, change: Change) -> None:
        """The books are now as `change` says."""
        counts = self.kept["refcounts"]
        assert isinstance(counts, dict)
        self.counts_before = {block: counts.get(block, 0) for block in change.refcounts} if change.refcounts else {}
        self.refcounts = self._counts("refcounts", change.refcounts)
        self.free = self._counts("free", None if change.free is None else {} if change.free is UNMOVED else self._times(change.free))
        self.cached = self._set("cached", change.cached)
        self.retiring = self._set("retiring", change.retiring)

    def _counts(self, field: str, changed: Mapping[int, int] | None) -> dict[int, int] | None:
        kept = self.kept[field]
        assert isinstance(kept, dict)
        if changed is None:
            return None
        for block, count in changed.items():
            if count:
                kept[block] = count
            else:
                kept.pop(block, None)
        return kept

    def _times(self, moved: Moved) -> dict[int, int]:
        times: dict[int, int] = {}
        free = self.kept["free"]
        assert isinstance(free, dict)
        for block in moved.left:
            times[block] = times.get(block, free.get(block, 0)) - 1
        for block in moved.joined:
            times[block] = times.get(block, free.get(block, 0)) + 1
        return times

    def _set(self, field: str, moved: Moved | None) -> set[int] | None:
        kept = self.kept[field]
        assert isinstance(kept, set)
        if moved is None:
            return None
        if moved is UNMOVED:
            return kept
        kept.difference_update(moved.left)
        kept.update(moved.joined)
        return kept


class Observed:
    """Block tables, who lists which block, and books, as they were seen after the last operation."""

    def __init__(self, groups: int) -> None:
        self.no_tables: Tables = ((),) * groups
        self.tables: dict[int, Tables] = {}
        self.owners: dict[int, dict[Entry, None]] = {}
        """block -> every table entry that lists it, the oldest first."""
        self.holding: dict[int, int] = {}
        """sequence -> how many blocks its tables list, where they list any."""
        self.books = Ledger()
        self.replayed: set[int] = set()
        """The matchable set by the events taken so far."""
        self._replay: frozenset[int] | None = None
        """The same at the last full observation."""
        self.last = Change()
        self.before = Change()
        """The last change but one."""
        self.was: dict[int, Tables] = {}
        """The tables before the last operation of the sequences that it changed."""
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
        return block in moved.left or (block in self.books.kept["cached"] and block not in moved.joined)

    def was_free(self, block: int) -> bool:
        """Whether `block` was on the free list before the last operation."""
        moved = self.last.free
        if self.before.free is None or moved is None:
            return False
        return block in moved.left or (block in self.books.kept["free"] and block not in moved.joined)

    def difference(self, seen: Seen) -> Change:
        """What a full observation shows that is not known yet."""
        now, known, replayed = seen.tables, self.tables, seen.matchable_by_events
        tables: dict[int, Tables | None] = {seq: rows for seq, rows in now.items() if known.get(seq) != rows}
        if len(known) + len(tables) > len(now):
            tables.update((seq, None) for seq in known if seq not in now)
        books = self.books.difference(seen.books)
        events = None if replayed is None else UNMOVED if replayed is self._replay else _set_difference(self.replayed, replayed)
        self._replay = replayed
        return Change(tables, books.refcounts, books.free, books.cached, books.retiring, events, seen.worker_tables)

    def take(self, change: Change) -> None:
        """The cache is now as `change` says."""
        self.before, self.last = self.last, change
        if self.was:
            self.was.clear()
            self.listed.clear()
            self.unlisted.clear()
            for blocks in (self.relisted, self.newly_held, self.orphaned):
                blocks.clear()
        for seq, tables in change.tables.items():
            self._replace(seq, tables)
        self.books.take(change)
        if change.events is not None and change.events is not UNMOVED:
            self.replayed.difference_update(change.events.left)
            self.replayed.update(change.events.joined)

    def _replace(self, seq: int, tables: Tables | None) -> None:
        old = self.tables.get(seq, self.no_tables)
        self.was[seq] = old
        if tables is None:
            self.tables.pop(seq, None)
        else:
            self.tables[seq] = tables
        for group, (had, has) in enumerate(zip(old, tables or self.no_tables, strict=True)):
            if had != has:
                self._replace_table(seq, group, had, has)

    def _replace_table(self, seq: int, group: int, had: Table, has: Table) -> None:
        shorter = min(len(had), len(has))
        start = shorter if had[:shorter] == has[:shorter] else 0
        for index in range(start, max(len(had), len(has))):
            old = had[index] if index < len(had) else None
            new = has[index] if index < len(has) else None
            if old == new:
                continue
            entry = (seq, group, index)
            if old is not None:
                self._unlist(entry, old)
            if new is not None:
                self._list(entry, new)

    def _list(self, entry: Entry, block: int) -> None:
        entries = self.owners.get(block)
        if entries is None:
            entries = self.owners[block] = {}
            self.newly_held.add(block)
        entries[entry] = None
        self.holding[entry[0]] = self.holding.get(entry[0], 0) + 1
        self.listed.append(entry)
        self.relisted.add(block)

    def _unlist(self, entry: Entry, block: int) -> None:
        entries = self.owners[block]
        if next(iter(entries)) == entry:
            self.orphaned.add(block)
        del entries[entry]
        if not entries:
            del self.owners[block]
            self.orphaned.discard(block)
        left = self.holding[entry[0]] - 1
        if left:
            self.holding[entry[0]] = left
        else:
            del self.holding[entry[0]]
        self.unlisted.append((entry, block))
        self.relisted.add(block)


def _unchanged(books: Books) -> Change:
    return Change(
        refcounts=None if books.refcounts is None else {},
        free=None if books.free is None else UNMOVED,
        cached=None if books.cached is None else UNMOVED,
        retiring=None if books.retiring is None else UNMOVED,
    )


def _counts_difference(old: Collection[int], new: Mapping[int, int]) -> dict[int, int]:
    assert isinstance(old, dict)
    if old == new:
        return {}
    changed = dict(new.items() - old.items())
    changed.update((block, 0) for block in old.keys() - new.keys())
    return changed


def _list_difference(old: Collection[int], new: Collection[int]) -> Moved:
    assert isinstance(old, dict)
    listed = set(new)
    joined, left = list(listed - old.keys()), list(old.keys() - listed)
    if len(listed) < len(new):
        seen: set[int] = set()
        joined += [block for block in new if block in seen or seen.add(block)]  # type: ignore[func-returns-value]
    return Moved(joined, left) if joined or left else UNMOVED


def _set_difference(old: Collection[int], new: Collection[int]) -> Moved:
    assert isinstance(old, set)
    joined, left = set(new) - old, old.difference(new)
    return Moved(joined, left) if joined or left else UNMOVED
