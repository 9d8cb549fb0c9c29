"""Hypothesis strategies for what a cache is asked: pools, prompts, namespaces, drafts, and whole programs.

    from hypothesis import given
    from kvproof.properties import strategies
    from kvproof.properties.lockstep import run

    @given(strategies.programs(Adapter.capabilities()), strategies.pools(Adapter.capabilities()))
    def test_any_program(ops, pool):
        assert run(ops, Adapter, num_blocks=pool.num_blocks, block_size=pool.block_size).ok

They lean towards what breaks caches: block boundaries, tiny pools, prompts that share a prefix and differ late, and equal tokens under
namespaces that collide where fields are joined or left out. Each takes its habits as arguments, so a third party can narrow or widen one
without copying it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    NO_NAMESPACE,
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
)

ALPHABET: Final[Tokens] = (0, 1)
"""Two tokens make equal prefixes likely; every confusion of blocks that needs different content still has it."""

ALPHABETS: Final[tuple[Tokens, ...]] = ((0, 1), (0, 1, 2), tuple(range(8)), (1, 2, 11, 12, 21, 112, 211, 1000, 1001))
"""The last one holds numbers that read the same when they are written one after the other: 1, 12 and 11, 2."""

WORDS: Final = ("a", "b", "ab", "ba", "aa", "None", "", "1")
"""Namespace values that collide where fields are concatenated ("a" + "ba", "ab" + "a"), or where None is turned into text."""

SMALL_BLOCK: Final = 4
"""Blocks of at most this many tokens are preferred: a boundary is crossed every few operations."""

MAX_BLOCKS: Final = 12
"""Pools are small, so that reuse, eviction and exhaustion happen within a few operations."""

PROMPT_BLOCKS: Final = 3
"""Prompts fill up to this many blocks: the known prefix confusions need two or three, and more fill a small pool at once."""

MAX_LIVE: Final = 6
"""Sequences alive at once: ownership bugs need two or three, and more crowd the pool for no new situation."""

MAX_OPS: Final = 40
"""Operations of a whole program; nearly every known ownership bug shows within ten."""


class Pool(NamedTuple):
    """The pool that one program runs on."""

    num_blocks: int
    block_size: int


# -- pools ---------------------------------------------------------------------------------------------------------------------------------


def least_blocks(capabilities: Capabilities) -> int:
    """The smallest pool worth a program: one block for each group, one to spare, and the null blocks."""
    nulls = max(capabilities.null_blocks, default=-1) + 1
    return min(max(1 + len(capabilities.groups) + len(capabilities.null_blocks), nulls + 1), capabilities.max_blocks)


@st.composite
def pools(draw: DrawFn, capabilities: Capabilities, *, max_blocks: int = MAX_BLOCKS) -> Pool:
    """A pool within what `capabilities` allow: mostly tiny, with blocks of a few tokens, now and then with any size that is claimed."""
    small = [size for size in capabilities.block_sizes if size <= SMALL_BLOCK] or [min(capabilities.block_sizes)]
    sizes = small * 3 + [size for size in capabilities.block_sizes if size not in small]
    least = least_blocks(capabilities)
    most = max(least, min(max_blocks, capabilities.max_blocks))
    # Half of the pools are of middling size: in the smallest ones most extends find no room.
    middling = [blocks for blocks in (6, 8, most) if least <= blocks <= most]
    num_blocks = draw(st.sampled_from(middling * ((most - least) // len(middling) + 1) + list(range(least, most + 1))))
    return Pool(num_blocks, draw(st.sampled_from(sizes)))


# -- tokens --------------------------------------------------------------------------------------------------------------------------------


def tokens(least: int, most: int, alphabet: Tokens = ALPHABET) -> SearchStrategy[Tokens]:
    """`least` to `most` tokens of `alphabet`, drawn as one choice: a program holds thousands of tokens, and one choice for each would be
    slow.
    """
    return st.binary(min_size=least, max_size=most).map(lambda data: tuple(alphabet[byte % len(alphabet)] for byte in data))


def lengths(block_size: int, most: int) -> SearchStrategy[int]:
    """A number of tokens from 1 to `most`, mostly at a block boundary or one beside it."""
    edges = {edge + beside for edge in range(0, most + 1, block_size) for beside in (-1, 0, 1)}
    near = sorted(edge for edge in edges if 1 <= edge <= most) or [1]
    return st.sampled_from(near * 2 + list(range(1, min(most, len(near)) + 1)))


@st.composite
def prompts(
    draw: DrawFn, *, block_size: int = 2, most: int | None = None, said: Sequence[Tokens] = (), alphabet: Tokens = ALPHABET
) -> Tokens:
    """A prompt of 1 to `most` tokens (default: `PROMPT_BLOCKS` blocks). Where something was `said` before, mostly a lookalike of it: the
    same, cut near a block boundary, continued, or changed in one late token.
    """
    most = most or PROMPT_BLOCKS * block_size
    habit = draw(st.integers(0, 5)) if said else 0
    if habit <= 1:
        return draw(tokens(1, most, alphabet))
    base = said[-1 - draw(st.integers(0, min(len(said), 8) - 1))]
    if habit == 2:
        return base
    if habit == 3:
        return base + draw(tokens(1, block_size + 1, alphabet))
    cut = draw(lengths(block_size, len(base)))
    if habit == 4:
        return base[:cut] + draw(tokens(0, block_size, alphabet))
    return differs_late(base, cut, alphabet)


def differs_late(prompt: Tokens, position: int, alphabet: Tokens = ALPHABET) -> Tokens:
    """`prompt` with another token of `alphabet` at `position`, or at its last one if it is shorter; equal before and after."""
    at = min(position, len(prompt) - 1)
    other = next((token for token in alphabet if token != prompt[at]), prompt[at] + 1)
    return (*prompt[:at], other, *prompt[at + 1 :])


def drafts(*, block_size: int = 2, likely: Tokens = (), alphabet: Tokens = ALPHABET) -> SearchStrategy[Tokens]:
    """One draft token up to one more than a block holds; often a leading part of `likely`, what followed the same prefix elsewhere."""
    made = tokens(1, block_size + 1, alphabet)
    if not likely:
        return made
    return st.one_of(st.integers(1, min(len(likely), block_size + 1)).map(lambda length: likely[:length]), made)


# -- namespaces ----------------------------------------------------------------------------------------------------------------------------


def namespaces(fields: Collection[str] = NAMESPACE_FIELDS, words: Sequence[str] = WORDS) -> SearchStrategy[Namespace]:
    """A namespace that sets some of `fields`: its values collide where a cache joins fields, drops one, or takes None for a word."""
    named = sorted(fields)
    if not named:
        return st.just(NO_NAMESPACE)
    one = st.tuples(st.sampled_from(named), st.sampled_from(words)).map(lambda pair: Namespace(**{pair[0]: pair[1]}))
    some = st.dictionaries(st.sampled_from(named), st.sampled_from(words), max_size=3).map(lambda values: Namespace(**values))
    return st.one_of(st.just(NO_NAMESPACE), one, some)


@st.composite
def colliding_namespaces(draw: DrawFn, fields: Collection[str] = NAMESPACE_FIELDS) -> tuple[Namespace, ...]:
    """Two or more namespaces for one program, unequal but easily confused: a value moved to the next field, two values that join to the
    same text, a word against None. Only the empty namespace if there are no `fields`.
    """
    named = sorted(fields)
    if not named:
        return (NO_NAMESPACE,)
    a = draw(st.sampled_from(named))
    b = draw(st.sampled_from([field for field in named if field != a] or [a]))
    word = draw(st.sampled_from(WORDS))
    pairs: list[tuple[Namespace, ...]] = [
        (NO_NAMESPACE, Namespace(**{a: word})),
        (Namespace(**{a: word}), Namespace(**{a: "b" if word == "a" else "a"})),
        (Namespace(**{a: word}), Namespace(**{b: word}), NO_NAMESPACE),
    ]
    if a != b:
        pairs.append((Namespace(**{a: "a", b: "ba"}), Namespace(**{a: "ab", b: "a"})))
        pairs.append((Namespace(**{a: word}), Namespace(**{a: word, b: word})))
    return draw(st.sampled_from(pairs))


# -- programs ------------------------------------------------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """What a program believes of one sequence: a cache may adopt a prefix or refuse, so these are guesses, and a wrong one makes a skipped
    operation.
    """

    known: Tokens
    computed: int = 0
    asked: int = 0
    """Tokens of the pass that is out."""
    drafts: Tokens = ()


class _Choice(NamedTuple):
    """The raw material of one operation: which sequence, how much, and spare tokens."""

    kind: str
    which: int
    amount: int
    spare: Tokens


_Maker: TypeAlias = "Callable[[_Writer, _Choice], list[Op]]"

WEIGHTS: Final[dict[str, int]] = {
    "admit": 3, "match": 1, "extend": 4, "commit": 4, "append": 2, "truncate": 1, "fork": 1, "release": 2,
    "begin": 3, "end": 3, "evict": 1, "reset": 1, "swap": 2, "draft": 2,
}  # fmt: skip
"""How often each kind of operation is chosen in `programs`, relative to the others: a pass needs an extend, a commit, and with steps a
begin and an end.
"""


@st.composite
def programs(draw: DrawFn, capabilities: Capabilities, *, block_size: int = 2, max_ops: int = MAX_OPS) -> list[Op]:
    """A program for any cache with these `capabilities`: a list of operations, nearly all of which are enabled when their turn comes.

    It knows nothing of the pool, so the same program can be run on several. Any sub-list of it can be run too, and it shrinks by leaving
    operations out.
    """
    kinds = [kind for kind, weight in WEIGHTS.items() if _claimed(capabilities, kind) for _ in range(weight)]
    alphabet = draw(st.sampled_from(ALPHABETS))
    spaces = draw(colliding_namespaces(capabilities.namespace_fields))
    small = st.integers(0, 7)
    choice = st.builds(_Choice, st.sampled_from(kinds), small, small, tokens(1, PROMPT_BLOCKS * block_size, alphabet))
    writer = _Writer(spaces, block_size)
    for one in draw(st.lists(choice, min_size=1, max_size=max_ops)):
        writer.write(one)
    return writer.ops[:max_ops]


def _claimed(capabilities: Capabilities, kind: str) -> bool:
    needs = {"match": "prefix", "begin": "steps", "end": "steps", "draft": "drafts"}
    if kind in ("admit", "extend", "commit", "append", "release"):
        return True
    return bool(getattr(capabilities, needs.get(kind, kind)))


class _Writer:
    """Turns raw choices into operations that make sense after each other."""

    def __init__(self, spaces: tuple[Namespace, ...], block_size: int) -> None:
        self.spaces = spaces
        self.block_size = block_size
        self.ops: list[Op] = []
        self.live: dict[int, _Known] = {}
        self.said: list[Tokens] = []
        self.seqs = 0

    def write(self, choice: _Choice) -> None:
        """Add the operation that `choice` stands for; a first admit where there is nobody to work on."""
        kind = choice.kind
        if not self.live and kind not in ("begin", "end", "evict", "reset"):
            kind = "admit"
        self.ops += _MAKERS[kind](self, choice)

    def _admit(self, choice: _Choice) -> list[Op]:
        prompt = choice.spare
        if self.said and choice.amount > 1:
            base = self.said[choice.which % len(self.said)]
            lookalikes = (base, base + choice.spare, base[: -(len(base) // 2)] + choice.spare, differs_late(base, len(base) - 1))
            prompt = lookalikes[choice.amount % len(lookalikes)] or choice.spare
        if len(self.live) >= MAX_LIVE:
            return []
        self.seqs += 1
        self.live[self.seqs - 1] = _Known(prompt)
        self.said.append(prompt)
        return [Admit(self.seqs - 1, prompt, self.spaces[choice.which % len(self.spaces)])]

    def _pick(self, choice: _Choice, fits: Callable[[_Known], bool]) -> int | None:
        found = [seq for seq, known in self.live.items() if fits(known)]
        return found[-1 - choice.which % len(found)] if found else None

    def _match(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: one.computed == 0 and not one.asked)
        return [] if seq is None else [Match(seq)]

    def _extend(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked and one.computed < len(one.known))
        if seq is None:
            return []
        one = self.live[seq]
        left = len(one.known) - one.computed
        count = left if choice.amount % 2 == 0 else max(1, min(left, self.block_size + choice.amount // 2 - 2))
        self.live[seq] = one._replace(asked=count)
        return [Extend(seq, count)]

    def _draft(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked and 0 < one.computed < len(one.known))
        if seq is None:
            return self._append(choice)
        one = self.live[seq]
        drafted = choice.spare[: self.block_size + 1]
        self.live[seq] = one._replace(asked=len(one.known) - one.computed, drafts=drafted)
        self.said.append(one.known + drafted)
        return [Extend(seq, len(one.known) - one.computed, drafted)]

    def _commit(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: one.asked > 0)
        if seq is None:
            return self._extend(choice)
        one = self.live[seq]
        accepted = (0, len(one.drafts), choice.which % (len(one.drafts) + 1))[choice.amount % 3]
        known = one.known + one.drafts[:accepted]
        self.live[seq] = _Known(known, one.computed + one.asked + accepted)
        return [Commit(seq, accepted)]

    def _append(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked)
        if seq is None:
            return []
        added = choice.spare[: 1 + choice.amount]
        self.live[seq] = self.live[seq]._replace(known=self.live[seq].known + added)
        self.said.append(self.live[seq].known)
        return [Append(seq, added)]

    def _truncate(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked and one.computed > 0)
        if seq is None:
            return []
        one = self.live[seq]
        length = max(1, min(one.computed, choice.which // 2 * self.block_size + (choice.amount % 3) - 1))
        self.live[seq] = _Known(one.known[:length], length)
        return [Truncate(seq, length)]

    def _fork(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked)
        if seq is None or len(self.live) >= MAX_LIVE:
            return []
        self.seqs += 1
        self.live[self.seqs - 1] = self.live[seq]
        return [Fork(seq, self.seqs - 1)]

    def _release(self, choice: _Choice) -> list[Op]:
        if choice.amount == 0:
            again = choice.which % self.seqs
            self.live.pop(again, None)
            return [Release(again)]
        seq = self._pick(choice, lambda one: True)  # noqa: ARG005
        if seq is None:
            return []
        reason = RELEASE_REASONS[choice.amount % len(RELEASE_REASONS)]
        if reason == "preempt":
            self.live[seq] = _Known(self.live[seq].known)
        else:
            del self.live[seq]
        return [Release(seq, reason)]

    def _evict(self, choice: _Choice) -> list[Op]:
        return [Evict((choice.which, choice.which + 1, choice.which + 2)[: 1 + choice.amount % 3])]

    def _swap(self, choice: _Choice) -> list[Op]:
        seq = self._pick(choice, lambda one: not one.asked and one.computed > 0)
        return [] if seq is None else [SwapOut(seq) if choice.amount % 2 == 0 else SwapIn(seq)]


_MAKERS: Final[dict[str, _Maker]] = {
    "admit": _Writer._admit,
    "match": _Writer._match,
    "extend": _Writer._extend,
    "draft": _Writer._draft,
    "commit": _Writer._commit,
    "append": _Writer._append,
    "truncate": _Writer._truncate,
    "fork": _Writer._fork,
    "release": _Writer._release,
    "begin": lambda writer, choice: [BeginStep()],  # noqa: ARG005
    "end": lambda writer, choice: [EndStep()],  # noqa: ARG005
    "evict": _Writer._evict,
    "reset": lambda writer, choice: [Reset()],  # noqa: ARG005
    "swap": _Writer._swap,
}
