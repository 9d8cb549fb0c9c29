"""Who holds a block: counts, allocation, copies on write, releases, failures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from kvproof.fuzz.bugs.registry import SynchronousHybridAdapter, UnauditedAdapter, seeded
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.errors import OutOfBlocks
from kvproof.impl.production.groups import Layout
from kvproof.impl.production.pool import BlockPool
from kvproof.impl.production.records import Table
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import SequenceState

Copies = tuple[tuple[int, int, int], ...]


@seeded(
    "canary",
    laws=("no-aliasing",),
    story="Every token of every request is written over the last one: a check that does not see this sees nothing.",
    on=UnauditedAdapter,
)
class Canary(BlockPool):
    """Hands out one and the same block, always."""

    __slots__ = ()

    def take(self, count: int) -> list[int]:
        """`count` times the last block."""
        super().take(count)
        return [self.num_blocks - 1] * count


# -- counts ------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "lock-misses-the-deepest-block",
    laws=("refcount-equals-holders",),
    story="The last block of a cached prefix is evicted under the request that is using it.",
    like=("B61",),
)
class LockMissesTheDeepestBlock(BlockPool):
    """Takes hold of a path of blocks from its root on, and stops one short of its end."""

    __slots__ = ()

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each block but the last."""
        super().share(list(blocks)[:-1])


@seeded(
    "hit-is-counted-twice",
    laws=("refcount-equals-holders",),
    story="Popular prefixes can never be evicted again, and the usable cache shrinks with every hit.",
    like=("B71",),
)
class HitIsCountedTwice(PagedCache):
    """The look-up takes a reference, and the request that adopts the hit takes another."""

    def _adopt(self, state: SequenceState, reuse: Reuse, length: int) -> None:
        super()._adopt(state, reuse, length)
        for layout in self._layouts:
            self._pool.share(reuse.adopted(layout, length))


@seeded(
    "shared-block-freed-by-its-first-holder",
    laws=("no-aliasing", "exclusive-write"),
    story="When one of several answers to a prompt finishes, the others go on with a stranger's text.",
    like=("B50",),
    on=UnauditedAdapter,
)
class SharedBlockFreedByItsFirstHolder(BlockPool):
    """A block is free as soon as anybody lets go of it."""

    __slots__ = ()

    def drop(self, blocks: Iterable[int]) -> None:
        """No holder is left for any of the blocks."""
        gone = list(blocks)
        for block in gone:
            self.refs[block] = 1
        super().drop(gone)


@seeded(
    "trimmed-blocks-are-lost",
    laws=("pool-conserved", "no-leak"),
    story="Every rejected draft and every roll-back takes blocks away for good, until the server must be restarted.",
    like=("B52",),
)
class TrimmedBlocksAreLost(PagedCache):
    """Counts down what a table no longer lists, and puts none of it back."""

    def _drop_positioned(self, state: SequenceState, left: list[tuple[Table, Layout, int]]) -> None:  # noqa: ARG002 -- an override
        for blocks, _, _ in left:
            for block in blocks:
                if block is not None:
                    self._pool.refs[block] -= 1


# -- room --------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "free-count-leaves-out-the-cached",
    laws=("no-spurious-exhaustion",),
    story="The server says that it is full as soon as every block has been used once, though nothing is running.",
    like=("B07", "B56"),
)
class FreeCountLeavesOutTheCached(BlockPool):
    """Counts what is clean, and forgets what could be evicted."""

    __slots__ = ()

    @property
    def available(self) -> int:
        """How many blocks are clean."""
        return len(self.clean)


@seeded(
    "evictable-count-drifts",
    laws=("no-spurious-exhaustion",),
    story="The number of free blocks in the metrics sinks below that of the list, and requests are turned away.",
    like=("B19", "B56"),
)
class EvictableCountDrifts(BlockPool):
    """Takes a held block off the count of idle ones, where it never was."""

    __slots__ = ()

    def unfiled(self, block: int) -> None:
        """The index let go of this block."""
        if self.refs[block]:
            self.idle -= 1
        super().unfiled(block)


@seeded(
    "need-is-counted-in-tokens",
    laws=("no-spurious-exhaustion",),
    story="A prompt that would fill a sixteenth of the pool is turned away.",
    like=("B64",),
)
class NeedIsCountedInTokens(PagedCache):
    """Compares tokens with blocks."""

    def _blocks_for(self, length: int) -> int:
        return length * len(self._layouts)


