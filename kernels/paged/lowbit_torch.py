"""The low-bit scheme in plain torch, for devices that Triton does not run on, and as a second opinion where it does."""

from __future__ import annotations

import torch

from kvproof.kernels.paged.lowbit_pool import LowBitPool, paged_tensors, query_rows


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
        done = torch.where(after > before, pool.quantised_after(quantised, after), quantised)
        start = 0
        for seq, (old, new) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            ring, first, last = int(rings[seq]), int(quantised[seq]), int(done[seq])
            waiting = torch.arange(first, old, device=key.device) % pool.ring
            fresh = slice(start, start + new - old)
            keys = torch.cat([pool.ring_key[ring, waiting], key[fresh]])
            values = torch.cat([pool.ring_value[ring, waiting], value[fresh]])
            for group in range(first, last, pool.group):
                part = slice(group - first, group - first + pool.group)
                self._quantise(pool, keys[part].float(), values[part].float(), int(block_tables[seq, group // pool.block_size]), group)
            kept = torch.arange(max(old, last), new, device=key.device)
            pool.ring_key[ring, kept % pool.ring] = key[fresh][kept - old]
            pool.ring_value[ring, kept % pool.ring] = value[fresh][kept - old]
            start += new - old
        return done

    @staticmethod
    def _quantise(pool: LowBitPool, key: torch.Tensor, value: torch.Tensor, block: int, position: int) -> None:
        """One group, `[group, kv_heads, head_size]` float32, to its block."""
        offset = position % pool.block_size
        rows = slice(offset, offset + pool.group)
        numbers, zero, scale = _levels(pool, key, 0)
        pool.key[block, rows] = _packed(numbers, pool.bits)
        pool.key_scale[block, offset // pool.group], pool.key_zero[block, offset // pool.group] = scale[0], zero[0]
        numbers, zero, scale = _levels(pool, value.reshape(*value.shape[:-1], -1, pool.channels), -1)
        pool.value[block, rows] = _packed(numbers.flatten(-2), pool.bits)
        pool.value_scale[block, rows], pool.value_zero[block, rows] = scale.squeeze(-1), zero.squeeze(-1)

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
    ) -> torch.Tensor:
        """As `LowBitTriton.attend`."""
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        row_seqs, row_lens = query_rows(seq_lens, query_lens, len(query))
        ratio = query.shape[1] // pool.key.shape[2]
        for row, (seq, length) in enumerate(zip(row_seqs.tolist(), row_lens.tolist(), strict=True)):
            if length:
                key, value = sequence_rows(pool, block_tables[seq], int(rings[seq]), length, int(quantised[seq]))
                score = torch.einsum("hd,nhd->hn", query[row].float(), key.repeat_interleave(ratio, 1)) * scale
                out[row] = torch.einsum("hn,nhd->hd", score.softmax(-1), value.repeat_interleave(ratio, 1)).to(out.dtype)
        return out

    def copy_blocks(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """As `LowBitTriton.copy_blocks`."""
        for tensor in paged_tensors(pool):
            tensor[pairs[:, 1]] = tensor[pairs[:, 0]]

    def copy_rings(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """As `LowBitTriton.copy_rings`."""
        for tensor in (pool.ring_key, pool.ring_value):
            tensor[pairs[:, 1]] = tensor[pairs[:, 0]]


def sequence_rows(pool: LowBitPool, table: torch.Tensor, ring: int, length: int, quantised: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a sequence's first `length` tokens read as: keys and values `[length, kv_heads, head_size]` float32."""
    at = torch.arange(min(length, quantised), device=table.device)
    block, offset = table[at // pool.block_size].long(), at % pool.block_size
    scale, zero = (part[block, offset // pool.group].float() for part in (pool.key_scale, pool.key_zero))
    key = _unpacked(pool.key[block, offset], pool.bits) * scale + zero
    scale, zero = (part[block, offset].float().unsqueeze(-1) for part in (pool.value_scale, pool.value_zero))
    levels = _unpacked(pool.value[block, offset], pool.bits)
    value = (levels.reshape(*levels.shape[:-1], pool.head_size // pool.channels, pool.channels) * scale + zero).flatten(-2)
    recent = torch.arange(quantised, max(length, quantised), device=table.device) % pool.ring
    return torch.cat([key, pool.ring_key[ring, recent].float()]), torch.cat([value, pool.ring_value[ring, recent].float()])


def _levels(pool: LowBitPool, x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Levels, zeros and scales of groups along an axis; zeros and scales as they will be read."""
    kind, most = pool.key_scale.dtype, 2**pool.bits - 1
    zero = x.amin(axis, keepdim=True).to(kind).float()
    scale = ((x.amax(axis, keepdim=True) - zero) / most).to(kind).float()
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
