"""Run the suite on one mutant, in a process of its own, until something notices it.

First a few programs of the random generator beside the spec, which take milliseconds; then the tests that are written for the module; then more programs. The mutant is put in
by exchanging the code of one function, so nothing is imported again; or, where any part of a module may be changed, by importing all of kvproof again around the changed module.
"""

from __future__ import annotations

import importlib
import io
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import pytest

from benchmarks.mutants.others import Source
from benchmarks.mutants.sources import Mutant
from kvproof.fuzz.check import Search, Tally, run_seed
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter

FIRST: Final = 12
"""Programs for each adapter before the tests are run: most mutants fall within the first."""

PROGRAMS: Final = 60
"""Programs for each adapter in all."""

SECONDS: Final = 300.0
"""Longest run of one mutant; one that never ends is noticed."""

OP_SECONDS: Final = 2.0
"""Time limit of one operation: a mutant that loops is noticed at once."""

MEMORY_BYTES: Final = 4 << 30

Code: TypeAlias = CodeType | Source
"""The code of the changed function, or what gives the source of the changed module."""

TARGETS: Final = (ProductionAdapter, HybridAdapter, SynchronousAdapter)


def verdict(mutant: Mutant, code: Code, tests: Sequence[str]) -> tuple[str, float]:
    """What noticed the mutant, `survived` if nothing did, and how many seconds that took."""
    start = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _in_child(mutant, code, tests, write)
    os.close(write)
    told = _answer(child, read)
    return told, time.monotonic() - start


def _answer(child: int, read: int) -> str:
    deadline = time.monotonic() + SECONDS
    while True:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            with os.fdopen(read, "rb") as answer:
                return answer.read().decode() or "crash"
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "timeout"
        time.sleep(0.005)


def _in_child(mutant: Mutant, code: Code, tests: Sequence[str], write: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    told = "crash"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            if isinstance(code, CodeType):
                function(mutant).__code__ = code
                told = next(noticed(tests), "survived")
            else:
                told = _noticed_in_module(mutant.module, code(), tests)
    except BaseException as error:  # noqa: BLE001 -- whatever a mutant raises was noticed
        told = f"raised {type(error).__name__}"
    os.write(write, told.encode())
    os._exit(0)


def _noticed_in_module(module: str, source: str, tests: Sequence[str]) -> str:
    """The same for a module with another source, in a process that forgets all modules of ours."""
    code = compile(source, f"<mutant of {module}>", "exec")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("kvproof", "benchmarks", "tests")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Changed(module, code))
    again = importlib.import_module(__name__)
    return next(again.noticed(tests), "survived")


class _Changed(MetaPathFinder, Loader):
    """Imports one module from other code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module = module
        self._code = code

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        """Only for that module."""
        return ModuleSpec(name, self) if name == self._module else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the other code."""
        exec(self._code, vars(module))  # code of ours, with one change


def noticed(tests: Sequence[str]) -> Iterator[str]:
    """What notices that something is wrong, the first to notice first."""
    yield from _by_programs(range(FIRST))
    status = pytest.main(
        ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:frontrun", "-W", "ignore", *tests]
    )
    if status != pytest.ExitCode.OK:
        yield f"tests ({int(status)})"
    yield from _by_programs(range(FIRST, PROGRAMS))


def _by_programs(numbers: range) -> Iterator[str]:
    """What programs of the random generator notice."""
    for target in TARGETS:
        capabilities = read_capabilities(target)
        search = Search(target, target.__name__, capabilities, 1, 1, time.monotonic() + SECONDS, OP_SECONDS, None, frozenset())
        for number in numbers:
            found = run_seed(search, f"mutant:{number}", Tally())
            if found is not None:
                violation = found.program.violation
                yield f"law {violation.law}" if violation else found.kind


def function(mutant: Mutant) -> FunctionType:
    """The function that a mutant changes, whatever it is wrapped in."""
    found: Any = importlib.import_module(mutant.module)
    *owners, name = mutant.function.split(".")
    for owner in owners:
        found = getattr(found, owner)
    member: Any = vars(found)[name]
    for wrapped in ("fget", "__func__", "__wrapped__"):
        member = getattr(member, wrapped, None) or member
    if not isinstance(member, FunctionType):
        raise TypeError(f"{mutant.function} is {member!r}, not a function")
    return member


def warm(tests: Sequence[str]) -> None:
    """Run the suite on the unchanged code: it must pass, and what it loads need not be loaded again by every child."""
    with redirect_stdout(io.StringIO()):
        told = next(noticed(tests), "survived")
    if told != "survived":
        sys.exit(f"The suite fails on the unchanged code ({told}); mend that first.")
