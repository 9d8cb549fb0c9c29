"""A scheduler for random schedules: one thread runs at a time, and hands on the baton where the plan says so.

    install()                                    # before the target is imported: its locks become the scheduler's
    Baton([work0, work1], traced).run(plan)      # plan: [(thread, points), ...]

A *point* is a line, or a bytecode, or a bytecode that is about to store what was computed from something read before, of a traced file, or a place where a thread comes to a lock or has let go of one. Locks made after `install` belong to the scheduler: a thread that waits for one hands on the baton, and threads
that all wait for each other are found at once. Conditions, events, queues and semaphores of the standard library are built of such locks and so come along.
"""

from __future__ import annotations

import _thread
import dis
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, Literal, TypeAlias

Plan: TypeAlias = Sequence[tuple[int, int]]
"""(thread, points): how long each thread runs before the next one does. What is over or waits is skipped; at the end of the plan everybody runs to the end."""

Grain: TypeAlias = Literal["line", "opcode", "store", "lock"]

JOIN_SECONDS: Final = 20.0
"""How long all threads together may take. A run takes milliseconds."""


PATIENCE_SECONDS: Final = 2.0
"""How long a thread beside which no other is at work waits for a lock. A thread that a cache starts by itself holds one for less."""

_alone: int | None = None


@contextmanager
def alone() -> Iterator[None]:
    """While no thread but this one is at work: waiting for a lock that was left held raises Stuck."""
    global _alone
    _alone = threading.get_ident()
    try:
        yield
    finally:
        _alone = None


def is_alone() -> bool:
    """Whether no thread but this one is at work."""
    return _alone is not None and _alone == threading.get_ident()


def patiently(acquire: Callable[[bool, float], bool]) -> bool:
    """Take a lock that nobody is left to let go of, if it is free. Raises Stuck."""
    if not acquire(True, PATIENCE_SECONDS):
        raise Stuck("a lock was left held that the next call waits for, and nobody is left to let go of it")
    return True


FAIR_LINES: Final = 5000
"""After how many lines a thread makes way though its turn is not over: some caches wait in a loop that asks again and again, and a call takes a few hundred lines."""


class Stuck(BaseException):
    """Threads wait for each other, or for something that never comes. Not an Exception: a cache's own `except Exception` must not swallow it."""


class Baton:
    """Runs some functions, each in a thread of its own, one at a time."""

    active: Baton | None = None

    def __init__(self, work: Sequence[Callable[[], None]], traced: Callable[[str], bool], grain: Grain = "line") -> None:
        self.work = work
        self.traced = traced
        self.grain = grain
        self.points = [0] * len(work)
        """How many points each thread has passed."""
        self.errors: list[BaseException] = []
        self._plan: list[tuple[int, int]] = []
        self._left = 0
        self._turn_lines = 0
        self._patience = FAIR_LINES
        self._lengths = random.Random(0)
        self._gates = [_thread.allocate_lock() for _ in work]
        self._done = _thread.allocate_lock()
        self._running = set(range(len(work)))
        self._waiting: dict[int, Lock] = {}
        self._threads: dict[int, int] = {}
        self._deadlock = False

    def run(self, plan: Plan) -> None:
        """Run all of them to the end. Raises Stuck, and whatever one of them raised."""
        self._plan = list(reversed(plan))
        for gate in (*self._gates, self._done):
            gate.acquire()
        Baton.active = self
        if self.grain in ("opcode", "store"):
            sys._getframe().f_trace_opcodes = True  # Python 3.12 reports bytecodes only if some frame asked for them before settrace
        try:
            for number in self._running:
                _thread.start_new_thread(self._body, (number,))
            self._gates[self._next()].release()
            if not self._done.acquire(timeout=JOIN_SECONDS):
                raise Stuck(
                    f"the threads were still at work after {JOIN_SECONDS:g} s: one goes on for ever, or waits for a lock that is not the scheduler's. Locks made, or classes of "
                    "locks imported by name, before the scheduler took over stay what they are: in a script of your own call `kvproof.fuzz.races.baton.install()` before the target is "
                    "imported; where the target's locks are not made by `threading`, use the mode stress"
                )
        finally:
            Baton.active = None
        for error in self.errors:
            raise error

    def me(self) -> int | None:
        """The number of this thread; None for one that is not ours."""
        return self._threads.get(_thread.get_ident())

    def _body(self, number: int) -> None:
        self._threads[_thread.get_ident()] = number
        self._gates[number].acquire()
        sys.settrace(self._trace)
        try:
            self.work[number]()
        except BaseException as error:  # noqa: BLE001 -- raised again where `run` was called
            self.errors.append(error)
        finally:
            sys.settrace(None)
            self._running.discard(number)
            self._waiting.pop(number, None)
            if self._running:
                self._pass_on(number)
            else:
                self._done.release()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401, ARG002 -- the signature is that of sys.settrace
        if event == "call":
            if not self.traced(frame.f_code.co_filename):
                return None
            if self.grain in ("opcode", "store"):
                frame.f_trace = self._trace  # Python 3.13 and later report the bytecodes of a first call only if this comes first
                frame.f_trace_opcodes = True
        elif event == self.grain or (event == "opcode" and self.grain == "store" and _stores(frame)):
            self._point()
        if event == "line":
            self._turn_lines += 1
            if self._turn_lines > self._patience:
                self._make_way()
        return self._trace

    def _point(self) -> None:
        number = self.me()
        assert number is not None, "only our threads are traced"
        self.points[number] += 1
        self._left -= 1
        if self._left <= 0:
            self._pass_on(number)

    def _make_way(self) -> None:
        """Let another one go on, for which this one may be waiting in a loop of its own."""
        number = self.me()
        self._turn_lines = 0
        self._patience = self._lengths.randint(FAIR_LINES, 2 * FAIR_LINES)  # not always at the same line of a loop, with the same lock held
        others = self._running - self._waiting.keys() - {number}
        if others and number is not None:
            self._left = sys.maxsize
            self._hand_over(number, min(others, key=lambda other: (other < number, other)))

    def _next(self) -> int:
        """Whose turn it is now; sets how long it lasts. Raises Stuck where nobody can go on."""
        free = self._running - self._waiting.keys()
        if not free:
            self._deadlock = True
            timed = [number for number, lock in self._waiting.items() if lock.timed]
            if not timed:
                return next(iter(self._waiting))
            free = set(timed[:1])
        while self._plan:
            number, points = self._plan.pop()
            if number in free:
                self._left = points
                return number
        self._left = sys.maxsize
        return min(free)

    def _pass_on(self, number: int) -> None:
        chosen = self._next()
        if chosen != number:
            self._hand_over(number, chosen)

    def _hand_over(self, number: int, chosen: int) -> None:
        self._turn_lines = 0
        self._gates[chosen].release()
        if number in self._running:
            self._gates[number].acquire()

    def at_lock(self) -> None:
        """A thread is about to take a lock, or has let go of one."""
        if self.grain == "lock":
            self._point()

    def wait(self, number: int, lock: Lock) -> bool:
        """Let others run until `lock` was let go of; False where that will never be. Raises Stuck for a wait without a time limit."""
        self._waiting[number] = lock
        self._pass_on(number)
        self._waiting.pop(number, None)
        if self._deadlock:
            self._deadlock = False
            if not lock.timed:
                raise Stuck("threads wait for locks that none of them will let go of")
            return False
        return True

    def let_go(self, lock: Lock) -> None:
        """Whoever waits for `lock` may try again."""
        for number in [number for number, wanted in self._waiting.items() if wanted is lock]:
            del self._waiting[number]


