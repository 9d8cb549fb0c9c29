"""`kvproof check` for kernels: what `kvproof.kernels.check` found, in the form of every other report.

Nothing here loads torch or triton before kernels are really judged.
"""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kvproof.fuzz.programs import FORMAT
from kvproof.fuzz.reports.wording import joined, sentence
from kvproof.fuzz.verdicts import Finding, LawVerdict, Report
from kvproof.impl.adapter import CacheAdapter
from kvproof.kernels.contract import KernelCapabilities, PagedKernels
from kvproof.kernels.foreign.sources import MissingEngineError

if TYPE_CHECKING:
    from kvproof.kernels.check import Progress as KernelProgress
    from kvproof.kernels.report import KernelReport, LawResult

CALL_SECONDS: Final = 10.0
"""CPU time that one call may take."""

EXTRA: Final = ("numpy", "torch", "triton")
"""What the extra `kernels` brings and no kernel can be judged without. The solver is not among them: without z3, addresses are executed and not proved."""


def is_kernels(target: type) -> bool:
    """Whether `target` is to be judged as kernels: by its base class, or because it does and claims what kernels do."""
    if issubclass(target, PagedKernels):
        return True
    if issubclass(target, CacheAdapter) or not all(callable(getattr(target, name, None)) for name in ("store", "attend", "capabilities")):
        return False
    try:
        return isinstance(target.capabilities(), KernelCapabilities)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 -- whatever it is, it says nothing about kernels
        return False


def missing(names: Iterable[str] = EXTRA, who: str = "") -> str:
    """Which of `names` are not installed, in one sentence with the mend; empty where nothing is missing. `who` needs them, or kernels."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return f"{f'{who} needs' if who else 'Kernels need'} {joined(absent)}, which {verb} not installed; run `pip install 'kvproof[kernels]'` (triton is there on Linux only)."


def seeded() -> dict[str, str]:
    """The seeded bugs of kernels: name as a target, after `kernel-bug:` -> law that it breaks."""
    from kvproof.properties.kernels.bugs import BUGS
    from kvproof.properties.kernels.paged_bugs import ALL_BUGS

    return {name.replace(" ", "-"): bug.law for name, bug in {**BUGS, **ALL_BUGS}.items()}


def build_seeded(name: str) -> type:
    """The plain or the paged kernels with one line changed. They are written to files for as long as Python runs: Triton reads kernels from theirs."""
    from kvproof.properties.kernels.bugs import BUGS, build
    from kvproof.properties.kernels.paged_bugs import ALL_BUGS, build_paged

    directory = tempfile.mkdtemp(prefix="kvproof-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spoken = next(bug for bug in [*BUGS, *ALL_BUGS] if bug.replace(" ", "-") == name)
    return (build if spoken in BUGS else build_paged)(spoken, Path(directory))


class Progress(msgspec.Struct):
    """How far a check of kernels has come, in the terms of `kvproof.fuzz.check.Progress`: cases count as programs, launches as operations."""

    programs: int
    operations: int
    seconds: float
    budget_seconds: float
    exercised: dict[str, int]
    phase: str


def check(
    kernels: type,
    *,
    name: str,
    seconds: float,
    seed: int,
    call_seconds: float = CALL_SECONDS,
    waived: Collection[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Judge `kernels`, known as `name`, by every kernel law. `missing()` must be empty. A call may take `call_seconds` of CPU time."""
    from kvproof.kernels.check import check_kernels

    fault = _bad_claim(kernels, name)
    if fault:
        return _fault(name, seed, fault)
    try:
        found = check_kernels(
            kernels,
            budget_seconds=seconds,
            seed=seed,
            call_seconds=call_seconds,
            on_progress=on_progress and (lambda told: on_progress(_progress(told))),
        )
        return as_report(found, name, waived)
    except SystemExit as error:  # its status would be taken for a verdict
        return _fault(name, seed, f"{name} ended the process (SystemExit: {error.code}); kernels must return.")


def _progress(told: KernelProgress) -> Progress:
    return Progress(told.cases, told.launches, told.seconds, told.budget_seconds, told.exercised, told.phase)


def _bad_claim(kernels: type, name: str) -> str:
    try:
        claimed = kernels.capabilities()  # type: ignore[attr-defined]
    except (NotImplementedError, MissingEngineError) as error:
        return sentence(str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- the target's own code
        return f"capabilities() of {name} raised {type(error).__name__}: {error}."
    if not isinstance(claimed, KernelCapabilities):
        return f"capabilities() of {name} returned {type(claimed).__name__}, where KernelCapabilities are due."
    needed = ("store", "attend", *(["copy_blocks"] if "copy" in claimed.features else []))
    absent = [method for method in needed if getattr(kernels, method, None) in (None, getattr(PagedKernels, method))]
    if absent:
        claim = ", which the feature copy needs" if absent == ["copy_blocks"] else ", which kernels need"
        return f"{name} does not define {joined([f'{method}()' for method in absent])}{claim}."
    return ""


def _fault(name: str, seed: int, error: str) -> Report:
    return Report(FORMAT, name, "error", {}, [], 0, 0, 0.0, seed, error)


def as_report(found: KernelReport, name: str, waived: Collection[str] = ()) -> Report:
    """The same findings as a `Report`: cases count as programs, launches as operations, and the smallest case stands where a program does."""
    laws = {law.law: _verdict(law, waived) for law in found.laws}
    broken = [law for law in found.laws if law.verdict == "broken"]
    accused = any(law.verdict == "broken" for law in laws.values())
    return Report(
        kvproof=FORMAT,
        target=name,
        verdict="error" if found.error else "broken" if accused else "held",
        laws=laws,
        violations=[Finding(law.law, law.reason, law.case, 1) for law in broken],
        programs=found.cases,
        operations=found.launches,
        seconds=found.seconds,
        seed=found.seed,
        error=found.error,
        notes={law.law: law.reason for law in found.laws if law.reason and law.verdict != "broken"},
    )


def _verdict(law: LawResult, waived: Collection[str]) -> LawVerdict:
    return LawVerdict("waived" if law.verdict == "broken" and law.law in waived else law.verdict, law.exercised)
