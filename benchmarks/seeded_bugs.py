"""How soon the suite catches each seeded bug: which law it names, in how many operations, after how many programs.

    python benchmarks/seeded_bugs.py [--seconds 20] [--seed 1] [--only TEXT] [--markdown]

One core. Seconds and programs are those until the first broken law, by the plain random generator alone; operations are those of the shortest program.
A bug that is not caught, or that is caught under a law that may not be named for it, is marked, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from kvproof.fuzz.bugs import BUGS, SeededBug
from kvproof.fuzz.bugs.hunt import SEED, Catch, hunt

COLUMNS = ("bug", "law", "operations", "seconds", "programs", "like")


def row(caught: Catch) -> tuple[str, ...]:
    """One line of the table."""
    mark = "" if caught.as_expected else " (!)"
    law = caught.law or "not caught"
    return (caught.bug.name, law + mark, str(caught.operations), f"{caught.seconds:.2f}", str(caught.programs), " ".join(caught.bug.like))


def show(console: Console, catches: list[Catch]) -> None:
    """The table for a terminal."""
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("operations", "seconds", "programs") else "left", no_wrap=column == "bug")
    for caught in catches:
        table.add_row(*row(caught))
    console.print(table)
    console.print(summary(catches))


def show_markdown(catches: list[Catch]) -> None:
    """The table for a document."""
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|---|--:|--:|--:|---|")
    for caught in catches:
        print("| " + " | ".join(row(caught)) + " |")
    print(f"\n{summary(catches)}")


def summary(catches: list[Catch]) -> str:
    """All of it in one sentence."""
    right = [caught for caught in catches if caught.as_expected]
    if not right:
        return f"None of {len(catches)} seeded bugs was caught as expected."
    seconds = statistics.median(caught.seconds for caught in right)
    operations = statistics.median(caught.operations for caught in right)
    return f"{len(right)} of {len(catches)} seeded bugs caught as expected; medians: {seconds:.2f} s, {operations:g} operations."


def main(arguments: Iterable[str] | None = None) -> int:
    """Hunt them all and print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description="How soon the suite catches each seeded bug.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to hunt each bug at most (default: 20)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"which programs to hunt with (default: {SEED})")
    parser.add_argument("--only", default="", metavar="TEXT", help="only bugs with TEXT in their name")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    bugs: list[SeededBug] = [bug for name, bug in BUGS.items() if asked.only in name]
    if not bugs:
        print(f"No seeded bug has {asked.only!r} in its name.", file=sys.stderr)
        return 2
    progress = Console(stderr=True)
    catches = []
    for number, bug in enumerate(bugs, 1):
        if progress.is_terminal:
            progress.print(f"{number}/{len(bugs)} {bug.name}", style="dim")
        catches.append(hunt(bug, seconds=asked.seconds, seed=asked.seed))
    if asked.markdown:
        show_markdown(catches)
    else:
        show(Console(), catches)
    return 0 if all(caught.as_expected for caught in catches) else 1


if __name__ == "__main__":
    sys.exit(main())
