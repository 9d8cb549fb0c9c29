"""`check_kernels`: every kernel law on generated cases, shrunk to the smallest one that fails.

from kvproof.kernels.check import check_kernels

report = check_kernels(Kernels, budget_seconds=60, seed=0)
print(report)
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Collection
from typing import Literal

import torch

from kvproof.kernels.contract import FEATURES, MOVES, KernelCapabilities, PagedKernels, validate
from kvproof.kernels.foreign.sources import MissingEngineError
from kvproof.kernels.laws.cases import Case, generate, simpler, sweep
from kvproof.kernels.laws.judges import LAWS, SENTENCES, Judgement, Law
from kvproof.kernels.laws.overflow import LAW as OVERFLOW
from kvproof.kernels.laws.overflow import check_overflow
from kvproof.kernels.machine import MachineError
from kvproof.kernels.machine.limits import CALL_SECONDS
from kvproof.kernels.report import KernelReport, LawResult

SHRINK_SECONDS = 6.0
"""Time for the smallest case of one law; a broken kernel usually breaks several laws, and all of them must fit the budget."""

STOPPED_SECONDS = 1.0
"""Time limit of a call while a case in which one did not return is shrunk."""

MIN_CASES = 12
"""Judged whatever the budget, unless a law is broken: a slow machine must not turn a check into a formality."""

ANSWERS = ("paged-equals-contiguous", "quantised-within-bound", "copy-is-complete", "relayout-is-bijection")
"""The laws that a call which does not return breaks, whichever applies to it: they say what it should have answered."""

_NEEDS = {
    "copy-is-complete": {"copy"},
    "relayout-is-bijection": set(MOVES),
    "quantised-within-bound": {"fp8", "fp8-token", "int8", "low-bits"},
}


@dataclasses.dataclass
class _Tally:
    """What is known of one law so far."""

    exercised: int = 0
    reason: str = ""
    case: Case | None = None


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a check has come: `laws` as they would be reported if it ended now, `case` the one that is judged."""

    cases: int
    launches: int
    seconds: float
    budget_seconds: float
    laws: tuple[LawResult, ...]
    case: Case | None
    phase: Literal["cases", "addresses", "shrinking"]

    @property
    def exercised(self) -> dict[str, int]:
        """How many cases each law has judged."""
        return {law.law: law.exercised for law in self.laws}


@dataclasses.dataclass(frozen=True)
class Options:
    """How to check. `laws`: names of the only laws to judge; the check ends when all of them are broken. `call_seconds`: CPU time that one
    call may take. `on_progress` is called before each case and each phase. `whole_sweep`: the budget does not cut the sweep over claimed values.
    """

    budget_seconds: float = 60.0
    seed: int = 0
    laws: frozenset[str] | None = None
    shrink_seconds: float = SHRINK_SECONDS
    call_seconds: float = CALL_SECONDS
    on_progress: Callable[[Progress], None] | None = None
    whole_sweep: bool = True


