"""Drops of holders that a cache need not act upon yet: while device work is out, it may go on counting them, or keep their blocks back.

    deferrals.add(block, touched=True)                    # a holder let go of block while work was out, and launched work touches it
    deferrals.back(block, spec.steps)                     # the block can be handed out again
    forgotten = deferrals.forget(spec.passes, spec.steps, spec.transfers) # blocks with drops that nothing excuses any more

A cache may wait until nothing is out. An engine that serves without a pause always has work out, and if every cache were excused until then, a leak would never be told. So a
cache is believed to wait for a pause until it gives back a block that it had to keep, although no step boundary was free of work since: then it knows which work it waits for.
From then on time is cut into periods, and a drop is excused for many of them. A period ends when everything that was out at its beginning is over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvproof.models.state import Pass, Transfer

PERIODS: Final = 32
"""A drop is excused in its own period and in so many less one after it. Reclamation in epochs takes three, a ring of frames as many as it has frames, and nobody is to be accused for a
longer one: what is never given back shows a little later."""


class Deferrals:
    """How often each block was let go of while work was out, as far as a cache may still count that."""

    def __init__(self) -> None:
        self.piecemeal = False
        """Whether the cache was seen to give back a block that it had to keep, without waiting for a pause."""
        self._counts: Counter[int] = Counter()
        self._periods: deque[Counter[int]] = deque([Counter()])
        """The drops of each period, the current one last; where the cache may wait for a pause, those of older periods are with the oldest one."""
        self._passes: list[Pass] = []
        """The passes that the current period waits for."""
        self._others: list[list[Pass] | Transfer] = []
        """The steps and transfers that it waits for."""
        self._pauses = 0
        """How often no step was open."""
        self._kept: dict[int, int] = {}
        """block that launched work touched when it was let go of -> the pauses until then."""

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def count(self, block: int) -> int:
        """How many drops of `block` are excused."""
        return self._counts.get(block, 0)

    def add(self, block: int, *, touched: bool = False) -> None:
        """A holder let go of `block` while work was out. `touched`: it was the last one, and launched work still reads or writes it."""
        self._counts[block] += 1
        self._periods[-1][block] += 1
        if touched and not self.piecemeal:
            self._kept[block] = self._pauses

    def held(self, block: int) -> None:
        """Somebody holds `block` again: what becomes of it later says nothing of how the cache waits."""
        self._kept.pop(block, None)

    def back(self, block: int, steps: list[list[Pass]]) -> None:
        """`block` is free, or handed out again, while `steps` are open."""
        pauses = self._kept.pop(block, None)
        if steps and pauses == self._pauses:
            self.piecemeal = True
            self._kept.clear()

    def forget(self, passes: list[Pass], steps: list[list[Pass]], transfers: Sequence[Transfer] = ()) -> Iterable[int]:
        """The blocks whose drops are excused no more, or less often, now that these are still out."""
        if not steps:
            self._pauses += 1
        if not passes and not steps and not transfers:
            forgotten = list(self._counts)
            self._counts.clear()
            self._kept.clear()
            self._periods = deque([Counter()])
            self._passes, self._others = [], []
            return forgotten
        others: list[list[Pass] | Transfer] = [*steps, *transfers]
        if not self._is_over(others):
            return ()
        self._passes, self._others = list(passes), others
        self._periods.append(Counter())
        if len(self._periods) <= PERIODS:
            return ()
        oldest = self._periods.popleft()
        if not self.piecemeal:
            self._periods[0].update(oldest)
            return ()
        self._counts.subtract(oldest)
        for block in oldest:
            if not self._counts[block]:
                del self._counts[block]
        return oldest

    def _is_over(self, others: list[list[Pass] | Transfer]) -> bool:
        """Whether everything is over that was out when this period began."""
        waiting = self._passes
        while waiting and waiting[-1].over:
            waiting.pop()
        return not waiting and not any(other is old for old in self._others for other in others)
