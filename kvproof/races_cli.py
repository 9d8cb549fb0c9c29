"""`kvproof race TARGET`: threads against one cache, under every schedule that matters or under many random ones.

The schedules are run in a process of their own, because there the locks of the target must be the scheduler's before the target is imported. It is given scenarios
as JSON on its standard input and answers with one outcome a line; where threads never come to an end it is left behind, and another one goes on.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final, get_args

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn
from rich.table import Table

from kvproof.console import Output, bar
from kvproof.fuzz.races.drawn import random_scenario
from kvproof.fuzz.races.explore import Mode, Outcome
from kvproof.fuzz.races.scenarios import Scenario, catalogue
from kvproof.fuzz.races.story import met, story
from kvproof.fuzz.reports import terminal
from kvproof.fuzz.reports.wording import counted, joined
from kvproof.fuzz.verdicts import AT_FAULT, BROKEN, HELD
from kvproof.impl.checker import read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.options import BUDGET_TOO
from kvproof.targets import DEFAULT_TARGET, find_cache

GRACE_SECONDS: Final = 60.0
"""How long a process may stay silent beyond the time of its scenario before it is given up."""

LOG_SECONDS: Final = 5.0
"""How often a line is written where there is no terminal for a bar."""

CHILD: Final = "from kvproof.races_child import main; main()"

WORDS: Final[dict[str, str]] = {
    "held": "held",
    "race": "RACE",
    "stuck": "STUCK",
    "setup": "broken without threads",
    "fault": "adapter at fault",
    "inconclusive": "inconclusive",
}


class Work(msgspec.Struct, frozen=True):
    """What a process is to do."""

    target: str
    mode: Mode
    seconds: float
    """For all scenarios; what one leaves over goes to those after it."""
    seed: int
    scenarios: list[Scenario]


@click.command(short_help="Call a cache from several threads at once.")
@click.argument("target", default=DEFAULT_TARGET)
@click.option(
    "--mode",
    type=click.Choice(["both", *get_args(Mode)]),
    default="both",
    show_default=True,
    help="Search systematically (dpor), at random, both, or let real threads loose (stress).",
)
@click.option(
    "--seconds", type=click.FloatRange(min=1, max=86400), default=120.0, show_default=True, help="Time for all scenarios together."
)
@BUDGET_TOO
@click.option("--scenario", "names", multiple=True, metavar="NAME", help="Only this scenario; may be given several times.")
@click.option("--random", "drawn", type=click.IntRange(min=0, max=100_000), default=0, help="Also this many scenarios drawn at random.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For schedules and scenarios drawn at random.")
@click.option(
    "--any-order",
    is_flag=True,
    help="Also scenarios whose completions come in another order than the launches, which the contract does not ask for.",
)
def race(
    target: str, mode: str, seconds: float, budget: float | None, names: tuple[str, ...], drawn: int, seed: int, any_order: bool
) -> int:
    """Call TARGET from several threads at once: every history must be one that some order of its calls explains.

    A TARGET is named as for `kvproof check`. Ask it of caches that are meant for several threads: no law of the contract speaks of threads, so most caches need not be,
    and a race in one of them is no broken law. Exit status: 0 every history was explained, 1 one was not, 2 the request or the target is at fault.
    """
    adapter = find_cache(target)
    capabilities = read_capabilities(adapter)
    scenarios = _chosen(capabilities, names, drawn, seed, any_order=any_order)
    modes: list[Mode] = ["dpor", "random"] if mode == "both" else [mode]  # type: ignore[list-item]  # the choice is a Mode
    if "dpor" in modes and importlib.util.find_spec("frontrun") is None:
        raise click.UsageError(
            "The systematic search needs the package frontrun, which is not installed; run `pip install 'kvproof[concurrency]'`, or choose --mode random"
        )
    seconds = budget or seconds
    console = Output()
    asked = f"kvproof race {target}: {counted(len(scenarios), 'scenario')}, {joined(modes)}, at most {seconds:g} s, seed {seed}"
    terminal.say(console, asked, "bold")
    outcomes = _run(Work(target, "random", seconds, seed, scenarios), modes)
    _show(console, target, outcomes)
    statuses = {_status(outcome) for outcome in outcomes}
    return BROKEN if BROKEN in statuses else max(statuses)


def _chosen(capabilities: Capabilities, names: tuple[str, ...], drawn: int, seed: int, *, any_order: bool) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in catalogue(capabilities, any_order=any_order)}
    for name in names:
        if name not in known:
            raise click.UsageError(f"There is no scenario {name!r} for this target; there are {', '.join(known)}")
    built_in = [known[name] for name in names] if names else list(known.values())
    return built_in + [random_scenario(f"{seed}:{number}", capabilities) for number in range(drawn)]


def _run(work: Work, modes: list[Mode]) -> list[Outcome]:
    """All outcomes; each mode has its share of the time that is left. Where no bar is shown, a line now and then tells how far it has come."""
    outcomes: list[Outcome] = []
    total = len(work.scenarios) * len(modes)
    log, told = Output(stderr=True), time.monotonic()
    deadline = time.monotonic() + work.seconds
    with bar("scenarios", total, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as move:
        for number, mode in enumerate(modes):
            share = max(1.0, deadline - time.monotonic()) / (len(modes) - number)
            for outcome in outcomes_of(msgspec.structs.replace(work, mode=mode, seconds=share)):
                outcomes.append(outcome)
                move(advance=1)
                if not log.is_terminal and time.monotonic() - told > LOG_SECONDS:
                    told = time.monotonic()
                    log.print(
                        f"{len(outcomes)} of {counted(total, 'scenario')}: {outcome.scenario.name} ({outcome.mode}): {WORDS[outcome.kind]}",
                        soft_wrap=True,
                    )
    return outcomes


def outcomes_of(work: Work) -> Iterator[Outcome]:
    """The outcome of every scenario, in order. A process that dies or falls silent counts as stuck, and the next one goes on behind it.

    Where searches that could not go on used up the time, the scenarios that are left are not tried.
    """
    deadline = time.monotonic() + work.seconds
    left, seconds = list(work.scenarios), work.seconds
    while left:
        for outcome in _answers(msgspec.structs.replace(work, scenarios=list(left), seconds=seconds)):
            left.pop(0)
            seconds = max(0.1 * len(left), seconds - outcome.seconds)
            yield outcome
        if outcome.kind == "inconclusive" and time.monotonic() > deadline:
            yield from (Outcome(scenario, work.mode, "inconclusive", reason=_NO_TIME) for scenario in left)
            return


_NO_TIME: Final = "not tried: searches that could not go on used up the time"


def _answers(work: Work) -> Iterator[Outcome]:
    """What one process answers, and at its death one outcome for the scenario that it was at."""
    environment = {**os.environ, "FRONTRUN_ACTIVE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CHILD]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603 -- this interpreter
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(work))
    child.stdin.close()
    os.set_blocking(child.stdout.fileno(), False)
    decoder = msgspec.json.Decoder(Outcome)
    answered = 0
    try:
        for line in _lines(child, work.seconds + GRACE_SECONDS):
            answered += 1
            yield decoder.decode(line)
        if answered < len(work.scenarios) and child.wait() != _GAVE_UP:
            yield Outcome(
                work.scenarios[answered], work.mode, "stuck", reason=f"the process ended with status {child.returncode} or fell silent"
            )
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


_GAVE_UP: Final = 3
"""The exit status of a process that told of threads which it cannot end."""


def _lines(child: subprocess.Popen[bytes], patience_seconds: float) -> Iterator[bytes]:
    """The lines that a process writes, until it ends or is silent for too long."""
    assert child.stdout is not None
    pending = b""
    heard = time.monotonic()
    while time.monotonic() - heard < patience_seconds:
        ended = child.poll() is not None
        data = child.stdout.read() or b""
        if data:
            heard = time.monotonic()
            *whole, pending = (pending + data).split(b"\n")
            yield from whole
        elif ended:
            return
        else:
            time.sleep(0.02)
    child.kill()


def _status(outcome: Outcome) -> int:
    return {"held": HELD, "race": BROKEN, "stuck": BROKEN}.get(outcome.kind, AT_FAULT)


def _show(console: Console, target: str, outcomes: list[Outcome]) -> None:
    rows = [_row(outcome) for outcome in outcomes]
    if console.width < terminal.NARROW_COLUMNS:
        for scenario, mode, word, schedules, histories, seconds in rows:
            terminal.say(console, f"- {scenario} ({mode}): {word}; schedules {schedules}, histories {histories}, {seconds} s")
    else:
        console.print(_table(rows))
    for lines in _told(outcomes):
        console.print()
        for line in lines:
            console.print(line, soft_wrap=True)
    console.print()
    console.print(_summary(target, outcomes), soft_wrap=True)


def _row(outcome: Outcome) -> tuple[str, ...]:
    word = "exhausted" if outcome.kind == "held" and outcome.exhausted else WORDS[outcome.kind]
    return outcome.scenario.name, outcome.mode, word, str(outcome.schedules), str(outcome.histories), f"{outcome.seconds:.1f}"


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("scenario", "mode", "answer"):
        table.add_column(column, no_wrap=True)
    for column in ("schedules", "histories", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _told(outcomes: list[Outcome]) -> Iterator[list[str]]:
    """One history for each scenario that has one, and whatever else came of scenarios once for all of which the same is to be said."""
    shown: set[str] = set()
    others: dict[tuple[str, str, str], list[str]] = {}
    for outcome in outcomes:
        name = outcome.scenario.name
        if outcome.history is not None and outcome.verdict is not None:
            if name not in shown:
                shown.add(name)
                yield _history(outcome, story(outcome.history, outcome.verdict))
        elif outcome.kind != "held":
            others.setdefault((outcome.mode, outcome.kind, outcome.reason), []).append(name)
    for (mode, kind, reason), names in others.items():
        yield [f"{joined(names)} ({mode}): {WORDS[kind]}.", f"    {reason}"]


def _history(outcome: Outcome, lines: list[str]) -> list[str]:
    if outcome.mode == "dpor" and outcome.reason:
        return [*lines, "", "Where the threads met:", *(f"    {line}" for line in met(outcome.reason))]
    return lines


def _summary(target: str, outcomes: list[Outcome]) -> str:
    schedules = sum(outcome.schedules for outcome in outcomes)
    raced = [outcome for outcome in outcomes if outcome.kind in ("race", "stuck")]
    bad = raced or [outcome for outcome in outcomes if outcome.kind != "held"]
    names = joined(list(dict.fromkeys(outcome.scenario.name for outcome in bad)))
    by_end = sum(outcome.by_their_end for outcome in outcomes)
    seen = f" Histories that could be judged by their end alone: {by_end:,}." if by_end else ""
    if bad:
        no_law = " No law of the contract speaks of threads: this is the answer to what was asked, and no broken law." if raced else ""
        told = f"{target} is not safe for threads in {names}" if raced else f"{target} could not be judged in {names}"
        return f"{told}; {counted(schedules, 'schedule')} run.{seen}{no_law}"
    exhausted = sum(outcome.exhausted for outcome in outcomes)
    ended = f"{counted(exhausted, 'search')} came to {'its' if exhausted == 1 else 'their'} end"
    return f"{target} held: some order of the calls explains each history of {counted(schedules, 'schedule')}; {ended}.{seen}"
