"""Sequences in a low-bit pool, written pass after pass, with what was written to each beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kvproof.kernels import reference
from kvproof.kernels.contract import KVPool
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.paged.lowbit_torch import sequence_rows

KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

BLOCKS, HEADS, RINGS = 24, 2, 5


@dataclasses.dataclass
class Batch:
    """Sequences in one low-bit pool, with what was written to each kept contiguous beside it."""

    pool: LowBitPool
    tables: torch.Tensor
    rings: torch.Tensor
    lens: torch.Tensor
    quantised: torch.Tensor
    written: list[torch.Tensor]

    def extend(self, counts: list[int], kernels: Any, seed: int = 0) -> None:  # noqa: ANN401 - anything with `store`
        """Store `counts` new tokens for each sequence."""
        generator = torch.Generator().manual_seed(seed)
        head, dtype = self.pool.head_size, self.pool.ring_key.dtype
        rows = [torch.randn(count, 2, HEADS, head, generator=generator).to(dtype) * (1 + seed % 3) for count in counts]
        self.written = [torch.cat([old, new]) for old, new in zip(self.written, rows, strict=True)]
        new, after = torch.cat(rows), self.lens + torch.tensor(counts, dtype=torch.int32)
        self.quantised = kernels.store(self.pool, new[:, 0], new[:, 1], self.tables, self.rings, self.lens, after, self.quantised)
        self.lens = after

    def reads(self, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a sequence reads as: keys and values `[tokens, kv_heads, head_size]` float32."""
        return sequence_rows(self.pool, self.tables[seq], int(self.rings[seq]), int(self.lens[seq]), int(self.quantised[seq]))

    def bits(self) -> list[torch.Tensor]:
        """Every tensor of the pool as integers."""
        found = [getattr(self.pool, field.name) for field in dataclasses.fields(self.pool)]
        return [tensor.view(KINDS[tensor.element_size()]) for tensor in found if isinstance(tensor, torch.Tensor)]

    def expected(self, query: torch.Tensor, query_lens: torch.Tensor | None, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention in float64 over what the sequences read as, and the reference's bound for keys and values that are rounded once."""
        output, bound = torch.zeros(query.shape, dtype=torch.float64), torch.zeros(query.shape, dtype=torch.float64)
        row = 0
        for seq, length in enumerate(self.lens.tolist()):
            count = 1 if query_lens is None else int(query_lens[seq])
            if length and count:
                blocks = -(-length // 16)
                key, value = (_blocked(part, blocks) for part in self.reads(seq))
                pool = KVPool(key, value, 16, "NHD", torch.ones(1), torch.ones(1))
                table, lens, counts = torch.arange(blocks).unsqueeze(0), torch.tensor([length]), torch.tensor([count])
                found = reference.attend(pool, query[row : row + count], table, lens, scale=scale, query_lens=counts)
                output[row : row + count], bound[row : row + count] = found.output, found.bound
            row += count
        return output, bound


def _blocked(rows: torch.Tensor, blocks: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros(16 * blocks - len(rows), *rows.shape[1:])]).reshape(blocks, 16, *rows.shape[1:])


def batch(seqs: int, *, garbage: float = float("nan"), block_size: int = 32, head: int = 48, **options: Any) -> Batch:  # noqa: ANN401
    """An empty batch; what nobody owns is `garbage`. `options` are those of `LowBitPool.empty`."""
    sizes: dict[str, Any] = {"bits": 4, "group": 16, "channels": 16, "recent": 20, **options}
    pool = LowBitPool.empty(BLOCKS, block_size, HEADS, head, rings=RINGS, **sizes)
    for tensor in (pool.key_scale, pool.key_zero, pool.value_scale, pool.value_zero, pool.ring_key, pool.ring_value):
        tensor.fill_(garbage)
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seqs)).to(torch.int32)
    width, nothing = BLOCKS // seqs, torch.zeros(seqs, dtype=torch.int32)
    rings = torch.tensor([3, 0, 4, 1][:seqs], dtype=torch.int32)
    written = [torch.zeros(0, 2, HEADS, head, dtype=pool.ring_key.dtype) for _ in range(seqs)]
    return Batch(pool, order[: seqs * width].view(seqs, width), rings, nothing, nothing.clone(), written)
