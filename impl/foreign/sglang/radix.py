"""SGLang: `RadixCache` over its token or page allocator, with the adapter in the part of the scheduler and of the request's row of slots.

A prefill, whole or in chunks, is matched, locked, allocated and, when it is done, checkpointed into the tree; decodes are allocated one token at a time. What is
released with `finish` is checkpointed first, what is cancelled or retracted is not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.sglang.engine import CACHE
from kvproof.models.capabilities import Capabilities
from kvproof.models.layouts import blocks_for
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot

ROW_TOKENS: Final = 2048
"""Slots in a row; no program comes near it."""

ROWS: Final = 256


class Radix(EngineAdapter):
    """Page 0 is the padding sink; pages of one token have an allocator of their own."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.engine = loaded_engine()
        self.page = block_size
        self.torch = self.engine.module(f"{CACHE}.radix_cache").torch
        self.allocator = self._allocator((num_blocks - 1) * block_size)
        self.rows = self._rows()
        params = self.engine.symbol(f"{CACHE}.cache_init_params", "CacheInitParams")
        tree = self.engine.symbol(f"{CACHE}.radix_cache", "RadixCache")
        if not hasattr(tree, "checkpoint"):
            raise self.engine.moved("RadixCache has no checkpoint")
        self.tree = tree(
            params(disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.allocator, page_size=block_size)
        )
        self.key_class = self.engine.symbol(f"{CACHE}.radix_cache", "RadixKey")
        self.match_params = self.engine.symbol(f"{CACHE}.base_prefix_cache", "MatchPrefixParams")
        self.requests: dict[int, Any] = {}
        self.free_rows = list(range(ROWS))

    @classmethod
    def capabilities(cls) -> Capabilities:
        """There are no counts per page: a page is free, the tree's, or a request's."""
        return Capabilities(
            prefix=True,
            reset=True,
            snapshot=True,
            namespace_fields=frozenset({"tenant", "adapter", "template"}),
            null_blocks=frozenset({0}),
            policy=frozenset({"tight", "exact"}),
        )

    def _allocator(self, size: int) -> Any:
        offered = {"size": size, "page_size": self.page, "dtype": self.torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
        module, name = ("token", "TokenToKVPoolAllocator") if self.page == 1 else ("paged", "PagedTokenToKVPoolAllocator")
        make = self.engine.symbol(f"{CACHE}.allocator.{module}", name)
        return make(**self.engine.fit(make, **offered))

    def _rows(self) -> Any:
        """The table request -> slots, as far as the tree uses it."""
        slots = self.torch.zeros((ROWS, ROW_TOKENS), dtype=self.torch.int32)
        return SimpleNamespace(req_to_token=slots, write=slots.__setitem__)

    # -- requests ---------------------------------------------------------------------------------------------------------------------------------

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request in the waiting queue: the adapter's name is joined to the extra key as in SGLang's own `Req`."""
        extra_key = namespace.template
        if namespace.adapter is not None:
            extra_key = (extra_key or "") + namespace.adapter
        if "" in (namespace.tenant, namespace.template, namespace.adapter):
            raise Refused("SGLang takes an empty salt, key or adapter for none")
        self.requests[seq] = SimpleNamespace(
            tokens=list(prompt), origin_input_ids=list(prompt), extra_key=extra_key, cache_salt=namespace.tenant, priority=0, kv=None, lock=None,
            last_node=None, computed=0, out=0, prefilled=False,
        )  # fmt: skip

    def _key(self, request: Any, tokens: Sequence[int]) -> Any:
        return self.key_class(array("q", tokens), request.extra_key, cache_salt=request.cache_salt)

    def _find(self, request: Any) -> Any:
        """The longest prefix in the tree; the last token is left to be computed."""
        return self.tree.match_prefix(self.match_params(key=self._key(request, request.tokens[:-1])))

    def match(self, seq: int) -> Hit:
        """`match_prefix`."""
        return Hit(self._find(self.requests[seq]).device_prefix_len)

    # -- passes -----------------------------------------------------------------------------------------------------------------------------------

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`match_prefix` and a lock for a waiting request, then slots, evicting what is needed."""
        request = self.requests[seq]
        adopted = 0
        waiting = request.kv is None
        if waiting:
            adopted = self._take_row(request)
        start = request.computed + adopted
        tokens = min(count, len(request.tokens) - start)
        if request.prefilled and tokens > 1:
            raise Refused("SGLang decodes one token at a time")
        slots = self._slots(request, start, tokens)
        if slots is None:
            if waiting:
                self._let_go(request)
            raise OutOfBlocks
        self.rows.write((request.kv.req_pool_idx, slice(start, start + tokens)), slots.to(self.torch.int32))
        request.computed, request.out = start, start + tokens
        return Grant(adopted=adopted)

    def _take_row(self, request: Any) -> int:
        found = self._find(request)
        row = self.free_rows.pop()
        request.kv = SimpleNamespace(req_pool_idx=row, cache_protected_len=found.device_prefix_len, cache_inserted_len=0, swa_evict_floor=0)
        request.last_node = found.last_device_node
        request.lock = self.tree.lock(request.last_node)
        indices = self.tree.path_device_indices(request.last_node)
        self.rows.write((row, slice(0, len(indices))), indices.to(self.torch.int32))
        return int(found.device_prefix_len)

    def _slots(self, request: Any, start: int, tokens: int) -> Any:
        """Slots for the next `tokens`, if free and evictable ones suffice, as the scheduler's budget demands."""
        needed = (blocks_for(start + tokens, self.page) - blocks_for(start, self.page)) * self.page
        if needed > self.allocator.available_size() + self.tree.evictable_size():
            return None
        self.allocator.evict_to_free_tokens(self.tree, needed)
        if self.page == 1:
            return self.allocator.alloc(tokens)
        lengths = [self.torch.tensor([value], dtype=self.torch.int64) for value in (start, start + tokens)]
        last = int(self.rows.req_to_token[request.kv.req_pool_idx, start - 1]) if start else -1
        last_slot = self.torch.tensor([last], dtype=self.torch.int64)
        if request.prefilled:
            return self.allocator.alloc_decode(lengths[1], lengths[1], last_slot)
        return self.allocator.alloc_extend(lengths[0], lengths[0], lengths[1], lengths[1], last_slot, tokens)

    def commit(self, seq: int, accepted: int) -> None:
        """The pass is done; a prefill, and each chunk of it, is checkpointed into the tree."""
        request = self.requests[seq]
        request.computed = request.out
        if not request.prefilled:
            self._checkpoint(request)
            request.prefilled = request.computed == len(request.tokens)

    def _checkpoint(self, request: Any) -> None:
        request.full_untruncated_fill_ids = array("q", request.tokens)
        self.tree.checkpoint(request, up_to=request.computed)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """One sampled token after another, each once all before it are computed."""
        request = self.requests[seq]
        if len(tokens) > 1 or not request.prefilled or request.computed < len(request.tokens):
            raise Refused("SGLang samples one token at a time, for requests that run")
        request.tokens += tokens

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`release_kv_cache`: checkpointed if it has finished."""
        request = self.requests[seq]
        if request.kv is None:
            return
        request.computed = request.out
        if reason == "finish":
            self._checkpoint(request)
        protected, row = request.kv.cache_protected_len, self.rows.req_to_token[request.kv.req_pool_idx]
        self.allocator.free_segment(row[protected : request.computed], start_pos=protected)
        self._let_go(request)

    def _let_go(self, request: Any) -> None:
        """Unlock the tree and give the row back."""
        self.tree.unlock(request.lock)
        self.free_rows.append(request.kv.req_pool_idx)
        request.kv = request.lock = request.last_node = None
        request.computed = request.out = 0
        request.prefilled = False

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
        row = self.rows.req_to_token[request.kv.req_pool_idx]
        return [int(row[position]) // self.page for position in range(0, request.out, self.page)]

    def snapshot(self) -> Snapshot:
        """Free pages and those of unlocked nodes; the counters that the scheduler plans with."""
        pages = self.allocator.free_pages if self.page == 1 else self.allocator.get_all_free_pages()
        locked, unlocked = self._tree_pages()
        counted = self.allocator.available_size() + self.tree.evictable_size()
        return Snapshot(free=[*pages.tolist(), *unlocked], cached={*locked, *unlocked}, free_count=counted // self.page)

    def _tree_pages(self) -> tuple[list[int], list[int]]:
        """The pages of locked and of unlocked nodes."""
        locked: list[int] = []
        unlocked: list[int] = []
        nodes = list(self.tree.root_node.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            (locked if node.lock_ref else unlocked).extend(slot // self.page for slot in node.value.tolist()[:: self.page])
        return locked, unlocked


class Salted(Radix):
    """The same where requests differ by their salt alone, which SGLang keeps apart from everything else."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of `radix` with one namespace field."""
        return msgspec.structs.replace(super().capabilities(), namespace_fields=frozenset({"tenant"}))
