"""SGLang's Triton kernels behind the contract: reshape-and-cache, decode attention, extend attention.

    kvproof check kernels-sglang

The wrappers are SGLang's own, called as its Triton backend calls them. Release 0.5.23 can be loaded. SGLang addresses tokens by slot:
the backend turns block tables into one list of slots for the batch, and pools are contiguous. It drops what its kernels leave in rows of
padded requests, so the adapter returns zeros there. A window is two lists of slots and a mask; it is not claimed here.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch

from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.foreign.sources import Engine, Given

WHEEL: Final = "sglang==0.5.23"

MAX_SPLITS: Final = 8
"""Parts that decode splits a sequence into at most, SGLang's default."""

TOKENS_PER_SPLIT: Final = 64
"""SGLang splits by the load of the device; here by the sequence alone, so that splits of every number are seen in short sequences."""


class Environment:
    """Switches of SGLang's that only other devices look at."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the switch is
        raise AttributeError(f"SGLang's switch {name} was asked for, which kvproof does not know")


GIVEN: Final[Given] = {
    "sglang.srt.environ": {"envs": Environment()},
    "sglang.srt.utils": {
        "get_device_core_count": lambda *_: 0,
        "is_cuda": lambda: False,
        "is_hip": lambda: False,
        "is_gfx95_supported": lambda: False,
        "is_gfx1250_supported": lambda: False,
    },
}


class Kernels(NamedTuple):
    """The modules that hold the kernels."""

    store: ModuleType
    decode: ModuleType
    extend: ModuleType


@functools.cache
def kernels() -> Kernels:
    """Those of the release at hand. Raises MissingEngineError."""
    attention = "sglang.kernels.ops.attention"
    names = ["sglang.kernels.ops.kvcache.cache_ops", f"{attention}.decode_attention", f"{attention}.extend_attention"]
    return Kernels(*Engine("sglang", WHEEL).load([f"{attention}.score_mod", *names], GIVEN)[1:])


def _flat(pool: KVPool, tensor: torch.Tensor) -> torch.Tensor:
    """Keys or values as SGLang's pools are: `[slots, kv_heads, head_size]`. A view, since the pool is contiguous."""
    return tensor.view(pool.blocks * pool.block_size, *tensor.shape[2:]) if tensor.is_contiguous() else tensor.flatten(0, 1)


def _slot_list(pool: KVPool, block_tables: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `counts` tokens of each sequence as one list of slots, and where each sequence begins in it."""
    size, lists = pool.block_size, []
    for table, count in zip(block_tables, counts.tolist(), strict=True):
        at = torch.arange(count)
        lists.append(table[at // size].long() * size + at % size)
    return torch.cat(lists), torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


class Sglang(PagedKernels):
    """Decode by two stages, prefill by prefix from the pool and new tokens from their tensors."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Plain heads multiply queries and keys in the input type, so scores are narrow."""
        kernels()  # so that a missing engine is told before anything is asked of it
        return KernelCapabilities(
            dtypes=("bfloat16", "float16"),
            head_sizes=(64, 80, 128),
            gqa_ratios=(1, 4, 16),
            block_sizes=(1, 16, 48),
            features=frozenset({"decode", "prefill", "sinks", "soft-cap", "mla", "narrow-accumulation", "contiguous-pools"}),
        )

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """`launch_reshape_and_cache_flash`. MLA pools are written by torch, as SGLang does without a kernel for the type."""
        if pool.latent_size is not None:
            pool.slot_view(pool.key)[slots[slots >= 0] // pool.block_size, slots[slots >= 0] % pool.block_size] = key[slots >= 0]
            return
        kernels().store.launch_reshape_and_cache_flash(key, value, pool.key, pool.value, slots)

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
    ) -> torch.Tensor:
        """`decode_attention_fwd` or `extend_attention_fwd`."""
        assert window is None, "windows are not claimed"
        options = {"logit_cap": soft_cap or 0.0, "sinks": sinks, "page_size": pool.block_size}
        if query_lens is None:
            out = self._decode(pool, query, block_tables, seq_lens, scale, options)
            out[seq_lens == 0] = 0
            return out
        return self._extend(pool, query, block_tables, seq_lens, query_lens, scale, options)

    def _decode(
        self, pool: KVPool, query: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, scale: float, options: dict[str, Any]
    ) -> torch.Tensor:
        rows, heads, size = query.shape[0], query.shape[1], pool.value.shape[-1]
        indices, starts = _slot_list(pool, block_tables, seq_lens)
        out = query.new_empty(rows, heads, size)
        kernels().decode.decode_attention_fwd(
            query,
            _flat(pool, pool.key),
            _flat(pool, pool.value),
            out,
            starts,
            indices,
            torch.empty(rows, heads, MAX_SPLITS, size),
            torch.empty(rows, heads, MAX_SPLITS),
            (1 + seq_lens // TOKENS_PER_SPLIT).clamp(max=MAX_SPLITS).to(torch.int32),
            MAX_SPLITS,
            scale,
            1.0,
            1.0,
            has_mla=pool.latent_size is not None,
            **options,
        )
        return out

    def _extend(
        self,
        pool: KVPool,
        query: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        query_lens: torch.Tensor,
        scale: float,
        options: dict[str, Any],
    ) -> torch.Tensor:
        prefix, starts = _slot_list(pool, block_tables, seq_lens - query_lens)
        key, value = (_flat(pool, tensor) for tensor in (pool.key, pool.value))
        everything, _ = _slot_list(pool, block_tables, seq_lens)
        ends = seq_lens.cumsum(0).tolist()
        new = torch.cat([everything[end - count : end] for end, count in zip(ends, query_lens.tolist(), strict=True)])
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        kernels().extend.extend_attention_fwd(
            query,
            key[new],
            value[new],
            out,
            key,
            value,
            torch.nn.functional.pad(query_lens.cumsum(0), (1, 0)).to(torch.int32),
            starts,
            prefix,
            None,
            True,
            None,
            int(query_lens.max()),
            1.0,
            1.0,
            sm_scale=scale,
            **options,
        )
        return out
