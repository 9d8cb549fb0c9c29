"""The text of an issue for failures that nobody had seen before: its first line is the title, the rest is Markdown.

GitHub takes titles of at most 256 characters and bodies of at most 65,536. So of each law the shortest program is told; the others, and what has no room, are counted and are in the failure files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvproof.fuzz.campaigns.folder import file_name
from kvproof.fuzz.programs import Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.source import pytest_source
from kvproof.fuzz.verdicts import Finding, by_law
from kvproof.models.laws import BY_NAME

MOST_NAMED: Final = 3
"""How many laws a title names."""

TITLE_CHARACTERS: Final = 250

BODY_CHARACTERS: Final = 60_000
"""Of the sections; what stands around them is short."""


def issue(findings: Sequence[Finding], target: str, adapter: type, *, seed: int, programs: int) -> str:
    """The issue for `findings`, of which there is at least one. `seed` and `programs`: of the campaign that found them."""
    grouped = by_law(sorted(findings, key=lambda finding: (finding.steps, finding.law)))
    lines = [
        _title(target, grouped),
        "",
        f"A campaign with seed {seed} found {wording.counted(len(findings), 'new failure')} in {wording.counted(programs, 'program')}.",
        "",
    ]
    room, untold = BODY_CHARACTERS, []
    for law, group in grouped.items():
        section = _section(group, adapter)
        room -= sum(len(line) + 1 for line in section)
        if room < 0:
            untold.append(law or "a fault of the target")
        else:
            lines += section
    if untold:
        lines += [f"There was no room here for {wording.joined(untold)}.", ""]
    lines += ["The failure files are in the campaign's directory `failures`; `kvproof replay FILE` shows one step by step."]
    return "\n".join(lines) + "\n"


def _title(target: str, grouped: dict[str, list[Finding]]) -> str:
    laws = sorted(law for law in grouped if law)
    named = laws if len(laws) <= MOST_NAMED else [*laws[:MOST_NAMED], wording.counted(len(laws) - MOST_NAMED, "more law")]
    told = [f"breaks {wording.joined(named)}"] if laws else []
    told += ["is at fault"] if "" in grouped else []
    return f"kvproof: {target} {'; it '.join(told)}"[:TITLE_CHARACTERS]


def _section(findings: Sequence[Finding], adapter: type) -> list[str]:
    """One law: its shortest failure, and how many more there are."""
    finding = findings[0]
    law = BY_NAME.get(finding.law)
    lines = [f"## {finding.law or 'The target is at fault'}", ""]
    lines += [f"> {law.sentence}", ""] if law else []
    lines += [wording.sentence(finding.reason), ""]
    program = finding.program
    if isinstance(program, str):
        lines += ["The smallest case:", "", "```python", program, "```", ""]
    else:
        lines += _steps(program)
        if not wording.left_out(len(program.ops)):
            lines += ["As a test:", "", "```python", pytest_source(program, adapter).rstrip("\n"), "```", ""]
        lines += [f"It is in the failure file `{file_name(finding)}`." + (f" {wording.GOES_ON}." if program.unfinished else ""), ""]
    if len(findings) > 1:
        more = wording.counted(len(findings) - 1, "more failure")
        lines += [f"The failure files have {more} of this {'law' if finding.law else 'kind'}, each with another cause.", ""]
    return lines


def _steps(program: Program) -> list[str]:
    pool = program.config
    missing = wording.left_out(len(program.ops))
    told = f"{wording.counted(len(program.ops), 'operation')} on a pool of {wording.counted(pool.num_blocks, 'block')} of {wording.counted(pool.block_size, 'token')}"
    told += f", the first {missing:,} of them left out here:" if missing else ":"
    return [told, "", *(f"{number}. `{wording.operation(op)}`" for number, op in enumerate(program.ops[missing:], missing)), ""]
