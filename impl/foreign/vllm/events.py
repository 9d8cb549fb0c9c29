"""vLLM's engine V1 with KV events: what a router that listens would believe is compared with the index.

Events name hashes, and several blocks may have the same one: each of them is stored and removed by an event of its own. So a listener counts, and its count of a
hash has to be the number of blocks that the index has under it. The adapter turns counts into blocks, since the contract's events name blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.v1 import Full, Hybrid, surface
from kvproof.models.capabilities import Capabilities
from kvproof.models.outcomes import Event


class Events(Full):
    """Full attention with prefix caching and events."""

    events = True
    tells_apart = frozenset({"adapter"})  # which events name too

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.told: Counter[Any] = Counter()
        """Hash -> how many blocks a listener believes to be stored under it."""
        self.shown: set[int] = set()
        """The blocks that these beliefs were turned into last time."""
        self.last_block: dict[Any, int] = {}
        """Hash -> a block that had it."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the manager, and events."""
        if not hasattr(surface().utils, "maybe_convert_block_hash"):
            raise loaded_engine().moved("kv_cache_utils has no maybe_convert_block_hash, so hashes in events cannot be told")
        return msgspec.structs.replace(super().capabilities(), events=True)

    def take_events(self) -> Sequence[Event]:
        """`take_events`, as the blocks that a listener would count."""
        for event in self.manager.take_events():
            name = type(event).__name__
            if name == "AllBlocksCleared":
                self.told.clear()
            else:
                self.told.update(dict.fromkeys(event.block_hashes, 1 if name == "BlockStored" else -1))
        believed = self._believed()
        changes = [Event("removed", sorted(self.shown - believed)), Event("stored", sorted(believed - self.shown))]
        self.shown = believed
        return [change for change in changes if change.blocks]

    def _believed(self) -> set[int]:
        """For each hash as many of its blocks as a listener counts; where it counts too many, a block that had the hash once."""
        blocks = self._blocks_by_hash()
        believed: set[int] = set()
        for digest, count in self.told.items():
            found = blocks.get(digest, [])
            believed.update(found[: max(count, 0)])
            if count > len(found):
                believed.add(self.last_block[digest])
        self.last_block.update((digest, found[-1]) for digest, found in blocks.items())
        return believed - self.nulls

    def _blocks_by_hash(self) -> dict[Any, list[int]]:
        """Hash, as in an event -> the blocks that the index has under it."""
        utils = self.surface.utils
        index = self.surface.pool(self.manager).cached_block_hash_to_block
        blocks: defaultdict[Any, list[int]] = defaultdict(list)
        for key, found in getattr(index, "_cache", index).items():
            digest = utils.maybe_convert_block_hash(utils.get_block_hash(key))
            blocks[digest] += [block.block_id for block in (found.values() if isinstance(found, dict) else (found,))]
        return blocks


class HybridEvents(Hybrid, Events):
    """Full layers beside layers with a window of five tokens."""

    tells_apart = Events.tells_apart
