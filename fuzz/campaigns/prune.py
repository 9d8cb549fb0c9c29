"""A smaller corpus that reaches the same situations, and no failure that is gone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.fuzz.campaigns.apart import ends_its_process, program_apart, survives
from kvproof.fuzz.campaigns.findings import batch_of
from kvproof.fuzz.campaigns.store import Store
from kvproof.fuzz.programs import Program
from kvproof.fuzz.runs import Search, Tally, run_kept
from kvproof.fuzz.verdicts import Finding
from kvproof.properties.situations import Reached


class Pruned(msgspec.Struct, frozen=True):
    """What was left of how much."""

    programs: int
    programs_before: int
    findings: int
    findings_before: int
    gone: tuple[Finding, ...] = ()
    """The failures that were taken out."""


def prune(search: Search, store: Store) -> Pruned:
    """Run everything that is kept, in this process, and take out what adds nothing."""
    corpus, findings = store.corpus(), store.findings()
    tally = Tally()
    reached: list[tuple[Program, Reached]] = []
    for program in corpus:
        ran = run_kept(search, program, tally)
        if ran.found is None:
            reached.append((program, ran.reached))
    kept = cover(reached)
    for program in corpus:
        if program not in kept:
            store.drop(program)
    gone = [finding for finding in findings if not _fails(search, finding, tally)]
    for finding in gone:
        store.drop_finding(finding)
    return Pruned(len(kept), len(corpus), len(findings) - len(gone), len(findings), tuple(gone))


def _fails(search: Search, finding: Finding, tally: Tally) -> bool:
    """Whether a kept failure still fails. One that ended its process is run in one of its own."""
    program = finding.program
    if not isinstance(program, Program):
        batch = batch_of(finding)
        return batch is None or not survives(search, batch)
    if ends_its_process(program):
        ran = program_apart(search, program).ran
        return ran is None or ran.found is not None
    return run_kept(search, program, tally).found is not None


def cover(programs: Sequence[tuple[Program, Reached]]) -> set[Program]:
    """Few programs that reach all that `programs` reach: again and again the one that adds most for its length (the greedy set cover)."""
    left = list(programs)
    missing = [0] * (len(left[0][1]) if left else 0)
    for _, reached in left:
        missing = [one | two for one, two in zip(missing, reached, strict=True)]
    chosen: set[Program] = set()
    while any(missing):
        best = max(left, key=lambda pair: (_adds(pair[1], missing) / (len(pair[0].ops) + 1), -len(pair[0].ops)))
        chosen.add(best[0])
        missing = [mask & ~reached for mask, reached in zip(missing, best[1], strict=True)]
        left.remove(best)
    return chosen


def _adds(reached: Reached, missing: Sequence[int]) -> int:
    return sum((one & two).bit_count() for one, two in zip(reached, missing, strict=True))
