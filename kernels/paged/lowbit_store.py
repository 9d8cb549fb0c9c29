"""Store for the low-bit scheme: tokens wait in full precision and are quantised a group at a time, once, when they leave the recent window.

    position      0 ........ 31 | 32 ....... 63 | 64 ... T-1
                  group 0         group 1         recent: row of the sequence in the ring, at position % RING
    keys          one scale and zero for each channel of a group: [head], taken over its GROUP tokens
    values        one scale and zero for each token and CHANNELS of its channels
    stored        (x - zero) / scale, BITS each, 8 // BITS neighbours of a row in one byte, the first in the lowest bits

Two launches. `quantise_kernel`: program (group, key head, sequence) reads the GROUP tokens that leave the window, each from the ring or, where
the pass is longer than the window, from the new rows, and writes their bytes into their block. `recent_kernel`, after it: program (tile of the
ring, key head, sequence) finds for each place of the ring the newest token that belongs there.
"""

import triton
import triton.language as tl


@triton.jit
def packed(numbers, BITS: tl.constexpr):
    """Integers `[rows, n]` below 2^BITS as bytes `[rows, n * BITS / 8]`."""
    if BITS == 8:
        return numbers.to(tl.uint8)
    else:
        EACH: tl.constexpr = 8 // BITS
        parts = tl.reshape(numbers, [numbers.shape[0], numbers.shape[1] // EACH, EACH])
        return tl.sum(parts << (tl.arange(0, EACH) * BITS)[None, None, :], 2).to(tl.uint8)


@triton.jit
def levels(x, zero, scale, BITS: tl.constexpr):
    """The nearest of 2^BITS levels."""
    return tl.clamp(tl.floor(tl.div_rn(x - zero, scale) + 0.5), 0.0, (1 << BITS) - 1.0).to(tl.int32)


@triton.jit
def rounded_scale(low, high, stored, BITS: tl.constexpr):
    """Zero and scale as they are stored, so that levels are chosen with what will be read: (high - low) / (2^BITS - 1), 1 for a flat group."""
    zero = low.to(stored).to(tl.float32)
    scale = tl.div_rn(high - zero, (1 << BITS) - 1.0).to(stored).to(tl.float32)
    return zero, tl.where(scale > 0.0, scale, 1.0)


@triton.jit
def waiting(
    new,
    ring,
    at,
    before,
    new_row,
    new_stride,
    new_head,
    ring_row,
    ring_slot_stride,
    ring_head,
    RING: tl.constexpr,
    HEAD: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Rows `[GROUP, PADDED]` of the positions `at`: from the new rows where they are new, else from the ring."""
    lane = tl.arange(0, PADDED)
    inside = (lane < HEAD)[None, :]
    fresh = (at >= before)[:, None]
    from_new = tl.load(new + ((new_row + at - before) * new_stride + new_head)[:, None] + lane[None, :], mask=fresh & inside, other=0.0)
    from_ring = tl.load(
        ring + (ring_row + (at % RING) * ring_slot_stride + ring_head)[:, None] + lane[None, :],
        mask=(at < before)[:, None] & inside,
        other=0.0,
    )
    return tl.where(fresh, from_new, from_ring).to(tl.float32)


@triton.jit
def quantise_kernel(
    new_key, new_value, key, key_scale, key_zero, value, value_scale, value_zero, ring_key, ring_value,
    tables, ring_rows, before_lens, new_starts, quantised, quantised_after,
    new_key_stride, new_key_head_stride, new_value_stride, new_value_head_stride, table_stride,
    block_stride, slot_stride, head_stride, key_scale_block_stride, key_scale_group_stride, key_scale_head_stride,
    value_scale_block_stride, value_scale_slot_stride, value_scale_head_stride, ring_row_stride, ring_slot_stride, ring_head_stride,
    BITS: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    RING: tl.constexpr,
):  # fmt: skip
    """Keys and values share strides, and so do their scales and zeros, and the two rings."""
    head, seq = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first = tl.load(quantised + seq) + tl.program_id(0) * GROUP
    if first >= tl.load(quantised_after + seq):
        return
    at = first + tl.arange(0, GROUP)
    before = tl.load(before_lens + seq)
    new_row = tl.load(new_starts + seq).to(tl.int64)
    ring_row = tl.load(ring_rows + seq).to(tl.int64) * ring_row_stride
    block = tl.load(tables + seq * table_stride + first // BLOCK).to(tl.int64)
    offset = first % BLOCK + tl.arange(0, GROUP)
    lane = tl.arange(0, PADDED)
    EACH: tl.constexpr = 8 // BITS
    byte = tl.arange(0, PADDED // EACH)
    place = (block * block_stride + head * head_stride + offset * slot_stride)[:, None] + byte[None, :]
    inside = (byte < HEAD // EACH)[None, :]

    k = waiting(
        new_key,
        ring_key,
        at,
        before,
        new_row,
        new_key_stride,
        head * new_key_head_stride,
        ring_row,
        ring_slot_stride,
        head * ring_head_stride,
        RING,
        HEAD,
        PADDED,
    )
    zero, scale = rounded_scale(tl.min(k, 0), tl.max(k, 0), key_scale.dtype.element_ty, BITS)
    scale_at = block * key_scale_block_stride + (first % BLOCK // GROUP) * key_scale_group_stride + head * key_scale_head_stride + lane
    tl.store(key_scale + scale_at, scale.to(key_scale.dtype.element_ty), mask=lane < HEAD)
    tl.store(key_zero + scale_at, zero.to(key_zero.dtype.element_ty), mask=lane < HEAD)
    tl.store(key + place, packed(levels(k, zero[None, :], scale[None, :], BITS), BITS), mask=inside)

    v = waiting(
        new_value,
        ring_value,
        at,
        before,
        new_row,
        new_value_stride,
        head * new_value_head_stride,
        ring_row,
        ring_slot_stride,
        head * ring_head_stride,
        RING,
        HEAD,
        PADDED,
    )
    parts = tl.reshape(v, [GROUP, PADDED // CHANNELS, CHANNELS])
    zeros, scales = rounded_scale(tl.min(parts, 2), tl.max(parts, 2), value_scale.dtype.element_ty, BITS)
    part = tl.arange(0, PADDED // CHANNELS)
    scales_at = (block * value_scale_block_stride + head * value_scale_head_stride + offset * value_scale_slot_stride)[:, None] + part[
        None, :
    ]
    tl.store(value_scale + scales_at, scales.to(value_scale.dtype.element_ty), mask=(part < HEAD // CHANNELS)[None, :])
    tl.store(value_zero + scales_at, zeros.to(value_zero.dtype.element_ty), mask=(part < HEAD // CHANNELS)[None, :])
    numbers = tl.reshape(levels(parts, zeros[:, :, None], scales[:, :, None], BITS), [GROUP, PADDED])
    tl.store(value + place, packed(numbers, BITS), mask=inside)


@triton.jit
def recent_kernel(
    new_key, new_value, ring_key, ring_value, ring_rows, before_lens, after_lens, new_starts, quantised_after,
    new_key_stride, new_key_head_stride, new_value_stride, new_value_head_stride, ring_row_stride, ring_slot_stride, ring_head_stride,
    RING: tl.constexpr, TILE: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """New tokens that stay in full precision, to their places in the ring."""
    head, seq = tl.program_id(1), tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    before, after = tl.load(before_lens + seq), tl.load(after_lens + seq)
    first = tl.maximum(before, tl.load(quantised_after + seq))
    at = first + (place + RING - first % RING) % RING
    live = (place < RING) & (at < after)
    lane = tl.arange(0, PADDED)
    mask = live[:, None] & (lane < HEAD)[None, :]
    new_row = tl.load(new_starts + seq).to(tl.int64) + at - before
    ring_row = tl.load(ring_rows + seq).to(tl.int64) * ring_row_stride + head * ring_head_stride
    target = (ring_row + place * ring_slot_stride)[:, None] + lane[None, :]
    k = tl.load(new_key + (new_row * new_key_stride + head * new_key_head_stride)[:, None] + lane[None, :], mask=mask)
    tl.store(ring_key + target, k, mask=mask)
    v = tl.load(new_value + (new_row * new_value_stride + head * new_value_head_stride)[:, None] + lane[None, :], mask=mask)
    tl.store(ring_value + target, v, mask=mask)
