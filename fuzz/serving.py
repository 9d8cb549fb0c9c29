"""The generator of long programs: a scheduler that serves requests, as an engine does.

The swarm's programs are short and strange. What an engine does all day is long and ordinary: continuous batching over a pool that is always nearly full, requests that
share system prompts and come back with another turn, drafts, forks, preemption by recompute and by swap. Books that drift, orders of eviction and blocks
that come back from anywhere only show there.

    serving = Serving(rng, capabilities, num_blocks=48, block_size=4)
    for op in itertools.islice(serving.ops(lockstep.spec), 400):
        lockstep.do(op)        # each operation must run, or be skipped, before the next is asked for
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from kvproof.fuzz.programs import PoolConfig
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Namespace,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Tokens,
    Truncate,
)
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence

VOCABULARY: Final = 500
"""Large enough that only what was shared on purpose is equal."""

SYSTEM_PROMPTS: Final = 5
"""Beginnings that many requests share."""

MOST_TOKENS: Final = 1024
"""Pools of more tokens are not filled by a program of a few hundred operations."""


def serving_pool(rng: random.Random, capabilities: Capabilities) -> PoolConfig:
    """A pool for a dozen short requests, within what the cache claims."""
    size = rng.choice([size for size in capabilities.block_sizes if size <= 16] or [min(capabilities.block_sizes)])
    least = min(1 + len(capabilities.groups) + max(capabilities.null_blocks, default=-1) + 1, capabilities.max_blocks)
    blocks = min(capabilities.max_blocks, max(least, MOST_TOKENS // size))
    return PoolConfig(rng.randint(max(least, blocks // 3), blocks), size)


class Serving:
    """Draws the operations of one program, round by round: arrivals, passes, device work, results, and what disturbs an engine."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        self.rng = rng
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.next_seq = 0
        self._most_live = rng.choice((4, 8, 12))
        self._turns = rng.choice((3, 10, 30))
        """About how many passes a request takes after its prompt."""
        self._steps_ahead = rng.choice((0, 1))
        """How many steps stay open while the next one is scheduled."""
        self._rates = {what: rng.choice((0, 0.02, 0.1)) for what in ("fork", "truncate", "cancel", "swap", "evict", "reset")}
        self._draft_rate = rng.choice((0, 0.5)) if capabilities.drafts else 0
        self._known = [self._tokens(rng.randint(block_size, 4 * block_size)) for _ in range(SYSTEM_PROMPTS)]
        """Beginnings of prompts: system prompts, and conversations that may go on."""
        field = rng.choice(sorted(capabilities.namespace_fields) or [""])
        self._namespaces = [Namespace(), *(Namespace(**{field: name}) for name in "ab" if field)]

    def ops(self, spec: Spec) -> Iterator[Op]:
        """Operations without end. Each must have been run, or skipped, before the next one is asked for."""
        while True:
            if len(spec.live) < self._most_live and self.rng.random() < 0.7:
                yield self._arrival()
            for sequence in list(spec.live.values()):
                if sequence.out is None and not sequence.gone:
                    yield from self._pass(spec, sequence)
            yield from self._device(spec)
            for sequence in [sequence for sequence in spec.live.values() if sequence.out is not None and sequence.out.finished]:
                yield from self._result(sequence)
            yield from self._disturbance(spec)

    def _arrival(self) -> Op:
        base = self.rng.choice(self._known)
        shared = base if self.rng.random() < 0.7 else base[: self.rng.randint(0, len(base))]
        room = max(1, self.num_blocks * self.block_size // 2)
        prompt = (*shared, *self._tokens(self.rng.randint(1, 2 * self.block_size)))[-room:]
        self.next_seq += 1
        return Admit(self.next_seq - 1, prompt, self.rng.choice(self._namespaces))

    def _pass(self, spec: Spec, sequence: Sequence) -> Iterator[Op]:
        """One pass of a sequence that has tokens to compute: a chunk of its prompt, or its next token with drafts."""
        rng, seq = self.rng, sequence.seq
        if sequence.swapped:
            yield SwapIn(seq)
        left = len(sequence.known) - sequence.computed
        if sequence.swapped:
            return
        if left < 1:
            yield Append(seq, self._tokens(1))  # the last append was refused: an engine may not take several tokens at once
            return
        if self.capabilities.prefix and not sequence.computed and rng.random() < 0.7:
            yield Match(seq)
        drafts: Tokens = ()
        if sequence.computed and rng.random() < self._draft_rate:
            drafts = self._tokens(rng.randint(1, 4))
        yield Extend(seq, left if drafts or rng.random() < 0.8 else rng.randint(1, left), drafts)
        if sequence.out is None and not sequence.gone:
            yield self._room_for(spec, sequence)

    def _room_for(self, spec: Spec, sequence: Sequence) -> Op:
        """The pool is full: the newest of the others makes room. A request that is alone does not fit at all."""
        others = [other for other in spec.live.values() if other is not sequence and other.computed and not other.swapped]
        if not others:
            return Release(sequence.seq, "cancel")
        victim = max(others, key=lambda other: other.born)
        if self.capabilities.swap and victim.out is None and self.rng.random() < 0.5:
            return SwapOut(victim.seq)
        return Release(victim.seq, "preempt")

    def _device(self, spec: Spec) -> Iterator[Op]:
        if self.capabilities.steps:
            yield BeginStep()
            while len(spec.steps) > self._steps_ahead:
                yield EndStep()

    def _result(self, sequence: Sequence) -> Iterator[Op]:
        """The tokens of a pass are there; the request ends, or goes on with a sampled token."""
        rng, seq = self.rng, sequence.seq
        yield Commit(seq, rng.randint(0, len(sequence.out.drafts) if sequence.out else 0))
        if sequence.gone or sequence.computed < len(sequence.known):
            return
        if rng.random() * self._turns < 1:
            self._known[SYSTEM_PROMPTS:] = [*self._known[SYSTEM_PROMPTS:], tuple(sequence.known)][-8:]
            yield Release(seq, "finish")
            if rng.random() < 0.1:
                yield Release(seq, "finish")
            return
        if self.capabilities.truncate and rng.random() < self._rates["truncate"]:
            yield Truncate(seq, rng.randint(1, max(1, sequence.computed)))
        if self.capabilities.fork and rng.random() < self._rates["fork"]:
            self.next_seq += 1
            yield Fork(seq, self.next_seq - 1)
            yield Append(self.next_seq - 1, self._tokens(1))
        yield Append(seq, self._tokens(rng.choice((1, 1, 1, self.block_size))))

    def _disturbance(self, spec: Spec) -> Iterator[Op]:
        """What comes from outside, at any time: cancels, swaps, evictions by hand, resets."""
        rng, rates, caps = self.rng, self._rates, self.capabilities
        live = list(spec.live.values())
        if live and rng.random() < rates["cancel"]:
            yield Release(rng.choice(live).seq, rng.choice(("cancel", "error")))
        if live and caps.swap and rng.random() < rates["swap"]:
            yield SwapOut(rng.choice(live).seq)
        if caps.evict and rng.random() < rates["evict"]:
            yield Evict(tuple(rng.sample(range(self.num_blocks), min(3, self.num_blocks))))
        if caps.reset and rng.random() < rates["reset"] / 4:
            yield Reset()

    def _tokens(self, count: int) -> Tokens:
        return tuple(self.rng.randrange(VOCABULARY) for _ in range(count))
