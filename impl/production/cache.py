"""The cache: what an engine calls. Tokens and lengths are counted in tokens, blocks by their number in the pool.

Promise to threads: one re-entrant lock guards each cache, every public operation is atomic and sees the others in one order. A block table is returned as a copy.
What the lock cannot do is order two operations of the same sequence by two threads: the engine decides who commits what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from threading import RLock

from kvproof.impl.production.errors import (
    BadConfiguration,
    BlockOutOfRange,
    CacheError,
    DraftsNotAllowed,
    LengthOutOfRange,
    NothingToCommit,
    NothingToExtend,
    NotSwappedOut,
    OutOfBlocks,
    PassNotFinished,
    SequenceExists,
    StepsDisabled,
    SwappedOut,
    TooManyAccepted,
    UncommittedPass,
    UnknownSequence,
    UnknownStep,
    WindowPassed,
)
from kvproof.impl.production.groups import GroupSpec, Layout, layouts_of
from kvproof.impl.production.index import NOWHERE, Descriptor, PrefixIndex
from kvproof.impl.production.pool import BlockPool
from kvproof.impl.production.records import (
    BlockEvent,
    Books,
    CacheStats,
    ExtendGrant,
    HostCopies,
    RemovalReason,
    StepPlan,
    Table,
    TableDelta,
)
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import NEVER, NOT_LAUNCHED, SequenceState, deepest_first

NO_COPIES = ExtendGrant()


class PagedCache:
    """Block ownership for one paged KV cache: prefix reuse, copy-on-write, drafts, forks, sliding windows, device fences, a host tier.

    The life of a sequence: `admit`, then rounds of `extend`, a forward pass, `commit`, `append`; and `release` at any time. Between an `extend` and its
    `commit` nothing else may happen to the sequence but a `release` or a `preempt`.
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
    ) -> None:
        """Raises BadConfiguration.

        block_size: tokens in a block, for groups that name none of their own. All groups draw on the same `num_blocks` blocks, a block serves one group at a time.
        steps: passes are launched by `begin_step` and have finished at `end_step`. Without, a pass runs at its extend and has finished at its commit.
        host_blocks: size of the host tier. events: keep a log for `take_events`, which somebody must then call.
        """
        if host_blocks < 0:
            raise BadConfiguration(f"a host tier of {host_blocks} blocks; 0 is none")
        self._layouts = layouts_of(tuple(groups), block_size)
        self._windowed = tuple(layout for layout in self._layouts if layout.window is not None)
        self._chain_sizes = tuple(dict.fromkeys(layout.size for layout in self._layouts))
        self._hit_step = lcm(*self._chain_sizes)
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex(self._pool, len(self._layouts))
        self._caching = prefix_caching
        self._steps = steps
        self._sequences: dict[int, SequenceState] = {}
        self._unlaunched: dict[int, SequenceState] = {}
        self._open: dict[int, list[int]] = {}
        """For each open step, what it pins besides the tables: sources of its copies, and the blocks of sequences that were released while in it."""
        self._last_step = NOT_LAUNCHED
        self._changed: dict[int, SequenceState] = {}
        self._dropped: list[int] = []
        self._host_blocks = host_blocks
        self._host_free = list(range(host_blocks - 1, -1, -1))
        self._events: list[BlockEvent] | None = [] if events else None
        self._counts: Counter[str] = Counter()
        self._lock = RLock()

    # The life of a sequence.

    def admit(self, seq: int, prompt: Iterable[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """A request is known; it holds nothing yet.

        namespace: what must agree, besides the tokens, before two sequences share a block: tenant, model, adapter, ... A field of None is not set.
        Raises SequenceExists.
        """
        descriptor = tuple(sorted((field, value) for field, value in namespace.items() if value is not None)) if namespace else ()
        with self._lock:
            if seq in self._sequences:
                raise SequenceExists(f"sequence {seq} is known already; release it first or choose another number")
            self._sequences[seq] = SequenceState(seq, prompt, descriptor, len(self._layouts), len(self._chain_sizes))

    def append(self, seq: int, tokens: Iterable[int]) -> None:
        """Tokens become known: sampled, or the next turn of the user. Raises UnknownSequence, UncommittedPass."""
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or state.target:
                raise self._why_not(seq, "append to")
            state.tokens.extend(tokens)

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
            return self._look_up(state).longest()

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Makes room for a pass over the next `count` known tokens, cut to those there are, and then over the drafts.

        The first extend adopts the longest cached prefix, and counts from there. Where the room for that is short it adopts less: the smallest demand decides.
        Raises OutOfBlocks, UnknownSequence, UncommittedPass, SwappedOut, NothingToExtend, DraftsNotAllowed.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(seq, "extend")
            start = state.computed
            end = start + count
            known = len(state.tokens)
            if end > known:
                end = known
            if end <= start or count < 1:
                raise NothingToExtend(f"sequence {seq} knows {known} tokens and has computed {start}: no room for {count} more; append tokens first")
            grant = NO_COPIES
            if start:
                last = end
                if drafts:
                    if end < known:
                        raise DraftsNotAllowed(f"sequence {seq}: {known - end} known tokens would lie behind the drafts; extend to the last known token")
                    last += len(drafts)
                if last > state.room:
                    grant = self._grow(state, last)
                state.drafts = tuple(drafts)
            elif drafts:
                raise DraftsNotAllowed(f"sequence {seq} has computed nothing yet, its first extend takes no drafts; commit the prompt first")
            else:
                grant = self._start(state, count)
                end = min(state.computed + count, known)
            state.target = end
            if self._steps:
                state.step = NOT_LAUNCHED
                self._unlaunched[seq] = state
            return grant

    def commit(self, seq: int, accepted: int = 0) -> None:
        """The pass of the last extend is done: its tokens and its first `accepted` drafts are computed, the other drafts never were.

        Whole blocks become matchable, blocks that only rejected drafts needed are freed, and so are those that left a window.
        Raises UnknownSequence, NothingToCommit, TooManyAccepted, and PassNotFinished before the `end_step` of the pass.
        """
        with self._lock:
            state = self._sequences.get(seq)
            if state is None or not state.target:
                raise self._why_not(seq, "commit")
            if self._steps and (state.step == NOT_LAUNCHED or state.step in self._open):
                raise self._unfinished(state)
            computed = state.target
            if state.drafts or accepted:
                computed += self._accept(state, accepted)
            state.computed = computed
            state.target = 0
            if state.sources:
                self._pool.drop(state.sources)
                state.sources = []
            if computed >= state.milestone:
                self._pass_milestone(state)

    def truncate(self, seq: int, length: int) -> None:
        """The first `length` tokens stay known and computed, the rest is forgotten, and blocks past them are freed.

        Raises UnknownSequence, UncommittedPass, SwappedOut, LengthOutOfRange, and WindowPassed where a group has let go of what the next token would read.
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
                        f"sequence {seq} at {length} tokens would need block {needed} of group {layout.group}, which has left the window;"
                        " preempt the sequence and compute it again"
                    )
            self._cut_back(state, length)

    def fork(self, parent: int, child: int) -> None:
        """`child` knows and has computed what `parent` does, by sharing all its blocks. Nothing is copied before either writes into a shared tail.

        Raises UnknownSequence, UncommittedPass, SwappedOut, SequenceExists. Takes no blocks, so it cannot run out of them.
        """
        with self._lock:
            state = self._sequences.get(parent)
            if state is None or state.target or state.hosts is not None:
                raise self._why_not(parent, "fork")
            if child in self._sequences:
                raise SequenceExists(f"sequence {child} is known already; release it first or choose another number for the fork of {parent}")
            twin = SequenceState(child, state.tokens, state.namespace, len(self._layouts), len(self._chain_sizes))
            twin.chunks = [list(chunks) for chunks in state.chunks]
            if state.computed:
                self._share(state, twin)
            self._sequences[child] = twin

    def release(self, seq: int) -> bool:
        """The sequence is gone: finished, cancelled or failed, at any time. Returns whether it was known; a second release changes nothing.

        A pass that was not launched never runs. Blocks that a launched one uses are handed out again after its `end_step` only.
        """
        with self._lock:
            state = self._sequences.pop(seq, None)
            if state is None:
                return False
            self._let_go(state)
            return True

    def preempt(self, seq: int) -> bool:
        """The sequence lets go of everything, as in `release`, but keeps its tokens and can be extended again. Returns whether it held anything.

        The drafts of an uncommitted extend are dropped, a copy on the host tier too. Of an unknown sequence: changes nothing.
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
                raise StepsDisabled("this cache was built with steps=False: extend and commit are all there is")
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
            dropped = tuple(self._dropped)
            self._dropped = []
            return StepPlan(step, tuple(launched), tuple(copies), dropped, self._splices())

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
        """Makes everything unmatchable, as after a change of weights, and always succeeds.

        Sequences that hold something keep it, in flight or swapped out, and publish nothing any more: their later blocks build on what the reset disowned.
        They publish again once they were preempted; their forks inherit that.
        """
        with self._lock:
            self._index.forget(range(self._pool.num_blocks))
            self._index.clear()
            for state in self._sequences.values():
                if state.computed or state.target:
                    state.publishes = False
                    state.cursors = [NOWHERE] * len(self._chain_sizes)
                    self._set_milestone(state)
            if self._events is not None:
                self._events.append(BlockEvent("cleared"))
            return True

    # The host tier.

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves a sequence to the host tier; returns the copies to issue, or None where the tier is too full or there is nothing to move.

        Its device blocks are free at once, those that are matchable stay so. Raises UnknownSequence, UncommittedPass, SwappedOut.
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
            self._drop_mirror(state)
            self._counts["swaps_out"] += 1
            return HostCopies(seq, copies)

    def swap_in(self, seq: int) -> HostCopies | None:
        """Moves a sequence back, into fresh blocks; returns the copies to issue, or None where the pool is too full. Raises UnknownSequence, NotSwappedOut."""
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
            self._mark_changed(state)
            self._counts["swaps_in"] += 1
            return HostCopies(seq, copies)

    # Looking in.

    def block_table(self, seq: int, group: int = 0) -> Table:
        """A copy of the block table: the block of each logical block, None where a window has passed. Empty if the sequence holds nothing. Raises UnknownSequence."""
        with self._lock:
            return list(self._known(seq).tables[group])

    def tokens(self, seq: int) -> list[int]:
        """A copy of the known tokens. Raises UnknownSequence."""
        with self._lock:
            return list(self._known(seq).tokens)

    def computed(self, seq: int) -> int:
        """How many tokens are computed. Raises UnknownSequence."""
        with self._lock:
            return self._known(seq).computed

    def take_events(self) -> list[BlockEvent]:
        """What became matchable and unmatchable since the last call, in order; replaying it gives the matchable set. Raises CacheError without `events=True`."""
        with self._lock:
            if self._events is None:
                raise CacheError("this cache keeps no events; build it with events=True")
            taken, self._events = self._events, []
            return taken

    def books(self) -> Books:
        """The books on every block. Costs a walk over the pool: for auditors, not for each step."""
        with self._lock:
            pins = self._pins()
            refs = self._pool.refs
            holders = {block: count - pins[block] for block, count in enumerate(refs) if count > pins[block]}
            return Books(
                refcounts=holders,
                free=tuple(self._pool.free_order()),
                cached=frozenset(block for block, label in enumerate(self._pool.labels) if label >= 0),
                retiring=frozenset(block for block in pins if block not in holders),
            )

    def stats(self) -> CacheStats:
        """Numbers for an operator. Costs a walk over the live sequences."""
        with self._lock:
            pool, counts = self._pool, self._counts
            pins = self._pins()
            return CacheStats(
                num_blocks=pool.num_blocks,
                used_blocks=pool.num_blocks - pool.available,
                free_blocks=pool.available,
                cached_blocks=self._index.filed,
                retiring_blocks=sum(pool.refs[block] == count for block, count in pins.items()),
                host_blocks_used=self._host_blocks - len(self._host_free),
                sequences=len(self._sequences),
                fragmentation_tokens=self._fragmentation(),
                lookup_tokens=counts["lookup_tokens"],
                hit_tokens=counts["hit_tokens"],
                evicted_blocks=counts["evicted_blocks"],
                preemptions=counts["preemptions"],
                swaps_out=counts["swaps_out"],
                swaps_in=counts["swaps_in"],
                copied_blocks=counts["copied_blocks"],
            )

    # Room.

    def _look_up(self, state: SequenceState) -> Reuse:
        """What the index has for all but the last known token."""
        index = self._index
        paths = []
        for chain, size in enumerate(self._chain_sizes):
            whole = max(0, len(state.tokens) - 1) // size
            root = index.find_root(size, state.namespace)
            paths.append([] if root == NOWHERE else index.walk(root, state.cut(chain, size, whole)[:whole]))
        blocks = [index.blocks(layout.group, paths[layout.chain]) for layout in self._layouts]
        return Reuse(self._layouts, self._hit_step, paths, blocks)

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        """The first extend: adopts what fits, then makes room. All groups adopt before any takes fresh blocks, which could evict what another was to adopt."""
        known = len(state.tokens)
        reuse = self._look_up(state) if self._caching else None
        adopted = self._affordable(state, reuse, count)
        end = min(adopted + count, known)
        if reuse is not None:
            self._adopt(state, reuse, adopted)
            self._counts["lookup_tokens"] += known
            self._counts["hit_tokens"] += adopted
        fresh = [-(-end // layout.size) - len(state.tables[layout.group]) for layout in self._layouts]
        self._append_blocks(state, fresh)
        state.computed = adopted
        self._set_milestone(state)
        self._mark_changed(state)
        return ExtendGrant(adopted=adopted) if adopted else NO_COPIES

    def _affordable(self, state: SequenceState, reuse: Reuse | None, count: int) -> int:
        """The longest adoption, in tokens, that leaves blocks for the pass. Adopting a block that nobody holds uses it up as well. Raises OutOfBlocks."""
        known = len(state.tokens)
        available = self._pool.available
        length = 0 if reuse is None else reuse.longest()
        end = min(length + count, known)
        if sum(-(-end // layout.size) for layout in self._layouts) <= available:
            return length
        if reuse is not None:
            costs = reuse.costs(self._pool)
            for length in reuse.lengths():
                end = min(length + count, known)
                need = 0
                for layout in self._layouts:
                    first, last = layout.first_needed(length), length // layout.size
                    cost = costs[layout.group]
                    need += cost[last] - cost[first] - (-end // layout.size) - last
                if need <= available:
                    return length
        need = sum(-(-min(count, known) // layout.size) for layout in self._layouts)
        raise self._exhausted(state, need)

    def _adopt(self, state: SequenceState, reuse: Reuse, length: int) -> None:
        for layout in self._layouts:
            group = layout.group
            blocks = reuse.adopted(layout, length)
            self._pool.share(blocks)
            state.passed[group] = first = layout.first_needed(length)
            table: Table = [None] * first
            table += blocks
            state.tables[group] = table
        for chain, size in enumerate(self._chain_sizes):
            state.depths[chain] = depth = length // size
            if depth:
                state.cursors[chain] = node = reuse.paths[chain][depth - 1]
                self._index.hold(node)
            else:
                state.cursors[chain] = self._index.root(size, state.namespace)

    def _grow(self, state: SequenceState, end: int) -> ExtendGrant:
        """Room for a pass up to `end`, on a sequence that has computed something. Raises OutOfBlocks before anything has changed."""
        refs, labels = self._pool.refs, self._pool.labels
        start = state.computed
        fresh = []
        copied = []
        promised = []
        for layout in self._layouts:
            table = state.tables[layout.group]
            fresh.append(-(-end // layout.size) - len(table))
            if start % layout.size:
                tail = table[-1]
                assert tail is not None, "a window never passes the block that is written next"
                if refs[tail] > 1:
                    copied.append(layout.group)
                elif labels[tail] >= 0:
                    promised.append(layout.group)
        need = sum(fresh) + len(copied)
        available = self._pool.available
        if need > available:
            raise self._exhausted(state, need)
        if need + len(promised) <= available:
            copied += promised
        else:
            # Only the index still reads these tails. Breaking its promise costs a later hit, a copy would cost a block that there is not.
            self._forget([block for group in promised if (block := state.tables[group][-1]) is not None], "rewritten")
        copies = self._copy_tails(state, copied) if copied else ()
        self._append_blocks(state, fresh)
        if self._steps:
            self._changed[state.seq] = state
        return ExtendGrant(copies) if copies else NO_COPIES

    def _append_blocks(self, state: SequenceState, fresh: Sequence[int]) -> None:
        """Adds fresh blocks to the table of each group. From here on every tail is the sequence's own, and not published."""
        room = NEVER
        for layout, count in zip(self._layouts, fresh, strict=True):
            group = layout.group
            table = state.tables[group]
            if count > 0:
                if len(table) < state.stale[group]:
                    state.stale[group] = len(table)
                table += self._take(count)
            room = min(room, len(table) * layout.size)
        state.room = room

    def _copy_tails(self, state: SequenceState, groups: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
        """Puts fresh blocks in place of tails; the old ones stay held until the copies have run."""
        copies = []
        for group in groups:
            table = state.tables[group]
            tail = len(table) - 1
            source = table[tail]
            assert source is not None, "a window never passes the block that is written next"
            [destination] = self._take(1)
            table[tail] = destination
            state.stale[group] = min(state.stale[group], tail)
            # The table's hold on the source becomes the copy's.
            state.sources.append(source)
            copies.append((group, source, destination))
        state.copies = tuple(copies)
        self._counts["copied_blocks"] += len(copies)
        return state.copies

    def _take(self, count: int) -> list[int]:
        """Fresh blocks, found to be available; the cached ones among them are evicted."""
        pool = self._pool
        evicted = count - len(pool.clean)
        blocks = pool.take(count)
        if evicted > 0:
            gone = blocks[-evicted:]
            self._index.forget_taken(gone)
            self._counts["evicted_blocks"] += evicted
            if self._events is not None:
                self._events.append(BlockEvent("removed", tuple(gone), reason="evicted"))
        return blocks

    # Commits and the way back.

    def _accept(self, state: SequenceState, accepted: int) -> int:
        """Accepted drafts become known tokens; blocks that only the others needed are freed."""
        drafts = state.drafts
        if not 0 <= accepted <= len(drafts):
            raise TooManyAccepted(f"sequence {state.seq} extended by {len(drafts)} drafts; accept 0 up to that, not {accepted}")
        state.tokens += drafts[:accepted]
        state.drafts = ()
        if accepted < len(drafts):
            self._trim(state, state.target + accepted)
        return accepted

    def _pass_milestone(self, state: SequenceState) -> None:
        """Blocks have filled up or left a window. They are published first: what leaves a window can still serve others."""
        if self._caching and state.publishes:
            self._publish(state)
        if self._windowed:
            self._pass_windows(state)
        self._set_milestone(state)

    def _publish(self, state: SequenceState) -> None:
        for chain, size in enumerate(self._chain_sizes):
            depth, full = state.depths[chain], state.computed // size
            if full == depth:
                continue
            path = self._index.grow(state.cursors[chain], state.cut(chain, size, full)[depth:full])
            state.cursors[chain] = path[-1]
            state.depths[chain] = full
            for layout in self._layouts:
                if layout.chain == chain:
                    stored = self._index.file(layout.group, path, state.tables[layout.group][depth:full])
                    if self._events is not None and stored:
                        self._events.append(BlockEvent("stored", tuple(stored), layout.group))

    def _pass_windows(self, state: SequenceState) -> None:
        gone: list[tuple[int, int, int]] = []
        for layout in self._windowed:
            group, table = layout.group, state.tables[layout.group]
            passed, needed = state.passed[group], layout.first_needed(state.computed)
            if needed > passed:
                gone += _positioned(table[passed:needed], layout, passed)
                table[passed:needed] = [None] * (needed - passed)
                state.passed[group] = needed
                state.stale[group] = min(state.stale[group], passed)
        self._drop_positioned(state, gone)

    def _set_milestone(self, state: SequenceState) -> None:
        milestone = NEVER
        if self._caching and state.publishes:
            for depth, size in zip(state.depths, self._chain_sizes, strict=True):
                milestone = min(milestone, (depth + 1) * size)
        for layout in self._windowed:
            assert layout.window is not None, "the groups in _windowed have one"
            milestone = min(milestone, (state.passed[layout.group] + 1) * layout.size + layout.window - 1)
        state.milestone = milestone

    def _cut_back(self, state: SequenceState, length: int) -> None:
        """Truncates tokens, tables and prefix chains to a length that was found possible."""
        del state.tokens[length:]
        for chain, size in enumerate(self._chain_sizes):
            whole = length // size
            del state.chunks[chain][whole:]
            if state.cursors[chain] != NOWHERE and state.depths[chain] > whole:
                state.cursors[chain] = self._index.climb(state.cursors[chain], state.depths[chain] - whole)
            state.depths[chain] = min(state.depths[chain], whole)
        state.computed = length
        self._trim(state, length)
        # The new tail may be published, or shared: the next extend has to look.
        state.room = length
        self._set_milestone(state)

    def _trim(self, state: SequenceState, length: int) -> None:
        """Frees the blocks past `length` tokens."""
        gone: list[tuple[int, int, int]] = []
        room = NEVER
        for layout in self._layouts:
            group, table = layout.group, state.tables[layout.group]
            keep = -(-length // layout.size)
            if len(table) > keep:
                gone += _positioned(table[keep:], layout, keep)
                del table[keep:]
                state.passed[group] = min(state.passed[group], keep)
                state.stale[group] = min(state.stale[group], keep)
            room = min(room, keep * layout.size)
        state.room = room
        self._drop_positioned(state, gone)

    def _drop_positioned(self, state: SequenceState, gone: list[tuple[int, int, int]]) -> None:
        """Drops blocks that a table no longer lists, those of later positions first."""
        if gone:
            gone.sort(reverse=True)
            self._pool.drop([block for _, _, block in gone])
            if self._steps:
                self._changed[state.seq] = state

    def _share(self, state: SequenceState, twin: SequenceState) -> None:
        for group, table in enumerate(state.tables):
            self._pool.share([block for block in table if block is not None])
            twin.tables[group] = list(table)
        for cursor in state.cursors:
            if cursor != NOWHERE:
                self._index.hold(cursor)
        twin.cursors = list(state.cursors)
        twin.depths = list(state.depths)
        twin.passed = list(state.passed)
        twin.publishes = state.publishes
        twin.milestone = state.milestone
        # Both have to look before they write: the tail is shared now.
        twin.computed = twin.room = state.room = state.computed
        self._mark_changed(twin)

    def _let_go(self, state: SequenceState) -> None:
        """Lets go of everything. What the device still uses is handed to the step in flight, which frees it at its end."""
        blocks = deepest_first(state.tables, self._layouts)
        pinned = None
        if state.target and self._steps:
            if state.step == NOT_LAUNCHED:
                del self._unlaunched[state.seq]
            else:
                pinned = self._open.get(state.step)
        if state.sources:
            # Not launched, so these copies never run. A tail lies deeper than the blocks of its table that anyone can match.
            blocks = state.sources + blocks
        if pinned is None:
            self._pool.drop(blocks)
        else:
            pinned += blocks
        if state.hosts is not None:
            self._host_free += [host for table in state.hosts for host in table if host is not None]
            state.hosts = None
        for cursor in state.cursors:
            if cursor != NOWHERE:
                self._index.leave(cursor)
        self._drop_mirror(state)

    def _forget(self, blocks: Iterable[int], reason: RemovalReason) -> int:
        gone = self._index.forget(blocks)
        if gone and self._events is not None:
            self._events.append(BlockEvent("removed", tuple(gone), reason=reason))
        return len(gone)

    # The device's block tables.

    def _mark_changed(self, state: SequenceState) -> None:
        if self._steps:
            state.stale = [0] * len(self._layouts)
            self._changed[state.seq] = state

    def _drop_mirror(self, state: SequenceState) -> None:
        self._changed.pop(state.seq, None)
        if state.mirrored:
            state.mirrored = False
            self._dropped.append(state.seq)
        state.stale = [0] * len(self._layouts)

    def _splices(self) -> tuple[TableDelta, ...]:
        deltas = []
        for state in self._changed.values():
            state.mirrored = True
            for group, start in enumerate(state.stale):
                if start != NEVER:
                    deltas.append(TableDelta(state.seq, group, start, tuple(state.tables[group][start:])))
                    state.stale[group] = NEVER
        self._changed = {}
        return tuple(deltas)

    # Books.

    def _pins(self) -> Counter[int]:
        """How often device work that is launched, or will be, pins each block besides the tables."""
        pins: Counter[int] = Counter()
        for pinned in self._open.values():
            pins.update(pinned)
        for state in self._sequences.values():
            pins.update(state.sources)
        return pins

    def _fragmentation(self) -> int:
        room: dict[int, int] = {}
        for state in self._sequences.values():
            for layout in self._layouts:
                first = state.computed // layout.size
                for index, block in enumerate(state.tables[layout.group][first:], first):
                    if block is not None:
                        empty = layout.size - max(0, state.computed - index * layout.size)
                        room[block] = min(empty, room.get(block, empty))
        return sum(room.values())

    # Errors.

    def _known(self, seq: int) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None:
            raise UnknownSequence(f"sequence {seq} is not known; admit it first")
        return state

    def _why_not(self, seq: int, verb: str) -> CacheError:
        """The error for an operation that the state of the sequence rules out."""
        state = self._sequences.get(seq)
        if state is None:
            return UnknownSequence(f"cannot {verb} sequence {seq}: it was never admitted, or is gone; admit it first")
        if state.hosts is not None:
            return SwappedOut(f"cannot {verb} sequence {seq}: it is on the host tier; swap it in first")
        if state.target:
            return UncommittedPass(f"cannot {verb} sequence {seq}: its last extend is not committed; commit or release it first")
        return NothingToCommit(f"cannot {verb} sequence {seq}: it has no uncommitted extend; extend it first")

    def _unfinished(self, state: SequenceState) -> PassNotFinished:
        if state.step == NOT_LAUNCHED:
            return PassNotFinished(f"sequence {state.seq}: its pass was not launched; call begin_step and end_step before commit")
        return PassNotFinished(f"sequence {state.seq}: its pass is in step {state.step}, which is open; call end_step({state.step}) before commit")

    def _exhausted(self, state: SequenceState, need: int) -> OutOfBlocks:
        return OutOfBlocks(
            f"sequence {state.seq} needs {need} blocks and {self._pool.available} of {self._pool.num_blocks} can be handed out; preempt a sequence, or end a step"
        )


def _positioned(blocks: Sequence[int | None], layout: Layout, first: int) -> list[tuple[int, int, int]]:
    """(end position, group, block) of the blocks of a table from entry `first` on."""
    return [((first + offset + 1) * layout.size, layout.group, block) for offset, block in enumerate(blocks) if block is not None]


def _pairs(tables: Sequence[Table], hosts: Sequence[Table]) -> tuple[tuple[int, int, int], ...]:
    """(group, device block, host block) of every block that both sides list."""
    return tuple(
        (group, block, host)
        for group, (table, other) in enumerate(zip(tables, hosts, strict=True))
        for block, host in zip(table, other, strict=True)
        if block is not None and host is not None
    )


__all__ = ["Descriptor", "PagedCache"]
