"""The auditor: judges the operations of one trace as they come, and says what they tell of every law.

    auditor = Auditor(reader.header, onward=True)
    complaint = auditor.judge(step)     # a sentence where the trace itself cannot be right
    auditor.breaches                    # the first fault of each law that is broken so far

It goes on after a fault, if it is asked to: `kvproof.models.aside` says how consequences are kept apart from faults. Where operations are missing, it judges what begins later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.skips import why_skipped
from kvproof.fuzz.traces.format import Header
from kvproof.fuzz.traces.read import Step
from kvproof.models.evidence import NO_EVIDENCE, Evidence
from kvproof.models.laws import CACHE_LAWS, Law
from kvproof.models.observed import Change
from kvproof.models.ops import Admit, BeginStep, Fork, Op
from kvproof.models.outcomes import ContractBroken
from kvproof.models.spec import Spec, Violation

AuditVerdict: TypeAlias = Literal["proved", "broken", "unknown"]

MOST_ASIDE: Final = 0.5
"""The share of the pool that may be set aside: beyond it, next to nothing could still be judged, and the audit ends."""

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


UNTESTED: Final = "nothing that happened in it put this law to the test"


class LawFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trace tells of one law. `exercised`: how often it was put to the test. `because`: why nothing can be told, or how the law is broken.

    `until`: the line after which nothing more can be told of it; None where it was judged to the end of the trace.
    """

    verdict: AuditVerdict
    exercised: int = 0
    because: str = ""
    until: int | None = None


