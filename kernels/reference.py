"""What paged kernels must compute, in float64 over contiguous sequences, and how far a correct kernel may be from it.

The bound is derived, not tuned. With u = 2^-24 (float32 accumulation), e half an ulp of the input type and h half its smallest step near
zero, r = e for a quantised pool, whose keys and values may be rounded to the input type once, and 0 otherwise, since stored operands are
exact, t = 2^-10 for each operand of a tf32 dot and 0 without one, and n tokens, d elements and b blocks, the errors are at most

    score j   |ds_j| <= scale * sum_d |q||k_j| * ((d + 4) u + r + 2 t)                        products are summed in float32
    weight j  |dw_j| <= w_j (|ds_j| + 4 u |s_j - max s| + (8 + 4 b) u + e) + h                exp of a rounded difference, b rescalings,
                                                                                              stored once as input type
    sum       |dS| / S <= sum_j |dw_j| / S + n u
    output    |do| <= sum_j |v_j| (|dw_j| + w_j ((n + 2) u + r + 2 t)) / S + |o| (|dS| / S + 2 u + e) + h

(see Higham, Accuracy and Stability of Numerical Algorithms, chapter 3, for sums of products). Where an operand is itself a sum, as in the
low-bit scheme, |k| and |v| are the sums of the magnitudes of its parts, so that it does not matter in which order they are added. A soft cap c makes of a score c tanh(s / c),
whose slope is at most one; computing it adds 16 c u to |ds_j|. A sink is one more weight, without a value. Where scores and sums are kept
in the input type (the feature `narrow-accumulation`), u is e instead. A kernel that keeps scores or sums in bfloat16 makes errors of 2^-9
where the float32 bound allows some 1e-6.
"""

from __future__ import annotations

import dataclasses

import torch

from kvproof.kernels.contract import KVPool

UNIT = 2.0**-24
"""Unit roundoff of float32."""

TF32 = 2.0**-10
"""Largest relative error of an operand of a tf32 dot, which truncates to ten bits."""

SECOND_ORDER = 1.1
"""The first-order bound is widened by a tenth for products of errors."""

TINY = 1e-36
"""Below the smallest normal float32, hardware may flush to zero."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """`output` and `bound` have the shape of query, with the value's head size, float64."""

    output: torch.Tensor
    bound: torch.Tensor


