"""The cache: what an engine calls. Lengths are counted in tokens, blocks go by their number in the pool.

Promise to threads: one re-entrant lock guards each cache, so every public operation is atomic and all threads see them in one order. Tables
are returned as copies. What no lock can do is order two operations on one sequence: who commits what is for the engine to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock

from kvproof.impl.production import books
from kvproof.impl.production.decoding import NO_DRAFTS, NONE_ACCEPTED, Decoding
from kvproof.impl.production.errors import (
    BlockOutOfRange,
    CacheError,
    DraftsNotAllowed,
    LengthOutOfRange,
    NothingToExtend,
    NotSwappedOut,
    SequenceExists,
    StepsDisabled,
    UnknownStep,
    WindowPassed,
)
from kvproof.impl.production.groups import GroupSpec
from kvproof.impl.production.passes import NO_COPIES
from kvproof.impl.production.records import BlockEvent, Books, CacheStats, ExtendGrant, HostCopies, StepPlan, Table
from kvproof.impl.production.sequence import NOT_LAUNCHED, SequenceState, deepest_first
from kvproof.impl.production.tokens import extended, pack


class PagedCache(Decoding):
    """Block ownership for one paged KV cache: prefix reuse, copy-on-write, drafts, forks, sliding windows, device fences, a host tier.

    The life of a sequence: `admit`, then rounds of `extend`, a forward pass, `commit` and `append`, and `release` at any time. Between an
    `extend` and its `commit` nothing else may happen to the sequence but a `release` or a `preempt`. An operation that raises has changed
    nothing.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Sequence[GroupSpec] = (GroupSpec(),),
        prefix_caching: bool = True,
        steps: bool = True,
        host_blocks: int = 0,
        events: bool = False,
        locked: bool = True,
    ) -> None:
        """Raises BadConfiguration.

        block_size: tokens in a block, for groups that name no size of their own. All groups share the blocks; a block serves one at a time.
        steps: passes are launched by `begin_step` and done at `end_step`. Without, a pass runs at its extend and is done at its commit.
        host_blocks: size of the host tier. events: keep a log for `take_events`, which somebody must then call.
        locked: False for an engine that calls from one thread only; decoding is a quarter faster then.
        """
        super().__init__(
            num_blocks,
            block_size,
            groups=groups,
            prefix_caching=prefix_caching,
            steps=steps,
            host_blocks=host_blocks,
            events=events,
        )
        lock = RLock() if locked else None
        self._lock: AbstractContextManager[object] = lock or nullcontext()
        # `with` costs twice as much as the two calls, which shows where an operation takes less than a microsecond.
        self._enter = lock.acquire if lock else _nothing
        self._leave = lock.release if lock else _nothing

    # The life of a sequence.

    def admit(self, seq: int, prompt: Iterable[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known; it holds nothing yet.

        namespace: what must agree, besides the tokens, before two sequences share a block: tenant, model, adapter, ... None is not set.
        Raises SequenceExists, TokenOutOfRange.
        """
        descriptor = tuple(sorted((field, value) for field, value in namespace.items() if value is not None)) if namespace else ()
        tokens = pack(prompt)
        with self._lock:
            if seq in self._sequences:
                raise SequenceExists(f"sequence {seq} is known already; release it first or choose another number")
            self._sequences[seq] = SequenceState(seq, tokens, descriptor, len(self._layouts), len(self._chain_sizes))

    def append(self, seq: int, tokens: Iterable[int]) -> None:
        """Tokens become known: sampled, or the next turn of the user. Raises UnknownSequence, UncommittedPass, TokenOutOfRange."""
        self._enter()
        try:
            state = self._sequences.get(seq)
            if state is None or state.target:
                raise self._why_not(seq, "append to")
            packed = extended(state.tokens, tokens)
            if packed is not state.tokens:
                self._widen(state, packed)
        finally:
            self._leave()

    def match(self, seq: int) -> int:
        """How many leading tokens the first extend would adopt now, at most all but the last. Holds nothing: the extend looks again.

        0 for a sequence that holds something already. Raises UnknownSequence, SwappedOut.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or state.hosts is not None:
                raise self._why_not(seq, "match")
            if state.computed or state.target or not self._caching:
                return 0
            reuse = self._look_up(state)
            return 0 if reuse is None else self._longest(reuse)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Makes room for a pass over the next `count` known tokens, cut to those there are, and then over the drafts.

        The first extend adopts the longest cached prefix and counts from there. Where there is no room for that, it adopts less: it fails
        only if nothing would fit. Raises OutOfBlocks, UnknownSequence, UncommittedPass, SwappedOut, NothingToExtend, DraftsNotAllowed.
        """
        self._enter()
        try:
            state = self._sequences.get(seq)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(seq, "extend")
            start = state.computed
            end = start + count
            known = len(state.tokens)
            if end > known:
                end = known
            if end <= start or (drafts and not (start and end == known)):
                raise _bad_extend(state, count)
            if start:
                last = end + len(drafts) if drafts else end
                grant = self._grow(state, last) if last > state.room else NO_COPIES
                if drafts:
                    state.drafts = tuple(drafts)
            else:
                grant = self._start(state, count)
                end = min(state.computed + count, known)
            state.target = end
            if self._steps:
                state.step = NOT_LAUNCHED
                self._unlaunched[seq] = state
            return grant
        finally:
            self._leave()

    def commit(self, seq: int, accepted: int = 0) -> None:
        """The pass of the last extend is done: its tokens and its first `accepted` drafts are computed, the other drafts never were.

        Whole blocks become matchable, blocks that only rejected drafts needed are freed, and so are those that left a window.
        Raises UnknownSequence, NothingToCommit, TooManyAccepted, and PassNotFinished before the `end_step` of the pass.
        """
        self._enter()
        try:
            state = self._sequences.get(seq)
            if state is None or not state.target:
                raise self._why_not(seq, "commit")
            if self._steps and (state.step == NOT_LAUNCHED or state.step in self._open):
                raise self._unfinished(state)
            self._settle(state, accepted)
            state.target = state.calm = 0
        finally:
            self._leave()

    def decode(
        self,
        seqs: Sequence[int],
        sampled: Sequence[int],
        *,
        accepted: Mapping[int, int] = NONE_ACCEPTED,
        drafts: Mapping[int, Sequence[int]] = NO_DRAFTS,
    ) -> tuple[int, ...]:
        """One step of a batch: `commit`, `append` and `extend` by one token, and by drafts, for all its sequences at once.

        The pass of each is done, its first `accepted` drafts (0 where none are named) are right, the token that it sampled becomes known, and
        room is made for a pass over that and over the next drafts. All are committed before any is given room, so what one lets go of serves
        another. Room is given in the order of `seqs`; from the first on that finds none, nobody is given a block, and those that would need
        one are returned: they are committed and appended to, with no pass to come. Preempt a sequence, and `extend` them.

        Raises BadBatch, UnknownSequence, NothingToCommit, StillPrefilling, PassNotFinished, TooManyAccepted and TokenOutOfRange, and has
        changed none of the sequences then.
        """
        self._enter()
        try:
            return self._decode(seqs, sampled, accepted, drafts)
        finally:
            self._leave()

    def truncate(self, seq: int, length: int) -> None:
        """The first `length` tokens stay known and computed, the rest is forgotten, and blocks past them are freed.

        Raises UnknownSequence, UncommittedPass, SwappedOut, LengthOutOfRange, and WindowPassed where a block that the next token reads has
        left its window.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(seq, "truncate")
            if not 1 <= length <= state.computed:
                raise LengthOutOfRange(f"sequence {seq} has computed {state.computed} tokens; truncate it to 1 up to that, not to {length}")
            for layout in self._windowed:
                needed = layout.first_needed(length)
                if needed < state.passed[layout.group] and needed * layout.size < length:
                    raise WindowPassed(
                        f"sequence {seq} at {length} tokens needs block {needed} of group {layout.group}, which has left the window;"
                        " preempt the sequence and compute it again"
                    )
            self._cut_back(state, length)

    def fork(self, parent: int, child: int) -> None:
        """`child` knows and has computed what `parent` does, by sharing all its blocks.

        A shared tail is copied when either first writes into it. A fork takes no blocks, so it cannot run out of them.
        Raises UnknownSequence, UncommittedPass, SwappedOut, SequenceExists.
        """
        with self._lock:
            state = self._sequences.get(parent)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(parent, "fork")
            if child in self._sequences:
                raise SequenceExists(f"sequence {child} is known already; release it first or fork {parent} to another number")
            twin = SequenceState(child, state.tokens[:], state.namespace, len(self._layouts), len(self._chain_sizes))
            if state.computed:
                self._share(state, twin)
            self._sequences[child] = twin

    def release(self, seq: int) -> bool:
        """The sequence is gone: finished, cancelled or failed, at any time. Returns whether it was known; a second release changes nothing.

        A pass that was not launched never runs. Blocks that a launched one uses are handed out again only after its `end_step`.
        """
        with self._lock:
            state = self._sequences.pop(seq, None)
            if state is None:
                return False
            self._let_go(state)
            return True

    def preempt(self, seq: int) -> bool:
        """Like `release`, but the sequence keeps its tokens and can be extended again. Returns whether it held anything.

        The drafts of an uncommitted extend are dropped, and so is a copy on the host tier. An unknown sequence changes nothing.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or not (state.computed or state.target):
                return False
            self._let_go(state)
            state.hold_nothing(len(self._layouts), len(self._chain_sizes))
            self._counts["preemptions"] += 1
            return True

    # Device steps.

    def begin_step(self) -> StepPlan:
        """Launches the pass of every extend that was neither launched nor released. Several steps may be open. Raises StepsDisabled."""
        with self._lock:
            if not self._steps:
                raise StepsDisabled("this cache was built with steps=False: its passes need no launch")
            self._last_step = step = self._last_step + 1
            pinned: list[int] = []
            copies: list[tuple[int, int, int]] = []
            launched = self._unlaunched
            for state in launched.values():
                state.step = step
                if state.sources:
                    pinned += state.sources
                    copies += state.copies
                    state.sources = []
            self._open[step] = pinned
            self._unlaunched = {}
            dropped, tables = self._log.take()
            return StepPlan(step, tuple(launched), tuple(copies), dropped, tables)

    def end_step(self, step: int) -> None:
        """The device work of an open step has finished: what only that work pinned is free. Raises UnknownStep."""
        with self._lock:
            pinned = self._open.pop(step, None)
            if pinned is None:
                raise UnknownStep(f"step {step} is not open; open steps: {sorted(self._open) or 'none'}")
            self._pool.drop(pinned)

    # What is matchable.

    def evict(self, blocks: Iterable[int]) -> int:
        """Makes blocks unmatchable without touching their holders; returns how many were matchable. Raises BlockOutOfRange."""
        with self._lock:
            wanted = list(blocks)
            for block in wanted:
                if not 0 <= block < self._pool.num_blocks:
                    raise BlockOutOfRange(f"block {block} is not in the pool; its blocks are 0 to {self._pool.num_blocks - 1}")
            return self._forget(wanted, "requested")

    def reset(self) -> bool:
        """Makes everything unmatchable, as after a change of weights. Always succeeds.

        Sequences that hold something keep it, in flight and on the host tier too, but publish nothing any more: their later blocks build on
        what the reset disowned. They publish again once preempted; their forks inherit this.
        """
        with self._lock:
            self._index.forget(range(self._pool.num_blocks))
            self._index.clear()
            for state in self._sequences.values():
                if state.computed or state.target:
                    state.cursors = [None] * len(self._chain_sizes)
                    self._stop_publishing(state)
            if self._events is not None:
                self._events.append(BlockEvent("cleared"))
            return True

    # The host tier.

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves a sequence to the host tier; returns the copies to issue, or None where the tier is too full or there is nothing to move.

        Its device blocks are free at once, and those that were matchable stay so. Raises UnknownSequence, UncommittedPass, SwappedOut.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(seq, "swap out")
            blocks = deepest_first(state.tables, self._layouts)
            if not state.computed or len(blocks) > len(self._host_free):
                return None
            take = self._host_free.pop
            state.hosts = [[None if block is None else take() for block in table] for table in state.tables]
            copies = _pairs(state.tables, state.hosts)
            self._pool.drop(blocks)
            state.tables = [[] for _ in self._layouts]
            self._log.dropped(state)
            self._counts["swaps_out"] += 1
            return HostCopies(seq, copies)

    def swap_in(self, seq: int) -> HostCopies | None:
        """Moves a sequence back, into fresh blocks; returns the copies to issue, or None where the pool is too full.

        Raises UnknownSequence, NotSwappedOut.
        """
        with self._lock:
            state = self._known(seq)
            hosts = state.hosts
            if hosts is None:
                raise NotSwappedOut(f"sequence {seq} is not on the host tier; swap it out first")
            wanted = [host for table in hosts for host in table if host is not None]
            if len(wanted) > self._pool.available:
                return None
            fresh = iter(self._take(len(wanted)))
            state.tables = [[None if host is None else next(fresh) for host in table] for table in hosts]
            copies = _pairs(state.tables, hosts)
            self._host_free += wanted
            state.hosts = None
            state.room = state.computed
            self._renewed(state)
            self._counts["swaps_in"] += 1
            return HostCopies(seq, copies)

    # Looking in.

    def block_table(self, seq: int, group: int = 0) -> Table:
        """A copy of a block table, None where a window has passed; empty if the sequence holds nothing on the device.

        Raises UnknownSequence.
        """
        self._enter()
        try:
            state = self._sequences.get(seq) or self._known(seq)
            return state.tables[group][:]
        finally:
            self._leave()

    def tokens(self, seq: int) -> list[int]:
        """The known tokens. Raises UnknownSequence."""
        with self._lock:
            return self._known(seq).tokens.tolist()

    def computed(self, seq: int) -> int:
        """How many tokens are computed. Raises UnknownSequence."""
        with self._lock:
            return self._known(seq).computed

    def take_events(self) -> list[BlockEvent]:
        """What became matchable and unmatchable since the last call, in order: replayed, it gives the matchable set.

        Raises CacheError on a cache that was built without events.
        """
        with self._lock:
            if self._events is None:
                raise CacheError("this cache keeps no events; build it with events=True")
            taken, self._events = self._events, []
            return taken

    def books(self) -> Books:
        """The books on every block. Costs a walk over the pool, if anything has moved: for auditors, not for each step. Do not change them: others get the same."""
        with self._lock:
            return self._auditor.books(books.pins(self._open.values(), self._sequences.values()))

    def stats(self) -> CacheStats:
        """Numbers for an operator. Costs a walk over the block tables of the live sequences."""
        with self._lock:
            pool, counts = self._pool, self._counts
            pinned = books.pins(self._open.values(), self._sequences.values())
            return CacheStats(
                num_blocks=pool.num_blocks,
                used_blocks=pool.num_blocks - pool.available,
                free_blocks=pool.available,
                cached_blocks=self._index.filed,
                retiring_blocks=sum(pool.refs[block] == count for block, count in pinned.items()),
                host_blocks_used=self._host_blocks - len(self._host_free),
                sequences=len(self._sequences),
                fragmentation_tokens=books.fragmentation(self._sequences.values(), self._layouts),
                lookup_tokens=counts["lookup_tokens"],
                hit_tokens=counts["hit_tokens"],
                evicted_blocks=counts["evicted_blocks"],
                preemptions=counts["preemptions"],
                swaps_out=counts["swaps_out"],
                swaps_in=counts["swaps_in"],
                copied_blocks=counts["copied_blocks"],
            )


def _bad_extend(state: SequenceState, count: int) -> CacheError:
    known, computed = len(state.tokens), state.computed
    if count < 1:
        return NothingToExtend(f"cannot extend sequence {state.seq} by {count} tokens; ask for one at least")
    if computed == known:
        return NothingToExtend(f"cannot extend sequence {state.seq}: all its {known} tokens are computed; append tokens first")
    if not computed:
        return DraftsNotAllowed(f"the first extend of sequence {state.seq} takes no drafts; commit its prompt first")
    behind = known - computed - count
    return DraftsNotAllowed(f"sequence {state.seq} has {behind} known tokens behind the drafts; extend to the last known token")


def _pairs(tables: Sequence[Table], hosts: Sequence[Table]) -> tuple[tuple[int, int, int], ...]:
    """(group, device block, host block) of every block that both sides list."""
    return tuple(
        (group, block, host)
        for group, (table, other) in enumerate(zip(tables, hosts, strict=True))
        for block, host in zip(table, other, strict=True)
        if block is not None and host is not None
    )


def _nothing() -> None:
    """Stands in for a lock."""
