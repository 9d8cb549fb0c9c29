"""Launches of the MLA kernels: decode, append and prefill over a pool of latents.

`PagedTriton` asks here for every pool whose values are a part of its keys. Grids depend on shapes and on what the host knows alone, as everywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton

from kvproof.kernels.contract import KVPool
from kvproof.kernels.paged.mla import mla_kernel, mla_prefill_kernel
from kvproof.kernels.paged.parts import Parts, merge, merge_append, parts_of, pointer, pool_strides, scale_kind, zero_behind
from kvproof.kernels.paged.plan import PrefillPlan
from kvproof.kernels.paged.sizes import DEEP, Tiles, padded


@dataclasses.dataclass(frozen=True)
class LatentCall:
    """Attention of `query` `[rows, heads, latent + rope]` over a pool of latents, to `out` `[rows, heads, latent]`. `stored`: the pool's tensor as
    kernels take it. `longest`: no sequence has more tokens, whatever room its table has.
    """

    pool: KVPool
    stored: torch.Tensor
    query: torch.Tensor
    tables: torch.Tensor
    lens: torch.Tensor
    out: torch.Tensor
    scale: float
    split_tokens: int
    longest: int

    def decode(self, tiles: Tiles) -> None:
        """One query token for each sequence."""
        parts = self._split(tiles, 1, self.lens, self.lens)
        if parts.splits > 1:
            merge(parts, tiles, self.out, self.out, self.lens, WINDOW=0, SINKS=False)

    def append_and_prefill(self, tiles: Tiles, query_lens: torch.Tensor, plan: PrefillPlan, max_queries: int | None) -> None:
        """Each sequence by its own number of query tokens. With a bound on them that spares the prefill, rows behind the last query are zeroed
        here.
        """
        most = len(self.query) if max_queries is None else max_queries
        if plan.short:
            # Not by the number of rows: every few of them would be compiled for themselves.
            self.append(tiles, query_lens, plan, plan.short if max_queries is None else most)
        if most > plan.short:
            self.prefill(tiles, query_lens, plan)
        else:
            zero_behind(query_lens, self.out)

    def append(self, tiles: Tiles, query_lens: torch.Tensor, plan: PrefillPlan, most: int) -> None:
        """The sequences with up to `plan.short` query tokens, the others being left alone. None of those has more than `most`, so that scratch
        memory need not hold more.
        """
        tokens = max(1, min(plan.short, most))
        parts = self._split(tiles, tokens, query_lens, plan.query_starts, append=True)
        merge_append(parts, tiles, self.out, self.out, self.lens, query_lens, plan, tokens, WINDOW=0, SINKS=False)

    def prefill(self, tiles: Tiles, query_lens: torch.Tensor, plan: PrefillPlan) -> None:
        """The sequences with more query tokens, by the plan's tiles, and zeros behind the last query."""
        heads = self.query.shape[1]
        each = min(heads, tiles.rows)
        mla_prefill_kernel[(len(plan.tile_seq) * triton.cdiv(heads, each),)](
            self.query, self.stored, pointer(self.pool.key_scale, self.stored), self.out, self.tables, self.lens, query_lens, plan.query_starts,
            plan.tile_seq, plan.tile_first, len(self.query), self.scale, *self._strides, TOKENS=plan.tokens, EACH=each, **self._constants(tiles),
        )  # fmt: skip

    def _split(self, tiles: Tiles, tokens: int, query_lens: torch.Tensor, starts: torch.Tensor, *, append: bool = False) -> Parts:
        seqs, heads = len(self.lens), self.query.shape[1]
        rows = (seqs, tokens, heads) if append else (seqs, heads)
        parts = parts_of(self.split_tokens, self.longest, tiles, rows, self.out, always=append)
        mla_kernel[(triton.cdiv(tokens * heads, tiles.rows), parts.splits, seqs)](
            self.query, self.stored, pointer(self.pool.key_scale, self.stored), self.out, parts.partial, parts.stats, self.tables, self.lens,
            query_lens, starts, self.scale, *self._strides, TOKENS=tokens, SPLIT=parts.tokens, APPEND=append,
            SINGLE=parts.splits == 1 and not append, **self._constants(tiles),
        )  # fmt: skip
        return parts

    @property
    def _strides(self) -> tuple[int, ...]:
        return self.query.stride(0), self.query.stride(1), self.tables.stride(0), *pool_strides(self.pool, self.stored)[:2]

    def _constants(self, tiles: Tiles) -> dict[str, Any]:
        latent = self.out.shape[2]
        rope = self.query.shape[2] - latent
        return {
            "HEADS": self.query.shape[1],
            "ROWS": tiles.rows,
            "BLOCK": self.pool.block_size,
            "LATENT": latent,
            "PADDED": padded(latent),
            "ROPE": rope,
            "PADDED_ROPE": padded(rope),
            "TILE": tiles.tile,
            "SCALES": scale_kind(self.pool),
            "STAGED": tiles.stages == DEEP and self.stored.dtype != self.query.dtype,
            "STAGES": tiles.stages,
            "num_warps": tiles.warps,
        }
