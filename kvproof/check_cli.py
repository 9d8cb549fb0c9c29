"""`kvproof check TARGET`: judge a cache or kernels."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from kvproof.answer import Answer, known_broken
from kvproof.console import Output, Unusable, bar
from kvproof.engines import engine_words
from kvproof.fuzz import kernels_check
from kvproof.fuzz.reports import terminal, wording
from kvproof.fuzz.waivers import DEFAULT_FILE
from kvproof.options import FAILURE_FILES, FILE, HTML, OP_SECONDS, OUTPUT, SARIF, budget_seconds, default_workers
from kvproof.targets import BUILT_IN_WORDS, DEFAULT_TARGET, find_target


@click.command()
@click.argument("target", default=DEFAULT_TARGET)
@click.option(
    "--budget", metavar="quick|ci|nightly|SECONDS", callback=budget_seconds, default="ci", show_default=True, help="How long to search."
)
@click.option("--seed", type=click.IntRange(min=0), help="Draw the same programs again. [default: a new one]")
@click.option("-n", "--workers", type=click.IntRange(1, 1024), help="Processes to search with. [default: the cores of this machine]")
@click.option("--programs", type=click.IntRange(min=1), help="Stop after this many programs, so that a run can be repeated exactly.")
@OP_SECONDS
@click.option("--json", "json_file", type=OUTPUT, help="Write the report as JSON; - is stdout.")
@click.option("--junit", "junit_file", type=FILE, help="Write the report as JUnit XML.")
@SARIF
@HTML
@click.option("--waivers", "waivers_file", type=FILE, help=f"Known broken laws. [default: {DEFAULT_FILE}, if it exists]")
@FAILURE_FILES
def check(
    target: str,
    budget: float,
    seed: int | None,
    workers: int | None,
    programs: int | None,
    op_seconds: float,
    json_file: Path | None,
    junit_file: Path | None,
    sarif_file: Path | None,
    html_file: Path | None,
    waivers_file: Path | None,
    failures: Path,
) -> int:
    """Judge TARGET by every law that applies to it. Without a TARGET, production is judged: the cache that kvproof brings along.

    Kernels are judged in one process, by cases rather than programs: --workers and --programs are for caches. --op-seconds is CPU time then,
    and limits one call.
    """
    from kvproof.fuzz import check as checking

    waivers = known_broken(waivers_file, target)
    to_stdout = json_file == Path("-")
    workers = workers or default_workers()
    seed = secrets.randbelow(2**32) if seed is None else seed
    with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
        adapter = find_target(target)
        kernels = kernels_check.is_kernels(adapter)
        if kernels:
            _refuse(programs)
        asked = _asked(target, budget, programs, 1 if kernels else workers, seed)
        terminal.say(Output(stderr=to_stdout), asked, "bold")
        unit = "case" if kernels else "program"
        with _progress(target, unit) as on_progress:
            if kernels:
                report = kernels_check.check(
                    adapter,
                    name=target,
                    seconds=budget,
                    seed=seed,
                    call_seconds=op_seconds,
                    waived=frozenset(waivers),
                    on_progress=on_progress,
                )
            else:
                report = checking.check(
                    adapter,
                    name=target,
                    seconds=budget,
                    seed=seed,
                    workers=workers,
                    apart=True,
                    op_seconds=op_seconds,
                    programs=programs,
                    waived=frozenset(waivers),
                    on_progress=on_progress,
                )
    if report.verdict == "held" and not report.programs:
        raise Unusable(f"No {unit} ended within {budget:g} s, so nothing is known of {target}; give a larger --budget.")
    answer = Answer(report, adapter, waivers, failures, "--failures", op_seconds)
    answer.show(Output(stderr=to_stdout))
    answer.write(json_file, junit_file, sarif_file)
    answer.draw(html_file)
    return answer.status


def _refuse(programs: int | None) -> None:
    """Raise Unusable where kernels cannot be judged here, or not as asked."""
    if kernels_check.missing():
        raise Unusable(kernels_check.missing())
    if programs is not None:
        raise Unusable("The option --programs counts programs, and kernels are judged by cases; leave it out and give a --budget.")


def _asked(target: str, budget: float, programs: int | None, workers: int, seed: int) -> str:
    """What is going to be judged, and how: the first line of a check."""
    from kvproof.fuzz.check import BUDGETS

    what = BUILT_IN_WORDS.get(target, "a seeded bug" if target.startswith(("bug:", "kernel-bug:")) else engine_words(target))
    name = next((name for name, seconds in BUDGETS.items() if seconds == budget), "")
    parts = [what] if what else []
    parts += [f"budget {name} ({budget:g} s)" if name else f"budget {budget:g} s"]
    parts += [f"at most {wording.counted(programs, 'program')}"] if programs else []
    parts += [wording.counted(workers, "worker"), f"seed {seed}"]
    return f"kvproof check {target}: {', '.join(parts)}"


@contextlib.contextmanager
def _progress(target: str, unit: str) -> Iterator[Callable[[Any], None]]:
    columns = (BarColumn(bar_width=None), TextColumn("{task.fields[counts]}"), TimeElapsedColumn())
    with bar(f"checking {target}", 1.0, *columns, forks=True) as move:

        def on_progress(progress: Any) -> None:  # noqa: ANN401 -- kvproof.fuzz.check.Progress, which is imported only where it is needed
            laws = sum(1 for times in progress.exercised.values() if times)
            counts = f"{wording.counted(progress.programs, unit)}, {wording.counted(laws, 'law')} exercised"
            what = {"shrinking": "shrinking", "addresses": "proving addresses"}.get(progress.phase, f"checking {target}")
            move(description=what, completed=min(1.0, progress.seconds / progress.budget_seconds), counts=counts)

        yield on_progress
