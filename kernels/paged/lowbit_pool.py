"""The low-bit scheme: `LowBitPool` holds it; `LowBitTriton` and, anywhere, `LowBitTorch` write and read it.

    pool = LowBitPool.empty(blocks, block_size, kv_heads, head_size, rings=64, bits=4)
    kernels = LowBitTriton()
    quantised = kernels.store(pool, key, value, tables, rings, before, after, quantised)     # all [seqs] int32
    out = kernels.attend(pool, query, tables, rings, seq_lens, quantised, scale=scale)

KIVI's scheme (Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024), paged: keys are quantised per channel over
groups of tokens, values per token over groups of channels, and at least the last `recent` tokens of a sequence stay in full precision, in a ring
of its own. A group is quantised once and never again. Beside its blocks a sequence holds a ring, and `quantised`, how many of its tokens have
left it: a copy of a sequence copies blocks and ring and takes the count along; a truncation below the count must be refused, since the tokens
are no longer there in full precision.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class LowBitPool:
    """Bytes `key`, `value` `[blocks, block_size, kv_heads, head_size * bits / 8]`; `key_scale`, `key_zero` `[blocks, block_size / group, kv_heads,
    head_size]`; `value_scale`, `value_zero` `[blocks, block_size, kv_heads, head_size / channels]`; `ring_key`, `ring_value` `[rings, recent +
    group, kv_heads, head_size]`, where position p of a sequence is at p % (recent + group). What is stored times its scale, plus its zero, is
    the value.
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
        dtype: torch.dtype = torch.float16,
        scale_dtype: torch.dtype = torch.float16,
        device: str | torch.device = "cpu",
    ) -> LowBitPool:
        """A zeroed pool. `dtype` is that of keys, values and queries. Raises ValueError where the sizes do not fit each other."""
        _check(block_size, head_size, bits, group, channels)

        def zeros(*shape: int, kind: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        stored = (blocks, block_size, kv_heads, head_size * bits // 8)
        keys, values = (blocks, block_size // group, kv_heads, head_size), (blocks, block_size, kv_heads, head_size // channels)
        ring = (rings, recent + group, kv_heads, head_size)
        return cls(
            zeros(*stored, kind=torch.uint8), zeros(*stored, kind=torch.uint8),
            zeros(*keys, kind=scale_dtype), zeros(*keys, kind=scale_dtype), zeros(*values, kind=scale_dtype), zeros(*values, kind=scale_dtype),
            zeros(*ring, kind=dtype), zeros(*ring, kind=dtype), bits, group, channels, recent,
        )  # fmt: skip

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.key.shape[1])

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        return int(self.ring_key.shape[3])

    @property
    def ring(self) -> int:
        """Places of one ring."""
        return int(self.ring_key.shape[1])

    def quantised_after(self, quantised: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """How many tokens of sequences of `seq_lens` have left the ring, `[seqs]` int32: whole groups, never fewer than before."""
        left = torch.div(seq_lens - self.recent, self.group, rounding_mode="floor") * self.group
        return torch.maximum(quantised, left).to(torch.int32)


def _check(block_size: int, head_size: int, bits: int, group: int, channels: int) -> None:
    if bits not in (2, 4, 8):
        raise ValueError(f"the low-bit scheme stores 2, 4 or 8 bits, got {bits}")
    if group < 16 or group & (group - 1) or block_size % group:
        raise ValueError(
            f"a group has a power of two of tokens, at least 16, and blocks are whole groups; got groups of {group}, blocks of {block_size}"
        )
    if channels & (channels - 1) or head_size % channels or head_size % (8 // bits):
        raise ValueError(f"channels must be a power of two that divides the head size {head_size}, got {channels}")


def query_rows(seq_lens: torch.Tensor, query_lens: torch.Tensor | None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of `count` query rows its sequence and how many tokens it sees, int32, on the device; rows behind the last query see none."""
    if query_lens is None:
        return torch.arange(count, dtype=torch.int32, device=seq_lens.device), seq_lens.to(torch.int32)
    ends = torch.cumsum(query_lens.long(), 0)
    row = torch.arange(count, device=seq_lens.device)
    seq = torch.searchsorted(ends, row, right=True)
    real = seq < len(seq_lens)
    seq = seq.clamp(max=len(seq_lens) - 1)
    visible = seq_lens[seq] - (ends[seq] - row) + 1
    return seq.to(torch.int32), torch.where(real, visible, 0).to(torch.int32)


def paged_tensors(pool: LowBitPool) -> list[torch.Tensor]:
    """Everything that lies in blocks."""
    return [pool.key, pool.value, pool.key_scale, pool.key_zero, pool.value_scale, pool.value_zero]
