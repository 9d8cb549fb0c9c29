"""A program as the source of a pytest function that stands alone."""

from __future__ import annotations

import ast
import textwrap
from typing import Final

from kvproof.fuzz.programs import Program, local, portable
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import Op
from kvproof.properties.paste import op_source

WIDTH: Final = 88
"""Columns of the source: what formatters leave alone."""


WHOLE: Final = "no-address-overflow"
"""The law of kernels that is judged for the kernels as a whole, and not case by case."""


def pytest_source(program: Program, target: type) -> str:
    """A test file that runs `program` on `target`, which is known by the program's target name, and fails where it breaks a law."""
    shown = [_operation(op) for op in program.ops]
    names = {type(op).__name__ for op in program.ops} | {"Namespace" for text in shown if "Namespace(" in text}
    imports, setup, name = _lookup(program.target, target)
    imports += [_import("kvproof.models.ops", sorted(names))] if names else []
    imports += ["from kvproof.properties.lockstep import run"]
    law = program.violation.law if program.violation else ""
    lines = [*sorted(imports), *setup, "", "", f"def test_{_identifier(law or 'the adapter keeps the contract')}():"]
    if law in BY_NAME:
        lines += textwrap.wrap(BY_NAME[law].sentence, WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    lines += ["    ops = [", *(f"        {text}," for text in shown), "    ]"]
    lines += [f"    result = run(ops, {name}, num_blocks={program.config.num_blocks}, block_size={program.config.block_size})"]
    lines += ["    assert result.ok, result.violation or result.fault or result.hang"]
    return "\n".join(lines) + "\n"


def case_source(law: str, case: str, name: str, target: type) -> str:
    """A test file that judges one case of kernels again; `name` is the target's name on the command line."""
    imports, setup, kernels = _lookup(name, target)
    if law == WHOLE:
        imports += ["from kvproof.kernels.check import check_kernels"]
        body = [f"    report = check_kernels({kernels}, budget_seconds=1, laws={{{law!r}}})", '    assert report.verdict == "held", report']
    else:
        imports += ["from kvproof.kernels.check import judge_case", "from kvproof.kernels.laws.cases import Case"]
        body = [f"    case = {_case(case)}", f"    assert judge_case({kernels}, case) == {{}}"]
    lines = [*sorted(imports), *setup, "", "", f"def test_{_identifier(law)}():"]
    if law in BY_NAME:
        lines += textwrap.wrap(BY_NAME[law].sentence, WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    return "\n".join([*lines, *body]) + "\n"


def _case(case: str) -> str:
    if len(case) < WIDTH - 11:
        return case
    call = ast.parse(case, mode="eval").body
    assert isinstance(call, ast.Call)
    return "Case(\n" + "".join(f"        {ast.unparse(part)},\n" for part in (*call.args, *call.keywords)) + "    )"


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= WIDTH else f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _operation(op: Op) -> str:
    """The call that makes `op`, folded where it is too long for a line."""
    line = op_source(op)
    if len(line) < WIDTH - 8:
        return line
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = "".join(f"            {keyword.arg}={_value(keyword.value)},\n" for keyword in call.keywords)
    return f"{type(op).__name__}(\n{arguments}        )"


def _value(value: ast.expr) -> str:
    plain = ast.unparse(value)
    if not isinstance(value, ast.Tuple) or len(plain) < WIDTH - 24:
        return plain
    items = [ast.unparse(item) for item in value.elts]
    if len(set(items)) == 1:
        return f"({items[0]},) * {len(items)}"
    inner = " " * 16
    body = textwrap.wrap(f"{', '.join(items)},", WIDTH, initial_indent=inner, subsequent_indent=inner)
    return "\n".join(["(", *body, " " * 12 + ")"])


def _lookup(name: str, target: type) -> tuple[list[str], list[str], str]:
    """(imports, lines after them, expression) that give `target`: by import where it can be imported, else by the path of its file: from the
    current directory where it lies below, so that the test runs wherever the repository is checked out.
    """
    module, _, attribute = name.rpartition(":")
    engine = target.__module__.startswith("kvproof.impl.foreign.")
    if not module:
        module, attribute = target.__module__, target.__qualname__
    names = (*attribute.split("."), *module.split("."))
    if not engine and module not in ("bug", "kernel-bug") and not module.endswith(".py") and all(part.isidentifier() for part in names):
        return [f"from {module} import {attribute.partition('.')[0]}"], [], attribute
    return ["from kvproof.targets import find_target"], ["", f"Adapter = find_target({local(portable(name))!r})"], "Adapter"


def _identifier(words: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in words)
