"""The low-bit scheme in plain torch, for devices that Triton does not run on, and as a second opinion where it does."""

from __future__ import annotations

import torch

from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.paged.lowbit_rows import paged_tensors, query_rows
from kvproof.kernels.paged.requests import check_attention, check_low_bit_store
from kvproof.kernels.paged.torch_attention import attention, copy_pairs


class LowBitTorch:
    """What `LowBitTriton` does, one sequence after the other; lengths are read on the host."""

    def store(
        self,
        pool: LowBitPool,
        key: torch.Tensor,
        value: torch.Tensor,
        block_tables: torch.Tensor,
        rings: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
        quantised: torch.Tensor,
    ) -> torch.Tensor:
        """As `LowBitTriton.store`."""
        check_low_bit_store(pool, key, value)
        done = torch.where(after > before, pool.quantised_after(quantised, after), quantised)
        start = 0
        for seq, (old, new) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            ring, first, last = int(rings[seq]), int(quantised[seq]), int(done[seq])
            waiting = torch.arange(first, old, device=key.device) % pool.ring
            fresh = slice(start, start + new - old)
            ring_key, ring_value = pool.slot_view(pool.ring_key)[ring], pool.slot_view(pool.ring_value)[ring]
            keys = torch.cat([ring_key[waiting], key[fresh]])
            values = torch.cat([ring_value[waiting], value[fresh]])
            for group in range(first, last, pool.group):
                part = slice(group - first, group - first + pool.group)
                self._quantise(pool, keys[part].float(), values[part].float(), int(block_tables[seq, group // pool.block_size]), group)
            kept = torch.arange(max(old, last), new, device=key.device)
            ring_key[kept % pool.ring] = key[fresh][kept - old]
            ring_value[kept % pool.ring] = value[fresh][kept - old]
            start += new - old
        return done

    @staticmethod
    def _quantise(pool: LowBitPool, key: torch.Tensor, value: torch.Tensor, block: int, position: int) -> None:
        """One group, `[group, kv_heads, head_size]` float32, to its block."""
        offset = position % pool.block_size
        rows = slice(offset, offset + pool.group)
        view = pool.slot_view
        numbers, zero, scale = _levels(pool, key, 0)
        view(pool.key)[block, rows] = _packed(numbers, pool.bits)
        view(pool.key_scale)[block, offset // pool.group] = scale[0].to(pool.key_scale.dtype)
        view(pool.key_zero)[block, offset // pool.group] = zero[0].to(pool.key_zero.dtype)
        numbers, zero, scale = _levels(pool, value.reshape(*value.shape[:-1], -1, pool.channels), -1)
        view(pool.value)[block, rows] = _packed(numbers.flatten(-2), pool.bits)
        view(pool.value_scale)[block, rows] = scale.squeeze(-1).to(pool.value_scale.dtype)
        view(pool.value_zero)[block, rows] = zero.squeeze(-1).to(pool.value_zero.dtype)

    def attend(
        self,
        pool: LowBitPool,
        query: torch.Tensor,
        block_tables: torch.Tensor,
        rings: torch.Tensor,
        seq_lens: torch.Tensor,
        quantised: torch.Tensor,
        *,
        scale: float,
        query_lens: torch.Tensor | None = None,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        soft_cap: float | None = None,
    ) -> torch.Tensor:
        """As `LowBitTriton.attend`."""
        check_attention(pool, query, block_tables, seq_lens, query_lens, window, sinks, soft_cap)
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        row_seqs, row_lens = query_rows(seq_lens, query_lens, len(query))
        for row, (seq, length) in enumerate(zip(row_seqs.tolist(), row_lens.tolist(), strict=True)):
            if length > 0:
                key, value = sequence_rows(pool, block_tables[seq], int(rings[seq]), length, int(quantised[seq]))
                # What is behind the window may be somebody else's by now, and NaN times a weight of zero would still be NaN.
                first = 0 if window is None else max(0, length - window)
                position = torch.tensor([length - 1 - first], device=query.device)
                found = attention(query[row : row + 1].float(), key[first:], value[first:], position, scale, None, sinks, soft_cap)
                out[row] = found[0].to(out.dtype)
        return out

    def copy_blocks(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """As `LowBitTriton.copy_blocks`."""
        for tensor in paged_tensors(pool):
            copy_pairs(tensor, pairs)

    def copy_rings(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """As `LowBitTriton.copy_rings`."""
        for tensor in (pool.ring_key, pool.ring_value):
            copy_pairs(tensor, pairs)


def sequence_rows(pool: LowBitPool, table: torch.Tensor, ring: int, length: int, quantised: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a sequence's first `length` tokens read as: keys and values `[length, kv_heads, head_size]` float32."""
    at = torch.arange(min(length, quantised), device=table.device)
    block, offset = table[at // pool.block_size].long(), at % pool.block_size
    view = pool.slot_view
    scale, zero = (view(part)[block, offset // pool.group].float() for part in (pool.key_scale, pool.key_zero))
    key = _unpacked(view(pool.key)[block, offset], pool.bits) * scale + zero
    scale, zero = (view(part)[block, offset].float().unsqueeze(-1) for part in (pool.value_scale, pool.value_zero))
    levels = _unpacked(view(pool.value)[block, offset], pool.bits)
    value = (levels.reshape(*levels.shape[:-1], pool.head_size // pool.channels, pool.channels) * scale + zero).flatten(-2)
    recent = torch.arange(quantised, max(length, quantised), device=table.device) % pool.ring
    ring_key, ring_value = (view(part)[ring, recent].float() for part in (pool.ring_key, pool.ring_value))
    return torch.cat([key, ring_key]), torch.cat([value, ring_value])


def _levels(pool: LowBitPool, x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Levels, zeros and scales of groups along an axis; zeros and scales as they will be read."""
    kind, most = pool.key_scale.dtype, 2**pool.bits - 1
    zero = x.amin(axis, keepdim=True).to(kind).float()
    # By a tensor: on a GPU torch divides by a Python number as it multiplies by the reciprocal, whose last bit may be another.
    scale = ((x.amax(axis, keepdim=True) - zero) / torch.full_like(zero, most)).to(kind).float()
    scale = torch.where(scale > 0, scale, 1.0)
    return ((x - zero) / scale + 0.5).floor().clamp(0, most).to(torch.uint8), zero, scale


def _packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    parts = numbers.reshape(*numbers.shape[:-1], -1, 8 // bits) << (
        torch.arange(8 // bits, dtype=torch.uint8, device=numbers.device) * bits
    )
    return parts.sum(-1).to(torch.uint8)


def _unpacked(stored: torch.Tensor, bits: int) -> torch.Tensor:
    shifts = torch.arange(8 // bits, dtype=torch.uint8, device=stored.device) * bits
    numbers: torch.Tensor = (stored.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return numbers.flatten(-2).float()
