"""Catch a seeded bug, and say what it took."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from kvproof.fuzz.bugs.registry import SeededBug
from kvproof.fuzz.check import check
from kvproof.fuzz.runs import Search, Tally, run_seed
from kvproof.impl.checker import read_capabilities

SEED: Final = 1
"""The programs that the tests and the table hunt with."""


class Catch(msgspec.Struct, frozen=True):
    """What was found of one seeded bug.

    `law` and `operations`: of the shortest program. `seconds` and `programs`: what it took until any law broke, before shrinking. A bug that was not caught
    has no law.
    """

    bug: SeededBug
    law: str
    operations: int
    seconds: float
    programs: int

    @property
    def as_expected(self) -> bool:
        """Whether the law that was named may be, and the program is short."""
        return self.law in self.bug.laws and self.operations <= self.bug.most_operations


def hunt(bug: SeededBug, *, seconds: float, seed: int = SEED) -> Catch:
    """Search for at most `seconds` on one core, and then as long again for the shortest program."""
    capabilities = read_capabilities(bug.adapter)
    start = time.monotonic()
    search = Search(bug.adapter, f"bug:{bug.name}", capabilities, seed, 1, start + seconds, 10.0, None, frozenset())
    tally = Tally()
    while time.monotonic() < search.deadline and run_seed(search, f"{seed}:{tally.programs}", tally) is None:
        pass
    taken = time.monotonic() - start
    report = check(bug.adapter, name=search.name, seconds=seconds, seed=seed, workers=1)
    if not report.violations:
        return Catch(bug, "", 0, taken, tally.programs)
    return Catch(bug, report.violations[0].law, report.violations[0].steps, taken, tally.programs)
