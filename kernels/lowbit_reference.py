"""The low-bit scheme by its definition, in float64: how tokens are stored, what is read of them, and what attention over that must give.

Nothing here is shared with the kernels. What is read of a quantised element is `number * scale + zero`: two roundings in float32 of parts whose
magnitudes add up to m, and one to the type of the queries, so it is off by at most (e + 2 u) m, which the bound of `reference` takes for r.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from kvproof.kernels import reference
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.reference import Expected, Operands


@dataclasses.dataclass(frozen=True)
class Read:
    """Keys and values `[tokens, kv_heads, head_size]` float64 as they are read, and the magnitudes that each element is the sum of."""

    key: torch.Tensor
    value: torch.Tensor
    key_size: torch.Tensor
    value_size: torch.Tensor


def read(pool: LowBitPool, table: Sequence[int], ring: int, length: int, quantised: int) -> Read:
    """The first `length` tokens of a sequence, of which `quantised` have left its ring."""
    stored = min(length, quantised)
    at = torch.arange(stored)
    block, offset = torch.tensor(list(table), dtype=torch.int64)[at // pool.block_size], at % pool.block_size
    group = offset // pool.group
    view = pool.slot_view
    key = _numbers(view(pool.key)[block, offset], pool.bits) * view(pool.key_scale)[block, group].double()
    key_zero = view(pool.key_zero)[block, group].double()
    value_scale, value_zero = (
        view(part)[block, offset].double().repeat_interleave(pool.channels, -1) for part in (pool.value_scale, pool.value_zero)
    )
    value = _numbers(view(pool.value)[block, offset], pool.bits) * value_scale
    place = torch.arange(stored, length) % pool.ring
    recent_key, recent_value = (view(part)[ring, place].double() for part in (pool.ring_key, pool.ring_value))
    return Read(
        torch.cat([key + key_zero, recent_key]),
        torch.cat([value + value_zero, recent_value]),
        torch.cat([key.abs() + key_zero.abs(), recent_key.abs()]),
        torch.cat([value.abs() + value_zero.abs(), recent_value.abs()]),
    )


def attend(
    pool: LowBitPool,
    query: torch.Tensor,
    block_tables: torch.Tensor,
    rings: torch.Tensor,
    seq_lens: torch.Tensor,
    quantised: torch.Tensor,
    *,
    query_lens: torch.Tensor | None = None,
    **options: Any,  # noqa: ANN401 - those of `reference.attend_rows`
) -> Expected:
    """Attention over what the sequences read as. Rows of empty sequences are zeros, with a bound of zero."""
    output, bound = torch.zeros(query.shape, dtype=torch.float64), torch.zeros(query.shape, dtype=torch.float64)
    ratio, row = query.shape[1] // pool.kv_heads, 0
    operand_error = reference.half_ulp(query.dtype) + 2 * reference.UNIT
    for seq, length in enumerate(seq_lens.tolist()):
        rows = 1 if query_lens is None else int(query_lens[seq])
        if length and rows:
            found = read(pool, block_tables[seq].tolist(), int(rings[seq]), length, int(quantised[seq]))
            parts = Operands(*(getattr(found, field.name).repeat_interleave(ratio, 1) for field in dataclasses.fields(found)))
            part = slice(row, row + rows)
            output[part], bound[part] = reference.attend_rows(
                query[part], parts, block=min(pool.group, 16), operand_error=operand_error, **options
            )
        row += rows
    return Expected(output, bound)


def fill(
    pool: LowBitPool, key: torch.Tensor, value: torch.Tensor, table: Sequence[int], ring: int, quantised: int, *, first: int = 0
) -> None:
    """Store a sequence's rows `[tokens, kv_heads, head_size]`: the first `quantised` in blocks, without those before `first`, which begins a
    group; the rest in the ring.
    """
    for start in range(first, quantised, pool.group):
        block, offset = table[start // pool.block_size], start % pool.block_size
        rows, part = slice(offset, offset + pool.group), slice(start, start + pool.group)
        _store(pool, "key", (block, rows), (block, offset // pool.group), key[part].double(), 0)
        parts = split(value[part].double(), -1, pool.channels)
        _store(pool, "value", (block, rows), (block, rows), parts, -1)
    at = torch.arange(quantised, len(key))
    for tensor, source in ((pool.ring_key, key), (pool.ring_value, value)):
        pool.slot_view(tensor)[ring, at % pool.ring] = source[at].to(tensor.dtype)


def _store(pool: LowBitPool, name: str, rows: Any, group: Any, x: torch.Tensor, axis: int) -> None:  # noqa: ANN401 - indices
    """Numbers to `rows` of a tensor, scale and zero to `group` of its companions."""
    stored, scales, zeros = (pool.slot_view(getattr(pool, name + part)) for part in ("", "_scale", "_zero"))
    most = 2**pool.bits - 1
    zero = x.amin(axis, keepdim=True).to(zeros.dtype).double()
    scale = ((x.amax(axis, keepdim=True) - zero) / most).to(scales.dtype).double()
    scale = torch.where(scale > 0, scale, 1.0)
    numbers = ((x - zero) / scale).round().clamp(0, most).to(torch.int64)
    scales[group], zeros[group] = scale.squeeze(axis).to(scales.dtype), zero.squeeze(axis).to(zeros.dtype)
    numbers = numbers if name == "key" else numbers.flatten(-2)
    each = 8 // pool.bits
    shifts = 2 ** (torch.arange(each) * pool.bits)
    stored[rows] = (split(numbers, -1, each) * shifts).sum(-1).to(torch.uint8)


def split(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Groups of `size` neighbours along the first or the last axis, which becomes two."""
    shape = (-1, size, *x.shape[1:]) if axis == 0 else (*x.shape[:-1], -1, size)
    return x.reshape(shape)


def _numbers(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes `[.., n]` as numbers `[.., n * 8 / bits]` float64."""
    parts = [(stored.long() // 2 ** (bits * at)) % 2**bits for at in range(8 // bits)]
    return torch.stack(parts, -1).flatten(-2).double()


def step_bound(pool: LowBitPool, x: torch.Tensor, axis: int) -> torch.Tensor:
    """How far a correct store may be from numbers whose groups lie along `axis`: half a step, and what rounding costs of zero and scale to
    their type, whose unit is eps and whose smallest step is h. The zero is off by at most eps |low| + h, a number of up to 2^b - 1 scales by
    eps (high - low) + 2^b h.
    """
    kind = torch.finfo(pool.key_scale.dtype)
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    span, smallest = high - low, kind.smallest_normal * kind.eps
    slack = kind.eps * (span + torch.maximum(low.abs(), high.abs())) + 2 * 2**pool.bits * smallest
    bound: torch.Tensor = span / (2**pool.bits - 1) / 2 + slack
    return bound.expand_as(x)
