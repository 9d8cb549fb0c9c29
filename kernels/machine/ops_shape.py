"""Program ids, shapes and data movement inside a tile. Splat and broadcast move nothing: see `values`."""

from __future__ import annotations

import numpy as np

from kvproof.kernels.machine.build import Builder, Env, Frame, PureFunction, Step, pure, step
from kvproof.kernels.machine.ir import Op
from kvproof.kernels.machine.numerics import Array
from kvproof.kernels.machine.values import Outer, dense, full

_AXES = {"x": 0, "y": 1, "z": 2}


def _axis_of(op: Op) -> int:
    return _AXES[op.text.split()[1]]


@step("tt.get_program_id")
def _program_id(op: Op, _builder: Builder) -> Step:
    (out,), axis = op.results, _axis_of(op)

    def run(env: Env, frame: Frame) -> None:
        x, y, z = frame.run.grid
        ids = (frame.ids % x, frame.ids // x % y, frame.ids // (x * y))[axis]
        env[out] = (ids[:1] if (x, y, z)[axis] == 1 else ids).astype(np.int32)

    return run


@step("tt.get_num_programs")
def _num_programs(op: Op, _builder: Builder) -> Step:
    (out,), axis = op.results, _axis_of(op)
    return lambda env, frame: env.__setitem__(out, np.array([frame.run.grid[axis]], np.int32))


@step("tt.make_range")
def _make_range(op: Op, _builder: Builder) -> Step:
    (out,) = op.results
    values = np.arange(op.integer("start"), op.integer("end"), dtype=np.int32)[None]
    return lambda env, _frame: env.__setitem__(out, values)


@step("tt.splat")
def _splat(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    ones = (1,) * len(builder.type(out).shape)
    if builder.type(out).is_pointer:
        builder.roots[out] = builder.root(source)
    return lambda env, _frame: env.__setitem__(out, env[source].reshape((-1, *ones)))


@step("tt.broadcast")
def _broadcast(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    if builder.type(out).is_pointer:
        builder.roots[out] = builder.root(source)
    return lambda env, _frame: env.__setitem__(out, env[source])


@step("tt.expand_dims")
def _expand_dims(op: Op, builder: Builder) -> Step:
    (source,), (out,), axis = op.operands, op.results, op.integer("axis")
    if builder.type(out).is_pointer:
        builder.roots[out] = builder.root(source)

    def run(env: Env, _frame: Frame) -> None:
        value = env[source]
        if value.__class__ is Outer:
            env[out] = Outer(np.expand_dims(value.base, axis + 1), value.inner, value.axis + (axis <= value.axis))
        else:
            env[out] = np.expand_dims(value, axis + 1)

    return run


@pure("tt.unsplat")
def _unsplat(_op: Op, _builder: Builder) -> PureFunction:
    return lambda a: a.reshape(a.shape[0])


@pure("tt.trans")
def _trans(op: Op, builder: Builder) -> PureFunction:
    order = op.integers("order") or tuple(reversed(range(len(builder.type(op.operands[0]).shape))))
    axes = (0, *(axis + 1 for axis in order))
    return lambda a: np.transpose(a, axes)


@pure("tt.reshape")
def _reshape(op: Op, builder: Builder) -> PureFunction:
    before, after = builder.type(op.operands[0]).shape, builder.type(op.results[0]).shape

    def reshape(a: Array) -> Array:
        if all(size == 1 for size in a.shape[1:]):
            return a.reshape((a.shape[0], *(1,) * len(after)))
        return full(a, before).reshape((a.shape[0], *after))

    return reshape


@pure("tt.cat")
def _cat(op: Op, builder: Builder) -> PureFunction:
    shapes = [builder.type(value).shape for value in op.operands]

    def cat(left: Array, right: Array) -> Array:
        count = max(left.shape[0], right.shape[0])
        return np.concatenate([np.broadcast_to(a, (count, *shape)) for a, shape in zip((left, right), shapes, strict=True)], axis=1)

    return cat


@pure("tt.join")
def _join(_op: Op, _builder: Builder) -> PureFunction:
    return lambda a, b: np.stack(np.broadcast_arrays(a, b), axis=-1)


@pure("tt.split")
def _split(op: Op, builder: Builder) -> PureFunction:
    shape = builder.type(op.operands[0]).shape

    def split(a: Array) -> tuple[Array, Array]:
        whole = full(a, shape)
        return whole[..., 0], whole[..., 1]

    return split


@pure("tt.gather")
def _gather(op: Op, builder: Builder) -> PureFunction:
    axis, shape, places = op.integer("axis") + 1, builder.type(op.operands[0]).shape, builder.type(op.operands[1]).shape

    def gather(source: Array, index: Array) -> Array:
        count = max(source.shape[0], index.shape[0])
        whole = np.broadcast_to(source, (count, *shape))
        wanted = np.broadcast_to(index, (count, *places))
        size = shape[axis - 1]
        if wanted.size and (wanted.min() < 0 or wanted.max() >= size):
            raise IndexError(f"tl.gather reads index {int(wanted.min())} to {int(wanted.max())} of an axis of {size}")
        return np.take_along_axis(whole, wanted.astype(np.int64), axis)

    return gather


@step("tt.histogram")
def _histogram(op: Op, builder: Builder) -> Step:
    (out,) = op.results
    bins, shape = builder.type(out).shape[0], builder.type(op.operands[0]).shape

    def run(env: Env, _frame: Frame) -> None:
        values = full(env[op.operands[0]], shape)
        mask = full(env[op.operands[1]], shape) if len(op.operands) > 1 else np.ones((1, *shape), np.bool_)
        values, mask = np.broadcast_arrays(values, mask)
        counts = np.zeros((values.shape[0], bins), np.int32)
        keep = mask & (values >= 0) & (values < bins)
        np.add.at(counts, (np.nonzero(keep)[0], values[keep]), 1)
        env[out] = counts

    return run


@step("tt.debug_barrier", "gpu.barrier", "ttg.barrier")
def _nothing(_op: Op, _builder: Builder) -> Step:
    # Programs run in step, so a barrier inside one has nothing to wait for.
    return lambda _env, _frame: None


@step("tt.assume", "llvm.intr.assume")
def _assume(op: Op, _builder: Builder) -> Step:
    # The optimiser may build on an assumption, so that a false one makes anything of the kernel.
    return _asserting(op, "tl.assume does not hold")


@step("tt.print")
def _print(op: Op, _builder: Builder) -> Step:
    prefix = op.text.split('"')[1] if '"' in op.text else ""

    def run(env: Env, frame: Frame) -> None:
        frame.run.printed.append((prefix.strip(), tuple(dense(env[value]).copy() for value in op.operands)))

    return run


@step("tt.assert", "cf.assert")
def _assert(op: Op, _builder: Builder) -> Step:
    return _asserting(op, op.text.split('"')[1] if '"' in op.text else "assertion failed")


def _asserting(op: Op, message: str) -> Step:
    (condition, *_) = op.operands

    def run(env: Env, frame: Frame) -> None:
        holds = dense(env[condition])
        if not holds.all():
            frame.run.assertion(op, message, holds, frame)

    return run
