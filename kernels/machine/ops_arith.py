"""`arith` and `math`: element by element, integers at IR width, narrow floats rounded after every operation."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproof.kernels.machine.build import Builder, Env, Frame, PureFunction, Step, pure, step
from kvproof.kernels.machine.ir import FLOATS, Op, Type, element_bits
from kvproof.kernels.machine.numerics import Array, container, decode, encode, is_narrow, round_toward_zero, rounder, storage, unsigned
from kvproof.kernels.machine.parse import split_top
from kvproof.kernels.machine.values import Outer, add, dense, select, sum_fits


def erf(values: Array) -> Array:
    """The error function; numpy has none."""
    return torch.erf(torch.from_numpy(np.ascontiguousarray(values))).numpy()


def divide_toward_zero(left: Array, right: Array) -> Array:
    """C's signed division; x/0 gives 0 here, where the hardware leaves it undefined."""
    quotient = left // right
    return np.asarray(quotient + ((left - quotient * right != 0) & ((left < 0) != (right < 0))).astype(quotient.dtype))


def ceil_divide(left: Array, right: Array) -> Array:
    """Signed division rounding up."""
    return np.asarray(-((-left) // right))


FLOAT_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "tt.precise_divf": np.divide,
    "math.copysign": np.copysign,
    "math.powf": np.power,
    "math.atan2": np.arctan2,
}

FLOAT_UNARY: dict[str, Callable[[Array], Any]] = {
    "arith.negf": np.negative,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.sqrt": np.sqrt,
    "tt.precise_sqrt": np.sqrt,
    "math.rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "math.cbrt": np.cbrt,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.absf": np.abs,
    "math.ceil": np.ceil,
    "math.floor": np.floor,
    "math.trunc": np.trunc,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x),
    "math.roundeven": np.rint,
    "math.erf": erf,
}

SIGNED: dict[str, Callable[[Array, Array], Any]] = {
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": divide_toward_zero,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": ceil_divide,
    "arith.remsi": np.fmod,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
}

UNSIGNED: dict[str, Callable[[Array, Array], Any]] = {
    "arith.divui": np.floor_divide,
    "arith.ceildivui": lambda a, b: a // b + (a % b != 0).astype(a.dtype),
    "arith.remui": np.remainder,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
    "arith.shrui": np.right_shift,
}

BOOLEAN: dict[str, Callable[[Array, Array], Any]] = {
    "arith.addi": np.logical_xor,
    "arith.subi": np.logical_xor,
    "arith.muli": np.logical_and,
    "arith.maxsi": np.logical_and,
    "arith.minsi": np.logical_or,
    "arith.maxui": np.logical_or,
    "arith.minui": np.logical_and,
}
"""One-bit integers: addition is modulo two, and the set bit is -1 where the operation is signed."""


def _rounded(elem: str, function: Callable[..., Any]) -> PureFunction:
    narrow = rounder(elem)
    if narrow is None:
        return function
    return lambda *args: narrow(function(*args))


@pure(*FLOAT_BINARY)
def _float_binary(op: Op, builder: Builder) -> PureFunction:
    return _rounded(builder.type(op.results[0]).elem, FLOAT_BINARY[op.name])


@pure(*FLOAT_UNARY)
def _float_unary(op: Op, builder: Builder) -> PureFunction:
    return _rounded(builder.type(op.results[0]).elem, FLOAT_UNARY[op.name])


@pure("math.fma")
def _fma(op: Op, builder: Builder) -> PureFunction:
    elem = builder.type(op.results[0]).elem
    if elem == "f64":
        return lambda a, b, c: a * b + c
    # float64 holds the product of two float32 exactly, so only the last rounding differs from a true fma, in one case in 2^29.
    return _rounded(elem, lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32))


@pure("tt.clampf")
def _clamp(op: Op, _builder: Builder) -> PureFunction:
    if "propagateNan = all" in op.text:
        return lambda x, low, high: np.where(np.isnan(x), x, np.minimum(np.maximum(x, low), high))
    return lambda x, low, high: np.fmin(np.fmax(x, low), high)


@pure(*SIGNED)
def _signed(op: Op, builder: Builder) -> PureFunction:
    return BOOLEAN.get(op.name, SIGNED[op.name]) if builder.type(op.results[0]).elem == "i1" else SIGNED[op.name]


@pure(*UNSIGNED)
def _unsigned(op: Op, builder: Builder) -> PureFunction:
    function, kind = UNSIGNED[op.name], container(builder.type(op.results[0]).elem)
    if kind == np.bool_:
        return BOOLEAN[op.name]
    return lambda a, b: np.asarray(function(unsigned(a), unsigned(b))).view(kind)


