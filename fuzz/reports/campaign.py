"""A campaign while it runs, as a live table, and what is said of it at the end besides the report of every check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.campaigns.causes import Cause
from kvproof.fuzz.campaigns.conductor import Progress
from kvproof.fuzz.campaigns.outcome import Situations
from kvproof.fuzz.campaigns.prune import Pruned
from kvproof.fuzz.reports import terminal, wording
from kvproof.models.laws import BY_NAME

MOST_FINDINGS: Final = 8
"""Causes of failures in the live table; the report shows all."""

MOST_INCIDENTS: Final = 5

LEGEND: Final = "time of the run, workers (that caught the canary), programs, programs/s, situations reached, laws exercised, corpus, causes of failures"


def duration(seconds: float) -> str:
    """`1:02:03`, as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def line(progress: Progress) -> str:
    """The campaign in one line, for a log. LEGEND says what the columns are."""
    laws = sum(1 for law, times in progress.totals.exercised.items() if times and law in BY_NAME)
    return "  ".join(
        (
            duration(progress.seconds),
            f"{progress.workers} ({progress.caught})",
            f"{progress.totals.programs:,}",
            f"{_rate(progress):,.0f}/s",
            f"{len(progress.totals.situations)}",
            f"{laws}",
            f"{progress.corpus}",
            f"{len(progress.causes)}",
        )
    )


def live_table(progress: Progress, possible: int) -> RenderableType:
    """The campaign as it stands. `possible`: how many situations the target might reach."""
    totals, plan = progress.totals, progress.plan
    laws = sum(1 for law, times in totals.exercised.items() if times and law in BY_NAME)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    rows = (
        ("time", f"{duration(progress.seconds)} of {duration(plan.seconds)}"),
        ("workers", f"{progress.workers}, {progress.caught} caught the canary"),
        ("programs", f"{totals.programs:,}, {_rate(progress):,.0f}/s now, {totals.operations:,} operations"),
        ("situations", f"{len(totals.situations):,} of {possible:,} reached" if possible else "not watched for kernels"),
        ("laws", f"{laws} exercised"),
        ("corpus", wording.counted(progress.corpus, "program")),
        ("lost workers", str(len(progress.incidents))),
        ("failures", _failures(progress.causes)),
    )
    for what, value in rows:
        table.add_row(Text(what, style="bold"), Text(value, style="bold red" if what == "failures" and progress.causes else ""))
    found = [Text(f"  {_short(cause.name)}", style="red") for cause in progress.causes[:MOST_FINDINGS]]
    return Group(table, *found)


def _failures(causes: Sequence[Cause]) -> str:
    shapes = sum(len(cause.members) for cause in causes)
    return f"{wording.counted(len(causes), 'cause')}, {wording.counted(shapes, 'shape')}" if causes else "0"


def _rate(progress: Progress) -> float:
    return progress.programs_here / progress.seconds if progress.seconds else 0.0


def _short(key: str) -> str:
    return key if len(key) <= 110 else f"{key[:107]}..."


def show_end(console: Console, progress: Progress, situations: Situations | None, *, whole: bool = False) -> None:
    """What was done, what was lost on the way, and how far the situations were reached."""
    totals = progress.totals
    speed = f"{_rate(progress):,.0f} programs/s" if progress.programs_here else "no program in this run"
    terminal.say(
        console,
        f"The campaign has run {wording.counted(totals.programs, 'program')} in {wording.counted(totals.batches, 'order')}, "
        f"{progress.programs_here:,} of them in this run of {duration(progress.seconds)} ({speed}); the canary was caught {_times(progress.caught)}.",
    )
    for incident in progress.incidents[:MOST_INCIDENTS]:
        terminal.say(console, f"{incident}.", "yellow")
    if len(progress.incidents) > MOST_INCIDENTS:
        terminal.say(console, f"{len(progress.incidents) - MOST_INCIDENTS} more workers were lost.", "yellow")
    if situations is not None:
        show_situations(console, situations, whole=whole)
    console.print()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def show_situations(console: Console, situations: Situations, *, whole: bool = False) -> None:
    """How many situations were reached, and which never: events that never happened in one line, the rest by event if `whole`."""
    every = len(situations.reached) + len(situations.never)
    terminal.say(console, f"{len(situations.reached)} of {every} situations were reached.")
    happened = {_event(one) for one in situations.reached}
    silent = sorted({_event(one) for one in situations.never} - happened)
    if silent:
        terminal.say(console, f"Never happened: {wording.joined(silent)}.")
    if not whole:
        return
    for event, members in groupby((one for one in situations.never if _event(one) in happened), key=_event):
        circumstances: Sequence[str] = [one.partition(" / ")[2] for one in members]
        terminal.say(console, f"{wording.sentence(event)[:-1]}, never {wording.joined(circumstances, 'or')}.")


def _event(situation: str) -> str:
    return situation.partition(" / ")[0]


def show_pruned(console: Console, pruned: Pruned) -> None:
    """What pruning left."""
    terminal.say(
        console,
        f"{pruned.programs} of {wording.counted(pruned.programs_before, 'program')} of the corpus reach all that they all reached, and "
        f"{pruned.findings} of {wording.counted(pruned.findings_before, 'failure')} still fail; the rest was taken out.",
    )
