"""Copy: whole blocks to other blocks, for all layers at once.

A block is read as runs of contiguous elements: where it lies in one piece, the run is the whole block. Program (pair, tile, layer) moves
TILE elements of the flattened block, which makes every access of a warp one stretch of memory. Bits are moved, never numbers: the host
passes tensors viewed as integers. Sources and destinations of one batch are distinct blocks (the law `copy-batch-sound`), so the order of
programs does not matter. A pair with a -1 in it is a padded lane of a captured graph and moves nothing.
"""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(
    blocks, pairs, layer_stride, block_stride, outer_stride, inner_stride,
    INNER: tl.constexpr, RUN: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A block has SIZE elements: `[SIZE / (INNER * RUN), INNER, RUN]`, the last contiguous."""
    pair, layer = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    source, target = tl.load(pairs + pair * 2), tl.load(pairs + pair * 2 + 1)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    moved = (at < SIZE) & (source >= 0) & (target >= 0)
    run = at // RUN
    where = layer * layer_stride + (run // INNER) * outer_stride + (run % INNER) * inner_stride + at % RUN
    bits = tl.load(blocks + source * block_stride + where, mask=moved)
    tl.store(blocks + target * block_stride + where, bits, mask=moved)
