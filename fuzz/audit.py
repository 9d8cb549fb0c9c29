"""Judge a recorded trace: which law it breaks, where, and why; and of every other law, what the trace can tell.

    report = audit(Path("trace.jsonl"))
    report.laws["no-aliasing"].verdict          # "proved", "broken" or "unknown"

One pass over the file. The spec that judges programs judges traces too; it is given what each line says has changed, so that memory is bounded by what is live.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from kvproof.fuzz.figures import Figures, Gauge
from kvproof.fuzz.programs import FORMAT
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.skips import why_skipped
from kvproof.fuzz.traces.format import BadTrace, Header
from kvproof.fuzz.traces.read import Reader, Step
from kvproof.models.laws import CACHE_LAWS, Law
from kvproof.models.observed import Change
from kvproof.models.ops import Admit, BeginStep, Fork, Op
from kvproof.models.spec import ContractBroken, Spec, Violation

AuditVerdict: TypeAlias = Literal["proved", "broken", "unknown"]

PROGRESS_LINES: Final = 4096
"""How often progress is told."""

NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "refcount-equals-holders": ("refcounts",),
    "pool-conserved": ("free",),
    "ledger-adds-up": ("free",),
    "events-replay-index": ("events", "cached"),
    "mirror-follows": ("worker_tables",),
}
"""The fields of a trace without which nothing can be told of a law; every law needs the tables."""

FIELD_WORDS: Final[dict[str, str]] = {
    "tables": "block tables",
    "refcounts": "reference counts",
    "free": "free list",
    "cached": "set of matchable blocks",
    "retiring": "set of retiring blocks",
    "worker_tables": "block tables of the device",
    "events": "events",
}


class LawFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trace tells of one law. `exercised`: how often it was put to the test. `because`: why nothing can be told, or how the law is broken."""

    verdict: AuditVerdict
    exercised: int = 0
    because: str = ""


class Breach(msgspec.Struct, frozen=True):
    """A broken law: at which operation, on which line of the file, and why."""

    law: str
    operation: int
    line: int
    reason: str


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


