"""Drops of holders that a cache need not act upon yet: while device work is out, it may go on counting them, or keep their blocks back.

    deferrals.add(block)                                  # a holder let go of block while work was out
    let_go = deferrals.forget(spec.passes, spec.steps)    # blocks with drops that nothing excuses any more

A cache that waits until nothing is out may wait for ever: an engine that serves without a pause always has work out, and a leak would never be told. So time is cut
into periods. A period ends when everything that was out at its beginning is over, and a drop is excused to the end of the second period after its own. That is twice as long as
the work could last that was out at the drop, as much as a cache needs that counts epochs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final

from kvproof.models.state import Pass

PERIODS: Final = 3
"""A drop is excused in its own period and in the two after it, as by reclamation in epochs, where a block let go of in epoch e is reused in e + 2 at the earliest."""


class Deferrals:
    """How often each block was let go of while work was out, as far as a cache may still count that."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._periods: deque[list[int]] = deque([[]])
        """The blocks that were let go of in each period, the current one last."""
        self._passes: list[Pass] = []
        """The passes that the current period waits for."""
        self._steps: list[list[Pass]] = []
        """The steps that it waits for."""

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def count(self, block: int) -> int:
        """How many drops of `block` are excused."""
        return self._counts.get(block, 0)

    def left(self, block: int) -> int:
        """To the end of how many periods, the current one included, a drop of `block` is excused; 0 if none is."""
        return next((PERIODS - age for age, blocks in enumerate(reversed(self._periods)) if block in blocks), 0)

    def add(self, block: int) -> None:
        """A holder let go of `block` while work was out."""
        self._counts[block] += 1
        self._periods[-1].append(block)

    def forget(self, passes: list[Pass], steps: list[list[Pass]]) -> Iterable[int]:
        """The blocks whose drops are excused no more, or less often, now that `passes` and `steps` are still out."""
        if not passes and not steps:
            forgotten = list(self._counts)
            self._counts.clear()
            self._periods = deque([[]])
            self._passes, self._steps = [], []
            return forgotten
        if not self._is_over(steps):
            return ()
        self._passes, self._steps = list(passes), list(steps)
        self._periods.append([])
        if len(self._periods) <= PERIODS:
            return ()
        forgotten = self._periods.popleft()
        self._counts.subtract(forgotten)
        for block in forgotten:
            if not self._counts[block]:
                del self._counts[block]
        return forgotten

    def _is_over(self, steps: list[list[Pass]]) -> bool:
        """Whether everything is over that was out when this period began."""
        waiting = self._passes
        while waiting and waiting[-1].over:
            waiting.pop()
        return not waiting and not any(step is old for old in self._steps for step in steps)
