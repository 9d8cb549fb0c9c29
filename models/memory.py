"""Ghost memory: for every physical slot, what a forward pass would have left there.

A content is one integer: the interned prefix (namespace, all tokens up to the position) and the group of layers. Device work runs in queue order, so a write
is visible to everything that is queued after it; only work that was never launched can still be taken back, when its sequence is released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

How: TypeAlias = Literal["reused", "evicted", "reset", "rejected", "abandoned", "overwritten", "zeroed"]
"""Why a content can no longer be matched where it was."""


class Lost(msgspec.Struct, frozen=True):
    """Where a content was last, and what became of it."""

    how: How
    block: int
    step: int


class Work(msgspec.Struct):
    """Device work of one pass, in the order it runs: clear, copy as one batch, write."""

    zeroed: Sequence[int] = ()
    copies: Sequence[tuple[int, int]] = ()
    writes: Sequence[tuple[int, int]] = ()
    """(slot, content) pairs."""


EMPTY = 0
UNKNOWN = -1
"""The content of a slot of which nothing is known, where a history begins in the middle: whatever is first needed there is believed."""

LOSSES_PER_SLOT: Final = 1
"""How many lost contents are remembered, for each slot of the pool: a law is named by what became of a content, and a long run loses millions."""

LEAST_LOSSES: Final = 4096
"""Small pools lose much in little time, so they remember at least that many."""


class GhostMemory:
    """The contents of `num_blocks` blocks of `stride` slots each, seen as of the last queued work."""

    def __init__(self, num_blocks: int, stride: int) -> None:
        self.stride = stride
        self.slots = [EMPTY] * (num_blocks * stride)
        self._nothing = [EMPTY] * stride
        self.drafts: set[int] = set()
        """Slots whose content is a draft that was not accepted yet."""
        self.forgotten: dict[int, How] = {}
        """Blocks whose content was evicted or reset and not published again since."""
        self.lost: dict[int, Lost] = {}
        self.proven: set[int] = set()
        """Blocks that a hit has shown to be matchable since they were last filled: no other block could have served it."""
        self.generations = [0] * num_blocks
        """How often each block was handed out: generation 3 of block 7 is `b7#3` in pictures."""
        self.touched: set[int] = set()
        """Blocks whose slots changed since the spec last looked."""
        self.step = 0
        self.blurred = False
        """Whether some slots may be UNKNOWN."""
        self._most_losses = max(LEAST_LOSSES, LOSSES_PER_SLOT * num_blocks * stride)
        self._where: dict[int, set[int]] = {}
        self.doubled: set[int] = set()
        """The contents that lie in more than one slot."""
        self._launched = list(self.slots)
        """The slots as the launched work leaves them, but for those in `_ahead`."""
        self._ahead: set[int] = set()
        """Slots that changed since `_launched` was last brought up to date."""
        self._queue: list[Work] = []

    # -- reading ----------------------------------------------------------------------------------------------------------------------------

    def where(self, content: int) -> Collection[int]:
        """The slots that hold `content` now."""
        return self._where.get(content, ())

    def blocks_showing(self, contents: Iterable[int]) -> list[int]:
        """The blocks that hold one of `contents` now, as often as they do."""
        where, stride = self._where, self.stride
        return [slot // stride for content in contents for slot in where.get(content, ())]

    def block_of(self, slot: int) -> int:
        """The block that `slot` lies in."""
        return slot // self.stride

    def holds(self, block: int, contents: Sequence[int], offset: int = 0) -> bool:
        """Whether the slots of `block` from `offset` on show exactly `contents`."""
        start = block * self.stride + offset
        return self.slots[start : start + len(contents)] == list(contents)

    # -- device work ------------------------------------------------------------------------------------------------------------------------

    def run(self, work: Work, *, launched: bool) -> None:
        """Run `work` in queue order. Work that is not launched yet can be taken back by `abandon`."""
        if not launched and not self._queue:
            self._catch_up()
        self._run(work)
        if not launched:
            self._queue.append(work)
        elif self._queue:
            self._overtake(work)

    def launch(self) -> None:
        """Everything queued is now on the device and can no longer be taken back."""
        self._catch_up()
        self._queue.clear()

    def abandon(self, work: Work) -> None:
        """Work that was queued but never launched never runs: replay the rest of the queue without it."""
        self._queue.remove(work)
        then = list(self._launched)
        for other in self._queue:
            self._apply(then, other)
        # Not only what changed since: a copy that found the same content as its target had may find another now.
        for slot, content in enumerate(then):
            if self.slots[slot] != content:
                self.put(slot, content, "abandoned")

    def blur(self) -> None:
        """The history begins in the middle: any content may lie anywhere."""
        self.blurred = True
        self.slots = [UNKNOWN] * len(self.slots)
        self._launched = list(self.slots)

    def learn(self, block: int, contents: Sequence[int], offset: int = 0) -> bool:
        """Believe that the unknown ones of these slots show `contents`; whether that leaves all as they should be."""
        if self.blurred:
            for slot, content in enumerate(contents, block * self.stride + offset):
                if self.slots[slot] == UNKNOWN:
                    self.put(slot, content)
                    self._launched[slot] = content
        return self.holds(block, contents, offset)

    def contents(self) -> Iterator[int]:
        """Every content that is in a slot, is queued to be written, or is remembered as lost."""
        yield from self._where
        yield from (content for slot in self._ahead if (content := self._launched[slot]) > EMPTY)
        yield from (content for work in self._queue for _, content in work.writes)
        yield from self.lost

    def _catch_up(self) -> None:
        for slot in self._ahead:
            self._launched[slot] = self.slots[slot]
        self._ahead.clear()

    def clear(self, block: int, how: How) -> None:
        """Nothing in `block` is content any more, whatever becomes of the queue: it was handed out, and a new generation of it begins."""
        first = block * self.stride
        self._empty(block, how)
        self._launched[first : first + self.stride] = self._nothing
        if self.forgotten:
            self.forgotten.pop(block, None)
        self.proven.discard(block)
        self.generations[block] += 1

    def _empty(self, block: int, how: How) -> None:
        shown = self._block(block)
        if shown != self._nothing:
            self._put([(slot, EMPTY) for slot, content in enumerate(shown, block * self.stride) if content], how)

    def forget(self, block: int, how: How) -> None:
        """What `block` holds is no longer matchable, until a holder publishes it again or the block is handed out.

        Where the history begins in the middle, there may be holders of which nothing is known, so nothing is held against the cache.
        """
        if self.blurred:
            return
        self.forgotten[block] = how
        self.proven.discard(block)
        self.touched.add(block)

    def reject(self, slot: int, content: int) -> None:
        """The draft `content` in `slot` never was a token."""
        if self.slots[slot] == content and slot in self.drafts:
            self.put(slot, EMPTY, "rejected")
            self._launched[slot] = EMPTY

    def put(self, slot: int, content: int, how: How = "overwritten") -> None:
        """`slot` now shows `content`; what it showed before is lost in the way `how` says."""
        self._put(((slot, content),), how)

    def _put(self, writes: Iterable[tuple[int, int]], how: How) -> None:
        """The same for many slots: a prompt is hundreds of them."""
        slots, where, drafts, ahead, stride = self.slots, self._where, self.drafts, self._ahead, self.stride
        for slot, content in writes:
            old = slots[slot]
            if old != content:
                if old > EMPTY:
                    self._lose(slot, old, Lost(how, slot // stride, self.step))
                if content:
                    found = where.get(content)
                    if found is None:
                        where[content] = {slot}
                    else:
                        found.add(slot)
                        self.doubled.add(content)
                slots[slot] = content
                ahead.add(slot)
            if drafts:
                drafts.discard(slot)
            self.touched.add(slot // stride)

    def _lose(self, slot: int, content: int, lost: Lost) -> None:
        places = self._where[content]
        places.discard(slot)
        if not places:
            del self._where[content]
        elif len(places) == 1:
            self.doubled.discard(content)
        self.lost.pop(content, None)
        self.lost[content] = lost
        if len(self.lost) > self._most_losses:
            del self.lost[next(iter(self.lost))]

    def _run(self, work: Work) -> None:
        for block in work.zeroed:
            self._empty(block, "zeroed")
        moved = [(target * self.stride, self._block(source)) for source, target in work.copies] if work.copies else ()
        for first, contents in moved:
            self._put([(slot, content) for slot, content in enumerate(contents, first) if self.slots[slot] != content], "overwritten")
        if work.writes:
            self._put(work.writes, "overwritten")

    def _apply(self, slots: list[int], work: Work) -> None:
        stride = self.stride
        for block in work.zeroed:
            slots[block * stride : (block + 1) * stride] = [EMPTY] * stride
        moved = [(target, slots[source * stride : (source + 1) * stride]) for source, target in work.copies]
        for target, contents in moved:
            slots[target * stride : (target + 1) * stride] = contents
        for slot, content in work.writes:
            slots[slot] = content

    def _overtake(self, work: Work) -> None:
        """Work that runs at once although other work still waits (the copies of a fork): it reads what the queue will have left there."""
        for slot in [s for _, target in work.copies for s in range(target * self.stride, (target + 1) * self.stride)]:
            self._launched[slot] = self.slots[slot]
        for slot, content in work.writes:
            self._launched[slot] = content

    def _block(self, block: int) -> list[int]:
        return self.slots[block * self.stride : (block + 1) * self.stride]
