"""Proofs that no address of a launch leaves its tensor and no computation of it wraps, for every value of what the launch reads.

Block ids and slots range over all values that the tensors of the launch show (the launches given here hold the first and the last block of
the pool), program ids over the grid, loop counters over their bounds, lanes over their tiles. Strides and sizes are those of the launch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import z3

from kvproof.kernels.machine.ir import Location, Program, element_bytes
from kvproof.kernels.proofs.symbolic import Access, Content, Evaluator

Outcome: TypeAlias = Literal["proved", "counterexample", "unknown"]

TIMEOUT_MILLISECONDS = 2000
"""For one access. Linear queries take a few milliseconds; what takes longer is nonlinear and mostly never ends."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """One access of a kernel. `reason` says why it is unknown, or what the counterexample does; `model` holds its values by name."""

    kernel: str
    location: Location
    access: str
    outcome: Outcome
    reason: str = ""
    model: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.model)
        return (
            f"{self.outcome}: {self.access} of {self.kernel} at {self.location}"
            + (f": {self.reason}" if self.reason else "")
            + (f" with {values}" if values else "")
        )


def prove_launch(program: Program, values: Sequence[Any], grid: tuple[int, int, int], deadline: float | None = None) -> list[Proof]:
    """One proof for each load, store and atomic. `values` are the flattened launch arguments, `deadline` a `time.process_time` after which all
    is unknown.
    """
    function = program.kernel
    scalars = {at: int(value) for at, value in enumerate(values) if isinstance(value, int) and not isinstance(value, bool)}
    scalars |= {at: int(value) for at, value in enumerate(values) if isinstance(value, bool)}
    tensors = {at: value for at, value in enumerate(values) if isinstance(value, torch.Tensor)}
    contents = {at: found for at, value in tensors.items() if (found := _content(value, function.names[at])) is not None}
    evaluator = Evaluator(function, scalars, contents, grid)
    return [_prove(evaluator, access, tensors, function.name, deadline) for access in evaluator.accesses]


def launch_key(program: Program, values: Sequence[Any], grid: tuple[int, int, int]) -> tuple[Any, ...]:
    """What the proofs of a launch depend on: launches with equal keys have the same ones, as long as the programs live."""
    return (id(program), grid, *(_described(value) for value in values))


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, int) else None
    found = _content(value, "")
    return value.dtype, tuple(value.shape), value.stride(), found and (found.low, found.high)


def _content(tensor: torch.Tensor, name: str) -> Content | None:
    """The range of an integer tensor's values. Pools hold whatever they hold and are too large to look at."""
    if tensor.dtype not in (torch.int32, torch.int64) or not 0 < tensor.numel() <= 1 << 24:
        return None
    return Content(int(tensor.min()), int(tensor.max()), name)


def _prove(evaluator: Evaluator, access: Access, tensors: dict[int, torch.Tensor], kernel: str, deadline: float | None) -> Proof:
    op = access.op
    place = (kernel, op.location, op.name.removeprefix("tt."))
    root = evaluator.roots.get(op.operands[0], -1)
    if root not in tensors:
        return Proof(*place, "unknown", "its pointer is not known to come from one tensor argument")
    if element_bytes(evaluator.type(op.operands[0]).pointee or "i8") != tensors[root].element_size():
        return Proof(*place, "unknown", "the kernel reads its tensor as elements of another width")
    if deadline is not None and time.process_time() > deadline:
        return Proof(*place, "unknown", "the time for proofs was used up")
    tensor = tensors[root]
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    lanes = tuple(evaluator.fresh(f"lane{axis}", 0, size - 1) for axis, size in enumerate(evaluator.type(op.operands[0]).shape))
    evaluator.forget()
    conditions = [guard() for guard in access.guards]
    mask = _mask(access)
    if mask is not None:
        conditions.append(evaluator.at(mask, lanes))
    address = evaluator.at(op.operands[0], lanes)
    wraps = [z3.Or(side.expr < -(2 ** (side.bits - 1)), side.expr >= 2 ** (side.bits - 1)) for side in evaluator.sides]
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MILLISECONDS)
    solver.add(
        *conditions, *evaluator.facts, *(z3.And(variable >= low, variable <= high) for variable, low, high in evaluator.ranges.values())
    )
    solver.add(z3.Or(*wraps, address < 0, address >= span))
    answer = solver.check()
    if answer == z3.unsat:
        return Proof(*place, "proved")
    if answer == z3.unknown:
        return Proof(*place, "unknown", f"the solver gave up: {solver.reason_unknown()}")
    return _counterexample(
        evaluator, solver.model(), place, address, span, [*conditions, *(side.expr for side in evaluator.sides), address]
    )


def _mask(access: Access) -> int | None:
    op = access.op
    at = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}.get(op.name)
    return op.operands[at] if at is not None and len(op.operands) > at else None


def _counterexample(evaluator: Evaluator, model: Any, place: tuple[str, Location, str], address: Any, span: int, used: list[Any]) -> Proof:
    names = _names(used)
    opaque = [evaluator.opaque[name] for name in sorted(names) if name in evaluator.opaque]
    if opaque:
        return Proof(*place, "unknown", f"it depends on {opaque[0]}")
    values = {
        name: model.eval(variable, model_completion=True).as_long() for name, (variable, _, _) in evaluator.ranges.items() if name in names
    }
    shown = tuple((evaluator.loaded.get(name, name.split("!")[0]), value) for name, value in sorted(values.items()))
    for side in evaluator.sides:
        exact = model.eval(side.expr, model_completion=True).as_long()
        if not -(2 ** (side.bits - 1)) <= exact < 2 ** (side.bits - 1):
            return Proof(
                *place, "counterexample", f"{side.op.name} at {side.op.location} gives {exact}, which {side.bits} bits do not hold", shown
            )
    return Proof(*place, "counterexample", f"element {model.eval(address, model_completion=True)} of a tensor of {span}", shown)


def _names(expressions: list[Any]) -> set[str]:
    seen, names, todo = set(), set(), list(expressions)
    while todo:
        found = todo.pop()
        if found.get_id() in seen:
            continue
        seen.add(found.get_id())
        if z3.is_const(found) and found.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            names.add(str(found))
        todo.extend(found.children())
    return names
