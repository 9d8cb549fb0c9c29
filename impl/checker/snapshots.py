"""The books of a cache as its `snapshot` returns them, checked and copied.

Books mostly stay what they were. Where a field says, in plain types, what it said before, what was read before comes back: it was checked then.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from kvproof.impl.checker.blocks import INTEGERS, LISTS, OPTIONAL_INTEGERS, SETS, BlockIds, as_integer
from kvproof.impl.checker.faults import AdapterFault, described, told
from kvproof.models.outcomes import Snapshot
from kvproof.models.state import Books

NO_BOOKS: Final = Books()

_NO: Final = type(None)
_PLAIN_SNAPSHOTS: Final = frozenset(product({dict, _NO}, LISTS, {*SETS, _NO}, {*SETS, _NO}, OPTIONAL_INTEGERS))
"""Types that the fields of a snapshot have if all are such."""


def read_books(shot: object, before: Books | None, ids: BlockIds) -> Books:
    """The books in a snapshot; `before` are those that were read last. Raises AdapterFault."""
    if not isinstance(shot, Snapshot):
        raise AdapterFault(f"snapshot() returned {described(shot)}; it must return kvproof.Snapshot.")
    known = before or NO_BOOKS
    try:
        if _says(shot, known):
            return known
        books = Books(
            _counts(shot.refcounts, known.refcounts, ids),
            _free(shot.free, known.free, ids),
            _set("Snapshot.cached", shot.cached, known.cached, ids),
            _set("Snapshot.retiring", shot.retiring, known.retiring, ids),
            None if shot.free_count is None else _counted_free(shot.free_count),
        )
    except AdapterFault:
        raise
    except Exception as error:  # to hash or to compare what an adapter returned runs code of its own
        raise AdapterFault(f"what snapshot() returned could not be read: {told(error)}.") from error
    return known if books == known else books


def _says(shot: Any, known: Books) -> bool:  # noqa: ANN401 -- an adapter may put anything into its snapshot
    """Whether a snapshot says, in plain types, exactly what is `known`."""
    kinds = type(shot.refcounts), type(shot.free), type(shot.cached), type(shot.retiring), type(shot.free_count)
    return (
        kinds in _PLAIN_SNAPSHOTS
        and shot.refcounts == known.refcounts
        and tuple(shot.free) == known.free
        and shot.cached == known.cached
        and shot.retiring == known.retiring
        and shot.free_count == known.free_count
    )


def _counts(counts: object, before: dict[int, int] | None, ids: BlockIds) -> dict[int, int] | None:
    if counts is None:
        return None
    if type(counts) is dict:
        if counts == before:
            return before
        if ids.are_ids(counts) and INTEGERS.issuperset(map(type, counts.values())):
            if all(counts.values()) and ids.nulls.isdisjoint(counts):
                return counts.copy()
            return {block: count for block, count in counts.items() if count and block not in ids.nulls}
    elif not isinstance(counts, Mapping):
        raise AdapterFault(f"Snapshot.refcounts is {described(counts)}; it must map block ids to counts.")
    checked = {}
    for block, count in counts.items():
        number = as_integer(count)
        if number is None:
            raise AdapterFault(f"Snapshot.refcounts counts {described(count)} for block {block}; counts are integers.")
        if number and block not in ids.nulls:
            checked[ids.block("Snapshot.refcounts", block)] = number
    return checked


def _free(free: object, before: tuple[int, ...] | None, ids: BlockIds) -> tuple[int, ...] | None:
    if free is None:
        return None
    if type(free) in LISTS and tuple(free) == before:  # type: ignore[arg-type]  # a list or a tuple
        return before
    return ids.blocks("Snapshot.free", free)


def _set(where: str, blocks: Any, before: frozenset[int] | None, ids: BlockIds) -> frozenset[int] | None:  # noqa: ANN401
    if blocks is None:
        return None
    if type(blocks) in SETS:
        if blocks == before:
            return before
        if ids.are_ids(blocks):
            return frozenset(blocks) - ids.nulls
    return frozenset(ids.blocks(where, blocks)) - ids.nulls


def _counted_free(count: object) -> int:
    number = as_integer(count)
    if number is None:
        raise AdapterFault(f"Snapshot.free_count is {described(count)}; it must be the number that the cache's counter shows, or None.")
    return number
