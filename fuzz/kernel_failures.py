"""Failure files of kernels: the target, the law and the case that breaks it, as JSON with a format version.

A case is written as the expression that builds it, `Case('attend', lens=(1, 2))`, and read without being executed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kvproof.fuzz.programs import FORMAT, BadFile, portable, write_whole
from kvproof.fuzz.reports.source import WHOLE
from kvproof.fuzz.verdicts import Finding, Report

if TYPE_CHECKING:
    from kvproof.kernels.laws.cases import Case

CALL: Final = "Case"


class KernelFailure(msgspec.Struct, frozen=True):
    """A broken law of kernels. `reason` is what was seen when it was found."""

    kvproof: int
    target: str
    law: str
    case: str
    reason: str = ""


def write_failure(directory: Path, target: str, finding: Finding) -> Path:
    """Write the failure file of a finding on kernels; its name is the same for the same case. Raises OSError."""
    assert isinstance(finding.program, str), "kernels were judged"
    failure = KernelFailure(FORMAT, portable(target), finding.law, finding.program, finding.reason)
    digest = hashlib.sha256(f"{failure.target}\0{failure.case}".encode()).hexdigest()[:8]
    path = directory / f"{finding.law}-{digest}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(failure), indent=1) + b"\n")
    return path


def read_failure(path: Path) -> KernelFailure | None:
    """What a failure file, or the first violation of a report, says of kernels; None where the file is about something else."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        text = path.read_bytes()
        with contextlib.suppress(msgspec.DecodeError):
            report = msgspec.json.decode(text, type=Report)
            first = report.violations[0] if report.violations else None
            if report.kvproof != FORMAT or first is None or not isinstance(first.program, str):
                return None
            return KernelFailure(FORMAT, report.target, first.law, first.program, first.reason)
        failure = msgspec.json.decode(text, type=KernelFailure)
        return failure if failure.kvproof == FORMAT else None
    return None


def parse_case(text: str) -> Case:
    """The case that an expression builds. Raises BadFile where it is none."""
    from kvproof.kernels.laws.cases import Case

    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == CALL):
            raise ValueError("it is not a call of Case")
        arguments = [ast.literal_eval(argument) for argument in call.args]
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return Case(*arguments, **options)
    except (SyntaxError, ValueError, TypeError) as error:
        raise BadFile(f"The case {text!r} cannot be read ({error}); find it again with `kvproof check`.") from error


def judge_again(failure: KernelFailure, kernels: type) -> dict[str, str]:
    """The laws that the case breaks on `kernels`, each with what was seen. Raises BadFile, and MachineError where the machine is at its end."""
    from kvproof.kernels.check import check_kernels, judge_case

    if failure.law == WHOLE:
        # It is judged for the kernels as a whole, in pools of the largest size.
        found = check_kernels(kernels, budget_seconds=1, laws={WHOLE}).law(WHOLE)
        return {WHOLE: found.reason} if found.verdict == "broken" else {}
    return judge_case(kernels, parse_case(failure.case))
