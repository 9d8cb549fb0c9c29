"""The low-bit scheme in Triton: `LowBitTriton` launches the kernels of `lowbit_store` and `lowbit_decode` on a `LowBitPool`.

No call waits for the device or reads a tensor on the host.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from kvproof.kernels.paged.adapter import copy_tensors
from kvproof.kernels.paged.lowbit_decode import lowbit_kernel
from kvproof.kernels.paged.lowbit_pool import LowBitPool, paged_tensors, query_rows
from kvproof.kernels.paged.lowbit_store import quantise_kernel, recent_kernel
from kvproof.kernels.paged.merge import merge_kernel
from kvproof.kernels.paged.sizes import SPLIT_TOKENS, padded


class LowBitTriton:
    """Triton, on a GPU or on the IR machine. `split_tokens` as in `PagedTriton`."""

    split_tokens = SPLIT_TOKENS

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
            block_tables, rings, before, starts, quantised, done, *strides, block_tables.stride(0), *pool.key.stride()[:3],
            *pool.key_scale.stride()[:3], *pool.value_scale.stride()[:3], *pool.ring_key.stride()[:3],
            BITS=pool.bits, GROUP=pool.group, CHANNELS=pool.channels, BLOCK=pool.block_size, **sizes,
        )  # fmt: skip
        recent_kernel[(triton.cdiv(pool.ring, 16), heads, seqs)](
            key, value, pool.ring_key, pool.ring_value, rings, before, after, starts, done, *strides, *pool.ring_key.stride()[:3],
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
        max_tokens: int | None = None,
    ) -> torch.Tensor:
        """Attention of query `[rows, q_heads, head_size]` after `store`: one row for each sequence, or with `query_lens` its last positions,
        causal. Each row is walked on its own, which suits decodes and short appends. `max_tokens` as in `PagedTriton.attend`.
        """
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        count, heads, head = query.shape
        if count == 0:
            return out
        row_seqs, row_lens = query_rows(seq_lens, query_lens, count)
        split = triton.cdiv(self.split_tokens, pool.group) * pool.group
        room = block_tables.shape[1] * pool.block_size
        parts = 1 + triton.cdiv(room if max_tokens is None else min(room, max_tokens), split)
        partial = torch.empty(count, heads, parts, head, dtype=torch.float32, device=query.device)
        stats = torch.empty(count, heads, parts, 2, dtype=torch.float32, device=query.device)
        ratio = heads // pool.key.shape[2]
        lowbit_kernel[(pool.key.shape[2], parts, count)](
            query, pool.key, pool.key_scale, pool.key_zero, pool.value, pool.value_scale, pool.value_zero, pool.ring_key, pool.ring_value,
            partial, stats, block_tables, rings, row_seqs, row_lens, quantised, scale,
            query.stride(0), query.stride(1), block_tables.stride(0), *pool.key.stride()[:3], *pool.key_scale.stride()[:3],
            *pool.value_scale.stride()[:3], *pool.ring_key.stride()[:3],
            RATIO=ratio, ROWS=padded(ratio), BITS=pool.bits, GROUP=pool.group, CHANNELS=pool.channels, BLOCK=pool.block_size,
            HEAD=head, PADDED=padded(head), RING=pool.ring, TILE=32, SPLIT=split, STAGES=2, num_warps=8,
        )  # fmt: skip
        # The merge counts parts from a length: one for the ring, and one for each split of quantised tokens.
        counted = torch.minimum(row_lens, quantised[row_seqs.long()]) + split
        merge_kernel[(heads, count)](
            partial, stats, out, out, counted, parts, HEAD=head, PADDED=padded(head), TILE=pool.group, SPLIT=split, WINDOW=0, SINKS=False,
            CHUNK=8, num_warps=2,
        )  # fmt: skip
        return out

    def copy_blocks(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """Blocks with their scales and zeros: pairs `[n, 2]` int64, source and destination."""
        for tensor in paged_tensors(pool):
            copy_tensors([tensor], pairs)

    def copy_rings(self, pool: LowBitPool, pairs: torch.Tensor) -> None:
        """Recent windows, as a fork needs them: pairs of rings `[n, 2]` int64."""
        for tensor in (pool.ring_key, pool.ring_value):
            copy_tensors([tensor], pairs)
