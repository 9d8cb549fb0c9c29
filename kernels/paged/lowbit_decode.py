"""Attention over the low-bit scheme: quantised groups from the blocks, the recent window from the ring, merged like splits.

Program (key head, part, query row). Part 0 walks the sequence's ring in tiles of TILE; part p > 0 walks SPLIT quantised tokens, one group for
each tile, so that one scale and zero of each channel serve the tile's keys. Bytes become numbers in registers and numbers become keys and
values in the type of the query, rounded once. A query row sees the positions before its own length, so that appended rows are causal. With a
window splits begin at the group that its first visible token lies in; of what is before that token nothing is read but the group's scales.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import products, rows, scores, step


@triton.jit
def unpacked(stored, BITS: tl.constexpr):
    """Bytes `[rows, n]` as numbers `[rows, n * 8 / BITS]`, float32."""
    if BITS == 8:
        return stored.to(tl.float32)
    else:
        EACH: tl.constexpr = 8 // BITS
        shifted = stored.to(tl.int32)[:, :, None] >> (tl.arange(0, EACH) * BITS)[None, None, :]
        return tl.reshape(shifted & ((1 << BITS) - 1), [stored.shape[0], stored.shape[1] * EACH]).to(tl.float32)


@triton.jit
def lowbit_kernel(
    query, key, key_scale, key_zero, value, value_scale, value_zero, ring_key, ring_value, partial, stats,
    tables, ring_rows, row_seqs, row_lens, quantised, scale, soft_cap, query_stride, query_head_stride, table_stride,
    block_stride, slot_stride, head_stride, key_scale_block_stride, key_scale_group_stride, key_scale_head_stride,
    value_scale_block_stride, value_scale_slot_stride, value_scale_head_stride, ring_row_stride, ring_slot_stride, ring_head_stride,
    RATIO: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    HEAD: tl.constexpr, PADDED: tl.constexpr, RING: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Row r of `query` belongs to sequence `row_seqs[r]` and sees `row_lens[r]` tokens; `partial` and `stats` as in decode."""
    kv_head, part, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    seq = tl.load(row_seqs + row).to(tl.int64)
    length, whole = tl.load(row_lens + row), tl.load(quantised + seq)
    stored = tl.minimum(length, whole)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    start = first // GROUP * GROUP + (part - 1) * SPLIT
    if part > 0:
        if start >= stored:
            return
    group = tl.arange(0, ROWS)
    head = kv_head * RATIO + group
    q = rows(query + row * query_stride, head * query_head_stride, group < RATIO, HEAD, PADDED)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    if part == 0:
        one = tl.full([TILE], 1.0, tl.float32)
        ring_row = tl.load(ring_rows + seq).to(tl.int64) * ring_row_stride + kv_head * ring_head_stride
        for begin in tl.range(tl.maximum(whole, first), length, TILE, num_stages=STAGES):
            at = begin + tl.arange(0, TILE)
            seen = at < length
            base = ring_row + (at % RING) * ring_slot_stride
            k = rows(ring_key, base, seen, HEAD, PADDED)
            v = rows(ring_value, base, seen, HEAD, PADDED)
            score = scores(products(q, k, one, False), scale, soft_cap, CAPPED)
            score = tl.where(seen[None, :], score, float("-inf"))
            top, total, acc = step(score, 1.0, v, one, top, total, acc, False)
    else:
        each = tl.full([GROUP], 1.0, tl.float32)
        lane = tl.arange(0, PADDED)
        EACH: tl.constexpr = 8 // BITS
        byte = tl.arange(0, PADDED // EACH)
        channel = tl.arange(0, PADDED // CHANNELS)
        for begin in tl.range(start, tl.minimum(start + SPLIT, stored), GROUP, num_stages=STAGES):
            at = begin + tl.arange(0, GROUP)
            seen = (at >= first) & (at < stored)
            block = tl.load(tables + seq * table_stride + begin // BLOCK).to(tl.int64)
            offset = begin % BLOCK + tl.arange(0, GROUP)
            place = (block * block_stride + kv_head * head_stride + offset * slot_stride)[:, None] + byte[None, :]
            mask = seen[:, None] & (byte < HEAD // EACH)[None, :]
            scale_at = block * key_scale_block_stride + (begin % BLOCK // GROUP) * key_scale_group_stride + kv_head * key_scale_head_stride
            k_scale = tl.load(key_scale + scale_at + lane, mask=lane < HEAD, other=0.0).to(tl.float32)
            k_zero = tl.load(key_zero + scale_at + lane, mask=lane < HEAD, other=0.0).to(tl.float32)
            k = unpacked(tl.load(key + place, mask=mask, other=0), BITS) * k_scale[None, :] + k_zero[None, :]
            scales_at = (block * value_scale_block_stride + kv_head * value_scale_head_stride + offset * value_scale_slot_stride)[:, None]
            scales_at += channel[None, :]
            channels = seen[:, None] & (channel < HEAD // CHANNELS)[None, :]
            v_scale = tl.load(value_scale + scales_at, mask=channels, other=0.0).to(tl.float32)
            v_zero = tl.load(value_zero + scales_at, mask=channels, other=0.0).to(tl.float32)
            v = tl.reshape(unpacked(tl.load(value + place, mask=mask, other=0), BITS), [GROUP, PADDED // CHANNELS, CHANNELS])
            v = tl.reshape(v * v_scale[:, :, None] + v_zero[:, :, None], [GROUP, PADDED])
            score = scores(products(q, k.to(q.dtype), each, False), scale, soft_cap, CAPPED)
            score = tl.where(seen[None, :], score, float("-inf"))
            top, total, acc = step(score, 1.0, v.to(q.dtype), each, top, total, acc, False)
    element = tl.arange(0, PADDED)
    kv_heads = tl.num_programs(0)
    part_at = (row * (kv_heads * RATIO) + head) * tl.num_programs(1) + part
    mask_out = (group < RATIO)[:, None] & (element < HEAD)[None, :]
    tl.store(partial + part_at[:, None] * HEAD + element[None, :], acc, mask=mask_out)
    tl.store(stats + part_at * 2, top, mask=group < RATIO)
    tl.store(stats + part_at * 2 + 1, total, mask=group < RATIO)
