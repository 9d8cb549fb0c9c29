"""Append: a few query tokens at the end of a long sequence, as the verification of drafts has them, split over the sequence like a decode.

Program (key head, split, sequence) holds all query tokens of one sequence for all query heads of the key head, and walks SPLIT tokens of the
context for them, so that keys and values are read once for the group and for the tokens:

    query rows   token 0  head 0 .. RATIO-1 | token 1  head 0 .. | ...                      up to TOKENS tokens, a matrix of ROWS x HEAD
    splits       |---- 0 ----|---- 1 ----|---- 2 ----|-- 3 --|                              from the first token's window to the last token
    seen         |  all      |  all      |  all      | causal                               a row that sees nothing of a split leaves a sum of 0

Whether a sequence is appended to or prefilled is decided here, by its own number of query tokens: TOKENS at most. So both kernels are launched
for a batch, each leaves the other's sequences alone, and which others share the batch changes no bit of a row. `append_merge_kernel` adds up
the splits, as `merge` does for a decode.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.merge import merged
from kvproof.kernels.paged.tiles import rows
from kvproof.kernels.paged.walk import attended


@triton.jit
def append_kernel(
    query, key, value, key_scale, value_scale, partial, stats, tables, lens, query_lens, query_starts, scale, soft_cap,
    query_stride, query_head_stride, table_stride,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    RATIO: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, SCALES: tl.constexpr, CAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`partial` `[seqs, TOKENS, query heads, splits, HEAD]`, `stats` `[.., 2]`, float32. SCALES as in decode."""
    kv_head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads = tl.num_programs(0)
    length, queries = tl.load(lens + seq), tl.load(query_lens + seq)
    earliest = length - queries
    low = 0
    if WINDOW > 0:
        low = tl.maximum(earliest - WINDOW + 1, 0)
    start = low // TILE * TILE + split * SPLIT
    if (queries > TOKENS) | (queries <= 0) | (start >= length):
        return
    stop = tl.minimum(start + SPLIT, length)
    group = tl.arange(0, ROWS)
    token = group // RATIO
    head = kv_head * RATIO + group % RATIO
    active = token < queries
    position = earliest + token
    row = (tl.load(query_starts + seq) + token).to(tl.int64)
    q = rows(query, row * query_stride + head * query_head_stride, active, HEAD, PADDED)
    whole = tl.maximum(tl.minimum(earliest + 1, stop) // TILE * TILE, start)
    top, total, acc = attended(
        q, position, kv_head, kv_heads, tables + seq * table_stride, key, value, key_scale, value_scale, scale, soft_cap,
        key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
        start, whole, stop, low, stop, ROWS, BLOCK, HEAD, PADDED, TILE, WINDOW, SCALES, CAPPED, STAGES,
    )  # fmt: skip
    element = tl.arange(0, PADDED)
    part = ((seq * TOKENS + token) * (kv_heads * RATIO) + head) * tl.num_programs(1) + split
    tl.store(partial + part[:, None] * HEAD + element[None, :], acc, mask=active[:, None] & (element < HEAD)[None, :])
    tl.store(stats + part * 2, top, mask=active)
    tl.store(stats + part * 2 + 1, total, mask=active)


@triton.jit(do_not_specialize=["splits"])
def append_merge_kernel(
    partial, stats, sinks, out, lens, query_lens, query_starts, splits,
    TOKENS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (query head, query token, sequence); constants are those of the append."""
    head, token, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(0)
    length, queries = tl.load(lens + seq), tl.load(query_lens + seq)
    if (queries > TOKENS) | (token >= queries):
        return
    low = 0
    if WINDOW > 0:
        low = tl.maximum(length - queries - WINDOW + 1, 0)
    count = tl.cdiv(length - low // TILE * TILE, SPLIT)
    first = ((seq * TOKENS + token) * heads + head) * splits
    result = merged(partial, stats, sinks, first, count, head, HEAD, PADDED, SINKS, CHUNK)
    result = tl.where(length - queries + token >= 0, result, 0.0)
    element = tl.arange(0, PADDED)
    row = (tl.load(query_starts + seq) + token).to(tl.int64) * heads + head
    tl.store(out + row * HEAD + element[None, :], result.to(out.dtype.element_ty), mask=(element < HEAD)[None, :])
