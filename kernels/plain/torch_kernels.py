"""The contract in plain torch, without any kernel: what an adapter looks like where the machine sees nothing."""

from __future__ import annotations

import torch

from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.plain.triton_kernels import query_rows


class PlainTorch(PagedKernels):
    """Gather, softmax, multiply, in float32."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Everything on unquantised pools."""
        features = frozenset({"decode", "prefill", "copy", "window", "sinks", "soft-cap", "mla"})
        return KernelCapabilities(dtypes=("float32", "bfloat16"), layouts=("NHD", "HND"), features=features)

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Indexed assignment; padding is dropped first, since -1 would index the last block."""
        real = slots >= 0
        block, offset = slots[real] // pool.block_size, slots[real] % pool.block_size
        pool.slot_view(pool.key)[block, offset] = key[real]
        pool.slot_view(pool.value)[block, offset] = value[real]

    def attend(
        self,
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
    ) -> torch.Tensor:
        """Row by row over the gathered tokens."""
        out = query.new_zeros((*query.shape[:-1], pool.value.shape[-1]))
        row_seq, row_position = query_rows(seq_lens, query_lens)
        for row, (seq, position) in enumerate(zip(row_seq.tolist(), row_position.tolist(), strict=True)):
            if position < 0:
                continue
            first = 0 if window is None else max(0, position - window + 1)
            at = torch.arange(first, position + 1)
            block, offset = block_tables[seq][at // pool.block_size].long(), at % pool.block_size
            ratio = query.shape[1] // pool.kv_heads
            keys = pool.slot_view(pool.key)[block, offset].float().repeat_interleave(ratio, 1)
            values = pool.slot_view(pool.value)[block, offset].float().repeat_interleave(ratio, 1)
            scores = torch.einsum("hd,nhd->hn", query[row].float(), keys) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            if sinks is not None:
                scores = torch.cat([scores, sinks.unsqueeze(-1)], -1)
            weights = scores.softmax(-1)[:, : len(at)]
            out[row] = torch.einsum("hn,nhd->hd", weights, values).to(out.dtype)
        return out

    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        """Indexed assignment of whole blocks."""
        pool.key[pairs[:, 1]] = pool.key[pairs[:, 0]]
        pool.value[pairs[:, 1]] = pool.value[pairs[:, 0]]
