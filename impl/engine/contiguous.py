"""The same model over one whole sequence, in float64: no blocks, no batch, no steps, no kernels. What an engine's logits are judged by.

    expected = Contiguous(model).logits(tokens)        # [tokens, vocabulary], row i from tokens 0 to i

It reads the model's weights and shares none of its code. Keys and values are rounded as the storage promises to round them, so that quantised
engines are held to the same tolerance as others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from kvproof.impl.engine.config import Storage
from kvproof.impl.engine.model import DIGITS, Transformer, adapter_vector

TOLERANCE = 1e-4
"""How far a logit may be off, where logits spread by about 1. Errors in float32 stay below 2e-6 (`python benchmarks/engine.py`); a slot of another
sequence moves logits by some tenths.
"""

DOUBT = 1e-5
"""How close a stored number may lie to the middle between two levels, relative to the largest of its row, for float32 and float64 to round it to
different ones: five times the errors in float32.
"""

SWAY = 2.5
"""How far a logit may be off then, in steps between two levels, each relative to the largest number of its row: 1/127 in int8, up to 1/8 in fp8.
Rounding one number otherwise moves the rows of all later layers, which are rounded as well; together they moved logits by 1.1 steps at most.
"""

E4M3_LARGEST = 448.0
"""The largest finite number of float8 e4m3."""

REMEMBERED = 512
"""How many sequences' logits are kept: a served sequence is asked for after each of its passes."""


class Contiguous:
    """The oracle of one model."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self._weights = {name: weight.double().cpu() for name, weight in model.weights.items()}
        self._remembered: dict[tuple[str, tuple[int, ...]], tuple[Tensor, float]] = {}
        self._doubt = 0.0
        """The largest step between the levels of a number that float32 may have rounded otherwise, relative to the largest of its row."""

    def logits(self, tokens: tuple[int, ...], adapter: str = "") -> Tensor:
        """`[tokens, vocabulary]` float64."""
        return self._of(tokens, adapter)[0]

    def tolerance(self, tokens: tuple[int, ...], adapter: str = "") -> float:
        """The largest lawful difference of one of these logits."""
        return self._of(tokens, adapter)[1]

    def _of(self, tokens: tuple[int, ...], adapter: str) -> tuple[Tensor, float]:
        found = self._remembered.get((adapter, tokens))
        if found is None:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._doubt = 0.0
            logits = self._compute(tokens, adapter)
            found = self._remembered[adapter, tokens] = logits, TOLERANCE + SWAY * self._doubt
        return found

    def _compute(self, tokens: tuple[int, ...], adapter: str) -> Tensor:
        config, weights = self.config, self._weights
        ids = torch.tensor(tokens)
        x = adapter_vector(adapter, config.hidden).double().repeat(len(tokens), 1)
        for digit in range(DIGITS):
            x += weights["embedding"][digit][ids % config.vocabulary]
            ids = ids // config.vocabulary
        for layer in range(config.layers):
            normed = rms_norm(x, x.shape[-1:], eps=1e-6)
            key, value = self._latent(layer, normed) if config.latent else self._heads(layer, normed)
            x = x + self._attend(layer, normed, key, value) @ weights[f"merge{layer}"]
            x = x + silu(rms_norm(x, x.shape[-1:], eps=1e-6) @ weights[f"up{layer}"]) @ weights[f"down{layer}"]
        return rms_norm(x, x.shape[-1:], eps=1e-6) @ weights["out"]

    def _heads(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[q_heads, tokens, size]`, as the query heads share them."""
        config = self.config
        shared = config.q_heads // config.kv_heads
        key, value = ((x @ self._weights[f"{name}{layer}"]).reshape(len(x), config.kv_heads, -1) for name in ("key", "value"))
        key, value = self._stored(rotated(key, config.rope_base)), self._stored(value)
        return key.repeat_interleave(shared, 1).transpose(0, 1), value.repeat_interleave(shared, 1).transpose(0, 1)

    def _stored(self, rows: Tensor) -> Tensor:
        """What rows `[tokens, heads, size]` read as after they were stored."""
        if self.config.storage == "plain":
            return rows
        largest = rows.abs().amax(-1, keepdim=True)
        scale = largest / 127 if self.config.storage == "int8" else torch.ones_like(largest)
        low, middle, high = (levels((rows + shift * largest) / scale, self.config.storage) * scale for shift in (-DOUBT, 0, DOUBT))
        self._doubt = max(self._doubt, float(((high - low) / largest).max()))
        return middle

    def _latent(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same for MLA: every head's keys and values are computed from the latent, as the model was defined."""
        config, weights = self.config, self._weights
        row = x @ weights[f"latent{layer}"]
        latent = rms_norm(row[:, : config.latent], (config.latent,), eps=1e-6)
        carrier = rotated(row[:, None, config.latent :], config.rope_base)
        stored = self._stored(torch.cat([latent[:, None], carrier], -1))
        latent, carrier = stored[:, 0, : config.latent], stored[..., config.latent :].expand(-1, config.q_heads, -1)
        plain = torch.einsum("tl,lhd->thd", latent, weights[f"key_of_latent{layer}"])
        value = torch.einsum("tl,lhd->htd", latent, weights[f"value_of_latent{layer}"])
        return torch.cat([plain, carrier], -1).transpose(0, 1), value

    def _attend(self, layer: int, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        config = self.config
        query = (x @ self._weights[f"query{layer}"]).reshape(len(x), config.q_heads, -1)
        size = config.rotary if config.latent else config.head_size
        query = torch.cat([query[..., :-size], rotated(query[..., -size:], config.rope_base)], -1).transpose(0, 1)
        score = query @ key.transpose(1, 2) / math.sqrt(key.shape[-1])
        position = torch.arange(len(x))
        distance = position[:, None] - position[None, :]
        window = config.windows[layer % len(config.windows)]
        hidden = (distance < 0) | (distance >= (window or len(x) + 1))
        return (score.masked_fill(hidden, -torch.inf).softmax(-1) @ value).transpose(0, 1).flatten(1)


def rotated(x: Tensor, base: float) -> Tensor:
    """Rotary position embedding of `[tokens, heads, size]` from position 0 on: pairs as complex numbers, times e^(i angle)."""
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(len(x), dtype=torch.float64), base ** (-torch.arange(half, dtype=torch.float64) / half))
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([pairs.real, pairs.imag], -1)


def levels(numbers: Tensor, storage: Storage) -> Tensor:
    """The nearest numbers that the type of the storage has."""
    if storage == "int8":
        return torch.round(numbers)
    return numbers.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).double()
