"""The laws of a cache, or of kernels, as pytest items, one for each law.

    from kvproof import cache_tests, kernel_tests

    TestMyCache = cache_tests(MyAdapter)                      # items TestMyCache::test_law[no-leak], ...
    TestMyKernels = kernel_tests(MyKernels)                   # items TestMyKernels::test_law[in-bounds], ...

The check runs once for each class and session, when the first of its items runs, and every worker of pytest-xdist reads the same answer. An
item passes if its law held, fails with the shortest program or case if it is broken, and is skipped, with the reason, if the law does not apply or
was not exercised. Where the adapter is at fault, its items are errors. `--kv-budget` and `--kv-seed` on the command line take precedence
over the arguments.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from kvproof.fuzz import kernels_check
from kvproof.fuzz.programs import FAILURES, keep_program
from kvproof.models.laws import BY_NAME, CACHE_LAWS, KERNEL_LAWS, Law

if TYPE_CHECKING:
    from kvproof.fuzz.verdicts import Finding, Report
    from kvproof.fuzz.waivers import Waiver

BUDGETS: Final = ("quick", "ci", "nightly")
"""The named budgets; `kvproof.fuzz.check.BUDGETS` gives their seconds."""

DEFAULT_SEED: Final = 0
"""A test suite draws the same programs every time unless it is told otherwise."""

POLL_SECONDS: Final = 0.05
"""How often a worker looks whether another one has finished the check."""

PATIENCE_SECONDS: Final = 120.0
"""How long a worker waits for another one beyond twice the budget: shrinking takes seconds, and machines that run tests are busy."""

PROPERTY: Final = "kvproof"
"""The name of the user property that carries what was tried to the summary, and into JUnit files."""


class Asked(msgspec.Struct, frozen=True):
    """One check: what to judge, and how hard. `waivers` is the path of a waiver file."""

    target: type
    name: str
    budget: str | float = "quick"
    seed: int | None = None
    waivers: Path | None = None


class Answer(msgspec.Struct, frozen=True):
    """The report of one check and the waivers that speak of its target."""

    report: Report
    waivers: Mapping[str, Waiver]


def cache_tests(
    adapter: type,
    *,
    budget: str | float = "quick",
    seed: int | None = None,
    waivers: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> type:
    """A pytest class with one item for each law; bind it to a name that pytest collects, such as `TestMyCache`.

    `adapter`: a subclass of `kvproof.CacheAdapter`. `budget`: quick, ci, nightly or a number of seconds. `seed`: which programs are drawn;
    the same ones each time by default. `waivers`: a waiver file; by default `kvproof-waivers.toml` in pytest's root directory, where it
    exists. `name`: the target's name in reports, failure files and waivers; by default where the class is, `module:Class` or
    `path/to/file.py:Class`. Raises TypeError and ValueError for arguments that cannot be.
    """
    if not isinstance(adapter, type):
        raise TypeError(f"cache_tests() needs the adapter class, not {adapter!r}; write cache_tests(MyAdapter), without building it.")
    if seed is not None and seed < 0:
        raise ValueError(f"seed is {seed!r}; give a number of 0 or more.")
    parse_budget(budget)
    asked = Asked(adapter, name or target_name(adapter), budget, seed, None if waivers is None else Path(waivers))
    return _test_class(asked)


def kernel_tests(
    kernels: type,
    *,
    budget: str | float = "quick",
    seed: int | None = None,
    waivers: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> type:
    """A pytest class with one item for each law of kernels; bind it to a name that pytest collects, such as `TestMyKernels`.

    `kernels`: a subclass of `kvproof.PagedKernels`. The other arguments are those of `cache_tests`. Raises TypeError and ValueError for
    arguments that cannot be. The extra `kernels` must be installed when the items run, or they fail in one sentence that says so.
    """
    made = cache_tests(kernels, budget=budget, seed=seed, waivers=waivers, name=name)
    if not kernels_check.is_kernels(kernels):
        raise TypeError(
            f"kernel_tests() needs a class that derives from kvproof.PagedKernels, not {kernels!r}; caches go to cache_tests()."
        )
    return made


def laws_of(target: type) -> tuple[Law, ...]:
    """The laws that judge a target: those of kernels or those of caches."""
    return KERNEL_LAWS if kernels_check.is_kernels(target) else CACHE_LAWS


def parse_budget(budget: str | float) -> str | float:
    """A named budget or a positive number of seconds. Raises ValueError."""
    if budget in BUDGETS:
        return budget
    with suppress(ValueError, TypeError):
        seconds = float(budget)
        if 0 < seconds < math.inf:
            return seconds
    raise ValueError(f"{budget!r} is no budget; give {', '.join(BUDGETS)} or a number of seconds above 0.")


def target_name(adapter: type) -> str:
    """What `kvproof replay` calls this class: `module:Class`, or `path/to/file.py:Class` for one that lies in a file of tests."""
    module = sys.modules.get(adapter.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return f"{adapter.__module__}:{adapter.__qualname__}"
    path = Path(file)
    if not (path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem in ("conftest", "__main__")):
        return f"{adapter.__module__}:{adapter.__qualname__}"
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{adapter.__qualname__}"


def _test_class(asked: Asked) -> type:
    class CacheTests:
        """The laws of one cache."""

        kvproof_asked = asked

        def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
            if "law" in metafunc.fixturenames:
                laws = [pytest.param(law.name, id=law.name, marks=marks(metafunc.config, asked, law.name)) for law in laws_of(asked.target)]
                metafunc.parametrize("law", laws)

        @pytest.fixture(autouse=True)
        def _judgeable(self, request: pytest.FixtureRequest, law: str) -> None:
            prepare(request.node, asked, law)

        def test_law(self, request: pytest.FixtureRequest, law: str) -> None:
            """The law held."""
            judge(request.config, asked, law)

    CacheTests.__name__ = CacheTests.__qualname__ = f"CacheTests[{asked.name}]"
    return CacheTests


# -- one item ------------------------------------------------------------------------------------------------------------------------------


def marks(config: pytest.Config, asked: Asked, law: str) -> list[pytest.MarkDecorator]:
    """The marks of the item for `law`: the law, and a group that keeps the items of a check on one worker under `--dist loadgroup`."""
    config.addinivalue_line("markers", "kvproof_law(law): the law that this test item answers for (set by kvproof.cache_tests)")
    made = [pytest.mark.kvproof_law(law)]
    if config.pluginmanager.hasplugin("xdist"):
        made.append(pytest.mark.xdist_group(f"kvproof-{asked.name}"))
    return made


def prepare(item: pytest.Item, asked: Asked, law: str) -> None:
    """Have the check run, and note in `item` what was tried. Fails in one sentence if this law could not be judged."""
    report = answer(item.config, asked).report
    item.user_properties.append((PROPERTY, tried(report)))
    if report.verdict == "error" and not any(finding.law == law for finding in report.violations):
        pytest.fail(report.error, pytrace=False)


def judge(config: pytest.Config, asked: Asked, law: str) -> None:
    """Pass, fail, skip or xfail: the outcome of one law."""
    found = answer(config, asked)
    verdict = found.report.laws[law].verdict
    waiver = found.waivers.get(law)
    finding = next((finding for finding in found.report.violations if finding.law == law), None)
    if finding is not None and waiver is not None:
        pytest.xfail(f"{law} is broken and waived: {waiver.reason} ({waiver.reference})")
    if finding is not None:
        pytest.fail(_broken(config, asked, finding), pytrace=False)
    if waiver is not None and verdict != "not-exercised":
        why = "the law held" if verdict == "held" else "the law does not apply"
        pytest.fail(f"The waiver of {law} for {asked.name} is stale, because {why}: remove it ({waiver.reference}).", pytrace=False)
    if verdict == "not-applicable":
        pytest.skip(_not_applicable(law, found.report))
    if verdict == "not-exercised":
        unit = "case" if BY_NAME[law].judges_kernels else "program"
        pytest.skip(f"{law} was not exercised: no {unit} put it to the test; give a larger --kv-budget")


def _not_applicable(law: str, report: Report) -> str:
    if law in report.notes:
        return f"{law} is not applicable: {report.notes[law]}"
    needs = " or ".join(need.replace("policy:", "the policy ").replace("_", " ") for need in BY_NAME[law].needs)
    return f"{law} is not applicable: it needs {needs}, which the adapter does not claim"


def _broken(config: pytest.Config, asked: Asked, finding: Finding) -> str:
    from kvproof.fuzz.reports import wording

    lines = [f"{finding.law} is broken: {BY_NAME[finding.law].sentence}", "", wording.sentence(finding.reason), "", *_shown(asked, finding)]
    try:
        path = keep(config.rootpath / FAILURES, finding, asked.name)
    except OSError as error:
        return "\n".join([*lines, f"The failure file could not be written ({error.strerror})."])
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return "\n".join([*lines, f"Failure file: {path}", f"Run it again: kvproof replay {path}"])


def _shown(asked: Asked, finding: Finding) -> list[str]:
    """What shows the violation, as source to paste."""
    from kvproof.fuzz.reports import wording
    from kvproof.fuzz.reports.source import case_source, pytest_source

    if isinstance(finding.program, str):
        return [f"The smallest case found is {finding.program}:", "", case_source(finding.law, finding.program, asked.name, asked.target)]
    operations = f"{finding.steps} operation{'' if finding.steps == 1 else 's'}"
    told = [f"{wording.GOES_ON}."] if finding.program.unfinished else []
    if wording.left_out(finding.steps):
        return [f"The shortest program found has {operations}, too many to show here.", *told]
    return [f"The shortest program found has {operations}:", *told, "", pytest_source(finding.program, asked.target)]


def keep(directory: Path, finding: Finding, name: str) -> Path:
    """Write the failure file of `finding` on the target `name`; the file's name is the same for the same program or case."""
    from kvproof.fuzz.kernel_failures import write_failure

    program = finding.program
    if isinstance(program, str):
        return write_failure(directory, name, finding)
    return keep_program(directory, finding.law, program)


