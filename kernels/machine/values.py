"""Values of all programs at once.

An IR value of shape `s` is an array of shape `[p, *t]`: p is 1 where the value is the same in every program, and each dimension of t is the
one of s, or 1 where the value does not vary along it. Splats and broadcasts therefore cost nothing, and address arithmetic stays small.

`Outer` keeps the sum of a part that does not vary along one axis and a part that varies along it alone. Nearly every tile of addresses is
one (block rows plus an arange over the head): loads then move whole rows and check one address per row instead of one per element. Measured
on a paged decode kernel this is what most of the speed comes from: gathering 65,536 elements took 84 us, the same elements as 1,024 rows 14
us.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from kvproof.kernels.machine.numerics import Array

MIN_OUTER_ELEMENTS = 2048
"""Below this a dense sum is cheaper than the bookkeeping."""


class Outer:
    """`base + inner` along `axis` of the IR shape, where base has size 1 there; integers or element addresses, never wrapping."""

    __slots__ = ("axis", "base", "inner")

    def __init__(self, base: Array, inner: Array, axis: int) -> None:
        self.base, self.inner, self.axis = base, inner, axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with the program axis first."""
        shape = list(self.base.shape)
        shape[self.axis + 1] = len(self.inner)
        return tuple(shape)

    def dense(self) -> Array:
        """The sum as one array."""
        return self.base + self.column()

    def column(self) -> Array:
        """The inner part, shaped to broadcast against the base."""
        shape = [1] * self.base.ndim
        shape[self.axis + 1] = len(self.inner)
        return self.inner.reshape(shape)

    def is_consecutive(self) -> bool:
        """Whether the inner part counts up by one."""
        return bool((np.diff(self.inner) == 1).all())

    def take(self, keep: Array) -> Outer:
        """The value in some programs only."""
        return self if self.base.shape[0] == 1 else Outer(self.base[keep], self.inner, self.axis)


Value: TypeAlias = Any
"""An `Array` or an `Outer`. Spelt Any because handlers are generic over both and numpy's types cannot say which."""


def dense(value: Value) -> Array:
    """The value as one array."""
    return value.dense() if value.__class__ is Outer else value


def take(value: Value, keep: Array) -> Value:
    """The value in the programs `keep` (positions) only."""
    if value.__class__ is Outer:
        return value.take(keep)
    return value if value.shape[0] == 1 else value[keep]


def full(value: Value, shape: tuple[int, ...]) -> Array:
    """The value with every IR dimension at its full size; the program axis is left as it is."""
    array = dense(value)
    return array if array.shape[1:] == shape else np.broadcast_to(array, (array.shape[0], *shape))


def merge(count: int, parts: list[tuple[Array, Value]]) -> Array:
    """One array over `count` programs from parts that hold the values of the given positions."""
    arrays = [dense(value) for _, value in parts]
    shape = np.broadcast_shapes(*(array.shape[1:] for array in arrays))
    result = np.empty((count, *shape), arrays[0].dtype)
    for (positions, _), array in zip(parts, arrays, strict=True):
        result[positions] = array
    return result


def select(condition: Array, left: Array, right: Array) -> Array:
    """`left` where the condition holds. A scalar one, which an `if` around tensors becomes, holds for all lanes of its program: it has the program
    axis, and no other, and numpy would lay it along the last.
    """
    if condition.ndim == 1:
        condition = condition.reshape(-1, *(1,) * (left.ndim - 1))
    return np.where(condition, left, right)


def add(left: Value, right: Value) -> Value:
    """The sum of integers or addresses that cannot wrap, kept as an `Outer` where that is worth it."""
    if left.__class__ is not Outer and right.__class__ is not Outer:
        return _add_arrays(left, right)
    if left.__class__ is not Outer:
        left, right = right, left
    if right.__class__ is Outer:
        return (
            Outer(left.base + right.base, left.inner + right.inner, left.axis) if left.axis == right.axis else left.dense() + right.dense()
        )
    if right.shape[left.axis + 1] == 1:
        return Outer(left.base + right, left.inner, left.axis)
    if right.size == right.shape[left.axis + 1]:
        return Outer(left.base, left.inner + right.ravel(), left.axis)
    return left.dense() + right


def _add_arrays(left: Array, right: Array) -> Value:
    if left.ndim < 2 or _broadcast_size(left, right) < MIN_OUTER_ELEMENTS:
        return left + right
    for base, inner in ((left, right), (right, left)):
        axis = _only_axis(inner)
        if axis is not None and base.shape[axis + 1] == 1:
            return Outer(base, inner.ravel(), axis)
    return left + right


def _broadcast_size(left: Array, right: Array) -> int:
    return math.prod(max(a, b) for a, b in zip(left.shape, right.shape, strict=True))


def _only_axis(array: Array) -> int | None:
    """The one IR axis along which a program-independent array varies."""
    if array.shape[0] != 1:
        return None
    axes = [axis for axis, size in enumerate(array.shape[1:]) if size > 1]
    return axes[0] if len(axes) == 1 else None


def sum_fits(left: Value, right: Value, bits: int) -> bool:
    """Whether the sum of two integer values stays within its width in every lane."""
    low, high = 0, 0
    for value in (left, right):
        for part in (value.base, value.inner) if value.__class__ is Outer else (value,):
            low += int(part.min())
            high += int(part.max())
    return low >= -(1 << (bits - 1)) and high < (1 << (bits - 1))
