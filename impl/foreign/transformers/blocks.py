"""transformers up to the releases with sectors: `BlockManager` and its allocators, with the adapter in the part of the scheduler.

The cache object is the engine's own without its tensors: its methods work on the block manager and on the group's allocators alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from kvproof.impl.foreign.loading import LoadedEngine, loaded_engine
from kvproof.impl.foreign.transformers.engine import BATCHING
from kvproof.impl.foreign.transformers.requests import Request, Scheduled
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused, Snapshot

MANAGER = f"{BATCHING}.cache_manager"


class Full(Scheduled):
    """One group of full attention layers with block sharing."""

    groups: ClassVar[Sequence[Group]] = (Group(),)

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.engine = loaded_engine()
        self.manager = _manager(self.engine, num_blocks, block_size)
        self.allocator = self._allocator()
        self.cache = self._cache()
        self.status = self.engine.symbol(f"{BATCHING}.requests", "RequestStatus")

    @classmethod
    def capabilities(cls) -> Capabilities:
        """A full hit leaves the last token to be computed again in the block that is shared: `rewrites`."""
        return Capabilities(prefix=True, fork=True, snapshot=True, policy=frozenset({"rewrites"}), block_sizes=(4, 16))

    def _allocator(self) -> Any:
        return self.engine.symbol(MANAGER, "FullAttentionCacheAllocator")(0, self.block_size, allow_block_sharing=True)

    def _cache(self) -> Any:
        """A PagedAttentionCache with everything but its tensors."""
        cache_class = self.engine.symbol(f"{BATCHING}.cache", "PagedAttentionCache")
        cache = object.__new__(cache_class)
        sliding = self.groups[0].kind == "sliding_window"
        cache.block_size = self.block_size
        cache.num_groups = 1
        cache.num_full_attention_groups = 0 if sliding else 1
        cache.num_sliding_attention_groups = 1 if sliding else 0
        cache.max_sliding_window_blocks_per_request = self.allocator._max_blocks_per_request if sliding else 0
        cache.group_cache_managers = [self.allocator]
        cache.allow_block_sharing = cache.use_prefix_sharing = not sliding
        cache.blocks_to_complete = {}
        cache._block_manager = self.manager
        cache._total_prefix_length = 0
        return cache

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`search_prefix_match` for a pending request, then the blocks that the scheduler asks for."""
        request = self.requests[seq]
        adopted = self._search(request) if request.computed == 0 and request.allocated_blocks == 0 else 0
        start = request.computed + adopted
        tokens = min(count, len(request.tokens) - start)
        if not self._allocate(request, start, tokens):
            if adopted:
                self._free(request)
            raise OutOfBlocks
        request.computed = start
        request.out = start + tokens
        return Grant(adopted=adopted)

    def _search(self, request: Request) -> int:
        """How much of the prompt is there; even of a whole one, the last token is left."""
        if not self.cache.use_prefix_sharing:
            return 0
        found = self.cache.search_prefix_match(request.request_id, request.tokens)
        request.allocated_blocks += found // self.block_size
        return int(min(found, len(request.tokens) - 1))

    def _allocate(self, request: Request, start: int, tokens: int) -> bool:
        """The scheduler's `_allocate_blocks_if_needed`."""
        occupancy = request.allocated_blocks * self.block_size - start
        if occupancy >= tokens and request.allocated_blocks:
            return True
        needed = (tokens - occupancy + 1) // self.block_size + 1
        allocated = self.cache.allocate_blocks(needed, request.request_id, request.allocated_blocks)
        if allocated is None:
            return False
        request.allocated_blocks += allocated
        return True

    def commit(self, seq: int, accepted: int) -> None:
        """The blocks that the batch filled are marked as complete."""
        request = self.requests[seq]
        complete = request.out // self.block_size - request.computed // self.block_size
        request.computed = request.out
        state = request.state(self.status.DECODING)
        mark = self.cache.mark_shareable_blocks_as_complete
        if "num_complete_blocks" in inspect.signature(mark).parameters:
            mark(state, complete)
        else:
            self.cache.blocks_to_complete[request.request_id] = complete
            mark(state)

    def fork(self, parent: int, child: int) -> Grant:
        """`fork_request`, after asking how many forks there is room for."""
        source = self.requests[parent]
        if source.computed == 0:
            raise Refused("transformers forks a request after its prefill")
        if hasattr(self.cache, "compute_max_num_forks") and self.cache.compute_max_num_forks(source.request_id) < 1:
            raise OutOfBlocks
        copy = Request(child, source.tokens)
        try:
            sources, targets = self.cache.fork_request(source.request_id, [copy.request_id])
        except ValueError as error:
            raise OutOfBlocks(str(error)) from error
        copy.allocated_blocks, copy.computed, copy.out = source.allocated_blocks, source.computed, source.computed
        self.requests[child] = copy
        return Grant(copies=[(0, source, target) for source, target in zip(sources, targets, strict=True)])

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`free_blocks`."""
        self._free(self.requests[seq])

    def _free(self, request: Request) -> None:
        self.cache.free_blocks(request.request_id)
        request.allocated_blocks = request.computed = request.out = 0

    def snapshot(self) -> Snapshot:
        """Counts of shareable blocks, free blocks (those with content last), and the blocks that a hash leads to."""
        manager = self.manager
        counts = {number: block.ref_count for number, block in manager._id_to_block.items() if block.ref_count}
        free = [*manager._uninit_block_ids, *manager._init_block_ids]
        return Snapshot(refcounts=counts, free=free, cached=set(manager._hash_to_id.values()))


class Window(Full):
    """One group of sliding-window layers, each request with a ring of slots, seen as blocks of one token.

    The table is what the allocator gives the kernels to read and to write. A chunk behind the first that wraps around the ring is refused: transformers reads
    what was there before it writes, and the contract has a pass write first.
    """

    groups = (Group(kind="sliding_window", window=5),)

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Nothing is shared. The ring may have slots that no position has come to yet, so the books say more than the table can show, and are left out."""
        return Capabilities(groups=cls.groups, block_sizes=(1,))

    def _allocator(self) -> Any:
        make = self.engine.symbol(MANAGER, "SlidingAttentionCacheAllocator")
        offered = {
            "index": 0,
            "block_size": 1,
            "sliding_window": self.groups[0].window,
            "sentinel_index": -1,
            "write_trash_index": -1,
            "trash_index": -1,
        }
        return make(**self.engine.fit(make, **offered))

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room in the ring."""
        request, window = self.requests[seq], self.allocator.sliding_window
        tokens = min(count, len(request.tokens) - request.computed)
        if request.computed and tokens > 1 and request.computed + tokens > window:
            raise Refused("a chunk that wraps around the ring is read before it is written")
        return super().extend(seq, count, drafts)

    def commit(self, seq: int, accepted: int) -> None:
        """The batch is done."""
        self.requests[seq].computed = self.requests[seq].out

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """Position -> slot: what the next token would read, and what the pass that is out writes."""
        request = self.requests.get(seq)
        if request is None or not self.allocator.block_table.get(request.request_id):
            return []
        shown: dict[int, int] = {}
        if request.computed:
            slots = [slot for slot in self.allocator.get_read_indices(request.request_id, request.computed, 1) if slot >= 0]
            shown.update(zip(range(request.computed - len(slots), request.computed), slots, strict=True))
        if request.out > request.computed:
            written = self.allocator.get_write_indices(request.request_id, request.computed, request.out - request.computed)
            shown.update(
                (position, slot) for position, slot in zip(range(request.computed, request.out), written, strict=True) if slot >= 0
            )
        return [shown.get(position) for position in range(max(shown) + 1)] if shown else []


def _manager(engine: LoadedEngine, num_blocks: int, block_size: int) -> Any:
    make = engine.symbol(MANAGER, "BlockManager")
    return make(**engine.fit(make, num_blocks=num_blocks, block_size=block_size, tp_on=False))