class _Check:
    """One run over one adapter."""

    def __init__(self, kernels: type[PagedKernels], capabilities: KernelCapabilities, options: Options) -> None:
        self.options, self.laws = options, [law for law in LAWS if options.laws is None or law.name in options.laws]
        self.kernels, self.capabilities = kernels, capabilities
        self.start = time.monotonic()
        self.tallies = {law.name: _Tally() for law in self.laws}
        self.wants_overflow = options.laws is None or OVERFLOW in options.laws
        self.overflow: LawResult | None = None
        self.cases = self.launches = 0
        self.case: Case | None = None
        self.stopped = ""

    def run(self) -> None:
        """Cases until the time is up or every law that can be broken is; a call that does not return ends the run."""
        seed = self.options.seed
        least = max(MIN_CASES, len(list(sweep(self.capabilities, random.Random(seed))))) if self.options.whole_sweep else 1
        for case in generate(self.capabilities, seed):
            if self.wants_overflow and self.launches and self.overflow is None:
                self.tell("addresses")
                self.overflow = check_overflow(self.kernels, self.capabilities, self.options.call_seconds)
            broken = any(tally.case for tally in self.tallies.values())
            if time.monotonic() - self.start > self.options.budget_seconds and (broken or self.cases >= least):
                return
            if all(tally.case for tally in self.tallies.values()) and (self.overflow is not None or not self.wants_overflow):
                return
            self.case = case
            self.tell("cases")
            self.judge(case)
            if self.stopped:
                return

    def tell(self, phase: Literal["cases", "addresses", "shrinking"]) -> None:
        """Report progress."""
        if self.options.on_progress is not None:
            seconds = time.monotonic() - self.start
            told = Progress(self.cases, self.launches, seconds, self.options.budget_seconds, self.results(), self.case, phase)
            self.options.on_progress(told)

    def judge(self, case: Case) -> None:
        """All laws that are not broken yet, on one case."""
        judgement = Judgement(self.kernels, self.capabilities, case, self.options.call_seconds)
        self.cases += 1
        self.launches += judgement.base.launch_count
        laws = [law for law in self.laws if self.tallies[law.name].case is None and law.applies(judgement)]
        if judgement.base.stopped:
            # Every other law would call again, and wait again.
            self.stopped = f"{judgement.base.failure}, in {case}"
            laws = [law for law in laws if law.name in ANSWERS]
        for law in laws:
            tally = self.tallies[law.name]
            if judgement.base.launch_count or not law.needs_machine:
                tally.exercised += 1
                reason = law.judge(judgement)
                if reason is not None:
                    tally.case, tally.reason = self.shrink(law, case, reason)

    def shrink(self, law: Law, case: Case, reason: str) -> tuple[Case, str]:
        """Take what can be taken away while the law stays broken."""
        self.tell("shrinking")
        stop = time.monotonic() + self.options.shrink_seconds
        progress = True
        while progress:
            progress = False
            for smaller in simpler(case, self.capabilities):
                if time.monotonic() > stop:
                    return case, reason
                found = self._judge_one(law, smaller)
                if found is not None:
                    case, reason, progress = smaller, found, True
                    break
        return case, reason

    def _judge_one(self, law: Law, case: Case) -> str | None:
        try:
            judgement = Judgement(self.kernels, self.capabilities, case, STOPPED_SECONDS if self.stopped else self.options.call_seconds)
            return law.judge(judgement) if law.applies(judgement) else None
        except MachineError:
            return None

    def results(self) -> tuple[LawResult, ...]:
        """Verdicts in the order of the laws."""
        found = [self._result(law) for law in self.laws]
        return (*found, self._overflow_result()) if self.wants_overflow else tuple(found)

    def _overflow_result(self) -> LawResult:
        if self.overflow is not None:
            return self.overflow
        if not self.launches:
            return LawResult(OVERFLOW, "not-applicable", reason="no Triton kernel was launched, so no address was seen")
        return LawResult(OVERFLOW, "not-exercised", reason="the run ended before it")

    def _result(self, law: Law) -> LawResult:
        tally = self.tallies[law.name]
        if tally.case is not None:
            return LawResult(law.name, "broken", tally.exercised, tally.reason, str(tally.case))
        if law.name in _NEEDS and not _NEEDS[law.name] & set(self.capabilities.features):
            return LawResult(law.name, "not-applicable", reason=f"needs {' or '.join(sorted(_NEEDS[law.name]))}, which is not claimed")
        if law.name == "batch-invariant" and not self.capabilities.batch_invariant:
            return LawResult(law.name, "not-applicable", reason="bit-equal rows are not claimed")
        if law.needs_machine and not self.launches:
            return LawResult(law.name, "not-applicable", reason="no Triton kernel was launched, so no access was seen")
        if not tally.exercised:
            return LawResult(law.name, "not-exercised", reason="no case touched it")
        return LawResult(law.name, "held", tally.exercised)


def judge_case(kernels: type[PagedKernels], case: Case) -> dict[str, str]:
    """The laws that one case breaks, each with what was seen: a reported smallest case can be judged again after a repair."""
    judgement = Judgement(kernels, kernels.capabilities(), case)
    reasons = {law.name: law.judge(judgement) for law in LAWS if law.applies(judgement)}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def check_kernels(
    kernels: type[PagedKernels],
    budget_seconds: float = 60.0,
    seed: int = 0,
    *,
    laws: Collection[str] | None = None,
    shrink_seconds: float = SHRINK_SECONDS,
    call_seconds: float = CALL_SECONDS,
    on_progress: Callable[[Progress], None] | None = None,
    whole_sweep: bool = True,
) -> KernelReport:
    """Judge an adapter by all laws, or by those named. Raises nothing that the adapter does: a faulty target is an `error`.

    A call may take `call_seconds` of CPU time; one that does not return breaks the law that says what it should have answered.
    `on_progress` is called before each case and each phase. Without `whole_sweep` the budget may end the check before every claimed value was
    tried, which the number of cases in the report then shows.
    """
    unknown = set(laws or ()) - set(SENTENCES)
    if unknown:
        raise ValueError(f"there is no kernel law called {sorted(unknown)}; the laws are {sorted(SENTENCES)}")
    start = time.monotonic()
    name = f"{kernels.__module__}:{kernels.__qualname__}"
    try:
        capabilities = kernels.capabilities()
        validate(capabilities)
    except (NotImplementedError, ValueError, TypeError, MissingEngineError) as error:
        return KernelReport(name, (), 0, 0, time.monotonic() - start, seed, str(error))
    only = None if laws is None else frozenset(laws)
    check = _Check(kernels, capabilities, Options(budget_seconds, seed, only, shrink_seconds, call_seconds, on_progress, whole_sweep))
    problem, threads = "", torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check.run()
    except MachineError as error:
        problem = f"{error}, in {check.case}"
    finally:
        torch.set_num_threads(threads)
    if check.stopped and not any(tally.case for tally in check.tallies.values()):
        problem = problem or check.stopped
    results = list(check.results())
    unclaimed = sorted(set(capabilities.features) - FEATURES)
    results += [LawResult(f"feature {feature}", "not-exercised", reason="the suite has no cases for it") for feature in unclaimed]
    return KernelReport(name, tuple(results), check.cases, check.launches, time.monotonic() - start, seed, problem)
