"""Block ids and block tables as an adapter returns them: checked, and copied into tuples of plain integers."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, Final

from kvproof.impl.checker.faults import AdapterFault, described, told
from kvproof.models.state import Table

INTEGERS: Final = frozenset({int})
OPTIONAL_INTEGERS: Final = frozenset({int, type(None)})

LISTS: Final = frozenset({list, tuple})
SETS: Final = frozenset({set, frozenset})
COLLECTIONS: Final = LISTS | SETS
"""Types that can be read and compared without running any code of the adapter's."""


class BlockIds:
    """The ids of a pool of `num_blocks` blocks. Those in `nulls` are null blocks: in a table they stand for no block."""

    def __init__(self, num_blocks: int, nulls: Iterable[int]) -> None:
        self.num_blocks = num_blocks
        self.nulls = frozenset(nulls)
        self._ids = frozenset(range(num_blocks))
        self._valid = self._ids | {None}

    def table(self, call: str, raw: Any) -> Table:  # noqa: ANN401 -- an adapter may return anything
        """A block table that `call` returned, checked. Raises AdapterFault."""
        if type(raw) in LISTS and not raw:
            return ()
        if type(raw) not in LISTS and isinstance(raw, (Mapping, Set)):
            raise AdapterFault(f"{call} returned {described(raw)}; it must return a sequence of block ids, in the order of positions.")
        try:
            table = tuple(raw)
            skips = bool(self.nulls) and not self.nulls.isdisjoint(table)
        except TypeError:
            raise AdapterFault(f"{call} returned {described(raw)}; it must return a sequence of block ids.") from None
        except Exception as error:
            raise AdapterFault(f"what {call} returned could not be read: {told(error)}.") from error
        if skips:
            table = tuple(None if block in self.nulls else block for block in table)
        if self._plain(table):
            return table
        return tuple(None if block is None else self.block(call, block) for block in table)

    def _plain(self, table: tuple[Any, ...]) -> bool:
        """Whether all are plain integers in range, or None: the usual case, checked at the speed of C."""
        try:
            return self._valid.issuperset(table) and OPTIONAL_INTEGERS.issuperset(map(type, table))
        except Exception:  # noqa: BLE001 -- whatever the hash of an entry raises: each is looked at by itself then
            return False

    def are_ids(self, blocks: Collection[Any]) -> bool:
        """Whether all are plain integers in range."""
        try:
            return self._ids.issuperset(blocks) and INTEGERS.issuperset(map(type, blocks))
        except Exception:  # noqa: BLE001 -- as above
            return False

    def block(self, where: str, block: object) -> int:
        """One block id; `where` it was found is told in the sentence. Raises AdapterFault."""
        number = as_integer(block)
        if number is None:
            raise AdapterFault(f"{where} holds {described(block)}; block ids are integers.")
        if not 0 <= number < self.num_blocks:
            raise AdapterFault(f"{where} holds block {number}, but the pool has blocks 0 to {self.num_blocks - 1}.")
        return number

    def blocks(self, where: str, blocks: Any) -> tuple[int, ...]:  # noqa: ANN401 -- an adapter may return anything
        """A collection of block ids. Raises AdapterFault."""
        if type(blocks) not in COLLECTIONS and (isinstance(blocks, str) or not isinstance(blocks, Iterable)):
            raise AdapterFault(f"{where} is {described(blocks)}; it must be a collection of block ids.")
        try:
            listed = tuple(blocks)
        except Exception as error:
            raise AdapterFault(f"{where} could not be read: {told(error)}.") from error
        return listed if self.are_ids(listed) else tuple(self.block(where, block) for block in listed)


def as_integer(value: object) -> int | None:
    """The integer that a value is, whatever its type; None for what is no integer, True and False included. Raises AdapterFault."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    except Exception as error:
        raise AdapterFault(
            f"a {type(value).__name__} was returned where an integer belongs, and could not be read as one: {told(error)}."
        ) from error
