"""How SGLang's radix tree is asked, in the releases that differ: what the scheduler says to it about one request.

`CheckpointTree` is the tree since 0.5.22, whose `checkpoint` takes a request as far as it is computed. `CachingTree` is the one before, with `cache_unfinished_req` and
`cache_finished_req`; its arguments, and what it reads of a request, moved several times. Both are recognised by the names that they have. Which class the tree is of, and
how its nodes are read, says a `Shape`: `PLAIN` is `RadixCache`, and `unified.py` has the other one.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

from kvproof.impl.foreign.loading import LoadedEngine
from kvproof.impl.foreign.sglang.engine import CACHE

MODULE = f"{CACHE}.radix_cache"


RECEIPT: Final = ("swa_uuid_for_lock", "skip_lock_node_ids")
"""What a request keeps of its lock besides the receipt, in releases that have such."""


class Request(SimpleNamespace):
    """A request, as far as the trees and the adapter look at it. Its record `kv` is itself, since releases differ in what stands where."""

    tokens: list[int]
    """All that are known."""
    prompt: int
    """How many of them are the prompt."""
    computed: int
    out: int
    """One past the last token of the pass that is out, or else what is computed."""
    done: bool
    """Whether what the tree is told of now is the last of it."""
    window_start: int
    """Where the window's slots start that it still has."""
    cache_protected_len: int
    kv: Request | None
    """None while it holds nothing."""
    req_pool_idx: int

    def get_fill_ids(self) -> Any:
        """The tokens that the tree is told of now."""
        return self.fill_ids

    def pop_committed_kv_cache(self) -> int:
        """How many tokens are computed."""
        return self.computed

    def finished(self) -> bool:
        """Whether what the tree is told of now is the last of it."""
        return self.done

    def get_evicted_seqlen(self, component: Any) -> int:
        """Where the window's slots start that it still has."""
        return self.window_start if component.is_swa else 0

    def set_evicted_seqlen(self, component: Any, length: int) -> None:
        """The window's slots before `length` are gone."""
        assert component.is_swa
        self.window_start = length

    @property
    def swa_evicted_seqlen(self) -> int:
        """The same, as releases before 0.5.22 ask for it."""
        return self.window_start

    @swa_evicted_seqlen.setter
    def swa_evicted_seqlen(self, length: int) -> None:
        self.window_start = length

    def swa_dead_lo(self, page_size: int) -> int:
        """The lowest position whose window slot is its own to free."""
        return self.cache_protected_len

    @property
    def holds_kv(self) -> bool:
        """Whether it has a row."""
        return self.kv is not None


class Shape:
    """`RadixCache`: which class a tree is of, what it takes besides what all trees take, and how its nodes are read."""

    module = MODULE
    name = "RadixCache"

    def extras(self, engine: LoadedEngine) -> dict[str, Any]:
        """Arguments that only this class takes."""
        return {}

    def nodes(self, tree: Any) -> Iterator[tuple[Any, bool]]:
        """The slots of each node, and whether it is locked."""
        return ((node.value, node.lock_ref > 0) for node in below(tree.root_node))


PLAIN: Final = Shape()


def below(root: Any) -> Iterator[Any]:
    """All nodes but the root."""
    nodes = list(root.children.values())
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        yield node


