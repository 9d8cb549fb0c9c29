"""Pictures of recorded traces: the audit judges each operation, and what it saw is filmed.

document = film_trace(Path("trace.jsonl"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.auditor import Auditor
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.picture.document import Document, Picture, picture_of
from kvproof.fuzz.reports.picture.film import Film
from kvproof.fuzz.reports.picture.sources import MOST_SOURCE_OPERATIONS, Progress, accuse, operation_text
from kvproof.fuzz.traces.format import Header
from kvproof.fuzz.traces.read import Reader, Trouble
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Violation

MOST_OPERATIONS: Final = 300_000
"""A browser holds that many steps at ease; of a longer trace the beginning is drawn, and the page says so."""

MOST_PREFIXES: Final = 3_000_000
"""Tokens of different prefixes that a page holds, about 20 bytes each."""


def film_trace(path: Path, *, on_progress: Progress | None = None) -> Picture:
    """The picture of a trace, up to the first broken law, or to the first line that is missing, doubled or damaged. Raises BadTrace."""
    reader = Reader(path)
    auditor = Auditor(reader.header)
    film = Film(auditor.spec, num_blocks=reader.header.config.num_blocks)
    trouble = note = ""
    last = None
    ops: list[AnyOp] = []
    for item in reader:
        trouble = item.what if isinstance(item, Trouble) else auditor.judge(item)
        if trouble or isinstance(item, Trouble):
            break
        last = item
        if len(ops) <= MOST_SOURCE_OPERATIONS:
            ops.append(item.op)
        film.take(item.op, operation_text(item.op), wording.answer(item.op, item.outcome), item.free)
        if auditor.breach is not None:
            break
        if len(film.frames) >= MOST_OPERATIONS or len(film.prefixes.parents) > MOST_PREFIXES:
            note = f"The trace goes on: its first {len(film.frames):,} operations are drawn."
            break
        if on_progress is not None:
            on_progress(reader.bytes_read)
    picture = picture_of(film, name=path.name, target=reader.header.target)
    picture.note = note or " ".join(reader.notes)
    if trouble:
        picture.trouble = wording.sentence(f"{trouble}; what comes after it is not drawn")
    elif auditor.breach is not None and last is not None:
        accuse(picture, film, auditor.breach.violation, last.op, last.outcome)
    if len(ops) <= MOST_SOURCE_OPERATIONS:
        picture.program = _program(reader.header, ops, auditor.breach.violation if auditor.breach else None)
    return picture


def _program(header: Header, ops: list[AnyOp], violation: Violation | None) -> str:
    """What the trace recorded, as a failure file. It is no test: where the adapter of its target lies, a trace does not know."""
    return msgspec.json.encode(Program(FORMAT, header.target, header.config, tuple(ops), violation=violation)).decode()


def trace_document(path: Path, *, on_progress: Progress | None = None) -> Document:
    """The page of one trace."""
    return Document(path.name, [film_trace(path, on_progress=on_progress)])
