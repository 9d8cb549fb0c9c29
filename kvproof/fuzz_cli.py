"""`kvproof fuzz`: campaigns on the command line.

kvproof fuzz mypkg.kv:Adapter --minutes 60 -n 8      search, keep what was found, go on where it stopped
kvproof fuzz mypkg.kv:Adapter --mode gate            run what was kept and a little more; stop at the first failure
kvproof fuzz mypkg.kv:Adapter --mode replay          only run what was kept
kvproof fuzz mypkg.kv:Adapter --mode prune           make what was kept smaller
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Console

from kvproof.answer import Answer, known_broken
from kvproof.console import Output, Unusable
from kvproof.fuzz import kernels_check
from kvproof.fuzz.programs import FORMAT, Program, keep_program, portable, write_whole, writing
from kvproof.fuzz.reports import terminal
from kvproof.fuzz.verdicts import BROKEN, HELD, Finding
from kvproof.impl.checker import read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.options import FILE, FOLDER, OP_SECONDS, default_workers
from kvproof.properties.situations import possible
from kvproof.targets import find_target

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from kvproof.fuzz.campaigns.conductor import Conductor, Progress
    from kvproof.fuzz.campaigns.crew import Crew
    from kvproof.fuzz.campaigns.store import Store

CAMPAIGNS: Final = Path(".kvproof/campaigns")
"""Where campaigns are kept, one directory for each target."""

MINUTES: Final[dict[str, float]] = {"batch": 60.0, "gate": 1.0, "replay": 24 * 60.0, "prune": 24 * 60.0}
"""How long each mode searches at most, if nothing else is asked for; replay and prune end when everything has run."""

HELP_MODE: Final = (
    "batch: search, and collect what is found. gate: run what was kept, search a little, stop at the first failure, keep nothing. "
    "replay: run what was kept. prune: take out of the corpus what reaches nothing new, and failures that are gone."
)

LOG_SECONDS: Final = 30.0
"""How often a line is written where there is no terminal for a live table."""


class Identity(msgspec.Struct, frozen=True):
    """`campaign.json`: what a directory is a campaign of."""

    kvproof: int
    target: str
    seed: int


class Asked(msgspec.Struct, frozen=True):
    """The request, as the options give it."""

    target: str
    mode: str
    minutes: float | None
    workers: int
    directory: Path
    seed: int | None
    programs: int | None
    batch: int | None
    stop_at_first: bool | None
    op_seconds: float
    ray: str | None
    redis: str | None

    @property
    def seconds(self) -> float:
        """How long to search."""
        return 60 * (MINUTES[self.mode] if self.minutes is None else self.minutes)


@click.command(short_help="Run a campaign: search for hours, on one machine or many.")
@click.argument("target")
@click.option("--mode", type=click.Choice(("batch", "gate", "replay", "prune")), default="batch", show_default=True, help=HELP_MODE)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="How long to search. [default: 60, for a gate 1]")
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(1, 100_000),
    help="Workers. [default: the cores of the machine or cluster, or for kernels the devices]",
)
@click.option("--directory", type=FOLDER, help=f"Where it is kept. [default: one in {CAMPAIGNS}]")
@click.option(
    "--stop-at-first/--collect", default=None, help="End with the first failure, or collect distinct ones. [default: a gate stops]"
)
@click.option("--seed", type=click.IntRange(min=0), help="Of a new campaign. [default: a new one]")
@click.option("--programs", type=click.IntRange(min=1), help="End after this many programs in all, resumptions included.")
@click.option("--batch", type=click.IntRange(1, 100_000), help="Programs of one order. [default: as many as take two seconds]")
@OP_SECONDS
@click.option("--ray", metavar="ADDRESS|auto", help="Run the workers on a Ray cluster.")
@click.option("--redis", metavar="URL", help="Share corpus and failures through a Redis server, as redis://HOST:PORT/0.")
@click.option("--json", "json_file", type=FILE, help="Write the report as JSON.")
@click.option("--junit", "junit_file", type=FILE, help="Write the report as JUnit XML.")
@click.option("--sarif", "sarif_file", type=FILE, help="Write the findings as SARIF.")
@click.option("--issue", "issue_file", type=FILE, help="Write the text of an issue, if anything new was found.")
@click.option("--waivers", "waivers_file", type=FILE, help="Known broken laws.")
@click.option("--situations", "whole", is_flag=True, help="List every situation that was never reached.")
def fuzz(
    *,
    json_file: Path | None,
    junit_file: Path | None,
    sarif_file: Path | None,
    issue_file: Path | None,
    waivers_file: Path | None,
    whole: bool,
    directory: Path | None,
    workers: int | None,
    **options: Any,  # noqa: ANN401 -- click gives them as Asked takes them
) -> int:
    """Search TARGET for as long as asked, on all cores, and keep what was found. The same command goes on where it stopped, however it was stopped."""
    from kvproof.fuzz.campaigns.outcome import report_of
    from kvproof.fuzz.reports.issue import issue
    from kvproof.fuzz.reports.sarif import sarif

    asked = Asked(directory=directory or _default_directory(options["target"]), workers=workers or 0, **options)
    adapter = find_target(asked.target)
    kernels = kernels_check.is_kernels(adapter)
    if kernels and kernels_check.missing():
        raise Unusable(kernels_check.missing())
    capabilities = None if kernels else read_capabilities(adapter)
    if asked.ray is None:
        asked = msgspec.structs.replace(asked, workers=asked.workers or _workers(kernels=kernels))
    waivers = known_broken(waivers_file, asked.target)
    console = Output()
    with _campaign(asked) as identity:
        store = _store(asked, identity)
        if asked.mode == "prune":
            return _prune(asked, adapter, capabilities, store, console)
        conductor, seconds = _conduct(asked, identity, store, capabilities, frozenset(waivers))
    _tell(console, conductor, asked, capabilities, whole=whole)
    report = report_of(conductor, asked.target, capabilities, seconds)
    answer = Answer(report, adapter, waivers, asked.directory / "failures", "--directory", asked.op_seconds)
    answer.show(console)
    answer.write(json_file, junit_file)
    if sarif_file is not None:
        with writing(sarif_file, "--sarif"):
            write_whole(sarif_file, sarif(answer.report, adapter))
    fresh = [conductor.findings[key] for key in conductor.new]
    if issue_file is not None and fresh:
        text = issue(fresh, asked.target, adapter, seed=report.seed, programs=conductor.programs_here)
        with writing(issue_file, "--issue"):
            write_whole(issue_file, text.encode())
    return answer.status


def _tell(console: Console, conductor: Conductor, asked: Asked, capabilities: Capabilities | None, *, whole: bool) -> None:
    """Say what the campaign did, and keep what the report does not."""
    from kvproof.fuzz.campaigns.outcome import situations_of
    from kvproof.fuzz.reports import campaign as shown

    situations = None if capabilities is None else situations_of(conductor.totals.situations, capabilities)
    shown.show_end(console, conductor.progress(), situations, whole=whole)
    if situations is not None:
        place = asked.directory / "situations.json"
        with writing(place, "--directory"):
            write_whole(place, msgspec.json.format(msgspec.json.encode(situations), indent=1) + b"\n")
    for finding in conductor.broken().values():
        death = _keep_death(asked.directory / "failures", finding)
        if death is not None:
            terminal.say(console, f"A program that ends its process is in {death}; whatever replays it ends too.", "bold red")


def _keep_death(failures: Path, finding: Finding) -> Path | None:
    """A failure that ends its process cannot be shown by running it again, so its file is all there is. None for any other failure."""
    from kvproof.fuzz.campaigns.apart import ends_its_process

    program = finding.program
    if isinstance(program, Program) and ends_its_process(program):
        with writing(failures, "--directory"):
            return keep_program(failures, "death", msgspec.structs.replace(program, target=portable(program.target)))
    return None


# -- the campaign and its parts ------------------------------------------------------------------------------------------------------------


def _default_directory(target: str) -> Path:
    return CAMPAIGNS / re.sub(r"[^A-Za-z0-9_.]+", "-", target).strip("-.")


def _workers(*, kernels: bool) -> int:
    from kvproof.fuzz.campaigns.devices import count_devices

    return max(1, count_devices()) if kernels else default_workers()


@contextlib.contextmanager
def _campaign(asked: Asked) -> Iterator[Identity]:
    """The campaign of the directory, or a new one; nobody else runs it meanwhile."""
    path = asked.directory / "campaign.json"
    with writing(asked.directory, "--directory"):
        asked.directory.mkdir(parents=True, exist_ok=True)
        lock = (asked.directory / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unusable(
                f"Another process runs the campaign in {asked.directory}; wait for it, or name another place with --directory."
            ) from None
        if path.exists():
            yield _known(path, asked)
        else:
            identity = Identity(FORMAT, asked.target, secrets.randbelow(2**32) if asked.seed is None else asked.seed)
            with writing(path, "--directory"):
                write_whole(path, msgspec.json.encode(identity) + b"\n")
            yield identity


def _known(path: Path, asked: Asked) -> Identity:
    """The campaign that `path` names, if it is the one that was asked for."""
    elsewhere = "name another place with --directory"
    try:
        identity = msgspec.json.decode(path.read_bytes(), type=Identity)
    except (OSError, msgspec.DecodeError) as error:
        raise Unusable(f"{path} is damaged ({error}); remove its directory to begin again, or {elsewhere}.") from error
    if identity.kvproof != FORMAT:
        raise Unusable(f"{path} has format version {identity.kvproof}, and this kvproof reads version {FORMAT}; {elsewhere}.")
    if identity.target != asked.target:
        raise Unusable(f"{asked.directory} holds a campaign on {identity.target}, not on {asked.target}; {elsewhere}.")
    if asked.seed is not None and asked.seed != identity.seed:
        raise Unusable(f"{asked.directory} holds a campaign with seed {identity.seed}, not {asked.seed}; leave out --seed, or {elsewhere}.")
    return identity


def _store(asked: Asked, identity: Identity) -> Store:
    """Where the campaign is kept. A gate and a replay leave it as it is."""
    from kvproof.fuzz.campaigns import store

    database: ExampleDatabase = store.redis(asked.redis) if asked.redis else store.directory(asked.directory / "store")
    if asked.mode in ("gate", "replay"):
        database = store.untouched(database)
    campaign = f"{asked.mode}-{identity.seed}" if asked.mode in ("gate", "replay") else str(identity.seed)
    return store.Store(database, target=asked.target, campaign=campaign)


def _crew(asked: Asked, campaign: str, *, kernels: bool) -> Crew:
    from kvproof.fuzz.campaigns.crew import LocalCrew
    from kvproof.fuzz.campaigns.devices import count_devices
    from kvproof.fuzz.campaigns.orders import Job

    job = Job(asked.target, asked.op_seconds, kernels, devices=kernels and count_devices() > 0)
    if asked.ray is not None:
        from kvproof.fuzz.campaigns.ray_crew import RayCrew

        return RayCrew(job, find_target, campaign, address=asked.ray, workers=asked.workers)
    notes = asked.directory / "running"
    notes.mkdir(exist_ok=True)
    return LocalCrew(job, find_target, campaign, workers=asked.workers, notes=notes)


def _conduct(
    asked: Asked, identity: Identity, store: Store, capabilities: Capabilities | None, waived: frozenset[str]
) -> tuple[Conductor, float]:
    """Run the campaign; how long it took, in seconds, comes with it. An interruption ends it as the end of its time would."""
    from kvproof.fuzz.campaigns.conductor import Conductor, Plan

    stop = asked.mode == "gate" if asked.stop_at_first is None else asked.stop_at_first
    plan = Plan(
        store.campaign,
        identity.seed,
        asked.mode,  # type: ignore[arg-type]  # one of Mode: prune has ended before
        asked.seconds,
        asked.batch if asked.batch or not asked.programs else min(50, asked.programs),
        asked.programs,
        stop,
        capabilities is None,
        waived,
    )
    begun = time.monotonic()
    crew = _crew(asked, store.campaign, kernels=capabilities is None)
    try:
        conductor = Conductor(plan, crew, store)
        with (
            _shown(0 if capabilities is None else len(list(possible(capabilities)))) as on_progress,
            contextlib.suppress(KeyboardInterrupt),
            _terminated_like_interrupted(),
        ):
            conductor.run(on_progress)
    finally:
        crew.close()
    return conductor, time.monotonic() - begun


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Whoever runs jobs for others (Kubernetes, Slurm, a CI runner) asks a process to end before ending it: then there is time for the report."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _shown(situations: int) -> Iterator[Callable[[Progress], None]]:
    """A live table on a terminal, elsewhere a line now and then."""
    from rich.live import Live

    from kvproof.fuzz.reports import campaign as shown

    console = Output(stderr=True)
    if not console.is_terminal:
        told = [time.monotonic()]

        def write(progress: Progress) -> None:
            if time.monotonic() - told[0] > LOG_SECONDS:
                told[0] = time.monotonic()
                terminal.verbatim(console, shown.line(progress))

        terminal.verbatim(console, shown.LEGEND)
        yield write
        return
    # No refresh thread: workers are forked while the table is shown, and a lock that a thread holds at that moment would stay held in them.
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda progress: live.update(shown.live_table(progress, situations), refresh=True)


def _prune(asked: Asked, adapter: type, capabilities: Capabilities | None, store: Store, console: Console) -> int:
    from kvproof.fuzz.campaigns.prune import prune
    from kvproof.fuzz.engine import Search
    from kvproof.fuzz.reports.campaign import show_pruned

    if capabilities is None:
        raise Unusable(f"{asked.target} are kernels, whose cases are not kept as a corpus, so there is nothing to prune.")
    search = Search(adapter, asked.target, capabilities, 0, 1, float("inf"), asked.op_seconds, None, frozenset())
    pruned = prune(search, store)
    show_pruned(console, pruned)
    return BROKEN if pruned.findings else HELD
