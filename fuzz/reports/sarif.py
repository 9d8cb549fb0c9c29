"""A report as SARIF 2.1.0, for code hosts that show findings beside the code: one rule for each law, one result for each finding.

A cache has no line that is wrong, only a class that breaks its promise; so a finding is placed at the class of the adapter.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from kvproof.fuzz.campaigns.causes import cause_name
from kvproof.fuzz.programs import Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.verdicts import Finding, Report
from kvproof.models.laws import BY_NAME

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

FAULT: Final = "target-at-fault"
"""The rule of what is no broken law: the adapter, or its process, is at fault."""


def sarif(report: Report, target: type) -> bytes:
    """The report as JSON. `target` is the class that was judged. Waived laws are notes, everything else is an error."""
    findings = [*report.violations, *([_error(report)] if report.verdict == "error" else [])]
    rules = sorted({_rule(finding) for finding in findings})
    run = {
        "tool": {
            "driver": {"name": "kvproof", "version": importlib.metadata.version("kvproof"), "rules": [_described(rule) for rule in rules]}
        },
        "results": [_result(finding, rules, report, target) for finding in findings],
    }
    return msgspec.json.format(msgspec.json.encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}), indent=1) + b"\n"


def _error(report: Report) -> Finding:
    return Finding("", report.error, report.error_program or "", 0)


def _rule(finding: Finding) -> str:
    return finding.law or FAULT


def _described(rule: str) -> dict[str, Any]:
    sentence = BY_NAME[rule].sentence if rule in BY_NAME else "The adapter keeps the contract, and its process lives."
    return {"id": rule, "shortDescription": {"text": sentence}}


def _result(finding: Finding, rules: list[str], report: Report, target: type) -> dict[str, Any]:
    verdict = report.laws.get(finding.law)
    waived = verdict is not None and verdict.verdict == "waived"
    return {
        "ruleId": _rule(finding),
        "ruleIndex": rules.index(_rule(finding)),
        "level": "note" if waived else "error",
        "message": {"text": _message(finding)},
        "locations": [{"physicalLocation": _place(target)}],
        "partialFingerprints": {"kvproof/v2": hashlib.sha256(cause_name(finding).encode()).hexdigest()},
    }


def _message(finding: Finding) -> str:
    text = wording.sentence(finding.reason)
    if not isinstance(finding.program, Program):
        return f"{text} The smallest case: {finding.program}" if finding.program else text
    pool = finding.program.config
    ops = finding.program.ops
    missing = wording.left_out(len(ops))
    first = f"{wording.counted(missing, 'operation')} that are left out here; " if missing else ""
    steps = first + "; ".join(wording.operation(op) for op in ops[missing:])
    return f"{text} On a pool of {wording.counted(pool.num_blocks, 'block')} of {wording.counted(pool.block_size, 'token')}: {steps}."


def _place(target: type) -> dict[str, Any]:
    file, line = place_of(target)
    return {"artifactLocation": {"uri": file}, **({"region": {"startLine": line}} if line else {})}


def place_of(target: type) -> tuple[str, int]:
    """File and line of the class, by a path from the root of the checkout that GitHub works in, or else from the current directory, where there is one. Line 0: unknown."""
    try:
        path, line = Path(inspect.getsourcefile(target) or ""), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):
        return target.__module__.replace(".", "/") + ".py", 0
    root = next((root for root in (os.environ.get("GITHUB_WORKSPACE"), Path.cwd()) if root and path.is_relative_to(root)), None)
    return path.as_uri() if root is None else path.relative_to(root).as_posix(), max(1, line)
