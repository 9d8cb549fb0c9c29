"""How SGLang's radix tree is asked, in the releases that differ: what the scheduler says to it about one request.

`CheckpointTree` is the tree since 0.5.22, whose `checkpoint` takes a request as far as it is computed. `CachingTree` is the one before, with `cache_unfinished_req` and
`cache_finished_req`; its arguments, and what it reads of a request, moved several times. Both are recognised by the names that they have.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvproof.impl.foreign.loading import LoadedEngine
from kvproof.impl.foreign.sglang.engine import CACHE

MODULE = f"{CACHE}.radix_cache"


class Request(SimpleNamespace):
    """A request, as far as the trees and the adapter look at it. Its record `kv` is itself, since releases differ in what stands where."""

    tokens: list[int]
    """All that are known."""
    prompt: int
    """How many of them are the prompt."""
    computed: int
    out: int
    """One past the last token of the pass that is out, or else what is computed."""
    kv: Request | None
    """None while it holds nothing."""
    req_pool_idx: int

    def get_fill_ids(self) -> Any:
        """The tokens that the tree is told of now."""
        return self.fill_ids

    def pop_committed_kv_cache(self) -> int:
        """How many tokens are computed."""
        return self.computed


class Tree:
    """What both kinds share: building a tree, keys, and looking up."""

    def __init__(self, engine: LoadedEngine, rows: Any, allocator: Any, page: int, *, eagle: bool) -> None:
        self.engine, self.rows, self.allocator, self.page = engine, rows, allocator, page
        self.module = engine.module(MODULE)
        self.key_class = engine.optional(MODULE, "RadixKey")
        self.match_params = engine.optional(f"{CACHE}.base_prefix_cache", "MatchPrefixParams")
        self.salted = self.key_class is not None and "cache_salt" in inspect.signature(self.key_class).parameters
        self.tree = self._build(eagle=eagle)

    def _build(self, *, eagle: bool) -> Any:
        tree = self.engine.symbol(MODULE, "RadixCache")
        offered: dict[str, Any] = {
            "disable": False,
            "req_to_token_pool": self.rows,
            "token_to_kv_pool_allocator": self.allocator,
            "page_size": self.page,
            "is_eagle": eagle,
        }
        params = self.engine.optional(f"{CACHE}.cache_init_params", "CacheInitParams")
        if "params" in inspect.signature(tree).parameters:
            return tree(params=params(**self.engine.fit(params, **offered)))
        if eagle and "is_eagle" not in inspect.signature(tree).parameters:
            raise self.engine.moved("RadixCache takes no is_eagle")
        return tree(**self.engine.fit(tree, **offered))

    def tokens(self, tokens: Sequence[int]) -> Any:
        """Token ids as this release keeps them: an array, or a list before."""
        return array("q", tokens) if hasattr(self.module, "array") else list(tokens)

    def find(self, request: Request) -> Any:
        """The longest prefix in the tree; the last token is left to be computed."""
        tokens = self.tokens(request.tokens[:-1])
        if self.key_class is None:
            return self.tree.match_prefix(key=tokens)
        salt = {"cache_salt": request.cache_salt} if self.salted else {}
        key = self.key_class(tokens, request.extra_key, **salt)
        return self.tree.match_prefix(self.match_params(key=key)) if self.match_params else self.tree.match_prefix(key=key)

    def length(self, found: Any) -> int:
        """How many tokens a look-up found."""
        return len(found.device_indices)

    def evict(self, tokens: int) -> None:
        """Make `tokens` slots free, if they are not."""
        raise NotImplementedError

    def enter(self, request: Request, found: Any) -> Any:
        """Lock what was found; returns its slots."""
        raise NotImplementedError

    def scheduled(self, request: Request, end: int) -> None:
        """The prefill, or its next chunk, ends at the position `end`."""
        request.fill_ids = self.tokens(request.tokens[:end])

    def checkpoint(self, request: Request) -> None:
        """That prefill or chunk is computed."""
        raise NotImplementedError

    def leave(self, request: Request, *, keep: bool) -> None:
        """The request is gone, or retracted: what the tree does not own is free, and the lock is given back. `keep` leaves what is computed in the tree."""
        raise NotImplementedError


class CheckpointTree(Tree):
    """Since 0.5.22."""

    def length(self, found: Any) -> int:
        """The look-up says so itself."""
        return int(found.device_prefix_len)

    def evict(self, tokens: int) -> None:
        """`evict_to_free_tokens`."""
        self.allocator.evict_to_free_tokens(self.tree, tokens)

    def enter(self, request: Request, found: Any) -> Any:
        """`lock` and `path_device_indices`."""
        request.cache_protected_len, request.cache_inserted_len, request.swa_evict_floor = found.device_prefix_len, 0, 0
        request.last_node = found.last_device_node
        request.lock = self.tree.lock(request.last_node)
        return self.tree.path_device_indices(request.last_node)

    def checkpoint(self, request: Request) -> None:
        """`checkpoint`."""
        request.full_untruncated_fill_ids = self.tokens(request.tokens)
        self.tree.checkpoint(request, up_to=request.computed)

    def leave(self, request: Request, *, keep: bool) -> None:
        """`release_kv_cache`."""
        if keep:
            self.checkpoint(request)
        start, row = request.cache_protected_len, self.rows.req_to_token[request.req_pool_idx]
        self.allocator.free_segment(row[start : request.computed], start_pos=start)
        self.drop(request)

    def drop(self, request: Request) -> None:
        """`unlock`."""
        self.tree.unlock(request.lock)


class CachingTree(Tree):
    """Before 0.5.22. A request that finishes has sampled one token more than it has computed, so there is always one more in what the tree is told."""

    def __init__(self, engine: LoadedEngine, rows: Any, allocator: Any, page: int, *, eagle: bool) -> None:
        super().__init__(engine, rows, allocator, page, eagle=eagle)
        self.finish_takes = frozenset(inspect.signature(self.tree.cache_finished_req).parameters)
        self.evict_params = engine.optional(f"{CACHE}.base_prefix_cache", "EvictParams")

    def evict(self, tokens: int) -> None:
        """`evict`, where the free slots do not suffice."""
        if tokens > self.allocator.available_size():
            self.tree.evict(self.evict_params(num_tokens=tokens) if self.evict_params else tokens)

    def enter(self, request: Request, found: Any) -> Any:
        """`inc_lock_ref`."""
        request.prefix_indices, request.last_node = found.device_indices, found.last_device_node
        request.cache_protected_len = request.last_matched_prefix_len = len(found.device_indices)
        self.tree.inc_lock_ref(request.last_node)
        return found.device_indices

    def checkpoint(self, request: Request) -> None:
        """`cache_unfinished_req`."""
        self.tree.cache_unfinished_req(request)

    def leave(self, request: Request, *, keep: bool) -> None:
        """`cache_finished_req`, or where that cannot be told to keep nothing, what a retraction does."""
        if not keep and "is_insert" not in self.finish_takes:
            start = len(request.prefix_indices) // self.page * self.page
            self.allocator.free(self.rows.req_to_token[request.req_pool_idx, start : request.computed])
            self.drop(request)
            return
        known = [*request.tokens[: request.computed], 0]
        request.origin_input_ids, request.output_ids = self.tokens(known[: request.prompt]), self.tokens(known[request.prompt :])
        if not request.output_ids:
            request.origin_input_ids, request.output_ids = self.tokens(known[:-1]), self.tokens(known[-1:])
        told = {"is_insert": keep, "kv_len_to_handle": request.computed}
        self.tree.cache_finished_req(request, **{name: value for name, value in told.items() if name in self.finish_takes})

    def drop(self, request: Request) -> None:
        """`dec_lock_ref`."""
        self.tree.dec_lock_ref(request.last_node)


def tree_of(engine: LoadedEngine, rows: Any, allocator: Any, page: int, *, eagle: bool) -> CheckpointTree | CachingTree:
    """The tree of this release. Raises BadRelease."""
    tree = engine.symbol(MODULE, "RadixCache")
    for name, kind in (("checkpoint", CheckpointTree), ("cache_unfinished_req", CachingTree)):
        if hasattr(tree, name):
            return kind(engine, rows, allocator, page, eagle=eagle)
    raise engine.moved("RadixCache has neither checkpoint nor cache_unfinished_req")
