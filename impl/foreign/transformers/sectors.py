"""transformers since its cache is a pool of sectors: `PagedAttentionCache`, its pool and its allocators, with the adapter in the part of the scheduler.

A sector holds two blocks here, so that both levels work. The cache object is the engine's own without its tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.transformers.engine import BATCHING
from kvproof.impl.foreign.transformers.requests import Request, Scheduled
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused, Snapshot

BLOCKS_PER_SECTOR: Final = 2
ALIGNMENT_BYTES: Final = 128
"""What the engine aligns sectors to; a block of half of it makes sectors of two blocks."""
TRASH_SECTORS: Final = 2


class Sectors(Scheduled):
    """One group of full attention layers with block sharing."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.engine = loaded_engine()
        self.sectors = max(0, num_blocks // BLOCKS_PER_SECTOR - TRASH_SECTORS)
        self.pool = self.engine.symbol(f"{BATCHING}.cache_allocators.cache_pool", "CachePool")(self.sectors, 1)
        self.allocator = self._allocator()
        self.cache = self._cache()
        self.status = self.engine.symbol(f"{BATCHING}.requests", "RequestStatus")

    @classmethod
    def capabilities(cls) -> Capabilities:
        """The blocks of the two trash sectors are never handed out."""
        return Capabilities(
            prefix=True,
            fork=True,
            snapshot=True,
            reset=True,
            policy=frozenset({"tight", "exact"}),
            null_blocks=frozenset(range(TRASH_SECTORS * BLOCKS_PER_SECTOR)),
            capacity=lambda num_blocks: max(0, num_blocks // BLOCKS_PER_SECTOR - TRASH_SECTORS) * BLOCKS_PER_SECTOR,
        )

    def _allocator(self) -> Any:
        make = self.engine.symbol(f"{BATCHING}.cache_allocators.full_attention", "FullAttentionCacheAllocator")
        wanted_bytes = ALIGNMENT_BYTES // BLOCKS_PER_SECTOR
        token_bytes = 2  # a key and a value of one byte
        head_dim = max(1, wanted_bytes // math.gcd(wanted_bytes, self.block_size) // token_bytes)
        config = SimpleNamespace(head_dim=head_dim, num_key_value_heads=1)
        offered = {
            "index": 0,
            "config": config,
            "num_key_value_heads": 1,
            "cache_dtype": SimpleNamespace(itemsize=1),
            "page_size": self.block_size,
            "layer_indices": [0],
            "allow_block_sharing": True,
        }
        allocator = make(**self.engine.fit(make, **offered))
        bytes_per_sector = math.lcm(allocator.bytes_per_block, ALIGNMENT_BYTES)
        memory = self.engine.module(f"{BATCHING}.cache_allocators.cache_allocator").torch.zeros(1)  # the books never look at it
        allocator._after_cache_tensor_init(self.sectors * bytes_per_sector, bytes_per_sector, memory, self.pool)
        if allocator.blocks_per_sector != BLOCKS_PER_SECTOR:
            raise self.engine.moved(f"a sector holds {allocator.blocks_per_sector} blocks of {allocator.bytes_per_block} bytes")
        return allocator

    def _cache(self) -> Any:
        """A PagedAttentionCache with everything but its tensor."""
        cache = object.__new__(self.engine.symbol(f"{BATCHING}.cache", "PagedAttentionCache"))
        cache.cache_allocators = {"full_attention": self.allocator}
        cache.pool = self.pool
        cache.allow_block_sharing = cache.use_prefix_sharing = True
        return cache

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`search_prefix_match` for a pending request, then `can_store_request_tokens`."""
        request = self.requests[seq]
        pending = request.request_id not in self.allocator.block_table
        adopted = self.cache.search_prefix_match(request.request_id, request.tokens) if pending else 0
        start = request.computed + adopted
        tokens = min(count, len(request.tokens) - start)
        if not self._store(request, start, tokens):
            if pending:
                self.cache.free_blocks(request.request_id)
            raise OutOfBlocks
        request.computed, request.out = start, start + tokens
        return Grant(adopted=adopted)

    def _store(self, request: Request, start: int, tokens: int) -> bool:
        """What the scheduler does under pressure: free whole sectors, and evict all that is cached where that makes the room."""
        state = self._state(request, start)
        self.pool.try_to_free_sectors()
        if self.cache.can_store_request_tokens(state, tokens):
            return True
        needed = self.allocator.needs_new_blocks(request.request_id, start, tokens)
        if needed > len(self._free()) or not self.cache.evict_cached_blocks():
            return False
        self.pool.try_to_free_sectors()
        return bool(self.cache.can_store_request_tokens(state, tokens))

    def _state(self, request: Request, computed: int) -> Any:
        state = request.state(self.status.DECODING)
        state.current_len = lambda: computed
        return state

    def commit(self, seq: int, accepted: int) -> None:
        """`count_new_complete_blocks` and `mark_complete_blocks`."""
        request = self.requests[seq]
        complete = self.cache.count_new_complete_blocks(self._state(request, request.computed), request.out - request.computed)
        request.computed = request.out
        self.cache.mark_complete_blocks(self._state(request, request.computed), complete)

    def fork(self, parent: int, child: int) -> Grant:
        """`prepare_fork_request`."""
        source = self.requests[parent]
        if source.computed == 0:
            raise Refused("transformers forks a request after its prefill")
        copies: dict[str, tuple[list[int], list[int]]] = {"full_attention": ([], [])}
        self.pool.try_to_free_sectors()
        if not self.cache.prepare_fork_request(self._state(source, source.computed), [str(child)], copies):
            raise OutOfBlocks
        copy = self.requests[child] = Request(child, source.tokens)
        copy.computed = copy.out = source.computed
        return Grant(copies=[(0, source, target) for source, target in zip(*copies["full_attention"], strict=True)])

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`free_blocks`."""
        request = self.requests[seq]
        self.cache.free_blocks(request.request_id)
        request.computed = request.out = 0

    def reset(self) -> bool:
        """`evict_cached_blocks`, as long as nothing that is held is found by its hash."""
        ledger = self.allocator.ledger
        if set(ledger.block_to_hash) - set(ledger.cached_blocks):
            return False
        self.cache.evict_cached_blocks()
        return True

    def snapshot(self) -> Snapshot:
        """Counts are implicit in the ledger up to 1; what is cached can be handed out after an eviction."""
        ledger = self.allocator.ledger
        counts = {block: 1 for table in self.allocator.block_table.values() for block in table}
        counts.update(ledger.shared_ref_counts)
        return Snapshot(refcounts=counts, free=self._free(), cached=set(ledger.hash_to_block.values()))

    def _free(self) -> list[int]:
        leaves = [leaf for tree in self.pool._free_blocks[0].trees.values() for leaf in tree]
        whole = [sector * BLOCKS_PER_SECTOR + block for sector in self.pool.free_sectors for block in range(BLOCKS_PER_SECTOR)]
        return [*leaves, *whole, *self.allocator.ledger.cached_blocks]
