"""SGLang: `RadixCache` over its token or page allocator, with the adapter in the part of the scheduler and of the request's row of slots.

A prefill, whole or in chunks, is matched, locked, allocated and, when it is done, entered into the tree; decodes are allocated one token at a time. What is
released with `finish` is entered first, what is cancelled or retracted is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import msgspec

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.loading import LoadedEngine, loaded_engine
from kvproof.impl.foreign.sglang.engine import CACHE
from kvproof.impl.foreign.sglang.trees import MODULE, PLAIN, Request, Shape, tree_of
from kvproof.models.capabilities import Capabilities
from kvproof.models.layouts import blocks_for
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot

ROW_TOKENS: Final = 2048
"""Slots in a row; no program comes near it."""

ROWS: Final = 256


class Radix(EngineAdapter):
    """Page 0 is the padding sink; pages of one token have an allocator of their own."""

    eagle: ClassVar[bool] = False
    shape: ClassVar[Shape] = PLAIN

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.engine = loaded_engine()
        self.page = block_size
        self.torch = self.engine.module(MODULE).torch
        self.allocator = self._allocator((num_blocks - 1) * block_size)
        self.rows = self._rows()
        self.surface = tree_of(self.engine, self.shape, self.rows, self.allocator, block_size, eagle=self.eagle)
        self.tree = self.surface.tree
        self.requests: dict[int, Request] = {}
        self.free_rows = list(range(ROWS))

    @classmethod
    def capabilities(cls) -> Capabilities:
        """There are no counts per page: a page is free, the tree's, or a request's."""
        key = loaded_engine().optional(MODULE, "RadixKey")
        fields = set() if key is None else {"adapter", "template"}
        if key is not None and "cache_salt" in inspect.signature(key).parameters:
            fields.add("tenant")
        return Capabilities(
            prefix=True,
            reset=True,
            snapshot=True,
            namespace_fields=frozenset(fields),
            null_blocks=frozenset({0}),
            policy=frozenset({"tight", "exact"}),
        )

    def _allocator(self, size: int) -> Any:
        offered = {"size": size, "page_size": self.page, "dtype": self.torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
        module, name = ("token", "TokenToKVPoolAllocator") if self.page == 1 else ("paged", "PagedTokenToKVPoolAllocator")
        place = f"{CACHE}.allocator.{module}"
        make = self.engine.symbol(place if self.engine.has(place) else f"{CACHE}.allocator", name)
        return make(**self.engine.fit(make, **offered))

    def _rows(self) -> Any:
        """The table request -> slots, as far as the tree uses it."""
        slots = self.torch.zeros((ROWS, ROW_TOKENS), dtype=self.torch.int32)
        return SimpleNamespace(req_to_token=slots, write=slots.__setitem__, free=_kept)

    # -- requests ---------------------------------------------------------------------------------------------------------------------------------

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request in the waiting queue: the adapter's name is joined to the extra key as in SGLang's own `Req`."""
        extra_key = namespace.template
        if namespace.adapter is not None:
            extra_key = (extra_key or "") + namespace.adapter
        if "" in (namespace.tenant, namespace.template, namespace.adapter):
            raise Refused("SGLang takes an empty salt, key or adapter for none")
        self.requests[seq] = Request(
            tokens=list(prompt), prompt=len(prompt), origin_input_ids=self.surface.tokens(prompt), extra_key=extra_key, cache_salt=namespace.tenant, priority=0,
            kv=None, lock=None, last_node=None, computed=0, out=0, prefilled=False, done=False, session=None, session_id=None, kv_rotation_base=None,
            window_start=0, decodes=0, lock_receipt=None, swa_prefix_lock_released=False,
        )  # fmt: skip

    def match(self, seq: int) -> Hit:
        """`match_prefix`."""
        return Hit(self.surface.length(self.surface.find(self.requests[seq])))

    # -- passes -----------------------------------------------------------------------------------------------------------------------------------

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`match_prefix` and a lock for a waiting request, then slots, evicting what is needed."""
        request = self.requests[seq]
        waiting = request.kv is None
        if request.prefilled:
            self._before_decode(request)
        start = self.match(seq).tokens if waiting else request.computed
        tokens = min(count, len(request.tokens) - start)
        if request.prefilled and tokens > 1:
            raise Refused("SGLang decodes one token at a time")
        if (start + tokens) % self.page and start + tokens < len(request.tokens):
            raise Refused("SGLang cuts a prefill only where a page ends")
        adopted = self._take_row(request) if waiting else 0
        slots = self._slots(request, start, tokens)
        if slots is None:
            if waiting:
                self.surface.drop(request)
                self._let_go(request)
            raise OutOfBlocks
        self.rows.write((request.req_pool_idx, slice(start, start + tokens)), slots.to(self.torch.int32))
        request.computed, request.out = start, start + tokens
        if not request.prefilled:
            self.surface.scheduled(request, request.out)
        return Grant(adopted=adopted)

    def _before_decode(self, request: Request) -> None:
        """What the scheduler does with a request that decodes before it asks for slots."""

    def _take_row(self, request: Request) -> int:
        found = self.surface.find(request)
        request.req_pool_idx = self.free_rows.pop()
        request.kv = request
        indices = self.surface.enter(request, found)
        self.rows.write((request.req_pool_idx, slice(0, len(indices))), indices.to(self.torch.int32))
        return self.surface.length(found)

    def _slots(self, request: Request, start: int, tokens: int) -> Any:
        """Slots for the next `tokens`, if free and evictable ones suffice, as the scheduler's budget demands."""
        needed = (blocks_for(start + tokens, self.page) - blocks_for(start, self.page)) * self.page
        if not self._suffices(needed):
            return None
        self.surface.evict(needed)
        if self.page == 1:
            return self.allocator.alloc(tokens)
        last = int(self.rows.req_to_token[request.req_pool_idx, start - 1]) if start else -1
        if not pages_without_kernels(self.engine):
            return self._whole_pages(last, tokens, needed)
        lengths = [self.torch.tensor([value], dtype=self.torch.int64) for value in (start, start + tokens)]
        last_slot = self.torch.tensor([last], dtype=self.torch.int64)
        if request.prefilled:
            return self.allocator.alloc_decode(lengths[1], lengths[1], last_slot)
        return self.allocator.alloc_extend(lengths[0], lengths[0], lengths[1], lengths[1], last_slot, tokens)

    def _suffices(self, needed: int) -> bool:
        """Whether `needed` slots are free or evictable."""
        return bool(needed <= self.allocator.available_size() + self.tree.evictable_size())

    def _whole_pages(self, last: int, tokens: int, needed: int) -> Any:
        """The rest of the page of slot `last`, then whole pages from `alloc`: where a batch is allocated by a kernel, that is what it would write."""
        rest = self.torch.arange(last + 1, last + 1 + (-(last + 1)) % self.page, dtype=self.torch.int64)
        taken = self.allocator.alloc(needed) if needed else rest[:0]
        return None if taken is None else self.torch.cat((rest, taken))[:tokens]

    def commit(self, seq: int, accepted: int) -> None:
        """The pass is done; a prefill, and each chunk of it, is entered into the tree."""
        request = self.requests[seq]
        request.computed = request.out
        if not request.prefilled:
            self.surface.checkpoint(request)
            request.prefilled = request.computed == len(request.tokens)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """One sampled token after another, each once all before it are computed."""
        request = self.requests[seq]
        if len(tokens) > 1 or not request.prefilled or request.computed < len(request.tokens):
            raise Refused("SGLang samples one token at a time, for requests that run")
        request.tokens += tokens

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`release_kv_cache`: entered into the tree if it has finished."""
        request = self.requests[seq]
        if request.kv is None:
            return
        request.computed = request.out
        self.surface.leave(request, keep=reason == "finish")
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        """Give the row back."""
        self.free_rows.append(request.req_pool_idx)
        request.kv = request.lock = request.last_node = None
        request.computed = request.out = request.window_start = request.decodes = 0
        request.prefilled = request.done = False

    def reset(self) -> bool:
        """`flush_cache`, as long as nothing runs."""
        if any(request.kv is not None for request in self.requests.values()):
            return False
        self.tree.reset()
        self.allocator.clear()
        return True

    # -- books ------------------------------------------------------------------------------------------------------------------------------------

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The pages of the request's row."""
        request = self.requests.get(seq)
        if request is None or request.kv is None:
            return []
        row = self.rows.req_to_token[request.req_pool_idx]
        return [int(row[position]) // self.page for position in range(0, request.out, self.page)]

    def snapshot(self) -> Snapshot:
        """Free pages and those of unlocked nodes; the counters that the scheduler plans with."""
        locked, unlocked = self._tree_pages()
        counted = self.allocator.available_size() + self.tree.evictable_size()
        return Snapshot(free=[*self._free_pages(self.allocator), *unlocked], cached={*locked, *unlocked}, free_count=counted // self.page)

    def _free_pages(self, allocator: Any) -> list[int]:
        """Those on both lists, where a release keeps those that were freed last on one of their own."""
        lists = (allocator.free_pages, getattr(allocator, "release_pages", None))
        return [page for pages in lists if pages is not None for page in pages.tolist()]

    def _tree_pages(self) -> tuple[list[int], list[int]]:
        """The pages of locked and of unlocked nodes."""
        return self._pages_of(self.shape.nodes(self.tree))

    def _pages_of(self, nodes: Iterable[tuple[Any, bool]]) -> tuple[list[int], list[int]]:
        locked: list[int] = []
        unlocked: list[int] = []
        for slots, held in nodes:
            (locked if held else unlocked).extend(slot // self.page for slot in slots.tolist()[:: self.page])
        return locked, unlocked


def pages_without_kernels(engine: LoadedEngine) -> bool:
    """Whether a batch of pages can be allocated without a Triton kernel, as since 0.5.22."""
    return hasattr(engine.module(f"{CACHE}.allocator"), "alloc_decode_naive")


def _kept(row: int) -> None:
    """Older trees give the row back themselves. Here the adapter does, for all of them."""


class Keyed(Radix):
    """The same where requests differ by the caller's key alone, to which then nothing is joined."""

    field: ClassVar[str] = "template"

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of `radix` with one namespace field."""
        claimed = super().capabilities()
        if cls.field not in claimed.namespace_fields:
            raise loaded_engine().moved(f"its keys do not tell the {cls.field} of requests apart")
        return msgspec.structs.replace(claimed, namespace_fields=frozenset({cls.field}))


class Salted(Keyed):
    """The same where requests differ by their salt alone, which SGLang keeps apart from everything else."""

    field = "tenant"


class Eagle(Keyed):
    """`keyed` with the keys that EAGLE's drafter needs: pairs of a token and the next one."""

    eagle = True
