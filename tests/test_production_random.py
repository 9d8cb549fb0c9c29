"""The production cache under random operations, judged by a simulated device and by its own books.

Not the suite's lockstep driver: a second, smaller judge, so that a fault in one does not hide a fault in the other.
"""

import random
from array import array
from collections import Counter
from copy import deepcopy
from math import lcm

import pytest

from kvproof.impl.production import GroupSpec, PagedCache, WorkerMirror
from kvproof.impl.production.errors import (
    BlockOutOfRange,
    DraftsNotAllowed,
    LengthOutOfRange,
    NothingToCommit,
    NothingToExtend,
    NotSwappedOut,
    OutOfBlocks,
    PassNotFinished,
    SequenceExists,
    SwappedOut,
    TooManyAccepted,
    UncommittedPass,
    UnknownSequence,
    UnknownStep,
    WindowPassed,
)

MOST_LIVE = 6
"""More sequences only get into each other's way."""

WIDE = 2**40
"""A token that is filed in another tree, with all that comes before and after it."""

COUNTED = ("lookup_tokens", "hit_tokens", "evicted_blocks", "preemptions", "swaps_out", "swaps_in", "copied_blocks")
"""What an operator sees grow."""

FULL = GroupSpec()
CONFIGURATIONS = {
    "steps": {"groups": (FULL,), "steps": True},
    "synchronous": {"groups": (FULL,), "steps": False},
    "hybrid": {"groups": (FULL, GroupSpec("sliding_window", window=5)), "steps": True},
    "hybrid-synchronous": {"groups": (GroupSpec("sliding_window", window=3), FULL), "steps": False},
    "unequal-blocks": {"groups": (GroupSpec(block_size=4), GroupSpec("sliding_window", block_size=2, window=4)), "steps": True},
    "window-alone": {"groups": (GroupSpec("sliding_window", window=4),), "steps": True},
    "window-of-one": {"groups": (GroupSpec("sliding_window", window=1), FULL), "steps": True},
    "two-windows": {"groups": (GroupSpec("sliding_window", window=5), GroupSpec("sliding_window", block_size=2, window=2)), "steps": True},
    "two-full": {"groups": (FULL, GroupSpec(block_size=3)), "steps": True},
    "uncached": {"groups": (FULL,), "steps": True, "prefix_caching": False},
    "wide-tokens": {"groups": (FULL, GroupSpec("sliding_window", window=3)), "steps": True, "wide": 0.25},
}


class Sequence:
    def __init__(self, tokens, namespace):
        self.tokens = list(tokens)
        self.namespace = namespace
        self.computed = 0
        self.target = 0
        self.drafts = ()
        self.copies = ()
        self.step = None
        self.swapped = False
        self.on_host = None
        self.publishes = True


