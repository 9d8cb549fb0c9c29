"""The plain Triton kernels behind the contract."""

from __future__ import annotations

import torch
import triton

from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.plain.kernels import attend_kernel, copy_kernel, store_kernel


class PlainTriton(PagedKernels):
    """Three kernels of one row for each program."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Everything the suite has cases for."""
        return KernelCapabilities(
            dtypes=("float32", "float16", "bfloat16"),
            head_sizes=(64, 80),
            gqa_ratios=(1, 4),
            block_sizes=(1, 12, 16),
            layouts=("NHD", "HND"),
            features=frozenset({"decode", "prefill", "copy", "window", "sinks", "soft-cap", "mla", "fp8", "int8"}),
        )

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Two launches, one for keys and one for values."""
        for source, tensor, scale in ((key, pool.key, pool.key_scale), (value, pool.value, pool.value_scale)):
            block_stride, slot_stride, head_stride = _strides(pool, tensor)
            store_kernel[(len(slots), pool.kv_heads)](
                source,
                tensor,
                tensor if scale is None else scale,
                slots,
                source.stride(0),
                source.stride(1),
                block_stride,
                slot_stride,
                head_stride,
                pool.kv_heads,
                BLOCK=pool.block_size,
                HEAD=source.shape[-1],
                PADDED=triton.next_power_of_2(source.shape[-1]),
                MODE=_mode(pool),
            )

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
        """One program for each query row and head."""
        row_seq, row_position = query_rows(seq_lens, query_lens)
        value_size = pool.value.shape[-1]
        out = query.new_empty((*query.shape[:-1], value_size))
        attend_kernel[(query.shape[0], query.shape[1])](
            query,
            pool.key,
            pool.value,
            pool.key if pool.key_scale is None else pool.key_scale,
            pool.value if pool.value_scale is None else pool.value_scale,
            query if sinks is None else sinks,
            out,
            block_tables,
            row_seq,
            row_position,
            scale,
            soft_cap or 1.0,
            query.stride(0),
            query.stride(1),
            block_tables.stride(0),
            *_strides(pool, pool.key),
            *_strides(pool, pool.value),
            pool.kv_heads,
            RATIO=query.shape[1] // pool.kv_heads,
            BLOCK=pool.block_size,
            PADDED_BLOCK=triton.next_power_of_2(pool.block_size),
            HEAD=pool.head_size,
            PADDED=triton.next_power_of_2(pool.head_size),
            VALUE_HEAD=value_size,
            VALUE_PADDED=triton.next_power_of_2(value_size),
            WINDOW=window or 0,
            SINKS=sinks is not None,
            CAPPED=soft_cap is not None,
            MODE=_mode(pool),
        )
        return out

    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        """One launch for each of keys, values and the scales that belong to blocks."""
        for tensor in (pool.key, pool.value):
            _copy(tensor, pairs)
        for scale in (pool.key_scale, pool.value_scale):
            if scale is not None and scale.dim() > 1:
                _copy(scale.unsqueeze(-1), pairs)


def query_rows(seq_lens: torch.Tensor, query_lens: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """For each query row its sequence and its position there, int32; decode rows sit at the last position, -1 for an empty sequence."""
    if query_lens is None:
        return torch.arange(len(seq_lens), dtype=torch.int32), (seq_lens - 1).to(torch.int32)
    row_seq = torch.repeat_interleave(torch.arange(len(seq_lens)), query_lens.long())
    starts = torch.cumsum(query_lens.long(), 0) - query_lens
    within = torch.arange(int(query_lens.sum())) - starts[row_seq]
    return row_seq.to(torch.int32), ((seq_lens - query_lens)[row_seq] + within).to(torch.int32)


def _strides(pool: KVPool, tensor: torch.Tensor) -> tuple[int, int, int]:
    block, slot, head, _ = pool.slot_view(tensor).stride()
    return block, slot, head


def _mode(pool: KVPool) -> str:
    if pool.key.dtype == torch.int8:
        return "int8"
    return "plain" if pool.key_scale is None else "fp8"


def _copy(tensor: torch.Tensor, pairs: torch.Tensor) -> None:
    _, outer, inner, last = tensor.shape
    copy_kernel[(len(pairs), outer, inner)](tensor, pairs, *tensor.stride()[:3], LAST=last, PADDED=triton.next_power_of_2(last))
