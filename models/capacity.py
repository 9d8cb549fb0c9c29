"""The arithmetic of bytes: what a token, a block and a pool take, and where every byte of a pool went.

    attention = Attention(layers=32, kv_heads=8, head_size=128)
    attention.token_bytes()                                   # 131072: 128 KiB for each token
    ledger = pool_ledger(attention, pool_bytes=2**30, block_size=16, held_blocks=100)
    ledger.check()                                            # ValueError unless the parts add up to the pool

All sizes are in bytes and exact: a formula that gives no whole number of bytes is an error, never rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from kvproof.models.layouts import blocks_for, tail_waste

TABLE_ENTRY_BYTES: Final = 4
"""Block tables hold int32 (vLLM `v1/worker/block_table.py`, FlashInfer `kv_indices`)."""


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise ValueError(f"{name} is {value}; it must be {least} or more")
    return value


class Attention(msgspec.Struct, frozen=True):
    """Keys and values of layers with whole heads: multi-head (kv_heads = query heads), grouped-query and multi-query (kv_heads = 1)
    attention.

    `element_bits`: 16 for bf16, 8 for fp8 and int8, 4 for fp4. `value_head_size` None: as wide as the keys. `scale_bytes`: bytes of one
    scale, 0 for none; `scale_group`: elements of a row that share one, None for the whole row of a token and head. Raises ValueError for
    sizes that are no sizes.
    """

    layers: int
    kv_heads: int
    head_size: int
    element_bits: int = 16
    value_head_size: int | None = None
    scale_bytes: int = 0
    scale_group: int | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_size", "element_bits"):
            _at_least(1, field, getattr(self, field))
        _at_least(0, "scale_bytes", self.scale_bytes)
        if self.value_head_size is not None:
            _at_least(0, "value_head_size", self.value_head_size)
        for row in self._rows():
            if row * self.element_bits % 8:
                raise ValueError(f"a row of {row} elements of {self.element_bits} bits is not a whole number of bytes")
            if self.scale_group is not None and row % _at_least(1, "scale_group", self.scale_group):
                raise ValueError(f"scale_group is {self.scale_group}, which does not divide the {row} elements of a row")

    def _rows(self) -> tuple[int, int]:
        """Elements of the key row and of the value row of one token and head."""
        return self.head_size, self.head_size if self.value_head_size is None else self.value_head_size

    def content_bytes(self) -> int:
        """Keys and values of one token in one layer: `kv_heads * (head_size + value_head_size) * element_bits / 8` (vLLM
        `kv_cache_interface.py`).
        """
        return self.kv_heads * sum(self._rows()) * self.element_bits // 8

    def scales_bytes(self) -> int:
        """Scales of one token in one layer: one for each group of each row, so `2 * kv_heads * scale_bytes` where a row shares one (vLLM
        per-token-head quantisation), and one for every 16 elements in NVFP4.
        """
        groups = sum(row // (self.scale_group or row) for row in self._rows() if row)
        return self.kv_heads * groups * self.scale_bytes

    def token_bytes(self) -> int:
        """One token in all layers: `2 * L * Hkv * d * s` and its scales."""
        return self.layers * (self.content_bytes() + self.scales_bytes())

    def shard(self, ranks: int) -> Attention:
        """What one of `ranks` tensor-parallel ranks holds: its heads, or one replicated head where there are more ranks than heads. Raises
        ValueError where heads and ranks do not divide.
        """
        _at_least(1, "ranks", ranks)
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise ValueError(f"{self.kv_heads} KV heads cannot be split over, or replicated on, {ranks} ranks evenly")
        return msgspec.structs.replace(self, kv_heads=max(1, self.kv_heads // ranks))


class Latent(msgspec.Struct, frozen=True):
    """The one row that multi-head latent attention keeps of a token in a layer: a compressed latent and the rotary part of the key.

    The defaults are DeepSeek-V2 and V3 in bf16 (DeepSeek-V2, section 2.1: 512 latent and 64 rotary elements). Raises ValueError for sizes
    that are no sizes.
    """

    layers: int = 1
    latent_size: int = 512
    rope_size: int = 64
    latent_bits: int = 16
    rope_bits: int = 16
    row_scale_bytes: int = 0
    """Bytes of all scales in a row."""

    def __post_init__(self) -> None:
        for field in ("layers", "latent_size", "latent_bits", "rope_bits"):
            _at_least(1, field, getattr(self, field))
        _at_least(0, "rope_size", self.rope_size)
        _at_least(0, "row_scale_bytes", self.row_scale_bytes)
        if (self.latent_size * self.latent_bits) % 8 or (self.rope_size * self.rope_bits) % 8:
            raise ValueError(f"{self!r} has rows that are not a whole number of bytes")

    def content_bytes(self) -> int:
        """One token in one layer, without scales: `latent * bits / 8 + rope * bits / 8`; 1152 in bf16 (vLLM `kv_cache_interface.py`, where
        MLA has no value rows).
        """
        return (self.latent_size * self.latent_bits + self.rope_size * self.rope_bits) // 8

    def scales_bytes(self) -> int:
        """Scales of one token in one layer."""
        return self.row_scale_bytes

    def token_bytes(self) -> int:
        """One token in all layers."""
        return self.layers * (self.content_bytes() + self.scales_bytes())

    def shard(self, ranks: int) -> Latent:
        """What one of `ranks` tensor-parallel ranks holds: all of it, because every query head reads the same latent."""
        _at_least(1, "ranks", ranks)
        return self


Layout: TypeAlias = Attention | Latent
"""What the layers of one group keep of a token."""

FP8_DS_MLA: Final = Latent(latent_bits=8, rope_bits=16, row_scale_bytes=16)
"""vLLM's `fp8_ds_mla`: 512 fp8 latents, four float32 scales of 128 latents each, 64 bf16 rotary elements: 656 bytes (vLLM's custom layout).
"""


# -- blocks and pools ----------------------------------------------------------------------------------------------------------------------


def block_bytes(layout: Layout, block_size: int, *, alignment: int = 1) -> int:
    """One block of `block_size` tokens in all layers; each layer's page is rounded up to `alignment` bytes (vLLM `kv_cache_interface.py`).

    Raises ValueError for a block size or an alignment below 1.
    """
    return layout.layers * round_up(_page_content(layout, block_size), alignment)


def block_padding_bytes(layout: Layout, block_size: int, *, alignment: int = 1) -> int:
    """The bytes of a block that alignment alone adds."""
    return block_bytes(layout, block_size, alignment=alignment) - layout.layers * _page_content(layout, block_size)


def pool_bytes(layout: Layout, num_blocks: int, block_size: int, *, alignment: int = 1) -> int:
    """A pool of `num_blocks` blocks, null blocks included. With one extra block it is SGLang's `(size + page) * Hkv * d * s * 2 * L`."""
    return _at_least(0, "num_blocks", num_blocks) * block_bytes(layout, block_size, alignment=alignment)