@pure("arith.andi")
def _and(op: Op, builder: Builder) -> PureFunction:
    if builder.type(op.results[0]).elem != "i1":
        return np.bitwise_and

    def both(left: Array, right: Array) -> Array:
        # A mask over the head that holds everywhere is the usual case; dropping it keeps masks one value per row.
        for some, rest in ((left, right), (right, left)):
            if some.shape[0] == 1 and some.size <= 1024 and some.all():
                return rest
        return np.asarray(left & right)

    return both


@step("arith.addi")
def _add(op: Op, builder: Builder) -> Step:
    (left, right), (out,) = op.operands, op.results
    kind = builder.type(out)
    if kind.elem == "i1":
        return lambda env, _frame: env.__setitem__(out, dense(env[left]) ^ dense(env[right]))

    def run(env: Env, _frame: Frame) -> None:
        total = add(env[left], env[right])
        if total.__class__ is Outer and not sum_fits(env[left], env[right], kind.bits):
            total = dense(env[left]) + dense(env[right])
        env[out] = total

    return run


@step("arith.extsi", "arith.index_cast")
def _sign_extend(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    kind, from_bool = container(builder.type(out).elem), builder.type(source).elem == "i1"

    def run(env: Env, _frame: Frame) -> None:
        value = env[source]
        if value.__class__ is Outer:
            env[out] = Outer(value.base.astype(kind), value.inner.astype(kind), value.axis)
        else:
            env[out] = -value.astype(kind) if from_bool else value.astype(kind)

    return run


@pure("arith.extui", "arith.index_castui")
def _zero_extend(op: Op, builder: Builder) -> PureFunction:
    kind = container(builder.type(op.results[0]).elem)
    return lambda a: unsigned(a).astype(kind)


@pure("arith.trunci")
def _truncate(op: Op, builder: Builder) -> PureFunction:
    kind = container(builder.type(op.results[0]).elem)
    if kind == np.bool_:
        return lambda a: (a & 1).astype(np.bool_)
    return lambda a: a.astype(kind)


@pure("arith.sitofp", "arith.uitofp")
def _int_to_float(op: Op, builder: Builder) -> PureFunction:
    elem = builder.type(op.results[0]).elem
    kind, signed = container(elem), op.name == "arith.sitofp"

    def convert(a: Array) -> Array:
        if a.dtype == np.bool_:
            return np.asarray((-1 if signed else 1) * a.astype(kind))
        return np.asarray((a if signed else unsigned(a)).astype(kind))

    return _rounded(elem, convert)


@pure("arith.fptosi", "arith.fptoui")
def _float_to_int(op: Op, builder: Builder) -> PureFunction:
    elem = builder.type(op.results[0]).elem
    bits, signed = element_bits(elem), op.name == "arith.fptosi"
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    kind = container(elem)

    def convert(a: Array) -> Array:
        # The hardware's conversion saturates and turns NaN to zero; numpy's would be undefined.
        wide = np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0, posinf=float(high), neginf=float(low)))
        if bits == 64:
            clipped = np.where(wide >= 2.0**63, high if signed else 0, wide.clip(-(2.0**63), 2.0**63 - 1024).astype(np.int64))
            return np.asarray(clipped.astype(np.int64))
        return np.asarray(wide.clip(low, high).astype(np.int64).astype(kind))

    return convert


@pure("arith.truncf", "arith.extf", "tt.fp_to_fp")
def _float_to_float(op: Op, builder: Builder) -> PureFunction:
    source, target = builder.type(op.operands[0]).elem, builder.type(op.results[0]).elem
    kind = container(target)
    if "rounding = rtz" in op.text and is_narrow(target):
        return lambda a: round_toward_zero(target, a.astype(np.float32))
    narrow = rounder(target)
    if narrow is None or FLOATS[source] < FLOATS[target] or source == target:
        return lambda a: a if a.dtype == kind else a.astype(kind)
    return lambda a: narrow(a.astype(np.float32))


@pure("arith.bitcast", "tt.bitcast")
def _bitcast(op: Op, builder: Builder) -> PureFunction:
    source, target = builder.type(op.operands[0]).elem, builder.type(op.results[0]).elem
    if source == target:
        return lambda a: a
    kind = storage(target)
    return lambda a: decode(target, np.ascontiguousarray(encode(source, a)).view(kind))


_COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pure("arith.cmpi")
def _compare_integers(op: Op, builder: Builder) -> PureFunction:
    predicate = op.text.split()[1].rstrip(",")
    if predicate in ("eq", "ne"):
        return _COMPARE[predicate]
    function = _COMPARE[predicate[1:]]
    if predicate[0] == "u":
        return lambda a, b: function(unsigned(a), unsigned(b))
    if builder.type(op.operands[0]).elem == "i1":
        return lambda a, b: function(b, a)
    return function


