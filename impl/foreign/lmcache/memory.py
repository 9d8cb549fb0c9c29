"""LMCache's `TensorMemoryAllocator` with its memory objects: an explicit list of free ranges of bytes, and a count of holders in each object.

A block is a memory object of one chunk of tokens. What LMCache does with it is played here: a writer allocates (one object, or a batch in one call), readers of the
same chunks take a reference each, and whoever has done gives it back; the last one frees the bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.lmcache.engine import ALLOCATORS, MANAGEMENT
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.models.capabilities import Capabilities
from kvproof.models.layouts import blocks_for
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused, Snapshot

CHUNK_BYTES: Final = 4096
"""Bytes of one block, which is also the alignment."""


def allocator_class(module: str, name: str) -> Any:
    """An allocator, from the module of its own that newer releases have."""
    engine = loaded_engine()
    own = f"{ALLOCATORS}.{module}"
    return engine.symbol(own if engine.has(own) else MANAGEMENT, name)


class Tensors(EngineAdapter):
    """No index: which chunk is where is for LMCache's backends to know, which are not driven."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        engine = loaded_engine()
        self.make = allocator_class("tensor_memory_allocator", "TensorMemoryAllocator")
        self.torch = torch = engine.module(MANAGEMENT).torch
        self.shape, self.dtype = torch.Size([CHUNK_BYTES]), torch.uint8
        self.allocator = self.make(torch.zeros(num_blocks * CHUNK_BYTES, dtype=torch.uint8), align_bytes=CHUNK_BYTES)
        self.parent = {"parent_allocator": self.allocator} if "parent_allocator" in inspect.signature(self.make.allocate).parameters else {}
        self.in_pieces = hasattr(getattr(self.allocator, "address_manager", None), "batched_allocate")
        """Whether a batch may lie in several pieces. Before, one that finds no room in one piece is no news: LMCache evicts and tries again."""
        self.block_size = block_size
        self.known: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.out: dict[int, int] = {}
        self.held: dict[int, list[Any]] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Counts of holders, and readers that share whole chunks."""
        return Capabilities(fork=True, snapshot=True, policy=frozenset({"tight", "exact"}))

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """Nothing is stored yet."""
        self.known[seq], self.computed[seq], self.held[seq] = len(prompt), 0, []

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`allocate` for one chunk more; for several, `batched_allocate` where a batch need not lie in one piece (since the address manager takes batches)."""
        end = min(self.computed[seq] + count, self.known[seq])
        needed = blocks_for(end, self.block_size) - len(self.held[seq])
        if needed:
            self.held[seq] += self._batch(needed) if needed > 1 and self.in_pieces else self._singly(needed)
        self.out[seq] = end
        return Grant()

    def _singly(self, count: int) -> list[Any]:
        taken: list[Any] = []
        for _ in range(count):
            found = self.allocator.allocate(self.shape, self.dtype, **self.parent)
            if found is None:
                for other in taken:
                    other.ref_count_down()
                raise OutOfBlocks
            taken.append(found)
        return taken

    def _batch(self, count: int) -> list[Any]:
        found = self.allocator.batched_allocate(self.shape, self.dtype, count, **self.parent)
        if found is None:
            raise OutOfBlocks
        return list(found)

    def commit(self, seq: int, accepted: int) -> None:
        """The chunks are written."""
        self.computed[seq] = self.out.pop(seq)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """More to store."""
        self.known[seq] += len(tokens)

    def fork(self, parent: int, child: int) -> Grant:
        """A reader of whole chunks takes a reference to each (`ref_count_up`)."""
        if self.computed[parent] % self.block_size:
            raise Refused("LMCache shares whole chunks")
        for found in self.held[parent]:
            found.ref_count_up()
        self.known[child], self.computed[child] = self.known[parent], self.computed[parent]
        self.held[child] = list(self.held[parent])
        return Grant()

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`ref_count_down`."""
        for found in self.held.get(seq, ()):
            found.ref_count_down()
        self.held[seq] = []
        self.computed[seq] = 0
        self.out.pop(seq, None)

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The addresses of the objects, in chunks."""
        return [found.meta.address // CHUNK_BYTES for found in self.held.get(seq, ())]

    def snapshot(self) -> Snapshot:
        """The counts of the objects, the free ranges, and what is left by the allocator's own counter."""
        counts = {found.meta.address // CHUNK_BYTES: found.get_ref_count() for row in self.held.values() for found in row}
        left = self.allocator.buffer.numel() - self.allocator.total_allocated_size
        return Snapshot(refcounts=counts, free=self._free(), free_count=left // CHUNK_BYTES)

    def _free(self) -> list[int]:
        """The blocks in the free ranges."""
        manager = getattr(self.allocator, "address_manager", None)
        ranges = self.allocator.explicit_list if manager is None else manager._explicit_list
        return [block for one in ranges for block in range(one.start // CHUNK_BYTES, (one.start + one.size) // CHUNK_BYTES)]
