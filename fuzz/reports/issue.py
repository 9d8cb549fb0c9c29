"""The text of an issue for failures that nobody had seen before: its first line is the title, the rest is Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.fuzz.programs import Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.source import pytest_source
from kvproof.fuzz.verdicts import Finding
from kvproof.models.laws import BY_NAME


def issue(findings: Sequence[Finding], target: str, adapter: type, *, seed: int, programs: int) -> str:
    """The issue for `findings`, of which there is at least one. `seed` and `programs`: of the campaign that found them."""
    laws = sorted({finding.law for finding in findings if finding.law})
    at_fault = ["is at fault"] if any(not finding.law for finding in findings) else []
    told = [f"breaks {wording.joined(laws)}"] if laws else []
    lines = [f"kvproof: {target} {'; it '.join(told + at_fault)}", ""]
    lines += [
        f"A campaign with seed {seed} found {wording.counted(len(findings), 'new failure')} in {wording.counted(programs, 'program')}.",
        "",
    ]
    for finding in findings:
        lines += _section(finding, adapter)
    lines += ["The failure files are in the campaign's directory `failures`; `kvproof replay FILE` shows one step by step."]
    return "\n".join(lines) + "\n"


def _section(finding: Finding, adapter: type) -> list[str]:
    law = BY_NAME.get(finding.law)
    lines = [f"## {finding.law or 'The target is at fault'}", ""]
    lines += [f"> {law.sentence}", ""] if law else []
    lines += [wording.sentence(finding.reason), ""]
    program = finding.program
    if isinstance(program, str):
        return [*lines, "The smallest case:", "", "```python", program, "```", ""]
    return [*lines, *_steps(program), "As a test:", "", "```python", pytest_source(program, adapter).rstrip("\n"), "```", ""]


def _steps(program: Program) -> list[str]:
    pool = program.config
    told = f"{wording.counted(len(program.ops), 'operation')} on a pool of {wording.counted(pool.num_blocks, 'block')} of {wording.counted(pool.block_size, 'token')}:"
    return [told, "", *(f"{number}. `{wording.operation(op)}`" for number, op in enumerate(program.ops)), ""]