@seeded(
    "shared-blocks-count-as-new",
    laws=("no-spurious-exhaustion",),
    story="Requests with the same system prompt wait for blocks that they would share with those that run.",
    needs_long=True,
)
class SharedBlocksCountAsNew(PagedCache):
    """Looks for room for the whole prompt, whatever of it others hold."""

    def _affordable(self, state: SequenceState, reuse: Reuse | None, count: int) -> int:
        adopted = super()._affordable(state, reuse, count)
        need = self._blocks_for(min(adopted + count, len(state.tokens)))
        if adopted and need > self._pool.available:
            raise self._exhausted(state, need)
        return adopted


@seeded(
    "groups-allocate-from-one-list",
    laws=("no-aliasing",),
    story="A model with two kinds of layers keeps the keys of both in one block.",
    like=("B17",),
    on=SynchronousHybridAdapter,
)
class GroupsAllocateFromOneList(PagedCache):
    """Each group picks from what was free before any group had taken its blocks."""

    _picked: list[int] | None = None

    def _append_blocks(self, state: SequenceState, end: int) -> None:
        self._picked = []
        super()._append_blocks(state, end)
        self._picked = None

    def _take(self, count: int) -> list[int]:
        if not self._picked:
            blocks = super()._take(count)
            self._picked = blocks if self._picked is not None else None
            return blocks
        return self._picked[:count]


# -- failures ----------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "failed-admission-keeps-its-hits",
    laws=("failure-changes-nothing", "refcount-equals-holders"),
    story="While a large request waits for room, each attempt pins its cached prefix once more, until nothing can be evicted.",
    like=("B01",),
)
class FailedAdmissionKeepsItsHits(PagedCache):
    """Takes hold of the hit, looks whether the rest fits, and lets go again only if it does."""

    def _affordable(self, state: SequenceState, reuse: Reuse | None, count: int) -> int:
        if reuse is None:
            return super()._affordable(state, reuse, count)
        longest = self._longest(reuse)
        hit = [block for layout in self._layouts for block in reuse.adopted(layout, longest)]
        self._pool.share(hit)
        adopted = super()._affordable(state, reuse, count)
        self._pool.drop(reversed(hit))
        return adopted


@seeded(
    "failed-extend-keeps-what-it-got",
    laws=("failure-changes-nothing",),
    story="Requests that wait for blocks hold on to the blocks that the others wait for.",
    like=("B01",),
)
class FailedExtendKeepsWhatItGot(PagedCache):
    """Takes what there is, and then finds that it is not enough."""

    def _exhausted(self, state: SequenceState, need: int) -> OutOfBlocks:
        state.tables[0] += self._take(self._pool.available)
        return super()._exhausted(state, need)


# -- copies on write ---------------------------------------------------------------------------------------------------------------------------


@seeded(
    "shared-tail-written-in-place",
    laws=("exclusive-write",),
    story="Parallel samples of one prompt overwrite each other's first words.",
    like=("B79",),
)
class SharedTailWrittenInPlace(PagedCache):
    """Does not copy a tail that others hold too."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        return super()._copy_tails(state, [group for group in groups if self._pool.refs[state.tables[group][-1] or 0] == 1])


@seeded(
    "published-tail-written-in-place",
    laws=("exclusive-write",),
    story="After a roll-back, a request with the old prompt is served with the new text.",
    like=("B79",),
    needs_long=True,
)
class PublishedTailWrittenInPlace(PagedCache):
    """Does not copy a tail that only the prefix index still promises to others."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        return super()._copy_tails(state, [group for group in groups if self._pool.refs[state.tables[group][-1] or 0] > 1])


@seeded(
    "copy-is-not-issued",
    laws=("copy-before-write",),
    story="The second sample of a prompt has forgotten the last few tokens of it.",
    like=("B82",),
)
class CopyIsNotIssued(PagedCache):
    """Puts a fresh block in the table, and tells nobody to fill it."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        super()._copy_tails(state, groups)
        return ()


@seeded(
    "copy-names-the-first-group",
    laws=("copy-before-write",),
    story="In a model with sliding windows, parallel samples of one prompt forget its last tokens in half of the layers.",
    on=SynchronousHybridAdapter,
)
class CopyNamesTheFirstGroup(PagedCache):
    """Has every copy done in the layers of the first group."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        return tuple([(0, source, target) for _, source, target in super()._copy_tails(state, groups)])


