"""MLA: many query heads over one latent, which is key and value at once. Decode, append and prefill.

A token is one row, `latent | rope` (512 + 64 elements in DeepSeek's models): the whole row is the key, its first part the value. A program
reads each row of its part of the context once and uses it twice:

    pool row      | latent ........................ | rope ... |
    scores        query[latent] . latent           +  query[rope] . rope
    output        weights x latent                               [ROWS, latent] in float32

Its query rows are pairs of token and head, heads first, so that a token's heads share what is read, and tokens of few heads as well:

    query rows    token 0  head 0 .. HEADS-1 | token 1  head 0 .. | ...     cut into tiles of ROWS, causal row by row

`mla_kernel` is for one query token of each sequence, or a few, split over the context like a decode; `merge` and `append_merge` add up the
splits. `mla_prefill_kernel` walks the whole context for one tile of a plan. Tiles that read the same rows are neighbours in the grid, so that
all but the first find them in the second-level cache. A quantised row has one scale, for its latent and its rotary part together.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, finished, places, rows, step, token_scales, widened


@triton.jit
def latent_walk(
    q, q_rope, position, pool, pool_scale, table_row, scale, block_stride, slot_stride, start, stop,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LATENT: tl.constexpr, PADDED: tl.constexpr, ROPE: tl.constexpr, PADDED_ROPE: tl.constexpr,
    TILE: tl.constexpr, SCALES: tl.constexpr, STAGED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to positions `start` to `stop`, each query row up to its own `position`: largest scores, sums of weights, weighted latents.

    STAGED: quantised rows go through shared memory as they come, a tile ahead.
    """
    if SCALES == "pool":
        scale *= tl.load(pool_scale)
    lane = tl.arange(0, TILE)
    row_scale = tl.full([TILE], 1.0, tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        at = begin + lane
        inside = at < stop
        block, offset = places(table_row, at, inside, BLOCK)
        base = block * block_stride + offset * slot_stride
        latent = widened(rows(pool, base, inside, LATENT, PADDED), q.dtype)
        if STAGED:
            # Changes no number, since unseen rows are zeros. But with a second operand in the way the compiler converts the numbers before it lays
            # them out for the two products; otherwise it lays out what is stored, twice and differently, and then copies nothing ahead.
            latent = tl.where(inside[:, None], latent, 0.0)
        rope = widened(rows(pool + LATENT, base, inside, ROPE, PADDED_ROPE), q.dtype)
        score = tl.dot(q, tl.trans(latent), input_precision="ieee")
        score = tl.dot(q_rope, tl.trans(rope), score, input_precision="ieee") * (scale * LOG2E)
        if SCALES == "token":
            row_scale, _ = token_scales(pool_scale, pool_scale, block, offset, 0, 1, inside, BLOCK)
            score *= row_scale[None, :]
        seen = inside[None, :] & (at[None, :] <= position[:, None])
        score = tl.where(seen, score, float("-inf"))
        top, total, acc = step(score, 1.0, latent, row_scale, top, total, acc, SCALES == "token")
    if SCALES == "pool":
        acc *= tl.load(pool_scale)
    return top, total, acc


@triton.jit
def mla_kernel(
    query, pool, pool_scale, out, partial, stats, tables, lens, query_lens, query_starts, scale,
    query_stride, query_head_stride, table_stride, block_stride, slot_stride,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATENT: tl.constexpr, PADDED: tl.constexpr,
    ROPE: tl.constexpr, PADDED_ROPE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, SCALES: tl.constexpr,
    STAGED: tl.constexpr, APPEND: tl.constexpr, SINGLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile of query rows, split, sequence). APPEND: sequences have up to TOKENS query tokens each, and those that have more are left to
    the prefill; otherwise all have one. SINGLE: no second split, write `out`. SCALES: "none", "pool" or "token", one for each slot.
    """
    tile, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(lens + seq)
    start = split * SPLIT
    queries, first_row = 1, seq
    if APPEND:
        queries = tl.load(query_lens + seq)
        first_row = tl.load(query_starts + seq).to(tl.int64)
        if (queries > TOKENS) | (tile * ROWS >= queries * HEADS):
            return
    if not SINGLE:
        if start >= length:
            return
    stop = tl.minimum(start + SPLIT, length)
    group = tile * ROWS + tl.arange(0, ROWS)
    token, head = group // HEADS, group % HEADS
    active = token < queries
    query_row = (first_row + token) * query_stride + head * query_head_stride
    q = rows(query, query_row, active, LATENT, PADDED)
    q_rope = rows(query + LATENT, query_row, active, ROPE, PADDED_ROPE)
    top, total, acc = latent_walk(
        q, q_rope, length - queries + token, pool, pool_scale, tables + seq * table_stride, scale, block_stride, slot_stride, start, stop,
        ROWS, BLOCK, LATENT, PADDED, ROPE, PADDED_ROPE, TILE, SCALES, STAGED, STAGES,
    )  # fmt: skip
    element = tl.arange(0, PADDED)
    mask = active[:, None] & (element < LATENT)[None, :]
    row = (seq * TOKENS + token) * HEADS + head
    if SINGLE:
        result = finished(top, total, acc, top, False)
        tl.store(out + row[:, None] * LATENT + element[None, :], result.to(out.dtype.element_ty), mask=mask)
    else:
        part = row * tl.num_programs(1) + split
        tl.store(partial + part[:, None] * LATENT + element[None, :], acc, mask=mask)
        tl.store(stats + part * 2, top, mask=active)
        tl.store(stats + part * 2 + 1, total, mask=active)


@triton.jit(do_not_specialize=["query_rows"])
def mla_prefill_kernel(
    query, pool, pool_scale, out, tables, lens, query_lens, query_starts, tile_seq, tile_first, query_rows, scale,
    query_stride, query_head_stride, table_stride, block_stride, slot_stride,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LATENT: tl.constexpr,
    PADDED: tl.constexpr, ROPE: tl.constexpr, PADDED_ROPE: tl.constexpr, TILE: tl.constexpr, SCALES: tl.constexpr, STAGED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program: EACH heads of the TOKENS query tokens of one tile of the plan, for which `query_rows` is the number of rows of `query`."""
    parts: tl.constexpr = (HEADS + EACH - 1) // EACH
    tile, group, element = tl.program_id(0) // parts, tl.arange(0, ROWS), tl.arange(0, PADDED)
    seq = tl.load(tile_seq + tile).to(tl.int64)
    first_token = tl.load(tile_first + tile)
    token, head = first_token + group // EACH, tl.program_id(0) % parts * EACH + group % EACH
    mine = (group < TOKENS * EACH) & (head < HEADS)
    if seq < 0:
        idle = mine & (token < query_rows)
        where = (token.to(tl.int64) * HEADS + head) * LATENT
        nothing = tl.zeros([ROWS, PADDED], out.dtype.element_ty)
        tl.store(out + where[:, None] + element[None, :], nothing, mask=idle[:, None] & (element < LATENT)[None, :])
        return
    length, queries = tl.load(lens + seq), tl.load(query_lens + seq)
    active = mine & (token < queries)
    row = (tl.load(query_starts + seq) + token).to(tl.int64)
    query_row = row * query_stride + head * query_head_stride
    q = rows(query, query_row, active, LATENT, PADDED)
    q_rope = rows(query + LATENT, query_row, active, ROPE, PADDED_ROPE)
    top, total, acc = latent_walk(
        q, q_rope, length - queries + token, pool, pool_scale, tables + seq * table_stride, scale, block_stride, slot_stride, 0,
        tl.minimum(length - queries + first_token + TOKENS, length), ROWS, BLOCK, LATENT, PADDED, ROPE, PADDED_ROPE, TILE, SCALES, STAGED, STAGES,
    )  # fmt: skip
    result = finished(top, total, acc, top, False)
    where = (row * HEADS + head) * LATENT
    mask = active[:, None] & (element < LATENT)[None, :]
    tl.store(out + where[:, None] + element[None, :], result.to(out.dtype.element_ty), mask=mask)
