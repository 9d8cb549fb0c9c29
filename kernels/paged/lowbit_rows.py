"""What both paths of the low-bit scheme need: which query row sees how much, and which tensors lie in blocks."""

from __future__ import annotations

import torch

from kvproof.kernels.lowbit import LowBitPool


def query_rows(seq_lens: torch.Tensor, query_lens: torch.Tensor | None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of `count` query rows its sequence and how many tokens it sees, int32, on the device; rows behind the last query see none."""
    if query_lens is None:
        return torch.arange(count, dtype=torch.int32, device=seq_lens.device), seq_lens.to(torch.int32)
    ends = torch.cumsum(query_lens.long(), 0)
    row = torch.arange(count, device=seq_lens.device)
    seq = torch.searchsorted(ends, row, right=True)
    real = seq < len(seq_lens)
    seq = seq.clamp(max=len(seq_lens) - 1)
    visible = seq_lens[seq] - (ends[seq] - row) + 1
    return seq.to(torch.int32), torch.where(real, visible, 0).to(torch.int32)


def paged_tensors(pool: LowBitPool) -> list[torch.Tensor]:
    """Everything that lies in blocks."""
    return [pool.key, pool.value, pool.key_scale, pool.key_zero, pool.value_scale, pool.value_zero]
