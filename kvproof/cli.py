"""The command line. Every command ends with 0 if all laws held, 1 if one is broken, 2 if the request or the target is at fault.

    kvproof check mypkg.kv:Adapter          judge a cache
    kvproof check mypkg.attn:Kernels        judge paged kernels
    kvproof replay FILE                     run a failure again, step by step
    kvproof shrink FILE                     make a failure shorter
    kvproof open FILE                       see a failure, a trace or a report as a picture
    kvproof audit FILE                      judge a recorded trace
    kvproof fuzz mypkg.kv:Adapter           search for hours, on one machine or many
    kvproof laws                            what is promised
    kvproof new FILE                        an adapter to start from
    kvproof exhaust mypkg.kv:Adapter        try every program of a small scope
    kvproof race mypkg.kv:Adapter           call a cache from several threads at once

Nothing here decides anything: verdicts come from `fuzz`, texts from `fuzz.reports`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import math
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from kvproof import audit_cli, engines, fuzz_cli, open_cli, schemas, zoo
from kvproof.exhaust_cli import exhaust
from kvproof.fuzz import kernels_check
from kvproof.fuzz.kernel_failures import read_failure, write_failure
from kvproof.fuzz.programs import FORMAT, BadFile, Program, local, portable, read_program, write_program, write_whole, writing
from kvproof.fuzz.reports import lawbook, terminal, wording
from kvproof.fuzz.reports.github import github_annotations
from kvproof.fuzz.reports.junit import junit
from kvproof.fuzz.reports.picture.html import html
from kvproof.fuzz.reports.picture.sources import film_report
from kvproof.fuzz.reports.source import case_source, pytest_source
from kvproof.fuzz.reports.steps import Replay
from kvproof.fuzz.reports.steps import replay as run_again
from kvproof.fuzz.traces.program import program_of
from kvproof.fuzz.traces.read import is_trace
from kvproof.fuzz.verdicts import Finding, Report
from kvproof.fuzz.waivers import DEFAULT_FILE, BadWaivers, Waiver, read_waivers, stale_waivers, waivers_for
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.impl.foreign.releases import BadRelease
from kvproof.kernel_replay import replay_case
from kvproof.models.laws import BY_NAME
from kvproof.races_cli import race
from kvproof.skeleton import BadPlace, write_skeleton
from kvproof.targets import BUILT_IN_WORDS, DEFAULT_TARGET, BadTarget, find_target

AnyProgram = TypeVar("AnyProgram", Program, Program | str)

HELD: Final = 0
BROKEN: Final = 1
AT_FAULT: Final = 2

FAILURES: Final = Path(".kvproof/failures")
"""Where failure files go."""

FAULT_OP_SECONDS: Final = 1.0
"""Time limit of an operation where a program that may hang is only run to be shown."""

LOG_COLUMNS: Final = 100
"""Width of output that goes to a file or a log and not to a terminal."""


class Unusable(ValueError):
    """A request that cannot be met: one sentence that names the cause and the mend."""


REQUEST_ERRORS: Final = (
    BadTarget,
    BadRelease,
    BadFile,
    BadWaivers,
    BadPlace,
    Unusable,
    AdapterFault,
    *fuzz_cli.REQUEST_ERRORS,
)
"""Errors whose text is all that a user needs to see."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. An error is one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(args=arguments, prog_name="kvproof", standalone_mode=False)
        sys.stdout.flush()
    except REQUEST_ERRORS as error:
        complain(str(error))
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "kvproof"
        complain(f"{wording.sentence(error.format_message())[:-1]}; see `{command} --help`.")
    except click.ClickException as error:
        complain(wording.sentence(error.format_message()))
    except (click.Abort, KeyboardInterrupt):
        complain("The run was interrupted before it could decide anything.")
    except BrokenPipeError:
        _drop_stdout()
    except Exception:  # noqa: BLE001 -- status 1 would say that a law is broken
        traceback.print_exc()
        complain("kvproof itself failed; please report this with the lines above.")
    else:
        return status if isinstance(status, int) else HELD
    return AT_FAULT


def complain(sentence: str) -> None:
    """One sentence on stderr."""
    click.echo(f"kvproof: {sentence}", err=True)


