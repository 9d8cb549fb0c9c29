"""What a sequence reads: room and coverage, drafts, roll-backs, forks."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.fuzz.bugs.registry import seeded
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.records import ExtendGrant
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import SequenceState
from kvproof.models.outcomes import Grant

# -- room and coverage -------------------------------------------------------------------------------------------------------------------------


@seeded(
    "last-token-has-no-room",
    laws=("committed-is-covered",),
    story="The first token after a full block is written out of bounds.",
    like=("B43",),
)
class LastTokenHasNoRoom(PagedCache):
    """Rounds the number of blocks as if the last token needed none."""

    def _append_blocks(self, state: SequenceState, end: int) -> None:
        super()._append_blocks(state, end - 1)


@seeded(
    "room-ignores-the-hit",
    laws=("committed-is-covered",),
    story="A preempted request that comes back and hits the cache runs past its block table.",
    like=("B10", "B68"),
)
class RoomIgnoresTheHit(PagedCache):
    """Counts the tokens to make room for as if nothing had been adopted."""

    def _append_blocks(self, state: SequenceState, end: int) -> None:
        adopted = 0 if state.computed else len(state.tables[0]) * self._layouts[0].size
        super()._append_blocks(state, max(end - adopted, adopted))


@seeded(
    "adopted-blocks-are-cleared",
    laws=("initialised-read",),
    story="A request that hits the cache answers as if its prompt had no beginning.",
)
class AdoptedBlocksAreCleared(SynchronousAdapter):
    """Asks for every block that is new in a table to be cleared, adopted ones included."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room for a pass, cleared before it."""
        before = self.block_table(seq)
        grant = super().extend(seq, count, drafts)
        new = [block for block in self.block_table(seq) if block not in before and block is not None]
        return Grant(grant.copies, tuple(new), grant.adopted) if not before else grant


@seeded(
    "recycled-block-counts-as-computed",
    laws=("initialised-read", "hit-is-true-prefix", "eviction-forgets"),
    story="As soon as the pool has been used once, new requests answer somebody else's question.",
    like=("B05",),
)
class RecycledBlockCountsAsComputed(PagedCache):
    """A block that comes from the evictor keeps its mark of being computed."""

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        evicted = self._counts["evicted_blocks"]
        grant = super()._start(state, count)
        if self._counts["evicted_blocks"] > evicted:
            state.computed = min(state.computed + self._layouts[0].size, len(state.tokens) - 1)
        return ExtendGrant(grant.copies, state.computed)


@seeded(
    "entries-are-moved-without-the-data",
    laws=("own-content",),
    story="After a while of serving, some answers scramble the order of their prompt.",
    like=("B82",),
    needs_long=True,
)
class EntriesAreMovedWithoutTheData(PagedCache):
    """Keeps tables in ascending order, for locality, and moves no data."""

    def _pass_milestone(self, state: SequenceState) -> None:
        super()._pass_milestone(state)
        for table in state.tables:
            table.sort(key=lambda block: -1 if block is None else block)


# -- drafts ------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "rejected-drafts-stay",
    laws=("rejection-forgets", "hit-is-true-prefix"),
    story="With speculative decoding on, cached conversations contain words that were never said.",
)
class RejectedDraftsStay(PagedCache):
    """Takes every draft for accepted."""

    def _accept(self, state: SequenceState, accepted: int) -> int:  # noqa: ARG002 -- that is the bug
        return super()._accept(state, len(state.drafts))


@seeded(
    "accepted-drafts-taken-from-the-end",
    laws=("hit-is-true-prefix", "rejection-forgets"),
    story="A second turn hits a cached first turn with other words in it.",
)
class AcceptedDraftsTakenFromTheEnd(PagedCache):
    """Counts accepted drafts from the wrong end."""

    def _accept(self, state: SequenceState, accepted: int) -> int:
        first = len(state.drafts) - accepted
        state.drafts = state.drafts[first:] + state.drafts[:first]
        return super()._accept(state, accepted)


