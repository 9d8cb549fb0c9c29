"""When two states are the same: up to the names of blocks and the numbers of sequences.

A state is what spec and cache show together: for each sequence its namespace, tokens, computed count, pass, and table; for each block what its slots hold, its holders,
and whether it is matchable, retiring, held back or forgotten; the free list in its order; which steps are open. Some things are left out, since they make every
history a state of its own: when a block was last used beyond the order of the free list, how often a block was let go of while device work is out, what a block still
holds that nobody lists, that is not matchable by the books and that no device work reaches, and what became of contents that are no longer anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby, permutations, product
from typing import Any, TypeAlias

from kvproof.models.spec import Spec
from kvproof.models.state import Pass, Sequence

Form: TypeAlias = tuple[Any, ...]
"""A state in plain values, with blocks and sequences renamed."""


def key(spec: Spec) -> bytes:
    """16 bytes that are the same for equal states, and for no others that anybody will meet."""
    return hashlib.blake2b(repr(form(spec)).encode(), digest_size=16).digest()


def form(spec: Spec) -> Form:
    """The least of the forms that a state has under all orders of its sequences."""
    return min((_Renamed(spec, order).form() for order in _orders(spec)), key=repr)


def _orders(spec: Spec) -> Iterable[list[Sequence]]:
    """The orders of the sequences that could give the least form: only those that look alike without their blocks change places."""
    plain = sorted(((repr(_plain(spec, sequence)), sequence) for sequence in spec.sequences.values()), key=lambda pair: pair[0])
    alike = [[sequence for _, sequence in group] for _, group in groupby(plain, key=lambda pair: pair[0])]
    for choice in product(*(permutations(group) for group in alike)):
        yield [sequence for group in choice for sequence in group]


def _plain(spec: Spec, sequence: Sequence) -> Form:
    if sequence.gone:
        return ("gone", tuple(_pass(out) for out in spec.passes if out.seq == sequence.seq))
    shapes = tuple(tuple(block is not None for block in table) for table in spec.tables(sequence))
    namespace = tuple(spec_field for spec_field in _fields(sequence.namespace))
    out = None if sequence.out is None else _pass(sequence.out)
    return ("live", namespace, tuple(sequence.known), sequence.computed, sequence.asked, out, sequence.swapped, shapes)


def _pass(out: Pass) -> Form:
    return (out.start, out.count, out.drafts, out.launched, out.finished, len(out.copied))


def _fields(namespace: Any) -> Iterable[str]:  # noqa: ANN401 -- a Namespace
    return (f"{field}={value}" for field in namespace.__struct_fields__ if (value := getattr(namespace, field)) is not None)


class _Renamed:
    """A state with its sequences in a given order, and its blocks in the order in which they are met."""

    def __init__(self, spec: Spec, order: list[Sequence]) -> None:
        self.spec = spec
        self.order = order
        self.numbers = {sequence.seq: number for number, sequence in enumerate(order)}
        self.names: dict[int, int] = {}

    def form(self) -> Form:
        spec, books = self.spec, self.spec.seen.books
        sequences = tuple((_plain(spec, sequence), self._tables(spec.tables(sequence)), self._saved(sequence)) for sequence in self.order)
        passes = tuple(
            (self.numbers[out.seq], _pass(out), self._tables(out.tables), self._blocks(sorted(out.copied))) for out in spec.passes
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
        spec, memory, books = self.spec, self.spec.memory, self.spec.seen.books
        return (
            self._contents(block) if self._is_readable(block) else (),
            memory.forgotten.get(block),
            block in memory.proven,
            spec.deferrals.age(block),
            block in spec.awaited,
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
        return (tuple(_fields(self.spec.tree.namespace(node))), self.spec.tree.tokens(node), group)

    def _saved(self, sequence: Sequence) -> Form:
        return tuple(tuple((position, self._content(content)) for position, content in group) for group in sequence.saved)
