"""The slower tier: what a sequence loses on the way there and back."""

from __future__ import annotations

from functools import cached_property

from kvproof.fuzz.bugs.registry import seeded
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.records import HostCopies, Table


@seeded(
    "swap-drops-the-open-block",
    laws=("swap-round-trip",),
    story="A request that was swapped out has forgotten its last few tokens when it comes back.",
)
class SwapDropsTheOpenBlock(PagedCache):
    """Moves whole blocks only."""

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves the whole blocks of a sequence to the host tier."""
        copies = super().swap_out(seq)
        state = self._sequences[seq]
        if copies is not None and state.hosts and state.computed % self._layouts[0].size:
            self._host_free.append(state.hosts[0].pop() or 0)
        return copies


@seeded(
    "swap-in-stops-halfway",
    laws=("failure-changes-nothing",),
    story="Bringing a request back to a full device fails, and the blocks that it had got already are gone.",
    like=("B07",),
)
class SwapInStopsHalfway(PagedCache):
    """Counts evictable blocks twice, begins, and gives up when there are no more."""

    def swap_in(self, seq: int) -> HostCopies | None:
        """Moves a sequence back, as far as there are blocks."""
        if len([host for host in (self._known(seq).hosts or [[]])[0] if host is not None]) > self._pool.available:
            self._take(self._pool.available)
            return None
        return super().swap_in(seq)


@seeded(
    "swap-in-takes-its-old-blocks",
    laws=("pool-conserved", "no-aliasing", "refcount-equals-holders"),
    story="A request that comes back from the host tier shares its blocks with whoever got them meanwhile.",
    like=("B71",),
)
class SwapInTakesItsOldBlocks(PagedCache):
    """Restores the table that the sequence had, without taking its blocks from those that can be handed out."""

    @cached_property
    def _left(self) -> dict[int, list[Table]]:
        return {}

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves a sequence to the host tier, and keeps its table in mind."""
        self._left[seq] = [list(table) for table in self._sequences[seq].tables]
        return super().swap_out(seq)

    def swap_in(self, seq: int) -> HostCopies | None:
        """Moves a sequence back to where it was."""
        copies = super().swap_in(seq)
        state = self._sequences[seq]
        if copies is not None:
            self._pool.drop([block for table in state.tables for block in table if block is not None])
            state.tables = self._left.pop(seq)
            for block in state.tables[0]:
                self._pool.refs[block or 0] += 1
        return copies


@seeded(
    "swap-out-counts-on-the-wrong-tier",
    laws=("no-spurious-exhaustion", "no-leak"),
    story="Each request that is swapped out makes the device look fuller, until nothing is admitted.",
    like=("B77",),
)
class SwapOutCountsOnTheWrongTier(PagedCache):
    """Adds the blocks that it has freed to the count of a tier that is looked up after the move."""

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves a sequence to the host tier."""
        idle = self._pool.idle
        copies = super().swap_out(seq)
        self._pool.idle = idle
        return copies
