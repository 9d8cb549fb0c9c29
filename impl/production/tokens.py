"""Token ids, packed: 32 bits each where all of a sequence fit, else 64.

They take a fifth of the memory of a list, and compare at the speed of bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvproof.impl.production.errors import TokenOutOfRange

SMALL = "I"
LARGE = "q"


def pack(tokens: Iterable[int]) -> array[int]:
    """The tokens in an array. Raises TokenOutOfRange beyond 64 bits."""
    listed = tokens if isinstance(tokens, list) else list(tokens)
    try:
        return _packed(SMALL, listed)
    except OverflowError:
        try:
            return _packed(LARGE, listed)
        except OverflowError:
            raise TokenOutOfRange("a token id does not fit in 64 bits; map it to a smaller number") from None


def _packed(typecode: str, listed: list[int]) -> array[int]:
    # Not array(typecode, listed), which takes twice as long.
    packed: array[int] = array(typecode)
    packed.fromlist(listed)
    return packed


def extended(packed: array[int], tokens: Iterable[int]) -> array[int]:
    """`packed` with tokens added: the same array where they fit, else a wider one. Raises TokenOutOfRange, and has changed nothing then."""
    listed = tokens if isinstance(tokens, list) else list(tokens)
    try:
        packed.fromlist(listed)
    except OverflowError:
        return pack(packed.tolist() + listed)
    return packed
