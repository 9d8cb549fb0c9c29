"""The low-bit scheme of the contract: what a `LowBitPool` holds, and which schemes kernels claim (`LowBitScheme`).

    pool = LowBitPool.empty(blocks, block_size, kv_heads, head_size, rings=64, bits=4)
    kernels = LowBitTriton()                                       # kvproof.kernels.paged.lowbit
    quantised = kernels.store(pool, key, value, tables, rings, before, after, quantised)     # all [seqs] int32
    out = kernels.attend(pool, query, tables, rings, seq_lens, quantised, scale=scale)

KIVI's scheme (Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024), paged: keys are quantised per channel over
groups of tokens, values per token over groups of channels, and at least the last `recent` tokens of a sequence stay in full precision, in a ring
of its own. A group is quantised once and never again. Beside its blocks a sequence holds a ring, and `quantised`, how many of its tokens have
left it: a copy of a sequence copies blocks and ring and takes the count along; a truncation below the count must be refused, since the tokens
are no longer there in full precision.

Importing this module needs no torch: a class of kernels can be described where it cannot run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGED = ("key", "value", "key_scale", "key_zero", "value_scale", "value_zero")
"""The tensors of a pool that lie in blocks."""

RINGS = ("ring_key", "ring_value")
"""Those that lie in rings."""


@dataclasses.dataclass(frozen=True)
class LowBitScheme:
    """`bits` of a stored number; `group` tokens that share a scale and a zero for each channel of the keys; `channels` of a value that share one
    for each token; at least the last `recent` tokens stay in full precision. `scale_dtype`: torch name of the type of scales and zeros.
    """

    bits: int = 4
    group: int = 32
    channels: int = 32
    recent: int = 128
    scale_dtype: str = "float16"

    def fits(self, block_size: int, head_size: int) -> bool:
        """Whether blocks are whole groups, and heads whole groups of channels and whole bytes."""
        return block_size % self.group == 0 and head_size % self.channels == 0 and head_size % (8 // self.bits) == 0


@dataclasses.dataclass(frozen=True)
class LowBitPool:
    """In layout "NHD": bytes `key`, `value` `[blocks, block_size, kv_heads, head_size * bits / 8]`; `key_scale`, `key_zero` `[blocks, block_size /
    group, kv_heads, head_size]`; `value_scale`, `value_zero` `[blocks, block_size, kv_heads, head_size / channels]`; `ring_key`, `ring_value`
    `[rings, recent + group, kv_heads, head_size]`, where position p of a sequence is at p % (recent + group). In "HND" the second and the third
    dimension of each of them change places. What is stored times its scale, plus its zero, is the value; several numbers share a byte, the first
    in its lowest bits.

    Keys and values have the same strides, and so have scales and zeros of one kind, and the two rings.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor
    key_zero: torch.Tensor
    value_scale: torch.Tensor
    value_zero: torch.Tensor
    ring_key: torch.Tensor
    ring_value: torch.Tensor
    bits: int
    group: int
    channels: int
    recent: int
    layout: str = "NHD"

    @classmethod
    def empty(
        cls,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_size: int,
        *,
        rings: int,
        bits: int = 4,
        group: int = 32,
        channels: int = 32,
        recent: int = 128,
        layout: str = "NHD",
        dtype: torch.dtype | None = None,
        scale_dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
    ) -> LowBitPool:
        """A zeroed pool. `dtype` is that of keys, values and queries; both types are float16 by default. Raises ValueError where the sizes do
        not fit each other.
        """
        import torch

        _check(block_size, head_size, bits, group, channels)
        kind, scale_kind = dtype or torch.float16, scale_dtype or torch.float16

        def zeros(rows: int, slots: int, elements: int, of: torch.dtype) -> torch.Tensor:
            shape = (rows, slots, kv_heads, elements) if layout == "NHD" else (rows, kv_heads, slots, elements)
            return torch.zeros(shape, dtype=of, device=device)

        key, value = (zeros(blocks, block_size, head_size * bits // 8, torch.uint8) for _ in range(2))
        key_scale, key_zero = (zeros(blocks, block_size // group, head_size, scale_kind) for _ in range(2))
        value_scale, value_zero = (zeros(blocks, block_size, head_size // channels, scale_kind) for _ in range(2))
        ring_key, ring_value = (zeros(rings, recent + group, head_size, kind) for _ in range(2))
        return cls(
            key, value, key_scale, key_zero, value_scale, value_zero, ring_key, ring_value, bits, group, channels, recent, layout
        )  # fmt: skip

    def slot_view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Any tensor of the pool as in layout "NHD", without copying."""
        return tensor if self.layout == "NHD" else tensor.transpose(1, 2)

    @property
    def blocks(self) -> int:
        """Physical blocks in the pool."""
        return int(self.key.shape[0])

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.slot_view(self.key).shape[1])

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return int(self.slot_view(self.key).shape[2])

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        return int(self.ring_key.shape[3])

    @property
    def ring(self) -> int:
        """Places of one ring."""
        return int(self.slot_view(self.ring_key).shape[1])

    def quantised_after(self, quantised: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """How many tokens of sequences of `seq_lens` have left the ring, `[seqs]` int32: whole groups, never fewer than before."""
        left = (seq_lens - self.recent).div(self.group, rounding_mode="floor") * self.group
        return quantised.maximum(left).int()


def _check(block_size: int, head_size: int, bits: int, group: int, channels: int) -> None:
    if bits not in (2, 4, 8):
        raise ValueError(f"the low-bit scheme stores 2, 4 or 8 bits, got {bits}")
    if group < 16 or group & (group - 1) or block_size % group:
        raise ValueError(
            f"a group has a power of two of tokens, at least 16, and blocks are whole groups; got groups of {group}, blocks of {block_size}"
        )
    if channels & (channels - 1) or head_size % channels or head_size % (8 // bits):
        raise ValueError(f"channels must be a power of two that divides the head size {head_size}, got {channels}")
