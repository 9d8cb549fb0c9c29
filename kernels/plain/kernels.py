"""Three Triton kernels that do the contract and nothing more: store, attend, copy.

One program does one row, so that every line can be checked against the contract's sentence. Block ids become 64-bit before they are
multiplied: a pool may be larger than 2^31 elements.
"""

import triton
import triton.language as tl


@triton.jit
def quantised(x, scale, LOW: tl.constexpr):
    """X / scale, rounded to the nearest integer, away from zero at ties, and kept within int8."""
    scaled = x / scale
    rounded = tl.where(scaled >= 0, tl.floor(scaled + 0.5), tl.ceil(scaled - 0.5))
    return tl.clamp(rounded, LOW, 127.0)


@triton.jit
def store_kernel(
    source_ptr, pool_ptr, scale_ptr, slots_ptr, token_stride, head_stride, block_stride, slot_stride, pool_head_stride, kv_heads,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Program (token, head) writes one row of a key or value tensor. MODE: plain, fp8 (divide by the pool's scale), int8 (choose the row's
    scale).
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    block = slot // BLOCK
    offset = slot % BLOCK
    lane = tl.arange(0, PADDED)
    row = tl.load(source_ptr + token * token_stride + head * head_stride + lane, mask=lane < HEAD, other=0.0)
    target = pool_ptr + block * block_stride + offset * slot_stride + head * pool_head_stride + lane
    if MODE == "fp8":
        row = row.to(tl.float32) / tl.load(scale_ptr)
    elif MODE == "int8":
        row = row.to(tl.float32)
        largest = tl.max(tl.abs(row), 0)
        scale = tl.where(largest > 0, largest / 127.0, 1.0)
        tl.store(scale_ptr + slot * kv_heads + head, scale)
        row = quantised(row, scale, -127.0)
    tl.store(target, row.to(pool_ptr.dtype.element_ty), mask=lane < HEAD)


@triton.jit
def attend_kernel(
    query_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, sink_ptr, out_ptr, table_ptr, row_seq_ptr, row_position_ptr, scale, cap,
    query_row_stride, query_head_stride, table_stride, block_stride, slot_stride, head_stride,
    value_block_stride, value_slot_stride, value_head_stride, kv_heads,
    RATIO: tl.constexpr, BLOCK: tl.constexpr, PADDED_BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    VALUE_HEAD: tl.constexpr, VALUE_PADDED: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, CAPPED: tl.constexpr,
    MODE: tl.constexpr,
):  # fmt: skip
    """Program (row, query head) attends from one query row to positions 0 (or the window's first) to its own. Position -1 gives zeros."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // RATIO
    seq = tl.load(row_seq_ptr + row).to(tl.int64)
    position = tl.load(row_position_ptr + row)
    lane, value_lane = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    within, value_within = lane < HEAD, value_lane < VALUE_HEAD
    query = tl.load(query_ptr + row * query_row_stride + head * query_head_stride + lane, mask=within, other=0.0).to(tl.float32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0)
    largest = float("-inf")
    total = 0.0
    if SINKS:
        # A sink is a score that was seen before all others and has no value.
        largest = tl.load(sink_ptr + head)
        total = 1.0
    acc = tl.zeros([VALUE_PADDED], tl.float32)
    offset = tl.arange(0, PADDED_BLOCK)
    for index in range(first // BLOCK, (position + BLOCK) // BLOCK):
        block = tl.load(table_ptr + seq * table_stride + index).to(tl.int64)
        at = index * BLOCK + offset
        seen = (at >= first) & (at <= position) & (offset < BLOCK)
        where = block * block_stride + kv_head * head_stride + offset[:, None] * slot_stride + lane[None, :]
        key = tl.load(key_ptr + where, mask=seen[:, None] & within[None, :], other=0.0).to(tl.float32)
        value_where = block * value_block_stride + kv_head * value_head_stride + offset[:, None] * value_slot_stride + value_lane[None, :]
        value = tl.load(value_ptr + value_where, mask=seen[:, None] & value_within[None, :], other=0.0).to(tl.float32)
        if MODE == "fp8":
            key = key * tl.load(key_scale_ptr)
            value = value * tl.load(value_scale_ptr)
        elif MODE == "int8":
            scale_at = (block * BLOCK + offset) * kv_heads + kv_head
            key = key * tl.load(key_scale_ptr + scale_at, mask=seen, other=0.0)[:, None]
            value = value * tl.load(value_scale_ptr + scale_at, mask=seen, other=0.0)[:, None]
        score = tl.sum(key * query[None, :], 1) * scale
        if CAPPED:
            score = cap * (2.0 * tl.sigmoid(2.0 * score / cap) - 1.0)  # cap * tanh(score / cap)
        score = tl.where(seen, score, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, 0))
        shrink = tl.exp(largest - new_largest)
        weight = tl.exp(score - new_largest)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * value, 0)
        largest = new_largest
    result = acc / tl.where(total > 0, total, 1.0)
    place = (row * tl.num_programs(1) + head) * VALUE_HEAD + value_lane
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=value_within)


@triton.jit
def copy_kernel(
    tensor_ptr,
    pairs_ptr,
    block_stride,
    outer_stride,
    inner_stride,
    LAST: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Program (pair, outer, inner) copies one row of a tensor of blocks."""
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(pairs_ptr + pair * 2)
    target = tl.load(pairs_ptr + pair * 2 + 1)
    lane = tl.arange(0, PADDED)
    row = tl.program_id(1) * outer_stride + tl.program_id(2) * inner_stride + lane
    values = tl.load(tensor_ptr + source * block_stride + row, mask=lane < LAST)
    tl.store(tensor_ptr + target * block_stride + row, values, mask=lane < LAST)
