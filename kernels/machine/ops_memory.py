"""Pointers, loads, stores and atomics. What they may touch is decided by `traffic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.kernels.machine.build import ABSOLUTE, Builder, Env, Frame, Step, step
from kvproof.kernels.machine.ir import Op, element_bytes
from kvproof.kernels.machine.numerics import Array, container, decode, encode, rounder, unsigned
from kvproof.kernels.machine.order import semantics
from kvproof.kernels.machine.traffic import Site
from kvproof.kernels.machine.values import Outer, add, dense, select


@step("tt.addptr")
def _addptr(op: Op, builder: Builder) -> Step:
    (pointer, offset), (out,) = op.operands, op.results
    root = builder.root(pointer)
    builder.roots[out] = root
    if root == ABSOLUTE:
        size = np.int64(element_bytes(builder.type(pointer).pointee or "i8"))
        return lambda env, _frame: env.__setitem__(out, dense(env[pointer]) + dense(env[offset]).astype(np.int64) * size)

    def run(env: Env, _frame: Frame) -> None:
        step_by = env[offset]
        if step_by.__class__ is Outer:
            wide = Outer(step_by.base.astype(np.int64), step_by.inner.astype(np.int64), step_by.axis)
            env[out] = add(env[pointer], wide)
        else:
            env[out] = add(env[pointer], step_by.astype(np.int64))

    return run


@step("tt.int_to_ptr")
def _int_to_ptr(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    builder.roots[out] = ABSOLUTE
    return lambda env, _frame: env.__setitem__(out, dense(env[source]).astype(np.int64))


@step("pointer arith.select")
def _pointer_select(op: Op, builder: Builder) -> Step:
    (condition, left, right), (out,) = op.operands, op.results
    roots = builder.root(left), builder.root(right)
    if roots[0] == roots[1]:
        builder.roots[out] = roots[0]
        return lambda env, _frame: env.__setitem__(out, select(dense(env[condition]), dense(env[left]), dense(env[right])))
    builder.roots[out] = ABSOLUTE

    def run(env: Env, frame: Frame) -> None:
        choices = [
            env[value] if root == ABSOLUTE else frame.run.absolute(root, env[value])
            for value, root in zip((left, right), roots, strict=True)
        ]
        env[out] = select(dense(env[condition]), dense(choices[0]), dense(choices[1]))

    return run


@step("pointer tt.bitcast")
def _pointer_bitcast(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    root, before, after = builder.root(source), builder.type(source), builder.type(out)
    if element_bytes(before.pointee or "i8") == element_bytes(after.pointee or "i8") or root == ABSOLUTE:
        builder.roots[out] = root
        return lambda env, _frame: env.__setitem__(out, env[source])
    builder.roots[out] = ABSOLUTE
    return lambda env, frame: env.__setitem__(out, frame.run.absolute(root, env[source]))


@step("tt.ptr_to_int")
def _ptr_to_int(op: Op, builder: Builder) -> Step:
    (source,), (out,) = op.operands, op.results
    root, size = builder.root(source), element_bytes(builder.type(source).pointee or "i8")

    def run(env: Env, frame: Frame) -> None:
        value = dense(env[source])
        env[out] = value if root == ABSOLUTE else frame.run.traffic.views[root].base + value * size

    return run


def _site(op: Op, builder: Builder, access: str) -> Site:
    kind = builder.type(op.operands[0])
    return Site(access, kind.pointee or "i8", kind.shape, builder.root(op.operands[0]), op.location)


def _mask(env: Env, value: int | None) -> Array | None:
    return None if value is None else dense(env[value])


@step("tt.load")
def _load(op: Op, builder: Builder) -> Step:
    if builder.type(op.operands[0]).pointee is None or "boundaryCheck" in op.text:
        raise builder.unsupported(op, "a block pointer that Triton did not lower")
    site, (out,) = _site(op, builder, "load"), op.results
    pointer = op.operands[0]
    mask, other = (*op.operands[1:], None, None)[:2]
    if builder.type(out).is_pointer:
        builder.roots[out] = ABSOLUTE

    def run(env: Env, frame: Frame) -> None:
        env[out] = frame.run.traffic.load(site, env[pointer], _mask(env, mask), _mask(env, other), frame)

    return run


@step("tt.store")
def _store(op: Op, builder: Builder) -> Step:
    site = _site(op, builder, "store")
    builder.stored_roots.add(site.root)
    pointer, values = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None

    def run(env: Env, frame: Frame) -> None:
        frame.run.traffic.store(site, env[pointer], env[values], _mask(env, mask), frame)

    return run


_ATOMIC: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "add": (np.add, False),
    "fadd": (np.add, False),
    "and": (np.bitwise_and, False),
    "or": (np.bitwise_or, False),
    "xor": (np.bitwise_xor, False),
    "max": (np.maximum, False),
    "min": (np.minimum, False),
    "umax": (np.maximum, True),
    "umin": (np.minimum, True),
    "exch": (lambda _old, new: new, False),
}


@step("tt.atomic_rmw")
def _atomic_rmw(op: Op, builder: Builder) -> Step:
    """Serialised, program by program and lane by lane in order."""
    site = _site(op, builder, "atomic")
    builder.stored_roots.add(site.root)
    name, how = op.text.split()[1].rstrip(","), semantics(op.text)
    if name not in _ATOMIC:
        raise builder.unsupported(op, name)
    function, is_unsigned = _ATOMIC[name]
    narrow = rounder(site.elem)
    pointer, values = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None

    def apply(old: Array, new: Array) -> Array:
        result = function(unsigned(old), unsigned(new)).view(old.dtype) if is_unsigned else np.asarray(function(old, new))
        return narrow(result) if narrow is not None else result

    def run(env: Env, frame: Frame) -> None:
        shape = (len(frame.ids), *site.shape)
        old = np.zeros(shape, container(site.elem))
        news = np.broadcast_to(dense(env[values]), shape).ravel()
        parts = frame.run.traffic.flat_lanes(site, env[pointer], _mask(env, mask), frame)
        for view, lanes, index in parts:
            flat = view.elements(site.elem)
            for at in _rounds(index):
                before = decode(site.elem, flat[index[at]])
                old.ravel()[lanes[at]] = before
                flat[index[at]] = encode(site.elem, apply(before, news[lanes[at]]))
        if site.shape == ():
            frame.run.traffic.synchronise(how, parts, np.ones(len(frame.ids), np.bool_), frame)
        for out in op.results:
            env[out] = old

    return run


def _rounds(index: Array) -> list[Array]:
    """Positions of the lanes, in as few rounds as keep lanes of one address in their order: round k has the k-th lane of each address."""
    if not index.size:
        return []
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(index[order]) != 0])
    rank = np.arange(len(index)) - np.repeat(starts, np.diff(np.r_[starts, len(index)]))
    return [np.sort(order[rank == turn]) for turn in range(int(rank.max()) + 1)]


@step("tt.atomic_cas")
def _atomic_cas(op: Op, builder: Builder) -> Step:
    site = _site(op, builder, "atomic")
    builder.stored_roots.add(site.root)
    pointer, compare, values = op.operands
    how = semantics(op.text)

    def run(env: Env, frame: Frame) -> None:
        shape = (len(frame.ids), *site.shape)
        old = np.zeros(shape, container(site.elem))
        wanted = np.broadcast_to(dense(env[compare]), shape).ravel()
        news = np.broadcast_to(dense(env[values]), shape).ravel()
        parts = frame.run.traffic.flat_lanes(site, env[pointer], None, frame)
        for view, lanes, index in parts:
            flat = view.elements(site.elem)
            for at in _rounds(index):
                before = decode(site.elem, flat[index[at]])
                old.ravel()[lanes[at]] = before
                flat[index[at]] = encode(site.elem, np.where(before == wanted[lanes[at]], news[lanes[at]], before))
        if site.shape == ():
            frame.run.traffic.synchronise(how, parts, np.broadcast_to(old.ravel() == wanted, len(frame.ids)), frame)
        for out in op.results:
            env[out] = old

    return run
