"""What the machine saw that no kernel may do, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from kvproof.kernels.machine.ir import Location

Kind: TypeAlias = Literal[
    "out-of-bounds",
    "misaligned",
    "unknown-address",
    "unowned-read",
    "ungranted-write",
    "uninitialised-read",
    "write-conflict",
    "read-write-conflict",
    "assertion",
]

KEPT_PER_LINE = 4
"""Violations of one kind and one source line that are kept; the rest is only counted."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """One access that broke a rule.

    `program` is its place in the grid, `lane` its place in the tile. `tensor` and `index` name the element where a tensor is known,
    `address` is in bytes. `detail` says why in prose, `owner` whose slot it was for pools.
    """

    kind: Kind
    kernel: str
    location: Location
    access: str
    program: tuple[int, int, int]
    lane: tuple[int, ...]
    tensor: str = ""
    index: tuple[int, ...] | None = None
    address: int = 0
    detail: str = ""
    owner: str = ""

    def __str__(self) -> str:
        element = f"{self.tensor}[{', '.join(map(str, self.index))}]" if self.index is not None else (self.tensor or hex(self.address))
        owner = f" ({self.owner})" if self.owner else ""
        what = f"{self.access} of {element}{owner}" if self.access else ""
        place = f"{self.kernel} at {self.location}, program {self.program}, lane {self.lane}"
        return f"{self.kind}: {place}: {what}{': ' if what else ''}{self.detail}"


class Violations:
    """A bounded collection."""

    def __init__(self) -> None:
        self.kept: list[Violation] = []
        self.total = 0
        self._seen: dict[tuple[str, str, Location], int] = {}

    def wants(self, kind: Kind, kernel: str, location: Location) -> bool:
        """Counts one, and whether it should also be kept."""
        self.total += 1
        key = (kind, kernel, location)
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] <= KEPT_PER_LINE

    def clear(self) -> None:
        """Forget everything seen so far."""
        self.kept.clear()
        self._seen.clear()
        self.total = 0
