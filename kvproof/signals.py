"""What long commands do when they are asked to end.

with stopped_by_signals(search.stop):
    ...                               # Ctrl-C, or SIGTERM, calls search.stop()
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within it, Ctrl-C or a request to terminate calls `stop`; a second one of the same kind does what it would do elsewhere.

    Whoever runs jobs for others (Kubernetes, Slurm, a CI runner) asks a process to end before ending it: then there is time to keep what was done, and to report.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        stop()

    before = {int(number): signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    """Raises KeyboardInterrupt, for work that has no better way to stop."""
    raise KeyboardInterrupt
