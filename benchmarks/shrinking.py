"""A race of shrinkers on the seeded bugs: ours, Hypothesis's own, and plain delta debugging.

    python benchmarks/shrinking.py [--seed 1] [--examples 300] [--only TEXT] [--json FILE]

Hypothesis finds a failing program with the state machine of `kvproof.properties.machine`, and shrinks it. The same first failing program then goes to the other two. Each must
keep the law that the program breaks. `runs` counts the programs that were run to shrink it. Delta debugging is ddmin (Zeller and Hildebrandt 2002) over the operations.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from rich.console import Console
from rich.table import Table

from kvproof.fuzz.bugs import BUGS, SeededBug
from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.shrink import Shrinker, breaks
from kvproof.fuzz.simpler import Candidate, Ops
from kvproof.models.ops import Op
from kvproof.properties.lockstep import LawBroken, run
from kvproof.properties.machine import cache_machine

SHRINK_SECONDS = 60.0


class Finish(msgspec.Struct, frozen=True):
    """How one shrinker ended."""

    operations: int
    runs: int
    seconds: float


class Race(msgspec.Struct, frozen=True):
    """One program and what the three made of it."""

    bug: str
    law: str
    operations: int
    finishes: dict[str, Finish]


class Watch:
    """What Hypothesis ran: the programs that broke the law that was broken first."""

    def __init__(self) -> None:
        self.law = ""
        self.failing: list[Candidate] = []
        self.runs = 0
        """Programs since the first failure."""


def by_hypothesis(bug: SeededBug, seed: int, examples: int) -> tuple[Watch, float]:
    """Let Hypothesis find and shrink; returns what it ran, and how long it took from the first failure on."""
    watch, first = Watch(), [0.0]

    class Watched(cache_machine(bug.adapter)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            watch.runs += bool(watch.failing)

        def do(self, op: Op) -> bool:
            try:
                return bool(super().do(op))
            except LawBroken as broken:
                law = broken.violation.law
                if not watch.failing:
                    watch.law, first[0] = law, time.monotonic()
                if law == watch.law:
                    lockstep = self.lockstep
                    watch.failing.append(Candidate(PoolConfig(lockstep.num_blocks, lockstep.block_size), tuple(lockstep.ops)))
                raise

    @seeded(seed)
    def factory() -> Watched:
        return Watched()

    quiet = settings(
        max_examples=examples,
        stateful_step_count=40,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    with contextlib.suppress(Exception):  # the failure that it shrank, or its complaint about a flaky one: what it ran was watched
        run_state_machine_as_test(factory, settings=quiet)  # type: ignore[arg-type]
    return watch, time.monotonic() - first[0]


def ddmin(ops: Ops, fails: Callable[[Ops], bool]) -> Ops:
    """Plain delta debugging: leave out chunks, then complements of chunks, with ever finer chunks."""
    parts = 2
    while len(ops) >= 2:
        size = -(-len(ops) // parts)
        chunks = [ops[i : i + size] for i in range(0, len(ops), size)]
        smaller = next(_failing(chunks, fails), None)
        if smaller is None:
            if size == 1:
                return ops
            parts = min(len(ops), 2 * parts)
        else:
            ops, kept = smaller
            parts = 2 if kept == 1 else max(2, parts - 1)
    return ops


def _failing(chunks: list[Ops], fails: Callable[[Ops], bool]) -> Iterator[tuple[Ops, int]]:
    yield from ((chunk, 1) for chunk in chunks if fails(chunk))
    for left_out in range(len(chunks)):
        rest = tuple(op for i, chunk in enumerate(chunks) if i != left_out for op in chunk)
        if fails(rest):
            yield rest, len(chunks) - 1


def by_ddmin(bug: SeededBug, start: Candidate, law: str) -> Finish:
    """Shrink by delta debugging; what was skipped at the end does not count."""
    runs, began = 0, time.monotonic()

    def ran(ops: Ops) -> list[Op] | None:
        nonlocal runs
        runs += 1
        result = run(ops, bug.adapter, num_blocks=start.config.num_blocks, block_size=start.config.block_size)
        return result.ran if breaks(result, law) else None

    short = ran(ddmin(start.ops, lambda ops: ran(ops) is not None))
    assert short is not None
    return Finish(len(short), runs, time.monotonic() - began)


def by_kvproof(bug: SeededBug, start: Candidate, law: str) -> Finish:
    """Shrink with ours."""
    began = time.monotonic()
    shrinker = Shrinker(bug.adapter, lambda result: breaks(result, law), seconds=SHRINK_SECONDS)
    short = shrinker.shrink(start)
    return Finish(len(short.ops), shrinker.runs, time.monotonic() - began)


def race(bug: SeededBug, seed: int, examples: int) -> Race | None:
    """All three on one bug; None where Hypothesis finds nothing to shrink."""
    watch, seconds = by_hypothesis(bug, seed, examples)
    if not watch.failing:
        return None
    start = watch.failing[0]
    finishes = {
        "kvproof": by_kvproof(bug, start, watch.law),
        "hypothesis": Finish(len(min(watch.failing, key=lambda candidate: candidate.size).ops), watch.runs, seconds),
        "ddmin": by_ddmin(bug, start, watch.law),
    }
    return Race(bug.name, watch.law, len(start.ops), finishes)


def summary(races: list[Race]) -> str:
    """Who was shorter, and by how much."""
    lines = []
    for other in ("hypothesis", "ddmin"):
        pairs = [(race.finishes["kvproof"], race.finishes[other]) for race in races]
        shorter = sum(ours.operations < theirs.operations for ours, theirs in pairs)
        equal = sum(ours.operations == theirs.operations for ours, theirs in pairs)
        fewer = sum(ours.runs < theirs.runs for ours, theirs in pairs)
        lines.append(
            f"Against {other}: shorter on {shorter}, equal on {equal}, longer on {len(pairs) - shorter - equal} of {len(pairs)}; fewer runs on {fewer}."
        )
    for name in ("kvproof", "hypothesis", "ddmin"):
        ends = [race.finishes[name] for race in races]
        operations, runs = statistics.mean(end.operations for end in ends), statistics.median(end.runs for end in ends)
        lines.append(
            f"{name}: {operations:.2f} operations on average, {runs:g} runs and {statistics.median(end.seconds for end in ends):.2f} s in the median."
        )
    return "\n".join(lines)


def main() -> None:
    """Races every seeded bug and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=300, help="programs that Hypothesis may try until it has a failing one")
    parser.add_argument("--only", metavar="TEXT", default="", help="only bugs whose name contains this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    arguments = parser.parse_args()
    table = Table("bug", "law", "from", "kvproof", "hypothesis", "ddmin", title="operations (runs)", box=None)
    races = []
    for bug in BUGS.values():
        if arguments.only in bug.name and (one := race(bug, arguments.seed, arguments.examples)) is not None:
            races.append(one)
            table.add_row(one.bug, one.law, str(one.operations), *(f"{end.operations} ({end.runs})" for end in one.finishes.values()))
    console = Console()
    console.print(table)
    if races:
        console.print(summary(races))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(races)))


if __name__ == "__main__":
    main()
