"""Keys and values of all layers in blocks, on the device and on the host tier: every tensor that a block id points into.

The groups of layers share the memory: layer i of each group lies in the same tensor, since a block serves one group at a time. So a copy of a
block is a copy in all tensors, whichever group it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kvproof.impl.engine.batch import Batch
from kvproof.impl.engine.config import ModelConfig
from kvproof.kernels.contract import LAYOUTS, KVPool
from kvproof.kernels.paged.plan import PrefillPlan

DTYPES = {"plain": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Kernels(Protocol):
    """What a store needs of paged kernels; `PagedTriton` and `PagedTorch` have it."""

    def store(self, pool: KVPool, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """New rows to their slots."""

    def attend(
        self,
        pool: KVPool,
        query: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        *,
        scale: float,
        query_lens: Tensor | None = None,
        window: int | None = None,
        plan: PrefillPlan | None = None,
        max_tokens: int | None = None,
        max_queries: int | None = None,
    ) -> Tensor:
        """Attention of each query over its sequence. `plan`: what `prefill_plan` returned for these query lengths. No sequence has more than `max_tokens`, nor more than `max_queries` of them new: kernels
        size their launches by what the host knows, since reading lengths would wait for the device.
        """

    def prefill_plan(self, pool: KVPool, query: Tensor, query_lens: Tensor) -> PrefillPlan | None:
        """What the attention of several layers shares; None where there is nothing to share."""

    def copy_layers(self, pools: Sequence[KVPool], pairs: Tensor) -> None:
        """The same blocks in all layers."""

    def move(self, source: KVPool, target: KVPool, source_slots: Tensor, target_slots: Tensor) -> None:
        """Rows from one pool to another."""


@dataclass
class Store:
    """`pools`: one for each layer of a group; `host`: the same on the slower tier. `windows`: those of the groups."""

    kernels: Kernels
    pools: list[KVPool]
    host: list[KVPool]
    windows: tuple[int | None, ...]
    scale: float
    _planned: tuple[Batch, PrefillPlan | None] | None = field(default=None, init=False, repr=False)
    """The batch that was last attended to, and its plan."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        kernels: Kernels,
        *,
        num_blocks: int,
        host_blocks: int,
        block_size: int,
        layout: str = "NHD",
        device: str | torch.device = "cpu",
    ) -> Store:
        """Room for that many blocks. Nothing is cleared: what was never written reads as NaN.

        The host tier of this small engine lies on the device too, where the kernels that move blocks can reach it.
        """
        layers = config.layers // len(config.windows)
        pools = [empty_pool(config, num_blocks, block_size, layout, device) for _ in range(layers)]
        host = [empty_pool(config, max(1, host_blocks), block_size, "NHD", device) for _ in range(layers)]
        return cls(kernels, pools, host, config.windows, config.scale)

    def write(self, layer: int, key: Tensor, value: Tensor, batch: Batch) -> None:
        """Keys and values `[rows, heads, size]` of the batch's new tokens."""
        group, pool = self._of(layer)
        self.kernels.store(pool, key, value, batch.groups[group].slots)

    def attend(self, layer: int, query: Tensor, batch: Batch) -> Tensor:
        """Query `[rows, q_heads, size]` over each row's own sequence, up to and with its own position."""
        group, pool = self._of(layer)
        tables, window = batch.groups[group].tables, self.windows[group]
        return self.kernels.attend(
            pool,
            query,
            tables,
            batch.seq_lens,
            scale=self.scale,
            query_lens=None if batch.decodes else batch.query_lens,
            window=window,
            plan=None if batch.decodes else self._plan(query, batch),
            max_tokens=batch.longest,
            max_queries=batch.most_queries,
        )

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """(group, source, destination) blocks, with everything that belongs to them."""
        if copies:
            self.kernels.copy_layers(self.pools, torch.tensor([pair[1:] for pair in copies], device=self.pools[0].key.device))

    def swap_out(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """(group, device block, host block): to the host."""
        for pool, host in zip(self.pools, self.host, strict=True):
            self.kernels.move(pool, host, _slots(blocks, 1, pool), _slots(blocks, 2, pool))

    def swap_in(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """(group, device block, host block): back to the device."""
        for pool, host in zip(self.pools, self.host, strict=True):
            self.kernels.move(host, pool, _slots(blocks, 2, pool), _slots(blocks, 1, pool))

    def _plan(self, query: Tensor, batch: Batch) -> PrefillPlan | None:
        """Made in the first layer of a step: it depends on the query lengths, and on sizes that all layers have in common."""
        if self._planned is None or self._planned[0] is not batch:
            self._planned = batch, self.kernels.prefill_plan(self.pools[0], query, batch.query_lens)
        return self._planned[1]

    def _of(self, layer: int) -> tuple[int, KVPool]:
        index, group = divmod(layer, len(self.windows))
        return group, self.pools[index]


def empty_pool(config: ModelConfig, blocks: int, block_size: int, layout: str, device: str | torch.device) -> KVPool:
    """One layer's pool, full of NaN: in the numbers themselves or, for integers, which have none, in their scales. Raises ValueError for a layout
    that there is not.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"a layout of {layout!r}; choose one of {', '.join(LAYOUTS)}")
    heads, size = config.stored_heads, config.stored_size
    shape = (blocks, block_size, heads, size) if layout == "NHD" else (blocks, heads, block_size, size)
    key, value = (torch.full(shape, float("nan"), device=device).to(DTYPES[config.storage]) for _ in range(2))
    key_scale = value_scale = torch.ones(1, device=device) if config.storage == "fp8" else None
    if config.storage == "int8":
        key_scale, value_scale = (torch.full((blocks, block_size, heads), float("nan"), device=device) for _ in range(2))
    if config.latent:
        return KVPool(key, key[..., : config.latent], block_size, layout, key_scale, key_scale)
    return KVPool(key, value, block_size, layout, key_scale, value_scale)


def _slots(blocks: Sequence[tuple[int, int, int]], side: int, pool: KVPool) -> Tensor:
    """Every slot of the blocks on that side of (group, device, host)."""
    first = torch.tensor([block[side] for block in blocks], dtype=torch.int64) * pool.block_size
    return (first[:, None] + torch.arange(pool.block_size)).flatten().to(pool.key.device)
