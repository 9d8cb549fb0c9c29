"""Locks for the systematic search: whoever comes to one leaves a mark at its door.

    install()                                    # before the target is imported

The library `frontrun` orders two critical sections by the lock that guards them, and never tries them the other way round. A mark is a write that no lock guards: those of
two threads conflict, so the search tries both orders in which they come to the lock.
"""

from __future__ import annotations

import threading
from typing import Any


class AtLock:
    """The door of one lock. The library names it where it tells what two threads met at."""

    arrived = False


def install() -> None:
    """From here on, locks and semaphores that are made belong to `frontrun` and have doors. Raises ImportError where it is missing."""
    from frontrun.bytecode import patch_locks

    patch_locks()
    _put_doors()


def _put_doors() -> None:
    names: Any = threading

    class Lock(names.Lock):  # type: ignore[misc]  # whatever the library put there
        def __init__(self) -> None:
            super().__init__()
            self._door = AtLock()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            self._door.arrived = True
            return bool(super().acquire(blocking, timeout))

    class RLock(names.RLock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._door = AtLock()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not self._is_owned():
                self._door.arrived = True
            return bool(super().acquire(blocking, timeout))

    class Semaphore(names.Semaphore):  # type: ignore[misc]
        def __init__(self, value: int = 1) -> None:
            super().__init__(value)
            self._door = AtLock()

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            self._door.arrived = True
            return bool(super().acquire(blocking, timeout))

    class BoundedSemaphore(names.BoundedSemaphore):  # type: ignore[misc]
        def __init__(self, value: int = 1) -> None:
            super().__init__(value)
            self._door = AtLock()

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            self._door.arrived = True
            return bool(super().acquire(blocking, timeout))

    class Condition(names.Condition):  # type: ignore[misc]
        def __init__(self, lock: Any = None) -> None:  # noqa: ANN401 -- any lock
            super().__init__(RLock() if lock is None else lock)

    for made in (Lock, RLock, Semaphore, BoundedSemaphore, Condition):
        setattr(threading, made.__name__, made)