class Output(Console):
    """A console that prints plain text, as wide as the terminal or as a log, and ends quietly where nobody reads any more."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = LOG_COLUMNS

    def on_broken_pipe(self) -> None:
        """Go on without output: the exit status still tells the verdict."""
        self.quiet = True
        _drop_stdout()


def _drop_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- parameters ----------------------------------------------------------------------------------------------------------------------------


def budget_seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A named budget or a number of seconds, in seconds."""
    from kvproof.fuzz.check import BUDGETS

    if value in BUDGETS:
        return BUDGETS[value]
    with contextlib.suppress(ValueError):
        seconds = float(value)
        if math.isfinite(seconds) and seconds > 0:
            return seconds
    raise click.BadParameter(f"{value!r} is no budget; give {', '.join(BUDGETS)} or a number of seconds above 0", ctx, param)


def default_workers() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


FILE: Final = click.Path(dir_okay=False, path_type=Path)
OUTPUT: Final = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
SECONDS: Final = click.FloatRange(min=0, min_open=True, max=3600)
OP_SECONDS: Final[Callable[[Any], Any]] = click.option(
    "--op-seconds", type=SECONDS, default=10.0, show_default=True, help="Time limit of one operation."
)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(importlib.metadata.version("kvproof"), message="kvproof %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Prove that a paged KV cache, or the kernels that read and write it, keep their promises.

    A TARGET is module:Class, path/to/file.py:Class, a name that kvproof brings along (production, production-hybrid, engine, kernels,
    kernels-paged, ...), a release of an engine (vllm==0.33.0; see `kvproof engines`), or bug:NAME and kernel-bug:NAME for a seeded bug.

    Exit status: 0 all laws held, 1 a law is broken, 2 the request or the target is at fault.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
    return AT_FAULT


cli.add_command(engines.fetch)
cli.add_command(engines.engines)
cli.add_command(zoo.zoo)


# -- check ---------------------------------------------------------------------------------------------------------------------------------


@cli.command()
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
@open_cli.HTML
@click.option("--waivers", "waivers_file", type=FILE, help=f"Known broken laws. [default: {DEFAULT_FILE}, if it exists]")
@click.option(
    "--failures", type=click.Path(file_okay=False, path_type=Path), default=FAILURES, show_default=True, help="Where failure files go."
)
def check(
    target: str,
    budget: float,
    seed: int | None,
    workers: int | None,
    programs: int | None,
    op_seconds: float,
    json_file: Path | None,
    junit_file: Path | None,
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
        with _progress(target, "case" if kernels else "program") as on_progress:
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
                    op_seconds=op_seconds,
                    programs=programs,
                    waived=frozenset(waivers),
                    on_progress=on_progress,
                )
    answer = Answer(report, adapter, waivers, failures, "--failures", op_seconds)
    answer.show(Output(stderr=to_stdout))
    answer.write(json_file, junit_file)
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

    what = BUILT_IN_WORDS.get(target, "a seeded bug" if target.startswith(("bug:", "kernel-bug:")) else engines.engine_words(target))
    name = next((name for name, seconds in BUDGETS.items() if seconds == budget), "")
    parts = [what] if what else []
    parts += [f"budget {name} ({budget:g} s)" if name else f"budget {budget:g} s"]
    parts += [f"at most {wording.counted(programs, 'program')}"] if programs else []
    parts += [wording.counted(workers, "worker"), f"seed {seed}"]
    return f"kvproof check {target}: {', '.join(parts)}"


class Answer:
    """A report with what makes it readable: failure files, replays, sources, waivers. Problems with files are told, never raised.

    `option` names the place of the failure files on the command line.
    """

    def __init__(self, report: Report, adapter: type, waivers: dict[str, Waiver], failures: Path, option: str, op_seconds: float) -> None:
        self.adapter = adapter
        self.waivers = waivers
        self.failures = failures
        self.option = option
        self.unwritten = False
        self.stale = stale_waivers(waivers, report.laws) if report.verdict == "held" else {}
        if self.stale:
            report = msgspec.structs.replace(report, verdict="broken", error=" ".join(self.stale.values()))
        report = self.report = _portable_report(report)
        self.exhibits = [self._show(finding, op_seconds) for finding in report.violations]
        fault = report.error_program if report.verdict == "error" else None
        self.error = None if fault is None else self._exhibit(fault, op_seconds=min(op_seconds, FAULT_OP_SECONDS))

    @property
    def status(self) -> int:
        """The exit status: a broken law outweighs a file that could not be written."""
        return self.report.exit_status or (AT_FAULT if self.unwritten else HELD)

    def show(self, console: Console) -> None:
        """The report for a reader, and annotations where GitHub runs this."""
        report = self.report
        if report.verdict == "error":
            complain(report.error)
        terminal.show_report(console, report, self.exhibits, waivers=self.waivers, stale=self.stale, error=self.error)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github_annotations(report, self.stale):
                terminal.verbatim(console, line)

    def write(self, json_file: Path | None, junit_file: Path | None) -> None:
        """The report for machines."""
        if json_file is not None:
            text = msgspec.json.format(msgspec.json.encode(self.report), indent=2) + b"\n"
            if json_file == Path("-"):
                sys.stdout.write(text.decode())
            else:
                with self._writing(json_file, "--json"):
                    write_whole(json_file, text)
        if junit_file is not None:
            sources = {exhibit.law: exhibit.source for exhibit in self.exhibits}
            with self._writing(junit_file, "--junit"):
                write_whole(junit_file, junit(self.report, sources, self.waivers, self.stale))

    def draw(self, html_file: Path | None) -> None:
        """The report as a picture."""
        if html_file is not None:
            page = html(film_report(self.report, self.adapter))
            with self._writing(html_file, "--html"):
                write_whole(html_file, page)

    def _show(self, finding: Finding, op_seconds: float) -> terminal.Exhibit | terminal.CaseExhibit:
        shown = finding.program
        if isinstance(shown, str):
            source = case_source(finding.law, shown, self.report.target, self.adapter)
            path = None
            with self._writing(self.failures, self.option):
                path = write_failure(self.failures, self.report.target, finding)
            return terminal.CaseExhibit(finding.law, finding.reason, shown, source, self.report.target, path)
        return self._exhibit(shown, law=finding.law, reason=finding.reason, op_seconds=op_seconds)

    def _exhibit(self, program: Program, *, op_seconds: float, law: str = "", reason: str = "") -> terminal.Exhibit:
        again = run_again(program, self.adapter, op_seconds=op_seconds)
        return terminal.Exhibit(program, again, pytest_source(program, self.adapter), law, reason, self._keep(law or "fault", program))

    def _keep(self, what: str, program: Program) -> Path | None:
        """Write the failure file of `program`; its name is the same for the same program."""
        digest = hashlib.sha256(msgspec.json.encode((local(program.target), program.config, program.ops))).hexdigest()[:8]
        path = self.failures / f"{what}-{digest}.json"
        with self._writing(path, self.option):
            write_program(path, program)
            return path
        return None

    @contextlib.contextmanager
    def _writing(self, place: Path, option: str) -> Iterator[None]:
        """A file that cannot be written is told, and the answer goes on."""
        try:
            with writing(place, option):
                yield
        except BadFile as error:
            complain(str(error))
            self.unwritten = True


def _portable_report(report: Report) -> Report:
    """The report with programs that can be run from any directory."""
    violations = [msgspec.structs.replace(finding, program=_portable(finding.program)) for finding in report.violations]
    fault = report.error_program
    return msgspec.structs.replace(report, violations=violations, error_program=None if fault is None else _portable(fault))


def _portable(program: AnyProgram) -> AnyProgram:
    """A case of kernels names no target and is portable as it is."""
    return program if isinstance(program, str) else msgspec.structs.replace(program, target=portable(program.target))


def known_broken(path: Path | None, target: str) -> dict[str, Waiver]:
    """The waivers for `target` in the named file, or in the one of the current directory."""
    if path is None and not DEFAULT_FILE.exists():
        return {}
    return waivers_for(read_waivers(path or DEFAULT_FILE), target)


@contextlib.contextmanager
def _progress(target: str, unit: str) -> Iterator[Callable[[Any], None] | None]:
    """A bar on stderr that goes away at the end; nothing where stderr is no terminal."""
    console = Output(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[counts]}"), TimeElapsedColumn())
    # No refresh thread: the check forks its workers, and a lock that a thread holds at that moment would stay held in them.
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(f"checking {target}", total=1.0, counts="")

        def on_progress(progress: Any) -> None:  # noqa: ANN401 -- kvproof.fuzz.check.Progress, which is imported only where it is needed
            laws = sum(1 for times in progress.exercised.values() if times)
            counts = f"{wording.counted(progress.programs, unit)}, {wording.counted(laws, 'law')} exercised"
            what = {"shrinking": "shrinking", "addresses": "proving addresses"}.get(progress.phase, f"checking {target}")
            bar.update(task, description=what, completed=min(1.0, progress.seconds / progress.budget_seconds), counts=counts, refresh=True)

        yield on_progress


# -- replay and shrink ---------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@OP_SECONDS
@open_cli.HTML
def replay(file: Path, target: str | None, op_seconds: float, html_file: Path | None) -> int:
    """Run the program in FILE again, step by step. TARGET is the one named in the file, if it is not given.

    FILE is a failure file, or a report of `check --json`: then the program of its first violation is run. Where it is about kernels, its
    case is judged again.
    """
    failure = read_failure(file)
    if failure is not None:
        return replay_case(Output(), file, failure, target)
    program, adapter, title = _load(file, target)
    again = run_again(program, adapter, op_seconds=op_seconds)
    console = Output()
    terminal.show_program(console, again, program, title=title)
    if html_file is not None:
        open_cli.write_page(html_file, open_cli.picture_of_program(program, adapter, file.name))
    return _tell_replay(console, program, again)


def _load(file: Path, target: str | None) -> tuple[Program, type, str]:
    """The program with the target that it is to run on, its adapter and its title. Raises where the adapter cannot take such a program."""
    program, title = _program_in(file)
    config = program.config
    if config.num_blocks < 1 or config.block_size < 1:
        raise BadFile(
            f"{file} is damaged: its pool has {config.num_blocks} blocks of {config.block_size} tokens, and both must be 1 or more."
        )
    if target is not None:
        program = msgspec.structs.replace(program, target=portable(target))
    elif (place := program.target.rpartition(":")[0]).endswith(".py") and not Path(place).is_file():
        raise Unusable(
            f"{file} names the target {program.target}, a file that does not exist here; add where it is: kvproof replay {file} path/to/file.py:Class."
        )
    adapter = find_target(program.target)
    claimed = read_capabilities(adapter)
    recorded = is_trace(file)  # on a pool that the cache has had, whatever it lets the suite ask for
    if not recorded and (config.num_blocks > claimed.max_blocks or config.block_size not in claimed.block_sizes):
        sizes = wording.joined([str(size) for size in claimed.block_sizes], "or")
        raise Unusable(
            f"{file} needs a pool of {config.num_blocks} blocks of {config.block_size} tokens, but {local(program.target)} claims at most "
            f"{claimed.max_blocks} blocks of {sizes} tokens; run it on a target that takes such a pool."
        )
    return program, adapter, title


def _program_in(file: Path) -> tuple[Program, str]:
    """The program that a program or failure file or a trace holds, or the first one of a report, and how it is called."""
    if is_trace(file):
        return program_of(file), f"The operations of the trace {file}"
    report = _report_in(file)
    if report is None:
        return read_program(file), f"The program in {file}"
    if report.violations:
        first, count = report.violations[0], len(report.violations)
        assert isinstance(first.program, Program), "reports on kernels are replayed elsewhere"
        which = f"the first of its {count} violations" if count > 1 else "its violation"
        return first.program, f"{file} is a report; the program of {which} ({first.law})"
    if report.error_program is not None:
        return report.error_program, f"{file} is a report; the program of its fault"
    raise Unusable(f"{file} is a report without any violation, so it has no program; name a failure file.")


def _report_in(file: Path) -> Report | None:
    """The report that `check --json` wrote to `file`; None where it is no report of this format, whatever else it is."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        report = msgspec.json.decode(file.read_bytes(), type=Report)
        return report if report.kvproof == FORMAT else None
    return None


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


@cli.command()
@click.argument("file", type=FILE)
@click.argument("target", required=False)
@click.option("--seconds", type=SECONDS, default=30.0, show_default=True, help="How long to try.")
@click.option("-n", "--workers", type=click.IntRange(1, 1024), help="Processes to shrink with. [default: the cores of this machine]")
@click.option("-o", "--output", type=FILE, help="Where the shorter program goes. [default: FILE with .shrunk.json]")
@click.option("--test", "test_file", type=FILE, help="Where the pytest file goes. [default: beside the output, ending in _test.py]")
@open_cli.HTML
def shrink(
    file: Path, target: str | None, seconds: float, workers: int | None, output: Path | None, test_file: Path | None, html_file: Path | None
) -> int:
    """Make the program in FILE shorter while it breaks the same law; write it as a failure file and as a pytest file."""
    if read_failure(file) is not None:
        raise Unusable(
            f"{file} holds a case of kernels, which `kvproof check` has made as small as it can; judge it with `kvproof replay {file}`."
        )
    from kvproof.fuzz import shrink as shrinking

    program, adapter, _ = _load(file, target)
    console = Output()
    violation = shrinking.first_violation(program, adapter) or program.violation
    steady = shrinking.steadiness(program, adapter, violation.law) if violation else None
    if violation is None or steady is None or not steady.failures:
        return _tell_replay(console, program, run_again(program, adapter))
    if steady.flaky:
        told = f"This failure is flaky: the program breaks {violation.law} in {steady.failures} of {steady.runs} runs, so the cache depends on more than its operations."
        terminal.say(console, told, "bold yellow")
    program = msgspec.structs.replace(program, violation=violation, fault="")
    with _shrinking(file, seconds) as on_tick:
        short = shrinking.shrink_in_parallel(
            program, adapter, seconds=seconds, workers=workers or default_workers(), tries=steady.tries, on_tick=on_tick
        )
    stem = file.name.removesuffix(".json").removesuffix(".jsonl").removesuffix(".shrunk")
    place = output or file.with_name(f"{stem}.shrunk.json")
    test_place = test_file or place.with_name(f"{stem.replace('.', '_')}_shrunk_test.py")
    source = pytest_source(short, adapter)
    with writing(place, "--output"):
        write_program(place, short)
    with writing(test_place, "--test"):
        write_whole(test_place, source.encode())
    again = run_again(short, adapter)
    before = wording.counted(len(program.ops), "operation")
    terminal.show_program(console, again, short, title=f"{file} had {before}; the shortest program found")
    terminal.show_source(console, source)
    terminal.show_way_back(console, terminal.Exhibit(short, again, source, path=place))
    terminal.say(console, f"The test is in {test_place}.")
    console.print()
    if html_file is not None:
        open_cli.write_page(html_file, open_cli.picture_of_program(short, adapter, place.name))
    return BROKEN if steady.flaky else _tell_replay(console, short, again)


@contextlib.contextmanager
def _shrinking(file: Path, seconds: float) -> Iterator[Callable[[float], None]]:
    """A bar on stderr that goes away at the end; nothing where stderr is no terminal."""
    console = Output(stderr=True)
    with Bar(
        TextColumn("shrinking {task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task(str(file), total=seconds)
        yield lambda elapsed: bar.update(task, completed=min(elapsed, seconds), refresh=console.is_terminal)


cli.add_command(open_cli.open_picture)


# -- laws, schema, new ---------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("law", required=False)
@click.option("--markdown", is_flag=True, help="Print the page docs/laws.md.")
def laws(law: str | None, *, markdown: bool) -> int:
    """List the laws, or tell all about one LAW."""
    console = Output()
    if markdown:
        terminal.verbatim(console, lawbook.laws_markdown().rstrip("\n"))
    elif law is None:
        lawbook.show_laws(console, narrow=terminal.is_narrow(console))
    elif law in BY_NAME:
        lawbook.show_law(console, BY_NAME[law])
    else:
        near = wording.joined(wording.closest(law, BY_NAME), "or")
        raise Unusable(f"There is no law {law!r}; " + (f"did you mean {near}?" if near else "`kvproof laws` lists them."))
    return HELD


@cli.command(short_help="Print the JSON Schemas of the files.")
@click.argument("kind", type=click.Choice(schemas.KINDS), required=False)
def schema(kind: str | None) -> int:
    """Print the JSON Schema of a program, failure, kernel failure, report or trace file; without KIND, an object with all of them."""
    whole = (
        schemas.schema_text(kind)
        if kind
        else msgspec.json.format(msgspec.json.encode({k: schemas.schema(k) for k in schemas.KINDS}), indent=2)
    )
    click.echo(whole.decode().rstrip("\n"))
    return HELD


@cli.command()
@click.argument("file", type=FILE)
def new(file: Path) -> int:
    """Write an adapter to start from to FILE. It passes as it is, and never overwrites anything."""
    write_skeleton(file)
    click.echo(f"Wrote {file}. It has a small cache of its own and passes as it is; replace that by yours. Check it with:")
    click.echo(f"    kvproof check {file}:Adapter")
    return HELD


for _command in (*audit_cli.COMMANDS, fuzz_cli.fuzz, race, exhaust):
    cli.add_command(_command)
