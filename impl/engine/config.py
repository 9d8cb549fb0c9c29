"""What kind of transformer: sizes, attention heads or latents, windows, and how keys and values are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Storage: TypeAlias = Literal["plain", "int8", "fp8"]
"""How keys and values lie in the blocks: in the type of the model, or quantised with a scale for each slot and head, or one for the pool. A latent and
its rotary part are one row with one scale.
"""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements, but `layers`, `q_heads` and `kv_heads`.

    `kv_heads` equal to `q_heads` is MHA, 1 is MQA, anything between GQA. `latent`, where not 0, is MLA: keys and values are computed from one
    latent of that size, `rotary` more elements of the key carry the position, and `head_size` is the part of a key that does not.
    `windows`: one entry for each group of layers, None for full attention; layer i belongs to group i % len(windows).
    """

    vocabulary: int = 64
    hidden: int = 32
    layers: int = 2
    q_heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    latent: int = 0
    rotary: int = 8
    windows: tuple[int | None, ...] = (None,)
    rope_base: float = 10_000.0
    storage: Storage = "plain"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError where the sizes do not fit each other."""
        sizes = (self.vocabulary, self.hidden, self.layers, self.q_heads, self.kv_heads, self.head_size, len(self.windows))
        if min(sizes) < 1 or self.latent < 0 or (self.latent and self.rotary < 1):
            raise ValueError(f"sizes are 1 at least, `latent` is 0 for none, and there is one entry in `windows` at least; got {self}")
        if self.storage not in get_args(Storage):
            raise ValueError(f"a storage of {self.storage!r}; choose one of {', '.join(get_args(Storage))}")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads cannot share {self.kv_heads} key heads evenly; make one a multiple of the other")
        if self.layers % len(self.windows):
            raise ValueError(
                f"{self.layers} layers do not fall into {len(self.windows)} equal groups; groups share the memory of their blocks"
            )
        if (self.rotary if self.latent else self.head_size) % 2:
            raise ValueError("rotary position embedding turns pairs of elements; give it an even number")
        if self.latent and self.windows != (None,):
            raise ValueError("the latent kernels take no windows, which no model with latents has; use full attention")

    @property
    def key_size(self) -> int:
        """Elements of what one head scores: for a latent, of its part that carries no position and the rotary one together."""
        return self.head_size + self.rotary if self.latent else self.head_size

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.key_size**-0.5)

    @property
    def stored_heads(self) -> int:
        """Heads of a stored key."""
        return 1 if self.latent else self.kv_heads

    @property
    def stored_size(self) -> int:
        """Elements of a stored key and head."""
        return self.latent + self.rotary if self.latent else self.head_size
