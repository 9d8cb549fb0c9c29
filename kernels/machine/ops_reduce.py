"""Reductions, scans and dots.

A reduction whose region is one well-known operation becomes numpy's, in numpy's order: that is the order of Triton's own interpreter. Any
other region is applied to halves of the axis, which every associative combiner allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproof.kernels.machine.build import Builder, CompiledRegion, Env, Frame, PureFunction, Step, pure, run_block, step
from kvproof.kernels.machine.ir import Op, Region
from kvproof.kernels.machine.numerics import Array, container, is_narrow, rounder, truncate_to_tf32, unsigned
from kvproof.kernels.machine.values import dense, full

TORCH_MIN_ELEMENTS = 16384
"""From here on torch's maximum is faster (10 us against 54 us at 65,536 elements); it is exact, so order does not matter."""

_REDUCE: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add.reduce,
    "arith.mulf": np.multiply.reduce,
    "arith.maximumf": np.maximum.reduce,
    "arith.minimumf": np.minimum.reduce,
    "arith.minnumf": np.fmin.reduce,
    "arith.maxsi": np.maximum.reduce,
    "arith.minsi": np.minimum.reduce,
    "arith.andi": np.bitwise_and.reduce,
    "arith.ori": np.bitwise_or.reduce,
    "arith.xori": np.bitwise_xor.reduce,
}

_SCAN: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add.accumulate,
    "arith.mulf": np.multiply.accumulate,
    "arith.maximumf": np.maximum.accumulate,
    "arith.maxnumf": np.fmax.accumulate,
    "arith.minnumf": np.fmin.accumulate,
    "arith.maxsi": np.maximum.accumulate,
    "arith.minsi": np.minimum.accumulate,
}


def _max_number(values: Array, axis: int) -> Array:
    if values.size >= TORCH_MIN_ELEMENTS and values.dtype == np.float32 and values.flags.c_contiguous and values.flags.writeable:
        result = torch.amax(torch.from_numpy(values), dim=axis).numpy()
        if not np.isnan(result).any():
            return np.asarray(result)
    return np.asarray(np.fmax.reduce(values, axis=axis))


def _single(region: Region) -> str | None:
    """The one operation that a combiner applies to its two arguments."""
    ops = region.body.ops
    if len(ops) == 2 and set(ops[0].operands) == set(region.body.arguments) and ops[1].operands == ops[0].results:
        return ops[0].name
    return None


def _simple_reduce(op: Op, builder: Builder) -> Callable[[Array, int], Array] | None:
    name, kind = _single(op.regions[0]), builder.type(op.operands[0])
    if len(op.operands) != 1 or name is None or (is_narrow(kind.elem) and name in ("arith.addf", "arith.mulf")):
        return None
    if name == "arith.maxnumf":
        return _max_number
    if name in ("arith.addi", "arith.muli") and kind.elem != "i1":
        function = np.add.reduce if name == "arith.addi" else np.multiply.reduce
        return lambda values, axis: function(values, axis=axis, dtype=values.dtype)
    if name in ("arith.maxui", "arith.minui") and kind.elem != "i1":
        chosen = np.maximum.reduce if name == "arith.maxui" else np.minimum.reduce
        return lambda values, axis: chosen(unsigned(values), axis=axis).view(values.dtype)
    if name in _REDUCE and not (kind.elem == "i1" and name in ("arith.maxsi", "arith.minsi")):
        return lambda values, axis: _REDUCE[name](values, axis=axis)
    return None


@step("tt.reduce")
def _reduce(op: Op, builder: Builder) -> Step:
    axis, shape = op.integer("axis") + 1, builder.type(op.operands[0]).shape
    simple = _simple_reduce(op, builder)
    if simple is not None:
        (source,), (out,) = op.operands, op.results

        def run_simple(env: Env, _frame: Frame) -> None:
            env[out] = simple(_axis_full(env[source], shape, axis), axis)

        return run_simple
    combine = _combiner(builder.region(op.regions[0]))

    def run(env: Env, frame: Frame) -> None:
        parts = _together([full(env[value], shape) for value in op.operands])
        while (size := parts[0].shape[axis]) > 1:
            half = size // 2
            left = [_cut(part, axis, 0, half) for part in parts]
            right = [_cut(part, axis, half, 2 * half) for part in parts]
            rest = [_cut(part, axis, 2 * half, size) for part in parts]
            parts = combine(left, right, env, frame)
            if rest[0].shape[axis]:
                parts = [np.concatenate(pair, axis) for pair in zip(parts, rest, strict=True)]
        for out, part in zip(op.results, parts, strict=True):
            env[out] = np.squeeze(part, axis)

    return run