class Tree:
    """What both kinds share: building a tree, keys, and looking up."""

    def __init__(self, engine: LoadedEngine, shape: Shape, rows: Any, allocator: Any, page: int, *, eagle: bool) -> None:
        self.engine, self.shape, self.rows, self.allocator, self.page = engine, shape, rows, allocator, page
        self.module = engine.module(MODULE)
        self.key_class = engine.optional(MODULE, "RadixKey")
        self.match_params = engine.optional(f"{CACHE}.base_prefix_cache", "MatchPrefixParams")
        self.salted = self.key_class is not None and "cache_salt" in inspect.signature(self.key_class).parameters
        self.tree = self._build(eagle=eagle)

    def _build(self, *, eagle: bool) -> Any:
        tree = self.engine.symbol(self.shape.module, self.shape.name)
        offered: dict[str, Any] = {
            **self.shape.extras(self.engine),
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
            raise self.engine.moved(f"{self.shape.name} takes no is_eagle")
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
        request.last_node, request.swa_branching_seqlen = found.last_device_node, getattr(found, "swa_branching_seqlen", None)
        request.lock = self.tree.lock(request.last_node)
        return self.tree.path_device_indices(request.last_node)[: found.device_prefix_len]

    def checkpoint(self, request: Request) -> None:
        """`checkpoint`."""
        request.full_untruncated_fill_ids = self.tokens(request.tokens)
        self.tree.checkpoint(request, up_to=request.computed)

    def leave(self, request: Request, *, keep: bool) -> None:
        """`release_kv_cache`."""
        if keep:
            request.done = True
            self.checkpoint(request)
        self.give_back(request, request.cache_protected_len)
        self.drop(request)

    def give_back(self, request: Request, start: int) -> None:
        """`free_kv_row` from `start` on, or `free_segment` where there is none."""
        if hasattr(self.tree, "free_kv_row"):
            self.tree.free_kv_row(request, [(start, request.computed)])
            return
        row = self.rows.req_to_token[request.req_pool_idx]
        self.allocator.free_segment(row[start : request.computed], start_pos=start)

    def drop(self, request: Request) -> None:
        """`unlock`."""
        self.tree.unlock(request.lock)


class CachingTree(Tree):
    """Before 0.5.22. A request that finishes has sampled one token more than it has computed, so there is always one more in what the tree is told."""

    def __init__(self, engine: LoadedEngine, shape: Shape, rows: Any, allocator: Any, page: int, *, eagle: bool) -> None:
        super().__init__(engine, shape, rows, allocator, page, eagle=eagle)
        finish = getattr(self.tree, "cache_finished_req", None)
        self.finish_takes = frozenset(inspect.signature(finish).parameters if finish else ())
        """What `cache_finished_req` takes; 0.5.21 has none, and inserts what is kept with `insert_req`."""
        self.evict_params = engine.optional(f"{CACHE}.base_prefix_cache", "EvictParams")

    def evict(self, tokens: int) -> None:
        """`evict`, where the free slots do not suffice."""
        if tokens > self.allocator.available_size():
            self.tree.evict(self.evict_params(num_tokens=tokens) if self.evict_params else tokens)

    def enter(self, request: Request, found: Any) -> Any:
        """`inc_lock_ref`."""
        request.prefix_indices, request.last_node = found.device_indices, found.last_device_node
        request.cache_protected_len = request.last_matched_prefix_len = len(found.device_indices)
        request.swa_branching_seqlen = getattr(found, "swa_branching_seqlen", None)
        locked = self.tree.inc_lock_ref(request.last_node)
        for name in RECEIPT:
            setattr(request, name, getattr(locked, name, None))
        request.lock_receipt = locked.to_dec_params() if hasattr(locked, "to_dec_params") else None
        return found.device_indices

    def checkpoint(self, request: Request) -> None:
        """`cache_unfinished_req`."""
        self.tree.cache_unfinished_req(request)

    def leave(self, request: Request, *, keep: bool) -> None:
        """`cache_finished_req`, or where that cannot be told to keep nothing, what a retraction does."""
        if not self.finish_takes:
            self._insert_and_leave(request, keep=keep)
            return
        if not keep and "is_insert" not in self.finish_takes:
            start = len(request.prefix_indices) // self.page * self.page
            self.allocator.free(self.rows.req_to_token[request.req_pool_idx, start : request.computed])
            self.drop(request)
            return
        self._tell_tokens(request)
        told = {"is_insert": keep, "kv_len_to_handle": request.computed}
        self.tree.cache_finished_req(request, **{name: value for name, value in told.items() if name in self.finish_takes})

    def _tell_tokens(self, request: Request) -> None:
        known = [*request.tokens[: request.computed], 0]
        request.origin_input_ids, request.output_ids = self.tokens(known[: request.prompt]), self.tokens(known[request.prompt :])
        if not request.output_ids:
            request.origin_input_ids, request.output_ids = self.tokens(known[:-1]), self.tokens(known[-1:])

    def _insert_and_leave(self, request: Request, *, keep: bool) -> None:
        """`release_kv_cache` of 0.5.21: `insert_req`, `free_kv_row` of what the tree does not own, and the lock."""
        if keep:
            self._tell_tokens(request)
            request.done = True
            self.tree.insert_req(request, up_to=request.computed)
        self.tree.free_kv_row(request, [(request.cache_protected_len, request.computed)])
        self.drop(request)

    def drop(self, request: Request) -> None:
        """`dec_lock_ref`."""
        receipt = () if request.lock_receipt is None else (request.lock_receipt,)
        self.tree.dec_lock_ref(request.last_node, *receipt)


def tree_of(engine: LoadedEngine, shape: Shape, rows: Any, allocator: Any, page: int, *, eagle: bool) -> CheckpointTree | CachingTree:
    """The tree of this release. Raises BadRelease."""
    tree = engine.symbol(shape.module, shape.name)
    for name, kind in (("checkpoint", CheckpointTree), ("cache_unfinished_req", CachingTree)):
        if hasattr(tree, name):
            return kind(engine, shape, rows, allocator, page, eagle=eagle)
    raise engine.moved(f"{shape.name} has neither checkpoint nor cache_unfinished_req")
