"""Two runs beside each other: which row of the one belongs to which row of the other.

pairs = align(one.texts, other.texts)        # [(0, 0), (1, 1), (2, -1), (3, 2), ...]; -1: the other run has no such operation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

NONE: Final = -1

MOST_COMPARED: Final = 4_000_000
"""Products of lengths above which operations are no longer searched for their partners: difflib may then take minutes. Runs of one program
on two caches, however long, begin alike and need no search.
"""


def align(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Rows with the same operation side by side, in the order of both runs."""
    same = next((row for row, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    pairs = [(row, row) for row in range(same)]
    rest, others = one[same:], other[same:]
    if len(rest) * len(others) > MOST_COMPARED:
        pairs += _beside(range(same, len(one)), range(same, len(other)))
        return pairs
    for tag, a, b, c, d in SequenceMatcher(None, rest, others, autojunk=False).get_opcodes():
        left, right = range(same + a, same + b), range(same + c, same + d)
        if tag == "equal":
            pairs += zip(left, right, strict=True)
        else:
            pairs += [(row, NONE) for row in left]
            pairs += [(NONE, row) for row in right]
    return pairs


def _beside(left: range, right: range) -> Iterator[tuple[int, int]]:
    return zip_longest(left, right, fillvalue=NONE)
