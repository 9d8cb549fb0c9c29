"""Launches of the kernels that move bits: blocks to blocks, and token rows to token rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from kvproof.kernels.paged.copy import copy_kernel
from kvproof.kernels.paged.memory import INTEGERS, bits, block_runs, layers_view
from kvproof.kernels.paged.move import move_kernel
from kvproof.kernels.paged.requests import check_pairs
from kvproof.kernels.paged.sizes import padded


def copy_tensors(tensors: Sequence[torch.Tensor], pairs: torch.Tensor) -> None:
    """The same block pairs in several tensors `[blocks, ...]` of up to four dimensions: one launch where they lie at equal distances in one
    storage, otherwise one for each. A pair with a -1 in it is padding and copies nothing.
    """
    check_pairs(pairs)
    pairs = pairs.contiguous()  # the kernel knows no strides of theirs
    together = layers_view(tensors)
    for layers in [together] if together is not None else [tensor.unsqueeze(0) for tensor in tensors]:
        _copy(bits(layers), pairs)


def _copy(layers: torch.Tensor, pairs: torch.Tensor) -> None:
    if len(pairs) == 0:
        return
    outer_stride, inner_stride, inner, run = block_runs(layers.shape[2:], layers.stride()[2:])
    size = layers[0, 0].numel()
    tile = min(4096 // layers.element_size() * 2, padded(size))
    copy_kernel[(len(pairs), triton.cdiv(size, tile), layers.shape[0])](
        layers,
        pairs,
        layers.stride(0),
        layers.stride(1),
        outer_stride,
        inner_stride,
        INNER=inner,
        RUN=run,
        SIZE=size,
        TILE=tile,
        num_warps=4,
    )


def move_rows(source: torch.Tensor, target: torch.Tensor, source_slots: torch.Tensor, target_slots: torch.Tensor) -> None:
    """Both tensors `[blocks, block_size, heads, elements]`, of any strides but the last."""
    if len(source_slots) == 0:
        return
    heads, head = source.shape[2:]
    kind = INTEGERS[source.element_size()]
    tile = max(1, 2048 // padded(head))
    move_kernel[(triton.cdiv(len(source_slots), tile), heads)](
        source.view(kind), target.view(kind), source_slots, target_slots, len(source_slots), *source.stride()[:3], *target.stride()[:3],
        SOURCE_BLOCK=source.shape[1], TARGET_BLOCK=target.shape[1], HEAD=head, PADDED=padded(head), TILE=tile, num_warps=4,
    )  # fmt: skip
