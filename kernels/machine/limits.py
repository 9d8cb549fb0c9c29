"""A time limit for a call of kernels: one that hangs or never ends is stopped and judged like one that raised."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

CALL_SECONDS = 10.0
"""CPU time of one call. Cases are small: the slowest call of vLLM's and SGLang's kernels takes three seconds."""

WALL_FACTOR = 10
"""A call that sleeps or waits uses no CPU time; it is stopped after this many times the limit on the clock."""

TICK_SECONDS = 0.25


class CallStopped(BaseException):
    """A call ran past its limit; `place` is the loop that it was in, where one is known. No `except Exception` of an adapter takes it."""

    place = ""

    def __str__(self) -> str:
        return super().__str__() + (f", in {self.place}" if self.place else "")


@contextlib.contextmanager
def call_limit(seconds: float) -> Iterator[None]:
    """Within it, what runs longer than `seconds` of CPU time is stopped with CallStopped.

    CPU time, so that a busy machine accuses nobody. It needs the main thread and a POSIX timer; elsewhere nothing is limited.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    cpu, wall = time.process_time(), time.monotonic()

    def on_tick(_signum: int, _frame: FrameType | None) -> None:
        if time.process_time() - cpu > seconds or time.monotonic() - wall > WALL_FACTOR * seconds:
            raise CallStopped(f"it ran for more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, on_tick)
    old = signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old)
        signal.signal(signal.SIGALRM, previous)
