"""What is matchable: weak hashes, what is published and when, what eviction and reset leave behind."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from kvproof.fuzz.bugs.registry import UnauditedAdapter, seeded
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.index import Path, PrefixIndex, RootKey, Run
from kvproof.impl.production.pool import UNFILED, BlockPool
from kvproof.impl.production.records import ExtendGrant, RemovalReason
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import SequenceState
from kvproof.impl.production.tokens import SMALL, extended

# -- weak hashes -------------------------------------------------------------------------------------------------------------------------------


class HashedIndex(PrefixIndex):
    """Compares a digest of each block instead of its tokens. Not a bug by itself: that depends on the digest."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """The number that stands for the tokens of a block."""
        raise NotImplementedError

    def find(self, key: RootKey, data: bytes) -> Path:
        """What is known of a prompt."""
        return super().find(key, self._digested(data, key[0] * key[1]))

    def publish(self, cursor: Run, depth: int, data: bytes, columns: Sequence[tuple[int, Sequence[int]]]) -> tuple[Run, list[list[int]]]:
        """Makes blocks matchable under their digests."""
        return super().publish(cursor, depth, self._digested(data, cursor.width), columns)

    def _digested(self, data: bytes, width: int) -> bytes:
        blocks = [array(SMALL, data[start : start + width]) for start in range(0, len(data), width)]
        return b"".join((self.digest(block) % 256**width).to_bytes(width, "little") for block in blocks)


@seeded(
    "hash-adds-tokens-up",
    laws=("hit-is-true-prefix",),
    story="A user gets the answer to a prompt with the same words in another order.",
    like=("B86",),
)
class HashAddsTokensUp(HashedIndex):
    """A sum does not see what is moved from one token to the next."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """The sum."""
        return sum(tokens)


@seeded(
    "hash-is-a-polynomial",
    laws=("hit-is-true-prefix",),
    story="Somebody who knows the base of the hash can read another user's prompt out of the cache.",
    like=("B02", "B86"),
)
class HashIsAPolynomial(HashedIndex):
    """Adding one to a token and taking the base from the next keeps the value."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """A polynomial in 31."""
        value = 0
        for token in tokens:
            value = value * 31 + token
        return value


@seeded(
    "hash-has-four-bits",
    laws=("hit-is-true-prefix",),
    story="One prompt in a few gets an answer to another one.",
    like=("B02",),
)
class HashHasFourBits(HashedIndex):
    """A good hash, of which too little is kept."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """The last four bits."""
        return zlib.crc32(repr(list(tokens)).encode()) & 0xF


@seeded(
    "hash-sees-sixteen-bits-of-a-token",
    laws=("hit-is-true-prefix",),
    story="Since the model with the larger vocabulary, rare characters are taken for common ones.",
    needs_long=True,
)
class HashSeesSixteenBitsOfAToken(HashedIndex):
    """Packs token ids into two bytes."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """The tokens, each cut to 16 bits."""
        return zlib.crc32(repr([token & 0xFFFF for token in tokens]).encode())


@seeded(
    "hash-runs-digits-together",
    laws=("hit-is-true-prefix",),
    story="The tokens 1, 12 and the tokens 11, 2 are the same prompt.",
    like=("B53",),
)
class HashRunsDigitsTogether(HashedIndex):
    """Hashes the text of the tokens, with nothing between them."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """A checksum of the digits."""
        return zlib.crc32("".join(map(str, tokens)).encode())


@seeded(
    "hash-ignores-order",
    laws=("hit-is-true-prefix",),
    story="`man bites dog` is answered as `dog bites man`.",
)
class HashIgnoresOrder(HashedIndex):
    """Hashes the tokens of a block as a set with counts."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """A checksum of the sorted tokens."""
        return zlib.crc32(repr(sorted(tokens)).encode())


@seeded(
    "hash-covers-half-a-block",
    laws=("hit-is-true-prefix",),
    story="Prompts that part in the middle of a block get each other's continuation.",
    like=("B13",),
)
class HashCoversHalfABlock(HashedIndex):
    """Hashes in units of another size than the blocks have."""

    __slots__ = ()

    def digest(self, tokens: Sequence[int]) -> int:
        """A checksum of the first half."""
        return zlib.crc32(repr(list(tokens[: (len(tokens) + 1) // 2])).encode())


# -- hits --------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "hit-covers-the-whole-prompt",
    laws=("hit-leaves-last-token",),
    story="The second time that a prompt of whole blocks comes, the engine has nothing to compute and stops.",
    like=("B10", "B68"),
)
class HitCoversTheWholePrompt(PagedCache):
    """Looks up every known token, the last one included."""

    def _look_up(self, state: SequenceState) -> Reuse | None:
        state.tokens.append(0)
        try:
            return super()._look_up(state)
        finally:
            state.tokens.pop()


@seeded(
    "hit-is-not-looked-up-again",
    laws=("eviction-forgets", "reset-forgets", "hit-is-true-prefix"),
    story="A request that waited after its look-up gets blocks that were given to others meanwhile.",
    like=("B85",),
    on=UnauditedAdapter,
)
class HitIsNotLookedUpAgain(PagedCache):
    """Adopts the blocks that the match has found, by their numbers."""

    @cached_property
    def _found(self) -> dict[int, Reuse | None]:
        return {}

    def _look_up(self, state: SequenceState) -> Reuse | None:
        if state.seq not in self._found:
            self._found[state.seq] = super()._look_up(state)
        return self._found[state.seq]


@seeded(
    "hit-holds-while-its-blocks-are-cached",
    laws=("eviction-forgets", "hit-is-true-prefix", "hit-same-namespace", "own-content"),
    story="A request that waited after its look-up is answered with a stranger's prompt, now that others have published in the same blocks.",
    like=("B85",),
    on=UnauditedAdapter,
    needs_long=True,
)
class HitHoldsWhileItsBlocksAreCached(PagedCache):
    """Looks once, when a request comes, and then only whether the blocks that it found are still matchable, not as what."""

    @cached_property
    def _found(self) -> dict[int, Reuse]:
        return {}

    def admit(self, seq: int, prompt: Iterable[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known, and looks what it may share."""
        super().admit(seq, prompt, namespace)
        self._look_up(self._sequences[seq])

    def _look_up(self, state: SequenceState) -> Reuse | None:
        found = self._found.get(state.seq)
        if found is None or any(self._pool.labels[block] < 0 for blocks in found.blocks for block in blocks):
            found = super()._look_up(state)
        if found is not None:
            self._found[state.seq] = found
        return found

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        grant = super()._start(state, count)
        self._found.pop(state.seq, None)
        return grant


