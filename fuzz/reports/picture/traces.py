"""Pictures of recorded traces: the audit judges each operation, and what it saw is filmed, to the end of the trace, whatever law breaks on the way.

document = film_trace(Path("trace.jsonl"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.auditor import Auditor
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.picture.differences import Accusation
from kvproof.fuzz.reports.picture.document import Document, Picture, picture_of
from kvproof.fuzz.reports.picture.film import Film
from kvproof.fuzz.reports.picture.sources import MOST_SOURCE_OPERATIONS, Progress, accuse, operation_text
from kvproof.fuzz.traces.format import Header
from kvproof.fuzz.traces.read import Reader, Step, Trouble
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Violation

MOST_OPERATIONS: Final = 300_000
"""A browser holds that many steps at ease; of a longer trace the beginning is drawn, and the page says so."""

MOST_PREFIXES: Final = 3_000_000
"""Tokens of different prefixes that a page holds, about 20 bytes each."""


def film_trace(path: Path, *, on_progress: Progress | None = None) -> Picture:
    """The picture of a whole trace with the faults that its audit tells. Where operations are missing there is a gap, and then what began later. Raises BadTrace."""
    reader = Reader(path)
    camera = _Camera(reader.header)
    for item in reader:
        if isinstance(item, Trouble):
            camera.trouble(item.what, lost=item.lost)
        else:
            camera.shoot(item)
        if camera.full:
            break
        if on_progress is not None:
            on_progress(reader.bytes_read)
    return camera.picture(path.name, reader.notes)


class _Camera:
    """An audit that is filmed operation by operation."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.auditor = Auditor(header, onward=True)
        self.film = Film(self.auditor.spec, num_blocks=header.config.num_blocks)
        self.troubles: list[str] = []
        self.ops: list[AnyOp] = []
        self.faults: list[Accusation] = []
        self.full = False
        """Whether the page can hold no more."""

    def shoot(self, step: Step) -> None:
        """Judge and film one operation."""
        unjudged, told, aside = self.auditor.unjudged, len(self.auditor.breaches), self.film.aside
        complaint = self.auditor.judge(step)
        if complaint:
            self.trouble(complaint, lost=True)
            return
        film = self.film
        film.resume(step.number)
        if self.auditor.unjudged > unjudged:
            film.unfollowed(step.op, operation_text(step.op))
        else:
            film.take(step.op, operation_text(step.op), wording.answer(step.op, step.outcome), step.free)
        self.faults += [accuse(film, breach.violation, step.op, step.outcome, aside) for breach in self.auditor.breaches[told:]]
        if len(self.ops) <= MOST_SOURCE_OPERATIONS and not told:
            self.ops.append(step.op)
        self.full = len(film.frames) >= MOST_OPERATIONS or len(film.prefixes.parents) > MOST_PREFIXES

    def trouble(self, what: str, *, lost: bool) -> None:
        """Something is wrong with a line. `lost`: operations are missing from here on."""
        self.troubles.append(what)
        if lost:
            self.auditor.lose_track(what)
            self.film.lose(self.auditor.spec, what)

    def picture(self, name: str, notes: list[str]) -> Picture:
        """What was filmed. `notes`: what the reader has to say of the file as a whole."""
        picture = picture_of(self.film, name=name, target=self.header.target)
        breach = self.auditor.breach
        picture.faults = self.faults
        picture.note = " ".join([*self._told_troubles(), *self._told_end(), *([] if self.full else notes)])
        if len(self.ops) <= MOST_SOURCE_OPERATIONS and not self.troubles:
            picture.program = _program(self.header, self.ops, breach.violation if breach else None)
        return picture

    def _told_troubles(self) -> list[str]:
        if not self.troubles:
            return []
        gaps = self.film.gaps
        worst = self.film.texts[gaps[0]] if gaps else self.troubles[0]
        told = [wording.sentence(worst)]
        if gaps:
            told.append("Beyond the gap only sequences that began later are followed.")
        if len(self.troubles) > 1:
            told.append(f"`kvproof audit --tolerant` lists all {len(self.troubles)} lines that something is wrong with.")
        return told

    def _told_end(self) -> list[str]:
        told = (
            [
                f"The trace goes on: its first {len(self.film.frames):,} operations are drawn and judged here; `kvproof audit` judges the rest."
            ]
            if self.full
            else []
        )
        if self.auditor.breach is not None:
            told += self.auditor.notes_on_consequences()
        return told


def _program(header: Header, ops: list[AnyOp], violation: Violation | None) -> str:
    """What the trace recorded, as a failure file. It is no test: where the adapter of its target lies, a trace does not know."""
    return msgspec.json.encode(Program(FORMAT, header.target, header.config, tuple(ops), violation=violation)).decode()


def trace_document(path: Path, *, on_progress: Progress | None = None) -> Document:
    """The page of one trace."""
    return Document(path.name, [film_trace(path, on_progress=on_progress)])
