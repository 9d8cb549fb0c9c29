"""Printed TTIR to a `Program`.

The printer puts every operation on its own line, opens regions at line ends and closes them at line starts, so the grammar is one of lines.
Result types follow from the printed signature: after `->` or `to`, or by a rule of the operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvproof.kernels.machine.errors import MachineError
from kvproof.kernels.machine.ir import Block, Function, Location, Op, Program, Region, Type
from kvproof.kernels.machine.locations import Locations, strip_locations

_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULTS = re.compile(r"^((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = ")
_TENSOR = re.compile(r"^tensor<((?:\d+x)*)([^,]+(?:, \d+>)?)(?:, #.*)?>$")
_POINTER = re.compile(r"^!tt\.ptr<(.*?)(?:, \d+)?>$")


class ParseError(MachineError):
    """The printed IR has a form that this parser does not know. The message names the line."""


def parse(text: str, kernel: str | None = None) -> Program:
    """The program of a printed module. `kernel` names the entry; by default the public function is it."""
    reader = _Reader(text)
    functions: dict[str, Function] = {}
    entry = kernel
    while (line := reader.peek()) is not None:
        stripped, _ = strip_locations(line)
        if stripped.lstrip().startswith("tt.func"):
            function, public = _FunctionParser(reader).function()
            functions[function.name] = function
            entry = entry or (function.name if public else None)
        else:
            reader.next()
    if entry is None or entry not in functions:
        raise ParseError("the module has no public function to launch")
    return Program(functions[entry], functions)


def parse_type(text: str) -> Type:
    """`i32`, `!tt.ptr<f16>`, `tensor<16x64x!tt.ptr<f16>>`, ..."""
    text = text.strip()
    if found := _TENSOR.match(text):
        inner = parse_type(found[2])
        return Type(inner.elem, tuple(int(size) for size in found[1].split("x") if size), inner.pointee)
    if found := _POINTER.match(text):
        return Type("ptr", (), parse_type(found[1]).elem)
    return Type(text)


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside brackets and quotes; the `>` of an arrow is no bracket."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, char in enumerate(text):
        if char == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<([{":
            depth += 1
        elif char in ")]}" or (char == ">" and text[at - 1] != "-"):
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


class _Reader:
    """Lines of the module with their locations, one look ahead."""

    def __init__(self, text: str) -> None:
        self.locations = Locations(text)
        self._lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self._at = 0

    def peek(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def next(self) -> str:
        if (line := self.peek()) is None:
            raise ParseError("the module ends inside a region")
        self._at += 1
        return line


class _FunctionParser:
    """Parses one `tt.func`. Names are scoped by region, values numbered through the function."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._types: list[Type] = []
        self._scopes: list[dict[str, int]] = [{}]

    def function(self) -> tuple[Function, bool]:
        header, where = strip_locations(self._reader.next())
        found = re.match(r'\s*tt\.func\s+(public |private |nested )?@("[^"]+"|[^"(]+)\((.*)$', header)
        if not found:
            raise ParseError(f"cannot read the function header: {header.strip()}")
        arguments, tail = _matching(found[3])
        names, values = [], []
        for part in split_top(arguments):
            name, _, kind = part.partition(":")
            names.append(name.strip().lstrip("%"))
            values.append(self._define(name.strip(), parse_type(re.sub(r"\{.*\}$", "", kind.strip()))))
        results = re.search(r"-> (.*?)(?: attributes|\s*\{$)", tail)
        region, _ = self._region([])
        function = Function(
            found[2].strip('"'),
            names,
            values,
            region.ordered(),
            self._types,
            _types(results[1]) if results else (),
            self._reader.locations.resolve(where),
        )
        return function, (found[1] or "public ").strip() == "public"

    def _define(self, name: str, kind: Type) -> int:
        self._types.append(kind)
        self._scopes[-1][name] = len(self._types) - 1
        return len(self._types) - 1

    def _lookup(self, name: str) -> int:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise ParseError(f"{name} is used before it is defined")

    def _region(self, entry: Sequence[tuple[str, Type]]) -> tuple[Region, str]:
        """The region whose opening brace was just read, and what follows its closing brace."""
        self._scopes.append({})
        block = Block("^bb0", [self._define(name, kind) for name, kind in entry])
        region = Region([block])
        while not (line := self._reader.next()).lstrip().startswith("}"):
            label = re.match(r"\s*(\^\w+)(?:\((.*)\))?:", strip_locations(line)[0])
            if not label:
                block.ops.append(self._op(line))
                continue
            arguments = [part.split(":", 1) for part in split_top(label[2] or "")]
            values = [self._define(name.strip(), parse_type(kind)) for name, kind in arguments]
            if block.ops or len(region.blocks) > 1:
                block = Block(label[1])
                region.blocks.append(block)
            block.name, block.arguments = label[1], block.arguments + values
        self._scopes.pop()
        return region, line.lstrip()[1:]

    def _op(self, line: str) -> Op:
        text, where = strip_locations(line)
        text, entry = text.strip(), self._entry_arguments(text.strip())
        regions: list[Region] = []
        operands_text = text
        while text.endswith("{"):
            region, tail = self._region(entry if not regions else [])
            regions.append(region)
            tail, tail_where = strip_locations(tail)
            where = tail_where if tail_where != "unknown" else where
            text = text[:-1] + tail
        return self._finish(text, operands_text, where, regions)

    def _entry_arguments(self, text: str) -> list[tuple[str, Type]]:
        """Block arguments that the custom syntax of a loop declares in its header."""
        if found := re.search(
            r"\bscf\.for (?:unsigned )?(%\S+) = .*?(?:iter_args\((.*?)\) -> \((.*)\)\s*)?: (\w+) \{$|\bscf\.for (%\S+) = .* \{$", text
        ):
            index = Type(found[4] or "index")
            names = [part.split("=")[0].strip() for part in split_top(found[2] or "")]
            return [(found[1] or found[5], index), *zip(names, _types(found[3] or ""), strict=True)]
        if found := re.search(r"\bscf\.while \((.*?)\) : \((.*?)\) -> .*\{$", text):
            names = [part.split("=")[0].strip() for part in split_top(found[1])]
            return list(zip(names, _types(found[2]), strict=True))
        return []

    def _finish(self, text: str, operands_text: str, where: str, regions: list[Region]) -> Op:
        results = _RESULTS.match(text)
        names = list(_expand(split_top(results[1]))) if results else []
        cut = results.end() if results else 0
        body, operands_text = text[cut:], operands_text[cut:]
        name = re.match(r'"?([\w.]+)"?', body)
        if not name:
            raise ParseError(f"cannot read the operation: {text}")
        location = self._reader.locations.resolve(where)
        successors = self._successors(body) if name[1].startswith("cf.") else ()
        operands = self._operands(name[1], operands_text)
        kinds = result_types(name[1], body, len(names), [self._types[value] for value in operands])
        if len(kinds) < len(names):
            raise ParseError(f"cannot tell the result types of {name[1]} at {location}: {body}")
        values = tuple(self._define(result, kind) for result, kind in zip(names, kinds, strict=False))
        return Op(name[1], tuple(operands), values, tuple(kinds[: len(names)]), body, location, regions, successors)

    def _operands(self, name: str, text: str) -> list[int]:
        if name == "scf.for":
            header = re.sub(r"^scf\.for (?:unsigned )?%\S+ =", "", text)
            return [self._lookup(found) for found in _VALUE.findall(re.sub(r"%[\w$.-]+ = ", "", header))]
        if name == "scf.while":
            return [self._lookup(found) for found in _VALUE.findall(re.sub(r"%[\w$.-]+ = ", "", text))]
        if name.startswith("cf."):
            text = text.split("^", 1)[0]
        return [self._lookup(found) for found in _VALUE.findall(_unquoted(text))]

    def _successors(self, text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        found = re.findall(r"(\^\w+)(?:\(([^:)]*):[^)]*\))?", text)
        return tuple((label, tuple(self._lookup(value) for value in _VALUE.findall(values))) for label, values in found)


def result_types(name: str, body: str, results: int, operands: Sequence[Type]) -> list[Type]:
    """The types of an operation's results, from its printed signature."""
    if not results:
        return []
    if name == "scf.for":
        arrow = re.search(r"-> \((.*)\)\s*:", body) or re.search(r"-> \((.*)\)", body)
        return list(_types(arrow[1])) if arrow else []
    if name in ("scf.while", "scf.if"):
        arrow = re.search(r" -> (?:\((.*?)\)|(\S+))(?:\s|$)", body)
        return list(_types(arrow[1] or arrow[2])) if arrow else []
    signature = _signature(body)
    if name == "arith.constant" and signature == body:
        return [Type("i1")]
    if "->" in signature:
        listed = list(_types(signature.rsplit("->", 1)[1]))
        # Triton 3.8 prints the type of both results of a split once.
        return listed * results if len(listed) == 1 else listed
    if found := re.search(r"\bto (.*)$", signature):
        return [parse_type(found[1])]
    kinds = list(_types(signature))
    if name in ("arith.cmpi", "arith.cmpf"):
        return [Type("i1", kinds[0].shape)]
    if name == "tt.load":
        return [Type(kinds[0].pointee or "i8", kinds[0].shape)]
    if name == "arith.select":
        return [kinds[-1]]
    return kinds[:1] * results if kinds else list(operands[:1]) * results


def _signature(body: str) -> str:
    """What follows the last ` : ` outside brackets and quotes; the arrow of a structured operation where there is none."""
    parts = split_top(body, ":")
    if len(parts) > 1:
        return parts[-1]
    arrow = re.search(r"-> \(?[^{]*", body)
    return arrow[0] if arrow else body


def _types(text: str) -> tuple[Type, ...]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return tuple(parse_type(part) for part in split_top(text))


def _matching(text: str) -> tuple[str, str]:
    """Split after the parenthesis that closes the one before `text`."""
    depth = 1
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[:at], text[at + 1 :]
    raise ParseError(f"unbalanced parentheses: {text}")


def _expand(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        base, _, count = name.partition(":")
        if count:
            yield from (f"{base}#{index}" for index in range(int(count)))
        else:
            yield base


def _unquoted(text: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


__all__ = ["Location", "ParseError", "parse", "parse_type", "result_types", "split_top"]
