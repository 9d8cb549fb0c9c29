"""Decode: one query token for each sequence, split over the sequence.

Program (key head, split, sequence) walks SPLIT tokens of one sequence in tiles of TILE, from the first tile that the window reaches:

    blocks of the sequence    | 7 | 2 | 9 | 4 | 4.. |          read through its row of the block table
    splits (SPLIT tokens)     |---- 0 ----|--- 1 ---|          one program each, for all query heads of the key head
    tiles (TILE tokens)       |-|-|-|-|-|-|-|-|-|-|-|          one row of a tile is the HEAD elements of one token: contiguous, read once

The query heads of a key head are the rows of one tensor-core tile, padded to 16. Each split leaves its largest score, its sum of weights
and its weighted values in float32; `merge` adds them up. Where a table is too narrow for a second split, the program writes the output
itself. Splits begin at multiples of TILE counted from the sequence's own first visible token: which others share the batch changes no bit.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, finished, rows
from kvproof.kernels.paged.walk import attended


@triton.jit
def decode_kernel(
    query, key, value, key_scale, value_scale, sinks, out, partial, stats, tables, lens, scale, soft_cap,
    query_stride, query_head_stride, table_stride,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    RATIO: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, SCALES: tl.constexpr,
    SINKS: tl.constexpr, CAPPED: tl.constexpr, SINGLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """SCALES: "none", "pool" (one for the pool) or "token" (one for each slot and head). SINGLE: no second split, write `out`."""
    kv_head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads = tl.num_programs(0)
    length = tl.load(lens + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    start = first // TILE * TILE + split * SPLIT
    stop = tl.minimum(start + SPLIT, length)
    if not SINGLE:
        if start >= length:
            return
    group = tl.arange(0, ROWS)
    head = kv_head * RATIO + group
    query_row = query + seq * query_stride
    q = rows(query_row, head * query_head_stride, group < RATIO, HEAD, PADDED)
    top, total, acc = attended(
        q, tl.full([ROWS], 0, tl.int32) + (length - 1), kv_head, kv_heads, tables + seq * table_stride, key, value, key_scale, value_scale,
        scale, soft_cap, key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
        start, stop // TILE * TILE, stop, first, stop, ROWS, BLOCK, HEAD, PADDED, TILE, WINDOW, SCALES, CAPPED, STAGES,
    )  # fmt: skip
    element = tl.arange(0, PADDED)
    mask = (group < RATIO)[:, None] & (element < HEAD)[None, :]
    row = seq * (kv_heads * RATIO) + head
    if SINGLE:
        sink = top
        if SINKS:
            sink = tl.load(sinks + head, mask=group < RATIO, other=0.0) * LOG2E
        result = finished(top, total, acc, sink, SINKS)
        result = tl.where((length > 0), result, 0.0)
        tl.store(out + row[:, None] * HEAD + element[None, :], result.to(out.dtype.element_ty), mask=mask)
    else:
        part = row * tl.num_programs(1) + split
        tl.store(partial + part[:, None] * HEAD + element[None, :], acc, mask=mask)
        tl.store(stats + part * 2, top, mask=group < RATIO)
        tl.store(stats + part * 2 + 1, total, mask=group < RATIO)
