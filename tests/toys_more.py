"""More toys: a small cache that claims nearly everything, and caches that get in the way of their driver."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from toys import Toy

from kvproof import CacheAdapter, Capabilities, Event, Grant, Hit, Namespace, OutOfBlocks, Snapshot
from kvproof.models.ops import NAMESPACE_FIELDS


class Everything(CacheAdapter):
    """Claims every capability but steps and transfer, and shares nothing: every block has one owner and a fork copies.

    It matches what another live sequence has in its own blocks, by comparing tokens, and adopts it by copying.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = list(range(num_blocks))
        self.rows: dict[int, list[int]] = {}
        self.known: dict[int, list[int]] = {}
        self.space: dict[int, Namespace] = {}
        self.computed: dict[int, int] = {}
        self.asked: dict[int, tuple[int, Sequence[int]]] = {}
        self.hidden: set[int] = set()
        """Blocks that were evicted and not handed out since."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            prefix=True,
            fork=True,
            truncate=True,
            drafts=True,
            evict=True,
            reset=True,
            swap=True,
            snapshot=True,
            events=True,
            mirror=True,
            namespace_fields=frozenset(NAMESPACE_FIELDS),
        )

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        self.rows[seq], self.known[seq], self.space[seq], self.computed[seq] = [], list(prompt), namespace, 0

    def _best(self, seq: int) -> tuple[int, int]:
        """The longest whole-block prefix that another live sequence has computed, and that sequence."""
        best = (0, -1)
        for other, tokens in self.known.items():
            if other == seq or not self.rows[other] or self.space[other] != self.space[seq]:
                continue
            shared = 0
            for a, b in zip(self.known[seq][:-1], tokens[: self.computed[other]], strict=False):
                if a != b:
                    break
                shared += 1
            blocks = 0
            while blocks < shared // self.size and self.rows[other][blocks] not in self.hidden:
                blocks += 1
            best = max(best, (blocks * self.size, other))
        return best

    def match(self, seq: int) -> Hit:
        return Hit(self._best(seq)[0])

    def _grow(self, seq: int, tokens: int) -> None:
        needed = -(-tokens // self.size) - len(self.rows[seq])
        if needed > len(self.free):
            raise OutOfBlocks
        for _ in range(needed):
            self.rows[seq].append(self.free.pop())
            self.hidden.discard(self.rows[seq][-1])

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        adopted, source = self._best(seq) if self.computed[seq] == 0 else (0, -1)
        start = self.computed[seq] + adopted
        end = min(start + count, len(self.known[seq]))
        self._grow(seq, end + len(drafts))
        self.computed[seq], self.asked[seq] = start, (end, drafts)
        blocks = adopted // self.size
        copies = zip(self.rows[source][:blocks], self.rows[seq][:blocks], strict=True) if blocks else ()
        return Grant(copies=[(0, a, b) for a, b in copies], adopted=adopted)

    def commit(self, seq: int, accepted: int) -> None:
        end, drafts = self.asked.pop(seq)
        self.known[seq] += drafts[:accepted]
        self.computed[seq] = end + accepted

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        self.known[seq] += tokens

    def truncate(self, seq: int, length: int) -> None:
        del self.known[seq][length:]
        self.computed[seq] = length

    def fork(self, parent: int, child: int) -> Grant:
        self.rows[child] = []
        try:
            self._grow(child, len(self.rows[parent]) * self.size)
        except OutOfBlocks:
            del self.rows[child]
            raise
        self.known[child], self.space[child] = list(self.known[parent]), self.space[parent]
        self.computed[child] = self.computed[parent]
        return Grant(copies=[(0, a, b) for a, b in zip(self.rows[parent], self.rows[child], strict=True)])

    def release(self, seq: int, reason: str) -> None:
        self.free += reversed(self.rows[seq])
        self.rows[seq], self.computed[seq] = [], 0

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        return self.rows[seq]

    worker_table = block_table

    def evict(self, blocks: Sequence[int]) -> int:
        dropped = set(blocks) - self.hidden
        self.hidden |= dropped
        return len(dropped)

    def reset(self) -> bool:
        self.hidden.update(block for row in self.rows.values() for block in row)
        return True

    def swap_out(self, seq: int) -> bool:
        self.free += reversed(self.rows[seq])
        self.rows[seq] = []
        return True

    def swap_in(self, seq: int) -> bool:
        try:
            self._grow(seq, self.computed[seq])
        except OutOfBlocks:
            return False
        return True

    def snapshot(self) -> Snapshot:
        return Snapshot(refcounts={block: 1 for row in self.rows.values() for block in row}, free=self.free)

    def take_events(self) -> Sequence[Event]:
        return []


class Stepping(Everything):
    """Claims steps as well: what is let go of while passes run waits until none does."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.ready: set[int] = set()
        """Sequences whose pass runs with the next step."""
        self.running: dict[int, bool] = {}
        """Whether any pass runs in an open step."""
        self.begun = 0
        self.waiting: list[int] = []

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(steps=True, truncate=True, drafts=True)

    def _best(self, seq: int) -> tuple[int, int]:
        return (0, -1)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        grant = super().extend(seq, count, drafts)
        self.ready.add(seq)
        return grant

    def begin_step(self) -> int:
        self.running[self.begun] = bool(self.ready)
        self.ready.clear()
        self.begun += 1
        return self.begun - 1

    def end_step(self, step: int) -> None:
        del self.running[step]
        if not any(self.running.values()):
            self.free += self.waiting
            self.waiting = []

    def release(self, seq: int, reason: str) -> None:
        self.ready.discard(seq)
        if any(self.running.values()):
            self.waiting += self.rows[seq]
            self.rows[seq] = []
        super().release(seq, reason)


