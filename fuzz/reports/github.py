"""Annotations that GitHub shows beside a run: workflow commands, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.fuzz.verdicts import Report, by_law


def github_annotations(report: Report, stale: Mapping[str, str]) -> list[str]:
    """One error for each broken law, for each stale waiver (law -> complaint), and for a target that could not be judged."""
    lines = [
        _error(law, findings[0].reason)
        for law, findings in by_law(report.violations).items()
        if law not in report.laws or report.laws[law].verdict != "waived"
    ]
    lines += [_error(law, complaint) for law, complaint in stale.items()]
    if report.verdict == "error":
        lines.append(_error(report.target, report.error))
    return lines


def _error(title: str, message: str) -> str:
    return f"::error title={_property(title)}::{_message(message)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
