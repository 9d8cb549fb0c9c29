"""Move: token rows between paged and contiguous memory, or between two pools of different layout, block size or heads.

Program (tile, head) moves the rows of TILE tokens for one head: it reads a source slot and a target slot for each token and copies HEAD
elements. A contiguous tensor `[tokens, heads, HEAD]` is a pool with blocks of one token, so that gather (export, swap out), scatter (import,
swap in), a change of layout and a change of shards are the same walk with other strides. A slot of -1 on either side moves nothing. Bits
are moved, never numbers; scales are rows of one element.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def move_kernel(
    source, target, source_slots, target_slots, tokens,
    source_block_stride, source_slot_stride, source_head_stride, target_block_stride, target_slot_stride, target_head_stride,
    SOURCE_BLOCK: tl.constexpr, TARGET_BLOCK: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Row `source_slots[i]` to row `target_slots[i]`, int64, for every head of the grid."""
    token = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    head = tl.program_id(1)
    origin = tl.load(source_slots + token, mask=token < tokens, other=-1)
    goal = tl.load(target_slots + token, mask=token < tokens, other=-1)
    lane = tl.arange(0, PADDED)
    mask = ((origin >= 0) & (goal >= 0))[:, None] & (lane < HEAD)[None, :]
    read = (origin // SOURCE_BLOCK) * source_block_stride + (origin % SOURCE_BLOCK) * source_slot_stride + head * source_head_stride
    write = (goal // TARGET_BLOCK) * target_block_stride + (goal % TARGET_BLOCK) * target_slot_stride + head * target_head_stride
    bits = tl.load(source + read[:, None] + lane[None, :], mask=mask)
    tl.store(target + write[:, None] + lane[None, :], bits, mask=mask)