def blocks_in(layout: Layout, available_bytes: int, block_size: int, *, alignment: int = 1) -> int:
    """How many whole blocks `available_bytes` hold in every layer."""
    return _at_least(0, "available_bytes", available_bytes) // block_bytes(layout, block_size, alignment=alignment)


def tokens_per_page(layout: Layout, page_bytes: int) -> int:
    """How many tokens of one layer one physical page of virtual memory holds (vAttention: `page / (Hkv * d * s)` for each of keys and
    values).
    """
    return _at_least(1, "page_bytes", page_bytes) // (layout.content_bytes() + layout.scales_bytes())


def round_up(size_bytes: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `size_bytes`. Raises ValueError for an alignment below 1."""
    return -(-size_bytes // _at_least(1, "alignment", alignment)) * alignment


# -- waste ---------------------------------------------------------------------------------------------------------------------------------


def tail_waste_bytes(layout: Layout, lengths: Iterable[int], block_size: int) -> int:
    """Bytes of allocated room that no token fills, for sequences of these lengths: at most `n(q-1)` tokens (PagedAttention 4.2)."""
    return sum(tail_waste(length, block_size) for length in lengths) * layout.token_bytes()


def mean_tail_waste_tokens(sequences: int, block_size: int) -> Fraction:
    """The mean unused room of `sequences` sequences whose lengths are spread evenly: `n(q-1)/2` tokens, half the bound."""
    return Fraction(_at_least(0, "sequences", sequences) * (_at_least(1, "block_size", block_size) - 1), 2)


# -- ledger --------------------------------------------------------------------------------------------------------------------------------


class Ledger(msgspec.Struct, frozen=True):
    """Where the bytes of a pool are: each is counted once."""

    pool_bytes: int
    block_bytes: int
    """Keys and values of held blocks, unfilled tails included."""
    scale_bytes: int
    """Scales of held blocks."""
    table_bytes: int
    """Block tables that lie in the pool."""
    padding_bytes: int
    """What alignment adds to held blocks, null blocks, and the rest that is too small for another block."""
    free_bytes: int
    """Blocks that nobody holds, matchable ones included."""

    def check(self) -> None:
        """Raise ValueError, naming the parts, unless none is negative and they add up to the pool (the law `ledger-adds-up`)."""
        parts = {name: getattr(self, name) for name in self.__struct_fields__ if name != "pool_bytes"}
        for name, size in parts.items():
            _at_least(0, name, size)
        total = sum(parts.values())
        if total != self.pool_bytes:
            listed = ", ".join(f"{name} {size}" for name, size in parts.items())
            missing = "missing" if total < self.pool_bytes else "counted twice"
            difference = f"{abs(self.pool_bytes - total)} are {missing}"
            raise ValueError(f"the ledger adds up to {total} of {self.pool_bytes} bytes ({listed}); {difference}")

    @property
    def used(self) -> Fraction:
        """The share of the pool that holds keys, values and their scales; 0 for an empty pool."""
        return Fraction(self.block_bytes + self.scale_bytes, self.pool_bytes) if self.pool_bytes else Fraction(0)


def pool_ledger(
    layout: Layout,
    *,
    pool_bytes: int,
    block_size: int,
    held_blocks: int,
    null_blocks: int = 0,
    alignment: int = 1,
    table_entries: int = 0,
) -> Ledger:
    """The ledger of a pool whose memory first holds the block tables (`table_entries` of 4 bytes) and then as many whole blocks as fit.

    `held_blocks` distinct blocks are held and `null_blocks` are never handed out. Raises ValueError if the tables or the blocks do not fit.
    """
    tables = _at_least(0, "table_entries", table_entries) * TABLE_ENTRY_BYTES
    if tables > _at_least(0, "pool_bytes", pool_bytes):
        raise ValueError(f"block tables of {tables} bytes do not fit a pool of {pool_bytes} bytes")
    num_blocks = blocks_in(layout, pool_bytes - tables, block_size, alignment=alignment)
    taken = _at_least(0, "held_blocks", held_blocks) + _at_least(0, "null_blocks", null_blocks)
    if taken > num_blocks:
        raise ValueError(f"{held_blocks} held and {null_blocks} null blocks do not fit a pool of {num_blocks} blocks")
    whole = block_bytes(layout, block_size, alignment=alignment)
    rest = pool_bytes - tables - num_blocks * whole
    return Ledger(
        pool_bytes=pool_bytes,
        block_bytes=held_blocks * block_size * layout.layers * layout.content_bytes(),
        scale_bytes=held_blocks * block_size * layout.layers * layout.scales_bytes(),
        table_bytes=tables,
        padding_bytes=held_blocks * block_padding_bytes(layout, block_size, alignment=alignment) + null_blocks * whole + rest,
        free_bytes=(num_blocks - taken) * whole,
    )


def sequence_blocks(lengths: Iterable[int], block_size: int) -> int:
    """How many blocks sequences of these lengths hold when they share none."""
    return sum(blocks_for(length, block_size) for length in lengths)


def _page_content(layout: Layout, block_size: int) -> int:
    return _at_least(1, "block_size", block_size) * (layout.content_bytes() + layout.scales_bytes())
