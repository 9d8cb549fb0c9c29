"""The operations of one random program, each made for the spec as it stands.

A maker looks at the spec's state, so that nearly every operation is enabled, and may plan what should follow. Which of them a program uses, and how often, is drawn once for
the program; in which order they come is up to the `swarm`.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import deque
from collections.abc import Callable, Set
from itertools import accumulate
from typing import Final

from kvproof.fuzz.draws import Draws
from kvproof.fuzz.prompts import Prompts
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    RELEASE_REASONS,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Tokens,
    Truncate,
)
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence, listed_blocks

MAX_LIVE: Final = 6
"""Sequences alive at once: ownership bugs need two or three; more makes programs long and pools crowded for no new situation."""

WARM_SHARE: Final = 1 / 3
"""Share of programs that begin with a sequence that is computed whole, so that the next ones find something to share."""

TWIN_SHARE: Final = 1 / 8
"""Share of newcomers that ask for what is being computed and cannot be found yet, so that it is computed twice."""

STRANGERS: Final = (7, 8, 9)
"""Tokens of newcomers that should share nothing."""

MAX_SQUEEZE_TOKENS: Final = 128
"""Longest prompt of a newcomer that should take what is free; a pool that takes more is not worth squeezing."""

STALE_SHARE: Final = 1 / 2
"""Share of the look-ups which find what nobody holds that go stale: others publish in the same blocks before it is adopted."""

SHORT_READER_SHARE: Final = 1 / 4
"""Share of forks that are released in their first step, while their parent lets go of what both held."""

SPARSE_SHARE: Final = 1 / 12
"""Share of programs whose sequences do not have consecutive numbers."""

STRIDES: Final = (16, 64, 1000)
"""What lies between the numbers of their sequences."""

MANY_SHARE: Final = 1 / 10
"""Share of passes whose drafts go over several blocks, and of evictions that name all there is."""

FULL_POOL_SHARE: Final = 1 / 4
"""Share of roll-backs into a block that others count on, after which others take the whole pool before the sequence goes on."""


class Operations(Draws):
    """Makes the operations of one program. A maker gives None where the state has no use for its kind of operation."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        super().__init__(rng, block_size)
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.next_seq = 0
        self._stride = self._any(STRIDES) if self._random() < SPARSE_SHARE else 1
        """From the number of one sequence to that of the next: a cache may take numbers for slots of a table, or mix up those that are equal but for their last bits."""
        self.plan: deque[Op] = deque()
        """The operations that should follow, if nothing comes between."""
        self.squeeze_next = False
        """Whether a newcomer should take what is free once the plan is done."""
        self.after_squeeze: tuple[Op, ...] = ()
        """What should come once a newcomer has taken all that is left of the pool."""
        self._whole_passes = self._any((0, 0.3, 0.7))
        self.prompts = Prompts(rng, capabilities, num_blocks=num_blocks, block_size=block_size)
        self._live = self._any((2, 3, 4, MAX_LIVE))
        self._makers, self._odds = self._draw_weights()
        self.draft_rate = self._any((0, 0.5, 0.9)) if capabilities.drafts else 0.0
        self._step_rate = self._any((0.15, 0.4, 0.7))
        self._warm = self._random() < WARM_SHARE
        """Whether a first sequence is computed before anything else happens."""

    def at_random(self, spec: Spec) -> Op | None:
        """One by the weights of this program."""
        return self._makers[bisect(self._odds, self._random())](self, spec)

    def _draw_weights(self) -> tuple[list[Callable[[Operations, Spec], Op | None]], list[float]]:
        """What makes operations, and where in the fractions from 0 to 1 the share of each but the last one ends."""
        caps = self.capabilities
        weights: dict[Callable[[Operations, Spec], Op | None], float] = {
            Operations.admit: self._any((2, 4, 6)),
            Operations._advance: self._any((8, 14, 20)),
            Operations._append: self._any((2, 5, 10)),
            Operations._release: self._any((0.5, 2, 4)),
        }
        optional = {
            Operations._match: (caps.prefix, 4),
            Operations._truncate: (caps.truncate, 4),
            Operations._fork: (caps.fork, 4),
            Operations.evict: (caps.evict, 1.5),
            Operations.reset: (caps.reset, 0.7),
            Operations._swap: (caps.swap, 5),
            Operations._release_and_squeeze: (caps.prefix, 1.5 if "lru" in caps.policy else 0.7),
            Operations._release_again: (True, 0.7),
        }
        for maker, (claimed, weight) in optional.items():
            if claimed:
                weights[maker] = weight * self._any((0, 0.3, 1, 1, 2))
        chosen = [maker for maker, weight in weights.items() if weight]
        total = sum(weights.values())
        return chosen, [so_far / total for so_far in accumulate(weights[maker] for maker in chosen[:-1])]

    def admit(self, spec: Spec) -> Op | None:
        """A newcomer, where not enough are alive."""
        if len(spec.live) >= self._live and self._random() < 0.95:
            return None
        if self.capabilities.prefix and self._random() < TWIN_SHARE and (twin := self._twin(spec)) is not None:
            return twin
        op = Admit(self.new_seq(), *self.prompts.newcomer(spec))
        if self._warm:
            self._warm = False
            self.plan += [Extend(op.seq, len(op.prompt)), *self.device_work(), Commit(op.seq)]
        return op

    def _twin(self, spec: Spec) -> Op | None:
        """A newcomer computes again what is being computed and cannot be found yet, and something of its own behind it; soon its duplicate is used for something else."""
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and not s.computed and len(s.known) > self.block_size])
        if sequence is None:
            return None
        seq = self.new_seq()
        prompt = self.prompts.twin(sequence)
        self.next_come(Extend(seq, len(prompt)), *self.device_work(), Commit(sequence.seq), Commit(seq))
        if self._random() < 0.5:
            self.plan.append(Release(seq))
            self.squeeze_next = True
        return Admit(seq, prompt, sequence.namespace)

    def _advance(self, spec: Spec) -> Op | None:
        """Whatever moves a sequence towards its next token."""
        if self.capabilities.steps and self._random() < self._step_rate:
            step = self._step(spec)
            if step is not None:
                return step
        if self._random() < 0.5:
            return self._commit(spec)
        op = self.extend(spec)
        if isinstance(op, Extend) and self._random() < self._whole_passes:
            # The usual course of a pass, so that most of a program's length goes to what is unusual.
            self.next_come(BeginStep(), EndStep(), Commit(op.seq, self._between(0, len(op.drafts))))
        return op

    def _step(self, spec: Spec) -> Op | None:
        waiting = any(not out.launched for out in spec.passes)
        if waiting and self._random() < 0.7:
            return BeginStep()
        if spec.steps:
            return EndStep()
        return BeginStep() if self._random() < 0.1 else None

    def _match(self, spec: Spec) -> Op | None:
        sequence = None
        if self._random() < 0.3:
            sequence = self._pick([s for s in spec.live.values() if s.computed == 0 and s.seq in spec.hits])
        if sequence is None:
            sequence = self._pick([s for s in spec.live.values() if s.computed == 0])
        if sequence is None:
            return None
        if self._random() < STALE_SHARE:
            self._plan_reuse(spec, sequence)
        return Match(sequence.seq)

    def _plan_reuse(self, spec: Spec, sequence: Sequence) -> None:
        """If `sequence` finds what nobody holds: a newcomer takes all room and publishes in it, and only then the hit is adopted, by it or by a fork."""
        free = spec.usable - len(taken := self.taken(spec))
        tokens = free // len(spec.groups) * self.block_size
        found = spec.memory.blocks_showing([spec.content(sequence, 0, 0)]) if sequence.out is None else ()
        if set(found) <= taken or not 1 <= tokens <= MAX_SQUEEZE_TOKENS:
            return
        seq = self.new_seq()
        heir = self.new_seq() if self.capabilities.fork and self._random() < 0.2 else sequence.seq
        self.next_come(
            *((Fork(sequence.seq, heir),) if heir != sequence.seq else ()),
            Admit(seq, self.strangers(tokens), self.prompts.namespace()),
            Extend(seq, tokens),
            *self.device_work(),
            Commit(seq),
            Release(seq),
            Extend(heir, len(sequence.known)),
        )

    def taken(self, spec: Spec) -> Set[int]:
        """The blocks that someone holds, or the device still uses."""
        return spec.owners.keys() | spec.fenced().keys()

    def strangers(self, count: int) -> Tokens:
        """A prompt that should share nothing."""
        return tuple([self._any(STRANGERS) for _ in range(count)])

    def extend(self, spec: Spec) -> Op | None:
        """Room for more tokens of a sequence, often with drafts."""
        sequence = self._pick([s for s in spec.live.values() if s.out is None and s.computed < len(s.known)])
        if sequence is None:
            return None
        left = len(sequence.known) - sequence.computed
        habit = self._random()
        if habit < 0.5:
            count = left
        elif habit < 0.8:
            count = self.block_size - sequence.computed % self.block_size + self._any((-1, 0, 0, 1))
        else:
            count = self._between(1, left)
        # A request for more than is known is cut to it.
        count = max(1, min(count, left)) if self._random() < 0.95 else left + self._between(1, self.block_size)
        drafts: Tokens = ()
        if sequence.computed and count >= left and self._random() < self.draft_rate:
            drafts = self.prompts.continuation(sequence, self.draft_count())
            self.prompts.say((*sequence.known, *drafts))
        op = Extend(sequence.seq, count, drafts)
        if spec.exhausted(op):
            return self._without_room(spec, op)
        return op

    def _without_room(self, spec: Spec, op: Extend) -> Op | None:
        """Where the pool has no room for `op`, someone mostly makes way, as in an engine. What fails must change nothing, not even what another sequence could match."""
        if self.capabilities.prefix and self._may_share(spec, spec.live[op.seq]) and self._random() < 0.3:
            # It may fit by what it shares: a cache that has promised that must not ask for it again.
            self.next_come(op)
            return Match(op.seq)
        if self._random() < 0.8:
            return self._release(spec)
        waiting = self._pick([s for s in spec.live.values() if s.computed == 0 and s.seq != op.seq])
        if self.capabilities.prefix and waiting is not None and self._random() < 0.5:
            self.next_come(op, Match(waiting.seq))
            return Match(waiting.seq)
        self._plan_after_failure(spec, spec.live[op.seq])
        return op

    def _plan_after_failure(self, spec: Spec, sequence: Sequence) -> None:
        """The one whose extend finds no room goes on in another way; or, where a policy is to be seen, a newcomer that needs less shows what goes first."""
        if "lru" in self.capabilities.policy and self._random() < 0.5:
            self.squeeze_next = True
            self.next_come()
            return
        ways: list[tuple[Op, ...]] = [(Release(sequence.seq, "preempt"), Extend(sequence.seq, 1))]
        if sequence.computed and self.capabilities.fork:
            child = self.new_seq()
            other = self._pick([s for s in spec.live.values() if s is not sequence])
            room = () if other is None else (Release(other.seq, self._any(RELEASE_REASONS)),)
            ways.append((Fork(sequence.seq, child), *room, Extend(child, 1), *self.device_work()))
        if sequence.computed and self.capabilities.truncate:
            length = self._length(sequence.computed)
            ways.append((Truncate(sequence.seq, length), *self._going_on(sequence, 1)))
        if sequence.computed and self.capabilities.swap:
            ways.append((SwapOut(sequence.seq), SwapIn(sequence.seq)))
        self.next_come(*self._any(ways))

    def _may_share(self, spec: Spec, sequence: Sequence) -> bool:
        """Whether someone holds what a sequence begins with, that has computed nothing yet."""
        return sequence.computed == 0 and not spec.owners.keys().isdisjoint(spec.memory.blocks_showing([spec.content(sequence, 0, 0)]))

    def _commit(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and s.out.finished])
        if sequence is None or sequence.out is None:
            return None
        self.prompts.doubt_blocks(spec, sequence)
        drafts = sequence.out.drafts
        accepted = self._any((0, len(drafts), self._between(0, len(drafts)), self._between(0, len(drafts))))
        if drafts:
            self.prompts.doubt_commit(sequence, drafts, accepted)
        return Commit(sequence.seq, accepted)

    def _append(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is None and (s.computed == len(s.known) or self._random() < 0.1)])
        if sequence is None:
            return None
        tokens = self.prompts.continuation(sequence, self._any((1, 1, 1, 2, self.block_size, self.block_size + 1)))
        self.prompts.say((*sequence.known, *tokens))
        self.prompts.learn(sequence, tokens)
        if sequence.computed == len(sequence.known) and self._random() < 0.5:
            self._plan_pass(sequence, len(tokens), (*sequence.known, *tokens))
        return Append(sequence.seq, tokens)

    def _plan_pass(self, sequence: Sequence, count: int, known: Tokens) -> None:
        """A pass over all that `sequence` will know then, often with drafts."""
        drafts: Tokens = ()
        if sequence.computed and self._random() < self.draft_rate:
            drafts = self.prompts.tokens(self.draft_count())
            self.prompts.say((*known, *drafts))
        self.next_come(Extend(sequence.seq, count, drafts))

    def draft_count(self) -> int:
        """How many drafts a pass has: mostly within a block or into the next, sometimes over several."""
        return self._between(1, (3 if self._random() < MANY_SHARE else 1) * self.block_size + 1)

    def _truncate(self, spec: Spec) -> Op | None:
        cut = self._cut_of_others(spec) if self._random() < 0.35 else None
        within = cut is not None and cut[1] % self.block_size != 0
        if cut is None:
            sequence = self._pick([s for s in spec.live.values() if s.computed])
            if sequence is None:
                return None
            cut = sequence, self._length(sequence.computed)
        sequence, length = cut
        if within and self._random() < FULL_POOL_SHARE:
            # Nothing will be left that the tail could be copied to.
            self.after_squeeze, self.squeeze_next = self._going_on(sequence, 1), True
            self.next_come()
        elif self._random() < 0.5:
            # Often past what it had before.
            self.next_come(*self._going_on(sequence, self._any((1, self.block_size, sequence.computed - length + self.block_size))))
        if self._random() < 0.5:
            self.prompts.doubt_truncation(sequence)
        return Truncate(sequence.seq, length)

    def _cut_of_others(self, spec: Spec) -> tuple[Sequence, int] | None:
        """A sequence, and a length for it that ends within a block which others count on: they hold it, the device reads it, or the index has it."""
        reasons = [blocks for blocks in (spec.seen.held_twice, spec.fenced().keys(), spec.seen.books.cached) if blocks]
        counted_on: Set[int] = self._any(reasons) if reasons else frozenset()
        places = [
            (sequence, index * size, size)
            for sequence in spec.live.values()
            if sequence.computed and sequence.out is None
            for (_, size, _), table in zip(spec.groups, spec.tables(sequence), strict=True)
            for index, block in enumerate(table[: -(-sequence.computed // size)])
            if block in counted_on
        ]
        if not places:
            return None
        sequence, first, size = self._any(places)
        length = max(1, min(first + self._between(0, size - 1), sequence.computed))
        return (sequence, length) if _reaches(spec, sequence, length) else None

    def _going_on(self, sequence: Sequence, count: int) -> tuple[Op, ...]:
        """How a sequence goes on by `count` tokens after a truncation."""
        tokens = self.prompts.tokens(count)
        self.prompts.learn(sequence, tokens)
        return Append(sequence.seq, tokens), Extend(sequence.seq, count), *self.device_work(), Commit(sequence.seq)

    def _fork(self, spec: Spec) -> Op | None:
        if len(spec.live) > MAX_LIVE:
            return None
        parent = self._pick([s for s in spec.live.values() if s.out is None and (s.computed or self._random() < 0.1)])
        if parent is None:
            return None
        child = self.new_seq()
        if self.capabilities.steps and parent.computed and self._random() < SHORT_READER_SHARE:
            self._plan_short_reader(spec, parent, child)
        return Fork(parent.seq, child)

    def _plan_short_reader(self, spec: Spec, parent: Sequence, child: int) -> None:
        """The fork is gone in its first step, and the device reads for it what in the end nobody holds: its parent lets go, or has made a copy to write in."""
        count = len(parent.known) + 1 - parent.computed
        reads = (Append(child, self.prompts.tokens(1)), Extend(child, count), BeginStep(), Release(child, self._any(RELEASE_REASONS)))
        whole = parent.computed - parent.computed % self.block_size
        within = [length for length in range(1, whole) if length % self.block_size and _reaches(spec, parent, length)]
        if within and self.capabilities.truncate and self._random() < 0.5:
            append, extend, *_ = self._going_on(parent, 1)
            self.next_come(Truncate(parent.seq, self._any(within)), append, extend, BeginStep(), *reads, EndStep())
        else:
            self.next_come(*reads, *self._letting_go(spec, parent, listed_blocks(spec.tables(parent))))

    def _release(self, spec: Spec) -> Op | None:
        op = self._release_a_reader(spec) if spec.steps and spec.seen.held_twice and self._random() < 0.5 else None
        if op is not None:
            return op
        sequence = self._pick(list(spec.live.values()))
        return None if sequence is None else Release(sequence.seq, self._any(RELEASE_REASONS))

    def let_go_of(self, spec: Spec, blocks: Set[int]) -> tuple[Op, ...]:
        """How someone who may do so, and holds one of `blocks`, lets go of some or all that it holds; nothing where nobody does."""
        sequence = self._pick([s for s in spec.live.values() if s.out is None and not blocks.isdisjoint(listed_blocks(spec.tables(s)))])
        return () if sequence is None else self._letting_go(spec, sequence, blocks)

    def _letting_go(self, spec: Spec, sequence: Sequence, blocks: Set[int]) -> tuple[Op, ...]:
        """How `sequence` lets go of `blocks`, or others: it goes, is truncated, swapped out, or leaves its window behind."""
        ways: list[tuple[Op, ...]] = [(Release(sequence.seq, self._any(RELEASE_REASONS)),)]
        if sequence.computed and self.capabilities.truncate:
            length = self._pick(_lengths_without(spec, sequence, blocks))
            ways.append((Truncate(sequence.seq, length or self._length(max(1, sequence.computed // 2))),))
        if sequence.computed and self.capabilities.swap:
            ways.append((SwapOut(sequence.seq),))
        if sequence.computed and any(window is not None for _, _, window in spec.groups):
            tokens = self.prompts.tokens(self._any((1, self.block_size)))
            left = len(sequence.known) + len(tokens) - sequence.computed
            ways.append((Append(sequence.seq, tokens), Extend(sequence.seq, left)))
        return self._any(ways)

    def _release_a_reader(self, spec: Spec) -> Op | None:
        """A sequence in flight goes, and then whoever shares a block with it, while the device still reads that block."""
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and s.out.launched and not s.out.finished])
        if sequence is None:
            return None
        others = self.let_go_of(spec, listed_blocks(spec.tables(sequence)) & spec.seen.held_twice)
        if not others:
            return None
        self.next_come(*others)
        return Release(sequence.seq, self._any(RELEASE_REASONS))

    def _release_and_squeeze(self, spec: Spec) -> Op | None:
        """Someone lets go of several blocks, in flight or not, and then a newcomer needs some of them: what goes first shows the policy."""
        sequence = self._pick([s for s in spec.live.values() if s.computed > self.block_size])
        if sequence is None:
            return None
        self.next_come(*(EndStep() for _ in spec.steps))
        self.squeeze_next = True
        return Release(sequence.seq, self._any(RELEASE_REASONS))

    def _release_again(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.sequences.values() if s.gone or (s.computed == 0 and s.out is None)])
        return None if sequence is None else Release(sequence.seq, self._any(RELEASE_REASONS))

    def evict(self, spec: Spec) -> Op | None:
        """A few blocks, mostly such as are cached or held, sometimes all of those."""
        rng = self.rng
        likely = sorted(spec.seen.books.cached or spec.owners)
        blocks = likely if likely and self._random() < 0.8 else range(self.num_blocks)
        count = len(blocks) if self._random() < MANY_SHARE else self._any((1, 1, 2, 3))
        return Evict(tuple(rng.sample(blocks, min(len(blocks), count))))

    def reset(self, spec: Spec) -> Op | None:
        """Of everything."""
        return Reset()

    def _swap(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.computed and s.out is None])
        if sequence is None:
            return None
        if sequence.swapped:
            return SwapIn(sequence.seq)
        habit = self._random()
        if habit < 0.2 and not spec.seen.held_twice.isdisjoint(listed_blocks(spec.tables(sequence))):
            # There is no room to come back to, but for what others still hold.
            self.after_squeeze, self.squeeze_next = (SwapIn(sequence.seq),), True
            self.next_come()
        elif habit > 0.9 and self.capabilities.truncate:
            # The second time with other tokens.
            length = self._length(sequence.computed)
            going_on = self._going_on(sequence, self._any((self.block_size, sequence.computed - length + 1)))
            again = (SwapOut(sequence.seq), SwapIn(sequence.seq))
            self.next_come(SwapIn(sequence.seq), Truncate(sequence.seq, length), *going_on, *again)
        return SwapOut(sequence.seq)

    def next_come(self, *ops: Op) -> None:
        """These should follow, in place of what was planned before."""
        self.plan = deque(ops)

    def device_work(self) -> tuple[Op, ...]:
        """What runs the passes that wait, where they do not run by themselves."""
        return (BeginStep(), EndStep()) if self.capabilities.steps else ()

    def new_seq(self) -> int:
        """The number of a sequence that comes."""
        seq, self.next_seq = self.next_seq, self.next_seq + self._stride
        return seq


def _reaches(spec: Spec, sequence: Sequence, length: int) -> bool:
    """Whether every window that ends at `length` still has its first block."""
    return all(
        window is None or None not in table[max(0, length - window + 1) // size :][:1]
        for (_, size, window), table in zip(spec.groups, spec.tables(sequence), strict=True)
    )


def _lengths_without(spec: Spec, sequence: Sequence, blocks: Set[int]) -> list[int]:
    """The lengths to which `sequence` can be truncated, and then just no longer needs one of `blocks`."""
    return [
        index * size
        for (_, size, _), table in zip(spec.groups, spec.tables(sequence), strict=True)
        for index, block in enumerate(table)
        if index and block in blocks and index * size <= sequence.computed and _reaches(spec, sequence, index * size)
    ]
