"""Judge a recorded trace: which laws it breaks, where, and why; and of every other law, what the trace can tell.

    report = audit(Path("trace.jsonl"))
    report.laws["no-aliasing"].verdict          # "proved", "broken" or "unknown"
    report.violations                           # the first fault of each broken law, in the order of the trace

One pass over the file. The spec that judges programs judges traces too; it is given what each line says has changed, so that memory is bounded by what is live.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from kvproof.fuzz.auditor import Auditor, Breach, LawFinding
from kvproof.fuzz.figures import Figures, Gauge
from kvproof.fuzz.programs import FORMAT
from kvproof.fuzz.reports import wording
from kvproof.fuzz.traces.format import BadTrace
from kvproof.fuzz.traces.read import Reader, Step, Trouble

PROGRESS_LINES: Final = 4096
"""How often progress is told."""


MOST_TROUBLES: Final = 200
"""How many lines that something is wrong with are told one by one: a file may have a million of them."""


class AuditReport(msgspec.Struct):
    """The answer of an audit, and what `--json` writes."""

    kvproof: int
    trace: str
    target: str
    verdict: Literal["proved", "broken"]
    laws: dict[str, LawFinding]
    violations: list[Breach]
    operations: int
    seconds: float
    troubles: list[str]
    """What is wrong with lines of the file, one sentence each, with the line."""
    notes: list[str]
    figures: Figures | None = None

    @property
    def exit_status(self) -> int:
        """0 nothing is broken, 1 a law is broken. A trace that cannot be audited has no report."""
        return {"proved": 0, "broken": 1}[self.verdict]


class Troubles:
    """What is wrong with lines of the file: the first ones as sentences, and how many more there are."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._more = 0

    def add(self, sentence: str) -> None:
        """Something is wrong with one more line."""
        if len(self._sentences) < MOST_TROUBLES:
            self._sentences.append(sentence)
        else:
            self._more += 1

    def told(self) -> list[str]:
        """The sentences, in the order of the file."""
        return [*self._sentences, *([f"Something is wrong with {wording.counted(self._more, 'more line')}."] if self._more else [])]


def audit(path: Path, *, tolerant: bool = False, first: bool = False, on_progress: Callable[[int, int], None] | None = None) -> AuditReport:
    """Audit the trace at `path`, all its parts: the first fault of every broken law, or with `first` the first fault alone.

    `tolerant`: go on after missing, doubled and damaged lines, with what can still be judged. `on_progress` is given operations and bytes read. Raises BadTrace where
    there is no trace to read or no operation in it, and, unless `tolerant`, at the first line that is missing, doubled or damaged before any law is broken; after that it ends the audit.
    """
    begun = time.perf_counter()
    reader = Reader(path)
    auditor, gauge = Auditor(reader.header, onward=not first), Gauge(reader.header)
    troubles = Troubles()
    with _without_collector():
        for step in _sound_steps(reader, auditor, troubles, tolerant=tolerant):
            gauge.take(step, auditor.spec)
            if auditor.ended:
                break
            if on_progress is not None and step.number % PROGRESS_LINES == 0:
                on_progress(step.number, reader.bytes_read)
    if not auditor.operations and not auditor.breach:
        raise BadTrace(f"{path} holds no operation that can be judged, so it tells nothing of any law; record a run.")
    return AuditReport(
        FORMAT,
        str(path),
        reader.header.target,
        "broken" if auditor.breach else "proved",
        auditor.laws(),
        auditor.breaches,
        auditor.operations,
        round(time.perf_counter() - begun, 3),
        troubles.told(),
        [*([] if auditor.ended else reader.notes), *auditor.notes()],
        gauge.figures(),
    )


def _sound_steps(reader: Reader, auditor: Auditor, troubles: Troubles, *, tolerant: bool) -> Iterator[Step]:
    """The operations that could be read and judged, after they were. What is wrong with the others goes into `troubles`."""
    for item in reader:
        complaint = item.what if isinstance(item, Trouble) else auditor.judge(item)
        if not isinstance(item, Trouble) and not complaint:
            yield item
            continue
        if not tolerant and auditor.breach is None:
            raise BadTrace(f"{reader.path}: {complaint}; add --tolerant to audit the rest.")
        troubles.add(wording.sentence(complaint))
        if not tolerant:
            auditor.ended = "the trace cannot be followed any further; add --tolerant to audit the rest"
            return
        if not isinstance(item, Trouble) or item.lost:
            auditor.lose_track(complaint)


@contextmanager
def _without_collector() -> Iterator[None]:
    """An audit makes no reference cycles, and looking for some would walk all live state again and again: a seventh of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
