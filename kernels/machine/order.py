"""Which accesses of other programs come before one's own: the order that releasing and acquiring atomics make.

A split attention may let the program that arrives last merge the parts of all: each writes its part and counts itself, by an atomic addition
that releases what it wrote; the one that finds all others counted has acquired their parts, and may read them. Nothing else orders the
programs of a launch.

Each program counts its releases; a clock says of every program how many of its releases are known. This is the happens-before of C++ and PTX
with vector clocks, for atomics on scalars: a release is seen by whoever acquires at the same address later, whatever other atomics came
between, and with it what the releasing program had acquired.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from kvproof.kernels.machine.numerics import Array

MAX_FOLLOWED_PROGRAMS = 4096
"""Clocks have a number for each program, so they take up to 64 MiB here. In larger grids whoever acquires is taken to know everything."""

_SEMANTICS = re.compile(r"\b(relaxed|acquire|release|acq_rel), (cta|gpu|sys)\b")


@dataclasses.dataclass(frozen=True)
class Semantics:
    """Whether an atomic operation makes what came before it visible to other programs, and theirs to its own."""

    releases: bool
    acquires: bool


def semantics(text: str) -> Semantics:
    """Those of an operation of the IR. One whose scope is its own program (`cta`) orders no others."""
    found = _SEMANTICS.search(text)
    kind, scope = found.groups() if found is not None else ("relaxed", "gpu")
    return Semantics(scope != "cta" and kind in ("release", "acq_rel"), scope != "cta" and kind in ("acquire", "acq_rel"))


class Order:
    """What each program of a launch of `count` programs knows of the others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._releases: Array | None = None
        self._known: dict[int, Array] = {}
        self._published: dict[int, Array] = {}

    @property
    def is_used(self) -> bool:
        """Whether any program has released or acquired."""
        return self._releases is not None

    def stamp(self, programs: Array) -> Array:
        """How often these programs have released so far: the time of what they do now."""
        return np.zeros(len(programs), np.int32) if self._releases is None else self._releases[programs]

    def before(self, others: Array, stamps: Array, programs: Array) -> Array:
        """Whether what `others` did at the times `stamps` came before what `programs` do now."""
        result = np.zeros(len(programs), np.bool_)
        for program in np.unique(programs).tolist():
            clock = self._known.get(program)
            if clock is not None:
                mine = programs == program
                result[mine] = True if self._count > MAX_FOLLOWED_PROGRAMS else clock[others[mine]] > stamps[mine]
        return result

    def synchronise(self, how: Semantics, lanes: Iterable[tuple[int, int, bool]]) -> None:
        """One atomic operation: program, address and whether it wrote, in the order in which they were served."""
        if self._releases is None:
            self._releases = np.zeros(self._count, np.int32)
        for program, address, has_written in lanes:
            if how.acquires:
                self._acquire(program, address)
            if how.releases and has_written:
                self._releases[program] += 1
                self._publish(program, address)

    def _acquire(self, program: int, address: int) -> None:
        known = self._known.get(program)
        if self._count > MAX_FOLLOWED_PROGRAMS:
            self._known[program] = np.zeros(0, np.int32)
        elif address in self._published:
            published = self._published[address]
            self._known[program] = published.copy() if known is None else np.maximum(known, published)

    def _publish(self, program: int, address: int) -> None:
        if self._count > MAX_FOLLOWED_PROGRAMS:
            return
        assert self._releases is not None
        published = self._published.setdefault(address, np.zeros(self._count, np.int32))
        if program in self._known:
            np.maximum(published, self._known[program], out=published)
        published[program] = self._releases[program]
