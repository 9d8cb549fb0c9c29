"""The campaign behind `kvproof fuzz`: the directory that it lives in, its store, its workers, and its run.

with campaign_in(asked) as identity:
conductor, seconds = conduct(asked, identity, store_of(asked, identity), capabilities, waived)
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kvproof.console import Output, Unusable
from kvproof.fuzz.programs import FORMAT, write_output, writing
from kvproof.fuzz.reports import terminal
from kvproof.models.capabilities import Capabilities
from kvproof.options import default_workers
from kvproof.properties.situations import possible
from kvproof.signals import interrupt, stopped_by_signals
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


def default_directory(target: str) -> Path:
    """Where the campaign of a target is kept, if nothing else is asked for."""
    return CAMPAIGNS / re.sub(r"[^A-Za-z0-9_.]+", "-", target).strip("-.")


def workers_for(*, kernels: bool) -> int:
    """How many workers this machine keeps busy: its cores, or for kernels its devices."""
    from kvproof.fuzz.campaigns.devices import count_devices

    return max(1, count_devices()) if kernels else default_workers()


@contextlib.contextmanager
def campaign_in(asked: Asked) -> Iterator[Identity]:
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
            write_output(path, "--directory", msgspec.json.encode(identity) + b"\n")
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


def store_of(asked: Asked, identity: Identity) -> Store:
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
    with writing(notes, "--directory"):
        notes.mkdir(exist_ok=True)
    return LocalCrew(job, find_target, campaign, workers=asked.workers, notes=notes)


def conduct(
    asked: Asked, identity: Identity, store: Store, capabilities: Capabilities | None, waived: frozenset[str]
) -> tuple[Conductor, float]:
    """Run the campaign; how long it took, in seconds, comes with it. An interruption ends it as the end of its time would, or raises
    KeyboardInterrupt where nothing was tried yet.
    """
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
        _run(conductor, 0 if capabilities is None else len(list(possible(capabilities))))
    finally:
        crew.close()
    return conductor, time.monotonic() - begun


def _run(conductor: Conductor, situations: int) -> None:
    """Run it and show how far it is. An interruption ends it, and is passed on where nothing is decided: the report would be that of a cache that holds."""
    try:
        with _shown(situations) as on_progress, stopped_by_signals(interrupt):
            conductor.run(on_progress)
    except KeyboardInterrupt:
        if not conductor.decided:
            raise
    if conductor.owed and not conductor.decided:
        raise Unusable(
            "The time was up before all that was kept had been run again, so nothing can be said to hold; give it more --minutes."
        )
    if not conductor.decided and not conductor.failures.causes():
        if conductor.plan.mode == "replay":
            raise Unusable(
                "No program of this target is kept here, so there was none to run; name the place of its campaign with --directory or --redis."
            )
        raise Unusable("The time was up before any program had ended, so nothing is known of the target; give it more --minutes.")


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
