"""SGLang's tree and allocator for models with full and sliding-window layers: two pools, and a map from slots of the full one to slots of the other.

The row of a request names slots of the full pool. A window's layers read where the map leads, so the second table is what the map says of the first. Its slots are given
back long before the others: a decode frees those that its window has passed, a node of the tree can lose them and keep the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.sglang.engine import CACHE
from kvproof.impl.foreign.sglang.radix import pages_without_kernels
from kvproof.impl.foreign.sglang.trees import Request
from kvproof.impl.foreign.sglang.unified import Unified, UnifiedShape, component, component_types
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.layouts import pool_shares
from kvproof.models.outcomes import Snapshot

WINDOW: Final = 5
"""Tokens that a query sees, itself included. SGLang counts those before it."""


class WindowedShape(UnifiedShape):
    """The unified tree with both components."""

    def extras(self, engine: Any) -> dict[str, Any]:
        """Full attention, and windows."""
        types = component_types(engine)
        return {**super().extras(engine), "tree_components": (types.FULL, types.SWA), "sliding_window_size": WINDOW - 1}


class Windowed(Unified):
    """Block ids of the full pool are its pages; those of the window's pool follow, without its padding page."""

    shape = WindowedShape()
    groups: ClassVar[Sequence[Group]] = (Group(), Group("sliding_window", window=WINDOW))

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        full, window = pool_shares(num_blocks, 2)
        self.full_pages, self.window_pages = len(full) - 1, len(window)
        self.first = window.start
        """The id of the window pool's first page, which is its page 1."""
        super().__init__(num_blocks=num_blocks, block_size=block_size)

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of `keyed` over two pools. Where only Triton kernels allocate pages, which keep both pools in step, pages have one token."""
        claimed = msgspec.structs.replace(super().capabilities(), groups=cls.groups, split_pool=True)
        return claimed if pages_without_kernels(loaded_engine()) else msgspec.structs.replace(claimed, block_sizes=(1,))

    def _allocator(self, size: int) -> Any:
        make = self.engine.symbol(f"{CACHE}.allocator.swa", "SWATokenToKVPoolAllocator")
        offered = {
            "size": self.full_pages * self.page, "size_swa": self.window_pages * self.page, "page_size": self.page, "dtype": self.torch.float32,
            "device": "cpu", "kvcache": self._pools(), "need_sort": False,
        }  # fmt: skip
        return make(**self.engine.fit(make, **offered))

    def _pools(self) -> Any:
        """The tensors of both pools, as far as the allocator and the tree look at them: they keep the map."""
        base = self.engine.symbol(f"{CACHE}.base_swa_memory_pool", "BaseSWAKVPool")
        return type(
            "Pools",
            (base,),
            {"register_mapping": _register, "translate_loc_from_full_to_swa": _translate, "get_state_buf_infos": _no_tensors},
        )()

    def _suffices(self, needed: int) -> bool:
        """Of either pool."""
        allocator, tree = self.allocator, self.tree
        full = allocator.full_available_size() + tree.full_evictable_size()
        return bool(needed <= min(full, allocator.swa_available_size() + tree.swa_evictable_size()))

    def _before_decode(self, request: Request) -> None:
        """`maybe_evict_swa` with an interval of one token; the first decode leaves the window as it is, since the prefill may still run."""
        if request.decodes:
            self._slide(request, len(request.tokens) - 1)
        request.decodes += 1

    def _slide(self, request: Request, position: int) -> None:
        """`evict_sliding_windows`, or before 0.5.22 what it calls."""
        if hasattr(self.tree, "evict_sliding_windows"):
            self.tree.evict_sliding_windows(request, position)
            return
        free = self.engine.symbol(f"{CACHE}.common", "free_swa_out_of_window_slots")
        offered = {
            "req": request, "pre_len": position, "sliding_window_size": WINDOW - 1, "page_size": self.page, "req_to_token_pool": self.rows,
            "token_to_kv_pool_allocator": self.allocator, "is_chunk_cache": False,
        }  # fmt: skip
        free(**self.engine.fit(free, **offered))

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The pages of the request's row, or those that the map leads to from there: page 0 is where nothing is, and what the tree may evict is nobody's."""
        full = super().block_table(seq)
        if not group:
            return full
        leads = self.allocator.full_to_swa_index_mapping
        pages = [int(leads[page * self.page]) // self.page for page in full if page is not None]
        _, unlocked = self._pages_of(component(self.tree, self.tree.tree_components[1]))
        return [self._window_id(page) if page > 0 and page not in unlocked else None for page in pages]

    def _window_id(self, page: int) -> int:
        """The block id of a page of the window's pool."""
        return self.first + page - 1

    def snapshot(self) -> Snapshot:
        """The books of both pools."""
        full, window = self.tree.tree_components
        locked, unlocked = self._pages_of(component(self.tree, full))
        window_locked, window_unlocked = ([*map(self._window_id, pages)] for pages in self._pages_of(component(self.tree, window)))
        allocator, tree = self.allocator, self.tree
        window_free = [*map(self._window_id, self._free_pages(allocator.swa_attn_allocator))]
        counted = allocator.full_available_size() + tree.full_evictable_size() + allocator.swa_available_size() + tree.swa_evictable_size()
        return Snapshot(
            free=[*self._free_pages(allocator.full_attn_allocator), *unlocked, *window_free, *window_unlocked],
            cached={*locked, *unlocked, *window_locked, *window_unlocked},
            free_count=counted // self.page,
        )


def _register(pools: Any, mapping: Any) -> None:
    pools.full_to_swa_index_mapping = mapping


def _translate(pools: Any, slots: Any) -> Any:
    return pools.full_to_swa_index_mapping[slots]


def _no_tensors(_pools: Any) -> tuple[list[int], list[int], list[int]]:
    return [], [], []
