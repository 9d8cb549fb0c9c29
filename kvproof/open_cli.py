"""`kvproof open FILE`: the picture of a failure, a trace or a report, in a browser, as a file, or as text.

    kvproof open FILE                     serve the page on this machine and open it; Ctrl-C ends it
    kvproof open FILE --html page.html    write the page, one file that needs nothing else
    kvproof open FILE --text              the same as columns of text
    kvproof open FILE --compare OTHER     two runs beside each other

Other commands write the same page with `--html`.
"""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from kvproof.console import Output, Unusable, bar, unseen
from kvproof.files import keep_input, load, report_in
from kvproof.fuzz.programs import Program, local, portable_program, write_output
from kvproof.fuzz.reports import terminal
from kvproof.fuzz.reports.picture.align import align
from kvproof.fuzz.reports.picture.document import Document, Picture
from kvproof.fuzz.reports.picture.events import event_document
from kvproof.fuzz.reports.picture.html import html
from kvproof.fuzz.reports.picture.sources import film_program, film_report
from kvproof.fuzz.reports.picture.text import show_picture
from kvproof.fuzz.reports.picture.traces import trace_document
from kvproof.fuzz.traces.header import is_trace
from kvproof.fuzz.traces.kv_events import is_event_stream
from kvproof.fuzz.verdicts import EXIT_STATUS
from kvproof.options import FILE
from kvproof.properties.lockstep import OP_SECONDS
from kvproof.targets import find_target

HOST: Final = "127.0.0.1"
"""Pages are served to this machine alone: a trace may hold what users wrote."""

LEAST_WORTH_A_BAR: Final = 1_000
"""Operations, or bytes of a trace, that are drawn before a bar could be seen."""


@click.command("open")
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@click.option(
    "--compare", "other", type=FILE, help="A second file, to be laid beside the first; the same file with --compare-target works too."
)
@click.option("--compare-target", help="The target that the second file runs on, if it is not the one named in it.")
@click.option("--html", "html_file", type=FILE, help="Write the page to a file and do not serve it.")
@click.option("--text", is_flag=True, help="Print the picture as columns of text.")
@click.option("--step", type=click.IntRange(min=0), help="With --text: the step to show. [default: the one that breaks the law]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to serve. [default: any free port]")
@click.option("--no-browser", is_flag=True, help="Serve, and leave it to you to open the page.")
def open_picture(
    file: Path,
    target: str | None,
    other: Path | None,
    compare_target: str | None,
    html_file: Path | None,
    *,
    text: bool,
    step: int | None,
    port: int,
    no_browser: bool,
) -> int:
    """Open the picture of FILE: a failure file, a program, a trace, a stream of KV events, or a report of `check --json`. With a
    TARGET, what FILE did is run again on it; a trace without one is shown as it was recorded.
    """
    for read in (file, other or file):
        keep_input(read, html_file)
    document = picture_file(file, target)
    if other is not None or compare_target is not None:
        document = _compared(document, picture_file(other or file, compare_target))
    if text:
        _show_text(document, step)
    if html_file is not None:
        write_page(html_file, document)
    if not text and html_file is None:
        _serve(document, port, browser=not no_browser)
    return EXIT_STATUS[document.verdict]


def picture_file(file: Path, target: str | None) -> Document:
    """The document of whatever `file` is. Raises what reading it raises, a sentence for the user."""
    if target is None and is_trace(file):
        with _bar(file.name, file.stat().st_size) as move:
            return trace_document(file, on_progress=lambda read: move(completed=read))
    if target is None and is_event_stream(file):
        return event_document(file)
    report = report_in(file)
    if report is not None and target is None:
        return film_report(report, find_target(report.target))
    program, adapter, _ = load(file, target)
    return Document(local(program.target), [_film(program, adapter, file.name)])


def picture_of_program(program: Program, adapter: type, name: str) -> Document:
    """The document of one program that was run or shrunk just now."""
    return Document(local(program.target), [_film(program, adapter, name)])


def write_page(path: Path, document: Document) -> None:
    """Write the page, whole or not at all. Raises BadFile."""
    write_output(path, "--html", html(document))
    click.echo(f"Wrote {path}: open it in any browser; it needs no network.", err=True)


def _film(program: Program, adapter: type, name: str) -> Picture:
    program = portable_program(program)  # its source is going to be copied out of the page
    with _bar(name, len(program.ops)) as move:
        return film_program(program, adapter, name=name, op_seconds=OP_SECONDS, on_progress=lambda done: move(completed=done))


def _compared(one: Document, other: Document) -> Document:
    """Both runs on one page; of a report, the first run counts."""
    if not one.pictures or not other.pictures:
        raise Unusable("There is no run to compare: one of the two is a report without a program.")
    a, b = one.pictures[0], other.pictures[0]
    title = f"{a.name} on {a.target} and on {b.target}" if a.name == b.name else f"{a.name} and {b.name}"
    return Document(title, [a, b], pairs=align(a.texts, b.texts))


def _show_text(document: Document, step: int | None) -> None:
    console = Output()
    if step is not None:
        _check_step(document, step)
    if not document.pictures and not document.cases:
        terminal.say(console, f"No law is broken, so there is no run to draw. {document.title}: {document.summary}")
        if document.laws:
            terminal.show_verdicts(console, document.laws, {})
    for picture in document.pictures:
        if len(document.pictures) > 1:
            console.rule(f"{picture.name} on {picture.target}")
        show_picture(console, picture, step=step)
    for case in document.cases:
        terminal.show_case(console, terminal.CaseExhibit(case.law, case.reason, case.case, case.source))


def _check_step(document: Document, step: int) -> None:
    """Raise Unusable where no run has this step."""
    known = [number for picture in document.pictures for number in picture.numbers if number is not None]
    if step not in known:
        has = f"its steps are {min(known)} to {max(known)}" if known else "no operation ran"
        raise Unusable(f"{document.title} has no step {step} to show: {has}.")


def _bar(name: str, total: int) -> contextlib.AbstractContextManager[Callable[..., None]]:
    """A bar over operations or bytes; nothing where it would only flash."""
    if total < LEAST_WORTH_A_BAR:
        return contextlib.nullcontext(unseen)
    return bar(f"drawing {name}", total, BarColumn(bar_width=None), TaskProgressColumn(), TimeRemainingColumn())


# -- serving -------------------------------------------------------------------------------------------------------------------------------


def _serve(document: Document, port: int, *, browser: bool) -> None:
    """Serve the page until it is interrupted."""
    try:
        server = ThreadingHTTPServer((HOST, port), handler_of(html(document)))
    except OSError as error:
        raise Unusable(f"Port {port} cannot be used ({error.strerror}); leave --port out, and a free one is taken.") from error
    url = f"http://{HOST}:{server.server_port}/"
    click.echo(f"The picture is at {url} until you press Ctrl-C.")
    if browser and not webbrowser.open(url):
        click.echo("No browser could be started here; open that address yourself, or write a file with --html.", err=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def handler_of(page: bytes) -> type[BaseHTTPRequestHandler]:
    """Answers with `page` at `/`, and to nobody who asks for another host: a page elsewhere must not read it through a name of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in (HOST, "localhost"):
                self.send_error(403, "Only this machine may ask")
            elif self.path != "/":
                self.send_error(404, "There is one page, at /")
            else:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, template: str, *values: object) -> None:
            """Nothing: a reader wants to see the address, not the requests."""

    return Handler
