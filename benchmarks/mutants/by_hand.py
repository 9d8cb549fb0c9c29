"""Faults that a tired engineer could write: not one operator changed, but one thing forgotten. `by_hand.toml` has them as text to be replaced.

A fault is run like a mutant. Its change, in reports and in `equivalent.toml`, is the first line that it replaces and what is wrong then.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import msgspec

from benchmarks.mutants.sources import Mutant, code_of, functions_of


class Fault(msgspec.Struct, frozen=True):
    """`before`, which `function` of `module` contains once, becomes `after`; `what` is wrong then."""

    module: str
    function: str
    what: str
    before: str
    after: str


def by_hand(module: str, source: str) -> Iterator[tuple[Mutant, CodeType]]:
    """Every fault of a module, with the code of the changed function. Raises ValueError for one whose text is not there once."""
    places = {path: (node.lineno, node.end_lineno or node.lineno) for path, node in functions_of(ast.parse(source))}
    lines = source.splitlines(keepends=True)
    for fault in _faults(module.rpartition(".")[2]):
        first, last = places[fault.function]
        text = "".join(lines[first - 1 : last])
        if text.count(fault.before) != 1:
            raise ValueError(f"{fault.function} has {text.count(fault.before)} times, not once: {fault.before!r}; mend by_hand.toml")
        changed = "".join([*lines[: first - 1], text.replace(fault.before, fault.after), *lines[last:]])
        tree = ast.parse(changed)
        line = first + text[: text.index(fault.before)].count("\n")
        mutant = Mutant(module, fault.function, 0, line, fault.before.strip().partition("\n")[0], fault.what)
        yield mutant, code_of(dict(functions_of(tree))[fault.function], tree, fault.function, module)


def _faults(module: str) -> list[Fault]:
    listed = tomllib.loads((Path(__file__).parent / "by_hand.toml").read_text(encoding="utf-8"))["fault"]
    return [fault for fault in msgspec.convert(listed, list[Fault]) if fault.module == module]
