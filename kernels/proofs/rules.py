"""What each operation of the IR computes, as an expression of Z3: the rules that `symbolic` evaluates a kernel by.

A rule that can say nothing exact gives an unknown and why; a result that has to fit the width of the IR is noted by `Evaluator.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import z3

from kvproof.kernels.machine.ir import Op
from kvproof.kernels.machine.ops_arith import constant_value

if TYPE_CHECKING:
    from kvproof.kernels.proofs.symbolic import Evaluator

Lanes: TypeAlias = tuple[Any, ...]
Expr: TypeAlias = Any
"""A Z3 integer or boolean expression; z3 ships no types."""

Rule: TypeAlias = Callable[["Evaluator", Op, Lanes], Expr]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register how operations are evaluated."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


@rule("arith.constant")
def _constant(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    value = constant_value(op, e.type(op.results[0]))
    if isinstance(value, bool):
        return z3.BoolVal(value)
    return z3.IntVal(value) if isinstance(value, int) else e.unknown(op, lanes)


@rule("tt.get_program_id")
def _program_id(e: Evaluator, op: Op, _lanes: Lanes) -> Expr:
    axis = {"x": 0, "y": 1, "z": 2}[op.text.split()[1]]
    name = f"program_{'xyz'[axis]}"
    e.ranges.setdefault(name, (z3.Int(name), 0, e.grid[axis] - 1))
    return e.ranges[name][0]


@rule("tt.get_num_programs")
def _num_programs(e: Evaluator, op: Op, _lanes: Lanes) -> Expr:
    return z3.IntVal(e.grid[{"x": 0, "y": 1, "z": 2}[op.text.split()[1]]])


@rule("tt.make_range")
def _make_range(_e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    return lanes[0] + op.integer("start")


@rule("tt.splat")
def _splat(e: Evaluator, op: Op, _lanes: Lanes) -> Expr:
    return e.at(op.operands[0], ())


@rule("tt.expand_dims")
def _expand_dims(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    axis = op.integer("axis")
    return e.at(op.operands[0], lanes[:axis] + lanes[axis + 1 :])


@rule("tt.broadcast")
def _broadcast(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    shape = e.type(op.operands[0]).shape
    return e.at(op.operands[0], tuple(z3.IntVal(0) if size == 1 else lane for size, lane in zip(shape, lanes, strict=True)))


@rule("tt.trans")
def _trans(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    order = op.integers("order")
    source = list(lanes)
    for at, axis in enumerate(order):
        source[axis] = lanes[at]
    return e.at(op.operands[0], tuple(source))


@rule("tt.reshape")
def _reshape(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    linear: Expr = z3.IntVal(0)
    for size, lane in zip(e.type(op.results[0]).shape, lanes, strict=True):
        linear = linear * size + lane
    source, shape = [], e.type(op.operands[0]).shape
    for at, size in enumerate(shape):
        source.append(linear / math.prod(shape[at + 1 :]) % size)
    return e.at(op.operands[0], tuple(source))


def _both(e: Evaluator, op: Op, lanes: Lanes) -> tuple[Expr, Expr]:
    return e.at(op.operands[0], lanes), e.at(op.operands[1], lanes)


@rule("arith.addi", "arith.subi", "arith.muli")
def _arithmetic(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    if z3.is_bool(a):
        return e.unknown(op, lanes)
    if op.name == "arith.muli" and not (z3.is_int_value(z3.simplify(a)) or z3.is_int_value(z3.simplify(b))):
        # A product of two unknowns is beyond linear arithmetic, but the solver may still manage it within its time.
        return e.fit(a * b, op)
    return e.fit(z3.simplify({"arith.addi": lambda: a + b, "arith.subi": lambda: a - b, "arith.muli": lambda: a * b}[op.name]()), op)


@rule("tt.addptr")
def _addptr(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    return a + b


@rule("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
def _divide(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    divisor = z3.simplify(b)
    if not z3.is_int_value(divisor):
        return _divide_by_unknown(e, op, lanes, a, b)
    if divisor.as_long() <= 0:
        return e.unknown(op, lanes, f"a division by {divisor} at {op.location}")
    if op.name.endswith("ui"):
        a = _as_unsigned(a, e.type(op.operands[0]).bits)
    quotient = z3.If(a >= 0, a / divisor, -((-a) / divisor))
    return quotient if "div" in op.name else a - quotient * divisor


def _divide_by_unknown(e: Evaluator, op: Op, lanes: Lanes, a: Expr, b: Expr) -> Expr:
    """A quotient lies between 0 and the dividend, a remainder below the divisor too: linear bounds, where the exact value is nonlinear. A
    counterexample that needs more is not one.
    """
    result = e.unknown(op, lanes, f"a division by a value that is not constant at {op.location}")
    bounds = [result >= 0, result <= a] + ([result < b] if "rem" in op.name else [])
    e.facts.append(z3.Implies(z3.And(a >= 0, b >= 1), z3.And(*bounds)))
    return result


@rule("arith.maxsi", "arith.minsi")
def _extremes(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    return z3.If(a >= b, a, b) if op.name == "arith.maxsi" else z3.If(a <= b, a, b)


@rule("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    by = z3.simplify(b)
    if not z3.is_int_value(by):
        return e.unknown(op, lanes)
    factor = 2 ** by.as_long()
    if op.name == "arith.shli":
        return e.fit(a * factor, op)
    return (a if op.name == "arith.shrsi" else _as_unsigned(a, e.type(op.operands[0]).bits)) / factor


@rule("arith.andi", "arith.ori", "arith.xori")
def _logic(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    if z3.is_bool(a):
        return {"arith.andi": z3.And, "arith.ori": z3.Or, "arith.xori": z3.Xor}[op.name](a, b)
    mask = z3.simplify(b)
    if op.name == "arith.andi" and z3.is_int_value(mask) and (mask.as_long() + 1) & mask.as_long() == 0:
        return a % (mask.as_long() + 1)
    return e.unknown(op, lanes)


@rule("arith.extsi", "arith.extui", "arith.index_cast", "arith.trunci")
def _convert(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a = e.at(op.operands[0], lanes)
    if z3.is_bool(a):
        return z3.If(a, -1 if op.name == "arith.extsi" else 1, 0)
    if op.name == "arith.trunci":
        return e.unknown(op, lanes) if e.type(op.results[0]).elem == "i1" else e.fit(a, op)
    return _as_unsigned(a, e.type(op.operands[0]).bits) if op.name == "arith.extui" else a


def _as_unsigned(a: Expr, bits: int) -> Expr:
    return z3.If(a < 0, a + 2**bits, a)


@rule("arith.cmpi")
def _compare(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    a, b = _both(e, op, lanes)
    predicate = op.text.split()[1].rstrip(",")
    if predicate == "eq":
        return a == b
    if predicate == "ne":
        return a != b
    if z3.is_bool(a):
        return e.unknown(op, lanes)
    if predicate[0] == "u":
        bits = e.type(op.operands[0]).bits
        a, b = _as_unsigned(a, bits), _as_unsigned(b, bits)
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[predicate[1:]]


@rule("arith.select")
def _select(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    shape = e.type(op.operands[0]).shape
    condition = e.at(op.operands[0], lanes if shape else ())
    return z3.If(condition, e.at(op.operands[1], lanes), e.at(op.operands[2], lanes))


@rule("tt.load")
def _load(e: Evaluator, op: Op, lanes: Lanes) -> Expr:
    kind, root = e.type(op.results[0]), e.roots.get(op.operands[0], -1)
    content = e.contents.get(root)
    if content is None or kind.is_float or kind.elem in ("i1", "ptr"):
        return e.unknown(op, lanes, f"what tt.load reads at {op.location}")
    value = e.fresh("loaded", content.low, content.high)
    e.loaded[str(value)] = content.source
    if len(op.operands) > 2:
        return z3.If(e.at(op.operands[1], lanes), value, e.at(op.operands[2], lanes))
    return value
