"""What the attention kernels share: where the tokens of a tile lie, how their rows are read, and one step of the online softmax.

A tile is a run of token positions, whatever the block size: each lane looks up its own entry of the block table, so that a tile of 64 tokens
reads four blocks of 16 or a quarter of a block of 256. Block ids and offsets become 64-bit before they are multiplied. Scores are in units of log2:
`exp2` is one instruction, and the factor log2(e) is folded into the scale.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def places(table_row, at, seen, BLOCK: tl.constexpr):
    """Blocks and offsets of the positions `at` of one sequence, both 64-bit; lanes not `seen` are block 0 and read no table entry.

    None of these numbers is negative. Where the compiler is told so, it divides by a shift and multiplies without the signs, which spares each row a
    dozen instructions.
    """
    at = at.to(tl.uint32)
    block = tl.load(table_row + (at // BLOCK).to(tl.int32), mask=seen, other=0)
    return block.to(tl.uint32).to(tl.int64), (at % BLOCK).to(tl.int64)


@triton.jit
def rows(pool, base, seen, HEAD: tl.constexpr, PADDED: tl.constexpr):
    """Rows of HEAD elements that begin at `base`, `[tile, PADDED]`; what is not `seen` is not read and gives zeros. Where a thread's elements lie in a row
    is added to the pool first, outside of any loop.
    """
    lane = tl.arange(0, PADDED)
    if HEAD == PADDED:
        mask = seen[:, None]
    else:
        mask = seen[:, None] & (lane < HEAD)[None, :]
    return tl.load((pool + lane)[None, :] + base[:, None], mask=mask, other=0.0)


@triton.jit
def token_scales(key_scale, value_scale, block, offset, kv_head, kv_heads, seen, BLOCK: tl.constexpr):
    """The scales of the keys and of the values of one head, of each slot: tables of scales are `[blocks, block_size, kv_heads]`."""
    scale_at = (block * BLOCK + offset) * kv_heads + kv_head
    return tl.load(key_scale + scale_at, mask=seen, other=0.0), tl.load(value_scale + scale_at, mask=seen, other=0.0)


@triton.jit
def widened(stored, DTYPE: tl.constexpr):
    """Stored elements as the type of the dots, exactly. uint8 holds the bits of e4m3 on devices that have no such type: its exponent and
    mantissa are moved into a float16, whose exponent is biased by 8 more.
    """
    if stored.dtype == tl.uint8:
        bits = stored.to(tl.uint16)
        half = (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True)
        whole = half.to(tl.float32) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), whole).to(DTYPE)
    else:
        return stored.to(DTYPE)


@triton.jit
def products(query, key, key_scale, SCALED: tl.constexpr):
    """Query `[rows, PADDED]` times key `[tile, PADDED]`, where SCALED times each token's scale: `[rows, tile]`."""
    product = tl.dot(query, tl.trans(key), input_precision="ieee")
    if SCALED:
        product *= key_scale[None, :]
    return product


@triton.jit
def scores(product, scale, soft_cap, CAPPED: tl.constexpr):
    """Scores in log2 units."""
    if CAPPED:
        return libdevice.tanh(product * (scale / soft_cap)) * (soft_cap * LOG2E)
    else:
        return product * (scale * LOG2E)


@triton.jit
def step(score, unit, value, value_scale, top, total, acc, SCALED: tl.constexpr):
    """One tile of the online softmax: the new largest score, sum of weights and weighted sum of values of each row.

    `score` times `unit` is in log2 units; `unit` is not negative, so that the largest score is found before it is multiplied.

    Scores of tokens that a row does not see are -inf; a row that has seen nothing keeps the largest score -inf. With a scale for each token
    the weights carry it, divided by the tile's largest, so that they stay at most 1 in half precision.
    """
    new_top = tl.maximum(top, tl.max(score, 1) * unit)
    origin = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2(top - origin)
    weight = tl.exp2(score * unit - origin[:, None])
    total = total * shrink + tl.sum(weight, 1)
    if SCALED:
        largest = tl.max(tl.abs(value_scale), 0)
        share = value_scale / tl.where(largest > 0.0, largest, 1.0)
        part = tl.dot((weight * share[None, :]).to(value.dtype), value, input_precision="ieee")
        acc = acc * shrink[:, None] + part * largest
    else:
        acc = tl.dot(weight.to(value.dtype), value, acc * shrink[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def finished(top, total, acc, sink, SINKS: tl.constexpr):
    """Weighted sums over the sum of weights; `sink` is a logit without a value, in log2 units. Rows that saw nothing give zeros."""
    if SINKS:
        new_top = tl.maximum(top, sink)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.exp2(sink - new_top)
        acc = acc * shrink[:, None]
    return acc / tl.where(total > 0.0, total, 1.0)[:, None]
