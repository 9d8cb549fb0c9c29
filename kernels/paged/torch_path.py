"""The same kernels in plain torch, for devices that Triton does not run on and as a second opinion where it does.

One sequence at a time, float32 throughout: clear rather than fast. Lengths are read on the host, so it cannot be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof.kernels.contract import ALLOWANCES, FEATURES, KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.lowbit import LowBitPool, LowBitScheme
from kvproof.kernels.paged.lowbit_torch import LowBitTorch
from kvproof.kernels.paged.memory import LARGEST, by_slot, slots_of
from kvproof.kernels.paged.plan import PrefillPlan
from kvproof.kernels.paged.requests import check_attention, check_layout, check_move, check_pool, check_scatter, check_slots, check_store
from kvproof.kernels.paged.torch_attention import attention, copy_pairs


class PagedTorch(PagedKernels):
    """Takes what `PagedTriton` takes and returns the same within the bounds of the reference."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """As `PagedTriton`."""
        return KernelCapabilities(
            dtypes=("float32", "float16", "bfloat16"),
            head_sizes=(64, 80),
            gqa_ratios=(1, 4),
            block_sizes=(16, 1, 12),
            layouts=("NHD", "HND"),
            features=FEATURES - {*ALLOWANCES},
            max_pool_bytes=2**40,
            mla_sizes=((48, 24), (512, 64)),
            low_bits=(LowBitScheme(4, 16, 16, 20), LowBitScheme(2, 16, 32, 0, "float32")),
        )

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Indexed assignment; padded lanes are dropped first, since -1 would be the last block. A latent is written with its key."""
        check_store(pool, key, value, slots)
        real = slots >= 0
        block, offset = slots[real] // pool.block_size, slots[real] % pool.block_size
        parts = [(key, pool.key, pool.key_scale), (value, pool.value, pool.value_scale)]
        for source, tensor, scale in parts[: 2 if pool.latent_size is None else 1]:
            rows = source[real].float()
            if scale is not None:
                rows = rows / self._scale(scale, rows, tensor.dtype, block, offset)
                limit = LARGEST[tensor.dtype]
                rows = (rows.round() if tensor.dtype == torch.int8 else rows).clamp(-limit, limit)
            pool.slot_view(tensor)[block, offset] = rows.to(tensor.dtype)

    @staticmethod
    def _scale(scale: torch.Tensor, rows: torch.Tensor, kind: torch.dtype, block: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """The pool's scale, or one for each row and head, which is chosen and stored here."""
        if scale.dim() == 1:
            return scale
        largest = rows.abs().amax(-1)
        # By a tensor: on a GPU torch divides by a Python number as it multiplies by the reciprocal, whose last bit may be another.
        chosen = largest / torch.full_like(largest, LARGEST[kind])
        chosen = torch.where(chosen > 0, chosen, 1.0)
        scale[block, offset] = chosen
        return chosen.unsqueeze(-1)

    def attend(
        self,
        pool: KVPool,
        query: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        scale: float,
        query_lens: torch.Tensor | None = None,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        soft_cap: float | None = None,
        plan: PrefillPlan | None = None,  # noqa: ARG002 - a sequence at a time needs none
        max_tokens: int | None = None,  # noqa: ARG002 - a bound for those who do not read the lengths
        max_queries: int | None = None,  # noqa: ARG002 - the same
    ) -> torch.Tensor:
        """Each sequence's tokens gathered by its table, then softmax over what each query sees."""
        check_pool(pool)
        check_attention(pool, query, block_tables, seq_lens, query_lens, window, sinks, soft_cap)
        out = torch.zeros(*query.shape[:-1], pool.value.shape[-1], dtype=query.dtype, device=query.device)
        row = 0
        for seq, length in enumerate(seq_lens.tolist()):
            count = 1 if query_lens is None else int(query_lens[seq])
            if length and count:
                # Blocks behind the window may be somebody else's by now, and what is there, NaN times a weight of zero, would still be NaN.
                first = 0 if window is None else max(0, length - count - window + 1)
                slots = slots_of(block_tables[seq : seq + 1], seq_lens[seq : seq + 1], pool.block_size)[first:length]
                key, value = self._rows(pool, slots, key=True), self._rows(pool, slots, key=False)
                position = torch.arange(length - count - first, length - first, device=query.device)
                rows = query[row : row + count].float()
                out[row : row + count] = attention(rows, key, value, position, scale, window, sinks, soft_cap).to(out.dtype)
            row += count
        return out

    def prefill_plan(self, pool: KVPool, query: torch.Tensor, query_lens: torch.Tensor) -> None:
        """None: sequences are walked one at a time, so that layers have nothing to share."""

    @staticmethod
    def _rows(pool: KVPool, slots: torch.Tensor, *, key: bool) -> torch.Tensor:
        """Keys or values `[tokens, kv_heads, head_size]` float32, scales applied."""
        block, offset = slots // pool.block_size, slots % pool.block_size
        rows = pool.slot_view(pool.key if key else pool.value)[block, offset].float()
        scale = pool.key_scale if key else pool.value_scale
        if scale is None:
            return rows
        return rows * (scale if scale.dim() == 1 else scale[block, offset].unsqueeze(-1))

    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        """One layer; see `copy_layers`."""
        self.copy_layers([pool], pairs)

    def copy_layers(self, pools: Sequence[KVPool], pairs: torch.Tensor) -> None:
        """The same block pairs in the pools of all layers."""
        for pool in pools:
            check_layout(pool)
            for tensor in (pool.key, pool.value, pool.key_scale, pool.value_scale):
                if tensor is not None and tensor.dim() > 1:
                    copy_pairs(tensor, pairs)

    def gather(self, pool: KVPool, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """As `PagedTriton.gather`."""
        check_layout(pool)
        check_slots(slots)
        real = slots >= 0
        block, offset = slots[real] // pool.block_size, slots[real] % pool.block_size
        found = []
        for tensor in by_slot(pool):
            rows = torch.zeros(len(slots), *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device)
            rows[real] = tensor[block, offset]
            found.append(rows)
        return tuple(found)

    def scatter(self, pool: KVPool, rows: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
        """As `PagedTriton.scatter`."""
        check_layout(pool)
        check_scatter(rows, by_slot(pool), slots)
        real = slots >= 0
        block, offset = slots[real] // pool.block_size, slots[real] % pool.block_size
        for tensor, values in zip(by_slot(pool), rows, strict=True):
            tensor[block, offset] = values[real]

    def move(self, source: KVPool, target: KVPool, source_slots: torch.Tensor, target_slots: torch.Tensor) -> None:
        """As `PagedTriton.move`."""
        for pool in (source, target):
            check_layout(pool)
        check_move(by_slot(source), by_slot(target), source_slots, target_slots)
        both = (source_slots >= 0) & (target_slots >= 0)
        self.scatter(target, self.gather(source, source_slots[both]), target_slots[both])

    def store_low_bits(self, pool: LowBitPool, *arguments: torch.Tensor) -> torch.Tensor:
        """`LowBitTorch.store`."""
        return LowBitTorch().store(pool, *arguments)

    def attend_low_bits(self, pool: LowBitPool, *arguments: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401 - those of `attend`
        """`LowBitTorch.attend`."""
        return LowBitTorch().attend(pool, *arguments, **options)

    def copy_low_bits(self, pool: LowBitPool, pairs: torch.Tensor, rings: torch.Tensor) -> None:
        """`LowBitTorch.copy_blocks` and `copy_rings`."""
        LowBitTorch().copy_blocks(pool, pairs)
        LowBitTorch().copy_rings(pool, rings)

    @staticmethod
    def slots(block_tables: torch.Tensor, seq_lens: torch.Tensor, block_size: int) -> torch.Tensor:
        """As `PagedTriton.slots`."""
        return slots_of(block_tables, seq_lens, block_size)