@seeded(
    "blocks-are-told-by-their-own-tokens",
    laws=("no-aliasing", "own-content"),
    story="Two prompts that differ early and agree later share what they computed for the later part.",
    like=("B67", "B73"),
)
class BlocksAreToldByTheirOwnTokens(PagedCache):
    """Replaces a block by an older one at the same place with the same tokens, whatever came before them."""

    @cached_property
    def _known_blocks(self) -> dict[tuple[int, bytes], int]:
        return {}

    def _publish(self, state: SequenceState) -> None:
        super()._publish(state)
        size, table = self._layouts[0].size, state.tables[0]
        for index in range(state.computed // size):
            own = table[index]
            twin = self._known_blocks.setdefault((index, state.data(index * size, (index + 1) * size)), own or 0)
            if own is not None and twin != own and self._pool.labels[twin] != UNFILED:
                self._pool.share([twin])
                self._pool.drop([own])
                table[index] = twin


# -- publishing --------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "prompt-is-published-before-it-is-computed",
    laws=("published-is-committed", "initialised-read"),
    story="With chunked prefill, a second request with the same prompt reads blocks that nobody has filled.",
    like=("B80",),
)
class PromptIsPublishedBeforeItIsComputed(PagedCache):
    """Publishes as far as the prompt goes, not as far as it was computed."""

    def _publish(self, state: SequenceState) -> None:
        computed = state.computed
        state.computed = min(len(state.tokens), len(state.tables[0]) * self._layouts[0].size)
        super()._publish(state)
        state.computed = computed

    def _set_milestone(self, state: SequenceState) -> None:
        super()._set_milestone(state)
        state.milestone = 0


@seeded(
    "drafts-are-published-with-the-pass",
    laws=("published-is-committed", "rejection-forgets"),
    story="With speculative decoding on, a prompt hits text that the model has only guessed.",
    like=("B11",),
)
class DraftsArePublishedWithThePass(PagedCache):
    """Counts the proposed drafts among the tokens that may be published."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Room for a pass, whose drafts are matchable at once."""
        grant = super().extend(seq, count, drafts)
        state = self._sequences[seq]
        if drafts and state.publishes:
            tokens, computed = state.tokens, state.computed
            state.tokens, state.computed = extended(tokens[:], drafts), state.target + len(drafts)
            self._publish(state)
            state.tokens, state.computed = tokens, computed
        return grant


