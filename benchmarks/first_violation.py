"""How long each generator takes to break each seeded bug: a table, the medians, and a plot. Meant for a night.

    python benchmarks/first_violation.py [--seconds 60] [--seed 1] [--only TEXT] [--generator swarm] [--csv FILE] [--plot FILE.svg]

One core. Seconds are those of this process on it, from the start until any law breaks, before shrinking; the limit is by the clock. A bug that is not broken in `--seconds` is told, and is in no average.
The generators: `swarm` is the plain random one, `hypothesis` the state machine, `exhaust` every program of the scope `small`, shortest first.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvproof.fuzz.bugs import BUGS, SeededBug
from kvproof.fuzz.check import Search, Tally, run_seed
from kvproof.fuzz.exhaust.scope import SCOPES
from kvproof.fuzz.exhaust.search import Search as Exhaustion
from kvproof.impl.checker import read_capabilities
from kvproof.properties.machine_runs import run_machine

COLOURS = {"swarm": "#2e86ab", "hypothesis": "#d1495b", "exhaust": "#66a182"}


class Catch(msgspec.Struct, frozen=True):
    """When a generator first broke a bug; `seconds` is None where it did not. `programs`: how many it ran until then; for `exhaust`, operations."""

    bug: str
    generator: str
    law: str
    seconds: float | None
    programs: int


def by_swarm(bug: SeededBug, seconds: float, seed: int) -> tuple[str, int]:
    """(law, programs); no law if none broke."""
    start = time.monotonic()
    search = Search(bug.adapter, bug.name, read_capabilities(bug.adapter), seed, 1, start + seconds, 10.0, None, frozenset())
    tally = Tally()
    while time.monotonic() < search.deadline:
        found = run_seed(search, f"{seed}:{tally.programs}", tally)
        if found is not None:
            return _law(found.program.violation), tally.programs
    return "", tally.programs


def by_hypothesis(bug: SeededBug, seconds: float, seed: int) -> tuple[str, int]:
    """(law, programs); batches of the state machine, as `kvproof check` runs them."""
    deadline = time.monotonic() + seconds
    count = batch = 0
    while time.monotonic() < deadline:
        programs, _, _, found = run_machine(
            bug.adapter, seed=seed * 1000 + batch, examples=60, steps=40, deadline=deadline, op_seconds=10.0
        )
        count, batch = count + programs, batch + 1
        if found is not None:
            return _law(found.violation), count
    return "", count


def by_exhaustion(bug: SeededBug, seconds: float, seed: int) -> tuple[str, int]:  # noqa: ARG001 -- nothing in it is random
    """(law, operations)."""
    search = Exhaustion(bug.adapter, bug.name, SCOPES["small"])
    for _ in search.run(seconds=seconds):
        pass
    return ("" if search.failure is None else _law(search.failure.violation)), search.transitions


def _law(violation: object) -> str:
    return str(getattr(violation, "law", "the contract"))


GENERATORS: dict[str, Callable[[SeededBug, float, int], tuple[str, int]]] = {
    "swarm": by_swarm,
    "hypothesis": by_hypothesis,
    "exhaust": by_exhaustion,
}


def hunt(bug: SeededBug, generator: str, seconds: float, seed: int) -> Catch:
    """Let one generator loose on one bug."""
    start = time.process_time()
    law, programs = GENERATORS[generator](bug, seconds, seed)
    return Catch(bug.name, generator, law, time.process_time() - start if law else None, programs)


def summary(catches: list[Catch], generator: str) -> str:
    """One generator in a sentence."""
    mine = [catch for catch in catches if catch.generator == generator]
    caught = [catch for catch in mine if catch.seconds is not None]
    if not caught:
        return f"{generator}: none of {len(mine)} seeded bugs."
    worst = max(caught, key=lambda catch: catch.seconds or 0)
    missed = [catch.bug for catch in mine if catch.seconds is None]
    told = f"; not caught: {', '.join(missed)}" if missed else ""
    median = statistics.median(catch.seconds or 0 for catch in caught)
    return f"{generator}: {len(caught)} of {len(mine)} seeded bugs; median {median:.2f} s, worst {worst.seconds:.1f} s ({worst.bug}){told}."


def plot(catches: list[Catch], seconds: float) -> str:
    """Bugs caught over time, a curve for each generator, the time on a logarithmic axis."""
    width, height, margin, least = 760, 420, 60, 0.001
    bugs = max(1, len({catch.bug for catch in catches}))

    def x(at: float) -> float:
        return margin + (width - 2 * margin) * math.log(max(at, least) / least) / math.log(seconds / least)

    def y(count: int) -> float:
        return height - margin - (height - 2 * margin) * count / bugs

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{margin}" y="30" font-size="14">Seeded bugs broken, of {bugs}, by seconds on one core</text>',
    ]
    for power in range(-3, math.ceil(math.log10(seconds)) + 1):
        at = min(10.0**power, seconds)
        lines.append(
            f'<path d="M{x(at):.1f} {y(0)} V{y(bugs)}" stroke="#ddd"/><text x="{x(at):.1f}" y="{height - margin + 18}" text-anchor="middle">{at:g} s</text>'
        )
    for row, generator in enumerate(sorted({catch.generator for catch in catches})):
        times = sorted(catch.seconds for catch in catches if catch.generator == generator and catch.seconds is not None)
        path = (
            f"M{x(least):.1f} {y(0):.1f}"
            + "".join(f" H{x(at):.1f} V{y(number):.1f}" for number, at in enumerate(times, 1))
            + f" H{x(seconds):.1f}"
        )
        lines.append(f'<path d="{path}" fill="none" stroke="{COLOURS[generator]}" stroke-width="2"/>')
        lines.append(
            f'<text x="{margin + 10}" y="{margin + 16 * row}" fill="{COLOURS[generator]}">{generator}: {len(times)} of {bugs}</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


def show(console: Console, catches: list[Catch], generators: list[str]) -> None:
    """A line for each bug, a column for each generator."""
    table = Table(box=None, pad_edge=False)
    table.add_column("bug", no_wrap=True)
    for generator in generators:
        table.add_column(f"{generator} s", justify="right", no_wrap=True)
        table.add_column("programs" if generator != "exhaust" else "operations", justify="right", no_wrap=True)
    by = {(catch.bug, catch.generator): catch for catch in catches}
    for bug in dict.fromkeys(catch.bug for catch in catches):
        cells = [bug]
        for generator in generators:
            catch = by[bug, generator]
            cells += ["-" if catch.seconds is None else f"{catch.seconds:.2f}", f"{catch.programs:,}"]
        table.add_row(*cells)
    console.print(table)
    for generator in generators:
        console.print(summary(catches, generator), soft_wrap=True)


def main(arguments: Iterable[str] | None = None) -> int:
    """Hunt them all; the exit status is 1 if the swarm did not break every bug."""
    parser = argparse.ArgumentParser(description="How long each generator takes to break each seeded bug.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to hunt each bug with each generator at most (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="only bugs with TEXT in their names")
    parser.add_argument("--generator", action="append", choices=list(GENERATORS), help="only this generator; may be given several times")
    parser.add_argument("--csv", type=Path, help="write the table")
    parser.add_argument("--plot", type=Path, help="write the plot as SVG")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    generators = asked.generator or list(GENERATORS)
    bugs = [bug for name, bug in BUGS.items() if asked.only in name]
    if not bugs:
        print(f"No seeded bug has {asked.only!r} in its name.", file=sys.stderr)
        return 2
    catches = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("hunts", total=len(bugs) * len(generators))
        for bug in bugs:
            for generator in generators:
                catches.append(hunt(bug, generator, asked.seconds, asked.seed))
                bar.advance(task)
    show(Console(), catches, generators)
    if asked.csv:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Catch.__struct_fields__)
            writer.writerows(msgspec.structs.astuple(catch) for catch in catches)
    if asked.plot:
        asked.plot.write_text(plot(catches, asked.seconds), encoding="utf-8")
    return int(any(catch.seconds is None for catch in catches if catch.generator == "swarm"))


if __name__ == "__main__":
    sys.exit(main())
