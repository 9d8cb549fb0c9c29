"""What launches of attention share on the host: how a context is split, and what a kernel needs to know of a pool."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton

from kvproof.kernels.contract import KVPool
from kvproof.kernels.paged.append import append_merge_kernel
from kvproof.kernels.paged.merge import merge_kernel
from kvproof.kernels.paged.plan import PrefillPlan
from kvproof.kernels.paged.sizes import Tiles, padded


@dataclasses.dataclass(frozen=True)
class Parts:
    """A context in `splits` of `tokens` each. `partial` `[rows, splits, head_size]` and `stats` `[.., 2]`, float32, for each query row and head; of a
    single split of a decode nothing is kept.
    """

    tokens: int
    splits: int
    partial: torch.Tensor
    stats: torch.Tensor


def parts_of(split_tokens: int, longest: int, tiles: Tiles, rows: tuple[int, ...], out: torch.Tensor, *, always: bool = False) -> Parts:
    """How many splits `longest` tokens need, and where they leave their parts, unless a single one writes the output itself."""
    tokens = triton.cdiv(split_tokens, tiles.tile) * tiles.tile
    splits = max(1, triton.cdiv(longest, tokens))
    if splits == 1 and not always:
        return Parts(tokens, 1, out, out)
    partial = torch.empty(*rows, splits, out.shape[-1], dtype=torch.float32, device=out.device)
    return Parts(tokens, splits, partial, torch.empty(*rows, splits, 2, dtype=torch.float32, device=out.device))


def longest_walk(room: int, max_tokens: int | None, window: int = 0, tile: int = 1) -> int:
    """The most tokens that a row of a decode can walk, from the tile on that its window begins in."""
    longest = room if max_tokens is None else min(room, max_tokens)
    return min(longest, window + tile - 1) if window else longest


def merge(parts: Parts, tiles: Tiles, sinks: torch.Tensor, out: torch.Tensor, lens: torch.Tensor, **constants: Any) -> None:  # noqa: ANN401
    """Add up the splits of a decode; `constants` are WINDOW and SINKS."""
    seqs, heads, head = out.shape
    merge_kernel[(heads, seqs)](
        parts.partial, parts.stats, sinks, out, lens, parts.splits, HEAD=head, PADDED=padded(head), TILE=tiles.tile, SPLIT=parts.tokens,
        CHUNK=8, num_warps=2, **constants,
    )  # fmt: skip


def merge_append(
    parts: Parts, tiles: Tiles, sinks: torch.Tensor, out: torch.Tensor, lens: torch.Tensor, query_lens: torch.Tensor, plan: PrefillPlan,
    tokens: int, **constants: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """The same for an append of up to `tokens` query tokens to each sequence."""
    _, heads, head = out.shape
    append_merge_kernel[(heads, tokens, len(lens))](
        parts.partial, parts.stats, sinks, out, lens, query_lens, plan.query_starts, parts.splits, TOKENS=tokens, HEAD=head,
        PADDED=padded(head), TILE=tiles.tile, SPLIT=parts.tokens, CHUNK=8, num_warps=2, **constants,
    )  # fmt: skip


def zero_behind(query_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Rows behind the last query, which captured graphs pad with, as a prefill would have zeroed them."""
    behind = torch.arange(len(out), device=out.device) >= query_lens.sum()
    out.masked_fill_(behind.view(-1, 1, 1), 0.0)


def pointer(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """A pointer that the kernel does not follow still needs a tensor."""
    return other if tensor is None else tensor


def pool_strides(pool: KVPool, tensor: torch.Tensor) -> tuple[int, int, int]:
    """From block to block, from slot to slot, from head to head."""
    block, slot, head, _ = pool.slot_view(tensor).stride()
    return block, slot, head


def scale_kind(pool: KVPool) -> str:
    """What kernels call SCALES: "none", "pool" or "token"."""
    if pool.key_scale is None:
        return "none"
    return "pool" if pool.key_scale.dim() == 1 else "token"
