"""`python -m benchmarks.mutants`: see the package."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.mutants.by_hand import by_hand
from benchmarks.mutants.further import further
from benchmarks.mutants.kill import Code, verdict, warm
from benchmarks.mutants.others import others
from benchmarks.mutants.sources import Mutant, mutants, ordinary

PRODUCTION = (
    "tests/test_production.py",
    "tests/test_production_sharing.py",
    "tests/test_production_steps.py",
    "tests/test_production_adapter.py",
    "tests/test_production_lock.py",
    "tests/test_production_corners.py",
    "tests/test_production_decode.py",
    "tests/test_production_costs.py",
    "tests/test_production_laws.py",
    "tests/test_production_random.py",
)
MODULES: dict[str, tuple[str, ...]] = {
    **{
        f"kvproof.impl.production.{name}": PRODUCTION
        for name in (
            "adapter",
            "cache",
            "decoding",
            "holdings",
            "passes",
            "pool",
            "index",
            "reuse",
            "groups",
            "tokens",
            "sequence",
            "mirror",
            "books",
            "records",
        )
    },
    **{
        f"kvproof.impl.checker.{name}": (
            "tests/test_checker.py",
            "tests/test_checker_claims.py",
            "tests/test_lockstep.py",
            "tests/test_checker_corners.py",
            "tests/test_production_costs.py",
        )
        for name in ("checked", "claims", "answers", "blocks", "snapshots", "faults", "misuse")
    },
}
"""Module -> the tests that are written for it."""

Maker: TypeAlias = Callable[[str, str], Iterator[tuple[Mutant, Code]]]
"""Makes the mutants of a module out of its source."""

KINDS: Final[dict[str, Maker]] = {
    "ordinary": partial(mutants, changes=ordinary),
    "further": partial(mutants, changes=further),
    "by-hand": by_hand,
    "others": others,
}


class Result(msgspec.Struct, frozen=True):
    """What became of a mutant."""

    mutant: Mutant
    noticed: str
    seconds: float

    @property
    def change(self) -> str:
        """What was changed, as a line."""
        return f"{self.mutant.before}  ->  {self.mutant.after}"

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
    kinds = "ordinary changes, further ones, faults written by hand, or others, of each operator as many"
    parser.add_argument("--kind", choices=KINDS, default="ordinary", help=kinds)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th mutant, for a sample")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N of those drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which mutants are drawn (default: 0)")
    parser.add_argument("--again", action="store_true", help="run only the survivors, once more, after new tests")
    parser.add_argument("--report", action="store_true", help="only print the score and the survivors")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write the score and the survivors as a page")
    parser.add_argument(
        "--least", type=float, default=0.0, metavar="PERCENT", help="fail below this share of the mutants that can be noticed"
    )
    asked = parser.parse_args()
    make = KINDS[asked.kind]
    reasons = _reasons()
    results = {result.mutant.name: result for result in _read(asked.results)}
    if not asked.report:
        drawn = [
            (mutant, code, tests)
            for module, tests in MODULES.items()
            for number, (mutant, code) in enumerate(make(module, _source(module)))
            if number % asked.every == 0 and asked.only in mutant.name
        ]
        # In an order that is drawn, so that a run that is cut short is a sample of all.
        random.Random(asked.seed).shuffle(drawn)
        todo = [entry for entry in _evenly(drawn)[: asked.first] if _is_due(results.get(entry[0].name), reasons, again=asked.again)]
        _run(todo, asked.minutes, asked.results, results)
    ran = list(results.values())
    if asked.page:
        asked.page.write_text(page(ran, reasons, asked.kind, asked.page), encoding="utf-8")
    return _report(ran, reasons, asked.least)


def _reasons() -> dict[tuple[str, str], str]:
    """(function, change) -> why nothing can notice it."""
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["mutant"]
    return {(entry["function"], entry["change"]): entry["why"] for entry in listed}


def _is_due(known: Result | None, reasons: dict[tuple[str, str], str], *, again: bool) -> bool:
    if not again:
        return known is None
    return known is not None and known.survived and (known.mutant.function, known.change) not in reasons


def _evenly(drawn: list[tuple[Mutant, Code, tuple[str, ...]]]) -> list[tuple[Mutant, Code, tuple[str, ...]]]:
    """One of each operator in turn, for as long as it has any."""
    seen: Counter[str] = Counter()
    turns = []
    for mutant, _, _ in drawn:
        turns.append(seen[mutant.operator])
        seen[mutant.operator] += 1
    return [entry for _, entry in sorted(zip(turns, drawn, strict=True), key=lambda pair: pair[0])]


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _read(path: Path) -> list[Result]:
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()] if path.exists() else []


def _run(todo: list[tuple[Mutant, Code, tuple[str, ...]]], minutes: float, path: Path, results: dict[str, Result]) -> None:
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


def _report(results: list[Result], reasons: dict[tuple[str, str], str], least: float) -> int:
    by = Counter(result.noticed.partition(" ")[0] for result in results if not result.survived)
    for result in results:
        mutant = result.mutant
        if result.survived and (mutant.function, result.change) not in reasons:
            print(f"{mutant.module.rpartition('.')[2]}.py:{mutant.line} {mutant.function}: {result.change}")
    print(f"{sentence(results, reasons)} Noticed by {', '.join(f'{name} {count}' for name, count in by.most_common())}.")
    return 1 if score(results, reasons)[1] < least else 0


def score(results: list[Result], reasons: dict[tuple[str, str], str]) -> tuple[float, float]:
    """Percent of all mutants that were noticed, and of those that something could notice."""
    survivors = [result for result in results if result.survived]
    killed = len(results) - len(survivors)
    explained = sum((result.mutant.function, result.change) in reasons for result in survivors)
    return 100 * killed / max(1, len(results)), 100 * killed / max(1, len(results) - explained)


def sentence(results: list[Result], reasons: dict[tuple[str, str], str]) -> str:
    """The score in words."""
    of_all, of_others = score(results, reasons)
    survivors = [result for result in results if result.survived]
    explained = sum((result.mutant.function, result.change) in reasons for result in survivors)
    return (
        f"{len(results) - len(survivors)} of {len(results)} mutants noticed, {of_all:.1f} %; {explained} of the {len(survivors)} that survive "
        f"change no answer, and of the others {of_others:.1f} % are noticed."
    )


def _sample(ran: int, total: int) -> str:
    return "These are all mutants." if ran == total else f"There are {total:,} mutants in all; those that ran were drawn at random."


def page(results: list[Result], reasons: dict[tuple[str, str], str], kind: str, path: Path) -> str:
    """The score, and every survivor with the reason, as Markdown."""
    total = sum(1 for module in MODULES for _ in KINDS[kind](module, _source(module)))
    asked, which = (f"--kind {kind} ", "Mutants of other operators that survive") if kind != "ordinary" else ("", "Mutants that survive")
    lines = [
        f"# {which}",
        "",
        f"Generated by `python -m benchmarks.mutants {asked}--results FILE --report --page {path}`; do not edit. [Is the suite any good?](suite.md) says what a mutant is.",
        "",
        f"{sentence(results, reasons)} {_sample(len(results), total)}",
        "",
        "| mutant | why nothing can notice it |",
        "|---|---|",
    ]
    survivors = sorted((r for r in results if r.survived), key=lambda r: (r.mutant.module, r.mutant.line, r.change))
    for result in survivors:
        mutant = result.mutant
        why = reasons.get((mutant.function, result.change), "*not explained: the suite should notice it*")
        lines.append(
            f"| `{mutant.function}`, line {mutant.line} of `{mutant.module.rpartition('.')[2]}.py`: `{_cell(result.change)}` | {why} |"
        )
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
