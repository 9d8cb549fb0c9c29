"""Random keys, values and queries in place of a model's: each token's rows depend on all tokens before it, as they do in a deep model.

Also here: what attention over them must give, by the float64 reference of the kernels over the contiguous history, with its derived bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvproof.impl.engine.config import ModelConfig
from kvproof.kernels import reference
from kvproof.kernels.contract import KVPool
from kvproof.kernels.reference import Expected


@dataclass(frozen=True)
class Rows:
    """Key and value `[tokens, stored heads, size]` and query `[tokens, q_heads, size]`; of a latent, the value is a part of the key."""

    key: Tensor
    value: Tensor
    query: Tensor


def rows_of(config: ModelConfig, layer: int, tokens: Sequence[int], start: int, adapter: str = "") -> Rows:
    """The rows of `tokens` from position `start` on."""
    sizes = (config.stored_heads, config.q_heads, config.stored_size)
    known = tuple(tokens)
    rows = torch.stack([_row(layer, known[: position + 1], adapter, sizes) for position in range(start, len(known))])
    heads = config.stored_heads
    key, value, query = torch.split(rows, [heads, heads, config.q_heads], 1)
    return Rows(key, key[..., : config.latent] if config.latent else value, query)


@lru_cache(20_000)
def _row(layer: int, prefix: tuple[int, ...], adapter: str, sizes: tuple[int, int, int]) -> Tensor:
    stored_heads, q_heads, size = sizes
    generator = torch.Generator().manual_seed(zlib.crc32(repr((layer, prefix, adapter)).encode()))
    return torch.randn(2 * stored_heads + q_heads, size, generator=generator)


def expected(config: ModelConfig, rows: Rows, start: int, window: int | None) -> Expected:
    """Attention of the queries from `start` on, each over its own past: rows are those of the whole history. Raises nothing."""
    tokens = len(rows.key)
    pool = contiguous(config, rows)
    return reference.attend(
        pool,
        rows.query[start:],
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([tokens]),
        scale=config.scale,
        query_lens=torch.tensor([tokens - start]),
        window=window,
    )


def contiguous(config: ModelConfig, rows: Rows) -> KVPool:
    """One block with the whole history in it, stored as the engine stores it."""
    key, value = rows.key.unsqueeze(0), rows.value.unsqueeze(0)
    key_scale = value_scale = None
    if config.storage == "int8":
        (key, key_scale), (value, value_scale) = _int8(key), _int8(value)
    elif config.storage == "fp8":
        key, value = key.to(torch.float8_e4m3fn), value.to(torch.float8_e4m3fn)
        key_scale = value_scale = torch.ones(1)
    if config.latent:
        value, value_scale = key[..., : config.latent], key_scale
    return KVPool(key, value, key.shape[1], "NHD", key_scale, value_scale)


def _int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers, and the largest magnitude of each row over 127."""
    scale = rows.abs().amax(-1) / 127
    return (rows / scale.unsqueeze(-1)).round().to(torch.int8), scale
