"""A GPU run in processes of its own: a part that takes the device's context down, crashes or hangs costs that part and no other.

After an illegal address every later call of the same process fails. So a supervisor, which never touches the device, starts a worker that goes
through the parts of the run and says in the report which one it begins and how long that may take. When a worker ends before the last part, or is
ended because a part took too long, that is an entry of the report, and another worker goes on behind it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from kvproof.kernels.gpu.report import Report

LOST = 3
"""Exit status of a worker whose device no longer answers; what happened is in the report."""

POLL_SECONDS = 0.2


def supervise(command: Sequence[str], report: Report, deadline: float) -> int:
    """Run `command` until it has gone through every part, at the latest until `deadline` on the monotonic clock. Returns 1 where an entry of the
    report is at fault, 2 where the command says so of its request, and 0 otherwise: a part that the deadline cut off is not finished, no more.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # as after nohup
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
    while True:
        begun = len(report.begun)
        worker = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this run's own script
        try:
            verdict, why = _wait(worker, report, deadline, begun)
        finally:  # it took too long, or whoever ends this run wants the device back
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # with those that compile ahead for it
            worker.wait()
        report.read()
        # An exception that nobody took ends a process with 1 as well: only the report says that the end was reached.
        if not why and worker.returncode == 2:
            return 2
        if not why and worker.returncode in (0, 1) and report.complete:
            return 1 if report.at_fault else 0
        if why or worker.returncode != LOST:
            name = report.begun[-1].name if len(report.begun) > begun else "the run"
            report.cut_off(name, verdict, why or f"ended its process: {_described(worker.returncode)}")
        if time.monotonic() > deadline or len(report.begun) == begun:
            report.problem("The run was cut off here.")
            return 1 if report.at_fault else 0


def end_with(supervisor: int) -> None:
    """In a worker: end this process and what it has started once the process `supervisor` is gone. Killed by signal 9, that can end nobody itself, and
    the device would stay taken.
    """

    def watch() -> None:
        while os.getppid() == supervisor:
            time.sleep(POLL_SECONDS)
        os.killpg(0, signal.SIGKILL)  # the worker leads its group

    threading.Thread(target=watch, daemon=True).start()


def _wait(worker: subprocess.Popen[bytes], report: Report, deadline: float, begun: int) -> tuple[str, str]:
    """Wait for the end of the worker; the verdict on the part that it was in, and why it was ended, where it was. The first `begun` parts are those of
    workers before it.
    """
    while worker.poll() is None:
        time.sleep(POLL_SECONDS)
        report.read()
        now = time.monotonic()
        part = report.begun[-1] if len(report.begun) > begun else None
        if part is not None and not report.complete and now - report.start > part.started + part.limit_seconds:
            return "error", f"was ended after {part.limit_seconds:.0f} s"
        if now > deadline:
            # A worker that could not begin anything in the whole time is at fault itself.
            return "not finished" if part else "error", "was ended: the time of the run was over"
    return "error", ""


def _described(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
