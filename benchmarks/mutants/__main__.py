"""`python -m benchmarks.mutants`: see the package."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.mutants.kill import verdict, warm
from benchmarks.mutants.sources import Mutant, mutants

PRODUCTION = (
    "tests/test_production.py",
    "tests/test_production_lock.py",
    "tests/test_production_corners.py",
    "tests/test_production_random.py",
)
MODULES: dict[str, tuple[str, ...]] = {
    **{
        f"kvproof.impl.production.{name}": PRODUCTION
        for name in ("cache", "pool", "index", "reuse", "groups", "tokens", "sequence", "mirror", "books", "records")
    },
    "kvproof.impl.checker": ("tests/test_checker.py", "tests/test_lockstep.py", "tests/test_checker_corners.py"),
}
"""Module -> the tests that are written for it."""


class Result(msgspec.Struct, frozen=True):
    """What became of a mutant."""

    mutant: Mutant
    noticed: str
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether nothing noticed it."""
        return self.noticed == "survived"


def main() -> int:
    """Run, or report; the exit status is 1 if the score is below the least one asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description="Mutation score of the suite.")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after this time; run again to go on")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants with TEXT in their names")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th mutant, for a sample")
    parser.add_argument("--again", action="store_true", help="run only the survivors, once more, after new tests")
    parser.add_argument("--report", action="store_true", help="only print the score and the survivors")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT")
    asked = parser.parse_args()
    results = {result.mutant.name: result for result in _read(asked.results)}
    if not asked.report:
        todo = [
            (mutant, code, tests)
            for module, tests in MODULES.items()
            for number, (mutant, code) in enumerate(mutants(module, _source(module)))
            if number % asked.every == 0 and asked.only in mutant.name and _is_due(results.get(mutant.name), again=asked.again)
        ]
        # In an order that is drawn, so that a run that is cut short is a sample of all.
        random.Random(0).shuffle(todo)
        _run(todo, asked.minutes, asked.results, results)
    return _report(list(results.values()), asked.least)


def _is_due(known: Result | None, *, again: bool) -> bool:
    return known is not None and known.survived if again else known is None


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _read(path: Path) -> list[Result]:
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()] if path.exists() else []


def _run(todo: list[tuple[Mutant, CodeType, tuple[str, ...]]], minutes: float, path: Path, results: dict[str, Result]) -> None:
    deadline = time.monotonic() + 60 * minutes
    for tests in {tests for _, _, tests in todo}:
        warm(tests)
    with path.open("ab") as out, Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("mutants", total=len(todo))
        for mutant, code, tests in todo:
            if time.monotonic() > deadline:
                break
            noticed, seconds = verdict(mutant, code, tests)
            result = results[mutant.name] = Result(mutant, noticed, seconds)
            out.write(msgspec.json.encode(result) + b"\n")
            out.flush()
            bar.advance(task)


def _report(results: list[Result], least: float) -> int:
    killed = [result for result in results if not result.survived]
    by = Counter(result.noticed.partition(" ")[0] for result in killed)
    for result in results:
        if result.survived:
            mutant = result.mutant
            print(f"{mutant.module.rpartition('.')[2]}.py:{mutant.line} {mutant.function}: {mutant.before}  ->  {mutant.after}")
    score = 100 * len(killed) / len(results) if results else 0.0
    print(
        f"{len(killed)} of {len(results)} mutants noticed: {score:.1f} %; by {', '.join(f'{name} {count}' for name, count in by.most_common())}."
    )
    return 1 if score < least else 0


if __name__ == "__main__":
    sys.exit(main())