# -- roll-backs --------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "truncation-frees-one-block-too-many",
    laws=("truncate-exact",),
    story="An edited conversation loses the sentence before the edit.",
)
class TruncationFreesOneBlockTooMany(PagedCache):
    """Keeps the blocks that lie wholly below the cut."""

    def _cut_back(self, state: SequenceState, length: int) -> None:
        super()._cut_back(state, length)
        self._trim(state, length - length % self._layouts[0].size)


@seeded(
    "truncation-keeps-the-chain",
    laws=("hit-is-true-prefix",),
    story="After an edit, the new end of a conversation is found behind its old beginning.",
    like=("B85",),
    needs_long=True,
)
class TruncationKeepsTheChain(PagedCache):
    """Cuts tokens and table, and goes on publishing where the old tokens led."""

    def _cut_back(self, state: SequenceState, length: int) -> None:
        depths = list(state.depths)
        super()._cut_back(state, length)
        state.depths = depths


# -- forks -------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "forked-tail-is-not-copied",
    laws=("fork-shares-then-diverges",),
    story="The second answer to a prompt has not read the end of it.",
)
class ForkedTailIsNotCopied(PagedCache):
    """Gives the child a tail of its own, and copies nothing into it."""

    def _share(self, state: SequenceState, twin: SequenceState) -> None:
        super()._share(state, twin)
        for table in twin.tables:
            if self._pool.available:
                self._pool.drop([table.pop() or 0])
                table += self._take(1)


@seeded(
    "fork-does-not-tell-the-parent",
    laws=("exclusive-write",),
    story="The second answer to a prompt begins with the first words of the first.",
)
class ForkDoesNotTellTheParent(PagedCache):
    """Only the child looks before it writes into the shared tail."""

    def _share(self, state: SequenceState, twin: SequenceState) -> None:
        room = state.room
        super()._share(state, twin)
        state.room = room


@seeded(
    "fork-aliases-the-table",
    laws=("committed-is-covered", "no-aliasing", "refcount-equals-holders"),
    story="Two beams that should part after the prompt write into one table.",
    like=("B62",),
)
class ForkAliasesTheTable(PagedCache):
    """Hands the parent's table to the child instead of a copy of it."""

    def _share(self, state: SequenceState, twin: SequenceState) -> None:
        super()._share(state, twin)
        twin.tables = state.tables


@seeded(
    "open-block-is-lent",
    laws=("published-is-committed", "exclusive-write"),
    story="Two users with the same first question see pieces of each other's answers.",
    like=("B83",),
)
class OpenBlockIsLent(PagedCache):
    """A first extend may adopt the block that a live sequence is still filling, and writes on in it."""

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        known = len(state.tokens)
        for donor in self._sequences.values():
            shared = donor.computed
            same = donor.namespace == state.namespace and donor.tokens[:shared] == state.tokens[:shared]
            if same and shared % self._layouts[0].size and donor.hosts is None and shared < known <= shared + self._pool.available:
                self._share(donor, state)
                self._append_blocks(state, min(shared + count, known))
                return ExtendGrant(adopted=shared)
        return super()._start(state, count)


@seeded(
    "full-hit-is-recomputed-in-place",
    laws=("exclusive-write",),
    story="A prompt that is wholly cached is answered, and the cached copy of it changes under those who read it.",
    like=("B10", "B79"),
)
class FullHitIsRecomputedInPlace(PagedCache):
    """Adopts the whole prompt, and computes its last token once more, where it lies."""

    def match(self, seq: int) -> int:
        """All but the last token."""
        return min(super().match(seq), len(self.tokens(seq)) - 1)

    def _look_up(self, state: SequenceState) -> Reuse | None:
        state.tokens.append(0)
        try:
            return super()._look_up(state)
        finally:
            state.tokens.pop()

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        grant = super()._start(state, count)
        state.computed = min(grant.adopted, len(state.tokens) - 1)
        return ExtendGrant(grant.copies, state.computed)
