"""The commands that run the program of a failure again.

kvproof replay FILE     step by step
kvproof shrink FILE     as often as it takes to make it shorter
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, TimeElapsedColumn

from kvproof.console import Output, Unusable, all_written, bar, complain, wrote
from kvproof.files import keep_input, load
from kvproof.fuzz.kernel_failures import read_failure
from kvproof.fuzz.programs import Program, local, write_output, write_program, writing
from kvproof.fuzz.reports import terminal, wording
from kvproof.fuzz.reports.source import pytest_source
from kvproof.fuzz.reports.steps import Replay
from kvproof.fuzz.reports.steps import replay as run_again
from kvproof.fuzz.verdicts import AT_FAULT, BROKEN, HELD
from kvproof.kernel_replay import replay_case
from kvproof.open_cli import picture_of_program, write_page
from kvproof.options import FILE, HTML, OP_SECONDS, SECONDS, default_workers


@click.command()
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@OP_SECONDS
@HTML
def replay(file: Path, target: str | None, op_seconds: float, html_file: Path | None) -> int:
    """Run the program in FILE again, step by step. TARGET is the one named in the file, if it is not given.

    FILE is a failure file, or a report of `check --json`: then the program of its first violation is run. Where it is about kernels, its
    case is judged again.
    """
    keep_input(file, html_file)
    failure = read_failure(file)
    if failure is not None and html_file is not None:
        raise Unusable(f"{file} holds a case of kernels, and pictures are of caches; leave out --html.")
    if failure is not None:
        return replay_case(Output(), file, failure, target)
    program, adapter, title = load(file, target)
    _has_something(file, program)
    again = run_again(program, adapter, op_seconds=op_seconds)
    console = Output()
    terminal.show_program(console, again, program, title=title)
    verdict = _tell_replay(console, program, again)
    return all_written(verdict, html_file is None or wrote(lambda: write_page(html_file, picture_of_program(program, adapter, file.name))))


def _has_something(file: Path, program: Program) -> None:
    """Raise Unusable where there is nothing to run: a program without operations breaks no law. A fault may show where the cache is built."""
    if not program.ops and not program.fault:
        raise Unusable(f"{file} holds a program without operations, so running it says nothing of {local(program.target)}; give it some.")


def _tell_replay(console: Console, program: Program, again: Replay) -> int:
    """Say how the replay compares with what the file records, and give the exit status."""
    recorded = program.violation.law if program.violation else ""
    target = local(program.target)
    if not again.ok and again.violation is None:
        complain(again.trouble)
        terminal.say(console, f"{target} could not be judged" + (f", so {recorded} was not seen again." if recorded else "."), "bold red")
        return AT_FAULT
    if again.violation is None:
        if recorded:
            told = f"No law breaks: the violation of {recorded} is gone on {target}."
        else:
            told = f"No law breaks: the fault that the file records is gone on {target}." if program.fault else "No law breaks."
        terminal.say(console, told, "bold green")
        return HELD
    seen = again.violation
    verb = "breaks again" if seen.law == recorded else "breaks"
    instead = f", where the file records {recorded}" if recorded and seen.law != recorded else ""
    terminal.say(console, f"{seen.law} {verb} at step {seen.step}{instead}: {wording.sentence(seen.reason)}", "bold red")
    return BROKEN


@click.command()
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@click.option("--seconds", type=SECONDS, default=30.0, show_default=True, help="How long to try.")
@click.option("-n", "--workers", type=click.IntRange(1, 1024), help="Processes to shrink with. [default: the cores of this machine]")
@click.option("-o", "--output", type=FILE, help="Where the shorter program goes. [default: FILE with .shrunk.json]")
@click.option("--test", "test_file", type=FILE, help="Where the pytest file goes. [default: beside the output, ending in _test.py]")
@HTML
def shrink(
    file: Path, target: str | None, seconds: float, workers: int | None, output: Path | None, test_file: Path | None, html_file: Path | None
) -> int:
    """Make the program in FILE shorter while it breaks the same law; write it as a failure file and as a pytest file."""
    if read_failure(file) is not None:
        raise Unusable(
            f"{file} holds a case of kernels, which `kvproof check` has made as small as it can; judge it with `kvproof replay {file}`."
        )
    from kvproof.fuzz import shrink as shrinking

    keep_input(file, output, test_file, html_file)
    program, adapter, _ = load(file, target)
    _has_something(file, program)
    console = Output()
    known = program.violation if len(program.ops) > shrinking.LONG_OPERATIONS else None  # each run of a long program counts
    violation = known or shrinking.first_violation(program, adapter) or program.violation
    steady = shrinking.steadiness(program, adapter, violation.law) if violation else None
    if violation is None or steady is None or not steady.failures:
        return _tell_replay(console, program, run_again(program, adapter))
    if steady.flaky:
        told = f"This failure is flaky: the program breaks {violation.law} in {steady.failures} of {steady.runs} runs, so the cache depends on more than its operations."
        terminal.say(console, told, "bold yellow")
    program = msgspec.structs.replace(program, violation=violation, fault="")
    with bar(f"shrinking {file}", seconds, BarColumn(), TimeElapsedColumn(), forks=True) as move:
        short = shrinking.shrink_in_parallel(
            program,
            adapter,
            seconds=seconds,
            workers=workers or default_workers(),
            tries=steady.tries,
            on_tick=lambda elapsed: move(completed=min(elapsed, seconds)),
        )
    stem = file.name.removesuffix(".json").removesuffix(".jsonl").removesuffix(".shrunk")
    place = output or file.with_name(f"{stem}.shrunk.json")
    test_place = test_file or place.with_name(f"{stem.replace('.', '_')}_shrunk_test.py")
    source = pytest_source(short, adapter)
    again = run_again(short, adapter)
    before = wording.counted(len(program.ops), "operation")
    terminal.show_program(console, again, short, title=f"{file} had {before}; the shortest program found", whole=place, cut=True)
    terminal.show_source(console, source, short)
    written = [wrote(lambda: _keep_short(place, short)), wrote(lambda: write_output(test_place, "--test", source.encode()))]
    terminal.show_way_back(console, terminal.Exhibit(short, again, source, path=place if written[0] else None))
    if written[1]:
        terminal.say(console, f"The test is in {test_place}.")
    if any(written):
        console.print()
    written += [html_file is None or wrote(lambda: write_page(html_file, picture_of_program(short, adapter, place.name)))]
    return all_written(BROKEN if steady.flaky else _tell_replay(console, short, again), *written)


def _keep_short(place: Path, program: Program) -> None:
    with writing(place, "--output"):
        write_program(place, program)