@seeded(
    "copy-goes-backwards",
    laws=("copy-before-write", "own-content", "initialised-read"),
    story="Forking a request erases the end of the one that it was forked from.",
)
class CopyGoesBackwards(PagedCache):
    """Names source and destination in the wrong order."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        return tuple((group, destination, source) for group, source, destination in super()._copy_tails(state, groups))


@seeded(
    "copy-is-issued-twice",
    laws=("copy-batch-sound",),
    story="On some devices the copied block is torn: two copies race for it.",
)
class CopyIsIssuedTwice(PagedCache):
    """Lists the same copy for each of two reasons."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        return super()._copy_tails(state, groups) * 2


@seeded(
    "copy-source-let-go-early",
    laws=("copy-batch-sound",),
    story="Under load a roll-back continues with a stranger's words: the block was handed out before it was copied.",
    like=("B47",),
    on=ProductionAdapter,
    needs_long=True,
)
class CopySourceLetGoEarly(PagedCache):
    """Lets go of the old tail when the copy is planned, not when it has run."""

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> Copies:
        copies = super()._copy_tails(state, groups)
        self._pool.drop(state.sources)
        state.sources = []
        return copies


# -- releases ----------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "second-release-raises",
    laws=("release-once",),
    story="A client that hangs up just as its answer ends takes the engine down.",
    like=("B26",),
)
class SecondReleaseRaises(PagedCache):
    """Expects to hear of each end once."""

    def release(self, seq: int) -> bool:
        """The sequence is gone; it must have been there."""
        self._known(seq)
        return super().release(seq)


@seeded(
    "last-block-freed-twice",
    laws=("release-once",),
    story="Long after a request has finished, two others share a block.",
    like=("B44",),
)
class LastBlockFreedTwice(PagedCache):
    """The end of a request frees its table, and another path frees the block that was set aside for the next token."""

    def _let_go(self, state: SequenceState) -> None:
        tail = state.tables[0][-1] if state.tables[0] else None
        super()._let_go(state)
        if tail in self._pool.clean:
            self._pool.clean.append(tail)


@seeded(
    "preempted-sequence-keeps-its-table",
    laws=("release-once",),
    story="A preempted request that comes back writes into blocks that were given to others.",
    like=("B49", "B68"),
)
class PreemptedSequenceKeepsItsTable(PagedCache):
    """Frees the blocks of a preempted sequence, and leaves its rows as they are."""

    def preempt(self, seq: int) -> bool:
        """Like release, but the sequence stays known."""
        state = self._sequences.get(seq)
        tables = [list(table) for table in state.tables] if state else []
        held = super().preempt(seq)
        if state and held:
            state.tables = tables
        return held


@seeded(
    "stale-entry-frees-the-next-owner",
    laws=("no-aliasing", "exclusive-write"),
    story="Cancelling a request that was preempted before corrupts one that has nothing to do with it.",
    like=("B49", "B70"),
    needs_long=True,
    on=UnauditedAdapter,
)
class StaleEntryFreesTheNextOwner(PagedCache):
    """Keeps a second map of who has which block, and does not clear it on preemption."""

    @cached_property
    def _map(self) -> dict[int, list[int]]:
        return {}

    def preempt(self, seq: int) -> bool:
        """Like release, but the sequence stays known."""
        self._map[seq] = [block for block in self.block_table(seq) if block is not None] if seq in self._sequences else []
        return super().preempt(seq)

    def release(self, seq: int) -> bool:
        """The sequence is gone, and so is what the map says of it."""
        known = super().release(seq)
        self._pool.drop([block for block in self._map.pop(seq, ()) if self._pool.refs[block]])
        return known


@seeded(
    "cancelled-copy-leaks",
    laws=("refcount-equals-holders", "no-leak"),
    story="Each request that is cancelled between two steps costs a block for good.",
    like=("B71",),
)
class CancelledCopyLeaks(PagedCache):
    """Lets go of the table of a cancelled sequence, not of the sources of the copies that it no longer needs."""

    def _let_go(self, state: SequenceState) -> None:
        state.sources = []
        super()._let_go(state)
