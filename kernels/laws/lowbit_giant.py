"""Low-bit pools of the largest declared size: see `giant`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kvproof.kernels import lowbit_reference
from kvproof.kernels.laws.calls import Call
from kvproof.kernels.laws.lowbit_judges import bound_fault, copy_fault, counts_fault, recent_fault
from kvproof.kernels.laws.lowbit_scenes import LowBitScene
from kvproof.kernels.lowbit import PAGED, RINGS
from kvproof.kernels.machine.memory import sparse_tensor

RING_BYTES = 2**36
"""Rings are as many as sequences, not as blocks: this is a million of a typical size, and 32-bit offsets wrap in it."""


def spread(tensor: torch.Tensor, at: torch.Tensor, rows: int) -> torch.Tensor:
    """The rows of a tensor at the places `at` of one with `rows` rows, which takes memory only where it is touched."""
    giant = sparse_tensor((rows, *tensor.shape[1:]), tensor.dtype)
    for place, row in zip(at.tolist(), tensor, strict=True):
        giant[place].copy_(row)
    return giant


def move_low_bits(scene: LowBitScene, ids: list[int], blocks: int) -> LowBitScene:
    """The scene with its blocks at the given places of a pool of `blocks` blocks, and its rings at both ends of many."""
    at, pool = torch.tensor(ids), scene.pool
    held = pool.ring_key.shape[0]
    rings = max(held, min(RING_BYTES // (pool.ring_key[0].numel() * pool.ring_key.element_size()), 2**31 - 1))
    places = torch.arange(held)
    places[::2] = rings - 1 - places[::2]
    tensors: dict[str, Any] = {name: spread(getattr(pool, name), at, blocks) for name in PAGED}
    tensors |= {name: spread(getattr(pool, name), places, rings) for name in RINGS}
    return dataclasses.replace(
        scene,
        pool=dataclasses.replace(pool, **tensors),
        tables=at[scene.tables.long()].to(torch.int32),
        rings=places[scene.rings.long()].to(torch.int32),
        pairs=at[scene.pairs],
        ring_pairs=places[scene.ring_pairs],
    )


def judge_low_bits(small: LowBitScene, giant: LowBitScene, found: Call, *, narrow: bool) -> str | None:
    """What the small pool says of an attention, and the scheme's own bounds of a store."""
    if small.case.operation == "copy":
        return copy_fault(giant, giant)
    if small.case.operation == "store":
        return counts_fault(giant, found.returned) or recent_fault(giant, found.returned) or bound_fault(giant, found.returned)
    assert found.output is not None
    expected = lowbit_reference.attend(
        small.pool, small.query, small.tables, small.rings, small.seq_lens, small.quantised, **small.options, tf32=found.tf32, narrow=narrow
    )
    bad = ~((found.output.double() - expected.output).abs() <= expected.bound)
    if bad.any():
        return f"the attention of sequence {int(bad.flatten(1).any(1).nonzero()[0])} is another one than in a small pool"
    return None
