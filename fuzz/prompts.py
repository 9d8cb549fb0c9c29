"""The prompts and tokens of the random generator: what its programs are told, forget, and ask for again.

Caches mix up requests that look alike. So prompts are cut from what was said before, go on from what was computed, or differ from it in a way that a weak hash does not see; namespaces
differ by little; and what a cache that mixes up its tokens would *believe* of a sequence is remembered, and asked for later.
"""

from __future__ import annotations

import random
from typing import Final

from kvproof.fuzz.draws import Draws
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import NAMESPACE_FIELDS, Namespace, Tokens
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence
from kvproof.properties.strategies import WORDS

FAMILIES: Final = ("plain", "swap", "sum", "poly", "wide", "text")
"""Ways to change tokens: each keeps the hash of some weak scheme that caches were seen to use."""

COLLIDING_BASES: Final = (10, 31, 33, 37, 131, 256, 257, 1000)
"""Multipliers of polynomial hashes seen in caches: adding 1 to a token and taking the base from the next one keeps such a hash."""

SEPARATORS: Final = ("/", ",", ":", "|")
"""What caches put between the fields of a key that is one text."""

ALIKE: Final = (("a", "A", "a "), (f"{39 * 'a'}a", f"{39 * 'a'}b"))
"""Names that a key mixes up which is turned to lower case, stripped, or cut."""

REUSE_SHARE: Final = 1 / 10
"""Share of newcomers that ask for what followed a block before its id was used again, where there is such a block."""

MOST_FOLLOWERS: Final = 3
"""What followed a block is remembered of so many of its users: a stale key may be older than the last of them."""


