"""An audit as a reader sees it: a table of laws, what is wrong with the file, the broken laws; and the same for CI systems."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.audit import AuditReport
from kvproof.fuzz.auditor import AuditVerdict, LawFinding
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.junit import junit
from kvproof.fuzz.reports.terminal import is_narrow, say
from kvproof.fuzz.verdicts import Finding, LawVerdict, Report
from kvproof.models.laws import BY_NAME

WORDS: Final[dict[AuditVerdict, tuple[str, str]]] = {
    "proved": ("proved", "green"),
    "broken": ("BROKEN", "bold red"),
    "unknown": ("cannot be told", "dim"),
}
"""How each verdict is written, and its style."""


def show_audit(console: Console, report: AuditReport) -> None:
    """The whole answer of an audit, the verdict last."""
    _show_laws(console, report)
    console.print()
    if report.seconds:
        rate = f", {report.operations / report.seconds:,.0f} a second"
        say(console, f"{wording.counted(report.operations, 'operation')} were judged in {report.seconds:.1f} s{rate}.")
    for told in [*report.troubles, *report.notes]:
        say(console, told, "yellow")
    for breach in report.violations:
        console.print()
        console.print(Text(f"{breach.law} is broken by operation {breach.operation}, on line {breach.line}", style="bold red"))
        say(console, f"  The law: {BY_NAME[breach.law].sentence}")
        say(console, f"  The reason: {wording.sentence(breach.reason)}")
    console.print()
    say(console, *_verdict_line(report))


def _show_laws(console: Console, report: AuditReport) -> None:
    if is_narrow(console):
        for law, finding in report.laws.items():
            word, style = WORDS[finding.verdict]
            say(console, f"- {law}: {word}{_beside(finding)}", style)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("law", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("put to the test, or why nothing can be told", overflow="fold")
    for law, finding in report.laws.items():
        word, style = WORDS[finding.verdict]
        table.add_row(law, Text(word, style=style), Text(_told(finding)))
    console.print(table)


def _told(finding: LawFinding) -> str:
    """The last column of the table."""
    if finding.verdict != "proved":
        return finding.because
    return f"{finding.exercised:,} times" + (f"; {finding.because}" if finding.because else "")


def _beside(finding: LawFinding) -> str:
    if finding.verdict == "proved":
        return f", {finding.exercised:,} times put to the test" + (f"; {finding.because}" if finding.because else "")
    return f", because {finding.because}" if finding.because else ""


def _verdict_line(report: AuditReport) -> tuple[str, str]:
    count = sum(1 for finding in report.laws.values() if finding.verdict == "proved")
    if report.violations:
        return f"{report.trace} breaks {wording.joined([breach.law for breach in report.violations])}.", "bold red"
    untold = len(report.laws) - count
    return (
        f"{report.trace} breaks no law: {wording.counted(count, 'law')} proved, of {wording.counted(untold, 'law')} nothing can be told.",
        "bold green",
    )


def audit_junit(report: AuditReport) -> bytes:
    """The audit as JUnit XML: one test case for each law; what cannot be told is skipped, with the reason."""
    words: Final = {"proved": "held", "broken": "broken", "unknown": "not-exercised"}
    laws = {law: LawVerdict(words[finding.verdict], finding.exercised) for law, finding in report.laws.items()}  # type: ignore[arg-type]  # the words are verdicts
    findings = [
        Finding(breach.law, breach.reason, f"operation {breach.operation}, line {breach.line} of {report.trace}", 1)
        for breach in report.violations
    ]
    notes = {law: f"it cannot be told from this trace, because {f.because}" for law, f in report.laws.items() if f.verdict == "unknown"}
    whole = Report(
        report.kvproof,
        report.trace,
        "broken" if report.violations else "held",
        laws,
        findings,
        0,
        report.operations,
        report.seconds,
        0,
        notes=notes,
    )
    return junit(whole, {finding.law: str(finding.program) for finding in findings}, {}, {})
