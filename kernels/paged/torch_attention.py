"""What the paths in plain torch share: copies of rows, and the attention of one sequence."""

from __future__ import annotations

import torch

from kvproof.kernels.paged.requests import check_pairs


def copy_pairs(tensor: torch.Tensor, pairs: torch.Tensor) -> None:
    """Rows of a tensor to other rows; a pair with a -1 in it is padding."""
    check_pairs(pairs)
    pairs = pairs[(pairs >= 0).all(1)]
    tensor[pairs[:, 1]] = tensor[pairs[:, 0]]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Queries `[rows, q_heads, head]` at `position` `[rows]` over keys and values `[tokens, kv_heads, head]`."""
    ratio, at = query.shape[1] // key.shape[1], torch.arange(len(key), device=key.device)
    score = torch.einsum("rhd,nhd->hrn", query, key.repeat_interleave(ratio, 1)) * scale
    if soft_cap is not None:
        score = soft_cap * torch.tanh(score / soft_cap)
    hidden = at > position.view(-1, 1)
    if window is not None:
        hidden |= at <= position.view(-1, 1) - window
    score = score.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        score = torch.cat([score, sinks.view(-1, 1, 1).expand(-1, len(query), 1)], -1)
    weight = score.softmax(-1)[..., : len(key)]
    return torch.einsum("hrn,nhd->rhd", weight, value.repeat_interleave(ratio, 1))