class Prompts(Draws):
    """What the requests of one program say."""

    def __init__(self, rng: random.Random, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        super().__init__(rng, block_size)
        self._room = num_blocks // len(capabilities.groups) * block_size
        self._repeats_rate = 0.8 if capabilities.prefix else 0.3
        """Share of prompts that have to do with what was said before."""
        self._said: list[Tokens] = []
        """Everything that any sequence knew or drafted: prompts are cut from it."""
        self._hits_rate = self._any((0, 0.3, 0.6)) if capabilities.prefix else 0.0
        """Share of newcomers whose prompt goes on from what was computed before."""
        self._forgotten: tuple[int, Tokens] = (-1, ())
        """The whole blocks that a sequence had before it was truncated last."""
        self._beliefs: list[tuple[int, Tokens]] = []
        """What a cache that mixes up its tokens would believe of a sequence: later prompts ask for it."""
        self._followers: dict[int, list[Tokens]] = {}
        """Block -> what the block after it held, wherever that was, the last `MOST_FOLLOWERS` times."""
        self._alphabet = self._any(((0, 1), (0, 1, 2), (0, 1), tuple(range(8)), (1, 2, 11, 12, 21, 112, 211, 1000, 1001)))
        self._blocks_at_once = self._any((2, 3, 5))
        self._family = self._any(("plain", *FAMILIES))
        self._namespaces = self._draw_namespaces(sorted(capabilities.namespace_fields))

    def namespace(self) -> Namespace:
        """One of those of this program."""
        return self._any(self._namespaces)

    def newcomer(self, spec: Spec) -> tuple[Tokens, Namespace]:
        """What a new request asks for."""
        prompt, namespace = self._asked_after_reuse(spec) or self._asked_before(spec) or (self._prompt(spec), self.namespace())
        self.say(prompt)
        return prompt, namespace

    def twin(self, sequence: Sequence) -> Tokens:
        """The beginning of what `sequence` is computing, and something else behind it."""
        end = self.block_size * self._between(1, len(sequence.known) // self.block_size)
        prompt = (*sequence.known[:end], *self.tokens(self.block_size + self._between(0, 1)))
        self.say(prompt)
        return prompt

    def let_go_in_flight(self, spec: Spec) -> tuple[Tokens, Namespace] | None:
        """What was computed by a sequence that let go of its blocks while the device still reads or writes them, and a little more."""
        gone = [spec.sequences[out.seq] for step in spec.steps for out in step if spec.sequences[out.seq].out is not out]
        sequence = self._pick([s for s in gone if len(s.known) > self.block_size])
        if sequence is None:
            return None
        prompt = (*sequence.known, *self.tokens(self._any((1, 1, self.block_size))))
        self.say(prompt)
        return prompt, sequence.namespace

    def probe(self, spec: Spec) -> tuple[Tokens, Namespace]:
        """A prompt that a sound cache knows, or one that only a confused one does."""
        habit = self._random()
        prompt = self._followed(spec) if habit < 0.3 else self._suspicion(spec) if self._beliefs and habit < 0.6 else self._computed(spec)
        return (*prompt, self.token()), self.namespace()

    def say(self, tokens: Tokens) -> None:
        """Later prompts may be cut from these."""
        self._said.append(tokens)

    def token(self) -> int:
        """One of the few that this program uses."""
        return self._any(self._alphabet)

    def tokens(self, count: int) -> Tokens:
        """`count` of them."""
        return tuple([self._any(self._alphabet) for _ in range(count)])

    def continuation(self, sequence: Sequence, count: int) -> Tokens:
        """Tokens to follow what `sequence` knows: often what followed it in another sequence."""
        known = tuple(sequence.known)
        if self._random() < 0.5:
            for said in reversed(self._said[-12:]):
                if len(said) > len(known) and said[: len(known)] == known:
                    return said[len(known) : len(known) + count]
        return self.tokens(count)

    # -- what a confused cache would believe -----------------------------------------------------------------------------------------------------------

    def learn(self, sequence: Sequence, tokens: Tokens) -> None:
        """`sequence` comes to know `tokens`: so it does in the mind of a confused cache."""
        self._beliefs = [(seq, (*believed, *tokens) if seq == sequence.seq else believed) for seq, believed in self._beliefs]

    def doubt_commit(self, sequence: Sequence, drafts: Tokens, accepted: int) -> None:
        """Remember what a cache that mixes up accepted and rejected drafts would believe."""
        known = tuple(sequence.known)
        self.learn(sequence, drafts[:accepted])
        for wrong in {drafts, drafts[accepted:], drafts[len(drafts) - accepted :]}:
            if wrong != drafts[: len(wrong)] or len(wrong) > accepted:
                self._believe(sequence, (*known, *wrong))

    def doubt_blocks(self, spec: Spec, sequence: Sequence) -> None:
        """Remember what follows each block of `sequence`: a cache that knows a block by the id of the one before it believes that still when the id is used again."""
        size, known = spec.block_sizes[0], sequence.known
        for index, block in enumerate(spec.tables(sequence)[0][: len(known) // size - 1], 1):
            follower = tuple(known[index * size : (index + 1) * size])
            if block is not None and follower not in (followers := self._followers.setdefault(block, [])):
                followers.append(follower)
                del followers[:-MOST_FOLLOWERS]

    def doubt_truncation(self, sequence: Sequence) -> None:
        """Remember what a cache that keeps forgotten tokens, or forgotten blocks, would believe after the next append."""
        self._believe(sequence, tuple(sequence.known))
        self._forgotten = (sequence.seq, tuple(sequence.known[: sequence.computed - sequence.computed % self.block_size]))

    def _believe(self, sequence: Sequence, tokens: Tokens) -> None:
        self._beliefs.append((sequence.seq, tokens))
        del self._beliefs[:-12]

    # -- prompts ---------------------------------------------------------------------------------------------------------------------------------------

    def _prompt(self, spec: Spec) -> Tokens:
        most = self._room + self.block_size if self._random() < 0.1 else max(2, min(self._room, self._blocks_at_once * self.block_size))
        if not self._said or self._random() > self._repeats_rate:
            return self.tokens(self._length(most))
        if self._beliefs and self._random() < 0.25:
            return self._suspicion(spec)
        base = self._any(self._said[-12:])
        habit = self._random()
        if habit < 0.35:
            return base + self.tokens(self._any((0, 1, 1, self.block_size)))
        cut = base[: self._length(len(base))]
        if habit < 0.6:
            return cut + self.tokens(self._any((0, 1, self.block_size)))
        if habit < 0.65:
            # A beginning that repeats: an index that is off by a block finds its own tokens again.
            return (base[: self.block_size * self._between(1, 2)] + base)[:most]
        if habit < 0.69:
            return self._followed(spec)[:most] + self.tokens(1)
        if habit < 0.75:
            return self._spliced(base)[:most] + self.tokens(self._any((0, 1)))
        return self._mutate(base)[:most] + self.tokens(self._any((0, 1)))

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
        return shared + self.tokens(self._any((1, 1, 2, self.block_size))), sequence.namespace

    def _asked_after_reuse(self, spec: Spec) -> tuple[Tokens, Namespace] | None:
        """A prompt that a stale key answers, in the namespace of whoever uses that block now."""
        places = self._reused(spec) if self._followers and self._random() < REUSE_SHARE else ()
        if not places:
            return None
        sequence, end, follower = self._any(places)
        return (*sequence.known[:end], *follower, self.token()), sequence.namespace

    def _computed(self, spec: Spec) -> Tokens:
        """What some sequence knows, or something that a weak hash takes for it."""
        sequence = self._pick([s for s in spec.sequences.values() if s.known])
        if sequence is None or self._random() < 0.3:
            return self._prompt(spec)
        known = tuple(sequence.known)
        habit = self._random()
        if habit < 0.2:
            return self._spliced(known)
        return self._mutate(known) if habit < 0.6 else known

    def _suspicion(self, spec: Spec) -> Tokens:
        """A prompt that only a confused cache can know."""
        seq, blocks = self._forgotten
        if blocks and len(spec.sequences[seq].known) > len(blocks) and self._random() < 0.4:
            return (*blocks, *spec.sequences[seq].known[len(blocks) :])
        _, believed = self._any(self._beliefs)
        return believed + self.tokens(self._any((0, 1, 1, self.block_size)))

    def _followed(self, spec: Spec) -> Tokens:
        """What a sequence knows up to a block whose id another sequence had, and then what followed that block there."""
        places = self._reused(spec)
        if not places:
            return self._computed(spec)
        sequence, end, follower = self._any(places)
        return (*sequence.known[:end], *follower)

    def _reused(self, spec: Spec) -> list[tuple[Sequence, int, Tokens]]:
        """Where a sequence uses a block that something else followed once: the sequence, where that block ends in it, and what followed."""
        size = spec.block_sizes[0]
        return [
            (sequence, index * size, follower)
            for sequence in spec.live.values()
            for index, block in enumerate(spec.tables(sequence)[0][: sequence.computed // size], 1)
            if block in self._followers
            for follower in self._followers[block]
            if tuple(sequence.known[index * size : (index + 1) * size]) != follower
        ]

    def _spliced(self, tokens: Tokens) -> Tokens:
        """`tokens` behind the beginning of others: an index that knows a block by its own tokens, or by the id of the block before it, finds what follows another beginning."""
        cut = self.block_size * self._between(1, 2)
        other = self._any(self._said[-12:]) if self._said else ()
        return other[:cut] + tokens[cut:] if len(other) >= cut < len(tokens) else tokens

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
            new[i] = self.token()
        return tuple(new)

    def _draw_namespaces(self, fields: list[str]) -> list[Namespace]:
        rng = self.rng
        if not fields or self._random() < 0.3:
            return [Namespace()]
        spaces = [Namespace()] if self._random() < 0.5 else []
        style = self._any(("one", "alike", "alike", "shift", "shift", "swapped", "concat", "concat", "near", "near", "near", "any"))
        a, b = rng.sample(fields, 2) if len(fields) > 1 else (fields[0], fields[0])
        word = self._any(WORDS)
        if style == "one":
            spaces += [Namespace(**{a: word}), Namespace(**{a: self._any(WORDS)})]
        elif style == "alike":
            spaces += [Namespace(**{a: name}) for name in self._any(ALIKE)]
        elif style == "shift":
            spaces += [Namespace(**{a: word}), Namespace(**{b: word})]
        elif style == "swapped" and a != b:
            # A key that sorts what the fields say.
            spaces += [Namespace(**{a: "a", b: "b"}), Namespace(**{a: "b", b: "a"})]
        elif style == "concat" and a != b:
            # A key that is one text, in either order, with nothing or a separator between the fields.
            between = self._any(SEPARATORS) if self._random() < 0.6 else ""
            if between:
                # Those between them, if any, are not set, and would be told by two separators.
                named = [field for field in NAMESPACE_FIELDS if field in fields]
                first = self._between(0, len(named) - 2)
                a, b = named[first : first + 2]
            spaces += [Namespace(**{a: "a", b: f"a{between}a"}), Namespace(**{a: f"a{between}a", b: "a"})]
        elif style == "near":
            spaces += self._near(fields)
        else:
            spaces += [
                Namespace(**{f: self._any(WORDS) for f in rng.sample(fields, self._between(1, min(3, len(fields))))}) for _ in range(2)
            ]
        return spaces

    def _near(self, fields: list[str]) -> list[Namespace]:
        """Two that differ in one field: a key leaves it out, takes an empty one or the text None for none, or does so only where others are set."""
        base: dict[str, str] = {field: self._any(WORDS) for field in self.rng.sample(fields, self._any((min(2, len(fields)), len(fields))))}
        field = self._any(list(base))
        if self._random() < 0.5:
            return [Namespace(**base), Namespace(**{**base, field: self._any(WORDS)})]
        without = {name: word for name, word in base.items() if name != field}
        return [Namespace(**{**base, field: self._any((base[field], "", "None"))}), Namespace(**without)]


def _move_digit(one: int, two: int) -> tuple[int, int]:
    """Two other numbers that read the same when written one after the other: 1, 12 becomes 11, 2. The same two where there are none."""
    text = f"{one}{two}"
    for cut in range(1, len(text)):
        left, right = text[:cut], text[cut:]
        plain = right == "0" or not right.startswith("0")
        if plain and (left == "0" or not left.startswith("0")) and int(left) != one:
            return int(left), int(right)
    return one, two
