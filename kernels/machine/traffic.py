"""One launch's loads and stores: bounds, ownership, conflicts between programs, and the values themselves."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

from kvproof.kernels.machine.conflicts import Conflicts
from kvproof.kernels.machine.ir import Location, element_bytes
from kvproof.kernels.machine.memory import Memory, View, Watch
from kvproof.kernels.machine.numerics import Array, container, decode, encode
from kvproof.kernels.machine.order import Semantics
from kvproof.kernels.machine.values import Outer, Value, dense
from kvproof.kernels.machine.violations import Kind, Violation, Violations


@dataclasses.dataclass(frozen=True)
class Site:
    """A load, store or atomic in the kernel. `root` is the argument its pointer comes from, -1 where only the address is known."""

    access: str
    elem: str
    shape: tuple[int, ...]
    root: int
    location: Location


class Programs(Protocol):
    """The programs that execute an operation together; `ids` are their linear numbers in the grid."""

    ids: Array


class Traffic:
    """Serves the memory operations of one launch and keeps its shadows."""

    def __init__(
        self, memory: Memory, views: dict[int, View], written: set[int], grid: tuple[int, int, int], kernel: str, found: Violations
    ) -> None:
        self.memory, self.views, self.grid, self.kernel, self.found = memory, views, grid, kernel, found
        unknown = -1 in written
        self._tracked = {id(view.storage) for root, view in views.items() if unknown or root in written}
        self.conflicts = Conflicts(math.prod(grid))
        self._serves: Array | None = None
        self._allowed: dict[int, Array] = {}

    def load(self, site: Site, pointer: Value, mask: Array | None, other: Array | None, programs: Programs) -> Array:
        """Values of the active lanes; the others are `other`, or zero. Lanes that break a rule read as zero."""
        if site.root < 0:
            return self._load_absolute(site, dense(pointer), mask, other, programs)
        view = self.views[site.root]
        if mask is not None and mask.all():
            mask = None
        if pointer.__class__ is Outer:
            rows = self._load_rows(site, view, pointer, mask, other, programs)
            if rows is not None:
                return rows
            pointer = pointer.dense()
        return self._load_elements(site, view, pointer, mask, other, programs)

    def store(self, site: Site, pointer: Value, values: Value, mask: Array | None, programs: Programs) -> None:
        """Write the active lanes. Lanes that break a rule write nothing."""
        if mask is not None and mask.all():
            mask = None
        count = len(programs.ids)
        index, data = dense(pointer), dense(values)
        if site.root < 0:
            for view, part, active in self._split_absolute(site, index, mask, programs):
                self._store_elements(site, view, part, data, active, programs)
            return
        shape = np.broadcast_shapes((count, *site.shape), index.shape)
        self._store_elements(site, self.views[site.root], np.broadcast_to(index, shape), data, mask, programs)

    def flat_lanes(self, site: Site, pointer: Value, mask: Array | None, programs: Programs) -> list[tuple[View, Array, Array]]:
        """For atomics: per view, the flat lane numbers (program-major) and element indices of the active, valid lanes."""
        shape = (len(programs.ids), *site.shape)
        index = np.broadcast_to(dense(pointer), shape)
        parts = self._split_absolute(site, index, mask, programs) if site.root < 0 else [(self.views[site.root], index, mask)]
        result = []
        for view, part, active in parts:
            keep = self._checked(site, view, part, active, programs)
            whole = np.ones(shape, np.bool_) if keep is None else np.broadcast_to(keep, shape)
            lanes = np.flatnonzero(whole)
            result.append((view, lanes, part.ravel()[lanes]))
        return result

    def synchronise(self, how: Semantics, lanes: list[tuple[View, Array, Array]], wrote: Array, programs: Programs) -> None:
        """The order that an atomic operation on scalars makes between programs; lanes as from `flat_lanes`, in the order of serving."""
        if how.acquires or how.releases:
            served = (
                (int(programs.ids[lane]), view.base + int(index) * view.itemsize, bool(wrote[lane]))
                for view, part, indices in lanes
                for lane, index in zip(part, indices, strict=True)
            )
            self.conflicts.order.synchronise(how, served)

    # Loads -----------------------------------------------------------------------------------------------------------

    def _load_rows(
        self, site: Site, view: View, pointer: Outer, mask: Array | None, other: Array | None, programs: Programs
    ) -> Array | None:
        """Whole rows at once, or None where the rows need a closer look."""
        axis, width = pointer.axis + 1, len(pointer.inner)
        if (mask is not None and mask.shape[axis] != 1) or id(view.storage) in self._tracked or not pointer.is_consecutive():
            return None
        rows = pointer.base.squeeze(axis) + pointer.inner[0]
        rest = None if mask is None else mask.squeeze(axis)
        safe = rows if rest is None else np.where(rest, rows, 0)
        if not safe.size or int(safe.view(np.uint64).max()) + width > view.span or view.storage.initialised is not None:
            return None
        if not view.rows_inside(safe, width):
            return None
        if view.storage.watch is not None and not self._rows_owned(view, safe, rest, width, programs):
            return None
        values = decode(site.elem, view.windows(width, site.elem)[safe])
        if rest is not None:
            values[~np.broadcast_to(rest, safe.shape)] = 0
        values = np.moveaxis(values, -1, axis)
        if mask is not None and other is not None and (other.size != 1 or other.ravel()[0] != 0):
            values = np.where(mask, values, other)
        return values

    def _rows_owned(self, view: View, rows: Array, mask: Array | None, width: int, programs: Programs) -> bool:
        watch = view.storage.watch
        if watch is None or watch.slot_of is None or watch.grain != view.itemsize:
            return False
        first = view.offset_bytes // watch.grain
        slots = watch.slot_of[rows + first]
        if (slots != watch.slot_of[rows + (first + width - 1)]).any():
            return False
        return not self._unowned(watch, slots, mask, programs).any()

    def _load_elements(self, site: Site, view: View, index: Array, mask: Array | None, other: Array | None, programs: Programs) -> Array:
        active = self._checked(site, view, index, mask, programs)
        if active is None:
            values = decode(site.elem, view.elements(site.elem)[index])
        else:
            shape = np.broadcast_shapes(index.shape, active.shape)
            values = np.zeros(shape, container(site.elem))
            whole = np.broadcast_to(active, shape)
            values[whole] = decode(site.elem, view.elements(site.elem)[np.broadcast_to(index, shape)[whole]])
        if mask is not None and other is not None:
            values = np.where(mask, values, other)
        return values

    def _load_absolute(self, site: Site, address: Array, mask: Array | None, other: Array | None, programs: Programs) -> Array:
        shape = np.broadcast_shapes(address.shape, () if mask is None else mask.shape)
        values = np.zeros(shape, container(site.elem))
        for view, index, active in self._split_absolute(site, address, mask, programs):
            values = np.where(active, self._load_elements(site, view, index, active, None, programs), values)
        if mask is not None and other is not None:
            values = np.where(mask, values, other)
        return values

    def _split_absolute(self, site: Site, address: Array, mask: Array | None, programs: Programs) -> list[tuple[View, Array, Array]]:
        """Per storage that is hit: a view of all of it, element indices, and the lanes that hit it."""
        todo = np.broadcast_to(
            np.bool_(True) if mask is None else mask, np.broadcast_shapes(address.shape, () if mask is None else mask.shape)
        ).copy()
        address = np.broadcast_to(address, todo.shape)
        size, parts = element_bytes(site.elem), []
        while todo.any():
            first = int(address[todo][0])
            held = self.memory.find(first)
            if held is None:
                hit = todo & ((address == first) | self.memory.nowhere(address))
                self._report("unknown-address", site, None, hit, address, programs, "no known tensor lies at this address")
            else:
                hit = todo & (address >= held.base) & (address < held.base + held.data.size)
                name = next((known.name for known in self.views.values() if known.storage is held), "memory")
                view = View(held, name, site.elem, 0, (held.data.size // size,), (1,))
                odd = hit & ((address - held.base) % size != 0)
                if odd.any():
                    self._report("misaligned", site, view, odd, (address - held.base) // size, programs, f"not a multiple of {size} bytes")
                parts.append((view, (address - held.base) // size, hit & ~odd))
            todo &= ~hit
        return parts

    # Stores ----------------------------------------------------------------------------------------------------------

    def _store_elements(self, site: Site, view: View, index: Array, data: Array, mask: Array | None, programs: Programs) -> None:
        active = self._checked(site, view, index, mask, programs, data)
        bits = encode(site.elem, data)
        if active is None:
            view.elements(site.elem)[index] = bits
            touched = index
        else:
            shape = np.broadcast_shapes(index.shape, active.shape)
            whole = np.broadcast_to(active, shape)
            touched = np.broadcast_to(index, shape)[whole]
            view.elements(site.elem)[touched] = np.broadcast_to(bits, shape)[whole]
        if view.storage.initialised is not None:
            marks = view.storage.initialised[view.offset_bytes :]
            for byte in range(view.itemsize):
                marks[touched * view.itemsize + byte] = True

    # Rules -----------------------------------------------------------------------------------------------------------

    def _checked(
        self, site: Site, view: View, index: Array, mask: Array | None, programs: Programs, data: Array | None = None
    ) -> Array | None:
        """The lanes that may touch memory (None: all), after every rule was applied and every breach reported."""
        safe = index if mask is None else np.where(mask, index, 0)
        inside: Array | None = None
        if safe.size and (view.span == 0 or int(safe.view(np.uint64).max()) >= view.span):
            inside = (safe >= 0) & (safe < view.span)
        elif not view.is_dense:
            allowed = view.allowed(safe)
            inside = None if allowed.all() else allowed
        if inside is not None or (mask is not None and view.span == 0):
            inside = np.zeros(safe.shape, np.bool_) if inside is None else inside
            if not view.is_dense and view.span:
                inside &= view.allowed(np.where(inside, safe, 0))
            outside = ~inside if mask is None else mask & ~inside
            if outside.any():
                detail = f"the tensor has shape {view.shape}" + ("" if view.is_dense else f" and strides {view.strides}")
                self._report("out-of-bounds", site, view, outside, index, programs, detail)
            mask = inside if mask is None else mask & inside
            safe = np.where(mask, index, 0)
        if view.span and safe.size and (mask is None or mask.any()):
            self._check_watch(site, view, safe, mask, programs)
            if site.access == "load":
                self._check_initialised(site, view, safe, mask, programs)
            if id(view.storage) in self._tracked:
                self._check_conflicts(site, view, safe, mask, programs, data)
        return mask

    def _check_watch(self, site: Site, view: View, index: Array, mask: Array | None, programs: Programs) -> None:
        watch = view.storage.watch
        if watch is None:
            return
        place = (index * view.itemsize + view.offset_bytes) // watch.grain
        if watch.row_of is not None:
            if site.access == "load":
                self._serve(watch.row_of[place], mask, programs)
        elif watch.slot_of is not None:
            slots = watch.slot_of[place]
            if site.access == "load":
                bad, kind, why = (
                    self._unowned(watch, slots, mask, programs),
                    "unowned-read",
                    "not a committed slot of a sequence that this program serves",
                )
            else:
                assert watch.writable is not None
                bad, kind, why = (slots >= 0) & ~watch.writable[slots], "ungranted-write", "the launch was not granted this slot"
                bad = bad if mask is None else bad & mask
            if bad.any():
                owner = watch.owners[int(np.broadcast_to(slots, bad.shape)[bad][0])] if watch.owners else ""
                self._report(kind, site, view, bad, index, programs, why, owner)  # type: ignore[arg-type]

    def _serve(self, rows: Array, mask: Array | None, programs: Programs) -> None:
        if self._serves is None:
            self._serves = np.zeros((int(np.prod(self.grid)), 1 + int(rows.max())), np.bool_)
        if rows.max() >= self._serves.shape[1]:
            self._serves = np.pad(self._serves, ((0, 0), (0, 1 + int(rows.max()) - self._serves.shape[1])))
        shape = np.broadcast_shapes((len(programs.ids),) + (1,) * (rows.ndim - 1), rows.shape, () if mask is None else mask.shape)
        ids = np.broadcast_to(programs.ids.reshape((-1,) + (1,) * (rows.ndim - 1)), shape)
        active = (rows >= 0) if mask is None else (rows >= 0) & mask
        keep = np.broadcast_to(active, shape)
        pairs = ids[keep], np.broadcast_to(rows, shape)[keep]
        if not self._serves[pairs].all():
            self._serves[pairs] = True
            self._allowed.clear()

    def _unowned(self, watch: Watch, slots: Array, mask: Array | None, programs: Programs) -> Array:
        """Lanes that read a slot which no sequence served by their program has committed."""
        assert watch.readable is not None
        allowed: Array | None = self._allowed.get(id(watch))
        if allowed is None:
            anyone = np.asarray(watch.readable.any(axis=0))[None, :]
            if self._serves is None:
                allowed = anyone
            else:
                known = min(self._serves.shape[1], len(watch.readable))
                allowed = np.asarray(self._serves[:, :known] @ watch.readable[:known])
                # A program that has read no table row serves whoever the adapter told it by other means: all live sequences count.
                allowed = np.where(np.asarray(self._serves.any(axis=1))[:, None], allowed, anyone)
            self._allowed[id(watch)] = allowed
        rows = programs.ids if len(allowed) > 1 else np.zeros(1, np.int64)
        good = allowed[rows.reshape((-1,) + (1,) * (slots.ndim - 1)), slots]
        bad = (slots >= 0) & ~good
        return np.asarray(bad if mask is None else bad & mask)

    def _check_initialised(self, site: Site, view: View, index: Array, mask: Array | None, programs: Programs) -> None:
        if view.storage.initialised is None:
            return
        bad = ~view.storage.initialised[view.offset_bytes + index * view.itemsize]
        bad = bad if mask is None else bad & mask
        if bad.any():
            self._report("uninitialised-read", site, view, bad, index, programs, "nothing was ever written there")

    def _check_conflicts(self, site: Site, view: View, index: Array, mask: Array | None, programs: Programs, data: Array | None) -> None:
        shadow = self.conflicts.shadow(view.storage, view.itemsize)
        # An access of another width than the first one is tracked by its first byte: enough to see two programs on the same element.
        place = (index * view.itemsize + view.offset_bytes) // shadow.grain
        shape = np.broadcast_shapes((len(programs.ids),) + (1,) * (place.ndim - 1), place.shape, () if mask is None else mask.shape)
        own = np.broadcast_to(programs.ids.astype(np.int32).reshape((-1,) + (1,) * (place.ndim - 1)), shape)
        place = np.broadcast_to(place, shape)
        active = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
        at, me = place[active], own[active]

        def report(kind: Kind, clash: Array, what: str) -> None:
            self._report_clash(kind, site, view, index, active, clash, programs, f"another program of this launch {what}")

        if site.access == "load":
            report("read-write-conflict", self.conflicts.load(shadow, at, me), "wrote it; their order is not defined")
        elif site.access == "atomic":
            report("write-conflict", self.conflicts.atomic(shadow, at, me), "wrote it without an atomic; their order is not defined")
        else:
            assert data is not None
            bits = encode(site.elem, np.ascontiguousarray(np.broadcast_to(data, shape)[active]))
            differs = view.elements(site.elem)[np.broadcast_to(index, shape)[active]] != bits
            read, wrote = self.conflicts.store(shadow, at, me, bits, differs)
            report("read-write-conflict", read, "read it; their order is not defined")
            report("write-conflict", wrote, "wrote a different value there")

    def _report_clash(
        self, kind: Kind, site: Site, view: View, index: Array, active: Array, clash: Array, programs: Programs, detail: str
    ) -> None:
        if clash.any():
            where = np.zeros(active.shape, np.bool_)
            where[active] = clash
            self._report(kind, site, view, where, index, programs, detail)

    def _report(
        self, kind: Kind, site: Site, view: View | None, bad: Array, index: Array, programs: Programs, detail: str, owner: str = ""
    ) -> None:
        if not self.found.wants(kind, self.kernel, site.location):
            return
        shape = np.broadcast_shapes(bad.shape, index.shape)
        first = np.unravel_index(int(np.argmax(np.broadcast_to(bad, shape))), shape)
        element = int(np.broadcast_to(index, shape)[first])
        lane = tuple(int(part) for part in first[1:])
        program = self.coordinates(int(programs.ids[int(first[0])]))
        if view is None:
            found = Violation(kind, self.kernel, site.location, site.access, program, lane, address=element, detail=detail)
        else:
            address = view.base + element * view.itemsize
            place = view.coordinates(element)
            found = Violation(kind, self.kernel, site.location, site.access, program, lane, view.name, place, address, detail, owner)
        self.found.kept.append(found)

    def coordinates(self, linear: int) -> tuple[int, int, int]:
        """The place in the grid of a program; x counts fastest."""
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)
