"""What a broken law accuses: the blocks, sequences, positions, slots and earlier steps that its reason speaks of, as numbers.

    Broken("no-aliasing", "sequences 0 and 1 both list block 7, ...", blocks=(7,), sequences=(0, 1))

The reason is for readers; whoever draws a violation, or goes on after it, takes what is here.
"""

from __future__ import annotations

import msgspec


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is accused, in the order of the reason. Empty where a law speaks of the cache as a whole."""

    blocks: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    """Token positions, from 0."""
    slots: tuple[tuple[int, int], ...] = ()
    """(block, offset in tokens) of the slots that show something wrong."""
    steps: tuple[int, ...] = ()
    """Earlier steps of the program in which it began."""
    group: int | None = None
    """The group of layers, where the law was broken in one of them."""

    def __bool__(self) -> bool:
        return bool(self.blocks or self.sequences)


NO_EVIDENCE = Evidence()
