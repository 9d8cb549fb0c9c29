"""What a case of the zoo is: a bug, a release that has it, the first release known to be without it, and the law that has to say so."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from kvproof.fuzz.programs import PoolConfig
from kvproof.models.ops import AnyOp

Side: TypeAlias = Literal["faulty", "fixed"]

FOUND_HERE: Final = "found by kvproof"
"""What stands for the link of a bug that no public list names."""


class Case(msgspec.Struct, frozen=True):
    """One bug in one engine.

    `name`: as in the list of bugs, or a word for what it does where the list does not have it. `faulty`, `fixed`: targets; `fixed` is empty where every later release
    has the bug too. `laws`: those that fit, the likeliest first. `program`: written where the operations of random programs do not get there, with its pool. `also`:
    laws that other bugs of these releases break, which must not end the search. `small`: the wheels are small enough for every change.
    """

    name: str
    what: str
    link: str
    faulty: str
    fixed: str
    laws: tuple[str, ...]
    program: tuple[AnyOp, ...] = ()
    pool: PoolConfig | None = None
    also: tuple[str, ...] = ()
    small: bool = False

    def target(self, side: Side) -> str:
        """The target of one side."""
        return self.faulty if side == "faulty" else self.fixed


class Unreached(msgspec.Struct, frozen=True):
    """A bug of the list that is no case, and why."""

    name: str
    why: str


class Verdict(msgspec.Struct, frozen=True):
    """What came of one side of a case."""

    laws: dict[str, str]
    """Broken law -> reason, those in `also` left out."""
    programs: int
    seconds: float
    ops: tuple[AnyOp, ...] = ()
    """The shortest program that breaks one of the case's laws."""
    pool: PoolConfig | None = None
    law: str = ""
    error: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a case: what the faulty release showed, and what the fixed one did on the same run."""

    case: Case
    faulty: Verdict
    fixed: Verdict | None

    @property
    def caught(self) -> bool:
        """Whether the faulty release was found out."""
        return bool(self.faulty.law)

    @property
    def unjudged(self) -> bool:
        """Whether a release could not be judged, by its own fault or because it could not be had; that says nothing of the laws."""
        return bool(self.faulty.error if not self.caught else self.fixed and self.fixed.error)

    @property
    def trouble(self) -> str:
        """Why the case failed; empty if it did what it has to."""
        if self.faulty.error and not self.caught:
            return f"{self.case.faulty}: {self.faulty.error}"
        if not self.caught:
            broken = ", ".join(self.faulty.laws) or "no law"
            return f"{self.case.faulty} was not caught by {' or '.join(self.case.laws)}: {broken} broke in {self.faulty.programs} programs"
        if self.fixed is None:
            return ""
        if self.fixed.error:
            return f"{self.case.fixed}: {self.fixed.error}"
        again = [law for law in self.case.laws if law in self.fixed.laws]
        return f"{self.case.fixed} breaks {again[0]}: {self.fixed.laws[again[0]]}" if again else ""
