"""What the programs of one launch did to each element, and where they disagree or their order shows."""

from __future__ import annotations

import dataclasses

import numpy as np

from kvproof.kernels.machine.memory import Storage, sparse_bytes
from kvproof.kernels.machine.numerics import Array
from kvproof.kernels.machine.order import Order


@dataclasses.dataclass
class _Shadow:
    """Last writer and reader of each element (program + 1; -1 for several readers), when (`Order.stamp`), and all atomic accesses."""

    grain: int
    writer: Array
    written_at: Array
    reader: Array
    read_at: Array
    atomics: list[tuple[Array, Array, Array]]


class Conflicts:
    """The shadows of one launch. Places are flat element numbers, programs their numbers in the grid, one for each lane."""

    def __init__(self, count: int) -> None:
        self.order = Order(count)
        self._shadows: dict[int, _Shadow] = {}

    def shadow(self, held: Storage, itemsize: int) -> _Shadow:
        """The shadow of a storage, whose elements are those of the first access."""
        if id(held) not in self._shadows:
            count = -(-held.data.size // itemsize)
            writer, written_at, reader, read_at = (sparse_bytes(4 * count).view(np.int32) for _ in range(4))
            self._shadows[id(held)] = _Shadow(itemsize, writer, written_at, reader, read_at, [])
        return self._shadows[id(held)]

    def load(self, shadow: _Shadow, place: Array, program: Array) -> Array:
        """Lanes that read what another program wrote, in no defined order."""
        me = program + 1
        clash = self._unordered(shadow.writer[place], shadow.written_at, place, me) | self._after_atomics(shadow, place, program)
        seen = shadow.reader[place]
        shadow.reader[place] = np.where((seen == 0) | (seen == me), me, -1)
        shadow.reader[place[shadow.reader[place] != me]] = -1
        if self.order.is_used:
            shadow.read_at[place] = self.order.stamp(program)
        return clash

    def store(self, shadow: _Shadow, place: Array, program: Array, bits: Array, differs: Array) -> tuple[Array, Array]:
        """Lanes that write what another program read, and those that write another value than another program did."""
        me = program + 1
        read = self._unordered(shadow.reader[place], shadow.read_at, place, me)
        # Programs that write the same bits do not disagree: only differing values make the order visible.
        wrote = self._unordered(shadow.writer[place], shadow.written_at, place, me) | self._after_atomics(shadow, place, program)
        wrote &= differs
        shadow.writer[place] = me
        if self.order.is_used:
            shadow.written_at[place] = self.order.stamp(program)
        shared = shadow.writer[place] != me
        if shared.any():
            final = dict(zip(place.tolist(), bits.tolist(), strict=True))
            wrote |= shared & np.array([final[where] != value for where, value in zip(place.tolist(), bits.tolist(), strict=True)])
        return read, wrote

    def atomic(self, shadow: _Shadow, place: Array, program: Array) -> Array:
        """Lanes that change atomically what another program wrote without an atomic, in no defined order."""
        clash = self._unordered(shadow.writer[place], shadow.written_at, place, program + 1)
        shadow.atomics.append((place, program, self.order.stamp(program)))
        return clash

    def _unordered(self, others: Array, stamps: Array, place: Array, me: Array) -> Array:
        clash = (others != 0) & (others != me)
        if self.order.is_used and clash.any():
            lanes = np.flatnonzero(clash & (others > 0))
            clash[lanes] = ~self.order.before(others[lanes] - 1, stamps[place[lanes]], me[lanes] - 1)
        return np.asarray(clash)

    def _after_atomics(self, shadow: _Shadow, place: Array, program: Array) -> Array:
        """Lanes that touch what other programs change atomically. An own atomic access comes after those that were served before it."""
        clash = np.zeros(len(place), np.bool_)
        if not shadow.atomics or not len(place):
            return clash
        shadow.atomics = [tuple(np.concatenate(parts) for parts in zip(*shadow.atomics, strict=True))]  # type: ignore[list-item]
        places, programs, stamps = shadow.atomics[0]
        by_place = np.argsort(places, kind="stable")
        low, high = (np.searchsorted(places[by_place], place, side) for side in ("left", "right"))
        lane = np.repeat(np.arange(len(place)), high - low)
        entry = by_place[np.arange(len(lane)) - np.repeat(np.cumsum(high - low) - high, high - low)]
        is_own = programs[entry] == program[lane]
        own_last = np.full(len(place), -1)
        np.maximum.at(own_last, lane[is_own], entry[is_own])
        open_pairs = np.flatnonzero(~is_own & (entry > own_last[lane]))
        lane, entry = lane[open_pairs], entry[open_pairs]
        clash[lane[~self.order.before(programs[entry], stamps[entry], program[lane])]] = True
        return clash
