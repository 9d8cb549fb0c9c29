"""What a check of kernels found, in a form that a report of other checks can take up."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["held", "broken", "not-exercised", "not-applicable"]


@dataclasses.dataclass(frozen=True)
class LawResult:
    """One law: its verdict, how many cases judged it, and why the verdict is what it is.

    For a broken law `reason` says what was seen and `case` is the smallest case that shows it, as the expression that builds it.
    """

    law: str
    verdict: Verdict
    exercised: int = 0
    reason: str = ""
    case: str = ""


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """The result of `check_kernels`. `error` is set where the target, not a law, is at fault: an unsupported operation, a method that is
    missing.
    """

    target: str
    laws: tuple[LawResult, ...]
    cases: int
    launches: int
    seconds: float
    seed: int
    error: str = ""

    @property
    def verdict(self) -> Literal["held", "broken", "error"]:
        """`error` before `broken` before `held`."""
        if self.error:
            return "error"
        return "broken" if any(law.verdict == "broken" for law in self.laws) else "held"

    def law(self, name: str) -> LawResult:
        """The result of one law; KeyError where there is none of that name."""
        for found in self.laws:
            if found.law == name:
                return found
        raise KeyError(name)

    def __str__(self) -> str:
        lines = [f"{self.target}: {self.verdict}, {self.cases} cases, {self.launches} launches, {self.seconds:.1f} s, seed {self.seed}"]
        if self.error:
            lines.append(f"  error: {self.error}")
        for law in self.laws:
            lines.append(f"  {law.verdict:<15} {law.law:<24} {law.exercised:>5}  {law.reason}")
            if law.case:
                lines.append(f"  {'':<15} smallest case: {law.case}")
        return "\n".join(lines)
