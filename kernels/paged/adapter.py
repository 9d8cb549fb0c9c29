"""The Triton kernels behind the contract: `PagedTriton` launches them on a GPU, or on the IR machine while one is installed.

    kernels = PagedTriton()
    kernels.store(pool, key, value, slots)
    out = kernels.attend(pool, query, block_tables, seq_lens, scale=head**-0.5)
    kernels.copy_blocks(pool, pairs)

No call waits for the device or reads a tensor on the host: every launch depends on shapes alone and can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from kvproof.kernels.contract import ALLOWANCES, FEATURES, KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.lowbit import LowBitPool, LowBitScheme
from kvproof.kernels.paged.append import append_kernel
from kvproof.kernels.paged.copies import copy_tensors, move_rows
from kvproof.kernels.paged.decode import decode_kernel
from kvproof.kernels.paged.latent import LatentCall
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.kernels.paged.memory import LARGEST, by_slot, slots_of
from kvproof.kernels.paged.parts import longest_walk, merge, merge_append, parts_of, pointer, pool_strides, scale_kind, zero_behind
from kvproof.kernels.paged.plan import PrefillPlan, plan_prefill
from kvproof.kernels.paged.prefill import prefill_kernel
from kvproof.kernels.paged.requests import (
    check_attention,
    check_kernel_attend,
    check_kernel_scales,
    check_layout,
    check_move,
    check_pool,
    check_scatter,
    check_slots,
    check_store,
)
from kvproof.kernels.paged.sizes import (
    APPEND_TOKENS,
    MLA_ROWS,
    SPLIT_TOKENS,
    Target,
    Tiles,
    append_tiles,
    append_tokens,
    decode_tiles,
    latent_append_tokens,
    mla_tiles,
    padded,
    prefill_tiles,
    target_of,
)
from kvproof.kernels.paged.store import store_kernel

LOW_BITS = (LowBitScheme(4, 16, 16, 20), LowBitScheme(2, 32, 32, 0), LowBitScheme(8, 16, 8, 1, "float32"))
"""What the suite is asked to judge; any number of bits, group, channels and window of a `LowBitPool` is taken."""


class PagedTriton(PagedKernels):
    """Sizes can be replaced in a subclass: the functions are those of `sizes`, and `split_tokens` is the tokens of one split of a decode, rounded up to whole tiles. A fixed number keeps every row's bits independent of the batch."""

    split_tokens = SPLIT_TOKENS
    append_tokens = APPEND_TOKENS
    """The most query tokens of a sequence that is split over its context; 0 prefills them all."""
    decode_tiles = staticmethod(decode_tiles)
    append_tiles = staticmethod(append_tiles)
    prefill_tiles = staticmethod(prefill_tiles)
    mla_tiles = staticmethod(mla_tiles)

    def __init__(self, target: Target | None = None) -> None:
        """`target`: compile for this kind of device, whatever the tensors lie on; None for the kind that they do lie on."""
        self._target = target

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        """What the suite may ask for; any head size up to 256, any ratio up to 128 and any block size is taken."""
        return KernelCapabilities(
            dtypes=("float16", "bfloat16", "float32"),
            head_sizes=(64, 80, 128, 40),
            gqa_ratios=(1, 4, 7),
            block_sizes=(16, 1, 12, 256),
            layouts=("NHD", "HND"),
            features=FEATURES - {*ALLOWANCES},
            max_pool_bytes=2**40,
            mla_sizes=((48, 24), (512, 64)),
            low_bits=LOW_BITS,
        )

    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """One launch for keys, values and their scales. Like every method, raises ValueError where the request does not fit (`requests`)."""
        check_store(pool, key, value, slots)
        check_kernel_scales(pool)
        tokens, heads, head = key.shape
        if tokens == 0:
            return
        tile = max(1, 1024 // padded(head))
        stored_key, stored_value = self._stored(pool.key), self._stored(pool.value)
        own_values = pool.latent_size is None
        store_kernel[(triton.cdiv(tokens, tile), heads)](
            key, value, stored_key, stored_value, pointer(pool.key_scale, stored_key), pointer(pool.value_scale, stored_value), slots, tokens,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1), *pool_strides(pool, pool.key), *pool_strides(pool, pool.value),
            BLOCK=pool.block_size, HEAD=head, PADDED=padded(head), TILE=tile, SCALES=scale_kind(pool), LIMIT=LARGEST.get(pool.key.dtype, 1.0),
            VALUES=own_values, num_warps=4,
        )  # fmt: skip

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
        plan: PrefillPlan | None = None,
        max_tokens: int | None = None,
        max_queries: int | None = None,
    ) -> torch.Tensor:
        """Decode, or with `query_lens` prefill and append. `plan`: `prefill_plan` of these query lengths, where several layers share it.
        `max_tokens`: no sequence of a decode or an append is longer, which spares programs and scratch memory where tables are as wide as the
        longest one possible. `max_queries`: no sequence has more query tokens, which spares the launch of a prefill for a batch of appends.
        Neither changes a bit.
        """
        check_pool(pool)
        check_attention(pool, query, block_tables, seq_lens, query_lens, window, sinks, soft_cap)
        check_kernel_attend(pool, query, seq_lens)
        out = torch.empty(*query.shape[:-1], pool.value.shape[-1], dtype=query.dtype, device=query.device)
        if out.numel() == 0:
            return out
        if pool.latent_size is not None:
            if window is not None or sinks is not None or soft_cap is not None:
                raise ValueError(
                    "The latent kernels take no window, sinks or soft cap: no model with latents has them; call attend without."
                )
            self._attend_latents(pool, query, block_tables, seq_lens, query_lens, out, scale, plan, max_tokens, max_queries)
            return out
        options = {
            "RATIO": query.shape[1] // pool.kv_heads,
            "BLOCK": pool.block_size,
            "HEAD": pool.head_size,
            "PADDED": padded(pool.head_size),
            "WINDOW": window or 0,
            "SCALES": scale_kind(pool),
            "SINKS": sinks is not None,
            "CAPPED": soft_cap is not None,
        }
        if scale < 0:  # the kernels look for the largest product, which is then the largest score
            query, scale = -query, -scale
        sinks, soft_cap = query if sinks is None else sinks, soft_cap or 1.0
        if query_lens is None:
            self._decode(pool, query, block_tables, seq_lens, sinks, out, scale, soft_cap, options, max_tokens)
        else:
            plan = plan or self.prefill_plan(pool, query, query_lens)
            batch = (pool, query, block_tables, seq_lens, query_lens, plan, sinks, out, scale, soft_cap, options)
            if plan.short:
                self._append(*batch, max_tokens)
            if max_queries is None or max_queries > plan.short:
                self._prefill(*batch)
            else:
                zero_behind(query_lens, out)
        return out

    def prefill_plan(self, pool: KVPool, query: torch.Tensor, query_lens: torch.Tensor) -> PrefillPlan:
        """Which tile of a prefill is whose; it depends on the query lengths, not on the layer."""
        if pool.latent_size is not None:
            heads, rows = query.shape[1], self._latent_tiles(pool, query).rows
            short = latent_append_tokens(heads, self.append_tokens) if self.append_tokens else 0
            return plan_prefill(query_lens, query.shape[0], max(1, rows // heads), short)
        ratio = query.shape[1] // pool.kv_heads
        tiles = self._prefill_tiles(pool, query)
        short = append_tokens(ratio, self.append_tokens) if self.append_tokens else 0
        return plan_prefill(query_lens, query.shape[0], tiles.rows // ratio, short)

    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        """One layer; see `copy_layers`."""
        self.copy_layers([pool], pairs)

    def copy_layers(self, pools: Sequence[KVPool], pairs: torch.Tensor) -> None:
        """The same block pairs in the pools of all layers: one launch for keys, one for values and one for each kind of scale where the layers
        lie at equal distances in one storage, otherwise one for each layer.
        """
        for pool in pools:
            check_layout(pool)
        for name in ("key", "value", "key_scale", "value_scale"):
            tensors = [getattr(pool, name) for pool in pools]
            if tensors[0] is None or tensors[0].dim() == 1 or (name.startswith("value") and pools[0].latent_size):
                continue
            copy_tensors(tensors, pairs)

    def gather(self, pool: KVPool, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Stored keys and values of `slots` `[tokens]` int64 as `[tokens, kv_heads, head_size]`, bit by bit, and where each token has scales
        those, `[tokens, kv_heads, 1]`. A latent comes once, as a key. A slot of -1 gives zeros.
        """
        check_layout(pool)
        check_slots(slots)
        own = torch.arange(len(slots), device=slots.device)
        found: list[torch.Tensor] = []
        for tensor in by_slot(pool):
            rows = torch.zeros(len(slots), *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device)
            move_rows(tensor, rows.unsqueeze(1), slots, own)
            found.append(rows)
        return tuple(found)

    def scatter(self, pool: KVPool, rows: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
        """The inverse: what `gather` returned, to `slots`."""
        check_layout(pool)
        check_scatter(rows, by_slot(pool), slots)
        own = torch.arange(len(slots), device=slots.device)
        for tensor, values in zip(by_slot(pool), rows, strict=True):
            move_rows(values.unsqueeze(1), tensor, own, slots)

    def move(self, source: KVPool, target: KVPool, source_slots: torch.Tensor, target_slots: torch.Tensor) -> None:
        """Token rows from one pool to another of any layout and block size: export, import, swap and changes of layout. For a change of shards
        give pools whose tensors are views of the heads that they share.
        """
        for pool in (source, target):
            check_layout(pool)
        check_move(by_slot(source), by_slot(target), source_slots, target_slots)
        for origin, goal in zip(by_slot(source), by_slot(target), strict=True):
            move_rows(origin, goal, source_slots, target_slots)

    def store_low_bits(self, pool: LowBitPool, *arguments: torch.Tensor) -> torch.Tensor:
        """`LowBitTriton.store`."""
        return self._low_bits().store(pool, *arguments)

    def attend_low_bits(self, pool: LowBitPool, *arguments: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401 - those of `attend`
        """`LowBitTriton.attend`."""
        return self._low_bits().attend(pool, *arguments, **options)

    def copy_low_bits(self, pool: LowBitPool, pairs: torch.Tensor, rings: torch.Tensor) -> None:
        """`LowBitTriton.copy_blocks` and `copy_rings`."""
        self._low_bits().copy_blocks(pool, pairs)
        self._low_bits().copy_rings(pool, rings)

    def _low_bits(self) -> LowBitTriton:
        return LowBitTriton(self.split_tokens, self._target)

    @staticmethod
    def slots(block_tables: torch.Tensor, seq_lens: torch.Tensor, block_size: int) -> torch.Tensor:
        """The slots of all tokens, `[seqs * max_blocks * block_size]` int64 in order, -1 where a sequence has ended: for gather and scatter."""
        return slots_of(block_tables, seq_lens, block_size)

    def _prefill_tiles(self, pool: KVPool, query: torch.Tensor) -> Tiles:
        ratio = query.shape[1] // pool.kv_heads
        return self.prefill_tiles(self._target_of(query), ratio, pool.head_size, query.dtype, quantised=pool.key_scale is not None)

    def _target_of(self, tensor: torch.Tensor) -> Target:
        return self._target or target_of(tensor.device)

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """The pool as kernels take it: e4m3 as its bits on devices that have no such type."""
        return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn and not self._target_of(tensor).e4m3 else tensor

    def _decode(
        self, pool: KVPool, query: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, sinks: torch.Tensor, out: torch.Tensor,
        scale: float, soft_cap: float, options: dict[str, Any], max_tokens: int | None,
    ) -> None:  # fmt: skip
        tiles = self.decode_tiles(self._target_of(query), options["RATIO"], pool.head_size, query.dtype)
        longest = longest_walk(tables.shape[1] * pool.block_size, max_tokens, options["WINDOW"], tiles.tile)
        parts = parts_of(self.split_tokens, longest, tiles, out.shape[:2], out)
        key, value = self._stored(pool.key), self._stored(pool.value)
        decode_kernel[(pool.kv_heads, parts.splits, len(query))](
            query, key, value, pointer(pool.key_scale, key), pointer(pool.value_scale, value), sinks, out, parts.partial, parts.stats, tables, lens,
            scale, soft_cap, query.stride(0), query.stride(1), tables.stride(0), *pool_strides(pool, key), *pool_strides(pool, value),
            ROWS=tiles.rows, TILE=tiles.tile, SPLIT=parts.tokens, SINGLE=parts.splits == 1, STAGES=tiles.stages, num_warps=tiles.warps,
            **options,
        )  # fmt: skip
        if parts.splits > 1:
            merge(parts, tiles, sinks, out, lens, WINDOW=options["WINDOW"], SINKS=options["SINKS"])

    def _attend_latents(
        self, pool: KVPool, query: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, query_lens: torch.Tensor | None, out: torch.Tensor,
        scale: float, plan: PrefillPlan | None, max_tokens: int | None, max_queries: int | None,
    ) -> None:  # fmt: skip
        longest = longest_walk(tables.shape[1] * pool.block_size, max_tokens)
        call = LatentCall(pool, self._stored(pool.key), query, tables, lens, out, scale, self.split_tokens, longest)
        if query_lens is None:
            call.decode(self._latent_tiles(pool, query, query.shape[1]))
            return
        plan = plan or self.prefill_plan(pool, query, query_lens)
        call.append_and_prefill(self._latent_tiles(pool, query), query_lens, plan, max_queries)

    def _latent_tiles(self, pool: KVPool, query: torch.Tensor, rows: int = MLA_ROWS) -> Tiles:
        return self.mla_tiles(self._target_of(query), rows, query.dtype, quantised=pool.key_scale is not None)

    def _prefill(
        self, pool: KVPool, query: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, query_lens: torch.Tensor, plan: PrefillPlan,
        sinks: torch.Tensor, out: torch.Tensor, scale: float, soft_cap: float, options: dict[str, Any],
    ) -> None:  # fmt: skip
        tiles = self._prefill_tiles(pool, query)
        key, value = self._stored(pool.key), self._stored(pool.value)
        prefill_kernel[(len(plan.tile_seq), pool.kv_heads)](
            query, key, value, pointer(pool.key_scale, key), pointer(pool.value_scale, value), sinks, out, tables, lens, query_lens,
            plan.query_starts, plan.tile_seq, plan.tile_first, query.shape[0], scale, soft_cap,
            query.stride(0), query.stride(1), tables.stride(0), *pool_strides(pool, key), *pool_strides(pool, value),
            ROWS=tiles.rows, TILE=tiles.tile, STAGES=tiles.stages, num_warps=tiles.warps, **options,
        )  # fmt: skip

    def _append(
        self, pool: KVPool, query: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, query_lens: torch.Tensor, plan: PrefillPlan,
        sinks: torch.Tensor, out: torch.Tensor, scale: float, soft_cap: float, options: dict[str, Any], max_tokens: int | None,
    ) -> None:  # fmt: skip
        """The sequences with few query tokens, the others being left alone."""
        tiles = self.append_tiles(
            self._target_of(query), options["RATIO"], plan.short, pool.head_size, query.dtype, quantised=pool.key_scale is not None
        )
        window = options["WINDOW"] and options["WINDOW"] + plan.short - 1
        seqs, heads = len(lens), query.shape[1]
        longest = longest_walk(tables.shape[1] * pool.block_size, max_tokens, window, tiles.tile)
        parts = parts_of(self.split_tokens, longest, tiles, (seqs, plan.short, heads), out, always=True)
        key, value = self._stored(pool.key), self._stored(pool.value)
        constants = {name: options[name] for name in ("RATIO", "BLOCK", "HEAD", "PADDED", "WINDOW", "SCALES", "CAPPED")}
        append_kernel[(pool.kv_heads, parts.splits, seqs)](
            query, key, value, pointer(pool.key_scale, key), pointer(pool.value_scale, value), parts.partial, parts.stats, tables, lens, query_lens,
            plan.query_starts, scale, soft_cap, query.stride(0), query.stride(1), tables.stride(0), *pool_strides(pool, key), *pool_strides(pool, value),
            ROWS=tiles.rows, TOKENS=plan.short, TILE=tiles.tile, SPLIT=parts.tokens, STAGES=tiles.stages, num_warps=tiles.warps, **constants,
        )  # fmt: skip
        merge_append(parts, tiles, sinks, out, lens, query_lens, plan, plan.short, WINDOW=options["WINDOW"], SINKS=options["SINKS"])