class Harness:
    """Drives one cache; `slots` holds what a forward pass would have left in each slot: namespace and the token prefix that ends there."""

    def __init__(self, seed, *, groups, steps, prefix_caching=True, wide=0.0):
        self.random = random.Random(seed)
        self.block_size = self.random.choice([1, 2, 2, 3, 4])
        self.blocks = self.random.randint(2, 20) * len(groups)
        self.groups = groups
        self.sizes = [group.block_size or self.block_size for group in groups]
        self.steps = steps
        self.wide = wide
        self.caching = prefix_caching
        self.host_blocks = self.random.choice([0, 4, 64])
        self.cache = PagedCache(
            self.blocks,
            self.block_size,
            groups=groups,
            steps=steps,
            prefix_caching=prefix_caching,
            host_blocks=self.host_blocks,
            events=True,
            locked=False,  # a lock cannot be copied, and `decode` is judged beside a copy
        )
        self.mirror = WorkerMirror()
        self.live = {}
        self.gone = []
        self.said = []
        self.slots = {}
        self.open = {}
        self.matchable = {}
        """block -> the group for which it is matchable."""
        self.stored = set()
        """Blocks that became matchable since the index was looked at."""
        self.filled = []
        """(group, what it shows at its end) of the blocks that a commit has filled, of a sequence that publishes, since anything could be evicted."""
        self.next = 0
        self.reached = Counter()
        self.counted = Counter()

    # The device.

    def reads(self, seq):
        """(slot, content) of everything that the next token of a sequence may read, in every group."""
        sequence = self.live[seq]
        tables = [self.cache.block_table(seq, group) for group in range(len(self.groups))]
        return list(self._expected(tables, sequence.tokens, sequence.namespace, sequence.computed))

    def _expected(self, tables, tokens, namespace, computed, first_query=None):
        for group, spec in enumerate(self.groups):
            query = computed if first_query is None else first_query
            first = 0 if spec.window is None else max(0, query - spec.window + 1)
            for position in range(first, computed):
                block = tables[group][position // self.sizes[group]]
                assert block is not None, f"group {group}: position {position} of {computed} was dropped"
                yield (block, position % self.sizes[group]), (namespace, tuple(tokens[: position + 1]))

    def run_copies(self, copies):
        destinations = [destination for _, _, destination in copies]
        assert len(set(destinations)) == len(destinations)
        assert not {source for _, source, _ in copies} & set(destinations)
        fresh = {}
        for group, source, destination in copies:
            for offset in range(self.sizes[group]):
                fresh[destination, offset] = self.slots.get((source, offset))
        self.slots.update(fresh)

    def run_writes(self, seq):
        sequence = self.live[seq]
        tokens = sequence.tokens[: sequence.target] + list(sequence.drafts)
        labels = self.cache.books().cached
        for group in range(len(self.groups)):
            table = self.cache.block_table(seq, group)
            for position in range(sequence.computed, len(tokens)):
                block = table[position // self.sizes[group]]
                assert block not in labels, f"sequence {seq} writes into block {block}, which is matchable"
                holders = [other for other in self.live for g in range(len(self.groups)) if block in self.cache.block_table(other, g)]
                assert holders == [seq], f"sequence {seq} writes into block {block}, which {holders} hold"
                self.slots[block, position % self.sizes[group]] = (sequence.namespace, tuple(tokens[: position + 1]))
        tables = [self.cache.block_table(seq, group) for group in range(len(self.groups))]
        return list(self._expected(tables, tokens, sequence.namespace, len(tokens), sequence.computed))

    def check_reads(self, reads):
        for slot, content in reads:
            assert self.slots.get(slot) == content, f"slot {slot} shows {self.slots.get(slot)}, not {content}"

    # The operations.

    def admit(self):
        if len(self.live) >= MOST_LIVE:
            return
        prompt = self.words(1, 14)
        if self.said and self.random.random() < 0.6:
            # Something that was said before, and perhaps a little more: that is what a prefix cache is for.
            prompt = self.random.choice(self.said)[: self.random.randint(1, 20)] + prompt[: self.random.randint(0, 4)] or prompt
            if self.random.random() < 0.2:
                prompt = prompt[: self.random.randint(1, 4)] + prompt  # a prompt that says its beginning again
        self.said.append(prompt)
        namespace = self.random.choice([{}, {}, {"tenant": "a"}, {"model": "a"}])
        seq, self.next = self.next, self.next + 1
        self.live[seq] = Sequence(prompt, tuple(namespace.items()))
        self.lend(prompt, lambda lent: self.cache.admit(seq, lent, namespace))

    def lend(self, tokens, call):
        """The list of a caller, who goes on to use it for something else."""
        lent = list(tokens)
        try:
            return call(lent)
        finally:
            lent[:] = [7, 7]

    def words(self, least, most):
        """Tokens of a small alphabet, and where the configuration says so now and then one that does not fit in 32 bits."""
        tokens = [self.random.randint(0, 1) for _ in range(self.random.randint(least, most))]
        if self.random.random() < self.wide:
            tokens[-1] = WIDE
        return tokens

    def pick(self, condition):
        choices = [seq for seq, sequence in self.live.items() if condition(sequence)]
        return self.random.choice(choices) if choices else None

    def idle(self):
        return self.pick(lambda s: not s.target and not s.swapped)

    def match(self):
        seq = self.pick(lambda s: not s.swapped)
        if seq is not None:
            before = self.cache.books()
            hit = self.cache.match(seq)
            assert 0 <= hit < len(self.live[seq].tokens)
            assert self.cache.books() == before
            self.reached["hit"] += hit > 0
            if self.live[seq].computed or self.live[seq].target:
                assert hit == 0
            elif not self.wide:
                assert hit == self.hits(self.live[seq])[0][0]

    def hits(self, sequence):
        """(length, the blocks that an adoption of it lists) of every hit, the longest first; read off the slots themselves."""
        shown = {(group, self.slots.get((block, self.sizes[group] - 1))): block for block, group in self.matchable.items()}
        found = [(0, [])]
        for length in range(lcm(*self.sizes), len(sequence.tokens), lcm(*self.sizes)):
            wanted = [
                shown.get((group, (sequence.namespace, tuple(sequence.tokens[:end]))))
                for group, size in enumerate(self.sizes)
                for end in range(size * (1 + self.first_needed(group, length)), length + 1, size)
            ]
            if None not in wanted:
                found.insert(0, (length, wanted))
        return found

    def first_needed(self, group, computed):
        """Index of the first block that the token at position `computed` reads."""
        window = self.groups[group].window
        return 0 if window is None else max(0, computed - window + 1) // self.sizes[group]

    def adopted(self, sequence, count):
        """The longest hit that leaves room for the pass; None where there is none."""
        free = self.cache.books().free
        for length, blocks in self.hits(sequence):
            end = min(length + count, len(sequence.tokens))
            need = sum(-(-end // size) for size in self.sizes)
            need -= sum(length // size for size in self.sizes) - sum(block in free for block in blocks)
            if need <= len(free):
                return length
        return None

    def turn(self):
        """A sequence that has computed something goes through whole rounds, which single operations seldom make."""
        seq = self.pick(lambda s: not s.target and not s.swapped and s.computed)
        for _ in range(self.random.randint(1, 3)):
            if seq is None or len(self.live[seq].tokens) >= 30:
                return
            if self.live[seq].computed == len(self.live[seq].tokens):
                self.append(seq)
            self.extend(seq)
            self.begin()
            while self.live[seq].step in self.open:
                self.end()
            if not self.live[seq].target or not self.done(self.live[seq]):
                return  # out of blocks, or too many steps are open
            self.commit(seq)

    def done(self, sequence):
        return not self.steps or (sequence.step is not None and sequence.step not in self.open)

    def extend(self, seq=None):
        if seq is None:
            seq = self.pick(lambda s: not s.target and not s.swapped and s.computed < len(s.tokens))
        if seq is None:
            return
        sequence = self.live[seq]
        rest = len(sequence.tokens) - sequence.computed
        count = rest if sequence.computed and self.random.random() < 0.6 else self.random.randint(1, 1 + rest)
        drafts = ()
        if sequence.computed and count >= rest and self.random.random() < 0.7:
            drafts = tuple(self.words(1, 4))
        self.filled.clear()
        before = self.state()
        hit = self.cache.match(seq)
        expected = self.adopted(sequence, count) if not sequence.computed and not self.wide else None
        try:
            grant = self.lend(drafts, lambda lent: self.cache.extend(seq, count, lent))
        except OutOfBlocks:
            self.reached["out"] += 1
            assert self.state() == before
            self.check_exhaustion_was_real(seq, count, len(drafts))
            return
        assert grant.adopted <= hit
        if expected is not None:
            assert grant.adopted == expected
        self.reached["adopted"] += grant.adopted > 0
        self.reached["copied"] += len(grant.copies)
        self.counted["copied_blocks"] += len(grant.copies)
        assert all(self.cache.block_table(seq, group)[sequence.computed // self.sizes[group]] == block for group, _, block in grant.copies)
        if self.caching and not sequence.computed:
            self.counted["lookup_tokens"] += len(sequence.tokens)
            self.counted["hit_tokens"] += grant.adopted
        sequence.computed += grant.adopted
        sequence.target = min(sequence.computed + count, len(sequence.tokens))
        sequence.drafts = drafts
        sequence.copies = grant.copies
        sequence.step = None
        for group, size in enumerate(self.sizes):
            assert len(self.cache.block_table(seq, group)) == -(-(sequence.target + len(drafts)) // size), "the table is not tight"
        if not self.steps:
            self.run_copies(grant.copies)
            self.check_reads(self.run_writes(seq))

    def check_exhaustion_was_real(self, seq, count, drafts):
        sequence = self.live[seq]
        end = min(sequence.computed + count, len(sequence.tokens)) + drafts
        books = self.cache.books()
        need = 0
        for group, size in enumerate(self.sizes):
            table = self.cache.block_table(seq, group)
            need += -(-end // size) - len(table)
            if sequence.computed % size:
                block = table[-1]
                alone = self.cache._pool.refs[block] == 1
                need += not alone
        assert need > len(books.free)

    def commit(self, seq=None):
        if seq is None:
            seq = self.pick(lambda s: s.target and self.done(s))
        if seq is None:
            return
        sequence = self.live[seq]
        if self.random.random() < 0.2:
            before = self.state()
            with pytest.raises(TooManyAccepted):
                self.cache.commit(seq, self.random.choice([-1, len(sequence.drafts) + 1]))
            assert self.state() == before
        accepted = self.random.choice([0, len(sequence.drafts), self.random.randint(0, len(sequence.drafts))])
        self.reached["rejected"] += accepted < len(sequence.drafts)
        self.cache.commit(seq, accepted)
        sequence.tokens += sequence.drafts[:accepted]
        start, sequence.computed = sequence.computed, sequence.target + accepted
        if self.caching and not self.wide and sequence.publishes:
            for group, size in enumerate(self.sizes):
                ends = range(size * (start // size + 1), sequence.computed + 1, size)
                self.filled += [(group, (sequence.namespace, tuple(sequence.tokens[:end]))) for end in ends]
        sequence.target = 0
        sequence.drafts = ()

    def decode(self):
        """A batch: what it does, and that a copy of the cache is the same after the single operations."""
        ready = [seq for seq, s in self.live.items() if s.target and s.target == len(s.tokens) and self.done(s)]
        if not ready:
            return
        seqs = self.random.sample(ready, self.random.randint(1, len(ready)))
        sampled = [self.random.randint(0, 1) for _ in seqs]
        accepted = {seq: self.random.randint(0, len(self.live[seq].drafts)) for seq in seqs if self.random.random() < 0.7}
        drafts = {seq: [self.random.randint(0, 1)] * self.random.randint(0, 6) for seq in seqs if self.random.random() < 0.4}
        twin = deepcopy(self.cache)
        lent = {seq: list(ahead) for seq, ahead in drafts.items()}
        short = self.cache.decode(seqs, sampled, accepted=accepted, drafts=lent)
        for ahead in lent.values():
            ahead[:] = [7, 7]
        assert list(short) == one_by_one(twin, seqs, sampled, accepted, drafts, len(self.groups))
        assert self.shown(self.cache) == self.shown(twin)
        self.reached["decoded together"] += len(seqs) - len(short) > 1
        self.reached["short"] += bool(short)
        for seq, token in zip(seqs, sampled, strict=True):
            sequence = self.live[seq]
            kept = sequence.drafts[: accepted.get(seq, 0)]
            self.reached["rejected"] += len(kept) < len(sequence.drafts)
            sequence.computed = sequence.target + len(kept)
            sequence.tokens += [*kept, token]
            granted = seq not in short
            sequence.target = len(sequence.tokens) if granted else 0
            sequence.drafts = tuple(drafts.get(seq, ())) if granted else ()
            sequence.copies = ()
            sequence.step = None
        if not self.steps:
            for reads in [self.run_writes(seq) for seq in seqs if seq not in short]:
                self.check_reads(reads)

    def shown(self, cache):
        """All that a cache says of itself; its events stay where they are."""
        tables = {seq: [cache.block_table(seq, group) for group in range(len(self.groups))] for seq in self.live}
        known = {seq: (cache.tokens(seq), cache.computed(seq)) for seq in self.live}
        events = [(event.kind, event.group, event.reason, block) for event in cache._events for block in event.blocks]
        return tables, known, events, cache.books(), cache.stats()

    def append(self, seq=None):
        if seq is None:
            seq = self.pick(lambda s: not s.target)
        if seq is not None and len(self.live[seq].tokens) < 30:
            tokens = self.words(1, 3)
            self.lend(tokens, lambda lent: self.cache.append(seq, lent))
            self.live[seq].tokens += tokens
            self.said.append(list(self.live[seq].tokens))

    def truncate(self):
        seq = self.pick(lambda s: not s.target and not s.swapped and s.computed)
        if seq is None:
            return
        sequence = self.live[seq]
        length = self.random.randint(1, sequence.computed)
        before = self.state()
        try:
            self.cache.truncate(seq, length)
        except WindowPassed:
            self.reached["refused"] += 1
            assert self.state() == before
            assert any(self.is_gone(seq, group, length) for group in range(len(self.groups)))
            return
        del sequence.tokens[length:]
        sequence.computed = length

    def is_gone(self, seq, group, length):
        """Whether a block has left the window that a token after `length` others reads."""
        table, size = self.cache.block_table(seq, group), self.sizes[group]
        return any(table[position // size] is None for position in range(size * self.first_needed(group, length), length))

    def fork(self):
        parent = self.idle()
        if parent is None or len(self.live) >= MOST_LIVE:
            return
        child, self.next = self.next, self.next + 1
        self.cache.fork(parent, child)
        self.live[child] = twin = Sequence(self.live[parent].tokens, self.live[parent].namespace)
        twin.computed = self.live[parent].computed
        twin.publishes = self.live[parent].publishes

    def release(self):
        seq = self.pick(lambda s: True)
        if self.gone and self.random.random() < 0.2:
            assert self.cache.release(self.random.choice(self.gone)) is False
            assert self.cache.preempt(self.random.choice(self.gone)) is False
        if seq is None:
            return
        sequence = self.live[seq]
        if self.random.random() < 0.5:
            assert self.cache.release(seq) is True
            self.gone.append(seq)
            del self.live[seq]
        else:
            held = bool(sequence.computed or sequence.target)
            assert self.cache.preempt(seq) is held
            self.counted["preemptions"] += held
            fresh = self.live[seq] = Sequence(sequence.tokens, sequence.namespace)
            assert self.cache.tokens(seq) == fresh.tokens

    def begin(self):
        if not self.steps or len(self.open) > 2:
            return
        plan = self.cache.begin_step()
        launched = [seq for seq, sequence in self.live.items() if sequence.target and sequence.step is None]
        assert sorted(plan.sequences) == sorted(launched)
        assert sorted(plan.copies) == sorted(copy for seq in launched for copy in self.live[seq].copies)
        assert len(set(plan.dropped)) == len(plan.dropped)
        assert all(self.mirror.table(seq, group) for seq in plan.dropped for group in range(len(self.groups)))
        self.mirror.apply(plan)
        for seq in [*self.live, *self.gone]:
            for group in range(len(self.groups)):
                expected = self.cache.block_table(seq, group) if seq in self.live else []
                assert self.mirror.table(seq, group) == expected
        self.run_copies(plan.copies)
        reads = []
        for seq in plan.sequences:
            self.live[seq].step = plan.step
            reads += self.run_writes(seq)
        self.open[plan.step] = reads

    def end(self):
        if not self.open:
            return
        step = self.random.choice([min(self.open), *self.open])
        self.check_reads(self.open.pop(step))
        self.cache.end_step(step)

    def evict(self):
        blocks = [block for block in range(self.blocks) if self.random.random() < 0.3]
        cached = self.cache.books().cached
        assert self.cache.evict(blocks) == len(cached & set(blocks))

    def reset(self):
        assert self.cache.reset()
        assert not self.cache.books().cached
        for sequence in self.live.values():
            sequence.publishes &= not (sequence.computed or sequence.target)

    def swap_out(self):
        seq = self.idle()
        if seq is None:
            return
        before = self.state()
        sequence = self.live[seq]
        listed = [block for group in range(len(self.groups)) for block in self.cache.block_table(seq, group) if block is not None]
        free = self.host_blocks - self.cache.stats().host_blocks_used
        plan = self.cache.swap_out(seq)
        if plan is None:
            assert self.state() == before
            assert not sequence.computed or len(listed) > free
            return
        assert (plan.seq, [block for _, block, _ in plan.blocks]) == (seq, listed)
        # Whole blocks move: a truncation may later read what the window hid at this moment.
        sequence.on_host = {
            (host, offset): self.slots.get((block, offset)) for group, block, host in plan.blocks for offset in range(self.sizes[group])
        }
        sequence.swapped = True
        assert not any(self.cache.block_table(seq, group) for group in range(len(self.groups)))
        self.reached["swapped"] += 1
        self.counted["swaps_out"] += 1

    def swap_in(self):
        seq = self.pick(lambda s: s.swapped)
        if seq is None:
            return
        before = self.state()
        sequence = self.live[seq]
        wanted, free = len({host for host, _ in sequence.on_host}), self.cache.stats().free_blocks
        plan = self.cache.swap_in(seq)
        if plan is None:
            assert self.state() == before
            assert wanted > free
            return
        assert plan.seq == seq
        for group, block, host in plan.blocks:
            for offset in range(self.sizes[group]):
                self.slots[block, offset] = sequence.on_host.get((host, offset))
        sequence.swapped = False
        self.reached["swapped back"] += 1
        self.counted["swaps_in"] += 1

    def wrong(self):
        """A call that the state of its sequence or step rules out: it raises what it should, and changes nothing."""
        calls = [
            (UnknownStep, self.cache.end_step, 10**6),
            (BlockOutOfRange, self.cache.evict, [0, self.blocks]),
            (UnknownSequence, self.cache.fork, 10**6, 10**6 + 1),
        ]
        calls += [(UnknownSequence, call, 10**6, *rest) for call, *rest in self.calls()]
        for seq, sequence in self.live.items():
            calls.append((SequenceExists, self.cache.admit, seq, [1]))
            if not sequence.swapped:
                calls.append((NotSwappedOut, self.cache.swap_in, seq))
            if sequence.swapped:
                calls += [
                    (SwappedOut, call, seq, *rest)
                    for call, *rest in self.calls()
                    if call not in (self.cache.commit, self.cache.swap_in, self.cache.append)
                ]
            elif sequence.target:
                calls.append((UncommittedPass, self.cache.extend, seq, 1))
                calls += [
                    (UncommittedPass, call, seq, *rest)
                    for call, *rest in self.calls()
                    if call in (self.cache.append, self.cache.truncate, self.cache.swap_out)
                ]
                if self.steps and (sequence.step is None or sequence.step in self.open):
                    calls.append((PassNotFinished, self.cache.commit, seq))
                else:
                    calls.append((TooManyAccepted, self.cache.commit, seq, len(sequence.drafts) + 1))
            else:
                known = len(sequence.tokens)
                calls.append((NothingToCommit, self.cache.commit, seq))
                calls.append((SequenceExists, self.cache.fork, seq, seq))
                calls.append((LengthOutOfRange, self.cache.truncate, seq, self.random.choice([0, sequence.computed + 1])))
                if sequence.computed == known:
                    calls.append((NothingToExtend, self.cache.extend, seq, 1))
                else:
                    calls.append((NothingToExtend, self.cache.extend, seq, 0))
                    if not sequence.computed:
                        calls.append((DraftsNotAllowed, self.cache.extend, seq, known, (1,)))
                    elif sequence.computed + 1 < known:
                        calls.append((DraftsNotAllowed, self.cache.extend, seq, known - sequence.computed - 1, (1,)))
        error, call, *arguments = self.random.choice(calls)
        before = self.state()
        with pytest.raises(error) as raised:
            call(*arguments)
        assert self.state() == before
        told = str(raised.value)
        assert f" {self.blocks if call == self.cache.evict else arguments[0]}" in told, "the message names whose it is"
        assert ";" in told, "the message names the mend"

    def calls(self):
        """Every call that concerns one sequence, with what else it takes."""
        cache = self.cache
        return [
            (cache.append, [1]),
            (cache.match,),
            (cache.extend, 1),
            (cache.commit,),
            (cache.truncate, 1),
            (cache.swap_out,),
            (cache.swap_in,),
        ]

    # The invariants.

    def state(self):
        tables = {seq: [self.cache.block_table(seq, g) for g in range(len(self.groups))] for seq in self.live}
        return tables, self.cache.books(), {seq: self.cache.computed(seq) for seq in self.live}

    def check(self):
        books = self.cache.books()
        listed = Counter()
        for seq, sequence in self.live.items():
            assert self.cache.computed(seq) == sequence.computed
            assert self.cache.tokens(seq) == sequence.tokens
            for group in range(len(self.groups)):
                listed.update(block for block in self.cache.block_table(seq, group) if block is not None)
        assert books.refcounts == dict(listed)
        assert len(set(books.free)) == len(books.free)
        places = Counter([*books.free, *listed, *books.retiring])
        assert places == Counter(range(self.blocks)), "free, held and retiring blocks do not partition the pool"
        for event in self.cache.take_events():
            if event.kind == "cleared":
                self.matchable.clear()
            elif event.kind == "stored":
                assert not self.matchable.keys() & set(event.blocks)
                self.stored.update(event.blocks)
                self.matchable.update(dict.fromkeys(event.blocks, event.group))
            else:
                for block in event.blocks:
                    del self.matchable[block]
                self.counted["evicted_blocks"] += len(event.blocks) * (event.reason == "evicted")
        assert books.cached == self.matchable.keys()
        shown = {(group, self.slots.get((block, self.sizes[group] - 1))) for block, group in self.matchable.items()}
        assert shown.issuperset(self.filled), "a block was filled, and is not matchable"
        self.filled.clear()
        stats = self.cache.stats()
        assert stats.used_blocks + stats.free_blocks == self.blocks
        assert stats.cached_blocks == len(books.cached)
        assert stats.retiring_blocks == len(books.retiring)
        assert {name: getattr(stats, name) for name in COUNTED} == {name: self.counted[name] for name in COUNTED}
        assert stats.sequences == len(self.live)
        assert stats.fragmentation_tokens == self.unused()
        # Clean blocks are handed out before anything is evicted.
        order = [block in books.cached for block in books.free]
        assert order == sorted(order)
        for seq, sequence in self.live.items():
            if not sequence.swapped and not sequence.target:
                self.check_reads(self.reads(seq))
                for group in range(len(self.groups)):
                    passed = self.cache.block_table(seq, group)[: self.first_needed(group, sequence.computed)]
                    assert not any(block is not None for block in passed), "a block has left its window and is held"

    def unused(self):
        """How many slots of held blocks no holder has computed."""
        held, used = set(), set()
        for seq, sequence in self.live.items():
            for group, size in enumerate(self.sizes):
                for index, block in enumerate(self.cache.block_table(seq, group)):
                    if block is not None:
                        held |= {(block, offset) for offset in range(size)}
                        used |= {(block, offset) for offset in range(size) if index * size + offset < sequence.computed}
        return len(held - used)

    def check_index(self):
        """What the prefix index keeps for itself: counts, places and cursors agree with what is filed and with who stands where."""
        index, pool, states = self.cache._index, self.cache._pool, self.cache._sequences.values()
        cursors = Counter(run for state in states for run in state.cursors if run is not None)
        runs = [(run, None) for run in index._roots.values()]
        assert set(cursors) <= {run for run, _ in self.walk(runs)}
        filed = {}
        said = {None: b""}
        for run, parent in self.walk(runs):
            assert run.parent is parent
            said[run] = said[parent] + run.data
            assert run.cursors == cursors[run]
            if not (run.children or run.cursors):
                mostly_filed = 2 * run.live > len(run.filed) * (run.end - run.start)
                assert mostly_filed or any(column[-1] >= 0 for column in run.filed.values()), "memory for what is forgotten"
            assert len(run.data) == (run.end - run.start) * run.width
            assert all(len(column) == run.end - run.start for column in run.filed.values())
            places = {block: (at, group) for group, column in run.filed.items() for at, block in enumerate(column, run.start) if block >= 0}
            assert run.live == len(places)
            filed |= {block: (run, at * len(self.groups) + group) for block, (at, group) in places.items()}
        assert filed == {block: (run, pool.labels[block]) for block, run in enumerate(index._runs) if run is not None}
        assert {block for block, label in enumerate(pool.labels) if label >= 0} == set(filed)
        for block in self.stored & set(filed):
            self.check_content(block, *filed[block], said)
        self.stored.clear()
        assert index.filed == len(filed)
        assert pool.idle == sum(not pool.refs[block] for block in filed)
        assert self.cache._unlaunched.keys() == {seq for seq, held in self.live.items() if held.target and held.step is None and self.steps}

    def check_content(self, block, run, label, said):
        """A block is filed under the tokens that it shows, from the first on."""
        at, group = divmod(label, len(self.groups))
        root = run
        while root.parent is not None:
            root = root.parent
        _, width, namespace = self.cache._index._root_keys[root]
        tokens = array("I" if width == 4 else "q", bytes(said[run][: (at + 1) * run.width]))
        assert self.slots[block, self.sizes[group] - 1] == (namespace, tuple(tokens))

    def walk(self, runs):
        """Every run, with the one that it continues."""
        waiting = list(runs)
        for run, parent in waiting:
            yield run, parent
            for first, child in run.children.items():
                assert child.first == first
                assert child.start == run.end
                waiting.append((child, run))

    def drain(self):
        for seq in list(self.live):
            self.cache.release(seq)
        for step in list(self.open):
            self.cache.end_step(step)
        self.live.clear()
        books = self.cache.books()
        assert sorted(books.free) == list(range(self.blocks))
        assert not books.refcounts
        assert not books.retiring
        self.cache.evict(range(self.blocks))
        index = self.cache._index
        assert not index._roots
        assert self.cache.stats().host_blocks_used == 0


OPERATIONS = {
    "admit": 3,
    "match": 3,
    "extend": 12,
    "commit": 6,
    "append": 5,
    "decode": 12,
    "truncate": 2,
    "fork": 2,
    "release": 3,
    "begin": 8,
    "end": 8,
    "evict": 1,
    "reset": 0.3,
    "swap_out": 2,
    "swap_in": 5,
    "wrong": 4,
    "turn": 5,
}


def one_by_one(cache, seqs, sampled, accepted, drafts, groups):
    """What `decode` promises to be the same as, by single operations; returns the sequences that are short."""
    for seq, token in zip(seqs, sampled, strict=True):
        cache.commit(seq, accepted.get(seq, 0))
        cache.append(seq, [token])
    short = []
    for seq in seqs:
        before = [cache.block_table(seq, group) for group in range(groups)]
        trial = deepcopy(cache)
        try:
            trial.extend(seq, 1, drafts.get(seq, ()))
        except OutOfBlocks:
            short.append(seq)
            continue
        if short and [trial.block_table(seq, group) for group in range(groups)] != before:
            short.append(seq)
            continue
        cache.extend(seq, 1, drafts.get(seq, ()))
    return short


def run(seed, operations, configuration):
    harness = Harness(seed, **CONFIGURATIONS[configuration])
    names, weights = list(OPERATIONS), list(OPERATIONS.values())
    for name in harness.random.choices(names, weights, k=operations):
        getattr(harness, name)()
        harness.check()
        harness.check_index()
    harness.drain()
    return harness.reached


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_random_operations_keep_every_promise(configuration):
    reached = Counter()
    for seed in range(100):
        reached += run(seed, 140, configuration)
    expected = {"out", "copied", "rejected", "swapped", "swapped back", "decoded together"}
    if CONFIGURATIONS[configuration]["groups"] == (FULL,):
        expected |= {"short"}
    if configuration != "uncached":
        expected |= {"hit", "adopted"}
    if any(group.window for group in CONFIGURATIONS[configuration]["groups"]):
        expected |= {"refused"}
    assert expected <= set(reached), f"never reached: {expected - set(reached)}"
