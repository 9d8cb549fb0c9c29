"""Sets of numbers that are mostly runs: a million sequences that came and went take no more memory than those that are left out between them."""

from __future__ import annotations

from bisect import bisect_right


class Numbers:
    """A growing set of integers, kept as runs."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        """One past the last number of each run."""

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def add(self, number: int) -> None:
        """Add one number; nothing happens if it is there."""
        at = bisect_right(self._starts, number) - 1
        if at >= 0 and number < self._ends[at]:
            return
        joins_left = at >= 0 and self._ends[at] == number
        joins_right = at + 1 < len(self._starts) and self._starts[at + 1] == number + 1
        if joins_left and joins_right:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]
        elif joins_left:
            self._ends[at] = number + 1
        elif joins_right:
            self._starts[at + 1] = number
        else:
            self._starts.insert(at + 1, number)
            self._ends.insert(at + 1, number + 1)