@pure("arith.cmpf")
def _compare_floats(op: Op, _builder: Builder) -> PureFunction:
    predicate = op.text.split()[1].rstrip(",")
    if predicate in ("true", "false"):
        return lambda a, b: np.full(np.broadcast_shapes(a.shape, b.shape), predicate == "true")
    if predicate in ("ord", "uno"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (predicate == "uno")
    function, ordered = _COMPARE[predicate[1:]], predicate[0] == "o"
    if (predicate[1:] != "ne") == ordered:
        return function
    if ordered:
        return lambda a, b: function(a, b) & ~(np.isnan(a) | np.isnan(b))
    return lambda a, b: function(a, b) | np.isnan(a) | np.isnan(b)


@pure("math.absi")
def _absolute(_op: Op, _builder: Builder) -> PureFunction:
    return np.abs


@pure("math.ctpop", "math.ctlz")
def _bit_counts(op: Op, builder: Builder) -> PureFunction:
    kind, bits = container(builder.type(op.results[0]).elem), builder.type(op.results[0]).bits
    if op.name == "math.ctpop":
        return lambda a: np.bitwise_count(unsigned(a)).astype(kind)
    return lambda a: (bits - np.ceil(np.log2(unsigned(a).astype(np.float64) + 1))).astype(kind)


@pure("tt.mulhiui")
def _multiply_high(op: Op, builder: Builder) -> PureFunction:
    elem = builder.type(op.results[0]).elem
    bits, kind = element_bits(elem), container(elem)
    if bits == 32:
        return lambda a, b: ((unsigned(a).astype(np.uint64) * unsigned(b)) >> np.uint64(32)).astype(np.uint32).view(kind)
    return lambda a, b: _high_words(unsigned(a), unsigned(b)).view(kind)


def _high_words(a: Array, b: Array) -> Array:
    """The upper 64 bits of unsigned 64-bit products, by halves."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low)
    return np.asarray(a1 * b1 + (middle >> half) + (other >> half))


@pure("arith.mulsi_extended", "arith.mului_extended")
def _multiply_extended(op: Op, builder: Builder) -> PureFunction:
    elem = builder.type(op.results[0]).elem
    bits, kind, signed = element_bits(elem), container(elem), op.name == "arith.mulsi_extended"
    if bits > 32:
        raise builder.unsupported(op, "64-bit operands")

    def multiply(a: Array, b: Array) -> tuple[Array, Array]:
        wide = a.astype(np.int64) * b.astype(np.int64) if signed else (unsigned(a).astype(np.uint64) * unsigned(b)).view(np.int64)
        return wide.astype(kind), (wide >> bits).astype(kind)

    return multiply


@pure("arith.select")
def _select(_op: Op, _builder: Builder) -> PureFunction:
    return select


@step("arith.constant")
def _constant(op: Op, builder: Builder) -> Step:
    (out,) = op.results
    kind = builder.type(out)
    text = op.text.removeprefix("arith.constant").strip()
    literal = text.rsplit(" : ", 1)[0].strip()
    if literal.startswith("dense<"):
        values = [_literal(part, kind.elem) for part in re.findall(r"[^\s,\[\]]+", literal[6:-1])]
        shape = kind.shape if len(values) > 1 else (1,) * len(kind.shape)
        array = np.array(values, container(kind.elem)).reshape((1, *shape))
    else:
        array = np.array([_literal(split_top(literal)[0], kind.elem)], container(kind.elem))
    array.flags.writeable = False
    return lambda env, _frame: env.__setitem__(out, array)


@step("ub.poison")
def _poison(op: Op, builder: Builder) -> Step:
    (out,) = op.results
    kind = builder.type(out)
    array = np.zeros((1,) * (1 + len(kind.shape)), container(kind.elem))
    return lambda env, _frame: env.__setitem__(out, array)


def constant_value(op: Op, kind: Type) -> bool | int | float | None:
    """The value of a constant that is the same in every lane, None where lanes differ."""
    literal = op.text.removeprefix("arith.constant").strip().rsplit(" : ", 1)[0].strip()
    if literal.startswith("dense<"):
        literal = literal[6:-1]
        if "[" in literal:
            return None
    value: bool | int | float = _literal(split_top(literal)[0], kind.elem)
    return value


def _literal(text: str, elem: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if elem in FLOATS:
        return _float_literal(text, elem)
    value = int(text, 0)
    bits = element_bits(elem)
    return value - (1 << bits) if value >= 1 << (bits - 1) and bits < 128 and elem != "i1" else value


def _float_literal(text: str, elem: str) -> float:
    if not text.startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if elem == "f64":
        return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    if elem == "f32":
        return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])
    return float(decode(elem, np.array([bits], storage(elem)))[0])