class Swallowing(Toy):
    """Never gets out of its commit, and swallows what would get it out."""

    def commit(self, seq: int, accepted: int) -> None:
        while True:
            try:
                while True:
                    time.sleep(0.001)
            except Exception:  # noqa: BLE001 -- that is what it is for
                continue


class Dying(Toy):
    """Takes its process with it once a long prompt is committed."""

    exit_code = 7

    def commit(self, seq: int, accepted: int) -> None:
        if self.known[seq] > 3:
            os._exit(self.exit_code)
        super().commit(seq, accepted)


class Leaving(Dying):
    """The same, as if all had gone well."""

    exit_code = 0


class Crashing(Toy):
    """Is killed in its first commit, as by a bad address."""

    def commit(self, seq: int, accepted: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Deaf(Toy):
    """Blocks the alarm that would stop it, and hangs in its first commit."""

    def commit(self, seq: int, accepted: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(3600)


class Tiring(Toy):
    """Loses a block of every sequence that is released after its hundredth extend: no short program comes that far."""

    extends = 0

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        self.extends += 1
        return super().extend(seq, count, drafts)

    def release(self, seq: int, reason: str) -> None:
        if self.extends > 100:
            self.rows[seq] = self.rows[seq][1:]
        super().release(seq, reason)


class Slow(Toy):
    """Takes its time over every operation."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        time.sleep(0.02)
        return super().extend(seq, count, drafts)


class Greedy(Toy):
    """Gives every sequence one block too many, which breaks `tight`, and forgets that it did when it gives them back."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        grant = super().extend(seq, count, drafts)
        if self.free:
            self.rows[seq].append(self.free.pop())
        return grant


class Raising(Toy):
    """Raises an exception of its own where it finds no room."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        try:
            return super().extend(seq, count, drafts)
        except OutOfBlocks:
            raise IndexError("pop from empty list") from None


class RaisingHalfway(Toy):
    """The same, and what it had taken by then stays taken."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        row, end = self.rows[seq], min(self.computed[seq] + count, self.known[seq])
        while len(row) * self.block_size < end:
            row.append(self.free.pop())
        self.asked[seq] = end
        return Grant()


class RaisingAgain(Toy):
    """A second release of what is gone raises."""

    def release(self, seq: int, reason: str) -> None:
        if seq not in self.rows:
            raise KeyError(seq)
        super().release(seq, reason)
        if reason != "preempt":
            del self.rows[seq]
