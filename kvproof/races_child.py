"""The process in which `kvproof race` runs schedules: it takes over the locks first, and imports the target only then."""

from __future__ import annotations

import os
import sys
import time

import msgspec


def main() -> None:
    """Read the work, answer with one outcome a line.

    Ends with status 3 after threads that never come to an end, which nothing else could stop, and where a search that could not go on used up the time.
    """
    data = sys.stdin.buffer.read()
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever the target prints is no answer
    _take_over_locks(msgspec.json.decode(data)["mode"])

    from kvproof.fuzz.races.explore import explore
    from kvproof.races_cli import Work
    from kvproof.targets import find_target

    work = msgspec.json.decode(data, type=Work)
    target = find_target(work.target)
    with os.fdopen(answers, "wb") as out:
        deadline = time.monotonic() + work.seconds
        for number, scenario in enumerate(work.scenarios):
            share = (deadline - time.monotonic()) / (len(work.scenarios) - number)
            outcome = explore(scenario, target, mode=work.mode, seconds=share, seed=work.seed)
            out.write(msgspec.json.encode(outcome) + b"\n")
            out.flush()
            late = outcome.kind == "inconclusive" and time.monotonic() > deadline
            if outcome.kind == "stuck" or late:
                os._exit(3)


def _take_over_locks(mode: str) -> None:
    if mode == "dpor":
        from kvproof.fuzz.races import doors

        doors.install()
    elif mode == "random":
        from kvproof.fuzz.races import baton

        baton.install()
