"""Annotations that GitHub shows beside a run: workflow commands, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.fuzz.reports.sarif import place_of
from kvproof.fuzz.verdicts import Report, by_law


def github_annotations(report: Report, stale: Mapping[str, str], target: type) -> list[str]:
    """One error for each broken law and for a target that could not be judged, at the class that was judged, and one for each stale waiver (law -> complaint)."""
    file, line = place_of(target)
    place = f",file={_property(file)},line={line}" if line and not file.startswith("file:") else ""
    lines = [
        _error(law, findings[0].reason, place)
        for law, findings in by_law(report.violations).items()
        if law not in report.laws or report.laws[law].verdict != "waived"
    ]
    lines += [_error(law, complaint) for law, complaint in stale.items()]
    if report.verdict == "error":
        lines.append(_error(report.target, report.error, place))
    return lines


def _error(title: str, message: str, place: str = "") -> str:
    return f"::error title={_property(title)}{place}::{_message(message)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
