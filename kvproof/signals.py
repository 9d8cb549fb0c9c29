"""What long commands do when they are asked to end.

with stopped_by_signals(search.stop):
    ...                               # Ctrl-C, or SIGTERM, calls search.stop()
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

SAME_REQUEST_SECONDS: Final = 1.0
"""Whoever asks a whole process group, as `timeout` and some schedulers do, asks this process twice: directly, and by the process that supervises it. So soon after the first
signal another one of its kind is no second request.
"""


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within it, Ctrl-C or a request to terminate calls `stop`; a second one of the same kind does what it would do elsewhere.

    Whoever runs jobs for others (Kubernetes, Slurm, a CI runner) asks a process to end before ending it: then there is time to keep what was done, and to report.
    """
    asked: dict[int, float] = {}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number not in asked:
            asked[number] = time.monotonic()
            stop()
        elif time.monotonic() - asked[number] >= SAME_REQUEST_SECONDS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before = {int(number): signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if asked:  # the same request may still come twice
            time.sleep(max(0.0, max(asked.values()) + SAME_REQUEST_SECONDS - time.monotonic()))
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    """Raises KeyboardInterrupt, for work that has no better way to stop."""
    raise KeyboardInterrupt
