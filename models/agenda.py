"""What the laws have to look at again after one operation.

A law that held before can only break where something moved: a table entry, a slot, a count, a pin. The agenda collects those places, so that an operation costs what it
moves and not what the pool holds. `everything` puts all there is on it instead; a test shows that both find the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.observed import UNMOVED, Entry, Observed
from kvproof.models.state import Pass, Sequence

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


class Agenda:
    """Places to look at. Those of the books wait until the cache shows the field that they concern."""

    def __init__(self, universe: frozenset[int], *, books: bool) -> None:
        self.books = books
        """Whether the cache keeps any books; without them nothing has to be collected for them."""
        self.entries: set[Entry] = set()
        """Table entries whose content is to be read again."""
        self.shared: set[Entry] = set()
        """Table entries whose block is to be compared with its other holders."""
        self.launched: list[Pass] = []
        """Passes that this operation launched."""
        self.finished: list[Pass] = []
        """Passes that no longer pin their blocks."""
        self.unpinned: set[int] = set()
        """Blocks with deferred drops that are pinned no more."""
        self.counts: set[int] = set()
        """Blocks whose reference count is to be compared with their holders."""
        self.places: set[int] = set(universe)
        """Blocks of which it is to be found out whether they are free, held, kept back or lost."""
        self.matchable: set[int] = set()
        """Blocks of which it is to be found out whether they may be matchable."""
        self.told: set[int] = set()
        """Blocks whose matchability by events is to be compared with the books."""
        self.surplus: set[int] = set()
        """Blocks whose count exceeds their table entries."""
        self.kept_back: set[int] = set()
        """Blocks that are neither free nor held, and that device work may pin."""
        self.lost: set[int] = set()
        """Blocks that are neither free nor held, and that nothing pins."""
        self.settled: set[int] = set()
        """Blocks that may be idle and matchable since the order of an eviction was judged last."""
        self.mistold: set[int] = set()
        """Blocks on which events and books disagree."""
        self._of_one_operation = (self.entries, self.shared, self.launched, self.finished, self.unpinned)

    def begin(self, observed: Observed) -> None:
        """A new operation was observed."""
        for gathered in self._of_one_operation:
            if gathered:
                gathered.clear()
        if observed.relisted:
            self.entries.update(observed.listed)
            self.entries.update([entry for entry, _ in observed.unlisted])
            self.shared.update(observed.listed)
        if self.books and not observed.last.still:
            self._begin_books(observed)

    def _begin_books(self, observed: Observed) -> None:
        change = observed.last
        if observed.relisted:
            self.settled |= observed.relisted
            self.counts |= observed.relisted
            self.places |= observed.relisted
        if change.refcounts:
            self.counts.update(change.refcounts)
            self.places.update(self.kept_back.intersection(change.refcounts))
        if change.free is not None and change.free is not UNMOVED:
            self.places.update(change.free.joined, change.free.left)
            self.settled.update(change.free.joined)
            self.counts.update(change.free.joined)
        if change.retiring is not None and change.retiring is not UNMOVED:
            self.places.update(change.retiring.joined, change.retiring.left)
        if change.cached is not None and change.cached is not UNMOVED:
            self.matchable.update(change.cached.joined)
            self.settled.update(change.cached.joined)
            self.told.update(change.cached.joined, change.cached.left)
        if change.events is not None and change.events is not UNMOVED:
            self.told.update(change.events.joined, change.events.left)

    def has_books_to_check(self) -> bool:
        """Whether a count, a place or a promise has moved, or a pin that one of them may have relied on."""
        return bool(self.counts or self.places or self.matchable or self.launched or self.finished or self.unpinned)

    def grown(self, spec: Spec, sequence: Sequence, low: int) -> None:
        """The positions of `sequence` from `low` to the computed ones are computed, or readable again, since this operation."""
        seq, computed = sequence.seq, sequence.computed
        for group, size, window in spec.groups:
            first = low if window is None else max(low, window_low(computed, window))
            for index in range(first // size, -(-computed // size)):
                self.entries.add((seq, group, index))
                self.shared.add((seq, group, index))

    def touched(self, spec: Spec) -> None:
        """Slots have changed: whoever lists their blocks reads them again."""
        owners, touched = spec.owners, spec.memory.touched
        for block in touched:
            if block in owners:
                self.entries.update(owners[block])
        if self.books:
            self.matchable |= touched

    def loosened(self, blocks: set[int]) -> Iterable[int]:
        """Those of `blocks` that fewer pins hold than before."""
        if not blocks or not (self.unpinned or self.finished):
            return ()
        return blocks.intersection(self.unpinned).union(*[blocks.intersection(out.listed) for out in self.finished])

    def leave_out(self, blocks: set[int]) -> None:
        """These blocks are judged no more."""
        for gathered in (
            self.counts,
            self.places,
            self.matchable,
            self.told,
            self.surplus,
            self.kept_back,
            self.lost,
            self.settled,
            self.mistold,
        ):
            gathered -= blocks

    def everything(self, spec: Spec) -> None:
        """Look at all there is."""
        for sequence in spec.live.values():
            for group, table in enumerate(spec.tables(sequence)):
                indices = range(max(len(table), blocks_for(sequence.computed, spec.block_sizes[group])))
                self.entries.update((sequence.seq, group, index) for index in indices)
        self.shared.update(self.entries)
        for blocks in (self.counts, self.places, self.matchable, self.told):
            blocks |= spec.universe
