"""A GPU run in processes of its own: a part that takes the device's context down, crashes or hangs costs that part and no other.

After an illegal address every later call of the same process fails. So a supervisor, which never touches the device, starts a worker that goes
through the parts of the run and says in the report which one it begins and how long that may take. When a worker ends before the last part, or is
ended because a part took too long, that is an entry of the report, and another worker goes on behind it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from kvproof.kernels.gpu.report import Check, Report

LOST = 3
"""Exit status of a worker whose device no longer answers; what happened is in the report."""

POLL_SECONDS = 0.2


def supervise(command: Sequence[str], report: Report, deadline: float) -> int:
    """Run `command` until it has gone through every part, at the latest until `deadline` on the monotonic clock; returns its exit status, 1 where
    it had to be started again or was cut off.
    """
    restarted = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    while True:
        begun = len(report.begun)
        worker = subprocess.Popen(command)  # noqa: S603 - this run's own script
        try:
            why = _wait(worker, report, deadline, begun)
        finally:  # it took too long, or whoever ends this run wants the device back
            worker.kill()
            worker.wait()
        report.read()
        # An exception that nobody took ends a process with 1 as well: only the report says that the end was reached.
        if not why and (worker.returncode == 2 or (worker.returncode in (0, 1) and report.complete)):
            return max(worker.returncode, int(restarted))
        restarted = True
        if why or worker.returncode != LOST:
            name = report.begun[-1].name if len(report.begun) > begun else "the run"
            report.check(Check(name, "error", why or f"ended its process: {_described(worker.returncode)}"))
        if time.monotonic() > deadline or len(report.begun) == begun:
            report.problem("The run was cut off here.")
            return 1


def _wait(worker: subprocess.Popen[bytes], report: Report, deadline: float, begun: int) -> str:
    """Wait for the end of the worker; why it was ended, where it was. The first `begun` parts are those of workers before it."""
    while worker.poll() is None:
        time.sleep(POLL_SECONDS)
        report.read()
        now = time.monotonic()
        part = report.begun[-1] if len(report.begun) > begun else None
        if part is not None and not report.complete and now - report.start > part.started + part.limit_seconds:
            why = f"was ended after {part.limit_seconds:.0f} s"
        elif now > deadline:
            why = "was ended: the time of the run was over"
        else:
            continue
        return why
    return ""


def _described(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
