"""What operations and `take_events` return: checked for type and range, and copied. Everything here raises AdapterFault."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kvproof.impl.checker.blocks import LISTS, BlockIds, as_integer
from kvproof.impl.checker.faults import AdapterFault, call_of, described, told
from kvproof.models.ops import Op
from kvproof.models.outcomes import Event, Grant, Hit

NO_GRANT: Final = Grant()


def hit(op: Op, found: object) -> Hit:
    """How many tokens were found."""
    if not isinstance(found, Hit):
        raise AdapterFault(f"{call_of(op)} returned {described(found)}; it must return kvproof.Hit.")
    return Hit(count(op, "Hit.tokens", found.tokens))


def grant(op: Op, granted: object, ids: BlockIds, groups: int) -> Grant:
    """The copies, zeroed blocks and adopted tokens of a grant, in a cache of so many `groups`."""
    if not isinstance(granted, Grant):
        raise AdapterFault(f"{call_of(op)} returned {described(granted)}; it must return kvproof.Grant.")
    if granted == NO_GRANT and type(granted.adopted) is int:
        return NO_GRANT
    copies = []
    for copy in _iterable(op, "Grant.copies", granted.copies):
        if not isinstance(copy, tuple | list) or len(copy) != 3:
            raise AdapterFault(f"{call_of(op)}: Grant.copies holds {copy!r}; each copy is (group, source block, destination block).")
        group = as_integer(copy[0])
        if group is None or not 0 <= group < groups:
            there = "there is only group 0" if groups == 1 else f"the groups are 0 to {groups - 1}"
            raise AdapterFault(f"{call_of(op)}: Grant.copies names group {copy[0]!r}, but {there}.")
        copies.append((group, ids.block("Grant.copies", copy[1]), ids.block("Grant.copies", copy[2])))
    zeroed = tuple(ids.block("Grant.zeroed", block) for block in _iterable(op, "Grant.zeroed", granted.zeroed))
    return Grant(tuple(copies), zeroed, count(op, "Grant.adopted", granted.adopted))


def count(op: Op, what: str, value: object) -> int:
    """A number that cannot be negative; `what` it is stands in the sentence."""
    number = integer(op, what, value)
    if number < 0:
        raise AdapterFault(f"{call_of(op)}: {what} is {number}; it cannot be negative.")
    return number


def integer(op: Op, what: str, value: object) -> int:
    """A number; `what` it is stands in the sentence."""
    number = as_integer(value)
    if number is None:
        raise AdapterFault(f"{call_of(op)}: {what} is {described(value)}; it must be an integer.")
    return number


def yes_or_no(op: Op, value: object) -> bool:
    """Whether the cache could do it."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise AdapterFault(f"{call_of(op)} returned {described(value)}; it must return True or False.")


def nothing(op: Op, value: object) -> None:
    """No answer: it went well, or it would have raised."""
    if value is not None:
        raise AdapterFault(f"{call_of(op)} returned {described(value)}; it must return nothing.")


def events(taken: Any, ids: BlockIds) -> list[Event]:  # noqa: ANN401 -- an adapter may return anything
    """What take_events() returned."""
    if type(taken) in LISTS and not taken:
        return []
    if isinstance(taken, str) or not isinstance(taken, Iterable):
        raise AdapterFault(f"take_events() returned {described(taken)}; it must return a sequence of kvproof.Event.")
    try:
        listed = list(taken)
    except Exception as error:
        raise AdapterFault(f"what take_events() returned could not be read: {told(error)}.") from error
    return [_event(event, ids) for event in listed]


def _event(event: object, ids: BlockIds) -> Event:
    if not isinstance(event, Event) or event.kind not in ("stored", "removed", "cleared"):
        raise AdapterFault(f"take_events() returned {event!r}; each must be a kvproof.Event of kind stored, removed or cleared.")
    blocks = [event.blocks] if isinstance(event.blocks, int) else event.blocks
    return Event(event.kind, ids.blocks("Event.blocks", blocks), event.reason)


def _iterable(op: Op, what: str, value: object) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise AdapterFault(f"{call_of(op)}: {what} is {described(value)}; it must be a sequence.")
    return value
