"""Functions of the device's mathematics library, by symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproof.kernels.machine.build import Builder, PureFunction, pure
from kvproof.kernels.machine.ir import Op
from kvproof.kernels.machine.numerics import Array, container, rounder
from kvproof.kernels.machine.ops_arith import erf


def _torch(name: str) -> Callable[[Array], Array]:
    function = getattr(torch.special, name)
    return lambda a: np.asarray(function(torch.from_numpy(np.ascontiguousarray(a))).numpy())


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": _torch("erfc"),
    "erfinv": _torch("erfinv"),
    "exp": np.exp,
    "exp10": lambda x: np.power(np.float32(10), x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "fdim": lambda x, y: np.fmax(x - y, 0),
    "floor": np.floor,
    "fma": lambda x, y, z: x * y + z,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "isinf": np.isinf,
    "isinfd": np.isinf,
    "isnan": np.isnan,
    "isnand": np.isnan,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "signbit": np.signbit,
    "lgamma": _torch("gammaln"),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "max": np.maximum,
    "min": np.minimum,
    "nearbyint": np.rint,
    "pow": np.power,
    "powi": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rint": np.rint,
    "llrint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "fast_exp": np.exp,
    "fast_log": np.log,
    "fast_log2": np.log2,
    "fast_sin": np.sin,
    "fast_cos": np.cos,
    "fast_tan": np.tan,
    "fast_pow": np.power,
    "fast_divide": np.divide,
    "fdividef": np.divide,
    "fast_tanh": np.tanh,
    "float2int_rn": np.rint,
    "float2int_rz": np.trunc,
    "float2int_rd": np.floor,
    "float2int_ru": np.ceil,
    "frcp_rn": np.reciprocal,
    "fsqrt_rn": np.sqrt,
    "fdiv_rn": np.divide,
    "fadd_rn": np.add,
    "fmul_rn": np.multiply,
    "add_rn": np.add,
    "mul_rn": np.multiply,
    "div_rn": np.divide,
    "sqrt_rn": np.sqrt,
    "rcp_rn": np.reciprocal,
}


def _find(symbol: str) -> Callable[..., Any] | None:
    name = symbol.removeprefix("__nv_").removeprefix("__ocml_").removesuffix("_f32").removesuffix("_f64")
    return _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f")) or _FUNCTIONS.get(name.removeprefix("f"))


@pure("tt.extern_elementwise")
def _extern(op: Op, builder: Builder) -> PureFunction:
    symbol = op.word("symbol")
    function = _find(symbol)
    if function is None:
        raise builder.unsupported(op, f"the library function {symbol!r}")
    kind, narrow = container(builder.type(op.results[0]).elem), rounder(builder.type(op.results[0]).elem)

    def call(*args: Array) -> Array:
        result = np.asarray(function(*args)).astype(kind, copy=False)
        return narrow(result) if narrow is not None else result

    return call