_STORES: Final = frozenset(dis.opmap[name] for name in ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_SUBSCR", "DELETE_ATTR"))
_bytecodes: dict[CodeType, bytes] = {}


def _stores(frame: FrameType) -> bool:
    """Whether the next bytecode changes what other threads may see."""
    code = _bytecodes.get(frame.f_code)
    if code is None:
        code = _bytecodes[frame.f_code] = frame.f_code.co_code
    return code[frame.f_lasti] in _STORES


class Lock:
    """Stands in for threading.Lock. Outside the scheduler's threads it is a lock like any other."""

    reentrant = False

    def __init__(self) -> None:
        self._real = _REAL_RLOCK() if self.reentrant else _thread.allocate_lock()
        self._owner: int | None = None
        self._count = 0
        self.timed = False
        """Whether who waits for it does so with a time limit."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As in threading."""
        baton = Baton.active
        number = None if baton is None else baton.me()
        if baton is None or number is None:
            untimed = blocking and timeout < 0
            return patiently(self._take_outside) if untimed and is_alone() else self._take_outside(blocking, timeout)
        baton.at_lock()
        while self._held_before() or (self._count and not (self.reentrant and self._owner == number)):
            self.timed = timeout >= 0
            if not blocking or not baton.wait(number, self):
                return False
        self._owner, self._count = number, self._count + 1
        return True

    def _take_outside(self, blocking: bool, timeout: float) -> bool:
        """Take it in a thread that is not the scheduler's; one of those may have left it held."""
        return not self._count and bool(self._real.acquire(blocking, timeout))

    def release(self) -> None:
        """As in threading."""
        baton = Baton.active
        outside = baton is None or baton.me() is None
        if self._held_before() or (outside and (self.reentrant or not self._count)):
            self._real.release()
        elif not self._count or (self.reentrant and baton is not None and self._owner != baton.me()):
            raise RuntimeError("release unlocked lock")
        else:
            self._count -= 1
        if baton is not None and not outside and not self._count:
            self._owner = None
            baton.let_go(self)
            baton.at_lock()

    def _held_before(self) -> bool:
        """Whether it was taken outside the scheduler's threads and not let go of yet, as a lock may be that one call takes and another lets go of."""
        return not self.reentrant and bool(self._real.locked())  # type: ignore[union-attr]  # no RLock

    def locked(self) -> bool:
        """As in threading."""
        if self._count:
            return True
        free = self._real.acquire(blocking=False)
        if free:
            self._real.release()
        return not free

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ReentrantLock(Lock):
    """Stands in for threading.RLock."""

    reentrant = True

    def _is_owned(self) -> bool:
        baton = Baton.active
        if baton is None or baton.me() is None:
            return bool(self._real._is_owned())  # type: ignore[union-attr]  # a real one, which threading.Condition asks too
        return self._count > 0 and self._owner == baton.me()

    def _release_save(self) -> int:
        count = self._count
        self._count = 1
        self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


_REAL_RLOCK = threading.RLock


def install() -> None:
    """From here on, locks that are made belong to the scheduler. Modules that took the name `Lock` before keep the real one."""
    threading.Lock = threading._allocate_lock = Lock  # type: ignore[assignment, attr-defined]
    threading.RLock = ReentrantLock  # type: ignore[assignment]


@contextmanager
def installed() -> Iterator[None]:
    """`install` for a while: for locks that a target makes only when it is built."""
    before = threading.Lock, threading._allocate_lock, threading.RLock  # type: ignore[attr-defined]  # what Condition and Event are made of
    install()
    try:
        yield
    finally:
        threading.Lock, threading._allocate_lock, threading.RLock = before  # type: ignore[attr-defined]
