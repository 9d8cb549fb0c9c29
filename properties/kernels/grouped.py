"""Decode in another style than the plain kernels: dots over groups of heads, split over the sequence, partial results in scratch memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvproof.kernels.contract import KernelCapabilities, KVPool
from kvproof.kernels.plain.triton_kernels import PlainTriton


@triton.jit
def partial_kernel(
    query, key, value, partial, stats, table, lens, scale,
    query_stride, query_head_stride, table_stride, block_stride, slot_stride, head_stride,
    RATIO: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    seq, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens + seq)
    blocks = tl.cdiv(length, BLOCK)
    share = tl.cdiv(blocks, SPLITS)
    rows, lane, offset = tl.arange(0, ROWS), tl.arange(0, PADDED), tl.arange(0, BLOCK)
    heads = kv_head * RATIO + rows
    mask_q = (rows < RATIO)[:, None] & (lane < HEAD)[None, :]
    q = tl.load(query + seq * query_stride + heads[:, None] * query_head_stride + lane[None, :], mask=mask_q, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    for index in range(split * share, tl.minimum((split + 1) * share, blocks)):
        block = tl.load(table + seq * table_stride + index).to(tl.int64)
        seen = index * BLOCK + offset < length
        base = block * block_stride + kv_head * head_stride
        k = tl.load(key + base + offset[None, :] * slot_stride + lane[:, None], mask=seen[None, :] & (lane < HEAD)[:, None], other=0.0)
        v = tl.load(value + base + offset[:, None] * slot_stride + lane[None, :], mask=seen[:, None] & (lane < HEAD)[None, :], other=0.0)
        score = tl.where(seen[None, :], tl.dot(q, k) * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        top = new_top
    kv_heads = tl.num_programs(1)
    at = (seq * kv_heads * RATIO + heads) * SPLITS + split
    tl.store(partial + at[:, None] * HEAD + lane[None, :], acc, mask=mask_q)
    tl.store(stats + at * 2, top, mask=rows < RATIO)
    tl.store(stats + at * 2 + 1, total, mask=rows < RATIO)


@triton.jit
def combine_kernel(partial, stats, out, HEAD: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    at = row * SPLITS + split
    top = tl.load(stats + at * 2)
    best = tl.max(top, 0)
    share = tl.where(top > float("-inf"), tl.exp(top - best), 0.0)
    total = tl.sum(share * tl.load(stats + at * 2 + 1), 0)
    parts = tl.load(partial + at[:, None] * HEAD + lane[None, :], mask=(lane < HEAD)[None, :], other=0.0)
    result = tl.sum(parts * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + row * HEAD + lane, result.to(out.dtype.element_ty), mask=lane < HEAD)


class Grouped(PlainTriton):
    """Decode only; stores are the plain ones."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        features = frozenset({"decode"})
        return KernelCapabilities(
            dtypes=("float32", "float16", "bfloat16"), head_sizes=(64, 80), gqa_ratios=(1, 4), block_sizes=(16, 32), features=features
        )

    def attend(
        self,
        pool: KVPool,
        query: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        scale: float,
        query_lens: torch.Tensor | None = None,  # noqa: ARG002 - decode only
        window: int | None = None,  # noqa: ARG002 - not claimed
    ) -> torch.Tensor:
        seqs, heads, head = query.shape
        splits, padded = 4, triton.next_power_of_2(head)
        out = torch.empty((seqs, heads, head), dtype=query.dtype)
        partial, stats = torch.empty(seqs, heads, splits, head), torch.empty(seqs, heads, splits, 2)
        sizes = {"HEAD": head, "PADDED": padded, "SPLITS": splits}
        partial_kernel[(seqs, pool.kv_heads, splits)](
            query, pool.key, pool.value, partial, stats, block_tables, seq_lens, scale,
            query.stride(0), query.stride(1), block_tables.stride(0),
            *pool.key.stride()[:3], RATIO=heads // pool.kv_heads, ROWS=16, BLOCK=pool.block_size, **sizes,
        )  # fmt: skip
        combine_kernel[(seqs * heads,)](partial, stats, out, **sizes)
        return out
