"""Merge: add up what the splits of a decode left.

Program (query head, sequence) reads the rows of that sequence's own splits, CHUNK at a time, in order. Their number follows from the
sequence's length alone, so neither a wider table nor a longer neighbour changes the order of additions.

    stats    [sequence, query head, split, 2]        largest score (log2 units), sum of weights
    partial  [sequence, query head, split, HEAD]     weighted values, float32
"""

import triton
import triton.language as tl

from kvproof.kernels.paged.tiles import LOG2E, finished


@triton.jit
def merged(partial, stats, sinks, first, count, head, HEAD: tl.constexpr, PADDED: tl.constexpr, SINKS: tl.constexpr, CHUNK: tl.constexpr):
    """Attention `[1, PADDED]` of one row: `count` splits from `first` on, in order, and the sink of its query head."""
    chunk, element = tl.arange(0, CHUNK), tl.arange(0, PADDED)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, PADDED], tl.float32)
    for begin in range(0, count, CHUNK):
        mine = begin + chunk < count
        part = first + begin + chunk
        tops = tl.load(stats + part * 2, mask=mine, other=float("-inf"))
        sums = tl.load(stats + part * 2 + 1, mask=mine, other=0.0)
        values = tl.load(partial + part[:, None] * HEAD + element[None, :], mask=mine[:, None] & (element < HEAD)[None, :], other=0.0)
        new_top = tl.maximum(top, tl.max(tops, 0))
        origin = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink, share = tl.exp2(top - origin), tl.exp2(tops - origin)
        total = total * shrink + tl.sum(share * sums, 0)
        acc = acc * shrink[:, None] + tl.sum(share[:, None] * values, 0)[None, :]
        top = new_top
    sink = top
    if SINKS:
        sink = tl.load(sinks + head + tl.zeros([1], tl.int32)) * LOG2E
    return finished(top, total, acc, sink, SINKS)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    partial, stats, sinks, out, lens, splits,
    HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """TILE, SPLIT and WINDOW are the decode's. Sequences of length 0 have no split and give zeros."""
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(lens + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    count = tl.cdiv(length - first // TILE * TILE, SPLIT)
    row, element = seq * tl.num_programs(0) + head, tl.arange(0, PADDED)
    result = merged(partial, stats, sinks, row * splits, count, head, HEAD, PADDED, SINKS, CHUNK)
    result = tl.where(length > 0, result, 0.0)
    tl.store(out + row * HEAD + element[None, :], result.to(out.dtype.element_ty), mask=(element < HEAD)[None, :])
