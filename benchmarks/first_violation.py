"""How long each generator takes to break each seeded bug: a table, the medians, and a plot. Meant for a night.

    python benchmarks/first_violation.py [--seconds 60] [--minutes 600] [--seed 1] [--only TEXT] [--generator swarm] [--results FILE] [--csv FILE] [--plot FILE.svg]

One core. Seconds are those of this process on it, from the start until any law breaks, before shrinking; the limit is by the clock. A bug that is not broken in `--seconds` is told, and is in no average.
The generators: `swarm` is what a check draws from seeds, long programs of a scheduler among it, `hypothesis` the state machine, `exhaust` every program of the scope `small`, shortest first.

Each hunt is a line of the results file. What has one is not hunted again, unless it was missed in less time than is given now; so a run that was stopped, or whose minutes are over, goes on where it was.
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

RESULTS = Path(".kvproof/first-violation.jsonl")

COLOURS = {"swarm": "#2e86ab", "hypothesis": "#d1495b", "exhaust": "#66a182"}


class Catch(msgspec.Struct, frozen=True):
    """When a generator first broke a bug; `seconds` is None where it did not within `limit_seconds`. `programs`: how many it ran until then; for `exhaust`, operations."""

    bug: str
    generator: str
    law: str
    seconds: float | None
    programs: int
    seed: int
    limit_seconds: float


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
    return Catch(bug.name, generator, law, time.process_time() - start if law else None, programs, seed, seconds)


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
            catch = by.get((bug, generator))
            cells += [""] * 2 if catch is None else ["-" if catch.seconds is None else f"{catch.seconds:.2f}", f"{catch.programs:,}"]
        table.add_row(*cells)
    console.print(table)
    for generator in generators:
        console.print(summary(catches, generator), soft_wrap=True)


def read(path: Path, seed: int) -> dict[tuple[str, str], Catch]:
    """The hunts of that seed that were done before: (bug, generator) -> the last one."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    catches = [msgspec.json.decode(line, type=Catch) for line in lines]
    return {(catch.bug, catch.generator): catch for catch in catches if catch.seed == seed}


def is_due(known: Catch | None, seconds: float) -> bool:
    """Whether a hunt was not done yet, or in vain and in less time."""
    return known is None or (known.seconds is None and known.limit_seconds < seconds)


def hunt_all(hunts: list[tuple[SeededBug, str]], asked: argparse.Namespace, known: dict[tuple[str, str], Catch]) -> None:
    """Hunt until the minutes are over; each catch is written down at once."""
    deadline = time.monotonic() + 60 * asked.minutes
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    with asked.results.open("ab") as out, Progress(console=Console(stderr=True), transient=True) as bar:
        for bug, generator in bar.track(hunts, description="hunts"):
            if time.monotonic() > deadline:
                return
            catch = known[bug.name, generator] = hunt(bug, generator, asked.seconds, asked.seed)
            out.write(msgspec.json.encode(catch) + b"\n")
            out.flush()


def main(arguments: Iterable[str] | None = None) -> int:
    """Hunt them all; the exit status is 1 if the swarm did not break every bug that it hunted."""
    parser = argparse.ArgumentParser(description="How long each generator takes to break each seeded bug.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to hunt each bug with each generator at most (default: 60)")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after this time; run again to go on (default: 600)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="only bugs with TEXT in their names")
    parser.add_argument("--generator", action="append", choices=list(GENERATORS), help="only this generator; may be given several times")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"where each hunt is written down (default: {RESULTS})")
    parser.add_argument("--csv", type=Path, help="write the table")
    parser.add_argument("--plot", type=Path, help="write the plot as SVG")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    generators = asked.generator or list(GENERATORS)
    bugs = [bug for name, bug in BUGS.items() if asked.only in name]
    if not bugs:
        print(f"No seeded bug has {asked.only!r} in its name.", file=sys.stderr)
        return 2
    known = read(asked.results, asked.seed)
    wanted = [(bug, generator) for generator in generators for bug in bugs]
    hunt_all([pair for pair in wanted if is_due(known.get((pair[0].name, pair[1])), asked.seconds)], asked, known)
    catches = [known[bug.name, generator] for bug, generator in wanted if (bug.name, generator) in known]
    show(Console(), catches, generators)
    if len(catches) < len(wanted):
        print(f"{len(wanted) - len(catches)} of {len(wanted)} hunts are left; the same command goes on.")
    if asked.csv:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Catch.__struct_fields__)
            writer.writerows(msgspec.structs.astuple(catch) for catch in catches)
    if asked.plot and catches:
        asked.plot.write_text(plot(catches, max(catch.limit_seconds for catch in catches)), encoding="utf-8")
    return int(any(catch.seconds is None for catch in catches if catch.generator == "swarm"))


if __name__ == "__main__":
    sys.exit(main())
