"""A program out of bytes: every choice of the swarm generator is read from them, so a fuzzer that changes bytes changes choices.

    ran = run_bytes(search, data)        # the same data give the same program

Once the bytes are used up, a generator seeded with them goes on; a short input is a whole program too.
"""

from __future__ import annotations

import random
from typing import Final

from kvproof.fuzz.runs import Ran, Search, Tally, run_program

DOUBLE_BITS: Final = 16
"""Bits of a fraction: nearly every choice is made by one, among a few, so finer ones would only make inputs longer."""


class ByteChoices(random.Random):
    """Random numbers read from bytes, the first byte first."""

    def __new__(cls, data: bytes) -> ByteChoices:  # noqa: ARG004
        """Python's generator wants to seed itself with the arguments."""
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data
        self._next = 0
        self._rest = random.Random(data)

    def getrandbits(self, k: int, /) -> int:
        """The next `k` bits, whole bytes at a time."""
        count = (k + 7) // 8
        if self._next + count > len(self._data):
            self._next = len(self._data)
            return self._rest.getrandbits(k)
        number = int.from_bytes(self._data[self._next : self._next + count], "little")
        self._next += count
        return number & ((1 << k) - 1)

    def random(self) -> float:
        """A fraction from the next bytes."""
        return self.getrandbits(DOUBLE_BITS) / (1 << DOUBLE_BITS)


def run_bytes(search: Search, data: bytes) -> Ran:
    """Run the program that `data` choose."""
    return run_program(search, f"bytes:{data.hex()[:64]}", Tally(), choices=ByteChoices(data))
