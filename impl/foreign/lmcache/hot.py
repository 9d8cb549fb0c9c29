"""LMCache's `LocalCPUBackend`: the index of chunks in CPU RAM over the allocator, with the adapter in the part of its engine.

The class is the engine's own, made without its `__init__`, which wants a CUDA stream. A request looks its chunks up and pins them when it is admitted; what is computed
is put chunk by chunk; what has finished is unpinned. Chunks are loaded and stored whole, so a pass that ends inside one is refused.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from kvproof.impl.foreign.adapter import without_init
from kvproof.impl.foreign.lmcache.engine import HOT, STORAGE
from kvproof.impl.foreign.lmcache.memory import CHUNK_BYTES, Tensors, allocator_class
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot


class Hot(Tensors):
    """Chunks are found by all tokens up to their end, so no hash is judged here."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        engine = loaded_engine()
        mixed = allocator_class("mixed_memory_allocator", "MixedMemoryAllocator")
        self.mixed = without_init(mixed, pin_allocator=self.allocator, host_mem_lock=threading.Lock())
        policy = engine.optional(f"{STORAGE}.cache_policy", "get_cache_policy")
        self.backend = without_init(
            engine.symbol(HOT, "LocalCPUBackend"), hot_cache=OrderedDict(), use_hot=True, lookup_server=None, memory_allocator=self.mixed,
            lmcache_worker=None, instance_id="", cpu_lock=threading.Lock(), stats_monitor=self.allocator.stats_monitor, usage=0, layerwise=False,
            enable_blending=False, keys_in_request=[], cache_policy=None if policy is None else policy("LRU"), _listener=None, batched_msg_sender=None,
        )  # fmt: skip
        self.at_once = {"busy_loop": False} if "busy_loop" in inspect.signature(self.backend.allocate).parameters else {}
        self.key_class = engine.symbol("lmcache.utils", "CacheEngineKey")
        named = {"fmt": "vllm", "model_name": "model", "world_size": 1, "worker_id": 0, "chunk_hash": (), "dtype": self.torch.float32}
        self.named = engine.fit(self.key_class, **named)
        self.tokens: dict[int, list[int]] = {}
        self.found: dict[int, int] = {}
        """Sequence -> how many of its chunks were found, and are pinned rather than held."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """No counts: a pin is no number here."""
        return Capabilities(prefix=True, snapshot=True, policy=frozenset({"tight"}), block_sizes=(1, 2, 4))

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request that knows its prompt."""
        super().admit(seq, prompt, namespace)
        self.tokens[seq], self.found[seq] = list(prompt), 0

    def _key(self, seq: int, chunk: int) -> Any:
        return self.key_class(**{**self.named, "chunk_hash": tuple(self.tokens[seq][: (chunk + 1) * self.block_size])})

    def _look_up(self, seq: int, *, pin: bool) -> int:
        """`contains` for one chunk after another; the last token is left to compute."""
        chunks = (len(self.tokens[seq]) - 1) // self.block_size
        return next((chunk for chunk in range(chunks) if not self.backend.contains(self._key(seq, chunk), pin)), chunks)

    def match(self, seq: int) -> Hit:
        """A look-up that pins nothing."""
        return Hit(self._look_up(seq, pin=False) * self.block_size)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """A look-up that pins, and `allocate` for each chunk more. What can be evicted has to suffice before anything is."""
        first = not self.held[seq]
        start = self._look_up(seq, pin=False) * self.block_size if first else self.computed[seq]
        end = min(start + count, self.known[seq])
        if end % self.block_size:
            raise Refused("LMCache stores whole chunks")
        needed = (end - start) // self.block_size
        # What this request finds is pinned first, so it cannot be evicted for it.
        own = {self._key(seq, chunk) for chunk in range(start // self.block_size)} if first else set()
        if needed > len(self._free()) + sum(self._evictable(key) for key in self.backend.hot_cache if key not in own):
            raise OutOfBlocks
        if first:
            self.found[seq] = self._look_up(seq, pin=True)
            self.held[seq] = [self.backend.hot_cache[self._key(seq, chunk)] for chunk in range(self.found[seq])]
            self.computed[seq] = start
        self.held[seq] += [self.backend.allocate(self.shape, self.dtype, **self.at_once) for _ in range(needed)]
        self.out[seq] = end
        return Grant(adopted=start if first else 0)

    def commit(self, seq: int, accepted: int) -> None:
        """`submit_put_task` for each new chunk."""
        before = self.computed[seq] // self.block_size
        super().commit(seq, accepted)
        for chunk in range(before, self.computed[seq] // self.block_size):
            self.backend.submit_put_task(self._key(seq, chunk), self.held[seq][chunk])

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """More to store."""
        super().append(seq, tokens)
        self.tokens[seq] += tokens

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`unpin` what was found, `ref_count_down` for the rest."""
        for chunk, found in enumerate(self.held.get(seq, ())):
            if chunk < self.found[seq]:
                self.backend.unpin(self._key(seq, chunk))
            else:
                found.ref_count_down()
        self.held[seq], self.found[seq], self.computed[seq] = [], 0, 0
        self.out.pop(seq, None)

    def _evictable(self, key: Any) -> bool:
        found = self.backend.hot_cache[key]
        return bool(found.can_evict) if hasattr(found, "can_evict") else found.get_ref_count() <= 1 and not found.is_pinned

    def snapshot(self) -> Snapshot:
        """Free chunks, and those in the index that nobody uses."""
        index = self.backend.hot_cache
        idle = [found.meta.address // CHUNK_BYTES for key, found in index.items() if self._evictable(key)]
        cached = {found.meta.address // CHUNK_BYTES for found in index.values()}
        return Snapshot(free=[*self._free(), *idle], cached=cached)
