"""The low-bit scheme in Triton: `LowBitTriton` launches the kernels of `lowbit_store` and `lowbit_decode` on a `LowBitPool`.

No call waits for the device or reads a tensor on the host.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.paged.copies import copy_tensors
from kvproof.kernels.paged.lowbit_decode import lowbit_kernel
from kvproof.kernels.paged.lowbit_rows import paged_tensors, query_rows
from kvproof.kernels.paged.lowbit_store import quantise_kernel, recent_kernel
from kvproof.kernels.paged.merge import merge_kernel
from kvproof.kernels.paged.requests import check_attention, check_grid, check_low_bit_store, check_low_bit_strides
from kvproof.kernels.paged.sizes import SPLIT_TOKENS, Target, lowbit_stages, padded, target_of


class LowBitTriton:
    """Triton, on a GPU or on the IR machine. `split_tokens` and `target` as in `PagedTriton`."""

    def __init__(self, split_tokens: int = SPLIT_TOKENS, target: Target | None = None) -> None:
        self.split_tokens = split_tokens
        self._target = target

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
        """Write key and value `[tokens, kv_heads, head_size]`, for each sequence in turn its positions `before` to `after`; returns how many
        tokens are quantised now. `block_tables` `[seqs, max_blocks]`, `rings`, `before`, `after` and `quantised` `[seqs]`, int32. A sequence
        with after == before is padding: nothing is written for it.
        """
        check_low_bit_store(pool, key, value)
        check_low_bit_strides(pool)
        check_grid(after)
        done = pool.quantised_after(quantised, after)
        # Padded lanes keep their count, whatever their lengths say.
        done = torch.where(after > before, done, quantised)
        tokens, heads, head = key.shape
        seqs = len(after)
        starts = torch.cumsum(after - before, 0, dtype=torch.int32) - (after - before)
        if tokens == 0:
            return done
        strides = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
        sizes: dict[str, Any] = {"HEAD": head, "PADDED": padded(head), "RING": pool.ring, "num_warps": 4}
        quantise_kernel[(tokens // pool.group + 1, heads, seqs)](
            key, value, pool.key, pool.key_scale, pool.key_zero, pool.value, pool.value_scale, pool.value_zero, pool.ring_key, pool.ring_value,
            block_tables, rings, before, starts, quantised, done, *strides, block_tables.stride(0), *_strides(pool, pool.key),
            *_strides(pool, pool.key_scale), *_strides(pool, pool.value_scale), *_strides(pool, pool.ring_key),
            BITS=pool.bits, GROUP=pool.group, CHANNELS=pool.channels, BLOCK=pool.block_size, **sizes,
        )  # fmt: skip
        recent_kernel[(triton.cdiv(pool.ring, 16), heads, seqs)](
            key, value, pool.ring_key, pool.ring_value, rings, before, after, starts, done, *strides, *_strides(pool, pool.ring_key),
            TILE=16, **sizes,
        )  # fmt: skip
        return done

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
        max_tokens: int | None = None,
    ) -> torch.Tensor:
        """Attention of query `[rows, q_heads, head_size]` after `store`: one row for each sequence, or with `query_lens` its last positions,
        causal. Each row is walked on its own, which suits decodes and short appends. Windows, sinks, soft cap and `max_tokens` as in
        `PagedTriton.attend`.
        """
        check_attention(pool, query, block_tables, seq_lens, query_lens, window, sinks, soft_cap)
        check_low_bit_strides(pool)
        check_grid(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        count, heads, head = query.shape
        if count == 0:
            return out
        row_seqs, row_lens = query_rows(seq_lens, query_lens, count)
        split = triton.cdiv(self.split_tokens, pool.group) * pool.group
        room = block_tables.shape[1] * pool.block_size
        longest = room if max_tokens is None else min(room, max_tokens)
        parts = 1 + triton.cdiv(min(longest, window + pool.group - 1) if window else longest, split)
        partial = torch.empty(count, heads, parts, head, dtype=torch.float32, device=query.device)
        stats = torch.empty(count, heads, parts, 2, dtype=torch.float32, device=query.device)
        ratio = heads // pool.kv_heads
        lowbit_kernel[(pool.kv_heads, parts, count)](
            query, pool.key, pool.key_scale, pool.key_zero, pool.value, pool.value_scale, pool.value_zero, pool.ring_key, pool.ring_value,
            partial, stats, block_tables, rings, row_seqs, row_lens, quantised, scale, soft_cap or 1.0,
            query.stride(0), query.stride(1), block_tables.stride(0), *_strides(pool, pool.key), *_strides(pool, pool.key_scale),
            *_strides(pool, pool.value_scale), *_strides(pool, pool.ring_key),
            RATIO=ratio, ROWS=padded(ratio), BITS=pool.bits, GROUP=pool.group, CHANNELS=pool.channels, BLOCK=pool.block_size,
            HEAD=head, PADDED=padded(head), RING=pool.ring, TILE=32, SPLIT=split, WINDOW=window or 0, CAPPED=soft_cap is not None,
            STAGES=lowbit_stages(self._target or target_of(query.device)), num_warps=8,
        )  # fmt: skip
        # The merge counts parts from a length: one for the ring, and one for each split of quantised tokens.
        first = (row_lens - window).clamp(min=0) // pool.group * pool.group if window else 0
        counted = (torch.minimum(row_lens, quantised[row_seqs.long()]) - first).clamp(min=0) + split
        merge_kernel[(heads, count)](
            partial, stats, out if sinks is None else sinks, out, counted, parts, HEAD=head, PADDED=padded(head), TILE=pool.group, SPLIT=split,
            WINDOW=0, SINKS=sinks is not None, CHUNK=8, num_warps=2,
        )  # fmt: skip
        return out

    def copy_blocks(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """Blocks with their scales and zeros: pairs `[n, 2]` int64, source and destination; a -1 is padding."""
        for tensor in paged_tensors(pool):
            copy_tensors([tensor], pairs)

    def copy_rings(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """Recent windows, as a fork needs them: pairs of rings `[n, 2]` int64."""
        for tensor in (pool.ring_key, pool.ring_value):
            copy_tensors([tensor], pairs)


def _strides(pool: LowBitPool, tensor: torch.Tensor) -> tuple[int, int, int]:
    """From block to block (or ring), from slot to slot (or group, or place), from head to head."""
    block, slot, head, _ = pool.slot_view(tensor).stride()
    return block, slot, head
