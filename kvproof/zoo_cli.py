"""The command `kvproof zoo`: released caches with known bugs, judged beside the releases that mended them.

kvproof zoo                     every case; fetches what it needs
kvproof zoo B16 B67             these
kvproof zoo --small             those whose wheels are small
kvproof zoo --markdown FILE     also write the page docs/zoo.md
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import BarColumn, TimeElapsedColumn
from rich.table import Table

from kvproof.console import Output, bar, wrote
from kvproof.fuzz.programs import write_output
from kvproof.fuzz.verdicts import AT_FAULT, BROKEN, HELD
from kvproof.fuzz.zoo.case import FOUND_HERE, Case, Outcome
from kvproof.fuzz.zoo.cases import CASES, UNREACHED
from kvproof.fuzz.zoo.keeper import SEARCH_SECONDS, judge_all
from kvproof.options import FILE

LOG_COLUMNS = 180
"""Width of the table where it goes to a file or a log."""

COLUMNS = ("bug", "what goes wrong", "law", "faulty", "fixed", "found by", "operations", "seconds")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--small", is_flag=True, help="Only cases whose wheels are small.")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=SEARCH_SECONDS, show_default=True, help="How long a faulty release is searched."
)
@click.option("--markdown", type=FILE, help="Write the page of the documentation.")
def zoo(names: tuple[str, ...], *, small: bool, seconds: float, markdown: Path | None) -> int:
    """Judge released caches with known bugs: the faulty release has to be caught by a fitting law, the fixed one has to pass the same run.

    NAMES are cases (B16, ...); without any, all are judged. Releases are fetched where they are not in the cache folder yet.
    """
    cases = _chosen(names, small=small)
    outcomes = []
    with bar("", len(cases), BarColumn(), TimeElapsedColumn()) as move:
        for outcome in judge_all(cases, seconds=seconds, tell=lambda what: move(description=what)):
            outcomes.append(outcome)
            move(advance=1)
    _show(outcomes)
    written = markdown is None or wrote(lambda: write_output(markdown, "--markdown", page(outcomes).encode()))
    if any(outcome.trouble and not outcome.unjudged for outcome in outcomes):
        return BROKEN
    return HELD if written and not any(outcome.unjudged for outcome in outcomes) else AT_FAULT


def _chosen(names: Sequence[str], *, small: bool) -> list[Case]:
    known = {case.name.lower(): case for case in CASES}
    asked = {name.lower(): name for name in names}
    unknown = [name for name in asked if name not in known]
    if unknown:
        why = next((f"{bug.name} is not driven: {bug.why}" for bug in UNREACHED if bug.name.lower() == unknown[0]), "")
        raise click.UsageError(why or f"There is no case {asked[unknown[0]]!r}; the cases are {', '.join(case.name for case in CASES)}.")
    return [case for name, case in known.items() if (not names or name in asked) and (case.small or not small)]


def _show(outcomes: Sequence[Outcome]) -> None:
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for outcome in outcomes:
        table.add_row(*_row(outcome))
    console = Output(log_columns=LOG_COLUMNS)
    console.print(table)
    for outcome in outcomes:
        if outcome.trouble:
            console.print(f"{outcome.case.name}: {outcome.trouble}", style="bold red")


def _row(outcome: Outcome) -> tuple[str, ...]:
    case, faulty = outcome.case, outcome.faulty
    how = "written program" if case.program else "random programs"
    fixed = case.fixed.rpartition("==")[2] or "none yet"
    if outcome.trouble:
        return case.name, case.what, "not judged" if outcome.unjudged else "FAILED", case.faulty, fixed, how, "", ""
    return case.name, case.what, faulty.law, case.faulty, fixed, how, str(len(faulty.ops)), f"{faulty.seconds:.1f}"


def page(outcomes: Sequence[Outcome]) -> str:
    """The page of the documentation."""
    caught = sum(not outcome.trouble for outcome in outcomes)
    generic = sum(not outcome.trouble and not outcome.case.program for outcome in outcomes)
    lines = [
        "# The zoo",
        "",
        "Releases of real caches with known bugs. Each faulty release breaks a law that fits; a release without the bug, where there is one, breaks none of these laws in the same run:",
        "the same random programs and the shortest program that broke the other one. `kvproof zoo` runs it all again; releases are fetched where they are not here yet.",
        "",
        f"{caught} of {len(outcomes)} cases did what they have to, {generic} of them from random programs that know nothing of the bug. Written by",
        f"`kvproof zoo --markdown docs/zoo.md` on Python {platform.python_version()}, one core; the seconds are those of the search and of shrinking.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    lines += [f"| {' | '.join(_linked(outcome))} |" for outcome in outcomes]
    lines += ["", "## Not driven", "", "| bug | why |", "|---|---|"]
    lines += [f"| {bug.name} | {bug.why} |" for bug in UNREACHED]
    return "\n".join(lines) + "\n"


def _linked(outcome: Outcome) -> tuple[str, ...]:
    name, *rest = _row(outcome)
    project, _, number = outcome.case.link.partition("#")
    if number:
        name = f"[{name}](https://github.com/{project}/issues/{number})"
    elif outcome.case.link == FOUND_HERE:
        name = f"[{name}](findings/older-releases.md)"
    return (name, *(cell.replace("|", "\\|") for cell in rest))
