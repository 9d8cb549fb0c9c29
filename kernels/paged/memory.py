"""How blocks and slots lie in memory: host arithmetic that the copying kernels need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.kernels.contract import KVPool

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by width in bytes: what moves bits passes every type through unchanged, NaN included."""

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each quantised type, which a row's largest magnitude is stored as."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width."""
    return tensor.view(INTEGERS[tensor.element_size()])


def block_runs(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int, int]:
    """A block of up to three dimensions as outer x inner runs of contiguous elements: (outer stride, inner stride, inner, run), with
    neighbouring dimensions joined where their strides allow. The last stride must be 1 (or its size 1).
    """
    joined: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        elif not joined and stride != 1:
            joined += [(1, 1), (size, stride)]
        else:
            joined.append((size, stride))
    joined += [(1, 0)] * (3 - len(joined))
    (run, _), (inner, inner_stride), (_, outer_stride) = joined
    return outer_stride, inner_stride, inner, run


def layers_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Tensors of equal shape and strides at equal distances in one storage as one tensor `[layers, ...]`; None where they are not."""
    first = tensors[0]
    starts = [tensor.storage_offset() for tensor in tensors]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    alike = all(
        tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and tensor.shape == first.shape
        and tensor.stride() == first.stride()
        and tensor.dtype == first.dtype
        for tensor in tensors
    )
    if not alike or step < 0 or any(start != starts[0] + number * step for number, start in enumerate(starts)):
        return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), starts[0])


def slots_of(block_tables: torch.Tensor, seq_lens: torch.Tensor, block_size: int) -> torch.Tensor:
    """Slots of every position of every table row, flattened, int64; -1 behind the end of a sequence."""
    position = torch.arange(block_tables.shape[1] * block_size, device=block_tables.device)
    slots = block_tables.long()[:, position // block_size] * block_size + position % block_size
    return torch.where(position < seq_lens.view(-1, 1), slots, -1).flatten()


def by_slot(pool: KVPool) -> list[torch.Tensor]:
    """Everything that belongs to slots, each once: `[blocks, block_size, kv_heads, elements]`, a scale being one element. A latent is a part of its
    key, and has its scale.
    """
    parts = 1 if pool.latent_size else 2
    tensors = [pool.slot_view(tensor) for tensor in (pool.key, pool.value)[:parts]]
    return tensors + [scale.unsqueeze(-1) for scale in (pool.key_scale, pool.value_scale)[:parts] if scale is not None and scale.dim() > 1]
