"""The plain random generator. Every program draws its own subset of operations and weights (swarm testing, Groce et al. 2012), its own pool, alphabet and habits.

It looks at the spec's state, so that nearly every operation is enabled, and leans towards what breaks caches: block boundaries, tiny pools, prompts that
share prefixes and differ late, equal tokens under unequal namespaces, hash collisions, exhaustion, releases in flight and repeated, look-ups gone stale.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Set
from collections.abc import Sequence as Many
from itertools import accumulate
from typing import Final, TypeVar

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
    Namespace,
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
from kvproof.properties.strategies import WORDS

Value = TypeVar("Value")

MAX_LIVE: Final = 6
"""Sequences alive at once: ownership bugs need two or three; more makes programs long and pools crowded for no new situation."""

MAX_BLOCKS: Final = 12
"""Pools are small so that reuse, eviction and exhaustion happen within a few operations; one program in sixteen takes a larger one."""

FAMILIES: Final = ("plain", "swap", "sum", "poly", "wide", "text")
"""Ways to change tokens: each keeps the hash of some weak scheme that caches were seen to use."""

COLLIDING_BASES: Final = (10, 31, 33, 37, 131, 256, 257, 1000)
"""Multipliers of polynomial hashes seen in caches: adding 1 to a token and taking the base from the next one keeps such a hash."""

STRANGERS: Final = (7, 8, 9)
"""Tokens of newcomers that should share nothing."""

WARM_SHARE: Final = 1 / 3
"""Share of programs that begin with a sequence that is computed whole, so that the next ones find something to share."""

ROUNDS_SHARE: Final = 1 / 6
"""Share of programs that serve in rounds now and then, as an engine does: all that run sample a token and are extended by it together."""

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


class Swarm:
    """Draws the operations of one program."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        self.rng = rng
        self._random = rng.random
        """Nearly every choice is made with this alone: the methods of `Random` that choose are calls on calls."""
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.length = self._any((8, 12, 20, 30, 40, 60))
        self.next_seq = 0
        self._said: list[Tokens] = []
        """Everything that any sequence knew or drafted: prompts are cut from it."""
        self._probes = self._any((0, 6, 10)) if capabilities.prefix else 0
        self._probing: int | None = None
        self._squeeze_next = False
        self._plan: deque[Op] = deque()
        """The operations that should follow, if nothing comes between."""
        self._whole_passes = self._any((0, 0.3, 0.7))
        self._hits_rate = self._any((0, 0.3, 0.6)) if capabilities.prefix else 0.0
        """Share of newcomers whose prompt goes on from what was computed before."""
        self._forgotten: tuple[int, Tokens] = (-1, ())
        """The whole blocks that a sequence had before it was truncated last."""
        self._beliefs: list[tuple[int, Tokens]] = []
        """What a cache that mixes up its tokens would believe of a sequence: later prompts ask for it."""
        self._alphabet = self._any(((0, 1), (0, 1, 2), (0, 1), tuple(range(8)), (1, 2, 11, 12, 21, 112, 211, 1000, 1001)))
        self._blocks_at_once = self._any((2, 3, 5))
        self._family = self._any(("plain", *FAMILIES))
        self._namespaces = self._draw_namespaces()
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
                self._said.append(op.prompt)

    def next(self, spec: Spec) -> Op | None:
        """The next operation, or None once the program has its length."""
        if self.length <= 0:
            return self._probe(spec)
        if self._rounds and not self._plan and self._random() < 0.5:
            self._plan_round(spec)
        while self._plan and self._random() < 0.9:
            planned = self._plan.popleft()
            if spec.enabled(planned):
                self.length -= 1
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
        prompt = self._suspicion(spec) if self._beliefs and self._random() < 0.5 else self._computed(spec)
        self._probing = self.next_seq
        self.next_seq += 1
        return Admit(self._probing, (*prompt, self._token()), self._any(self._namespaces))

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
            Swarm._release_and_squeeze: ("lru" in caps.policy, 1.5),
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

    def _draw_namespaces(self) -> list[Namespace]:
        fields = sorted(self.capabilities.namespace_fields)
        rng = self.rng
        if not fields or self._random() < 0.3:
            return [Namespace()]
        spaces = [Namespace()] if self._random() < 0.5 else []
        style = self._any(("one", "shift", "concat", "any"))
        a, b = rng.sample(fields, 2) if len(fields) > 1 else (fields[0], fields[0])
        word = self._any(WORDS)
        if style == "one":
            spaces += [Namespace(**{a: word}), Namespace(**{a: self._any(WORDS)})]
        elif style == "shift":
            spaces += [Namespace(**{a: word}), Namespace(**{b: word})]
        elif style == "concat" and a != b:
            spaces += [Namespace(**{a: "a", b: "ba"}), Namespace(**{a: "ab", b: "a"})]
        else:
            spaces += [
                Namespace(**{f: self._any(WORDS) for f in rng.sample(fields, self._between(1, min(3, len(fields))))}) for _ in range(2)
            ]
        return spaces

    def _while_retiring(self, spec: Spec) -> Op | None:
        """A sequence was released in flight and its blocks wait: try what could take them too early."""
        makers = [self._extend, self._admit, self._let_go_while_read]
        makers += [self._evict] if self.capabilities.evict else []
        makers += [self._reset] if self.capabilities.reset and self._random() < 0.3 else []
        return self._any(makers)(spec)

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

    # -- tokens -------------------------------------------------------------------------------------------------------------------------------------

    def _token(self) -> int:
        return self._any(self._alphabet)

    def _tokens(self, count: int) -> Tokens:
        return tuple([self._any(self._alphabet) for _ in range(count)])

    def _length(self, most: int) -> int:
        """A number of tokens, mostly at or beside a block boundary, at least 1."""
        blocks = max(1, most // self.block_size)
        length = (
            self._between(0, min(blocks, 4)) * self.block_size + self._any((-1, 0, 0, 1, 1, 2))
            if self._random() < 0.8
            else self._between(1, most)
        )
        return max(1, min(length, most))

    def _prompt(self, spec: Spec) -> Tokens:
        room = self.num_blocks // len(self.capabilities.groups) * self.block_size
        most = room + self.block_size if self._random() < 0.1 else max(2, min(room, self._blocks_at_once * self.block_size))
        if not self._said or self._random() > (0.8 if self.capabilities.prefix else 0.3):
            return self._tokens(self._length(most))
        if self._beliefs and self._random() < 0.25:
            return self._suspicion(spec)
        base = self._any(self._said[-12:])
        habit = self._random()
        if habit < 0.35:
            return base + self._tokens(self._any((0, 1, 1, self.block_size)))
        cut = base[: self._length(len(base))]
        if habit < 0.6:
            return cut + self._tokens(self._any((0, 1, self.block_size)))
        if habit < 0.65:
            # A beginning that repeats: an index that is off by a block finds its own tokens again.
            return (base[: self.block_size * self._between(1, 2)] + base)[:most]
        return self._mutate(base)[:most] + self._tokens(self._any((0, 1)))

    def _computed(self, spec: Spec) -> Tokens:
        """What some sequence knows, or something that a weak hash takes for it."""
        sequence = self._pick([s for s in spec.sequences.values() if s.known])
        if sequence is None or self._random() < 0.3:
            return self._prompt(spec)
        known = tuple(sequence.known)
        return self._mutate(known) if self._random() < 0.6 else known

    def _suspicion(self, spec: Spec) -> Tokens:
        """A prompt that only a confused cache can know."""
        seq, blocks = self._forgotten
        if blocks and len(spec.sequences[seq].known) > len(blocks) and self._random() < 0.4:
            return (*blocks, *spec.sequences[seq].known[len(blocks) :])
        _, believed = self._any(self._beliefs)
        return believed + self._tokens(self._any((0, 1, 1, self.block_size)))

    def _mutate(self, tokens: Tokens) -> Tokens:
        """Change `tokens` a little, in a way that some kind of weak hash would not see."""
        new = list(tokens)
        family = self._family if self._random() < 0.5 else self._any(FAMILIES)
        i = self._any((0, len(new) - 1, self._between(0, len(new) - 1)))
        first = i - i % self.block_size
        # The neighbour lies in the same block, where it can: hashes mix a block's tokens first.
        j = next((k for k in (i + 1, i - 1) if first <= k < min(first + self.block_size, len(new))), min(i + 1, len(new) - 1))
        i, j = min(i, j), max(i, j)
        if family == "swap":
            j = self._between(0, len(new) - 1)
            new[i], new[j] = new[j], new[i]
        elif family == "sum" and i != j:
            new[i], new[j] = new[i] + 1, max(0, new[j] - 1)
        elif family == "poly" and i != j:
            base = self._any(COLLIDING_BASES)
            if new[j] >= base:
                new[i], new[j] = new[i] + 1, new[j] - base
            elif new[i]:
                new[i], new[j] = new[i] - 1, new[j] + base
        elif family == "wide":
            new[i] += self._any((256, 65536, 1 << 20))
        elif family == "text" and i != j:
            new[i], new[j] = _move_digit(new[i], new[j])
        if tuple(new) == tokens:
            new[i] = self._token()
        return tuple(new)

    def _continuation(self, sequence: Sequence, count: int) -> Tokens:
        """Tokens to follow what `sequence` knows: often what followed it in another sequence."""
        known = tuple(sequence.known)
        if self._random() < 0.5:
            for said in reversed(self._said[-12:]):
                if len(said) > len(known) and said[: len(known)] == known:
                    return said[len(known) : len(known) + count]
        return self._tokens(count)

    # -- operations -----------------------------------------------------------------------------------------------------------------------------------

    def _admit(self, spec: Spec) -> Op | None:
        if len(spec.live) >= self._live and self._random() < 0.95:
            return None
        prompt, namespace = self._asked_before(spec) or (self._prompt(spec), self._any(self._namespaces))
        op = Admit(self.next_seq, prompt, namespace)
        self.next_seq += 1
        self._said.append(op.prompt)
        if self._warm:
            self._warm = False
            self._plan += [Extend(op.seq, len(op.prompt)), *self._device_work(), Commit(op.seq)]
        return op

    def _asked_before(self, spec: Spec) -> tuple[Tokens, Namespace] | None:
        """A prompt that goes on from what was computed in the same namespace, so that there is something to adopt."""
        if self._random() > self._hits_rate:
            return None
        sequence = self._pick(
            [s for s in spec.sequences.values() if s.computed >= self.block_size or (s.gone and len(s.known) > self.block_size)]
        )
        if sequence is None:
            return None
        known = tuple(sequence.known[: sequence.computed or None])
        shared = known if self._random() < 0.6 else known[: self._length(len(known))]
        return shared + self._tokens(self._any((1, 1, 2, self.block_size))), sequence.namespace

    def _squeeze(self, spec: Spec) -> Op | None:
        """A newcomer that shares nothing and needs a little more than what is free without evicting: what goes first shows the policy."""
        taken = spec.owners.keys() | spec.fenced().keys()
        evictable = (spec.seen.books.cached or set()) - taken
        room = spec.usable - len(taken)
        blocks = min(room, room - len(evictable) + self._between(1, max(1, len(evictable))))
        if blocks < 1 or blocks * self.block_size > MAX_SQUEEZE_TOKENS:
            return None
        prompt = tuple([self._any(STRANGERS) for _ in range(blocks * self.block_size)])
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self._next_come(Extend(seq, len(prompt)))
        return Admit(seq, prompt, self._any(self._namespaces))

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
            sequence = self._pick([s for s in spec.live.values() if s.computed == 0 and s.path[-1] in spec.hits])
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
            drafts = self._continuation(sequence, self._between(1, self.block_size + 1))
            self._said.append((*sequence.known, *drafts))
        op = Extend(sequence.seq, count, drafts)
        if spec.exhausted(op):
            return self._without_room(spec, op)
        return op

    def _without_room(self, spec: Spec, op: Extend) -> Op | None:
        """Where the pool has no room for `op`, someone mostly makes way, as in an engine. What fails must change nothing, not even what another sequence could match."""
        if self._random() < 0.8:
            return self._release(spec)
        waiting = self._pick([s for s in spec.live.values() if s.computed == 0 and s.seq != op.seq])
        if self.capabilities.prefix and waiting is not None and self._random() < 0.5:
            self._next_come(op, Match(waiting.seq))
            return Match(waiting.seq)
        return op

    def _commit(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is not None and s.out.finished])
        if sequence is None or sequence.out is None:
            return None
        drafts = sequence.out.drafts
        accepted = self._any((0, len(drafts), self._between(0, len(drafts)), self._between(0, len(drafts))))
        if drafts:
            self._say_mistakes(sequence, drafts, accepted)
        return Commit(sequence.seq, accepted)

    def _say_mistakes(self, sequence: Sequence, drafts: Tokens, accepted: int) -> None:
        """Remember what a cache that mixes up accepted and rejected drafts would believe."""
        known = tuple(sequence.known)
        self._learn(sequence, drafts[:accepted])
        for wrong in {drafts, drafts[accepted:], drafts[len(drafts) - accepted :]}:
            if wrong != drafts[: len(wrong)] or len(wrong) > accepted:
                self._believe(sequence, (*known, *wrong))

    def _believe(self, sequence: Sequence, tokens: Tokens) -> None:
        self._beliefs.append((sequence.seq, tokens))
        del self._beliefs[:-12]

    def _learn(self, sequence: Sequence, tokens: Tokens) -> None:
        """`sequence` comes to know `tokens`: so it does in the mind of a confused cache."""
        self._beliefs = [(seq, (*believed, *tokens) if seq == sequence.seq else believed) for seq, believed in self._beliefs]

    def _append(self, spec: Spec) -> Op | None:
        sequence = self._pick([s for s in spec.live.values() if s.out is None and (s.computed == len(s.known) or self._random() < 0.1)])
        if sequence is None:
            return None
        tokens = self._continuation(sequence, self._any((1, 1, 1, 2, self.block_size, self.block_size + 1)))
        self._said.append((*sequence.known, *tokens))
        self._learn(sequence, tokens)
        if sequence.computed == len(sequence.known) and self._random() < 0.5:
            self._plan_pass(sequence, len(tokens), (*sequence.known, *tokens))
        return Append(sequence.seq, tokens)

    def _plan_pass(self, sequence: Sequence, count: int, known: Tokens) -> None:
        """A pass over all that `sequence` will know then, often with drafts."""
        drafts: Tokens = ()
        if sequence.computed and self._random() < self._draft_rate:
            drafts = self._tokens(self._between(1, self.block_size + 1))
            self._said.append((*known, *drafts))
        self._next_come(Extend(sequence.seq, count, drafts))

    def _plan_round(self, spec: Spec) -> None:
        """All whose pass has finished commit it and sample a token, then all of them are extended by that, and newcomers by their prompt."""
        ready = [s for s in spec.live.values() if s.out is not None and s.out.finished and s.out.known_end == len(s.known)]
        extends: list[Op] = []
        for sequence in ready:
            out = sequence.out
            assert out is not None, "it was chosen for having a pass out"
            accepted = self._between(0, len(out.drafts))
            token = self._token()
            known = (*sequence.known, *out.drafts[:accepted], token)
            self._plan += [Commit(sequence.seq, accepted), Append(sequence.seq, (token,))]
            drafts = self._tokens(self._between(1, self.block_size + 1)) if self._random() < self._draft_rate else ()
            self._said.append((*known, *drafts))
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
        cut = self._cut_of_others(spec) if self._random() < 0.5 else None
        if cut is None:
            sequence = self._pick([s for s in spec.live.values() if s.computed])
            if sequence is None:
                return None
            cut = sequence, self._length(sequence.computed)
        sequence, length = cut
        if self._random() < 0.5:
            self._plan_going_on(sequence, length)
        if self._random() < 0.5:  # what a cache that keeps forgotten tokens, or forgotten blocks, would believe after the next append
            self._believe(sequence, tuple(sequence.known))
            self._forgotten = (sequence.seq, tuple(sequence.known[: sequence.computed - sequence.computed % self.block_size]))
        return Truncate(sequence.seq, length)

    def _cut_of_others(self, spec: Spec) -> tuple[Sequence, int] | None:
        """A sequence, and a length for it that ends within a block which others count on: they hold it, the device reads it, or the index has it."""
        counted_on = self._any((spec.seen.held_twice, spec.fenced().keys(), spec.seen.books.cached)) or spec.seen.held_twice
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

    def _plan_going_on(self, sequence: Sequence, length: int) -> None:
        """After a truncation to `length` the sequence goes on at once, often past what it had before."""
        tokens = self._tokens(self._any((1, self.block_size, sequence.computed - length + self.block_size)))
        self._next_come(Append(sequence.seq, tokens), Extend(sequence.seq, len(tokens)), *self._device_work(), Commit(sequence.seq))
        self._learn(sequence, tokens)

    def _fork(self, spec: Spec) -> Op | None:
        if len(spec.live) > MAX_LIVE:
            return None
        parent = self._pick([s for s in spec.live.values() if s.out is None and (s.computed or self._random() < 0.1)])
        if parent is None:
            return None
        self.next_seq += 1
        return Fork(parent.seq, self.next_seq - 1)

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

    # -- choices ------------------------------------------------------------------------------------------------------------------------------------------

    def _pick(self, among: list[Sequence]) -> Sequence | None:
        return among[int(self._random() * len(among))] if among else None

    def _any(self, among: Many[Value]) -> Value:
        return among[int(self._random() * len(among))]

    def _between(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))


def _reaches(spec: Spec, sequence: Sequence, length: int) -> bool:
    """Whether every window that ends at `length` still has its first block."""
    return all(
        window is None or None not in table[max(0, length - window + 1) // size :][:1]
        for (_, size, window), table in zip(spec.groups, spec.tables(sequence), strict=True)
    )


def _move_digit(one: int, two: int) -> tuple[int, int]:
    """Two other numbers that read the same when written one after the other: 1, 12 becomes 11, 2. The same two where there are none."""
    text = f"{one}{two}"
    for cut in range(1, len(text)):
        left, right = text[:cut], text[cut:]
        plain = right == "0" or not right.startswith("0")
        if plain and (left == "0" or not left.startswith("0")) and int(left) != one:
            return int(left), int(right)
    return one, two
