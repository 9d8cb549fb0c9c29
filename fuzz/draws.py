"""How the random generator makes a choice: with one function alone, since the methods of `Random` that choose are calls on calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")


class Draws:
    """Whoever draws from one generator, for a cache with blocks of this size."""

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self.rng = rng
        self._random = rng.random
        self.block_size = block_size

    def _length(self, most: int) -> int:
        """A number of tokens, mostly at or beside a block boundary, at least 1."""
        blocks = max(1, most // self.block_size)
        length = (
            self._between(0, min(blocks, 4)) * self.block_size + self._any((-1, 0, 0, 1, 1, 2))
            if self._random() < 0.8
            else self._between(1, most)
        )
        return max(1, min(length, most))

    def _pick(self, among: Sequence[Value]) -> Value | None:
        return among[int(self._random() * len(among))] if among else None

    def _any(self, among: Sequence[Value]) -> Value:
        return among[int(self._random() * len(among))]

    def _between(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))