@seeded(
    "blocks-are-published-before-the-launch",
    laws=("published-is-committed",),
    story="A request that is cancelled before its first step leaves an empty prefix behind, and others hit it.",
    like=("B80",),
    on=ProductionAdapter,
)
class BlocksArePublishedBeforeTheLaunch(PagedCache):
    """Publishes what a pass will compute when it is planned, and does not take it back."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Room for a pass, whose tokens are matchable at once."""
        grant = super().extend(seq, count, drafts)
        state = self._sequences[seq]
        if state.publishes:
            computed, state.computed = state.computed, state.target
            self._publish(state)
            state.computed = computed
        return grant


# -- eviction and reset ------------------------------------------------------------------------------------------------------------------------


@seeded(
    "entry-survives-recycling",
    laws=("eviction-forgets", "hit-is-true-prefix", "hit-same-namespace"),
    story="After the pool has filled up, old prompts hit the text of new ones.",
    like=("B04", "B67"),
    on=UnauditedAdapter,
)
class EntrySurvivesRecycling(PrefixIndex):
    """Leaves the entry that leads to a block when the block is handed out."""

    __slots__ = ()

    def forget_taken(self, blocks: Sequence[int]) -> None:
        """These blocks were handed out by the pool."""


@seeded(
    "entry-survives-eviction",
    laws=("eviction-forgets", "reset-forgets"),
    story="An operator evicts a poisoned prompt, and it is still served.",
    like=("B73",),
    on=UnauditedAdapter,
)
class EntrySurvivesEviction(PrefixIndex):
    """Finds the blocks that are evicted on demand, and leaves the entries that lead to them."""

    __slots__ = ()

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Names the blocks that were matchable."""
        return [block for block in blocks if self._runs[block] is not None]


@seeded(
    "eviction-only-counts",
    laws=("eviction-forgets",),
    story="The call that should drop a prefix says that it did.",
)
class EvictionOnlyCounts(PagedCache):
    """Answers with the number of blocks that it would have to drop."""

    def _forget(self, blocks: Iterable[int], reason: RemovalReason) -> int:  # noqa: ARG002 -- it tells nobody
        return sum(self._pool.labels[block] != UNFILED for block in set(blocks))


@seeded(
    "published-block-is-freed-as-clean",
    laws=("eviction-forgets", "no-aliasing", "exclusive-write"),
    story="A request that is preempted in the middle of its prompt leaves an entry that leads to other people's text.",
    like=("B55",),
    on=UnauditedAdapter,
)
class PublishedBlockIsFreedAsClean(BlockPool):
    """A request frees what it allocated, also where the index owns it by now."""

    __slots__ = ()

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each block; unheld ones are clean."""
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.clean.append(block)


@seeded(
    "split-loses-track-of-its-front",
    laws=("eviction-forgets", "events-replay-index", "reset-forgets"),
    story="Once two prompts have parted in the middle of a cached stretch, their common part can no longer be evicted.",
    like=("B47",),
    needs_long=True,
)
class SplitLosesTrackOfItsFront(PrefixIndex):
    """Cuts a stretch of the tree in two, and does not carry over to the front what was noted of its blocks."""

    __slots__ = ()

    def _split(self, run: Run, at: int) -> Run:
        front = super()._split(run, at)
        for filed in front.filed.values():
            for block in filed:
                self._runs[block] = None
        return front


@seeded(
    "eviction-takes-the-block-from-its-holders",
    laws=("evict-only-unheld", "refcount-equals-holders"),
    story="Evicting a prefix that is in use breaks the requests that use it.",
    like=("B55", "B70"),
)
class EvictionTakesTheBlockFromItsHolders(PagedCache):
    """Eviction frees the memory, whoever still reads it."""

    def evict(self, blocks: Iterable[int]) -> int:
        """Makes blocks unmatchable, and frees them."""
        wanted = [block for block in blocks if self._pool.labels[block] != UNFILED and self._pool.refs[block]]
        dropped = super().evict(blocks)
        self._pool.drop(wanted)
        return dropped


@seeded(
    "reset-spares-what-is-held",
    laws=("reset-forgets",),
    story="After an update of the weights, prompts that were running at the time are served from the old ones for ever.",
)
class ResetSparesWhatIsHeld(PagedCache):
    """Forgets what is idle, and says that it has forgotten everything."""

    def reset(self) -> bool:
        """Makes what nobody holds unmatchable."""
        self._forget([block for block, count in enumerate(self._pool.refs) if not count], "requested")
        return True


@seeded(
    "reset-gives-up-halfway",
    laws=("failure-changes-nothing", "reset-forgets"),
    story="A reset that is refused has still thrown half of the cache away.",
)
class ResetGivesUpHalfway(PagedCache):
    """Forgets block after block, until it comes to one that is held."""

    def reset(self) -> bool:
        """Makes blocks unmatchable; False if some are in use."""
        for block, count in enumerate(self._pool.refs):
            if count:
                return False
            self._forget([block], "requested")
        return super().reset()
