"""Programs as Python that a reader can paste into a test.

Usage:

    print(program_source(ops, "mypkg.kv:Adapter", num_blocks=4, block_size=2))
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.models.ops import Op


def op_source(op: Op) -> str:
    """The expression that makes `op`, defaults left out: `Extend(seq=0, count=3)`."""
    return _source(op)


def program_source(ops: Sequence[Op], target: str, *, num_blocks: int, block_size: int) -> str:
    """A script that runs `ops` on a fresh cache of `target`, `module:Class`, and fails with the same reason."""
    module, _, name = target.rpartition(":")
    first = name.split(".")[0]
    imports = [f"from {module} import {first}"] if module and first.isidentifier() else [f"# {name} is the adapter: {target}"]
    imports += _imports(ops)
    body = "".join(f"    {op_source(op)},\n" for op in ops)
    call = f"result = run(ops, {name}, num_blocks={num_blocks}, block_size={block_size})"
    check = "assert result.ok, result.violation or result.fault or result.hang"
    return "\n".join(imports) + f"\n\nops = [\n{body}]\n{call}\n{check}\n"


def _imports(ops: Sequence[Op]) -> list[str]:
    names = {type(op).__name__ for op in ops}
    if any("Namespace(" in op_source(op) for op in ops):
        names.add("Namespace")
    lines = [f"from kvproof.models.ops import {', '.join(sorted(names))}"] if names else []
    return [*lines, "from kvproof.properties.lockstep import run"]


def _source(value: object) -> str:
    if not isinstance(value, msgspec.Struct):
        return repr(value)
    shown = []
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        if content != field.default:
            shown.append(f"{field.name}={_source(content)}")
    return f"{type(value).__name__}({', '.join(shown)})"
