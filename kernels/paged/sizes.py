"""Tile sizes, warps and pipeline stages: host arithmetic that depends on shapes alone, never on data, so that captured graphs can use it."""

from __future__ import annotations

import dataclasses

import torch

SPLIT_TOKENS = 1024
"""Tokens of one split of a decode. The merge then moves less than two bytes for each hundred that the splits read (eight query heads of 128 for
each key head), and a batch of one at 8192 tokens still gives 64 programs with 8 key heads."""


@dataclasses.dataclass(frozen=True)
class Tiles:
    """`rows` of queries and `tile` tokens of keys in one step; `warps` and pipeline `stages` of the program."""

    rows: int
    tile: int
    warps: int
    stages: int


def padded(size: int) -> int:
    """The power of two at or above `size`, at least the 16 that a tensor core takes."""
    return max(16, 1 << (size - 1).bit_length())


def decode_tiles(ratio: int, head: int, compute: torch.dtype) -> Tiles:
    """Rows for the query heads of one key head; tiles of 16 KiB at most, so that two programs with their stages share a processor."""
    wide = padded(head) * compute.itemsize
    tile = max(16, min(128, (16 << 10) // wide))
    return Tiles(padded(ratio), tile, 4 if padded(ratio) <= 32 else 8, 4 if wide <= 256 else 3)


def prefill_tiles(ratio: int, head: int, compute: torch.dtype) -> Tiles:
    """128 query rows and 64 to 128 keys, halved where registers or shared memory would not hold them."""
    if compute == torch.float32:
        return Tiles(max(32, padded(ratio)), 32 if padded(head) <= 128 else 16, 4, 2)
    if padded(head) > 128:
        return Tiles(max(64, padded(ratio)), 32, 8, 2)
    return Tiles(max(128, padded(ratio)), 64, 8, 3)
