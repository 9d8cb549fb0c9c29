"""Conditions and queues for the systematic search: who waits is known to wait, and for what.

    install()                                    # after the locks, before the target is imported
    forsaken(threads)                            # whether all of these wait for each other, or for threads that are done

Who waits for a condition of the library `frontrun` asks again and again whether it was notified, and a schedule in which its turn never ends has no end. Here conditions are Python's own, and
each who waits does so for an event, of which the scheduler knows who sets it. Python's queues and barriers are built of its conditions.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_QUEUES: Final = (queue.Queue, queue.LifoQueue, queue.PriorityQueue)

_waiting: set[int] = set()
"""The threads that wait for a notification or a lock."""


def install() -> None:
    """From here on, conditions and queues that are made are of this kind."""
    threading.Condition = Condition  # type: ignore[misc]
    for made in _QUEUES:
        setattr(queue, made.__name__, made)


@contextmanager
def waiting() -> Iterator[None]:
    """While this thread waits."""
    me = threading.get_ident()
    _waiting.add(me)
    try:
        yield
    finally:
        _waiting.discard(me)


def forsaken(threads: set[int]) -> bool:
    """Whether each of these threads waits for a notification or a lock, so that none of them will ever give it."""
    return bool(threads) and threads <= _waiting


class Condition(threading.Condition):
    """Stands in for threading.Condition."""

    _lock: Any
    _waiters: Any

    def _is_owned(self) -> bool:
        lock = self._lock
        return bool(lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked())

    def _release_save(self) -> int:
        """Let go of the lock however often it is held."""
        count = int(getattr(self._lock, "_count", 1))
        for _ in range(count):
            self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self._lock.acquire()

    def wait(self, timeout: float | None = None) -> bool:
        """As in threading."""
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = _Waiter()
        self._waiters.append(waiter)
        count = self._release_save()
        notified = False
        try:
            notified = waiter.wait(timeout)
            return notified
        finally:
            self._acquire_restore(count)
            if not notified and waiter in self._waiters:
                self._waiters.remove(waiter)


class _Waiter:
    """Who waits for a condition, as Python's condition knows it: a lock that the notification lets go of."""

    def __init__(self) -> None:
        self._notified = threading.Event()

    def wait(self, timeout: float | None) -> bool:
        with waiting():
            return self._notified.wait(timeout)

    def release(self) -> None:
        self._notified.set()
