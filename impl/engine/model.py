"""A decoder-only transformer with random weights. It computes rows, one for each token of a batch, and leaves keys and values to its caller.

    logits = model.forward(tokens, positions, attention)

`attention(layer, query, key, value)` stores the new keys and values of a layer and returns what each query makes of its sequence. A latent model
(MLA) hands out latents as keys, and its queries and outputs lie in the latent's space: the matrices that lead out of it are multiplied into
queries and outputs instead of into every stored token.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from kvproof.impl.engine.config import ModelConfig

Attention: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""layer, query `[rows, q_heads, size]`, key and value `[rows, stored heads, size]` -> `[rows, q_heads, size of a value]`."""

DIGITS = 4
"""A token is embedded by its last digits in base `vocabulary` and the rest: any integer is a token, and small ones never look alike."""


class Transformer:
    """`weights`: float32, by name; what `contiguous.py` reads too. They are the same on every device."""

    def __init__(self, config: ModelConfig, device: str | torch.device = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        self.weights = {name: weight.to(device) for name, weight in random_weights(config).items()}

    def embed(self, tokens: Sequence[int], adapter: str = "") -> Tensor:
        """`[tokens, hidden]`. Under another adapter a token is another one."""
        digits = torch.tensor([digits_of(token, self.config.vocabulary) for token in tokens], device=self.device)
        rows: Tensor = self.weights["embedding"][torch.arange(DIGITS, device=self.device), digits].sum(1)
        return rows + adapter_vector(adapter, self.config.hidden).to(self.device)

    def forward(self, embedded: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Logits `[rows, vocabulary]` of embedded tokens `[rows, hidden]` at their positions `[rows]`, counted in their own sequence."""
        config, weights, x = self.config, self.weights, embedded
        angles = turns(positions, config)
        for layer in range(config.layers):
            normed = normalised(x)
            attend = self._latent if config.latent else self._heads
            x = x + attend(layer, normed, angles, attention)
            x = x + torch.nn.functional.silu(normalised(x) @ weights[f"up{layer}"]) @ weights[f"down{layer}"]
        return normalised(x) @ weights["out"]

    def _heads(self, layer: int, x: Tensor, angles: Tensor, attention: Attention) -> Tensor:
        size = self.config.head_size
        query, key, value = (self._project(name, layer, x).reshape(len(x), -1, size) for name in ("query", "key", "value"))
        return self._project("merge", layer, attention(layer, turned(query, angles), turned(key, angles), value).flatten(1))

    def _latent(self, layer: int, x: Tensor, angles: Tensor, attention: Attention) -> Tensor:
        config = self.config
        query = self._project("query", layer, x).reshape(len(x), config.q_heads, -1)
        plain, turning = torch.split(query, [config.head_size, config.rotary], -1)
        latent, carrier = torch.split(self._project("latent", layer, x), [config.latent, config.rotary], -1)
        key = torch.cat([normalised(latent), turned(carrier.unsqueeze(1), angles).squeeze(1)], -1).unsqueeze(1)
        absorbed = torch.einsum("rhd,lhd->rhl", plain, self.weights[f"key_of_latent{layer}"])
        query = torch.cat([absorbed, turned(turning, angles)], -1)
        found = attention(layer, query, key, key[..., : config.latent])
        found = torch.einsum("rhl,lhd->rhd", found, self.weights[f"value_of_latent{layer}"])
        return self._project("merge", layer, found.flatten(1))

    def _project(self, name: str, layer: int, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}{layer}"]


def random_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Scaled so that rows keep their size and scores spread by about one: then every token that is read matters."""
    generator = torch.Generator().manual_seed(config.seed)
    hidden, heads, size = config.hidden, config.q_heads, config.head_size

    def matrix(rows: int, *columns: int) -> Tensor:
        return torch.randn(rows, *columns, generator=generator) / math.sqrt(rows)

    weights = {"embedding": torch.randn(DIGITS, config.vocabulary, hidden, generator=generator), "out": matrix(hidden, config.vocabulary)}
    weights["embedding"][1:, 0] = 0  # Leading zeros are the same for all small tokens, and would drown what tells them apart.
    for layer in range(config.layers):
        weights[f"query{layer}"] = matrix(hidden, heads * config.key_size)
        if config.latent:
            weights[f"latent{layer}"] = matrix(hidden, config.latent + config.rotary)
            weights[f"key_of_latent{layer}"] = matrix(config.latent, heads, size)
            weights[f"value_of_latent{layer}"] = matrix(config.latent, heads, size)
        else:
            weights[f"key{layer}"] = matrix(hidden, config.kv_heads * size)
            weights[f"value{layer}"] = matrix(hidden, config.kv_heads * size)
        weights[f"merge{layer}"] = matrix(heads * size, hidden)
        weights[f"up{layer}"] = matrix(hidden, 2 * hidden)
        weights[f"down{layer}"] = matrix(2 * hidden, hidden)
    return weights


def adapter_vector(name: str, hidden: int) -> Tensor:
    """What an adapter adds to every embedding, `[hidden]`; nothing for the empty name."""
    if not name:
        return torch.zeros(hidden)
    return torch.randn(hidden, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def digits_of(token: int, base: int) -> list[int]:
    """The last DIGITS digits of a token, the lowest first; what is above them is folded into the highest."""
    digits = []
    for _ in range(DIGITS - 1):
        token, digit = divmod(token, base)
        digits.append(digit)
    return [*digits, token % base]


def normalised(x: Tensor) -> Tensor:
    """Root mean square 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def turns(positions: Tensor, config: ModelConfig) -> Tensor:
    """Angles `[rows, pairs]` of rotary position embedding (Su et al., "RoFormer", 2021): position times base^(-2i/size)."""
    size = config.rotary if config.latent else config.head_size
    return positions[:, None] * config.rope_base ** (-torch.arange(0, size, 2, device=positions.device) / size)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """`[rows, heads, size]` with the pair (i, i + size/2) turned by angle i of its row."""
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
