"""Pictures of programs, of failures and of reports: each program is run again, and filmed.

picture = film_program(program, Adapter, name="no-leak-1c2d.json")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.programs import Program, local
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.picture.differences import Accusation, accusation, differences
from kvproof.fuzz.reports.picture.document import Case, Document, Picture, picture_of
from kvproof.fuzz.reports.picture.film import NOTHING_ASIDE, Film, SetAside
from kvproof.fuzz.reports.skips import why_skipped
from kvproof.fuzz.reports.source import case_source, pytest_source
from kvproof.fuzz.verdicts import Finding, Report
from kvproof.impl.checker import AdapterFault, Hung
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import AnyOp, Op
from kvproof.models.outcomes import Outcome
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import OP_SECONDS, LawBroken, Lockstep, Step, time_limit

Progress: TypeAlias = Callable[[int], None]
"""Told how many operations have run so far."""

MOST_SOURCE_OPERATIONS: Final = 400
"""Longer programs are not given as a test: nobody reads them, and the failure file is there to be run."""

MOST_TEXT: Final = 160
"""Characters of one operation: a long prompt is cut, its tokens are in the sequence's panel."""


def film_program(
    program: Program, adapter: type, *, name: str, op_seconds: float = OP_SECONDS, on_progress: Progress | None = None
) -> Picture:
    """Run `program` on a fresh cache and film it. Raises AdapterFault only where no cache can be built."""
    camera = _Camera(adapter, program)
    try:
        with time_limit(op_seconds):
            for number, op in enumerate(program.ops):
                camera.shoot(op)
                if on_progress is not None:
                    on_progress(number + 1)
    except LawBroken as broken:
        camera.end(broken.violation)
    except AdapterFault as fault:
        camera.unanswered(str(fault))
    except Hung as hung:
        camera.unanswered(f"A call hung: {hung}.")
    picture = camera.picture(name=name, target=local(program.target))
    if camera.violation is not None:
        program = msgspec.structs.replace(program, violation=camera.violation)
    if len(program.ops) <= MOST_SOURCE_OPERATIONS:
        picture.source = pytest_source(program, adapter)
        picture.program = msgspec.json.encode(program).decode()
    return picture


class _Camera:
    """A lockstep run that is filmed operation by operation."""

    def __init__(self, adapter: type, program: Program) -> None:
        config = program.config
        self.lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, keep_trace=True)
        self.film = Film(self.lockstep.spec, num_blocks=config.num_blocks)
        self.violation: Violation | None = None
        self.trouble = ""
        self.last: Step | None = None

    def shoot(self, op: AnyOp) -> None:
        """Run one operation. What is kept of it is its frame: the trace would grow with everything that was ever seen."""
        trace = self.lockstep.trace
        assert trace is not None
        trace.clear()
        if self.lockstep.do(op):
            self._take(trace[-1])
        else:
            reason = why_skipped(self.lockstep.spec, op)
            self.film.skip(op, operation_text(op), f"skipped: {reason}" if reason else "skipped")

    def end(self, violation: Violation) -> None:
        """The last operation broke a law."""
        trace = self.lockstep.trace
        assert trace is not None
        self.violation = violation
        self._take(trace[-1])

    def unanswered(self, trouble: str) -> None:
        """The last operation has no answer that could be judged."""
        self.trouble = trouble
        ran = len(self.lockstep.ops)
        if ran > sum(number is not None for number in self.film.numbers):
            op: AnyOp = self.lockstep.ops[-1]  # type: ignore[assignment]  # every operation is one of AnyOp
            self.film.unanswered(op, operation_text(op))

    def picture(self, *, name: str, target: str) -> Picture:
        picture = picture_of(self.film, name=name, target=target)
        picture.trouble = self.trouble
        if self.violation is not None and self.last is not None:
            picture.faults = [accuse(self.film, self.violation, self.last.op, self.last.outcome)]
        return picture

    def _take(self, step: Step) -> None:
        self.last = step
        self.film.take(step.op, operation_text(step.op), wording.answer(step.op, step.outcome), step.seen.books.free)


def accuse(film: Film, violation: Violation, op: Op, outcome: Outcome, aside: SetAside = NOTHING_ASIDE) -> Accusation:
    """The last row of `film` breaks a law: what is accused, and where model and cache differ after it. `aside`: what earlier faults explain."""
    accused = accusation(violation, len(film.frames) - 1, film.numbers)
    return msgspec.structs.replace(accused, differences=differences(film.spec, op, outcome, accused, aside))


def film_report(report: Report, adapter: type) -> Document:
    """The page of a whole check: its laws, and a picture or a case for each that is broken."""
    programs = [(finding.law, finding.program) for finding in report.violations if isinstance(finding.program, Program)]
    if report.error_program is not None:
        programs.append(("fault", report.error_program))
    pictures = [film_program(program, adapter, name=law) for law, program in programs]
    for picture, (law, _) in zip(pictures, programs, strict=True):
        if not picture.faults and not picture.trouble:
            picture.note = (
                f"{law} was broken in the check and held when this program was run once more: the target does not always do the same."
            )
    return Document(
        report.target, pictures, cases=list(_cases(report.violations, report.target, adapter)), laws=report.laws, summary=_summary(report)
    )


def _cases(findings: Iterable[Finding], target: str, adapter: type) -> Iterable[Case]:
    for finding in findings:
        if isinstance(finding.program, str):
            law = BY_NAME.get(finding.law)
            source = case_source(finding.law, finding.program, target, adapter)
            yield Case(finding.law, law.sentence if law else "", finding.reason, finding.program, source)


def _summary(report: Report) -> str:
    programs, operations = wording.counted(report.programs, "program"), wording.counted(report.operations, "operation")
    tried = f"{programs} ({operations}) in {report.seconds:.1f} s, seed {report.seed}"
    return f"{tried}. {report.error}" if report.error else f"{tried}."


def operation_text(op: Op) -> str:
    """An operation in a few words, as every report has it; a long prompt is cut."""
    text = wording.operation(op)
    if len(text) <= MOST_TEXT:
        return text
    tokens = next(value for name in ("prompt", "tokens", "drafts", "blocks") if (value := getattr(op, name, ())))
    return f"{text[:MOST_TEXT].rsplit(' ', 1)[0]} ... ({len(tokens):,} in all)"
