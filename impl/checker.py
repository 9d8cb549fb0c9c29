"""The protocol checker around every adapter: it tells a faulty adapter from a faulty cache.

What an adapter returns is checked for type and range and copied at once into the tuples that the spec works on, so neither side can change the other's lists.
Anything that the contract rules out, whatever the cache did, raises `AdapterFault`: one sentence that names the method, the cause and the mend.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.misuse import is_async, place, unfit, unfit_class, unknown_field
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import (
    Died,
    Differs,
    Event,
    Grant,
    Hit,
    Outcome,
    OutOfBlocks,
    OutOfBlocksSeen,
    Raised,
    Refused,
    RefusedSeen,
    Snapshot,
)
from kvproof.models.state import Books, Table, Tables

REQUIRED: Final = ("admit", "extend", "commit", "append", "release", "block_table")
CLAIMED: Final[dict[str, tuple[str, ...]]] = {
    "prefix": ("match",),
    "fork": ("fork",),
    "truncate": ("truncate",),
    "steps": ("begin_step", "end_step"),
    "evict": ("evict",),
    "reset": ("reset",),
    "swap": ("swap_out", "swap_in"),
    "snapshot": ("snapshot",),
    "mirror": ("worker_table",),
    "events": ("take_events",),
}
"""The methods that each claimed capability needs."""

_PLAIN: Final = frozenset({int, type(None)})
_INTEGERS: Final = frozenset({int})

_LISTS: Final = frozenset({list, tuple})
_SETS: Final = frozenset({set, frozenset})
_COLLECTIONS: Final = _LISTS | _SETS
"""Types that can be read and compared without running any code of the adapter's."""

_NO: Final = type(None)
_PLAIN_SNAPSHOTS: Final = frozenset(product({dict, _NO}, _LISTS, {*_SETS, _NO}, {*_SETS, _NO}, _PLAIN))
"""Types that the fields of a snapshot have if all are such."""

NO_GRANT: Final = Grant()

NO_BOOKS: Final = Books()

_MISTAKES: Final = (AttributeError, NameError, NotImplementedError, TypeError)
"""What a full pool never raises: the code is wrong, not the room short."""

POLICIES: Final = ("lru", "tight", "exact", "rewrites", "groups-together", "groups-in-turn")


class AdapterFault(Exception):
    """The adapter does not keep the contract; the cache behind it was not judged."""


class Raises(AdapterFault):
    """The adapter raised an exception of its own, or of the cache's: `by_cache`."""

    def __init__(self, message: str, error: str, *, by_cache: bool = False) -> None:
        super().__init__(message)
        self.error = error
        self.by_cache = by_cache


class Hung(BaseException):
    """An operation ran past its time limit. Not an Exception: an adapter's own `except Exception` must not swallow it."""


def read_capabilities(target: type) -> Capabilities:
    """The capabilities that `target` claims, checked. Raises AdapterFault."""
    name = target.__qualname__
    method = getattr(target, "capabilities", None)
    if not callable(method):
        raise AdapterFault(
            f"{name} has no capabilities(); give it a classmethod that returns kvproof.Capabilities for a cache, or kvproof.KernelCapabilities for kernels."
        )
    _check_called_plainly(name, "capabilities", method)
    try:
        claimed = method()
    except NotImplementedError:
        raise AdapterFault(f"{name} does not define capabilities(); give it a classmethod that returns kvproof.Capabilities.") from None
    except Exception as error:
        if isinstance(error, TypeError) and not place(error):
            raise AdapterFault(f"{name}.capabilities() could not be called on the class ({error}); make it a classmethod.") from error
        unknown = unknown_field(error)
        if unknown:
            raise AdapterFault(f"{name}.capabilities(): {unknown}") from error
        raise AdapterFault(f"{name}.capabilities() raised {_told(error)}.") from error
    if not isinstance(claimed, Capabilities):
        raise AdapterFault(f"{name}.capabilities() returned {_a(claimed)}; it must return kvproof.Capabilities.")
    _check_capabilities(name, claimed)
    for method_name in REQUIRED:
        _check_method(target, method_name, "every cache needs it")
    for capability, methods in CLAIMED.items():
        if getattr(claimed, capability):
            for method_name in methods:
                _check_method(target, method_name, f"the capability {capability} is claimed")
    return claimed


