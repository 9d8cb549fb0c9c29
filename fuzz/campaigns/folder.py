"""The failure files of a campaign: one for each cause, variants in a folder beside them, and none of what a shorter program has replaced.

    arrange(directory / "failures", conductor.failures.causes(), conductor.failures.surpassed)

A file is named after its program, so a failure that becomes a variant of a shorter one moves, and comes back once the shorter one is mended. What somebody else has put there stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvproof.fuzz.campaigns.apart import ends_its_process
from kvproof.fuzz.campaigns.causes import Cause
from kvproof.fuzz.programs import VARIANTS, Program, failure_name, keep_program, portable_program
from kvproof.fuzz.verdicts import Finding


def arrange(failures: Path, causes: Iterable[Cause], gone: Iterable[Finding] = ()) -> None:
    """Write the files of `causes`, and remove those of `gone`. Cases of kernels have no variants and are left alone. Raises OSError."""
    for finding in gone:
        remove(failures, finding)
    for cause in causes:
        for finding in cause.members:
            if isinstance(finding.program, Program):
                here, elsewhere = failures, failures / VARIANTS
                if finding is not cause.first:
                    here, elsewhere = elsewhere, here
                keep_program(here, _kind(finding.program), portable_program(finding.program))
                (elsewhere / file_name(finding)).unlink(missing_ok=True)


def remove(failures: Path, finding: Finding) -> None:
    """Remove the file of a failure that is gone, if there is one. Raises OSError."""
    if isinstance(finding.program, Program):
        for folder in (failures, failures / VARIANTS):
            (folder / file_name(finding)).unlink(missing_ok=True)


def file_name(finding: Finding) -> str:
    """The name of the failure file of a program."""
    assert isinstance(finding.program, Program), "files of cases are named elsewhere"
    return failure_name(_kind(finding.program), portable_program(finding.program))


def _kind(program: Program) -> str:
    """How the name of its file begins. One that ends its process is told apart, so that nobody replays it unawares."""
    if program.violation is not None:
        return program.violation.law
    return "death" if ends_its_process(program) else "fault"
