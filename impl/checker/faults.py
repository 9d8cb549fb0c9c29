"""How the checker says that an adapter is at fault: the exceptions, and the words for what was called, returned and raised."""

from __future__ import annotations

from kvproof.impl.checker.misuse import place
from kvproof.models.ops import Op


class AdapterFault(Exception):
    """The adapter does not keep the contract; the cache behind it was not judged."""


class Raises(AdapterFault):
    """The adapter raised an exception of its own, or of the cache's: `by_cache`."""

    def __init__(self, message: str, error: str, *, by_cache: bool = False) -> None:
        super().__init__(message)
        self.error = error
        self.by_cache = by_cache


class Hung(BaseException):
    """An operation ran past its time limit. Not an Exception: an adapter's own `except Exception` must not swallow it."""


def call_of(op: Op) -> str:
    """The adapter call that an operation makes, as a reader would write it."""
    names = {"beginstep": "begin_step", "endstep": "end_step", "swapout": "swap_out", "swapin": "swap_in"}
    name = type(op).__name__.lower()
    arguments = ", ".join(repr(getattr(op, field)) for field in op.__struct_fields__ if field != "namespace")
    return f"{names.get(name, name)}({arguments})"


def told(error: BaseException) -> str:
    """An exception as one line: its type, message and the line of the adapter that raised it."""
    message = str(error).splitlines()
    return f"{type(error).__name__}{': ' + message[0] if message else ''}{place(error)}"


def described(value: object) -> str:
    """A value as its type and its beginning."""
    shown = repr(value)
    return f"{type(value).__name__} {shown}" if len(shown) <= 60 else f"{type(value).__name__} {shown[:57]}..."
