"""The launches that are compiled for devices that are not here: every kernel at the shapes of models in use, and every feature once.

A case makes its calls through the public classes on small CPU tensors; only shapes, strides and types matter, since nothing runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import torch

from kvproof.kernels.contract import KVPool
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.kernels.paged.sizes import Target

Shape: TypeAlias = Callable[[Target], None]
"""Makes the calls of one case for a kind of device."""

SEQS, WIDTH, BLOCKS = 4, 512, 8


@dataclasses.dataclass(frozen=True)
class Model:
    """Shapes of one layer. `kind`: torch name of query, key and value; `stored`: of the pool, where it is another; `scales`: "pool", "token"."""

    kind: str = "bfloat16"
    kv_heads: int = 8
    ratio: int = 4
    head: int = 128
    block: int = 16
    stored: str = ""
    scales: str = ""

    def pool(self) -> KVPool:
        """An empty pool."""
        dtype = getattr(torch, self.stored or self.kind)
        shape = (BLOCKS, self.block, self.kv_heads, self.head)
        scales = {"": None, "pool": torch.ones(1), "token": torch.ones(shape[:3])}[self.scales]
        return KVPool(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), self.block, "NHD", scales, scales)

    def rows(self, heads: int) -> torch.Tensor:
        """Query, key or value rows, one for each sequence."""
        return torch.zeros(SEQS, heads, self.head, dtype=getattr(torch, self.kind))


LENS = torch.ones(SEQS, dtype=torch.int32)
TABLES = torch.zeros(SEQS, WIDTH, dtype=torch.int32)
SLOTS = torch.zeros(SEQS, dtype=torch.int64)
PAIRS = torch.zeros(2, 2, dtype=torch.int64)


def attend(model: Model, *, prefill: bool, window: int | None = None, sinks: bool = False, soft_cap: float | None = None) -> Shape:
    """A decode wide enough to be split, or a prefill."""

    def make(target: Target) -> None:
        heads = model.kv_heads * model.ratio
        PagedTriton(target).attend(
            model.pool(), model.rows(heads), TABLES, LENS, scale=0.1, query_lens=LENS if prefill else None, window=window,
            sinks=torch.zeros(heads) if sinks else None, soft_cap=soft_cap,
        )  # fmt: skip

    return make


def store(model: Model) -> Shape:
    """A store of one token for each sequence."""
    return lambda target: PagedTriton(target).store(model.pool(), model.rows(model.kv_heads), model.rows(model.kv_heads), SLOTS)


def moves(model: Model) -> Shape:
    """Copies, gather and scatter."""

    def make(target: Target) -> None:
        pool, kernels = model.pool(), PagedTriton(target)
        kernels.copy_blocks(pool, PAIRS)
        kernels.scatter(pool, kernels.gather(pool, SLOTS), SLOTS)

    return make


def latent(heads: int, kind: str = "bfloat16", stored: str = "", scales: str = "", *, prefill: bool = False) -> Shape:
    """Store and decode over a latent of 512 + 64, or append and prefill."""

    def make(target: Target) -> None:
        dtype = getattr(torch, kind)
        key, kernels = torch.zeros(BLOCKS, 64, 1, 576, dtype=getattr(torch, stored or kind)), PagedTriton(target)
        scale = {"": None, "pool": torch.ones(1), "token": torch.ones(BLOCKS, 64, 1)}[scales]
        pool = KVPool(key, key[..., :512], 64, "NHD", scale, scale)
        if prefill:
            kernels.attend(pool, torch.zeros(4 * WIDTH, heads, 576, dtype=dtype), TABLES, LENS, scale=0.1, query_lens=LENS)
            return
        rows = torch.zeros(SEQS, 1, 576, dtype=dtype)
        kernels.store(pool, rows, rows[..., :512], SLOTS)
        kernels.attend(pool, torch.zeros(SEQS, heads, 576, dtype=dtype), TABLES, LENS, scale=0.1)

    return make


def low_bits(bits: int, head: int = 128, layout: str = "NHD", window: int | None = None, soft_cap: float | None = None) -> Shape:
    """Store and attention of the low-bit scheme; with a window sinks as well."""

    def make(target: Target) -> None:
        pool = LowBitPool.empty(BLOCKS, 32, 8, head, rings=SEQS, bits=bits, layout=layout, dtype=torch.bfloat16)
        rows, none, kernels = (
            torch.zeros(SEQS, 8, head, dtype=torch.bfloat16),
            torch.zeros(SEQS, dtype=torch.int32),
            LowBitTriton(target=target),
        )
        done = kernels.store(pool, rows, rows, TABLES, none, none, LENS, none)
        kernels.attend(
            pool, torch.zeros(SEQS, 32, head, dtype=torch.bfloat16), TABLES, none, LENS, done, scale=0.1, window=window,
            soft_cap=soft_cap, sinks=torch.zeros(32) if window else None,
        )  # fmt: skip

    return make


LLAMA = Model()
FP8 = dataclasses.replace(LLAMA, stored="float8_e4m3fn", scales="token")
INT8 = dataclasses.replace(LLAMA, stored="int8", scales="token")
FLOAT = dataclasses.replace(LLAMA, kind="float32")
FLOAT_INT8 = dataclasses.replace(INT8, kind="float32")

CASES: dict[str, Shape] = {
    "decode bf16 128 gqa 4": attend(LLAMA, prefill=False),
    "decode fp16 64 mha": attend(Model("float16", 32, 1, 64), prefill=False),
    "decode bf16 80 gqa 7": attend(Model("bfloat16", 4, 7, 80), prefill=False),
    "decode bf16 256 mqa 16": attend(Model("bfloat16", 1, 16, 256), prefill=False),
    "decode fp32 128": attend(FLOAT, prefill=False),
    "decode fp32 window sinks cap": attend(FLOAT, prefill=False, window=4096, sinks=True, soft_cap=50.0),
    "decode fp32 int8": attend(FLOAT_INT8, prefill=False),
    "decode window sinks cap": attend(LLAMA, prefill=False, window=4096, sinks=True, soft_cap=50.0),
    "decode fp8 one scale": attend(dataclasses.replace(FP8, scales="pool"), prefill=False),
    "decode fp8 token scales": attend(FP8, prefill=False),
    "decode int8": attend(INT8, prefill=False),
    "decode mla 128 heads": latent(128),
    "decode mla 16 heads": latent(16),
    "decode mla fp32": latent(16, "float32"),
    "decode mla fp8 token scales": latent(128, stored="float8_e4m3fn", scales="token"),
    "decode mla fp8 one scale": latent(16, stored="float8_e4m3fn", scales="pool"),
    "decode mla int8": latent(16, stored="int8", scales="token"),
    "decode low bits 4": low_bits(4),
    "decode low bits 2": low_bits(2, 64),
    "decode low bits window sinks cap": low_bits(4, 128, "HND", 4096, 50.0),
    "prefill bf16 128 gqa 4": attend(LLAMA, prefill=True),
    "prefill fp16 64 mha": attend(Model("float16", 32, 1, 64), prefill=True),
    "prefill bf16 80 gqa 7": attend(Model("bfloat16", 4, 7, 80), prefill=True),
    "prefill bf16 256 mqa 16": attend(Model("bfloat16", 1, 16, 256), prefill=True),
    "prefill fp32 128": attend(FLOAT, prefill=True),
    "prefill fp32 window sinks cap": attend(FLOAT, prefill=True, window=4096, sinks=True, soft_cap=50.0),
    "prefill fp32 gqa 8 window cap": attend(dataclasses.replace(FLOAT, ratio=8), prefill=True, window=4096, soft_cap=50.0),
    "prefill fp32 int8": attend(FLOAT_INT8, prefill=True),
    "prefill window sinks cap": attend(LLAMA, prefill=True, window=4096, sinks=True, soft_cap=50.0),
    "prefill fp8 token scales": attend(FP8, prefill=True),
    "prefill int8": attend(INT8, prefill=True),
    "prefill int8 256 mqa 16": attend(Model("bfloat16", 1, 16, 256, stored="int8", scales="token"), prefill=True),
    "prefill mla 128 heads": latent(128, prefill=True),
    "prefill mla 16 heads": latent(16, prefill=True),
    "prefill mla fp32": latent(16, "float32", prefill=True),
    "prefill mla fp8 token scales": latent(128, stored="float8_e4m3fn", scales="token", prefill=True),
    "prefill mla int8": latent(16, stored="int8", scales="token", prefill=True),
    "store bf16": store(LLAMA),
    "store fp8 one scale": store(dataclasses.replace(FP8, scales="pool")),
    "store fp8 token scales": store(FP8),
    "store int8": store(INT8),
    "copy gather scatter": moves(INT8),
}
"""Cases by name. Words of a name choose cases on the command line."""