def half_ulp(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a type."""
    return float(torch.finfo(dtype).eps) / 2


def dequantised(pool: KVPool, *, key: bool) -> torch.Tensor:
    """Keys or values of the pool as `[blocks, block_size, kv_heads, head_size]` float64, scales applied."""
    tensor = pool.slot_view(pool.key if key else pool.value).double()
    scale = pool.key_scale if key else pool.value_scale
    if scale is None:
        return tensor
    return tensor * (scale.double() if scale.numel() == 1 else scale.double().unsqueeze(-1))


def attend(
    pool: KVPool,
    query: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    query_lens: torch.Tensor | None = None,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
    tf32: bool = False,
    narrow: bool = False,
) -> Expected:
    """Attention by the definition: gather a sequence's tokens in order, softmax over what each query may see.

    `tf32` and `narrow` widen the bound, for float32 dots on tensor cores and for scores and sums that are kept in the input type.
    """
    shape = (*query.shape[:-1], pool.value.shape[-1])
    output, bound = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    ratio, row = query.shape[1] // pool.kv_heads, 0
    keys, values = dequantised(pool, key=True), dequantised(pool, key=False)
    rounding, underflow = half_ulp(query.dtype), float(torch.finfo(query.dtype).smallest_normal) * half_ulp(query.dtype)
    sink = torch.full((query.shape[1],), -torch.inf, dtype=torch.float64) if sinks is None else sinks.double()
    softmax = _Softmax(scale, soft_cap, sink, pool.block_size)
    errors = _Errors(
        max(UNIT, rounding) if narrow else UNIT, rounding, 0.0 if pool.key_scale is None else rounding, TF32 if tf32 else 0.0, underflow
    )
    for seq, length in enumerate(seq_lens.tolist()):
        rows = 1 if query_lens is None else int(query_lens[seq])
        blocks = block_tables[seq, : -(-length // pool.block_size)].long()
        k = keys[blocks].reshape(-1, *keys.shape[2:])[:length].repeat_interleave(ratio, 1)
        v = values[blocks].reshape(-1, *values.shape[2:])[:length].repeat_interleave(ratio, 1)
        if length and rows:
            part = slice(row, row + rows)
            output[part], bound[part] = _rows(query[part].double(), Operands(k, v, k.abs(), v.abs()), window, softmax, errors)
        row += rows
    return Expected(output, bound)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Keys `[n, heads, d]` and values `[n, heads, e]` float64 of one sequence, a head for each query head, and of each element the sum of the
    magnitudes that it is made of.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_size: torch.Tensor
    value_size: torch.Tensor


def attend_rows(
    query: torch.Tensor,
    operands: Operands,
    *,
    scale: float,
    block: int,
    operand_error: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    soft_cap: float | None = None,
    tf32: bool = False,
    narrow: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and bound, `[rows, heads, e]`, of the last rows of one sequence: query `[rows, heads, d]`. `operand_error`: r of the formulas;
    `block`: tokens between two rescalings.
    """
    rounding, underflow = half_ulp(query.dtype), float(torch.finfo(query.dtype).smallest_normal) * half_ulp(query.dtype)
    sink = torch.full((query.shape[1],), -torch.inf, dtype=torch.float64) if sinks is None else sinks.double()
    errors = _Errors(max(UNIT, rounding) if narrow else UNIT, rounding, operand_error, TF32 if tf32 else 0.0, underflow)
    return _rows(query.double(), operands, window, _Softmax(scale, soft_cap, sink, block), errors)


def _rows(
    query: torch.Tensor, operands: Operands, window: int | None, softmax: _Softmax, errors: _Errors
) -> tuple[torch.Tensor, torch.Tensor]:
    length, found = len(operands.key), []
    for at, row in enumerate(query):
        position = length - len(query) + at
        seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
        parts = Operands(operands.key[seen], operands.value[seen], operands.key_size[seen], operands.value_size[seen])
        found.append(_row(row, parts, softmax, errors))
    return torch.stack([output for output, _ in found]), torch.stack([bound for _, bound in found])


@dataclasses.dataclass(frozen=True)
class _Softmax:
    """How scores become weights. `sink`: `[heads]`, minus infinity where there is none. `block`: tokens between two rescalings."""

    scale: float
    soft_cap: float | None
    sink: torch.Tensor
    block: int


@dataclasses.dataclass(frozen=True)
class _Errors:
    """u, e, r, t and h of the module's formulas."""

    unit: float
    rounding: float
    operand: float
    truncation: float
    underflow: float


def _row(q: torch.Tensor, operands: Operands, softmax: _Softmax, errors: _Errors) -> tuple[torch.Tensor, torch.Tensor]:
    """One query row: q `[heads, d]`; output and bound `[heads, e]`."""
    k, v = operands.key, operands.value
    n, _, d = k.shape
    u, operand = errors.unit, errors.operand + 2 * errors.truncation
    scores = torch.einsum("hd,nhd->nh", q, k) * softmax.scale
    score_error = torch.einsum("hd,nhd->nh", q.abs(), operands.key_size) * abs(softmax.scale) * ((d + 4) * u + operand)
    if softmax.soft_cap is not None:
        scores = softmax.soft_cap * torch.tanh(scores / softmax.soft_cap)
        score_error = score_error + 16 * softmax.soft_cap * u
    top = torch.maximum(scores.max(0).values, softmax.sink)
    weights, sink_weight = torch.exp(scores - top), torch.exp(softmax.sink - top)
    total = weights.sum(0) + sink_weight
    share = weights / total
    output = torch.einsum("nh,nhd->hd", share, v)
    rescaling = (8 + 4 * (-(-n // softmax.block) + 1)) * u
    relative = score_error + 4 * u * (scores - top).abs() + rescaling + errors.rounding
    weight_error = share * relative + errors.underflow / total
    sink_error = torch.where(sink_weight > 0, 4 * u * (softmax.sink - top).abs() + rescaling, 0.0)
    sum_error = weight_error.sum(0) + sink_weight / total * sink_error + n * u
    spread = torch.einsum("nh,nhd->hd", weight_error + share * ((n + 2) * u + operand), operands.value_size)
    bound = SECOND_ORDER * (spread + output.abs() * (sum_error.unsqueeze(-1) + 2 * u + errors.rounding)) + errors.underflow + TINY
    return output, bound
