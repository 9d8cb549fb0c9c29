"""What a check found: one verdict for each law, the violations with their shortest programs, and how much was tried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from kvproof.fuzz.programs import Program
from kvproof.models.capabilities import Capabilities
from kvproof.models.laws import CACHE_LAWS

HELD: Final = 0
BROKEN: Final = 1
AT_FAULT: Final = 2

EXIT_STATUS: Final[dict[str, int]] = {"held": HELD, "broken": BROKEN, "error": AT_FAULT}
"""The exit status of every command, by its verdict."""

Verdict: TypeAlias = Literal["held", "broken", "not-exercised", "not-applicable", "waived"]


class LawVerdict(msgspec.Struct, frozen=True):
    """One law: its verdict, and how often it was really put to the test."""

    verdict: Verdict
    exercised: int = 0


class Finding(msgspec.Struct, frozen=True):
    """A broken law with the shortest program found for it, or, for kernels, the smallest case as the expression that builds it. `steps` is
    the number of operations, 1 for a case.
    """

    law: str
    reason: str
    program: Program | str
    steps: int


class OfLaw(Protocol):
    """What belongs to one law."""

    @property
    def law(self) -> str:
        """Its name; empty for a fault of the target."""
        ...


AnyOfLaw = TypeVar("AnyOfLaw", bound=OfLaw)


def by_law(found: Iterable[AnyOfLaw]) -> dict[str, list[AnyOfLaw]]:
    """Law -> what belongs to it, in the order in which it comes. A campaign keeps many programs for one law, and a reader wants one of them first."""
    grouped: dict[str, list[AnyOfLaw]] = {}
    for one in found:
        grouped.setdefault(one.law, []).append(one)
    return grouped


class Report(msgspec.Struct, frozen=True):
    """The answer of a check, and what `--json` writes."""

    kvproof: int
    target: str
    verdict: Literal["held", "broken", "error"]
    laws: dict[str, LawVerdict]
    violations: list[Finding]
    """A campaign has one for each cause, so several of one law, the shortest first."""
    programs: int
    operations: int
    seconds: float
    seed: int
    error: str = ""
    """Where the verdict is `error`: which part of the target or the request is at fault, in one sentence."""
    refusals: dict[str, int] = {}
    """How often the target refused each operation."""
    error_program: Program | None = None
    """The program that shows the error, where there is one."""
    notes: dict[str, str] = {}
    """What is to be said of a law that is not broken: why it does not apply, or how far it was judged."""
    variants: list[Finding] = []
    """Of a campaign: what else breaks these laws, and seems to have a cause that is among the violations."""
    release: str = ""
    """Where the files of an engine were fetched: the published distribution that was judged, as `vllm==0.33.0`. Empty where what is installed was judged, a branch perhaps."""

    @property
    def exit_status(self) -> int:
        """0 all held, 1 a law is broken, 2 the request or the target is at fault."""
        return EXIT_STATUS[self.verdict]


NEEDS_BOOKS: Final[dict[str, str]] = {
    "refcount-equals-holders": "refcounts",
    "pool-conserved": "free",
    "ledger-adds-up": "free",
}
"""The field of a snapshot without which a law does not apply."""


def law_verdicts(capabilities: Capabilities, exercised: dict[str, int], broken: set[str], waived: set[str]) -> dict[str, LawVerdict]:
    """The verdict of every law of a cache, in the order of the law list."""
    verdicts = {}
    for law in CACHE_LAWS:
        times = exercised.get(law.name, 0)
        if law.name in broken:
            verdict: Verdict = "waived" if law.name in waived else "broken"
        elif not law.applies(capabilities) or _keeps_no_books(law.name, exercised):
            verdict, times = "not-applicable", 0
        else:
            verdict = "held" if times else "not-exercised"
        verdicts[law.name] = LawVerdict(verdict, times)
    return verdicts


LEAST_PROGRAMS: Final = 20
"""A few programs may end before they commit anything; so many never all do."""

NOTHING_KNOWN: Final = (
    "and a cache that computes nothing keeps every law, so nothing is known of this one; "
    "let extend make room where the pool has it, and refuse only what the engine behind the adapter would never do."
)


def computed_nothing(programs: int, exercised: dict[str, int], refusals: dict[str, int]) -> str:
    """The sentence for a cache that never got to compute a token, so that nothing was learnt about it; empty for all others."""
    if programs < LEAST_PROGRAMS or exercised.get("computed"):
        return ""
    refused = [f"{name} {refusals[name]:,} times" for name in ("extend", "commit") if refusals.get(name)]
    why = f" (refused: {', '.join(refused)})" if refused else ""
    return f"No pass was ever committed in {programs:,} programs{why}, {NOTHING_KNOWN}"


def _keeps_no_books(law: str, exercised: dict[str, int]) -> bool:
    """Whether the cache was run, and its snapshots never had the field that `law` needs."""
    ran = any(exercised.values())
    return ran and law in NEEDS_BOOKS and not exercised.get(f"books:{NEEDS_BOOKS[law]}")
