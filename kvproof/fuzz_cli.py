"""`kvproof fuzz`: campaigns on the command line.

kvproof fuzz mypkg.kv:Adapter --minutes 60 -n 8      search, keep what was found, go on where it stopped
kvproof fuzz mypkg.kv:Adapter --mode gate            run what was kept and a little more; stop at the first failure
kvproof fuzz mypkg.kv:Adapter --mode replay          only run what was kept
kvproof fuzz mypkg.kv:Adapter --mode prune           make what was kept smaller
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Console

from kvproof.answer import Answer, known_broken
from kvproof.campaigning import CAMPAIGNS, Asked, campaign_in, conduct, default_directory, store_of, workers_for
from kvproof.console import Output, Unusable, wrote
from kvproof.fuzz import kernels_check
from kvproof.fuzz.programs import Program, write_output, writing
from kvproof.fuzz.reports import terminal
from kvproof.fuzz.verdicts import BROKEN, HELD
from kvproof.impl.checker import read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.options import BUDGET_TOO, FILE, FOLDER, OP_SECONDS, SARIF
from kvproof.targets import find_target

if TYPE_CHECKING:
    from kvproof.fuzz.campaigns.conductor import Conductor
    from kvproof.fuzz.campaigns.store import Store

HELP_MODE: Final = (
    "batch: search, and collect what is found. gate: run what was kept, search a little, stop at the first failure, keep nothing. "
    "replay: run what was kept. prune: take out of the corpus what reaches nothing new, and failures that are gone."
)


@click.command(short_help="Run a campaign: search for hours, on one machine or many.")
@click.argument("target")
@click.option("--mode", type=click.Choice(("batch", "gate", "replay", "prune")), default="batch", show_default=True, help=HELP_MODE)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="How long to search. [default: 60, for a gate 1]")
@BUDGET_TOO
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
@SARIF
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
    budget: float | None,
    **options: Any,  # noqa: ANN401 -- click gives them as Asked takes them
) -> int:
    """Search TARGET for as long as asked, on all cores, and keep what was found. The same command goes on where it stopped, however it was stopped."""
    from kvproof.fuzz.campaigns.outcome import report_of

    if budget is not None:
        options["minutes"] = budget / 60
    asked = Asked(directory=directory or default_directory(options["target"]), workers=workers or 0, **options)
    adapter = find_target(asked.target)
    kernels = kernels_check.is_kernels(adapter)
    if kernels and kernels_check.missing():
        raise Unusable(kernels_check.missing())
    capabilities = None if kernels else read_capabilities(adapter)
    if asked.ray is None:
        asked = msgspec.structs.replace(asked, workers=asked.workers or workers_for(kernels=kernels))
    waivers = known_broken(waivers_file, asked.target)
    console = Output()
    with campaign_in(asked) as identity:
        store = store_of(asked, identity)
        if asked.mode == "prune":
            return _prune(asked, adapter, capabilities, store, console)
        conductor, seconds = conduct(asked, identity, store, capabilities, frozenset(waivers))
    _tell(console, conductor, capabilities, whole=whole)
    report = report_of(conductor, asked.target, capabilities, seconds)
    answer = Answer(report, adapter, waivers, asked.directory / "failures", "--directory", asked.op_seconds)
    answer.show(console)
    answer.write(json_file, junit_file, sarif_file)
    written = [
        wrote(lambda: _keep_situations(asked.directory, conductor, capabilities)),
        wrote(lambda: _keep_failures(console, asked.directory / "failures", conductor)),
        issue_file is None or wrote(lambda: _write_issue(issue_file, conductor, asked.target, adapter, seed=report.seed)),
    ]
    answer.unwritten |= not all(written)
    return answer.status


def _tell(console: Console, conductor: Conductor, capabilities: Capabilities | None, *, whole: bool) -> None:
    """Say what the campaign did."""
    from kvproof.fuzz.campaigns.outcome import situations_of
    from kvproof.fuzz.reports import campaign as shown

    situations = None if capabilities is None else situations_of(conductor.totals.situations, capabilities)
    shown.show_end(console, conductor.progress(), situations, whole=whole)


def _keep_situations(directory: Path, conductor: Conductor, capabilities: Capabilities | None) -> None:
    """Which situations were reached, and how often. Kernels have none."""
    from kvproof.fuzz.campaigns.outcome import situations_of

    if capabilities is not None:
        place = directory / "situations.json"
        situations = situations_of(conductor.totals.situations, capabilities)
        write_output(place, "--directory", msgspec.json.format(msgspec.json.encode(situations), indent=1) + b"\n")


def _keep_failures(console: Console, failures: Path, conductor: Conductor) -> None:
    """A file for each cause, those of variants beneath; the report has named only those of laws."""
    from kvproof.fuzz.campaigns.apart import ends_its_process
    from kvproof.fuzz.campaigns.folder import arrange, file_name

    found = conductor.failures.causes()
    with writing(failures, "--directory"):
        arrange(failures, found, conductor.failures.surpassed)
    for fault in (cause.first for cause in found if not cause.first.law):
        if isinstance(fault.program, Program):
            place = failures / file_name(fault)
            if ends_its_process(fault.program):
                terminal.say(console, f"A program that ends its process is in {place}; whatever replays it ends too.", "bold red")
            else:
                terminal.say(console, f"A program that shows a fault of the target is in {place}: {fault.reason}", "yellow")


def _write_issue(place: Path, conductor: Conductor, target: str, adapter: type, *, seed: int) -> None:
    """The text of an issue, if anything was found that is neither known nor waived."""
    from kvproof.fuzz.reports.issue import issue

    fresh = [cause.first for cause in conductor.failures.fresh_causes() if cause.first.law not in conductor.plan.waived]
    if fresh:
        write_output(place, "--issue", issue(fresh, target, adapter, seed=seed, programs=conductor.programs_here).encode())


def _prune(asked: Asked, adapter: type, capabilities: Capabilities | None, store: Store, console: Console) -> int:
    from kvproof.fuzz.campaigns.folder import arrange
    from kvproof.fuzz.campaigns.prune import prune
    from kvproof.fuzz.reports.campaign import show_pruned
    from kvproof.fuzz.runs import Search

    if capabilities is None:
        raise Unusable(f"{asked.target} are kernels, whose cases are not kept as a corpus, so there is nothing to prune.")
    search = Search(adapter, asked.target, capabilities, 0, 1, float("inf"), asked.op_seconds, None, frozenset())
    pruned = prune(search, store)
    failures = asked.directory / "failures"
    with writing(failures, "--directory"):
        arrange(failures, (), pruned.gone)
    show_pruned(console, pruned)
    return BROKEN if pruned.findings else HELD