class Breach(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broken law: at which operation, on which line of the file, why, and what is accused."""

    law: str
    operation: int
    line: int
    reason: str
    evidence: Evidence = NO_EVIDENCE

    @property
    def violation(self) -> Violation:
        """The same as a program has it."""
        return Violation(self.law, self.operation, self.reason, self.evidence)


class Auditor:
    """Judges the operations of one trace as they come."""

    def __init__(self, header: Header, *, onward: bool = False) -> None:
        """`onward`: go on after a broken law."""
        self.header = header
        self._claimed = header.capabilities.capabilities()
        """What the recorded cache claims; the header's claims are fewer once operations are lost."""
        self.onward = onward
        self.exercised: Counter[str] = Counter()
        self.operations = 0
        self.unjudged = 0
        """Operations on sequences that began before lines were lost."""
        self.breaches: list[Breach] = []
        """The first fault of each broken law, in the order of the trace."""
        self.adrift = ""
        """What made the state unknown; empty while every operation is accounted for."""
        self.ended = ""
        """Why nothing more is judged; empty while it goes on."""
        self.ended_with: int | None = None
        """The last operation that was judged, where operations after it were only followed."""
        self._proved_before: dict[str, int] = {}
        """How often those laws were put to the test before the first fault of which nothing can be told after it."""
        self._spec = self._fresh()

    @property
    def spec(self) -> Spec:
        """The spec as it stands."""
        return self._spec

    @property
    def breach(self) -> Breach | None:
        """The first fault."""
        return self.breaches[0] if self.breaches else None

    def _fresh(self) -> Spec:
        config = self.header.config
        spec = Spec(self.header.capabilities.capabilities(), num_blocks=config.num_blocks, block_size=config.block_size)
        if self.onward:
            spec.go_on()
        return spec

    def judge(self, step: Step) -> str:
        """Judge one operation; a full sentence where the trace itself cannot be right, empty otherwise. Once the audit has `ended` it is followed, and no law is told any more."""
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
        if spec.aside is not None:
            spec.aside.spread(op, step.outcome, change)
        try:
            violation = spec.judge(op, step.outcome, change)
        except ContractBroken as error:
            return f"line {step.line}: {error}"
        if violation is not None and not self.ended:
            self._break(violation, step)
        aside = spec.aside
        if aside is not None and len(aside.blocks) > len(spec.universe) * MOST_ASIDE and not self.ended:
            self.ended = "more than half of the pool is accused, or touched by what is"
            self.ended_with = step.number
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
        if self._spec.aside is not None and old.aside is not None and old.aside.anything:
            self._spec.aside.leave_out(old.aside.blocks)

    def _break(self, violation: Violation, step: Step) -> None:
        if not self.breaches:
            self._settle()
            self._proved_before = {law: self.exercised[law] for law in self._untold()}
        if all(breach.law != violation.law for breach in self.breaches):
            self.breaches.append(Breach(violation.law, step.number, step.line, violation.reason, violation.evidence))
        if not self.onward:
            self.ended = "only the first fault was asked for"

    def _settle(self) -> None:
        self.exercised.update(self._spec.exercised)
        self._spec.exercised.clear()

    def laws(self) -> dict[str, LawFinding]:
        """What the trace tells of every law of a cache."""
        self._settle()
        return {law.name: self._finding(law) for law in CACHE_LAWS}

    def _untold(self) -> Iterable[str]:
        aside = self._spec.aside
        return aside.untold if aside is not None else [law.name for law in CACHE_LAWS]

    def notes(self) -> list[str]:
        """What was not judged, and why, in full sentences."""
        return [*self.notes_on_consequences(), *self._notes_on_lost_lines()]

    def notes_on_consequences(self) -> list[str]:
        """What is not judged after a fault."""
        aside = self._spec.aside
        if self.breach is None:
            return []
        if self.ended:
            last = self.operations - 1 if self.ended_with is None else self.ended_with
            return [f"The audit ended with operation {last}: {self.ended}."]
        assert aside is not None, "without it the audit ends at the first fault"
        blocks = f"{wording.counted(len(aside.blocks), 'block')} of {len(self._spec.universe)}"
        told = (
            f"From line {self.breach.line} on nothing more was asked of what is accused, nor of what was copied or given on from there: {blocks} at the end. "
            "What else they show may be a consequence, and is not told as a fault."
        )
        return [told]

    def _notes_on_lost_lines(self) -> list[str]:
        if not self.adrift:
            return []
        told = (
            f"Operations are missing ({self.adrift}), so from there on only sequences that began later were judged, without the cache's books: "
            f"{wording.counted(self.unjudged, 'operation')} could not be judged."
        )
        return [told]

    def _finding(self, law: Law) -> LawFinding:
        times = self.exercised[law.name]
        broken = next((breach for breach in self.breaches if breach.law == law.name), None)
        if broken is not None:
            return LawFinding("broken", times, broken.reason)
        if self.breach is not None and law.name in self._proved_before:
            return self._until_the_first_fault(law, self.breach)
        return LawFinding("proved", times) if times else LawFinding("unknown", 0, self._because(law))

    def _until_the_first_fault(self, law: Law, first: Breach) -> LawFinding:
        """A law of which nothing can be told any more: what was accused may be the cause of what it shows, or the audit ended there."""
        cause = "the audit ended there" if not self.onward else f"the broken {first.law} may be the cause of what it shows"
        untold = f"after line {first.line} it cannot be told, because {cause}"
        times = self._proved_before[law.name]
        if times:
            return LawFinding("proved", times, untold, first.line)
        because = self._because(law)
        if because != UNTESTED:
            return LawFinding("unknown", 0, because)
        return LawFinding("unknown", 0, f"{because} before, and {untold}", first.line)

    def _because(self, law: Law) -> str:
        if not law.applies(self._claimed):
            return f"the recorded cache does not claim {wording.needs(law)}"
        if self.adrift and not law.applies(self.header.capabilities.capabilities()):
            return "operations are missing, and this law cannot be told without them"
        sees = self.header.sees
        missing = [field for field in ("tables", *NEEDS.get(law.name, ())) if field not in sees]
        if self.adrift and missing:
            return "operations are missing, and the books cannot be followed without them"
        if missing:
            return f"it does not show the {wording.joined([FIELD_WORDS[field] for field in missing])} of the cache"
        return UNTESTED
