"""Walk: attention of the query rows of one program over a run of positions, which decode, append and prefill share.

    positions    start            whole         stop
                 | whole tiles    | masked tiles |        TILE tokens each, through the block table

Each row sees the positions up to its own `position`, in a window the last WINDOW of them. Every row sees all of a whole tile, so that nothing there
is masked, neither table nor rows nor scores: masks would be three in ten of a decode's instructions. In a window all tiles are masked.
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, places, products, rows, scores, step, token_scales, widened


@triton.jit
def walk(
    q, position, kv_head, kv_heads, table_row, key, value, key_scale, value_scale, scale, soft_cap,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    start, stop, low, length, top, total, acc,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    SCALES: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to positions `start` to `stop` in tiles. Unless MASKED, every row sees every one of them. In a window nothing before `low` is read:
    the blocks there may be others' by now, and what they hold, NaN times a weight of zero, would still be NaN.
    """
    lane = tl.arange(0, TILE)
    one = tl.full([TILE], 1.0, tl.float32)
    for begin in tl.range(start, stop, TILE, num_stages=STAGES):
        at = begin + lane
        inside = tl.full([TILE], True, tl.int1)
        if MASKED:
            inside = at < length
        if WINDOW > 0:
            inside &= at >= low
        block, offset = places(table_row, at, inside, BLOCK)
        k = rows(key + kv_head * key_head_stride, block * key_block_stride + offset * key_slot_stride, inside, HEAD, PADDED)
        v = rows(value + kv_head * value_head_stride, block * value_block_stride + offset * value_slot_stride, inside, HEAD, PADDED)
        k_scale, v_scale = one, one
        if SCALES == "token":
            k_scale, v_scale = token_scales(key_scale, value_scale, block, offset, kv_head, kv_heads, inside, BLOCK)
        score = products(q, widened(k, q.dtype), k_scale, SCALES == "token")
        unit = scale * LOG2E
        if MASKED or CAPPED:
            score, unit = scores(score, scale, soft_cap, CAPPED), 1.0
        if MASKED:
            seen = at[None, :] <= position[:, None]
            if WINDOW > 0:
                seen &= at[None, :] > position[:, None] - WINDOW
            score = tl.where(seen, score, float("-inf"))
        top, total, acc = step(score, unit, widened(v, q.dtype), v_scale, top, total, acc, SCALES == "token")
    return top, total, acc


@triton.jit
def attended(
    q, position, kv_head, kv_heads, table_row, key, value, key_scale, value_scale, scale, soft_cap,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    start, whole, stop, low, length,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    SCALES: tl.constexpr, CAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Largest scores, sums of weights and weighted values of ROWS query rows over `start` to `stop`, of which no row is to be masked before `whole`."""
    if SCALES == "pool":
        scale *= tl.load(key_scale)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    if WINDOW > 0:
        whole = start
    else:
        top, total, acc = walk(
            q, position, kv_head, kv_heads, table_row, key, value, key_scale, value_scale, scale, soft_cap,
            key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
            start, whole, low, length, top, total, acc, BLOCK, HEAD, PADDED, TILE, WINDOW, SCALES, CAPPED, False, STAGES,
        )  # fmt: skip
    top, total, acc = walk(
        q, position, kv_head, kv_heads, table_row, key, value, key_scale, value_scale, scale, soft_cap,
        key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
        whole, stop, low, length, top, total, acc, BLOCK, HEAD, PADDED, TILE, WINDOW, SCALES, CAPPED, True, STAGES,
    )  # fmt: skip
    if SCALES == "pool":
        acc *= tl.load(value_scale)
    return top, total, acc
