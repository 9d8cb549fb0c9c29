"""Runs cases of the zoo: each side in a process of its own, the fixed one on the same programs as the faulty one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from kvproof.fuzz.zoo.case import Case, Outcome, Verdict
from kvproof.fuzz.zoo.worker import Task

SEARCH_SECONDS: Final = 60.0
"""How long a faulty release is searched at most. Most are caught within seconds; the rest is for slow machines."""

PROGRAMS: Final = 4000
"""How many random programs a faulty release is tried with at most."""

FETCH_SECONDS: Final = 1800
"""What fetching may add to a worker's time."""


def judge(case: Case, *, seconds: float = SEARCH_SECONDS, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run both sides of `case`. Never raises for what an engine does."""
    tell(f"{case.name}: {case.faulty}")
    faulty = _side(Task(case, "faulty", seconds, PROGRAMS))
    if not case.fixed or not Outcome(case, faulty, None).caught:
        return Outcome(case, faulty, None)
    tell(f"{case.name}: {case.fixed}")
    same = Task(case, "fixed", 4 * seconds, faulty.programs, faulty.ops, faulty.pool)
    return Outcome(case, faulty, _side(same))


def judge_all(cases: Iterable[Case], *, seconds: float, tell: Callable[[str], None]) -> Iterator[Outcome]:
    """Run the cases one after another."""
    for case in cases:
        yield judge(case, seconds=seconds, tell=tell)


def _side(task: Task) -> Verdict:
    command = [sys.executable, "-m", "kvproof.fuzz.zoo.worker"]
    limit = task.seconds + FETCH_SECONDS
    try:
        done = subprocess.run(command, input=msgspec.json.encode(task), capture_output=True, timeout=limit, check=False)  # noqa: S603 -- this package's own worker
    except subprocess.TimeoutExpired:
        return Verdict({}, 0, limit, error=f"the worker took more than {limit:g} s")
    if done.returncode:
        return Verdict({}, 0, 0.0, error=f"the worker ended with status {done.returncode}: {_last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=Verdict)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
