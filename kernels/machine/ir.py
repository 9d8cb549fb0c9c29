"""The typed program that a kernel becomes: functions of blocks of operations, each with the source line it came from.

The shape follows Triton's first-level IR one to one. Values are numbered per function; operands and results refer to these numbers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

FLOATS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8, "f8E4M3B11FNUZ": 8, "f8E4M3FNUZ": 8, "f8E5M2FNUZ": 8}
"""Width in bits of each floating type, by its MLIR name."""


@dataclasses.dataclass(frozen=True)
class Type:
    """A scalar or a tensor. `elem` is an MLIR element name, or `ptr` with the pointed-to element in `pointee`; a scalar has shape ()."""

    elem: str
    shape: tuple[int, ...] = ()
    pointee: str | None = None

    @property
    def is_pointer(self) -> bool:
        """Whether the elements are addresses."""
        return self.elem == "ptr"

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers of any width."""
        return self.elem in FLOATS

    @property
    def bits(self) -> int:
        """Width of one element in bits; pointers and `index` count as 64."""
        return element_bits(self.elem)


def element_bits(elem: str) -> int:
    """Width of an element type in bits."""
    if elem in FLOATS:
        return FLOATS[elem]
    return int(elem[1:]) if re.fullmatch(r"i\d+", elem) else 64


def element_bytes(elem: str) -> int:
    """Width of an element type in memory, in bytes; a boolean takes one."""
    return max(1, element_bits(elem) // 8)


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of the kernel's source. `line` 0 means that the compiler did not say."""

    file: str = "?"
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclasses.dataclass
class Op:
    """One operation. `text` is its printed form without operands' definitions, from which handlers read their attributes."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[Type, ...]
    text: str
    location: Location
    regions: list[Region] = dataclasses.field(default_factory=list)
    successors: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def integer(self, name: str, default: int | None = None) -> int:
        """The integer attribute `name`; KeyError where it is absent and has no default."""
        found = re.search(rf"\b{name} = (-?\d+)", self.text)
        if found:
            return int(found[1])
        if default is None:
            raise KeyError(f"{self.name} has no attribute {name!r}: {self.text}")
        return default

    def integers(self, name: str) -> tuple[int, ...]:
        """The integer-array attribute `name`, empty where it is absent."""
        found = re.search(rf"\b{name} = array<i\d+: ([^>]*)>", self.text)
        return tuple(int(part) for part in found[1].split(",")) if found else ()

    def word(self, name: str, default: str = "") -> str:
        """The keyword or quoted attribute `name`."""
        found = re.search(rf'\b{name} = "?([\w.]+)"?', self.text)
        return found[1] if found else default


@dataclasses.dataclass
class Block:
    """Operations in order; the last one is the terminator. `name` is the label, `^bb0` for an entry without one."""

    name: str
    arguments: list[int] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Region:
    """Blocks of one scope. Only function bodies have more than one."""

    blocks: list[Block] = dataclasses.field(default_factory=list)

    @property
    def body(self) -> Block:
        """The only block of a structured region."""
        return self.blocks[0]

    def operations(self) -> Iterator[Op]:
        """All operations, those of inner regions too."""
        for block in self.blocks:
            for op in block.ops:
                yield op
                for region in op.regions:
                    yield from region.operations()

    def ordered(self) -> Region:
        """The same blocks, each after all that jump to it, where that can be: the compiler may print a shared `return` before its jumps."""
        by_name, seen, order = {block.name: block for block in self.blocks}, set[str](), list[Block]()

        def visit(block: Block) -> None:
            seen.add(block.name)
            for label, _ in reversed(block.ops[-1].successors if block.ops else ()):
                if label not in seen:
                    visit(by_name[label])
            order.append(block)

        visit(self.blocks[0])
        return Region(order[::-1])


@dataclasses.dataclass
class Function:
    """A function with numbered values; `types[value]` is the type of each, `names[i]` the source name of argument i."""

    name: str
    names: list[str]
    arguments: list[int]
    region: Region
    types: list[Type]
    result_types: tuple[Type, ...] = ()
    location: Location = Location()


@dataclasses.dataclass
class Program:
    """A parsed module: the kernel that is launched and the functions it calls."""

    kernel: Function
    functions: dict[str, Function]