def tried(report: Report) -> str:
    """What was tried, for the summary."""
    units = (
        ("cases", "launches") if any(BY_NAME[law].judges_kernels for law in report.laws if law in BY_NAME) else ("programs", "operations")
    )
    return f"{report.target}: {report.programs} {units[0]}, {report.operations} {units[1]} in {report.seconds:.1f} s, seed {report.seed}"


# -- one check -----------------------------------------------------------------------------------------------------------------------------

_ANSWERS: Final = pytest.StashKey[dict[str, Answer]]()


def answer(config: pytest.Config, asked: Asked) -> Answer:
    """The answer of this check: run now, or read where this session or another worker of it has run it already."""
    asked = _effective(config, asked)
    answers = config.stash.setdefault(_ANSWERS, {})
    key = hashlib.sha256(f"{asked.name}\0{asked.target!r}\0{asked.budget}\0{asked.seed}\0{asked.waivers}".encode()).hexdigest()[:16]
    if key not in answers:
        waivers = _waivers(config, asked)
        shared = _shared_directory(config)
        report = _run(asked, waivers) if shared is None else _run_once(asked, waivers, shared / f"{key}.json")
        answers[key] = Answer(report, waivers)
    return answers[key]


def _effective(config: pytest.Config, asked: Asked) -> Asked:
    """What the command line makes of it."""
    budget = config.getoption("kv_budget", None)
    seed = config.getoption("kv_seed", None)
    if seed is None:
        seed = DEFAULT_SEED if asked.seed is None else asked.seed
    return msgspec.structs.replace(asked, budget=asked.budget if budget is None else budget, seed=seed)


