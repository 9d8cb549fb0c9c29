"""The contract for paged kernels under test. Subclass `PagedKernels`; the suite builds it without arguments.

    from kvproof import KernelCapabilities, KVPool, PagedKernels

    class Kernels(PagedKernels):
        @classmethod
        def capabilities(cls):
            return KernelCapabilities(dtypes=("float16",), head_sizes=(64, 128), features=frozenset({"decode", "copy"}))

        def store(self, pool, key, value, slots): ...
        def attend(self, pool, query, block_tables, seq_lens, *, scale, query_lens=None, window=None): ...
        def copy_blocks(self, pool, pairs): ...

All tensors are on the CPU. Triton kernels launched inside the methods run on the IR machine; plain torch works too and is judged by its
results alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NoReturn

from kvproof.kernels.lowbit import LowBitPool, LowBitScheme

if TYPE_CHECKING:
    import torch

ALLOWANCES = ("narrow-accumulation", "contiguous-pools")
"""Features that ask for less: scores and sums in the input type, and pools whose keys and values are contiguous tensors of their own."""

MOVES = ("gather", "scatter", "move")
"""Features that are methods of the same name."""

PROMISES = ("freed-windows", "hnd-scales", "mla-prefill", "mla-quantised")
"""Features that promise more: nothing is read in blocks that a window has passed; scales keep their shape in pools of layout "HND"; pools of latents
are appended to and prefilled, and come quantised as other pools do.
"""

FEATURES = frozenset(
    {
        "decode",
        "prefill",
        "copy",
        "window",
        "sinks",
        "soft-cap",
        "mla",
        "fp8",
        "fp8-token",
        "int8",
        "low-bits",
        *MOVES,
        *PROMISES,
        *ALLOWANCES,
    }
)
"""Features that the suite has cases for. Others may be claimed and are reported as not exercised."""

LAYOUTS = ("NHD", "HND")

DTYPES = frozenset({"float32", "float16", "bfloat16"})
"""Types of query, key and value, and of scales in low-bit pools."""


@dataclasses.dataclass(frozen=True)
class KVPool:
    """Paged keys and values, written in place. Keys and values of a block may alternate in one tensor, so only the strides say where a
    block lies; the last dimension is contiguous, here and in every other tensor of the contract, and nothing else need be.

    `key`, `value`: `[blocks, block_size, kv_heads, head_size]` for layout "NHD", `[blocks, kv_heads, block_size, head_size]` for "HND". In
    an MLA pool a key is a latent followed by the rotary part, there is one head, and `value` is a view of the latents: the first elements
    of `key` in the same memory. Where it has scales, one is for the whole row, and `value_scale` is the same tensor as `key_scale`.

    Scales are float32 and multiply what is stored. One for the pool, `[1]`, is given (the feature `fp8`). One for each slot and head,
    `[blocks, block_size, kv_heads]` whatever the layout, is chosen by `store` (`fp8-token`, `int8`): the largest magnitude of the row divided
    by the largest number of the type, 448 or 127, and 1 where that is 0.
    """

    key: torch.Tensor
    value: torch.Tensor
    block_size: int
    layout: str = "NHD"
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    @property
    def blocks(self) -> int:
        """Physical blocks in the pool."""
        return int(self.key.shape[0])

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return int(self.key.shape[2 if self.layout == "NHD" else 1])

    @property
    def head_size(self) -> int:
        """Elements of one head of a key, latent and rotary part together in an MLA pool."""
        return int(self.key.shape[3])

    @property
    def latent_size(self) -> int | None:
        """Elements of the latent of an MLA pool, None for other pools."""
        return int(self.value.shape[3]) if self.value.shape[3] != self.key.shape[3] else None

    def slot_view(self, tensor: torch.Tensor) -> torch.Tensor:
        """A key or value tensor as `[blocks, block_size, kv_heads, head_size]`, without copying."""
        return tensor if self.layout == "NHD" else tensor.transpose(1, 2)


@dataclasses.dataclass(frozen=True)
class KernelCapabilities:
    """What the kernels claim; the suite asks for nothing else.

    `dtypes`: torch names of the type of query, key and value, which the pool has too unless it is quantised (`fp8`, `fp8-token`:
    float8_e4m3fn, `int8`, `low-bits`).
    `head_sizes` in elements, `gqa_ratios` query heads for each key head, `block_sizes` in tokens. `features`: see `FEATURES`.
    `batch_invariant` claims bit-equal rows whatever shares the batch. Two features ask for less: `narrow-accumulation` says that scores and
    sums may be kept in the input type, which widens the bound for float16 and bfloat16, `contiguous-pools` that keys and values of a pool
    are contiguous tensors of their own. Two promise more, see `PROMISES`. `max_pool_bytes`: the largest key (or value) pool that addresses must be right for. `mla_sizes`:
    elements of latent and rotary part, for the feature `mla`, which is to decode over unquantised latents (`mla-prefill`, `mla-quantised`: see
    `PROMISES`); without `decode` and `prefill` beside it, MLA pools are all that the kernels
    are given. `low_bits`: schemes for the feature of that name, each with the block and head sizes that fit it.
    """

    dtypes: Sequence[str] = ("float32",)
    head_sizes: Sequence[int] = (64,)
    gqa_ratios: Sequence[int] = (1, 4)
    block_sizes: Sequence[int] = (16,)
    layouts: Sequence[str] = ("NHD",)
    features: Collection[str] = frozenset({"decode"})
    batch_invariant: bool = True
    max_pool_bytes: int = 2**36
    mla_sizes: Sequence[tuple[int, int]] = ((512, 64),)
    low_bits: Sequence[LowBitScheme] = (LowBitScheme(),)


class PagedKernels:
    """Base class of kernels under test; every method that is not overridden says so when it is called."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """What these kernels claim to do."""
        _missing(cls, "capabilities")

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Write key and value `[tokens, kv_heads, head_size]` to slots `[tokens]` int64, slot = block * block_size + offset; -1 is padding:
        write nothing.
        """
        _missing(type(self), "store")

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
    ) -> torch.Tensor:
        """Attention of each query over its sequence's tokens, current ones included.

        `block_tables` `[seqs, max_blocks]` int32, entries past a sequence's blocks are arbitrary; `seq_lens` `[seqs]` int32. Decode: query
        `[seqs, q_heads, head_size]`. Prefill: `query_lens` `[seqs]` int32 and query `[sum(query_lens), q_heads, head_size]`, the last
        positions of each sequence, causal. With `window=w` a query at position p sees p-w+1..p. A sequence of length 0 gives zeros. Returns
        the shape of query, with the value's head size.

        Kernels that claim them take two more keywords, which others are never given: `sinks`, float32 `[q_heads]`, and `soft_cap`, above 0.
        With s_j the scaled scores, the output is sum_j exp(c_j) v_j / (exp(sink) + sum_j exp(c_j)), where c_j = soft_cap * tanh(s_j /
        soft_cap) with a soft cap and s_j without; a sink is neither scaled nor capped, and no window hides it.
        """
        _missing(type(self), "attend")

    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        """Needs `copy`. Copy keys, values and scales of blocks: pairs `[n, 2]` int64, source and destination."""
        _missing(type(self), "copy_blocks")

    def gather(self, pool: KVPool, slots: torch.Tensor) -> Sequence[torch.Tensor]:
        """Needs `gather`. What is stored in slots `[tokens]` int64, bit by bit: keys and values `[tokens, kv_heads, head_size]`, a latent only
        once, and where each slot has scales those of keys and of values, `[tokens, kv_heads, 1]`. A slot of -1 gives zeros.
        """
        _missing(type(self), "gather")

    def scatter(self, pool: KVPool, rows: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
        """Needs `scatter`. The inverse: what `gather` returned, to slots; for a slot of -1 nothing is written."""
        _missing(type(self), "scatter")

    def move(self, source: KVPool, target: KVPool, source_slots: torch.Tensor, target_slots: torch.Tensor) -> None:
        """Needs `move`. The rows of `source_slots` to `target_slots` of a pool of the same type and as many heads, but maybe of another layout
        and block size, with their scales. Both `[tokens]` int64; a -1 on either side moves nothing. A pool may be a view of some heads of a
        wider one, whose other heads are not touched.
        """
        _missing(type(self), "move")

    def store_low_bits(
        self,
        pool: LowBitPool,
        key: torch.Tensor,
        value: torch.Tensor,
        block_tables: torch.Tensor,
        rings: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
        quantised: torch.Tensor,
    ) -> torch.Tensor:
        """Needs `low-bits`. Write key and value `[tokens, kv_heads, head_size]`, for each sequence in turn its positions `before` to `after`.

        `block_tables` `[seqs, max_blocks]` int32; `rings`, `before`, `after`, `quantised` `[seqs]` int32: each sequence's ring, its lengths, and
        how many of its tokens are in blocks. Returns the last of these anew, `[seqs]`: whole groups, never fewer than before, such that the last
        `recent` tokens are in the ring and the ring has room for the others (which leaves a choice only where both are exact: then the last
        group may wait). A sequence with after == before is padding: nothing is written for it, and its count stays.
        """
        _missing(type(self), "store_low_bits")

    def attend_low_bits(
        self,
        pool: LowBitPool,
        query: torch.Tensor,
        block_tables: torch.Tensor,
        rings: torch.Tensor,
        seq_lens: torch.Tensor,
        quantised: torch.Tensor,
        *,
        scale: float,
        query_lens: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        """Needs `low-bits`. As `attend`, with the same optional keywords, over what `store_low_bits` left."""
        _missing(type(self), "attend_low_bits")

    def copy_low_bits(self, pool: LowBitPool, pairs: torch.Tensor, rings: torch.Tensor) -> None:
        """Needs `low-bits` and `copy`. What a fork needs: blocks with their scales and zeros, and rings; pairs of blocks and pairs of rings
        `[n, 2]` int64, source and destination.
        """
        _missing(type(self), "copy_low_bits")


def validate(capabilities: KernelCapabilities) -> None:
    """Raise ValueError with a complete sentence where a claim is not usable."""
    for name in ("dtypes", "head_sizes", "gqa_ratios", "block_sizes", "layouts"):
        values = getattr(capabilities, name)
        if isinstance(values, str) or not tuple(values):
            raise ValueError(f"KernelCapabilities.{name} must be a non-empty sequence, got {values!r}")
    for name in ("head_sizes", "gqa_ratios", "block_sizes"):
        if any(not isinstance(value, int) or value < 1 for value in getattr(capabilities, name)):
            raise ValueError(f"KernelCapabilities.{name} must hold positive integers, got {getattr(capabilities, name)!r}")
    if "low-bits" in capabilities.features:
        if not tuple(capabilities.low_bits):
            raise ValueError("KernelCapabilities.low_bits must name at least one LowBitScheme for the feature low-bits")
        _check_low_bits(capabilities)
    if "mla" in capabilities.features and not tuple(capabilities.mla_sizes):
        raise ValueError("KernelCapabilities.mla_sizes must name at least one pair of latent and rotary elements for the feature mla")
    if any(len(tuple(pair)) != 2 or min(pair) < 1 for pair in capabilities.mla_sizes):
        raise ValueError(f"KernelCapabilities.mla_sizes must hold pairs of positive integers, got {capabilities.mla_sizes!r}")
    unknown = [layout for layout in capabilities.layouts if layout not in LAYOUTS]
    if unknown:
        raise ValueError(f"KernelCapabilities.layouts knows {LAYOUTS}, got {unknown}")
    if isinstance(capabilities.features, str):
        raise TypeError(f"KernelCapabilities.features must be a set of names, got the string {capabilities.features!r}")
    if not set(capabilities.dtypes) <= DTYPES:
        raise ValueError(
            f"KernelCapabilities.dtypes knows {sorted(DTYPES)}, got {list(capabilities.dtypes)}; quantised pools are the features fp8, fp8-token, int8 and low-bits"
        )


def fitting(capabilities: KernelCapabilities) -> list[tuple[LowBitScheme, int, int]]:
    """Claimed low-bit schemes, each with the block and head sizes that fit it."""
    return [
        (scheme, block, head)
        for scheme in capabilities.low_bits
        for block in capabilities.block_sizes
        for head in capabilities.head_sizes
        if scheme.fits(block, head)
    ]


def _check_low_bits(capabilities: KernelCapabilities) -> None:
    for scheme in capabilities.low_bits:
        if scheme.bits not in (2, 4, 8) or scheme.group < 1 or scheme.channels < 1 or scheme.recent < 0:
            raise ValueError(
                f"KernelCapabilities.low_bits takes 2, 4 or 8 bits, at least one token and channel, and no negative window; got {scheme}"
            )
        if scheme.scale_dtype not in DTYPES:
            raise ValueError(f"KernelCapabilities.low_bits knows scales of {sorted(DTYPES)}, got {scheme}")
        if scheme not in [found for found, _, _ in fitting(capabilities)]:
            raise ValueError(
                f"KernelCapabilities.low_bits has {scheme}, which fits none of the claimed sizes; a block must be whole groups, and a head "
                f"whole groups of channels: claim such sizes in block_sizes and head_sizes"
            )


def _missing(owner: type, method: str) -> NoReturn:
    raise NotImplementedError(
        f"{owner.__name__}.{method} is not implemented, though its capabilities claim it or every class of kernels needs it"
    )