def _check_method(target: type, method: str, why: str) -> None:
    found = getattr(target, method, None)
    if found is None or found is getattr(CacheAdapter, method):
        raise AdapterFault(f"{target.__qualname__} does not define {method}(), but {why}; define it, or do not claim the capability.")
    if not callable(found):
        raise AdapterFault(f"{target.__qualname__}.{method} is {_a(found)}, not a method.")
    _check_called_plainly(target.__qualname__, method, found)


def _check_called_plainly(name: str, method: str, found: object) -> None:
    if is_async(found):
        raise AdapterFault(
            f"{name}.{method}() is async, but the suite calls it and takes what comes back for the answer; "
            f"define it with def, and run what it awaits to its end inside, as by asyncio.run()."
        )


def _check_capabilities(name: str, claimed: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    def fail(what: str) -> AdapterFault:
        return AdapterFault(f"{name}.capabilities(): {what}.")

    for field in ("groups", "namespace_fields", "null_blocks", "policy", "block_sizes"):
        value = getattr(claimed, field)
        if isinstance(value, str) or not isinstance(value, Collection):
            raise fail(f"{field} is {_a(value)}; it must be a collection")
    if not claimed.groups:
        raise fail("groups is empty; a cache has at least one group of layers")
    for group in claimed.groups:
        if not isinstance(group, Group):
            raise fail(f"groups holds {_a(group)}; it must hold kvproof.Group")
        _check_group(fail, group)
    _check_names(fail, "namespace_fields", claimed.namespace_fields, NAMESPACE_FIELDS, "fields")
    _check_names(fail, "policy", claimed.policy, POLICIES, "policies")
    _check_sizes(fail, claimed)


def _check_names(fail: Callable[[str], AdapterFault], field: str, names: Collection[Any], known: Collection[str], what: str) -> None:
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise fail(f"{field} holds {_a(odd[0])}; it must hold strings")
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise fail(f"{field} names {unknown[0]!r}; the {what} are {', '.join(known)}")


def _check_sizes(fail: Callable[[str], AdapterFault], claimed: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    odd = [block for block in claimed.null_blocks if not isinstance(block, int)]
    if odd:
        raise fail(f"null_blocks holds {_a(odd[0])}; it must hold block ids")
    if not claimed.block_sizes or not all(isinstance(size, int) and size >= 1 for size in claimed.block_sizes):
        raise fail(f"block_sizes is {claimed.block_sizes!r}; give at least one, each 1 or more")
    if not isinstance(claimed.max_blocks, int) or claimed.max_blocks < 1:
        raise fail(f"max_blocks is {claimed.max_blocks!r}; it must be 1 or more")
    capacity = claimed.capacity
    if capacity is not None and not callable(capacity) and (not isinstance(capacity, int) or capacity < 0):
        raise fail(f"capacity is {_a(capacity)}; give a number, a function of num_blocks, or None")


def _check_group(fail: Callable[[str], AdapterFault], group: Any) -> None:  # noqa: ANN401 -- a struct that was built, not validated
    if group.kind in ("compressed", "state"):
        raise fail(f"the group kind {group.kind!r} is not driven yet; full and sliding_window are")
    if group.kind not in ("full", "sliding_window"):
        raise fail(f"there is no group kind {group.kind!r}; there are full, sliding_window, compressed and state")
    if group.kind == "sliding_window" and (not isinstance(group.window, int) or group.window < 1):
        raise fail(f"a sliding_window group needs a window of 1 token or more, not {group.window!r}")
    if group.block_size is not None and (not isinstance(group.block_size, int) or group.block_size < 1):
        raise fail(f"a group's block_size must be 1 token or more, not {group.block_size!r}")


class Checked:
    """One fresh cache behind its adapter, driven by operations, observed in tuples."""

    def __init__(self, target: type, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        self.target = target
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.groups = len(capabilities.groups)
        self._nulls = frozenset(capabilities.null_blocks)
        self._ids = frozenset(range(num_blocks))
        self._valid = self._ids | {None}
        self._open_steps: list[int] = []
        self._check_capacity()
        try:
            self.adapter = target(num_blocks=num_blocks, block_size=block_size)
        except Exception as error:
            unfitting = unfit_class(error, target, num_blocks=num_blocks, block_size=block_size)
            if unfitting:
                raise AdapterFault(unfitting) from error
            raise AdapterFault(
                f"{target.__qualname__}(num_blocks={num_blocks}, block_size={block_size}) raised {_told(error)}; "
                f"the suite builds caches with these two keyword arguments, within capabilities().block_sizes and max_blocks."
            ) from error

    def _check_capacity(self) -> None:
        """A capacity that is a function must give the usable blocks of a pool of this size."""
        capacity = self.capabilities.capacity
        if not callable(capacity):
            return
        told = f"{self.target.__qualname__}.capabilities(): capacity({self.num_blocks})"
        usable = self._asked(told, capacity, self.num_blocks)
        if _index(usable) is None or usable < 0:
            raise AdapterFault(f"{told} gave {_a(usable)}; it must give the number of usable blocks.")

    # -- operations -----------------------------------------------------------------------------------------------------------------------------

    def do(self, op: Op) -> Outcome:
        """Run one operation. Raises AdapterFault for anything but an answer, OutOfBlocks or Refused, and Differs where that is claimed."""
        try:
            return _DO[type(op)](self, op)
        except AdapterFault:
            raise
        except Differs:
            if self.capabilities.tensors:
                raise
            raise AdapterFault(f"{call_of(op)} raised Differs; claim the capability tensors, or do not raise it.") from None
        except OutOfBlocks:
            if isinstance(op, Extend | Fork):
                return OutOfBlocksSeen()
            raise AdapterFault(f"{call_of(op)} raised OutOfBlocks; only extend and fork may.") from None
        except Refused as refused:
            return RefusedSeen(str(refused))
        except (Exception, SystemExit) as error:
            call = call_of(op)
            unfitting = unfit(error, call, getattr(self.adapter, call.partition("(")[0]))
            if unfitting:
                raise AdapterFault(unfitting) from error
            by_cache = self._by_cache(error)
            if isinstance(op, Release):
                return Died(_told(error)) if by_cache else Raised(_told(error))
            no_room = isinstance(op, Extend | Fork) and not by_cache and not isinstance(error, _MISTAKES)
            mend = "; a cache that has no room raises kvproof.OutOfBlocks" if no_room else ""
            raise Raises(f"{call} raised {_told(error)}{mend}.", _told(error), by_cache=by_cache) from error

    def _by_cache(self, error: BaseException) -> bool:
        """Whether the adapter says that the cache itself failed. Adapters need not derive from CacheAdapter."""
        asked = getattr(self.adapter, "raised_by_cache", None)
        return asked is not None and isinstance(error, Exception) and bool(asked(error))

    def _admit(self, op: Admit) -> None:
        self._nothing(op, self.adapter.admit(op.seq, op.prompt, op.namespace))

    def _match(self, op: Match) -> Hit:
        found = self.adapter.match(op.seq)
        if not isinstance(found, Hit):
            raise AdapterFault(f"{call_of(op)} returned {_a(found)}; it must return kvproof.Hit.")
        return Hit(self._count(op, "Hit.tokens", found.tokens))

    def _extend(self, op: Extend) -> Grant:
        return self._grant(op, self.adapter.extend(op.seq, op.count, op.drafts))

    def _commit(self, op: Commit) -> None:
        self._nothing(op, self.adapter.commit(op.seq, op.accepted))

    def _append(self, op: Append) -> None:
        self._nothing(op, self.adapter.append(op.seq, op.tokens))

    def _truncate(self, op: Truncate) -> None:
        self._nothing(op, self.adapter.truncate(op.seq, op.length))

    def _fork(self, op: Fork) -> Grant:
        return self._grant(op, self.adapter.fork(op.parent, op.child))

    def _release(self, op: Release) -> None:
        self._nothing(op, self.adapter.release(op.seq, op.reason))

    def _begin_step(self, op: BeginStep) -> int:
        step = self._integer(op, "the step id", self.adapter.begin_step())
        if step in self._open_steps:
            raise AdapterFault(f"{call_of(op)} returned {step}, the id of a step that is still open.")
        self._open_steps.append(step)
        return step

    def _end_step(self, op: EndStep) -> None:
        self._nothing(op, self.adapter.end_step(self._open_steps[op.step]))
        del self._open_steps[op.step]

    def _evict(self, op: Evict) -> int:
        blocks = tuple(b for b in op.blocks if 0 <= b < self.num_blocks and b not in self._nulls)
        return self._count(op, "the number of dropped blocks", self.adapter.evict(blocks))

    def _reset(self, op: Reset) -> bool:
        return self._could(op, self.adapter.reset())

    def _swap_out(self, op: SwapOut) -> bool:
        return self._could(op, self.adapter.swap_out(op.seq))

    def _swap_in(self, op: SwapIn) -> bool:
        return self._could(op, self.adapter.swap_in(op.seq))

    # -- observations ---------------------------------------------------------------------------------------------------------------------------

    def tables(self, seq: int) -> Tables:
        """The block table of `seq` in every group."""
        return tuple([self._table("block_table", seq, group) for group in range(self.groups)])

    def all_tables(self, seqs: Collection[int], before: Mapping[int, Tables]) -> Mapping[int, Tables]:
        """Those of all `seqs`. Where any, or all, are what they were `before`, that comes back: it was checked then."""
        try:
            now = self._unchecked_tables(seqs)
            if now == before:
                return before
        except (Exception, SystemExit) as error:
            for seq in seqs:  # to ask for one table after the other tells what it is
                self.tables(seq)
            raise AdapterFault(
                f"block_table raised {_told(error)}, and no more when it was asked again; it must be a plain look."
            ) from error
        return {seq: before[seq] if before.get(seq) == tables else self._read_all(seq, tables) for seq, tables in now.items()}

    def _unchecked_tables(self, seqs: Collection[int]) -> dict[int, Tables]:
        block_table = self.adapter.block_table
        if self.groups == 1:  # this is asked of every live sequence after every operation
            return {seq: (tuple(block_table(seq, 0)),) for seq in seqs}
        groups = range(self.groups)
        return {seq: tuple([tuple(block_table(seq, group)) for group in groups]) for seq in seqs}

    def worker_tables(self, seq: int) -> Tables:
        """The device's block table of `seq` in every group."""
        return tuple([self._table("worker_table", seq, group) for group in range(self.groups)])

    def books(self, before: Books | None = None) -> Books:
        """The cache's own books; empty where it claims none. Where they are what they were `before`, that comes back: it was checked then."""
        if not self.capabilities.snapshot:
            return NO_BOOKS
        shot = self._asked("snapshot()", self.adapter.snapshot)
        if not isinstance(shot, Snapshot):
            raise AdapterFault(f"snapshot() returned {_a(shot)}; it must return kvproof.Snapshot.")
        known = before or NO_BOOKS
        if _says(shot, known):
            return known
        books = Books(
            self._counts(shot.refcounts, known.refcounts),
            self._free(shot.free, known.free),
            self._set("Snapshot.cached", shot.cached, known.cached),
            self._set("Snapshot.retiring", shot.retiring, known.retiring),
            None if shot.free_count is None else self._counted_free(shot.free_count),
        )
        return known if books == known else books

    def _counted_free(self, count: object) -> int:
        number = _index(count)
        if number is None:
            raise AdapterFault(f"Snapshot.free_count is {_a(count)}; it must be the number that the cache's counter shows, or None.")
        return number

    def events(self) -> list[Event]:
        """The events since the last call."""
        taken = self._asked("take_events()", self.adapter.take_events)
        if type(taken) in _LISTS and not taken:
            return []
        if isinstance(taken, str) or not isinstance(taken, Iterable):
            raise AdapterFault(f"take_events() returned {_a(taken)}; it must return a sequence of kvproof.Event.")
        try:
            listed = list(taken)
        except Exception as error:
            raise AdapterFault(f"what take_events() returned could not be read: {_told(error)}.") from error
        return [self._event(event) for event in listed]

    def _event(self, event: object) -> Event:
        if not isinstance(event, Event) or event.kind not in ("stored", "removed", "cleared"):
            raise AdapterFault(f"take_events() returned {event!r}; each must be a kvproof.Event of kind stored, removed or cleared.")
        blocks = [event.blocks] if isinstance(event.blocks, int) else event.blocks
        return Event(event.kind, self._blocks("Event.blocks", blocks), event.reason)

    # -- shapes ---------------------------------------------------------------------------------------------------------------------------------

    def _asked(self, call: str, method: Callable[..., Any], *arguments: int) -> Any:  # noqa: ANN401 -- an adapter may return anything
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:
            raise AdapterFault(unfit(error, call, method) or f"{call} raised {_told(error)}.") from error

    def _table(self, method: str, seq: int, group: int) -> Table:
        return self._read(method, seq, group, self._asked(f"{method}({seq}, {group})", getattr(self.adapter, method), seq, group))

    def _read(self, method: str, seq: int, group: int, raw: Any) -> Table:  # noqa: ANN401 -- an adapter may return anything
        """A block table that an adapter returned, checked."""
        if type(raw) in _LISTS and not raw:
            return ()
        told = f"{method}({seq}, {group})"
        try:
            table = tuple(raw)
            skips = bool(self._nulls) and not self._nulls.isdisjoint(table)
        except TypeError:
            raise AdapterFault(f"{told} returned {_a(raw)}; it must return a sequence of block ids.") from None
        except Exception as error:
            raise AdapterFault(f"what {told} returned could not be read: {_told(error)}.") from error
        if skips:
            table = tuple(None if block in self._nulls else block for block in table)
        if self._plain(table):
            return table
        return tuple(None if block is None else self._block(told, block) for block in table)

    def _read_all(self, seq: int, raw: Sequence[Any]) -> Tables:
        """The block tables of all groups, checked."""
        return tuple([self._read("block_table", seq, group, table) for group, table in enumerate(raw)])

    def _plain(self, table: tuple[Any, ...]) -> bool:
        """Whether all are plain integers in range, or None: the usual case, checked at the speed of C."""
        try:
            return self._valid.issuperset(table) and _PLAIN.issuperset(map(type, table))
        except TypeError:
            return False

    def _are_ids(self, blocks: Collection[Any]) -> bool:
        """The same without None."""
        try:
            return self._ids.issuperset(blocks) and _INTEGERS.issuperset(map(type, blocks))
        except TypeError:
            return False

    def _block(self, where: str, block: object) -> int:
        number = _index(block)
        if number is None:
            raise AdapterFault(f"{where} holds {_a(block)}; block ids are integers.")
        if not 0 <= number < self.num_blocks:
            raise AdapterFault(f"{where} holds block {number}, but the pool has blocks 0 to {self.num_blocks - 1}.")
        return number

    def _blocks(self, where: str, blocks: Any) -> tuple[int, ...]:  # noqa: ANN401 -- an adapter may return anything
        if type(blocks) not in _COLLECTIONS and (isinstance(blocks, str) or not isinstance(blocks, Iterable)):
            raise AdapterFault(f"{where} is {_a(blocks)}; it must be a collection of block ids.")
        try:
            listed = tuple(blocks)
        except Exception as error:
            raise AdapterFault(f"{where} could not be read: {_told(error)}.") from error
        return listed if self._are_ids(listed) else tuple(self._block(where, block) for block in listed)

    def _free(self, free: object, before: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """One field of a snapshot, as the next two read others. Where it says, in plain types, what it said `before`, that comes back: it was checked then."""
        if free is None:
            return None
        if type(free) in _LISTS and tuple(free) == before:  # type: ignore[arg-type]  # a list or a tuple
            return before
        return self._blocks("Snapshot.free", free)

    def _set(self, where: str, blocks: Any, before: frozenset[int] | None) -> frozenset[int] | None:  # noqa: ANN401
        if blocks is None:
            return None
        if type(blocks) in _SETS:
            if blocks == before:
                return before
            if self._are_ids(blocks):
                return frozenset(blocks) - self._nulls
        return frozenset(self._blocks(where, blocks)) - self._nulls

    def _counts(self, counts: object, before: dict[int, int] | None) -> dict[int, int] | None:
        if counts is None:
            return None
        if type(counts) is dict:
            if counts == before:
                return before
            if self._are_ids(counts) and _INTEGERS.issuperset(map(type, counts.values())):
                if all(counts.values()) and self._nulls.isdisjoint(counts):
                    return counts.copy()
                return {block: count for block, count in counts.items() if count and block not in self._nulls}
        elif not isinstance(counts, Mapping):
            raise AdapterFault(f"Snapshot.refcounts is {_a(counts)}; it must map block ids to counts.")
        checked = {}
        for block, count in counts.items():
            number = _index(count)
            if number is None:
                raise AdapterFault(f"Snapshot.refcounts counts {_a(count)} for block {block}; counts are integers.")
            if number and block not in self._nulls:
                checked[self._block("Snapshot.refcounts", block)] = number
        return checked

    def _grant(self, op: Op, grant: object) -> Grant:
        if not isinstance(grant, Grant):
            raise AdapterFault(f"{call_of(op)} returned {_a(grant)}; it must return kvproof.Grant.")
        if grant == NO_GRANT and type(grant.adopted) is int:
            return NO_GRANT
        copies = []
        for copy in self._iterable(op, "Grant.copies", grant.copies):
            if not isinstance(copy, tuple | list) or len(copy) != 3:
                raise AdapterFault(f"{call_of(op)}: Grant.copies holds {copy!r}; each copy is (group, source block, destination block).")
            group = _index(copy[0])
            if group is None or not 0 <= group < self.groups:
                there = "there is only group 0" if self.groups == 1 else f"the groups are 0 to {self.groups - 1}"
                raise AdapterFault(f"{call_of(op)}: Grant.copies names group {copy[0]!r}, but {there}.")
            copies.append((group, self._block("Grant.copies", copy[1]), self._block("Grant.copies", copy[2])))
        zeroed = tuple(self._block("Grant.zeroed", block) for block in self._iterable(op, "Grant.zeroed", grant.zeroed))
        return Grant(tuple(copies), zeroed, self._count(op, "Grant.adopted", grant.adopted))

    def _iterable(self, op: Op, what: str, value: object) -> Iterable[Any]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise AdapterFault(f"{call_of(op)}: {what} is {_a(value)}; it must be a sequence.")
        return value

    def _integer(self, op: Op, what: str, value: object) -> int:
        number = _index(value)
        if number is None:
            raise AdapterFault(f"{call_of(op)}: {what} is {_a(value)}; it must be an integer.")
        return number

    def _count(self, op: Op, what: str, value: object) -> int:
        number = self._integer(op, what, value)
        if number < 0:
            raise AdapterFault(f"{call_of(op)}: {what} is {number}; it cannot be negative.")
        return number

    def _could(self, op: Op, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
            return bool(value)
        raise AdapterFault(f"{call_of(op)} returned {_a(value)}; it must return True or False.")

    def _nothing(self, op: Op, value: object) -> None:
        if value is not None:
            raise AdapterFault(f"{call_of(op)} returned {_a(value)}; it must return nothing.")


_DO: Final[dict[type[Op], Callable[..., Outcome]]] = {
    Admit: Checked._admit,
    Match: Checked._match,
    Extend: Checked._extend,
    Commit: Checked._commit,
    Append: Checked._append,
    Truncate: Checked._truncate,
    Fork: Checked._fork,
    Release: Checked._release,
    BeginStep: Checked._begin_step,
    EndStep: Checked._end_step,
    Evict: Checked._evict,
    Reset: Checked._reset,
    SwapOut: Checked._swap_out,
    SwapIn: Checked._swap_in,
}


def _says(shot: Any, known: Books) -> bool:  # noqa: ANN401 -- an adapter may put anything into its snapshot
    """Whether a snapshot says, in plain types, exactly what is `known`: that was checked before."""
    kinds = type(shot.refcounts), type(shot.free), type(shot.cached), type(shot.retiring), type(shot.free_count)
    return (
        kinds in _PLAIN_SNAPSHOTS
        and shot.refcounts == known.refcounts
        and tuple(shot.free) == known.free
        and shot.cached == known.cached
        and shot.retiring == known.retiring
        and shot.free_count == known.free_count
    )


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def call_of(op: Op) -> str:
    """The adapter call that an operation makes, as a reader would write it."""
    names = {"beginstep": "begin_step", "endstep": "end_step", "swapout": "swap_out", "swapin": "swap_in"}
    name = type(op).__name__.lower()
    arguments = ", ".join(repr(getattr(op, field)) for field in op.__struct_fields__ if field != "namespace")
    return f"{names.get(name, name)}({arguments})"


def _told(error: BaseException) -> str:
    """An exception as one line: its type, message and the line of the adapter that raised it."""
    message = str(error).splitlines()
    return f"{type(error).__name__}{': ' + message[0] if message else ''}{place(error)}"


def _a(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown}" if len(shown) <= 60 else f"{type(value).__name__} {shown[:57]}..."
