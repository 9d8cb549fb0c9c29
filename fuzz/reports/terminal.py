"""What a reader sees: the table of laws, what was tried, and each broken law with its reason, its program as a test, and its steps.

Everything can be read without colour. Where there is no room for a table, or no terminal, laws are plain lines that begin with `- `.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.programs import VARIANTS, Program, local
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.step_table import steps_table
from kvproof.fuzz.reports.steps import Replay
from kvproof.fuzz.verdicts import LawVerdict, Report, Verdict, by_law
from kvproof.fuzz.waivers import Waiver
from kvproof.models.laws import BY_NAME, Law
from kvproof.properties.lockstep import ONLY_ONCE

NARROW_COLUMNS: Final = 64
"""Below this, a table of laws with its needs beside them would fold on every line."""

MOST_NAMED: Final = 3
"""How many of the further failure files of one law are named."""

WORDS: Final[dict[Verdict, tuple[str, str]]] = {
    "held": ("held", "green"),
    "broken": ("BROKEN", "bold red"),
    "not-exercised": ("not exercised", "yellow"),
    "not-applicable": ("not applicable", "dim"),
    "waived": ("waived", "magenta"),
}
"""How each verdict is written, and its style."""

_CAPABILITIES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("prefix", ("match",), "hit-is-true-prefix"),
    ("fork", ("fork",), "fork-shares-then-diverges"),
    ("truncate", ("truncate",), "truncate-exact"),
    ("drafts", ("commit",), "rejection-forgets"),
    ("steps", ("beginstep", "endstep"), "fenced-reuse"),
    ("evict", ("evict",), "evict-only-unheld"),
    ("reset", ("reset",), "reset-forgets"),
    ("swap", ("swapout", "swapin"), "swap-round-trip"),
)
"""(capability, its operations, a law that is only exercised where they are not refused)."""


class Exhibit(msgspec.Struct, frozen=True):
    """A program as it is shown: what it breaks, its steps, the same as a test, and the failure file that was written for it."""

    program: Program
    replay: Replay
    source: str
    law: str = ""
    reason: str = ""
    path: Path | None = None


class CaseExhibit(msgspec.Struct, frozen=True):
    """A case of kernels as it is shown: what it breaks, the expression that builds it, and the same as a test."""

    law: str
    reason: str
    case: str
    source: str
    target: str = ""
    path: Path | None = None


def say(console: Console, text: str = "", style: str = "") -> None:
    """One paragraph: folded at words on a terminal, one line elsewhere, so that logs can be searched."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def verbatim(console: Console, text: str, style: str = "") -> None:
    """Text that is going to be copied: never folded."""
    console.print(Text(text, style=style), soft_wrap=True)


def is_narrow(console: Console) -> bool:
    """Whether there is no room for a table of laws, or nobody to look at it."""
    return console.width < NARROW_COLUMNS or not console.is_terminal


def show_report(
    console: Console,
    report: Report,
    exhibits: Sequence[Exhibit | CaseExhibit],
    *,
    waivers: Mapping[str, Waiver],
    stale: Mapping[str, str],
    error: Exhibit | None = None,
) -> None:
    """The whole answer of a check, the verdict last. `waivers`: law -> waiver; `stale`: law -> complaint; `error`: what shows a fault.

    Where the target could not be judged, there are no laws to show.
    """
    if report.laws and report.verdict != "error":
        show_verdicts(console, report.laws, report.notes)
        console.print()
        say(console, tried(report))
        for line in refusals(report):
            say(console, line)
        console.print()
    for law, shown in by_law(exhibits).items():
        _show_law(console, shown, waivers.get(law), sum(variant.law == law for variant in report.variants))
        console.print()
    if error is not None:
        _show_fault(console, error)
        show_way_back(console, error)
        console.print()
    for complaint in stale.values():
        say(console, complaint, "bold red")
    say(console, *verdict_line(report, stale=bool(stale)))


def _show_law(console: Console, exhibits: Sequence[Exhibit | CaseExhibit], waiver: Waiver | None, variants: int) -> None:
    """A broken law by the first of its exhibits, where the others are, and how many variants of them were left out."""
    first = exhibits[0]
    if waiver is not None:
        say(console, f"{first.law} is broken and waived: {waiver.reason} ({waiver.reference})", "magenta")
        if isinstance(first, Exhibit):
            show_way_back(console, first)
    elif isinstance(first, CaseExhibit):
        show_case(console, first)
    else:
        show_exhibit(console, first)
    kept = [exhibit.path for exhibit in exhibits[1:] if exhibit.path is not None]
    if kept:
        program = "case" if isinstance(first, CaseExhibit) else "program"
        verb = "breaks" if len(kept) == 1 else "break"
        say(console, f"{wording.counted(len(kept), f'more {program}')} that {verb} it {_kept_in(kept)}.")
    if variants and first.path is not None:
        verb = "is" if variants == 1 else "are"
        say(console, f"{wording.counted(variants, 'variant')} of {'these' if kept else 'it'} {verb} in {first.path.parent / VARIANTS}.")


