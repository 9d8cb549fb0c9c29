"""Prefill and append: runs of query tokens at the end of each sequence, causal, of mixed lengths in one batch.

Program (tile, key head) holds ROWS query rows of one sequence: TOKENS = ROWS // RATIO consecutive tokens for all query heads of the key head,
so that keys and values are read once for the group.

    query rows   token t  head 0 .. RATIO-1 | token t+1  head 0 .. | ...                    one tile, a matrix of ROWS x HEAD
    keys         |<-- tiles that every row sees whole -->|<-- masked tiles: diagonal -->|   TILE tokens each, through the block table

`plan` says which tile is whose, in `tile_seq` and `tile_first`, on the device and without waiting for it. Tiles of a plan that no sequence
needs carry -1 and zero the rows behind the last query, which captured graphs pad with.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, finished, rows
from kvproof.kernels.paged.walk import attended


@triton.jit(do_not_specialize=["query_rows"])
def prefill_kernel(
    query, key, value, key_scale, value_scale, sinks, out, tables, lens, query_lens, query_starts, tile_seq, tile_first, query_rows,
    scale, soft_cap, query_stride, query_head_stride, table_stride,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    RATIO: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SCALES: tl.constexpr, SINKS: tl.constexpr, CAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`query_rows` is the number of rows of `query` and `out`. SCALES as in decode."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    kv_heads = tl.num_programs(1)
    TOKENS: tl.constexpr = ROWS // RATIO
    group = tl.arange(0, ROWS)
    element = tl.arange(0, PADDED)
    seq = tl.load(tile_seq + tile).to(tl.int64)
    first_token = tl.load(tile_first + tile)
    token = first_token + group // RATIO
    head = kv_head * RATIO + group % RATIO
    if seq < 0:
        idle = (group < TOKENS * RATIO) & (token < query_rows)
        where = (token.to(tl.int64) * (kv_heads * RATIO) + head) * HEAD
        nothing = tl.zeros([ROWS, PADDED], out.dtype.element_ty)
        tl.store(out + where[:, None] + element[None, :], nothing, mask=idle[:, None] & (element < HEAD)[None, :])
        return
    length, queries = tl.load(lens + seq), tl.load(query_lens + seq)
    active = (group < TOKENS * RATIO) & (token < queries)
    position = length - queries + token
    row = (tl.load(query_starts + seq) + token).to(tl.int64)
    q = rows(query, row * query_stride + head * query_head_stride, active, HEAD, PADDED)
    earliest = length - queries + first_token
    stop = tl.minimum(earliest + TOKENS, length)
    low = 0
    start = 0
    whole = tl.maximum(earliest + 1, 0) // TILE * TILE
    if WINDOW > 0:
        low = tl.maximum(earliest - WINDOW + 1, 0)
        start = low // TILE * TILE
        whole = start
    top, total, acc = attended(
        q, position, kv_head, kv_heads, tables + seq * table_stride, key, value, key_scale, value_scale, scale, soft_cap,
        key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
        start, whole, stop, low, length, ROWS, BLOCK, HEAD, PADDED, TILE, WINDOW, SCALES, CAPPED, STAGES,
    )  # fmt: skip
    sink = top
    if SINKS:
        sink = tl.load(sinks + head) * LOG2E
    result = finished(top, total, acc, sink, SINKS)
    result = tl.where((position >= 0)[:, None], result, 0.0)
    where = (row * (kv_heads * RATIO) + head) * HEAD
    mask = active[:, None] & (element < HEAD)[None, :]
    tl.store(out + where[:, None] + element[None, :], result.to(out.dtype.element_ty), mask=mask)
