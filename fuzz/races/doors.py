"""Locks for the systematic search: whoever comes to one leaves a mark at its door.

    install()                                    # before the target is imported

The library `frontrun` orders two critical sections by the lock that guards them, and never tries them the other way round. A mark is a write that no lock guards: those of
two threads conflict, so the search tries both orders in which they come to the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kvproof.fuzz.races import baton, conditions

_WITH_DOORS: Final = ("Lock", "RLock", "Semaphore", "BoundedSemaphore")


class AtLock:
    """The door of one lock. The library names it where it tells what two threads met at."""

    arrived = False


def install() -> None:
    """From here on, locks and semaphores that are made belong to `frontrun` and have doors. Raises ImportError where it is missing."""
    from frontrun.bytecode import patch_locks

    patch_locks()
    _put_doors()
    conditions.install()


@contextmanager
def installed() -> Iterator[None]:
    """`install` for a while: for locks that a target makes only when it is built. Does nothing where doors are installed already. Raises ImportError."""
    made: Any = threading.Lock  # Python's own is a function
    if isinstance(made, type) and issubclass(made, _Door):
        yield
        return
    from frontrun._cooperative import unpatch_locks

    before = {name: getattr(threading, name) for name in (*_WITH_DOORS, "Condition")}
    install()
    try:
        yield
    finally:
        unpatch_locks()
        for name, made in before.items():
            setattr(threading, name, made)


class _Door:
    """What a lock with a door does: whoever comes to wait leaves the mark first. Goes before the class of the lock."""

    def __init__(self, *made: Any, **named: Any) -> None:  # noqa: ANN401 -- what the lock is made with
        super().__init__(*made, **named)
        self._door = AtLock()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if self._waits():
            self._door.arrived = True
        untimed = blocking and (timeout is None or timeout < 0)
        if untimed and baton.is_alone():
            return baton.patiently(super().acquire)  # type: ignore[misc]  # the lock's
        with conditions.waiting():
            return bool(super().acquire(*((blocking,) if timeout is None else (blocking, timeout))))  # type: ignore[misc]

    def _waits(self) -> bool:
        return True


def _put_doors() -> None:
    names: Any = threading  # whatever the library put there

    class Lock(_Door, names.Lock):  # type: ignore[misc]
        pass

    class RLock(_Door, names.RLock):  # type: ignore[misc]
        def _waits(self) -> bool:
            return not self._is_owned()

    class Semaphore(_Door, names.Semaphore):  # type: ignore[misc]
        pass

    class BoundedSemaphore(_Door, names.BoundedSemaphore):  # type: ignore[misc]
        pass

    for made in (Lock, RLock, Semaphore, BoundedSemaphore):
        setattr(threading, made.__name__, made)
