"""A campaign as a report, in the form of every other check, and the situations that it reached."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kvproof.fuzz.campaigns.apart import ends_its_process
from kvproof.fuzz.campaigns.conductor import Conductor, Plan
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.verdicts import Finding, LawVerdict, Report, computed_nothing, law_verdicts
from kvproof.models.capabilities import Capabilities
from kvproof.properties.situations import name, possible


class Situations(msgspec.Struct, frozen=True):
    """Which abstract situations a campaign reached, and which of those that a cache with its capabilities might reach it never did."""

    reached: tuple[str, ...]
    never: tuple[str, ...]


def situations_of(reached: Collection[str], capabilities: Capabilities) -> Situations:
    """The situations in the order of the list."""
    every = [name(*pair) for pair in possible(capabilities)]
    seen = set(reached)
    return Situations(tuple(one for one in every if one in seen), tuple(one for one in every if one not in seen))


def report_of(conductor: Conductor, target: str, capabilities: Capabilities | None, seconds: float) -> Report:
    """The verdict of a campaign: what it found in this run, and how much it and the runs before it tried. `capabilities` are None for kernels."""
    plan, totals = conductor.plan, conductor.totals
    found = conductor.failures.causes()
    violations = [cause.first for cause in found if cause.first.law]
    faults = [cause.first for cause in found if not cause.first.law]
    broken = {finding.law for finding in violations}
    accused = broken - plan.waived
    laws = (
        _of_kernels(totals.exercised, broken, plan)
        if capabilities is None
        else law_verdicts(capabilities, totals.exercised, broken, set(plan.waived))
    )
    fault = faults[0] if faults and not accused else None
    idle = "" if capabilities is None or found else computed_nothing(totals.programs, totals.exercised, totals.refusals)
    return Report(
        FORMAT,
        target,
        "broken" if accused else "error" if faults or idle else "held",
        laws,
        violations,
        totals.programs,
        totals.operations,
        seconds,
        plan.seed,
        error=idle if fault is None else fault.reason,
        refusals=dict(totals.refusals),
        error_program=None if fault is None else _shown(fault),
        variants=[variant for cause in found for variant in cause.variants],
    )


def _shown(fault: Finding) -> Program | None:
    """The program of a fault, where it can be run again to be shown."""
    program = fault.program
    return program if isinstance(program, Program) and not ends_its_process(program) else None


def _of_kernels(exercised: dict[str, int], broken: Collection[str], plan: Plan) -> dict[str, LawVerdict]:
    verdicts = {}
    for law, times in exercised.items():
        if law in broken:
            verdicts[law] = LawVerdict("waived" if law in plan.waived else "broken", times)
        else:
            verdicts[law] = LawVerdict("held" if times else "not-exercised", times)
    return verdicts
