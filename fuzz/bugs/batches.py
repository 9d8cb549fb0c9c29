"""Decoding in batches: what goes wrong only where sequences are counted on, or given blocks, together."""

from __future__ import annotations

from kvproof.fuzz.bugs.registry import seeded
from kvproof.impl.production.batched_adapter import BatchedSynchronousAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.sequence import SequenceState


@seeded(
    "batch-counts-past-its-block",
    laws=("committed-is-covered", "events-replay-index"),
    story="One token in sixteen is written behind the last block of its request, wherever that may be.",
    on=BatchedSynchronousAdapter,
)
class BatchCountsPastItsBlock(PagedCache):
    """Takes a sequence for calm for one token too long."""

    def _grow_plainly(self, busy: list[SequenceState]) -> tuple[int, ...] | None:
        short = super()._grow_plainly(busy)
        for state in busy:
            state.calm += 1
        return short


@seeded(
    "batch-is-given-one-block",
    laws=("no-aliasing", "exclusive-write", "refcount-equals-holders"),
    story="Two requests that fill a block in the same step go on writing into each other's next one.",
    needs_long=True,
    on=BatchedSynchronousAdapter,
)
class BatchIsGivenOneBlock(PagedCache):
    """Takes blocks for all at once, and gives the first of them to everybody."""

    def _grow_plainly(self, busy: list[SequenceState]) -> tuple[int, ...] | None:
        full = [state for state in busy if state.target > state.room]
        short = super()._grow_plainly(busy)
        if short is not None:
            for state in full:
                state.tables[0][-1] = full[0].tables[0][-1]
        return short