def _waivers(config: pytest.Config, asked: Asked) -> Mapping[str, Waiver]:
    from kvproof.fuzz.waivers import DEFAULT_FILE, BadWaivers, read_waivers, waivers_for

    path = asked.waivers or DEFAULT_FILE
    path = path if path.is_absolute() else config.rootpath / path
    if asked.waivers is None and not path.exists():
        return {}
    try:
        return waivers_for(read_waivers(path), asked.name)
    except BadWaivers as bad:
        pytest.fail(str(bad), pytrace=False)


def _seconds(asked: Asked) -> float:
    from kvproof.fuzz import check

    budget = parse_budget(asked.budget)
    return check.BUDGETS[budget] if isinstance(budget, str) else budget


def _run(asked: Asked, waivers: Mapping[str, Waiver]) -> Report:
    from kvproof.fuzz.check import check

    if kernels_check.is_kernels(asked.target):
        if kernels_check.missing():
            pytest.fail(kernels_check.missing(), pytrace=False)
        return kernels_check.check(asked.target, name=asked.name, seconds=_seconds(asked), seed=asked.seed or 0, waived=frozenset(waivers))
    return check(asked.target, name=asked.name, seconds=_seconds(asked), seed=asked.seed or 0, waived=frozenset(waivers))


# -- workers of pytest-xdist ---------------------------------------------------------------------------------------------------------------


def _shared_directory(config: pytest.Config) -> Path | None:
    """A directory that the workers of this run share, and no other run; None where there are no workers."""
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is None:
        return None
    own = config.getoption("basetemp", None)
    parent = Path(own).parent if own else Path(tempfile.gettempdir())
    directory = parent / f"kvproof-{workerinput['testrunuid']}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _run_once(asked: Asked, waivers: Mapping[str, Waiver], result: Path) -> Report:
    """Run the check in the worker that comes first; the others wait for its report."""
    from kvproof.fuzz.programs import write_whole
    from kvproof.fuzz.verdicts import Report

    lock = result.with_suffix(".lock")
    deadline = time.monotonic() + 2 * _seconds(asked) + PATIENCE_SECONDS
    while not result.exists():
        if _take(lock):
            try:
                report = _run(asked, waivers)
                write_whole(result, msgspec.json.encode(report))
            except BaseException:
                lock.unlink(missing_ok=True)
                raise
            return report
        if _abandoned(lock) and not result.exists():
            pytest.fail(
                f"The worker that checked {asked.name} ended before it had an answer; the target may have crashed it.", pytrace=False
            )
        if time.monotonic() > deadline:
            pytest.fail(f"Another worker is still checking {asked.name}, long past its budget; {lock} names its process.", pytrace=False)
        time.sleep(POLL_SECONDS)
    return msgspec.json.decode(result.read_bytes(), type=Report)


def _take(lock: Path) -> bool:
    """Whether this process is the first to take `lock`, which then holds its process id."""
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(str(os.getpid()))
    return True


def _abandoned(lock: Path) -> bool:
    """Whether the process that took `lock` is gone. A lock that was just taken may not hold its number yet."""
    try:
        owner = int(lock.read_text())
        os.kill(owner, 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
