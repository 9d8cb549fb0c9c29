"""One side of one case, in a process of its own, since a process can hold one release of an engine.

python -m kvproof.fuzz.zoo.worker < task.json      prints a Verdict as JSON
"""

from __future__ import annotations

import sys
import time
from typing import Final

import msgspec

from kvproof.fuzz.check import check
from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.verdicts import Report
from kvproof.fuzz.zoo.case import Case, Side, Verdict
from kvproof.impl.foreign.registry import engine_adapter, find_release
from kvproof.impl.foreign.releases import BadRelease
from kvproof.models.ops import AnyOp
from kvproof.properties.lockstep import run

SEED: Final = 1


class Task(msgspec.Struct, frozen=True):
    """What a worker has to do: `programs` limits the random programs; `replay` is what broke the other side."""

    case: Case
    side: Side
    seconds: float
    programs: int
    replay: tuple[AnyOp, ...] = ()
    pool: PoolConfig | None = None


def work(task: Task) -> Verdict:
    """Judge one side."""
    release = find_release(task.case.target(task.side))
    assert release is not None, task.case.target(task.side)
    try:
        adapter = engine_adapter(release)
    except BadRelease as error:
        return Verdict({}, 0, 0.0, error=str(error))
    if task.case.program:
        assert task.case.pool is not None
        return _run(task.case, adapter, task.case.program, task.case.pool)
    found = _search(task, adapter)
    if task.replay and task.pool is not None and not found.error:
        again = _run(task.case, adapter, task.replay, task.pool)
        found = msgspec.structs.replace(found, laws={**again.laws, **found.laws}, error=again.error)
    return found


def _run(case: Case, adapter: type, ops: tuple[AnyOp, ...], pool: PoolConfig) -> Verdict:
    start = time.monotonic()
    result = run(ops, adapter, num_blocks=pool.num_blocks, block_size=pool.block_size)
    laws = {result.violation.law: result.violation.reason} if result.violation else {}
    law = next((law for law in case.laws if law in laws), "")
    return Verdict(laws, 1, time.monotonic() - start, ops, pool, law, result.fault or result.hang)


def _search(task: Task, adapter: type) -> Verdict:
    case = task.case
    report = check(
        adapter, name=case.target(task.side), seconds=task.seconds, seed=SEED, programs=task.programs, waived=frozenset(case.also)
    )
    laws = {finding.law: finding.reason for finding in report.violations if finding.law not in case.also}
    law, ops, pool = _shortest(report, case)
    return Verdict(laws, report.programs, report.seconds, ops, pool, law, report.error)


def _shortest(report: Report, case: Case) -> tuple[str, tuple[AnyOp, ...], PoolConfig | None]:
    for finding in report.violations:
        if finding.law in case.laws and not isinstance(finding.program, str):
            return finding.law, finding.program.ops, finding.program.config
    return "", (), None


def main() -> None:
    """Read a task, write a verdict."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(work(task)))


if __name__ == "__main__":
    main()
