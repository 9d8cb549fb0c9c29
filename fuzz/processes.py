"""How worker processes are started, the same for every tool that uses several cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Final

WATCH_SECONDS: Final = 1.0
"""How often a worker looks whether its parent is still there."""

_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

_LAST: Final = -1000
"""Priority of what a worker does after all else that multiprocessing does at its end, and before Python waits for threads."""


def process_context() -> BaseContext:
    """Forked workers on Linux, which know every class that the parent loaded; fresh ones elsewhere, since a fork is not safe there."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


@contextmanager
def forking() -> Iterator[None]:
    """While worker processes are started: without Python's warning that a process with threads forks."""
    with warnings.catch_warnings():
        # The children only run programs and never touch what a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def end_with_work_or_parent() -> None:
    """For a worker: end it with its work, whatever threads the target has left running, and soon after its parent, which may have been killed. Forked workers hold each
    other's pipes open, so none would hear of that: one that waits for orders would wait for ever, and so would one that sends, once the pipe is full.
    """
    Finalize(None, _leave_threads, exitpriority=_LAST)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _leave_threads() -> None:
    if held_by_threads():
        os._exit(0)


def held_by_threads() -> bool:
    """Whether Python would wait for a thread before it ends this process. One that a target has started may never end."""
    return any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())


def kill_with_parent(parent: int) -> None:
    """For a process that runs what may never return, not even to another thread of its own: on Linux the kernel ends it with its parent, whose id it was told."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it was too late for the kernel to tell
            os._exit(1)


def how_it_ended(code: int) -> str:
    """The exit code of a process in words; a negative one is the signal that ended it."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