class Auditor:
    """Judges the operations of one trace as they come."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.exercised: Counter[str] = Counter()
        self.operations = 0
        self.unjudged = 0
        """Operations on sequences that began before lines were lost."""
        self.breach: Breach | None = None
        self.adrift = ""
        """What made the state unknown; empty while every operation is accounted for."""
        self._spec = self._fresh()

    @property
    def spec(self) -> Spec:
        """The spec as it stands."""
        return self._spec

    def _fresh(self) -> Spec:
        config = self.header.config
        return Spec(self.header.capabilities.capabilities(), num_blocks=config.num_blocks, block_size=config.block_size)

    def judge(self, step: Step) -> str:
        """Judge one operation; a full sentence where the trace itself cannot be right, empty otherwise."""
        self.operations += 1
        spec, op, change = self._spec, step.op, step.change
        if self.adrift:
            part = self._known_part(step)
            if part is None:
                self.unjudged += 1
                spec.hits.clear()
                return ""
            change = part
        elif not self._enabled(op):
            why = why_skipped(spec, op)
            told = f"line {step.line}: {wording.operation(op)} cannot happen here" + (f" ({why})" if why else "")
            return f"{told}; its engine broke the contract, or lines are missing"
        spec.step = step.number
        try:
            violation = spec.judge(op, step.outcome, change)
        except ContractBroken as error:
            return f"line {step.line}: {error}"
        if violation is not None:
            self._break(violation, step)
        return ""

    def _enabled(self, op: Op) -> bool:
        """Whether the operation can happen now. How many steps an engine keeps open is its own affair."""
        return self._spec.enabled(op) or (isinstance(op, BeginStep) and self._spec.capabilities.steps)

    def _known_part(self, step: Step) -> Change | None:
        """What the operation changed of sequences that began since lines were lost; None where it is about others."""
        live, op = self._spec.live, step.op
        seq = getattr(op, "seq", None)
        if not self._enabled(op) or (seq is not None and seq not in live and not isinstance(op, Admit)):
            return None
        born = op.child if isinstance(op, Fork) else seq
        return Change({other: tables for other, tables in step.change.tables.items() if other in live or other == born})

    def lose_track(self, why: str) -> None:
        """Operations are missing: judge from now on only sequences that begin later, and only what their tables show."""
        self._settle()
        self.adrift = self.adrift or why
        claims = self.header.capabilities
        claims = msgspec.structs.replace(claims, snapshot=False, events=False, mirror=False, policy=())
        old = self._spec
        self.header = msgspec.structs.replace(self.header, capabilities=claims, sees={"tables": "always"})
        self._spec = self._fresh()
        self._spec.memory.blur()
        self._spec.numbers = old.numbers

    def _break(self, violation: Violation, step: Step) -> None:
        self.breach = Breach(violation.law, step.number, step.line, violation.reason)

    def _settle(self) -> None:
        self.exercised.update(self._spec.exercised)
        self._spec.exercised.clear()

    def laws(self) -> dict[str, LawFinding]:
        """What the trace tells of every law of a cache."""
        self._settle()
        return {law.name: self._finding(law) for law in CACHE_LAWS}

    def _finding(self, law: Law) -> LawFinding:
        times = self.exercised[law.name]
        if self.breach is not None and self.breach.law == law.name:
            return LawFinding("broken", times, self.breach.reason)
        if times:
            return LawFinding("proved", times)
        return LawFinding("unknown", 0, self._because(law))

    def _because(self, law: Law) -> str:
        sees = self.header.sees
        missing = [field for field in ("tables", *NEEDS.get(law.name, ())) if field not in sees]
        if not law.applies(self.header.capabilities.capabilities()):
            return f"the recorded cache does not claim {wording.needs(law)}"
        if missing:
            return f"it does not show the {wording.joined([FIELD_WORDS[field] for field in missing])} of the cache"
        return "nothing that happened in it put this law to the test"


def audit(path: Path, *, tolerant: bool = False, on_progress: Callable[[int, int], None] | None = None) -> AuditReport:
    """Audit the trace at `path`, all its parts. It ends at the first broken law.

    `tolerant`: go on after missing, doubled and damaged lines, with what can still be judged. `on_progress` is given operations and bytes read. Raises BadTrace where
    there is no trace to read, and, unless `tolerant`, at the first line that is missing, doubled or damaged.
    """
    begun = time.perf_counter()
    reader = Reader(path)
    auditor, gauge = Auditor(reader.header), Gauge(reader.header)
    troubles: list[str] = []
    with _without_collector():
        for item in reader:
            if not isinstance(item, Step):
                _trouble(path, item.what, troubles, tolerant=tolerant)
                if item.lost:
                    auditor.lose_track(item.what)
                continue
            complaint = auditor.judge(item)
            if complaint:
                _trouble(path, complaint, troubles, tolerant=tolerant)
                auditor.lose_track(complaint)
                continue
            gauge.take(item, auditor.spec)
            if auditor.breach is not None:
                break
            if on_progress is not None and item.number % PROGRESS_LINES == 0:
                on_progress(item.number, reader.bytes_read)
    notes = list(reader.notes) if auditor.breach is None else []
    if auditor.adrift:
        notes.append(
            f"Operations are missing ({auditor.adrift}), so from there on only sequences that began later were judged, without the cache's books: "
            f"{wording.counted(auditor.unjudged, 'operation')} could not be judged."
        )
    return AuditReport(
        FORMAT,
        str(path),
        reader.header.target,
        "broken" if auditor.breach else "proved",
        auditor.laws(),
        [auditor.breach] if auditor.breach else [],
        auditor.operations,
        round(time.perf_counter() - begun, 3),
        troubles,
        notes,
        gauge.figures(),
    )


def _trouble(path: Path, what: str, troubles: list[str], *, tolerant: bool) -> None:
    if not tolerant:
        raise BadTrace(f"{path}: {what}; add --tolerant to audit the rest.")
    troubles.append(wording.sentence(what))


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
