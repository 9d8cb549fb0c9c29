"""When two states are the same: up to the names of blocks and the numbers of sequences.

A state is what spec and cache show together: for each sequence its namespace, tokens, computed count, pass, and table; for each block what its slots hold, its holders,
and whether it is matchable, retiring or forgotten; the free list in its order; which steps are open. Some things are left out, since they make every
history a state of its own: when a block was last used beyond the order of the free list, how often, when and under which device work a block was let go of, what a block still
holds that nobody lists, that is not matchable by the books and that no device work reaches, and what became of contents that are no longer anywhere.

Of two states that differ only in which blocks the spec lets the cache hold back, because they were let go of while device work was out or are copied by a fork or a swap, the one with fewer is judged more
strictly, as far as what is left out does not differ: whatever the other could show wrong, it shows too. A key says so (`covers`), and a search need not go on from the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import groupby, permutations, product
from operator import itemgetter
from typing import Any, Final, TypeAlias

from kvproof.models.ops import Namespace, Tokens
from kvproof.models.spec import Spec
from kvproof.models.state import Pass, Sequence

Form: TypeAlias = tuple[Any, ...]
"""A state in plain values, with blocks and sequences renamed."""

Order: TypeAlias = list[tuple[Form, Sequence]]
"""Sequences, each with what it shows without its blocks."""

Names: TypeAlias = Callable[[Iterable[int]], Tokens]
"""Tokens under their names."""

MOST_RENAMED: Final = 3
"""Token values that are renamed at most: all orders of them are tried. With more, the values are their own names, and fewer states are the same."""

FORM_BYTES: Final = 16
"""Of the digest of a form."""

KEY_BYTES: Final = 18
"""Of a key: the digest, and a bit for each block that may be held back; no scope has more than 16 blocks."""


def key(spec: Spec, *, rename_tokens: bool = False) -> bytes:
    """Bytes that are the same for equal states, and for no others that anybody will meet. `rename_tokens`: the values of tokens are names too, as they are to a cache that
    only compares them.
    """
    told, held_back = min(_Renamed(spec, order, tokens).told() for order, tokens in _arrangements(spec, rename_tokens))
    return hashlib.blake2b(told.encode(), digest_size=FORM_BYTES).digest() + held_back.to_bytes(KEY_BYTES - FORM_BYTES)


def covers(one: bytes, two: bytes) -> bool:
    """Whether the state of key `one` is that of `two`, or the same and judged more strictly."""
    return one[:FORM_BYTES] == two[:FORM_BYTES] and not _held_back(one) & ~_held_back(two)


def _held_back(found: bytes) -> int:
    return int.from_bytes(found[FORM_BYTES:])


def _token_names(spec: Spec, rename: bool) -> Iterable[Names]:
    """The names of tokens that could give the least form: themselves, or all there are for few values."""
    values = sorted({token for sequence in spec.live.values() for token in sequence.known} | _shown_tokens(spec)) if rename else []
    if not 0 < len(values) <= MOST_RENAMED:
        return (tuple,)
    return [partial(_renamed, dict(zip(order, range(len(order)), strict=True))) for order in permutations(values)]


def _renamed(names: dict[int, int], tokens: Iterable[int]) -> Tokens:
    return tuple([names[token] for token in tokens])


def _shown_tokens(spec: Spec) -> set[int]:
    """The tokens of drafts, of what lies in blocks, and of what was saved to another tier."""
    memory, tree = spec.memory, spec.tree
    contents = {content for content in (*memory.slots, *memory._launched) if content > 0}
    contents |= {content for sequence in spec.live.values() for group in sequence.saved for _, content in group if content > 0}
    nodes = {content // len(spec.block_sizes) for content in contents}
    return {token for out in spec.passes for token in out.drafts}.union(*(tree.tokens(node) for node in nodes))


def _arrangements(spec: Spec, rename_tokens: bool) -> Iterator[tuple[Order, Names]]:
    """The orders of the sequences, and names of tokens, that could give the least form: what sequences show without their blocks decides first, and only those that look alike
    change places.
    """
    named = [
        (
            sorted(
                ((repr(plain := _plain(spec, sequence, tokens)), plain, sequence) for sequence in spec.sequences.values()),
                key=itemgetter(0),
            ),
            tokens,
        )
        for tokens in _token_names(spec, rename_tokens)
    ]
    least = min([shown for shown, _, _ in rows] for rows, _ in named)
    for rows, tokens in named:
        if [shown for shown, _, _ in rows] == least:
            alike = [[(plain, sequence) for _, plain, sequence in group] for _, group in groupby(rows, key=itemgetter(0))]
            for choice in product(*(permutations(group) for group in alike)):
                yield [one for group in choice for one in group], tokens


def _plain(spec: Spec, sequence: Sequence, tokens: Names) -> Form:
    if sequence.gone:
        return ("gone", tuple(_pass(out, tokens) for out in spec.passes if out.seq == sequence.seq))
    shapes = tuple(tuple(block is not None for block in table) for table in spec.tables(sequence))
    out = None if sequence.out is None else _pass(sequence.out, tokens)
    return ("live", _fields(sequence.namespace), tokens(sequence.known), sequence.computed, sequence.asked, out, sequence.swapped, shapes)


def _pass(out: Pass, tokens: Names) -> Form:
    return (out.start, out.count, tokens(out.drafts), out.launched, out.finished, len(out.copied))


@cache
def _fields(namespace: Namespace) -> tuple[str, ...]:
    return tuple(f"{field}={value}" for field in namespace.__struct_fields__ if (value := getattr(namespace, field)) is not None)


class _Renamed:
    """A state with its sequences in a given order, its tokens under other names, and its blocks in the order in which they are met."""

    def __init__(self, spec: Spec, order: Order, tokens: Names) -> None:
        self.spec = spec
        self.order = order
        self.tokens = tokens
        self.numbers = {sequence.seq: number for number, (_, sequence) in enumerate(order)}
        self.names: dict[int, int] = {}

    def told(self) -> tuple[str, int]:
        """The form, and a bit for each block that the cache may hold back."""
        told = repr(self._form())
        held_back = set(self.spec.deferrals).union(*(transfer.blocks for transfer in self.spec.transfers))
        return told, sum(1 << self.names[block] for block in held_back)

    def _form(self) -> Form:
        spec, books = self.spec, self.spec.seen.books
        sequences = tuple((plain, self._tables(spec.tables(sequence)), self._saved(sequence)) for plain, sequence in self.order)
        passes = tuple(
            (self.numbers[out.seq], _pass(out, self.tokens), self._tables(out.tables), self._blocks(sorted(out.copied)))
            for out in spec.passes
        )
        free = () if books.free is None else self._blocks(books.free)
        rest = sorted((repr(self._block(block)), block) for block in spec.universe if block not in self.names)
        self._blocks(block for _, block in rest)
        blocks = tuple(self._block(block) for block in self.names)
        steps = tuple(tuple(spec.passes.index(out) for out in step if out in spec.passes) for step in spec.steps)
        return (sequences, passes, free, blocks, steps)

    def _tables(self, tables: Iterable[Iterable[int | None]]) -> Form:
        return tuple(tuple(None if block is None else self._name(block) for block in table) for table in tables)

    def _blocks(self, blocks: Iterable[int]) -> Form:
        return tuple(self._name(block) for block in blocks)

    def _name(self, block: int) -> int:
        return self.names.setdefault(block, len(self.names))

    def _block(self, block: int) -> Form:
        memory, books = self.spec.memory, self.spec.seen.books
        return (
            self._contents(block) if self._is_readable(block) else (),
            memory.forgotten.get(block),
            block in memory.proven,
            books.refcounts is not None and books.refcounts.get(block, 0),
            books.cached is not None and block in books.cached,
            books.retiring is not None and block in books.retiring,
        )

    def _is_readable(self, block: int) -> bool:
        """Whether anybody, or any device work, may read what the block holds. Where the cache keeps no books on what is matchable, everything may be."""
        spec, cached = self.spec, self.spec.seen.books.cached
        if cached is None or block in cached or block in spec.owners:
            return True
        return any(block in out.blocks for out in spec.passes)

    def _contents(self, block: int) -> Form:
        memory = self.spec.memory
        first = block * memory.stride
        slots = range(first, first + memory.stride)
        return (
            tuple(self._content(memory.slots[slot]) for slot in slots),
            tuple(self._content(memory._launched[slot]) if slot in memory._ahead else 0 for slot in slots),
            tuple(slot in memory.drafts for slot in slots),
        )

    def _content(self, content: int) -> Form | int:
        if content <= 0:
            return content
        node, group = divmod(content, len(self.spec.block_sizes))
        return (_fields(self.spec.tree.namespace(node)), self.tokens(self.spec.tree.tokens(node)), group)

    def _saved(self, sequence: Sequence) -> Form:
        return tuple(tuple((position, self._content(content)) for position, content in group) for group in sequence.saved)