def _axis_full(value: Any, shape: tuple[int, ...], axis: int) -> Array:
    """The reduced axis at full size; the others may stay at one, since reducing equal rows gives equal results."""
    array = dense(value)
    if array.shape[axis] == shape[axis - 1]:
        return np.asarray(array)
    wanted = list(array.shape)
    wanted[axis] = shape[axis - 1]
    return np.broadcast_to(array, wanted)


def _together(parts: list[Array]) -> list[Array]:
    return [np.broadcast_to(part, np.broadcast_shapes(*(other.shape for other in parts))) for part in parts]


def _cut(array: Array, axis: int, start: int, stop: int) -> Array:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _combiner(region: CompiledRegion) -> Callable[[list[Array], list[Array], Env, Frame], list[Array]]:
    def combine(left: list[Array], right: list[Array], env: Env, frame: Frame) -> list[Array]:
        for argument, value in zip(region.block.arguments, left + right, strict=True):
            env[argument] = value
        run_block(region.block, env, frame)
        return [np.broadcast_to(env[value], left[0].shape) for value in region.yields]

    return combine


@step("tt.scan")
def _scan(op: Op, builder: Builder) -> Step:
    axis, kind, reverse = op.integer("axis") + 1, builder.type(op.operands[0]), "reverse = true" in op.text
    name = _single(op.regions[0])
    accumulate = (
        _SCAN.get(name or "") if len(op.operands) == 1 and not (is_narrow(kind.elem) and name in ("arith.addf", "arith.mulf")) else None
    )
    if name in ("arith.addi", "arith.muli") and kind.elem != "i1" and len(op.operands) == 1:
        ufunc, dtype = (np.add if name == "arith.addi" else np.multiply), container(kind.elem)
        accumulate = lambda values, axis: ufunc.accumulate(values, axis=axis, dtype=dtype)  # noqa: E731
    combine = _combiner(builder.region(op.regions[0]))

    def run(env: Env, frame: Frame) -> None:
        parts = _together([full(env[value], kind.shape) for value in op.operands])
        parts = [np.flip(part, axis) if reverse else part for part in parts]
        parts = _scan_in_order(parts, axis, combine, env, frame) if accumulate is None else [accumulate(parts[0], axis=axis)]
        for out, part in zip(op.results, parts, strict=True):
            env[out] = np.flip(part, axis) if reverse else part

    return run


def _scan_in_order(parts: list[Array], axis: int, combine: Any, env: Env, frame: Frame) -> list[Array]:
    size = parts[0].shape[axis]
    rows = [[_cut(part, axis, 0, 1) for part in parts]]
    for at in range(1, size):
        rows.append(combine(rows[-1], [_cut(part, axis, at, at + 1) for part in parts], env, frame))
    return [np.concatenate([row[index] for row in rows], axis) for index in range(len(parts))]


@pure("tt.dot")
def _dot(op: Op, builder: Builder) -> PureFunction:
    """Sums are float64 and rounded to the result's type, so that a row's bits do not depend on its place in the tile or on what lies beside
    it: float32 sums of a BLAS differ in two elements of five when rows are permuted, those of a tensor core do not. Integers wrap.
    """
    left, right, result = (builder.type(value) for value in (op.operands[0], op.operands[1], op.results[0]))
    if result.elem.startswith("i"):
        kind = container(result.elem)
        return lambda a, b, c: (
            np.matmul(full(a, left.shape).astype(np.float64), full(b, right.shape).astype(np.float64)).astype(np.int64).astype(kind) + c
        )
    kind = container(result.elem)
    is_tf32 = op.word("inputPrecision", "ieee") == "tf32" and left.elem == "f32"
    narrow = rounder(result.elem)

    def dot(a: Array, b: Array, c: Array) -> Array:
        a, b = full(a, left.shape), full(b, right.shape)
        if is_tf32:
            a, b = truncate_to_tf32(a), truncate_to_tf32(b)
        total = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(kind) + c
        return narrow(total) if narrow is not None else total

    return dot
