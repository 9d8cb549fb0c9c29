"""The commands about recorded traces.

kvproof audit trace.jsonl       which laws it breaks, where, and what it can tell of the others
kvproof stats trace.jsonl       numbers for an operator
kvproof export trace.jsonl      the same trace for Perfetto, or as ITF
kvproof record failure.json     run a program, and write the trace of it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

from kvproof.console import Output, Unusable, all_written, bar, wrote
from kvproof.files import keep_input
from kvproof.fuzz.programs import write_output, writing
from kvproof.fuzz.reports.wording import counted
from kvproof.fuzz.verdicts import BROKEN, HELD
from kvproof.open_cli import picture_file, write_page
from kvproof.options import FILE, HTML, OUTPUT

if TYPE_CHECKING:
    from kvproof.fuzz.audit import AuditReport


@click.command()
@click.argument("file", type=FILE)
@click.option("--tolerant", is_flag=True, help="Go on after missing, doubled and damaged lines, with what can still be judged.")
@click.option("--first", is_flag=True, help="End at the first broken law.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["auto", "trace", "vllm", "sglang"]),
    default="auto",
    show_default=True,
    help="A kvproof trace, or the KV events that an engine has published, as msgpack or JSON.",
)
@click.option("--json", "json_file", type=OUTPUT, help="Write the report as JSON; - is stdout.")
@click.option("--junit", "junit_file", type=FILE, help="Write the report as JUnit XML.")
@HTML
def audit(
    file: Path, kind: str, json_file: Path | None, junit_file: Path | None, html_file: Path | None, *, tolerant: bool, first: bool
) -> int:
    """Judge the trace in FILE: which laws it breaks, where each was broken first, and of every other law what the trace can tell.

    A recording in several parts is named by its first one. What may be a consequence of a broken law is not told as a fault of its own.
    """
    from kvproof.fuzz.reports.audit import audit_junit, show_audit
    from kvproof.fuzz.reports.figures import figures_line

    keep_input(file, json_file, junit_file, html_file)
    to_stdout = json_file == Path("-")
    console = Output(stderr=to_stdout)
    with _bar(file) as on_progress:
        report = _audited(file, kind, on_progress, tolerant=tolerant, first=first)
    show_audit(console, report)
    if report.figures is not None:
        figures_line(console, report.figures)
    return all_written(
        report.exit_status,
        json_file is None or wrote(lambda: _write_json(json_file, report)),
        junit_file is None or wrote(lambda: write_output(junit_file, "--junit", audit_junit(report))),
        html_file is None or wrote(lambda: write_page(html_file, picture_file(file, None))),
    )


def _audited(file: Path, kind: str, on_progress: Callable[[int, int], None], *, tolerant: bool, first: bool) -> AuditReport:
    from kvproof.fuzz import audit as auditing
    from kvproof.fuzz.traces.kv_events import audit_events, is_event_stream

    if kind in ("vllm", "sglang") or (kind == "auto" and is_event_stream(file)):
        return audit_events(file, tolerant=tolerant)
    return auditing.audit(file, tolerant=tolerant, first=first, on_progress=on_progress)


@click.command()
@click.argument("file", type=FILE)
@click.option("--tolerant", is_flag=True, help="Go on after missing, doubled and damaged lines.")
@click.option("--bytes-per-token", type=click.IntRange(min=1), help="Tell waste in bytes too.")
@click.option("--plot", type=FILE, help="Draw what is shown over time into this .svg, .png or .pdf.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the numbers as JSON; - is stdout.")
def stats(file: Path, bytes_per_token: int | None, plot: Path | None, json_file: Path | None, *, tolerant: bool) -> int:
    """Numbers for an operator from the trace in FILE: fill, waste, fragmentation, hits, evictions, preemptions, durations."""
    from kvproof.fuzz import audit as auditing
    from kvproof.fuzz.reports.figures import plot_figures, show_figures
    from kvproof.fuzz.reports.terminal import say

    keep_input(file, json_file, plot)
    to_stdout = json_file == Path("-")
    console = Output(stderr=to_stdout)
    with _bar(file) as on_progress:
        report = auditing.audit(file, tolerant=tolerant, on_progress=on_progress)
    figures = report.figures
    assert figures is not None
    show_figures(console, figures, bytes_per_token=bytes_per_token)
    for told in [*report.troubles, *report.notes]:
        say(console, told, "yellow")
    for breach in report.violations:
        say(
            console,
            f"{breach.law} breaks at operation {breach.operation}; `kvproof audit {file}` tells why.",
            "bold red",
        )
    return all_written(
        report.exit_status,
        plot is None or wrote(lambda: plot_figures(plot, figures, f"{report.target}, {report.trace}")),
        json_file is None or wrote(lambda: _write_json(json_file, figures)),
    )


@click.command()
@click.argument("file", type=FILE)
@click.option("--to", "kind", type=click.Choice(["perfetto", "itf"]), default="perfetto", show_default=True, help="The format to write.")
@click.option("-o", "--output", type=FILE, help="Where it goes. [default: FILE with .perfetto.json or .itf.json]")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first operation to export.")
@click.option("--count", type=click.IntRange(min=1), help="How many operations to export. [default: all; 10,000 for itf]")
def export(file: Path, kind: Literal["perfetto", "itf"], output: Path | None, first: int, count: int | None) -> int:
    """Write the trace in FILE for Perfetto (ui.perfetto.dev, chrome://tracing), or as ITF, the traces of TLA+ and Quint tools."""
    from kvproof.fuzz.traces.export import export_itf, export_perfetto

    place = output or file.with_name(f"{file.name.split('.')[0]}.{kind}.json")
    keep_input(file, place)
    write = export_perfetto if kind == "perfetto" else export_itf
    written = write(file, place, first=first, count=count)
    click.echo(f"Wrote {counted(written, 'operation')} to {place}.")
    return HELD


@click.command()
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@click.option("-o", "--output", type=FILE, help="Where the trace goes. [default: FILE with .jsonl]")
def record(file: Path, target: str | None, output: Path | None) -> int:
    """Run the program in FILE, and write what was seen of the cache as a trace. TARGET is the one named in the file, if it is not given."""
    from kvproof.fuzz.programs import portable, read_program
    from kvproof.fuzz.traces.header import is_trace
    from kvproof.fuzz.traces.program import write_run
    from kvproof.impl.checker import AdapterFault
    from kvproof.targets import find_target

    if is_trace(file):
        raise Unusable(f"{file} is a trace already; judge it with `kvproof audit {file}`.")
    program = read_program(file)
    name = program.target if target is None else portable(target)
    place = output or file.with_name(f"{file.name.removesuffix('.json')}.jsonl")
    keep_input(file, place)
    adapter = find_target(name)
    with writing(place, "--output"):
        result = write_run(msgspec.structs.replace(program, target=name), adapter, place)
    click.echo(f"Wrote {counted(len(result.trace or ()), 'operation')} to {place}.")
    if result.fault or result.hang:
        raise AdapterFault(result.fault or f"{result.hang}.")
    if result.violation is not None:
        click.echo(f"{result.violation.law} breaks at operation {result.violation.step}; `kvproof audit {place}` tells why.")
    return HELD if result.violation is None else BROKEN


@contextmanager
def _bar(file: Path) -> Iterator[Callable[[int, int], None]]:
    """A bar over the bytes of the trace."""
    size = file.stat().st_size if file.is_file() else 0
    with bar(f"auditing {file.name}", max(size, 1), BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn()) as move:
        yield lambda operations, read: move(completed=read, description=f"auditing {file.name}, operation {operations:,}")


def _write_json(place: Path, value: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if place == Path("-"):
        sys.stdout.write(text.decode())
    else:
        write_output(place, "--json", text)
