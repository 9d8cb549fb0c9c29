"""What a race of shrinkers came to: a table, sentences, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from pictures import pyplot, save
from rich.console import Console
from rich.table import Table

from kvproof.fuzz.programs import Program

RACERS: Final = {"kvproof": "#0072b2", "hypothesis": "#d55e00", "ddmin": "#767676"}
"""Who races, and the colour of each in the picture."""


class Finish(msgspec.Struct, frozen=True):
    """How one shrinker ended."""

    operations: int
    runs: int
    seconds: float
    reached: int
    """Runs until it had a program of that length."""


class Race(msgspec.Struct, frozen=True):
    """One program and what the three made of it. Hypothesis is missing where it found no failing program, and the program where nobody did."""

    bug: str
    law: str = ""
    start: Program | None = None
    finishes: dict[str, Finish] = {}


def summary(races: list[Race]) -> str:
    """Who was shorter, and by how much."""
    lines = []
    for other in ("hypothesis", "ddmin"):
        pairs = [(race.finishes["kvproof"], race.finishes[other]) for race in races if other in race.finishes]
        shorter = sum(ours.operations < theirs.operations for ours, theirs in pairs)
        equal = sum(ours.operations == theirs.operations for ours, theirs in pairs)
        fewer = sum(ours.runs < theirs.runs for ours, theirs in pairs)
        sooner = sum(ours.reached <= theirs.reached for ours, theirs in pairs)
        lines.append(
            f"Against {other}: shorter on {shorter}, equal on {equal}, longer on {len(pairs) - shorter - equal} of {len(pairs)}; "
            f"fewer runs on {fewer}, its final length reached in no more runs on {sooner}."
        )
    for name in RACERS:
        ends = [race.finishes[name] for race in races if name in race.finishes]
        if not ends:  # Hypothesis has no program of its own where the swarm had to find the bug
            continue
        operations, runs = statistics.mean(end.operations for end in ends), statistics.median(end.runs for end in ends)
        reached, seconds = statistics.median(end.reached for end in ends), statistics.median(end.seconds for end in ends)
        lines.append(
            f"{name}: {operations:.2f} operations on average; in the median {runs:g} runs, {reached:g} to reach them, {seconds:.2f} s."
        )
    return "\n".join(lines)


def cells(one: Race) -> list[str]:
    """How each shrinker ended, as in the table."""
    ends = (one.finishes.get(name) for name in RACERS)
    return ["-" if end is None else f"{end.operations} ({end.runs}, {end.reached})" for end in ends]


def show(races: list[Race]) -> None:
    """The table and who won."""
    table = Table("bug", "law", "from", "kvproof", "hypothesis", "ddmin", title="operations (runs, of these to reach them)", box=None)
    for one in races:
        assert one.start is not None
        table.add_row(one.bug, one.law, str(len(one.start.ops)), *cells(one))
    console = Console()
    console.print(table)
    if races:
        console.print(summary(races))


def markdown(races: list[Race]) -> str:
    """The table for a page of the documentation."""
    rows = ["| bug | law | from | kvproof | Hypothesis | ddmin |", "|---|---|--:|--:|--:|--:|"]
    for one in races:
        assert one.start is not None
        rows.append(f"| `{one.bug}` | {one.law} | {len(one.start.ops)} | {' | '.join(cells(one))} |")
    return "\n".join(rows) + "\n"


def drawn(races: list[Race], file: Path) -> None:
    """Two panels, as SVG: how many programs were shrunk to at most so many operations, and in at most so many runs. Needs matplotlib."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3), sharey=True)
    _counted(left, races, lambda end: end.operations, "operations of the shrunk program")
    _counted(right, races, lambda end: end.reached, "programs run until it had that length")
    left.set_ylabel(f"programs, of {len(races)}")
    right.set_xscale("symlog")
    left.set_xscale("log")
    left.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    left.minorticks_off()
    left.legend(frameon=False, loc="lower right")
    save(figure, file)


def _counted(axes: Any, races: list[Race], number: Callable[[Finish], int], label: str) -> None:  # noqa: ANN401 -- matplotlib has no types
    """One panel: the number of races that ended at or below each number."""
    for name, colour in RACERS.items():
        numbers = sorted(number(race.finishes[name]) for race in races if name in race.finishes)
        axes.step(numbers, range(1, len(numbers) + 1), where="post", color=colour, label=name)
    axes.set_xlabel(label)
    axes.grid(color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
