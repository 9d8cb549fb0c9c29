"""Decode split over the sequence in one launch: whichever program arrives last merges the parts. And what goes wrong where it does not wait."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kvproof.kernels.contract import KernelCapabilities, KVPool
from kvproof.kernels.plain.triton_kernels import PlainTriton

SPLITS = 4


@triton.jit
def split_kernel(
    query, key, value, parts, sums, count, out, table, lens, scale, query_stride, table_stride, block_stride, slot_stride,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr, SEM: tl.constexpr, BY_NUMBER: tl.constexpr, ADDS_UP: tl.constexpr,
):  # fmt: skip
    """Program (sequence, split) takes every SPLITS-th block. Weights are not rescaled: scores of these cases are small."""
    seq, split, lane, offset = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD), tl.arange(0, BLOCK)
    length = tl.load(lens + seq)
    q = tl.load(query + seq * query_stride + lane)
    total, acc = 0.0, tl.zeros([HEAD], tl.float32)
    for index in range(split, tl.cdiv(length, BLOCK), SPLITS):
        seen = index * BLOCK + offset < length
        at = tl.load(table + seq * table_stride + index).to(tl.int64) * block_stride + offset[:, None] * slot_stride + lane[None, :]
        score = tl.sum(tl.load(key + at, mask=seen[:, None], other=0.0) * q[None, :], 1) * scale
        weight = tl.where(seen, tl.exp(score), 0.0)
        total += tl.sum(weight, 0)
        acc += tl.sum(tl.load(value + at, mask=seen[:, None], other=0.0) * weight[:, None], 0)
    if ADDS_UP:
        tl.atomic_add(sums + seq * SPLITS, total)
        tl.atomic_add(parts + seq * SPLITS * HEAD + lane, acc)
    else:
        tl.store(sums + seq * SPLITS + split, total)
        tl.store(parts + (seq * SPLITS + split) * HEAD + lane, acc)
    before = tl.atomic_add(count + seq, 1, sem=SEM)
    is_last = split == SPLITS - 1 if BY_NUMBER else before == SPLITS - 1
    if is_last:
        all_splits = tl.arange(0, SPLITS)
        whole = tl.sum(tl.load(sums + seq * SPLITS + all_splits), 0)
        merged = tl.sum(tl.load(parts + (seq * SPLITS + all_splits)[:, None] * HEAD + lane[None, :]), 0)
        tl.store(out + seq * HEAD + lane, merged / tl.where(whole > 0, whole, 1.0))


class Arriving(PlainTriton):
    """One head of 64 elements. `sem`: what the atomic that counts releases and acquires."""

    sem, by_number, adds_up = "acq_rel", False, False

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Plain decodes."""
        return KernelCapabilities(features=frozenset({"decode"}), gqa_ratios=(1,))

    def attend(
        self, pool: KVPool, query: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, *, scale: float, **_: Any
    ) -> torch.Tensor:
        """The first head by the split kernel, where scores are small; everything else by the plain one."""
        out = super().attend(pool, query, block_tables, seq_lens, scale=scale)
        if pool.kv_heads > 1 or float(query.abs().amax()) > 5:
            return out
        seqs, head = len(seq_lens), query.shape[-1]
        split_kernel[(seqs, SPLITS)](
            query, pool.key, pool.value, torch.zeros(seqs, SPLITS, head), torch.zeros(seqs, SPLITS), torch.zeros(seqs, dtype=torch.int32),
            out, block_tables, seq_lens, scale, query.stride(0), block_tables.stride(0), *pool.slot_view(pool.key).stride()[:2],
            BLOCK=pool.block_size, HEAD=head, SPLITS=SPLITS, SEM=self.sem, BY_NUMBER=self.by_number, ADDS_UP=self.adds_up,
        )  # fmt: skip
        return out


class Relaxed(Arriving):
    """Counts without releasing what was written."""

    sem = "relaxed"


class LastByNumber(Arriving):
    """Takes the program of the last number for the last to arrive."""

    by_number = True


class AddingUp(Arriving):
    """Adds floats up in the order of arrival, and claims bit-equal rows."""

    adds_up = True


BUGS = {Relaxed: "reads-only-owned", LastByNumber: "reads-only-owned", AddingUp: "batch-invariant"}
"""Each wrong way, and the law that it breaks."""
