"""MLA decode: many query heads over one latent, which is key and value at once.

A token is one row, `latent | rope` (512 + 64 elements in DeepSeek's models): the whole row is the key, its first part the value. Program
(query head tile, split, sequence) reads each row of its split once and uses it twice:

    pool row      | latent ........................ | rope ... |
    scores        query[latent] . latent           +  query[rope] . rope
    output        weights x latent                               [ROWS, latent] in float32

Query heads are cut into tiles of ROWS; further tiles of the same sequence find its rows in the second-level cache. Splits and their merge are
those of the ordinary decode.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, finished, places, rows, step


@triton.jit
def mla_kernel(
    query, pool, out, partial, stats, tables, lens, heads, scale, query_stride, query_head_stride, table_stride, block_stride, slot_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATENT: tl.constexpr, PADDED: tl.constexpr, ROPE: tl.constexpr, PADDED_ROPE: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, SINGLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """SINGLE: no second split, write `out` `[seqs, heads, LATENT]`."""
    split, seq = tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(lens + seq)
    start = split * SPLIT
    stop = tl.minimum(start + SPLIT, length)
    if not SINGLE:
        if start >= length:
            return
    head = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query_row = query + seq * query_stride
    q = rows(query_row, head * query_head_stride, head < heads, LATENT, PADDED)
    q_rope = rows(query_row + LATENT, head * query_head_stride, head < heads, ROPE, PADDED_ROPE)
    lane = tl.arange(0, TILE)
    one = tl.full([TILE], 1.0, tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        at = begin + lane
        seen = at < stop
        block, offset = places(tables + seq * table_stride, at, seen, BLOCK)
        base = block * block_stride + offset * slot_stride
        latent = rows(pool, base, seen, LATENT, PADDED)
        rope = rows(pool + LATENT, base, seen, ROPE, PADDED_ROPE)
        score = tl.dot(q, tl.trans(latent), input_precision="ieee")
        score = tl.dot(q_rope, tl.trans(rope), score, input_precision="ieee") * (scale * LOG2E)
        score = tl.where(seen[None, :], score, float("-inf"))
        top, total, acc = step(score, latent, one, top, total, acc, False)
    element = tl.arange(0, PADDED)
    mask = (head < heads)[:, None] & (element < LATENT)[None, :]
    row = seq * heads + head
    if SINGLE:
        result = finished(top, total, acc, top, False)
        tl.store(out + row[:, None] * LATENT + element[None, :], result.to(out.dtype.element_ty), mask=mask)
    else:
        part = row * tl.num_programs(1) + split
        tl.store(partial + part[:, None] * LATENT + element[None, :], acc, mask=mask)
        tl.store(stats + part * 2, top, mask=head < heads)
        tl.store(stats + part * 2 + 1, total, mask=head < heads)
