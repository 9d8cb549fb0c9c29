"""Store: new keys and values to their slots.

Program (tile, key head) takes TILE tokens: it reads their slots, then their rows of HEAD elements, keys first and values after them, and
writes each row to `block * block_stride + offset * slot_stride + head * head_stride`. A slot of -1 is a padded lane: nothing is read or
written for it. With a scale for each slot and head, the scale is chosen here: the row's largest magnitude over the largest stored number.
Divisions are rounded correctly, so that every device, and torch, stores the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def narrowed(row, LIMIT: tl.constexpr, DTYPE: tl.constexpr):
    """A float32 tile as the stored type: integers by rounding, e4m3 to nearest even and saturated, as bits where the device has no e4m3."""
    row = tl.clamp(row, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if DTYPE == tl.int8:
        return tl.floor(row + 0.5).to(tl.int8)
    elif DTYPE == tl.uint8:
        return e4m3_bits(row)
    else:
        return row.to(DTYPE)


@triton.jit
def e4m3_bits(row):
    """Bits of e4m3: four exponent bits biased by 7, three of mantissa; below 2^-6 multiples of 2^-9, which adding 2^23 rounds to even."""
    bits = row.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = (size.to(tl.float32, bitcast=True) * 512.0 + 8388608.0) - 8388608.0
    found = tl.where(size >= 0x3C800000, normal, small.to(tl.uint32))
    found = tl.where(size > 0x7F800000, 0x7F, found)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def store_rows(
    source, pool, scales, slot, live, row, head, kv_heads, token_stride, head_stride, block_stride, slot_stride, pool_head_stride,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, SCALES: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Rows of one head of keys or of values, and their scales."""
    lane = tl.arange(0, PADDED)
    mask = live[:, None] & (lane < HEAD)[None, :]
    values = tl.load(source + (row * token_stride + head * head_stride)[:, None] + lane[None, :], mask=mask, other=0.0)
    if SCALES == "pool":
        values = narrowed(tl.div_rn(values.to(tl.float32), tl.load(scales)), LIMIT, pool.dtype.element_ty)
    elif SCALES == "token":
        values = values.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(values), 1), LIMIT)
        scale = tl.where(scale > 0.0, scale, 1.0)  # of zeros, and of what is so small that its scale vanishes
        tl.store(scales + slot * kv_heads + head, scale, mask=live)
        values = narrowed(tl.div_rn(values, scale[:, None]), LIMIT, pool.dtype.element_ty)
    where = (slot // BLOCK) * block_stride + (slot % BLOCK) * slot_stride + head * pool_head_stride
    tl.store(pool + where[:, None] + lane[None, :], values, mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def store_kernel(
    key, value, key_pool, value_pool, key_scale, value_scale, slots, tokens,
    key_stride, key_head_stride, value_stride, value_head_stride,
    key_block_stride, key_slot_stride, key_pool_head_stride, value_block_stride, value_slot_stride, value_pool_head_stride,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    SCALES: tl.constexpr, LIMIT: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """SCALES: "none", "pool" or "token". LIMIT: the largest stored number. VALUES: false where values are a part of the keys."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    head, kv_heads = tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row, mask=row < tokens, other=-1)
    live = slot >= 0
    store_rows(
        key, key_pool, key_scale, slot, live, row, head, kv_heads, key_stride, key_head_stride,
        key_block_stride, key_slot_stride, key_pool_head_stride, BLOCK, HEAD, PADDED, SCALES, LIMIT,
    )  # fmt: skip
    if VALUES:
        store_rows(
            value, value_pool, value_scale, slot, live, row, head, kv_heads, value_stride, value_head_stride,
            value_block_stride, value_slot_stride, value_pool_head_stride, BLOCK, HEAD, PADDED, SCALES, LIMIT,
        )  # fmt: skip