def _kept_in(paths: Sequence[Path]) -> str:
    """`is in FILE`, or `are in DIRECTORY: FILE, FILE and 3 more`; long lists are for the file manager."""
    if len(paths) == 1:
        return f"is in {paths[0]}"
    names = [path.name for path in paths[:MOST_NAMED]]
    names += [f"{len(paths) - MOST_NAMED:,} more"] if len(paths) > MOST_NAMED else []
    return f"are in {paths[0].parent}: {wording.joined(names)}"


# -- the table of laws ---------------------------------------------------------------------------------------------------------------------


def show_verdicts(console: Console, laws: Mapping[str, LawVerdict], notes: Mapping[str, str]) -> None:
    """One line for each law, by section. `notes`: law -> what is to be said of it."""
    known = [BY_NAME[name] if name in BY_NAME else Law(name, "Without a law", "") for name in laws]
    if is_narrow(console):
        _list_verdicts(console, known, laws, notes)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("law", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("exercised", justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for section, members in groupby(known, key=lambda law: law.section):
        table.add_row(Text(section, style="bold underline"))
        for law in members:
            verdict = laws[law.name]
            word, style = WORDS[verdict.verdict]
            times = f"{verdict.exercised:,}" if verdict.exercised else ""
            table.add_row(Text(f"  {law.name}"), Text(word, style=style), times, Text(_remark(law, verdict, notes)))
    console.print(table)


def _list_verdicts(console: Console, known: Sequence[Law], laws: Mapping[str, LawVerdict], notes: Mapping[str, str]) -> None:
    for section, members in groupby(known, key=lambda law: law.section):
        say(console, section)
        for law in members:
            verdict = laws[law.name]
            details = [f"exercised {wording.counted(verdict.exercised, 'time')}"] if verdict.exercised else []
            details += [remark] if (remark := _remark(law, verdict, notes)) else []
            say(console, f"- {law.name}: {WORDS[verdict.verdict][0]}" + (f" ({', '.join(details)})" if details else ""))


def _remark(law: Law, verdict: LawVerdict, notes: Mapping[str, str]) -> str:
    return notes.get(law.name) or _needed(law, verdict)


def _needed(law: Law, verdict: LawVerdict) -> str:
    return f"needs {wording.needs(law)}" if verdict.verdict == "not-applicable" and law.needs else ""


# -- what was tried ------------------------------------------------------------------------------------------------------------------------


def tried(report: Report) -> str:
    """How much was tried, and how to try it again."""
    program, operation = ("case", "launch") if _of_kernels(report) else ("program", "operation")
    programs, operations = wording.counted(report.programs, program), wording.counted(report.operations, operation)
    return f"{report.target} was tried with {programs} ({operations}) in {report.seconds:.1f} s; the seed is {report.seed}."


def _of_kernels(report: Report) -> bool:
    return any(name in BY_NAME and BY_NAME[name].judges_kernels for name in report.laws)


def refusals(report: Report) -> list[str]:
    """What the target refused, and which claimed capabilities were not put to the test for it."""
    refused = {name: count for name, count in report.refusals.items() if count}
    if not refused:
        return []
    told = wording.joined([f"{wording.spoken(name)} {wording.counted(count, 'time')}" for name, count in sorted(refused.items())])
    lines = [f"It refused {told}."]
    untested = untested_claims(report)
    if untested:
        claims, laws = zip(*untested, strict=True)
        lines.append(f"It claims {wording.joined(claims)}, but nothing that it did not refuse put {wording.joined(laws)} to the test.")
    return lines


def untested_claims(report: Report) -> list[tuple[str, str]]:
    """(claimed capability, law): some of its operations were refused, and no other exercised the law, so it may be that all that matter were."""
    return [
        (capability, law)
        for capability, operations, law in _CAPABILITIES
        if any(report.refusals.get(name) for name in operations) and report.laws.get(law, LawVerdict("held", 1)).verdict == "not-exercised"
    ]


def verdict_line(report: Report, *, stale: bool = False) -> tuple[str, str]:
    """(the last sentence of a report, its style)."""
    by_verdict: dict[Verdict, list[str]] = {}
    for name, law in report.laws.items():
        by_verdict.setdefault(law.verdict, []).append(name)
    if report.verdict == "error":
        return f"{report.target} could not be judged.", "bold red"
    broken = by_verdict.get("broken", [])
    if broken:
        return f"{report.target} breaks {_laws(len(broken))}: {wording.joined(broken)}.", "bold red"
    held = f"{report.target} keeps {_laws(len(by_verdict.get('held', [])))}"
    waived = by_verdict.get("waived", [])
    if waived:
        held += f"; {_laws(len(waived))} {'is' if len(waived) == 1 else 'are'} broken and waived ({', '.join(waived)})"
    idle = by_verdict.get("not-exercised", [])
    if idle:
        held += f"; {_laws(len(idle))} {'was' if len(idle) == 1 else 'were'} not exercised"
    return (f"{held}, but a waiver is stale.", "bold red") if stale else (f"{held}.", "bold green")


def _laws(count: int) -> str:
    return wording.counted(count, "law")


# -- one broken law ------------------------------------------------------------------------------------------------------------------------


def show_exhibit(console: Console, exhibit: Exhibit) -> None:
    """A broken law: its sentence, the reason, the steps, the program as a test, and how to see it again."""
    _show_accusation(console, exhibit.law, exhibit.reason)
    show_program(console, exhibit.replay, exhibit.program, title="The shortest program found", whole=exhibit.path, cut=True)
    if exhibit.replay.violation is None:
        say(console, "It broke no law when it was run once more for this table, so the target does not always do the same.", "yellow")
    show_source(console, exhibit.source, exhibit.program)
    show_way_back(console, exhibit)


def show_case(console: Console, exhibit: CaseExhibit) -> None:
    """A broken law of kernels: its sentence, the reason, the smallest case, and the case as a test."""
    _show_accusation(console, exhibit.law, exhibit.reason)
    say(console, "The smallest case that shows it:")
    console.print()
    verbatim(console, f"    {exhibit.case}", "bold")
    console.print()
    say(console, "The same as a test, to be pasted into a file:")
    console.print()
    verbatim(console, exhibit.source.rstrip("\n"), "cyan")
    if exhibit.path is not None:
        console.print()
        say(console, f"It is kept in a failure file; this judges it again on {local(exhibit.target)}:")
        verbatim(console, f"    kvproof replay {shlex.quote(str(exhibit.path))}", "bold")


def _show_accusation(console: Console, law: str, reason: str) -> None:
    console.print(Text(f"{law} is broken", style="bold red"))
    if law in BY_NAME:
        _indented(console, f"The law: {BY_NAME[law].sentence}")
    _indented(console, f"The reason: {wording.sentence(reason)}")
    console.print()


def show_program(console: Console, replay: Replay, program: Program, *, title: str, whole: Path | None = None, cut: bool = False) -> None:
    """The step table under a title that tells its length and its pool. `cut`: show only the end of a long program, which is in the file `whole`."""
    title += " so far" if program.unfinished and cut else ""
    say(console, f"{title} has {wording.counted(len(program.ops), 'operation')}, on a pool of {_pool(program)}:")
    missing = wording.left_out(len(replay.rows)) if cut else 0
    if missing:
        where = f"; `kvproof replay {shlex.quote(str(whole))}` tells every step, and `kvproof open` draws them" if whole else ""
        say(console, f"The first {missing:,} rows are left out here{where}.")
    console.print()
    if replay.rows:
        steps_table(console, msgspec.structs.replace(replay, rows=replay.rows[missing:]))
    else:
        say(console, "No operation ran.")
    if replay.skipped:
        those = "1 operation was" if replay.skipped == 1 else f"{replay.skipped:,} operations were"
        say(console, f"{those} skipped, because the precondition did not hold: the rows without a step number.")
    console.print()


def _show_fault(console: Console, error: Exhibit) -> None:
    """The program that shows a fault of the adapter; where the cache cannot even be built, or it does not show it again, there is none to show."""
    if ONLY_ONCE in error.program.fault:
        return
    if error.program.ops:
        title = "The shortest program found for this fault"
        show_program(console, error.replay, error.program, title=title, whole=error.path, cut=True)
    else:
        say(console, f"It happens before any operation, where a cache is built with {_pool(error.program)}.")
        console.print()


def _pool(program: Program) -> str:
    return f"{wording.counted(program.config.num_blocks, 'block')} of {wording.counted(program.config.block_size, 'token')}"


def show_source(console: Console, source: str, program: Program) -> None:
    """The program as a test, to be pasted; nothing where it is too long for that."""
    if wording.left_out(len(program.ops)):
        return
    say(console, "The same program as a test, to be pasted into a file:")
    console.print()
    verbatim(console, source.rstrip("\n"), "cyan")
    console.print()


def show_way_back(console: Console, exhibit: Exhibit) -> None:
    """Where the failure file is, and what to type to see it again."""
    if exhibit.path is not None:
        say(console, f"It is kept in a failure file; this runs it again, step by step, on {local(exhibit.program.target)}:")
        verbatim(console, f"    kvproof replay {shlex.quote(str(exhibit.path))}", "bold")
        if exhibit.program.unfinished:
            say(console, "The time to shrink it ran out, so there may well be a shorter one; this goes on, and writes it as a test too:")
            verbatim(console, f"    kvproof shrink {shlex.quote(str(exhibit.path))}", "bold")


def _indented(console: Console, text: str) -> None:
    if console.is_terminal:
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    else:
        verbatim(console, f"  {text}")
