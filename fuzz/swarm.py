"""The plain random generator. Every program draws its own subset of operations and weights (swarm testing, Groce et al. 2012), its own pool, alphabet and habits.

It looks at the spec's state, so that nearly every operation is enabled, and leans towards what breaks caches: block boundaries, tiny pools, prompts that
share prefixes and differ late, equal tokens under unequal namespaces, hash collisions, exhaustion, releases in flight and repeated, look-ups gone stale.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Set
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
    sequences_of,
)
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence, listed_blocks

MAX_LIVE: Final = 6
"""Sequences alive at once: ownership bugs need two or three; more makes programs long and pools crowded for no new situation."""

MAX_BLOCKS: Final = 12
"""Pools are small so that reuse, eviction and exhaustion happen within a few operations; one program in sixteen takes a larger one."""

STRANGERS: Final = (7, 8, 9)
"""Tokens of newcomers that should share nothing."""

WARM_SHARE: Final = 1 / 3
"""Share of programs that begin with a sequence that is computed whole, so that the next ones find something to share."""

ROUNDS_SHARE: Final = 1 / 6
"""Share of programs that serve in rounds now and then, as an engine does: all that run sample a token and are extended by it together."""

TWIN_SHARE: Final = 1 / 8
"""Share of newcomers that ask for what is being computed and cannot be found yet, so that it is computed twice."""

FULL_POOL_SHARE: Final = 1 / 4
"""Share of roll-backs into a block that others count on, after which others take the whole pool before the sequence goes on."""

MAX_SQUEEZE_TOKENS: Final = 128
"""Longest prompt of a newcomer; a pool that takes more is not worth squeezing."""


class Config:
    """The pool that one program runs on."""

    def __init__(self, rng: random.Random, capabilities: Capabilities) -> None:
        sizes = [size for size in capabilities.block_sizes if size <= 4] or [min(capabilities.block_sizes)]
        self.block_size = rng.choice(sizes) if rng.random() < 0.95 else rng.choice(list(capabilities.block_sizes))
        least = 1 + len(capabilities.groups) + len(capabilities.null_blocks)
        most = capabilities.max_blocks if rng.random() < 1 / 16 else MAX_BLOCKS * (1 + len(capabilities.groups)) // 2
        nulls = max(capabilities.null_blocks, default=-1) + 1
        tight = rng.randint(least, max(least, most))
        self.num_blocks = min(max(tight if rng.random() < 0.5 else most, nulls + 1), capabilities.max_blocks)


class Swarm(Draws):
    """Draws the operations of one program."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        super().__init__(rng, block_size)
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.length = self._any((8, 12, 20, 30, 40, 60))
        self.next_seq = 0
        self._probes = self._any((0, 6, 10)) if capabilities.prefix else 0
        self._probing: int | None = None
        self._squeeze_next = False
        self._after_squeeze: tuple[Op, ...] = ()
        """What should come once a newcomer has taken all that is left of the pool."""
        self._plan: deque[Op] = deque()
        """The operations that should follow, if nothing comes between."""
        self._whole_passes = self._any((0, 0.3, 0.7))
        self._prompts = Prompts(rng, capabilities, num_blocks=num_blocks, block_size=block_size)
        self._live = self._any((2, 3, 4, MAX_LIVE))
        self._makers, self._odds = self._draw_weights()
        self._warm = self._random() < WARM_SHARE
        """Whether a first sequence is computed before anything else happens."""
        self._rounds = self._random() < ROUNDS_SHARE
        """Whether all running sequences go through their passes together now and then, as they do in an engine."""

    def go_on(self, ops: Iterable[Op], more: int) -> None:
        """Add at most `more` operations to a program that begins with `ops`: their sequences and tokens are known from now on."""
        self.length = min(self.length, more)
        for op in ops:
            self.next_seq = max([self.next_seq, *(seq + 1 for seq in sequences_of(op))])
            if isinstance(op, Admit):
                self._prompts.say(op.prompt)

    def next(self, spec: Spec) -> Op | None:
        """The next operation, or None once the program has its length."""
        if self.length <= 0:
            return self._probe(spec)
        if self._rounds and not self._plan and not self._squeeze_next and self._random() < 0.5:
            self._plan_round(spec)
        while self._plan and self._random() < 0.9:
            planned = self._plan.popleft()
            if spec.enabled(planned):
                self.length -= 1
                if isinstance(planned, Commit):
                    self._prompts.doubt_blocks(spec, spec.live[planned.seq])
                return planned
        if self._squeeze_next and not self._plan:
            self._squeeze_next = False
            op = self._squeeze(spec)
            if op is not None:
                self.length -= 1
                return op
        if spec.awaited and self._random() < 0.4:
            op = self._while_retiring(spec)
            if op is not None and spec.enabled(op):
                self.length -= 1
                return op
        for _ in range(50):
            op = self._makers[bisect(self._odds, self._random())](self, spec)
            if op is not None and spec.enabled(op):
                self.length -= 1
                return op
        return self._admit(spec)

    def _probe(self, spec: Spec) -> Op | None:
        """The last operations of a program ask the prefix index about prompts that it should know, or that it must not."""
        if self._probes <= 0:
            return None
        self._probes -= 1
        if self._probing is not None:
            seq, self._probing = self._probing, None
            if seq not in spec.live:  # the cache refused to admit it
                return self._probe(spec)
            return Match(seq) if self._probes % 4 or len(spec.live[seq].known) > 64 else Extend(seq, len(spec.live[seq].known))
        self._probing = self._new_seq()
        return Admit(self._probing, *self._prompts.probe(spec))

    def _new_seq(self) -> int:
        """The number of a sequence that comes."""
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return seq

    # -- swarm --------------------------------------------------------------------------------------------------------------------------------------

    def _draw_weights(self) -> tuple[list[Callable[[Swarm, Spec], Op | None]], list[float]]:
        """What makes operations, and where in the fractions from 0 to 1 the share of each but the last one ends."""
        caps = self.capabilities
        weights: dict[Callable[[Swarm, Spec], Op | None], float] = {
            Swarm._admit: self._any((2, 4, 6)),
            Swarm._advance: self._any((8, 14, 20)),
            Swarm._append: self._any((2, 5, 10)),
            Swarm._release: self._any((0.5, 2, 4)),
        }
        optional = {
            Swarm._match: (caps.prefix, 4),
            Swarm._truncate: (caps.truncate, 4),
            Swarm._fork: (caps.fork, 4),
            Swarm._evict: (caps.evict, 1.5),
            Swarm._reset: (caps.reset, 0.7),
            Swarm._swap: (caps.swap, 5),
            Swarm._release_and_squeeze: (caps.prefix, 1.5 if "lru" in caps.policy else 0.7),
            Swarm._release_again: (True, 0.7),
        }
        for maker, (claimed, weight) in optional.items():
            if claimed:
                weights[maker] = weight * self._any((0, 0.3, 1, 1, 2))
        self._draft_rate = self._any((0, 0.5, 0.9)) if caps.drafts else 0.0
        self._step_rate = self._any((0.15, 0.4, 0.7))
        chosen = [maker for maker, weight in weights.items() if weight]
        total = sum(weights.values())
        return chosen, [so_far / total for so_far in accumulate(weights[maker] for maker in chosen[:-1])]

    def _while_retiring(self, spec: Spec) -> Op | None:
        """A sequence was released in flight and its blocks wait: try what could take them too early."""
        makers = [self._extend, self._admit, self._let_go_while_read]
        makers += [self._ask_for_retiring] if self.capabilities.prefix else []
        makers += [self._evict] if self.capabilities.evict else []
        makers += [self._reset] if self.capabilities.reset and self._random() < 0.3 else []
        return self._any(makers)(spec)

    def _ask_for_retiring(self, spec: Spec) -> Op | None:
        """A newcomer asks for what waits for the device, and is still computing when the step ends."""
        asked = self._prompts.let_go_in_flight(spec)
        if asked is None or len(spec.live) > MAX_LIVE:
            return None
        seq = self._new_seq()
        self._next_come(Extend(seq, len(asked[0])), EndStep())
        return Admit(seq, *asked)

    def _let_go_while_read(self, spec: Spec) -> Op | None:
        """The last one that holds a block lets go of it while the device reads it for another."""
        return self._let_go_of(spec, spec.fenced().keys())

    def _let_go_of(self, spec: Spec, blocks: Set[int]) -> Op | None:
        """Someone who may do so, and holds one of `blocks`, lets go of some or all that it holds."""
        sequence = self._pick([s for s in spec.live.values() if s.out is None and not blocks.isdisjoint(listed_blocks(spec.tables(s)))])
        if sequence is None:
            return None
        if self.capabilities.truncate and sequence.computed and self._random() < 0.5:
            return Truncate(sequence.seq, self._length(max(1, sequence.computed // 2)))
        return Release(sequence.seq, self._any(RELEASE_REASONS))

    # -- operations -----------------------------------------------------------------------------------------------------------------------------------

    def _admit(self, spec: Spec) -> Op | None:
        if len(spec.live) >= self._live and self._random() < 0.95:
            return None
        if self.capabilities.prefix and self._random() < TWIN_SHARE and (twin := self._twin(spec)) is not None:
            return twin
        op = Admit(self._new_seq(), *self._prompts.newcomer(spec))
        if self._warm:
            self._warm = False
            self._plan += [Extend(op.seq, len(op.prompt)), *self._device_work(), Commit(op.seq)]
        return op

    def _twin(self, spec: Spec) -> Op | None:
        """A newcomer computes again what is being computed and cannot be found yet, and something of its own behind it; soon its duplicate is used for something else."""
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and not s.computed and len(s.known) > self.block_size])
        if sequence is None:
            return None
        seq = self._new_seq()
        prompt = self._prompts.twin(sequence)
        self._next_come(Extend(seq, len(prompt)), *self._device_work(), Commit(sequence.seq), Commit(seq))
        if self._random() < 0.5:
            self._plan.append(Release(seq))
            self._squeeze_next = True
        return Admit(seq, prompt, sequence.namespace)

    def _squeeze(self, spec: Spec) -> Op | None:
        """A newcomer that shares nothing and needs a little more than what is free without evicting: what goes first shows the policy.

        Where no policy is to be seen it mostly spares what is cached, and uses again all else. Where something should come after it, it takes all that is left.
        """
        taken = spec.owners.keys() | spec.fenced().keys()
        evictable = (spec.seen.books.cached or set()) - taken
        room = (spec.usable - len(taken)) // len(spec.groups)
        spare = "lru" not in self.capabilities.policy
        more = self._any((0, 0, 1)) if spare else self._between(1, max(1, len(evictable)))
        blocks = room if self._after_squeeze else min(room, room - len(evictable) // len(spec.groups) + more)
        after, self._after_squeeze = self._after_squeeze, ()
        if blocks < 1 or blocks * self.block_size > MAX_SQUEEZE_TOKENS:
            self._next_come(*after)
            return None
        prompt = tuple([self._any(STRANGERS) for _ in range(blocks * self.block_size)])
        seq = self._new_seq()
        if after:
            after = (*after, Release(seq))
        elif spare:
            after = (*self._device_work(), Commit(seq))
        self._next_come(Extend(seq, len(prompt)), *after)
        return Admit(seq, prompt, self._prompts.namespace())

    def _advance(self, spec: Spec) -> Op | None:
        """Whatever moves a sequence towards its next token."""
        if self.capabilities.steps and self._random() < self._step_rate:
            step = self._step(spec)
            if step is not None:
                return step
        if self._random() < 0.5:
            return self._commit(spec)
        op = self._extend(spec)
        if isinstance(op, Extend) and self._random() < self._whole_passes:
            # The usual course of a pass, so that most of a program's length goes to what is unusual.
            self._next_come(BeginStep(), EndStep(), Commit(op.seq, self._between(0, len(op.drafts))))
        return op

    def _step(self, spec: Spec) -> Op | None:
        waiting = any(not out.launched for out in spec.passes)
        if waiting and self._random() < 0.7:
            return BeginStep()
        if spec.steps:
            return EndStep()
        return BeginStep() if self._random() < 0.1 else None

    def _match(self, spec: Spec) -> Op | None:
        if self._random() < 0.3:
            sequence = self._pick([s for s in spec.live.values() if s.computed == 0 and s.seq in spec.hits])
            if sequence is not None:
                return Match(sequence.seq)
        sequence = self._pick([s for s in spec.live.values() if s.computed == 0])
        return None if sequence is None else Match(sequence.seq)

    def _extend(self, spec: Spec) -> Op | None:
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
        if sequence.computed and count >= left and self._random() < self._draft_rate:
            drafts = self._prompts.continuation(sequence, self._between(1, self.block_size + 1))
            self._prompts.say((*sequence.known, *drafts))
        op = Extend(sequence.seq, count, drafts)
        if spec.exhausted(op):
            return self._without_room(spec, op)
        return op

    def _without_room(self, spec: Spec, op: Extend) -> Op | None:
        """Where the pool has no room for `op`, someone mostly makes way, as in an engine. What fails must change nothing, not even what another sequence could match."""
        if self.capabilities.prefix and self._may_share(spec, spec.live[op.seq]) and self._random() < 0.3:
            # It may fit by what it shares: a cache that has promised that must not ask for it again.
            self._next_come(op)
            return Match(op.seq)
        if self._random() < 0.8:
            return self._release(spec)
        waiting = self._pick([s for s in spec.live.values() if s.computed == 0 and s.seq != op.seq])
        if self.capabilities.prefix and waiting is not None and self._random() < 0.5:
            self._next_come(op, Match(waiting.seq))
            return Match(waiting.seq)
        return op

    def _may_share(self, spec: Spec, sequence: Sequence) -> bool:
        """Whether someone holds what a sequence begins with, that has computed nothing yet."""
        return sequence.computed == 0 and not spec.owners.keys().isdisjoint(spec.memory.blocks_showing([spec.content(sequence, 0, 0)]))

    def _commit(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and s.out.finished])
        if sequence is None or sequence.out is None:
            return None
        self._prompts.doubt_blocks(spec, sequence)
        drafts = sequence.out.drafts
        accepted = self._any((0, len(drafts), self._between(0, len(drafts)), self._between(0, len(drafts))))
        if drafts:
            self._prompts.doubt_commit(sequence, drafts, accepted)
        return Commit(sequence.seq, accepted)

    def _append(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is None and (s.computed == len(s.known) or self._random() < 0.1)])
        if sequence is None:
            return None
        tokens = self._prompts.continuation(sequence, self._any((1, 1, 1, 2, self.block_size, self.block_size + 1)))
        self._prompts.say((*sequence.known, *tokens))
        self._prompts.learn(sequence, tokens)
        if sequence.computed == len(sequence.known) and self._random() < 0.5:
            self._plan_pass(sequence, len(tokens), (*sequence.known, *tokens))
        return Append(sequence.seq, tokens)

    def _plan_pass(self, sequence: Sequence, count: int, known: Tokens) -> None:
        """A pass over all that `sequence` will know then, often with drafts."""
        drafts: Tokens = ()
        if sequence.computed and self._random() < self._draft_rate:
            drafts = self._prompts.tokens(self._between(1, self.block_size + 1))
            self._prompts.say((*known, *drafts))
        self._next_come(Extend(sequence.seq, count, drafts))

    def _plan_round(self, spec: Spec) -> None:
        """All whose pass has finished commit it and sample a token, then all of them are extended by that, and newcomers by their prompt."""
        ready = [s for s in spec.live.values() if s.out is not None and s.out.finished and s.out.known_end == len(s.known)]
        extends: list[Op] = []
        for sequence in ready:
            out = sequence.out
            assert out is not None, "it was chosen for having a pass out"
            accepted = self._between(0, len(out.drafts))
            token = self._prompts.token()
            known = (*sequence.known, *out.drafts[:accepted], token)
            self._plan += [Commit(sequence.seq, accepted), Append(sequence.seq, (token,))]
            drafts = self._prompts.tokens(self._between(1, self.block_size + 1)) if self._random() < self._draft_rate else ()
            self._prompts.say((*known, *drafts))
            extends.append(Extend(sequence.seq, 1, drafts))
        waiting = [s for s in spec.live.values() if s.out is None and s.computed < len(s.known)]
        self._plan += [*extends, *(Extend(s.seq, len(s.known) - s.computed) for s in waiting)]
        if self._plan:
            self._plan += self._device_work()

    def _next_come(self, *ops: Op) -> None:
        """These should follow, in place of what was planned before."""
        self._plan = deque(ops)

    def _device_work(self) -> tuple[Op, ...]:
        """What runs the passes that wait, where they do not run by themselves."""
        return (BeginStep(), EndStep()) if self.capabilities.steps else ()

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
            self._after_squeeze, self._squeeze_next = self._going_on(sequence, 1), True
            self._next_come()
        elif self._random() < 0.5:
            # Often past what it had before.
            self._next_come(*self._going_on(sequence, self._any((1, self.block_size, sequence.computed - length + self.block_size))))
        if self._random() < 0.5:
            self._prompts.doubt_truncation(sequence)
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
        tokens = self._prompts.tokens(count)
        self._prompts.learn(sequence, tokens)
        return Append(sequence.seq, tokens), Extend(sequence.seq, count), *self._device_work(), Commit(sequence.seq)

    def _fork(self, spec: Spec) -> Op | None:
        if len(spec.live) > MAX_LIVE:
            return None
        parent = self._pick([s for s in spec.live.values() if s.out is None and (s.computed or self._random() < 0.1)])
        if parent is None:
            return None
        return Fork(parent.seq, self._new_seq())

    def _release(self, spec: Spec) -> Op | None:
        op = self._release_a_reader(spec) if spec.steps and spec.seen.held_twice and self._random() < 0.5 else None
        if op is not None:
            return op
        sequence = self._pick(list(spec.live.values()))
        return None if sequence is None else Release(sequence.seq, self._any(RELEASE_REASONS))

    def _release_a_reader(self, spec: Spec) -> Op | None:
        """A sequence in flight goes, and then whoever shares a block with it, while the device still reads that block."""
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and s.out.launched and not s.out.finished])
        if sequence is None:
            return None
        other = self._let_go_of(spec, listed_blocks(spec.tables(sequence)) & spec.seen.held_twice)
        if other is None:
            return None
        self._next_come(other)
        return Release(sequence.seq, self._any(RELEASE_REASONS))

    def _release_and_squeeze(self, spec: Spec) -> Op | None:
        """Someone lets go of several blocks, in flight or not, and then a newcomer needs some of them: what goes first shows the policy."""
        sequence = self._pick([s for s in spec.live.values() if s.computed > self.block_size])
        if sequence is None:
            return None
        self._next_come(*(EndStep() for _ in spec.steps))
        self._squeeze_next = True
        return Release(sequence.seq, self._any(RELEASE_REASONS))

    def _release_again(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.sequences.values() if s.gone or (s.computed == 0 and s.out is None)])
        return None if sequence is None else Release(sequence.seq, self._any(RELEASE_REASONS))

    def _evict(self, spec: Spec) -> Op | None:
        rng = self.rng
        likely = sorted(spec.seen.books.cached or spec.owners)
        blocks = likely if likely and self._random() < 0.8 else range(self.num_blocks)
        return Evict(tuple(rng.sample(blocks, min(len(blocks), self._any((1, 1, 2, 3))))))

    def _reset(self, spec: Spec) -> Op | None:
        return Reset()

    def _swap(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.computed and s.out is None])
        if sequence is None:
            return None
        return SwapIn(sequence.seq) if sequence.swapped else SwapOut(sequence.seq)


def _reaches(spec: Spec, sequence: Sequence, length: int) -> bool:
    """Whether every window that ends at `length` still has its first block."""
    return all(
        window is None or None not in table[max(0, length - window + 1) // size :][:1]
        for (_, size, window), table in zip(spec.groups, spec.tables(sequence), strict=True)
    )
