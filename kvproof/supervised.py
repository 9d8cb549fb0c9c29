"""The command in a process of its own, so that a target which ends that process cannot decide the exit status.

    sys.exit(supervised(run))     # what `run` returns; 2, with a sentence, where its process ended before that

A cache in C++ may crash, and code that was written to be a service may call `os._exit(0)`, while it is imported, replayed or shrunk. The status of such an end says nothing
about laws: a 0 would read as "held". The process of the command keeps the terminal, so a debugger works in it as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_AT_FAULT: Final = 2
"""The exit status for a target at fault; what the other modules call so is loaded only by `run`."""

_ASKED_TO_END: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervised(run: Callable[[], int]) -> int:
    """What `run` returns in a process of its own. Where that is not Linux, it runs in this process."""
    if sys.platform != "linux":
        return run()
    answer = mmap.mmap(-1, 1)  # shared with the child: 0 until it has a status, then the status and 1
    watched = {*_ASKED_TO_END, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever ignores it never hears of a child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        from kvproof.fuzz.processes import held_by_threads, kill_with_parent

        kill_with_parent(parent)
        status = run()
        answer[0] = status + 1
        if held_by_threads():
            _leave()
        return status
    code = os.waitstatus_to_exitcode(_wait(child, watched))
    if answer[0]:
        return answer[0] - 1
    if -code in _ASKED_TO_END:
        _end_like(-code)
    how = f"with exit code {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
    print(f"kvproof: The process of this command was ended {how} before it could answer; the target ended or crashed it.", file=sys.stderr)
    return _AT_FAULT


def _leave() -> None:
    """End this process although threads of the target run on. All but waiting for them is done as Python does it at an end."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _wait(child: int, watched: set[signal.Signals]) -> int:
    """The wait status of the child, once it has ended. A signal that some process sent is passed on; one from the terminal reaches the child as well."""
    while True:
        signalled = signal.sigwaitinfo(watched)
        if signalled.si_signo != signal.SIGCHLD:
            if signalled.si_code <= 0:
                os.kill(child, signalled.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _end_like(number: int) -> None:
    """End this process by the signal that ended its child: whoever sent it sees what it would have seen."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
