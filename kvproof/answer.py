"""What a check or a campaign does with its report: failure files, replays, sources, waivers, and the files for machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.console import Console

from kvproof.console import complain
from kvproof.fuzz.kernel_failures import write_failure
from kvproof.fuzz.programs import BadFile, Program, keep_program, portable_program, write_whole, writing
from kvproof.fuzz.reports import terminal
from kvproof.fuzz.reports.github import github_annotations
from kvproof.fuzz.reports.junit import junit
from kvproof.fuzz.reports.picture.html import html
from kvproof.fuzz.reports.picture.sources import film_report
from kvproof.fuzz.reports.sarif import sarif
from kvproof.fuzz.reports.source import case_source, pytest_source
from kvproof.fuzz.reports.steps import replay
from kvproof.fuzz.verdicts import AT_FAULT, HELD, Finding, Report, by_law
from kvproof.fuzz.waivers import DEFAULT_FILE, Waiver, read_waivers, stale_waivers, waivers_for
from kvproof.impl.foreign.loading import fetched_release

Written = TypeVar("Written")
AnyProgram = TypeVar("AnyProgram", Program, Program | str)

FAULT_OP_SECONDS: Final = 1.0
"""Time limit of an operation where a program that may hang is only run to be shown."""


class Answer:
    """A report with what makes it readable: failure files, replays, sources, waivers. Problems with files are told, never raised.

    `option` names the place of the failure files on the command line.
    """

    def __init__(self, report: Report, adapter: type, waivers: dict[str, Waiver], failures: Path, option: str, op_seconds: float) -> None:
        self.adapter = adapter
        self.waivers = waivers
        self.failures = failures
        self.option = option
        self.unwritten = False
        self.stale = stale_waivers(waivers, report.laws) if report.verdict == "held" else {}
        if self.stale:
            report = msgspec.structs.replace(report, verdict="broken", error=" ".join(self.stale.values()))
        report = self.report = msgspec.structs.replace(_portable_report(report), release=fetched_release(adapter))
        self.exhibits = [self._show(finding, op_seconds) for finding in report.violations]
        fault = report.error_program if report.verdict == "error" else None
        self.error = None if fault is None else self._exhibit(fault, op_seconds=min(op_seconds, FAULT_OP_SECONDS))

    @property
    def status(self) -> int:
        """The exit status: a broken law outweighs a file that could not be written."""
        return self.report.exit_status or (AT_FAULT if self.unwritten else HELD)

    def show(self, console: Console) -> None:
        """The report for a reader, and annotations where GitHub runs this."""
        report = self.report
        if report.verdict == "error":
            complain(report.error)
        terminal.show_report(console, report, self.exhibits, waivers=self.waivers, stale=self.stale, error=self.error)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github_annotations(report, self.stale, self.adapter):
                terminal.verbatim(console, line)

    def write(self, json_file: Path | None, junit_file: Path | None, sarif_file: Path | None = None) -> None:
        """The report for machines."""
        if json_file is not None:
            text = msgspec.json.format(msgspec.json.encode(self.report), indent=2) + b"\n"
            if json_file == Path("-"):
                sys.stdout.write(text.decode())
            else:
                self._written(json_file, "--json", lambda: write_whole(json_file, text))
        if junit_file is not None:
            sources = {law: exhibits[0].source for law, exhibits in by_law(self.exhibits).items()}
            suite = junit(self.report, sources, self.waivers, self.stale)
            self._written(junit_file, "--junit", lambda: write_whole(junit_file, suite))
        if sarif_file is not None:
            alerts = sarif(self.report, self.adapter)
            self._written(sarif_file, "--sarif", lambda: write_whole(sarif_file, alerts))

    def draw(self, html_file: Path | None) -> None:
        """The report as a picture."""
        if html_file is not None:
            page = html(film_report(self.report, self.adapter))
            self._written(html_file, "--html", lambda: write_whole(html_file, page))

    def _show(self, finding: Finding, op_seconds: float) -> terminal.Exhibit | terminal.CaseExhibit:
        shown = finding.program
        if isinstance(shown, str):
            source = case_source(finding.law, shown, self.report.target, self.adapter)
            path = self._written(self.failures, self.option, lambda: write_failure(self.failures, self.report.target, finding))
            return terminal.CaseExhibit(finding.law, finding.reason, shown, source, self.report.target, path)
        return self._exhibit(shown, law=finding.law, reason=finding.reason, op_seconds=op_seconds)

    def _exhibit(self, program: Program, *, op_seconds: float, law: str = "", reason: str = "") -> terminal.Exhibit:
        again = replay(program, self.adapter, op_seconds=op_seconds)
        path = self._written(self.failures, self.option, lambda: keep_program(self.failures, law or "fault", program))
        return terminal.Exhibit(program, again, pytest_source(program, self.adapter), law, reason, path)

    def _written(self, place: Path, option: str, write: Callable[[], Written]) -> Written | None:
        """What `write` returns; where `place` cannot be written, that is told, and the answer goes on."""
        try:
            with writing(place, option):
                return write()
        except BadFile as error:
            complain(str(error))
            self.unwritten = True
            return None


def _portable_report(report: Report) -> Report:
    """The report with programs that can be run from any directory."""
    violations = [msgspec.structs.replace(finding, program=_portable(finding.program)) for finding in report.violations]
    fault = report.error_program
    return msgspec.structs.replace(report, violations=violations, error_program=None if fault is None else _portable(fault))


def _portable(program: AnyProgram) -> AnyProgram:
    """A case of kernels names no target and is portable as it is."""
    return program if isinstance(program, str) else portable_program(program)


def known_broken(path: Path | None, target: str) -> dict[str, Waiver]:
    """The waivers for `target` in the named file, or in the one of the current directory."""
    if path is None and not DEFAULT_FILE.exists():
        return {}
    return waivers_for(read_waivers(path or DEFAULT_FILE), target)
