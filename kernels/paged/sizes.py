"""Tile sizes, warps and pipeline stages: host arithmetic that depends on shapes and the device's kind alone, never on data, so that captured
graphs can use it. docs/compiled-kernels.md lists what the compiler makes of them.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

DEEP, FLAT = 5, 3
"""Pipeline stages on NVIDIA. Rows are found through the block table, and Triton's pipeliner shares the stages out between the load of the table and
those of the rows: with 5 of them one tile is on its way while another is computed, with fewer every copy is waited for at once
(docs/paged-loops.md). FLAT is for what has no registers left.
"""

SPLIT_TOKENS = 1024
"""Tokens of one split of a decode. The merge then moves less than two bytes for each hundred that the splits read (eight query heads of 128 for
each key head), and a batch of one at 8192 tokens still gives 64 programs with 8 key heads."""


APPEND_TOKENS = 8
"""A sequence with up to this many query tokens is split over its context: seven drafts and the token before them. Above that a prefill has rows enough
to fill its tiles."""

MLA_ROWS = 32
"""Query rows of a program over latents: at a latent of 512 their float32 outputs take 64 registers of each thread, and twice as many would spill."""

LATENT_APPEND_ROWS = 512
"""Query rows of a sequence over latents that are split over its context: four tokens of 128 heads, as DeepSeek's models verify their drafts. More of
them fill the device without it."""

APPEND_ROWS = 64
"""Query rows of an append at most, except those of a single token: their outputs stay in registers."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What of a device decides how kernels are launched: `backend` "cuda" or "hip"; whether kernels may use the type e4m3; whether matrix units
    read their operands from shared memory, which leaves registers free (NVIDIA's compute capabilities 9 and 10).
    """

    backend: str = "cuda"
    e4m3: bool = True
    shared_operands: bool = True


ELSEWHERE = Target()
"""What is no GPU: the IR machine, which has e4m3 and no limits, or what a process compiles for that has no GPU."""


@functools.cache
def target_of(device: torch.device) -> Target:
    """The target of a torch device.

    NVIDIA has e4m3 from compute capability 8.9 on; of AMD's kinds gfx950 has it, and gfx942 another one.
    """
    if device.type != "cuda":
        return ELSEWHERE
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return Target("hip", str(properties.gcnArchName).startswith("gfx95"), False)
    return Target("cuda", (properties.major, properties.minor) >= (8, 9), properties.major in (9, 10))


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


def decode_tiles(target: Target, ratio: int, head: int, compute: torch.dtype) -> Tiles:
    """Rows for the query heads of one key head; tiles of 16 KiB at most, so that several programs share a processor, and of half of that in float32,
    whose operands are in registers.
    """
    wide = padded(head) * compute.itemsize
    tile = max(16, min(128, (8 << 10 if compute == torch.float32 else 16 << 10) // wide))
    if compute == torch.float32:
        return Tiles(padded(ratio), tile, 8, DEEP) if target.backend == "cuda" else Tiles(padded(ratio), tile, 4, 2)
    warps = 4 if padded(ratio) <= 32 else 8
    return Tiles(padded(ratio), tile, warps, DEEP if target.backend == "cuda" else 3)


def append_tokens(ratio: int, most: int = APPEND_TOKENS) -> int:
    """The most query tokens of a sequence that is appended to, for `ratio` query heads of each key head."""
    return max(1, min(most, APPEND_ROWS // ratio))


def append_tiles(target: Target, ratio: int, tokens: int, head: int, compute: torch.dtype, *, quantised: bool) -> Tiles:
    """Those of a decode with as many rows as the tokens have query heads; smaller ones where registers would not hold them: wide heads, float32,
    and on AMD numbers on their way to the type of the queries, and many rows, which its shared memory would not hold.
    """
    found = decode_tiles(target, ratio * tokens, head, compute)
    if found.rows == 16:
        return found
    if compute == torch.float32:
        return _float_tiles(target, found.rows, quantised=quantised)
    if found.rows * padded(head) > 8 << 10:
        return dataclasses.replace(found, tile=16, stages=FLAT if target.backend == "cuda" else 1 if quantised else 2)
    if target.backend == "hip" and (quantised or found.rows > 32):
        return dataclasses.replace(found, tile=32, stages=2)
    return found


def _float_tiles(target: Target, rows: int, *, quantised: bool) -> Tiles:
    """Many rows of float32, which NVIDIA's matrix units do not take: every thread has the operands of its elements in registers, so there are more
    threads for more rows, and where quantised numbers become float32 there as well twice as many, and no second tile on its way.
    """
    if target.backend != "cuda":
        return Tiles(rows, 16, 4, 1 if quantised else 2)
    warps = min(16, max(8, rows // (4 if quantised else 8)))
    return Tiles(rows, 16, warps, 1 if quantised else FLAT)


def prefill_tiles(target: Target, ratio: int, head: int, compute: torch.dtype, *, quantised: bool) -> Tiles:
    """128 query rows and 64 keys, halved where registers would not hold them: operands and, of quantised pools, numbers on their way to the type of
    the queries. Four warps on AMD are as wide as eight on NVIDIA.
    """
    stages = 2 if target.backend == "hip" else DEEP
    if compute == torch.float32:
        return _float_tiles(target, max(32, padded(ratio)), quantised=quantised)
    if padded(head) > 128 and quantised:
        return Tiles(max(32, padded(ratio)), 16, 4, stages) if target.backend == "hip" else Tiles(max(32, padded(ratio)), 32, 8, stages)
    if padded(head) > 128:
        return Tiles(max(64, padded(ratio)), 32, 8, stages)
    if target.backend == "hip":
        return Tiles(max(128, padded(ratio)), 32, 4, stages)
    if not target.shared_operands:
        return Tiles(max(64 if quantised else 128, padded(ratio)), 32, 8, stages)
    return Tiles(max(128, padded(ratio)), 32 if quantised else 64, 8, stages)


def lowbit_stages(target: Target) -> int:
    """Pipeline stages of the low-bit attention, which finds its groups through the block table as well."""
    return DEEP if target.backend == "cuda" else 2


def latent_append_tokens(heads: int, most: int = APPEND_TOKENS) -> int:
    """The same over a latent, whose one row all heads share."""
    return max(1, min(most, LATENT_APPEND_ROWS // heads))


def mla_tiles(target: Target, rows: int, compute: torch.dtype, *, quantised: bool) -> Tiles:
    """Up to MLA_ROWS of the `rows` that there are, pairs of query token and head; fewer on AMD where numbers are on their way to another type. With
    MLA_ROWS of them there are no registers left to fetch quantised rows ahead.
    """
    if target.backend == "hip":
        return Tiles(16, 16, 4, 2) if compute == torch.float32 else Tiles(16 if quantised else min(padded(rows), MLA_ROWS), 32, 4, 2)
    if compute == torch.float32:
        return Tiles(16, 16, 8, FLAT)
    few = padded(rows) < MLA_ROWS
    return Tiles(min(padded(rows), MLA_ROWS), 32, 4 if few and not quantised else 8, FLAT if quantised and not few else DEEP)
