"""Tiny caches to try tools on: a free-list allocator, and the same with one thing wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvproof import CacheAdapter, Capabilities, Grant, Namespace, OutOfBlocks, Refused, Snapshot


class Toy(CacheAdapter):
    """A free list, block tables, and nothing shared."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.rows: dict[int, list[int]] = {}
        self.known: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.asked: dict[int, int] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(snapshot=True, policy=frozenset({"tight", "exact"}))

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        self.rows[seq], self.known[seq], self.computed[seq] = [], len(prompt), 0

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        row, end = self.rows[seq], min(self.computed[seq] + count, self.known[seq])
        needed = -(-end // self.block_size) - len(row)
        if needed > len(self.free):
            raise OutOfBlocks
        for _ in range(needed):
            row.append(self.free.pop())
        self.asked[seq] = end
        return Grant()

    def commit(self, seq: int, accepted: int) -> None:
        self.computed[seq] = self.asked[seq]

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        self.known[seq] += len(tokens)

    def release(self, seq: int, reason: str) -> None:
        self.free += reversed(self.rows.get(seq, []))
        self.rows[seq], self.computed[seq] = [], 0

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        return self.rows[seq]

    def snapshot(self) -> Snapshot:
        held = {block: 1 for row in self.rows.values() for block in row}
        return Snapshot(refcounts=held, free=tuple(self.free), cached=(), retiring=())


class Silent(Toy):
    """The same, without books: only what its tables show can be judged."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities()


class Leaky(Silent):
    """Loses the last block of every cancelled sequence."""

    def release(self, seq: int, reason: str) -> None:
        if reason == "cancel":
            self.rows[seq] = self.rows[seq][:-1]
        super().release(seq, reason)


class DoubleFree(Silent):
    """Gives back the blocks of a preempted sequence twice: a later owner shares them with a stranger."""

    def release(self, seq: int, reason: str) -> None:
        if reason == "preempt":
            self.free += self.rows[seq]
        super().release(seq, reason)


class Refusing(Toy):
    """Claims truncation, and never does it."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(truncate=True)

    def truncate(self, seq: int, length: int) -> None:
        raise Refused("this engine never rolls back")


class RefusingAll(Toy):
    """Never makes room, so it never computes anything."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        raise Refused("never")


class Faulty(Toy):
    """Its adapter, not the cache, is wrong: extend must return a Grant."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        super().extend(seq, count, drafts)
        return None  # type: ignore[return-value]


class Hanging(Toy):
    """Commit never ends."""

    def commit(self, seq: int, accepted: int) -> None:
        while True:
            time.sleep(0.01)
