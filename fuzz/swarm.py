"""The plain random generator. Every program draws its own subset of operations and weights (swarm testing, Groce et al. 2012), its own pool, alphabet and habits.

It looks at the spec's state, so that nearly every operation is enabled, and leans towards what breaks caches: block boundaries, tiny pools, prompts that
share prefixes and differ late, equal tokens under unequal namespaces, hash collisions, exhaustion, releases in flight and repeated, look-ups gone stale.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final

from kvproof.fuzz.draws import Draws
from kvproof.fuzz.operations import MAX_LIVE, MAX_SQUEEZE_TOKENS, Operations
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    RELEASE_REASONS,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Extend,
    Match,
    Op,
    Release,
    sequences_of,
)
from kvproof.models.spec import Spec

MAX_BLOCKS: Final = 12
"""Pools are small so that reuse, eviction and exhaustion happen within a few operations; one program in sixteen takes a larger one."""

LARGE_BLOCKS_SHARE: Final = 1 / 25
"""Share of programs with blocks of more than four tokens, where a cache claims them: they cross few boundaries, but positions within a block are many."""

ROUNDS_SHARE: Final = 1 / 6
"""Share of programs that serve in rounds now and then, as an engine does: all that run sample a token and are extended by it together."""


class Config:
    """The pool that one program runs on."""

    def __init__(self, rng: random.Random, capabilities: Capabilities) -> None:
        sizes = [size for size in capabilities.block_sizes if size <= 4] or [min(capabilities.block_sizes)]
        larger = [size for size in capabilities.block_sizes if size not in sizes]
        self.block_size = rng.choice(larger if larger and rng.random() < LARGE_BLOCKS_SHARE else sizes)
        least = 1 + len(capabilities.groups) + len(capabilities.null_blocks)
        most = capabilities.max_blocks if rng.random() < 1 / 16 else MAX_BLOCKS * (1 + len(capabilities.groups)) // 2
        nulls = max(capabilities.null_blocks, default=-1) + 1
        tight = rng.randint(least, max(least, most))
        self.num_blocks = min(max(tight if rng.random() < 0.5 else most, nulls + 1), capabilities.max_blocks)


class Swarm(Draws):
    """Decides what comes next in one program: what was planned, a situation that breaks caches, or any operation; and at the end, questions about prefixes."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        super().__init__(rng, block_size)
        self.capabilities = capabilities
        self.length = self._any((8, 12, 20, 30, 40, 60))
        self._probes = self._any((0, 6, 10)) if capabilities.prefix else 0
        self._probing: int | None = None
        self._ops = Operations(rng, capabilities, num_blocks=num_blocks, block_size=block_size)
        self._rounds = self._random() < ROUNDS_SHARE
        """Whether all running sequences go through their passes together now and then, as they do in an engine."""

    @property
    def next_seq(self) -> int:
        """The number of the sequence that would come next."""
        return self._ops.next_seq

    def go_on(self, ops: Iterable[Op], more: int) -> None:
        """Add at most `more` operations to a program that begins with `ops`: their sequences and tokens are known from now on."""
        self.length = min(self.length, more)
        for op in ops:
            self._ops.next_seq = max([self.next_seq, *(seq + 1 for seq in sequences_of(op))])
            if isinstance(op, Admit):
                self._ops.prompts.say(op.prompt)

    def ops(self, spec: Spec) -> Iterator[Op]:
        """The operations of the program. Each must have been run, or skipped, before the next one is asked for."""
        while (op := self._next(spec)) is not None:
            yield op

    def _next(self, spec: Spec) -> Op | None:
        """The next operation, or None once the program has its length."""
        if self.length <= 0:
            return self._probe(spec)
        if self._rounds and not self._ops.plan and not self._ops.squeeze_next and self._random() < 0.5:
            self._plan_round(spec)
        while self._ops.plan and self._random() < 0.9:
            planned = self._ops.plan.popleft()
            if spec.enabled(planned):
                self.length -= 1
                if isinstance(planned, Commit):
                    self._ops.prompts.doubt_blocks(spec, spec.live[planned.seq])
                return planned
        if self._ops.squeeze_next and not self._ops.plan:
            self._ops.squeeze_next = False
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
            op = self._ops.at_random(spec)
            if op is not None and spec.enabled(op):
                self.length -= 1
                return op
        return self._ops.admit(spec)

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
        self._probing = self._ops.new_seq()
        return Admit(self._probing, *self._ops.prompts.probe(spec))

    def _while_retiring(self, spec: Spec) -> Op | None:
        """A sequence was released in flight and its blocks wait: try what could take them too early."""
        makers = [self._ops.extend, self._ops.admit, self._let_go_while_read]
        makers += [self._ask_for_retiring] if self.capabilities.prefix else []
        makers += [self._ops.evict] if self.capabilities.evict else []
        makers += [self._ops.reset] if self.capabilities.reset and self._random() < 0.3 else []
        return self._any(makers)(spec)

    def _ask_for_retiring(self, spec: Spec) -> Op | None:
        """A newcomer asks for what waits for the device, and is still computing, or gone in a step of its own, when the step ends."""
        asked = self._ops.prompts.let_go_in_flight(spec)
        if asked is None or len(spec.live) > MAX_LIVE:
            return None
        seq = self._ops.new_seq()
        gone = (BeginStep(), Release(seq, self._any(RELEASE_REASONS))) if self._random() < 0.5 else ()
        self._ops.next_come(Extend(seq, len(asked[0])), *gone, EndStep())
        return Admit(seq, *asked)

    def _let_go_while_read(self, spec: Spec) -> Op | None:
        """The last one that holds a block lets go of it while the device reads it for another."""
        ops = self._ops.let_go_of(spec, spec.fenced().keys())
        if not ops:
            return None
        self._ops.next_come(*ops[1:])
        return ops[0]

    def _squeeze(self, spec: Spec) -> Op | None:
        """A newcomer that shares nothing and needs a little more than what is free without evicting: what goes first shows the policy.

        Where no policy is to be seen it mostly spares what is cached, and uses again all else. Where something should come after it, it takes all that is left.
        """
        taken = self._ops.taken(spec)
        evictable = (spec.seen.books.cached or set()) - taken
        room = (spec.usable - len(taken)) // len(spec.groups)
        spare = "lru" not in self.capabilities.policy
        more = self._any((0, 0, 1)) if spare else self._between(1, max(1, len(evictable)))
        blocks = room if self._ops.after_squeeze else min(room, room - len(evictable) // len(spec.groups) + more)
        after, self._ops.after_squeeze = self._ops.after_squeeze, ()
        if blocks < 1 or blocks * self.block_size > MAX_SQUEEZE_TOKENS:
            self._ops.next_come(*after)
            return None
        prompt = self._ops.strangers(blocks * self.block_size)
        seq = self._ops.new_seq()
        if after:
            after = (*after, Release(seq))
        elif spare:
            after = (*self._ops.device_work(), Commit(seq))
        self._ops.next_come(Extend(seq, len(prompt)), *after)
        return Admit(seq, prompt, self._ops.prompts.namespace())

    def _plan_round(self, spec: Spec) -> None:
        """All whose pass has finished commit it and sample a token, then all of them are extended by that, and newcomers by their prompt."""
        ready = [s for s in spec.live.values() if s.out is not None and s.out.finished and s.out.known_end == len(s.known)]
        extends: list[Op] = []
        for sequence in ready:
            out = sequence.out
            assert out is not None, "it was chosen for having a pass out"
            accepted = self._between(0, len(out.drafts))
            token = self._ops.prompts.token()
            known = (*sequence.known, *out.drafts[:accepted], token)
            self._ops.plan += [Commit(sequence.seq, accepted), Append(sequence.seq, (token,))]
            drafts = self._ops.prompts.tokens(self._ops.draft_count()) if self._random() < self._ops.draft_rate else ()
            self._ops.prompts.say((*known, *drafts))
            extends.append(Extend(sequence.seq, 1, drafts))
        waiting = [s for s in spec.live.values() if s.out is None and s.computed < len(s.known)]
        self._ops.plan += [*extends, *(Extend(s.seq, len(s.known) - s.computed) for s in waiting)]
        if self._ops.plan:
            self._ops.plan += self._ops.device_work()
