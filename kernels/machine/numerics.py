"""Numbers as the IR has them: containers, rounding to narrow floats, and the bit patterns in memory.

Every float narrower than 32 bits lives in a float32 container whose value is always exactly representable in its IR type. One arithmetic
operation in float32 followed by rounding gives the correctly rounded narrow result for + - * / and sqrt, because 24 bits are at least 2p+2
for p <= 11. numpy has neither bfloat16 nor fp8, and its half conversions are scalar: torch's took 8 us where numpy took 126 us for 65,536
elements.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[Any]

_INTEGERS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

_TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}

_SATURATES = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0, "f8E4M3FNUZ": 240.0, "f8E5M2FNUZ": 57344.0}
"""Conversions to fp8 saturate on the devices Triton targets (`cvt.satfinite`); torch's own cast would give NaN or infinity."""


def container(elem: str) -> np.dtype[Any]:
    """The numpy type that holds values of an IR element type during execution."""
    if elem == "i1":
        return np.dtype(np.bool_)
    if elem == "f64":
        return np.dtype(np.float64)
    if elem.startswith(("f", "bf")):
        return np.dtype(np.float32)
    if elem in ("ptr", "index"):
        return np.dtype(np.int64)
    return np.dtype(_INTEGERS[int(elem[1:])])


def storage(elem: str) -> np.dtype[Any]:
    """The numpy type of an element's bits in memory."""
    if elem in ("f32", "f64"):
        return container(elem)
    if elem in _TORCH:
        return np.dtype(np.uint16 if elem in ("f16", "bf16") else np.uint8)
    return np.dtype(np.uint8) if elem == "i1" else container(elem)


def unsigned(array: Array) -> Array:
    """The same bits, read as unsigned integers."""
    return array if array.dtype == np.bool_ else array.view(_UNSIGNED[array.dtype.itemsize * 8])


def is_narrow(elem: str) -> bool:
    """Whether values need rounding after arithmetic in their container."""
    return elem in _TORCH


def encode(elem: str, values: Array) -> Array:
    """Container values to bits in memory, rounding to nearest even."""
    if elem in _TORCH:
        return _bits(elem, _to_torch(values))
    return values.view(np.uint8) if elem == "i1" else values


def decode(elem: str, bits: Array) -> Array:
    """Bits in memory to container values."""
    if elem in ("f16", "bf16"):
        return _to_torch(bits.view(np.int16)).view(_TORCH[elem]).float().numpy()
    if elem in _TORCH:
        return np.asarray(np.take(_fp8_table(elem), bits))
    return bits != 0 if elem == "i1" else bits


def rounder(elem: str) -> Callable[[Array], Array] | None:
    """Rounds a container to the IR type, to nearest even; None where containers are exact."""
    if elem in ("f16", "bf16"):
        kind = _TORCH[elem]
        return lambda values: _to_torch(values).to(kind).float().numpy()
    if elem in _TORCH:
        return lambda values: np.asarray(np.take(_fp8_table(elem), encode(elem, values)))
    return None


def round_toward_zero(elem: str, values: Array) -> Array:
    """Rounds float32 values to a narrow type toward zero."""
    if elem == "bf16":
        return np.ascontiguousarray((np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
    nearest = encode(elem, values)
    too_far = np.abs(decode(elem, nearest)) > np.abs(values)
    # In sign-magnitude formats the next value toward zero is one less in the magnitude bits.
    return decode(elem, (nearest - too_far.astype(nearest.dtype)).astype(nearest.dtype))


def truncate_to_tf32(values: Array) -> Array:
    """Operands of a tf32 dot: the tensor cores read 10 mantissa bits and ignore the other 13."""
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


_tables: dict[str, Array] = {}


def _fp8_table(elem: str) -> Array:
    if elem not in _tables:
        _tables[elem] = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(_TORCH[elem]).float().numpy()
    return _tables[elem]


def _bits(elem: str, values: torch.Tensor) -> Array:
    if elem in _SATURATES:
        values = values.clamp(-_SATURATES[elem], _SATURATES[elem])
    narrow = values.to(_TORCH[elem])
    return narrow.view(torch.int16).numpy().view(np.uint16) if elem in ("f16", "bf16") else narrow.view(torch.uint8).numpy()


def _to_torch(array: Array) -> torch.Tensor:
    with warnings.catch_warnings():
        # Broadcast views are read-only and torch warns of it; nothing here writes to its input.
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.ascontiguousarray(array))
