"""`kvproof exhaust TARGET`: every program of a small scope, until no new state appears, and what that means in words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import TimeElapsedColumn

from kvproof.console import Output, bar, complain, wrote
from kvproof.fuzz.exhaust.picture import MOST_STATES, svg
from kvproof.fuzz.exhaust.scope import SCOPES, Scope, sentence
from kvproof.fuzz.exhaust.search import Search
from kvproof.fuzz.programs import BadFile, keep_program, portable, write_output, writing
from kvproof.fuzz.reports.wording import counted, operation
from kvproof.fuzz.verdicts import AT_FAULT, BROKEN, HELD, NOTHING_KNOWN
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import OP_TYPES
from kvproof.options import BUDGET_TOO, FAILURE_FILES, FILE, OP_SECONDS
from kvproof.signals import stopped_by_signals
from kvproof.targets import DEFAULT_TARGET, find_cache

SAVE_SECONDS: Final = 60.0
"""How often a search is saved while it runs: whatever kills it costs no more than that."""

SAVE_SHARE: Final = 20
"""Nor is more than one part in so many of the time spent on saving."""


@click.command(short_help="Try every program of a small scope.")
@click.argument("target", default=DEFAULT_TARGET)
@click.option(
    "--scope",
    "name",
    type=click.Choice(list(SCOPES)),
    default="one",
    show_default=True,
    help="A scope to start from; the options below change it.",
)
@click.option("--sequences", type=click.IntRange(1, 5))
@click.option("--blocks", type=click.IntRange(1, 16))
@click.option("--block-size", type=click.IntRange(1, 16))
@click.option("--tokens", type=click.IntRange(1, 8), help="Token values.")
@click.option("--namespaces", type=click.IntRange(1, 4))
@click.option("--length", type=click.IntRange(1, 16), help="Most tokens of a sequence.")
@click.option("--steps", type=click.IntRange(0, 3), help="Most open steps.")
@click.option("--drafts", type=click.IntRange(0, 4), help="Most drafts of a pass.")
@click.option(
    "--rename-tokens/--keep-tokens",
    default=None,
    help="States that differ only in the names of token values are the same, for a cache that only compares tokens.",
)
@click.option(
    "--without", multiple=True, metavar="OPERATION", help="Leave out an operation, by its name in programs; may be given several times."
)
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Stop after this time.")
@BUDGET_TOO
@OP_SECONDS
@click.option("--depth", type=click.IntRange(1, 1000), help="Stop after all programs of this many operations.")
@click.option("--state", type=FILE, help="Keep the search in this file, and go on with it if it exists.")
@click.option("--picture", type=FILE, help=f"Draw the state space as SVG, if it has at most {MOST_STATES} states.")
@FAILURE_FILES
def exhaust(
    target: str,
    name: str,
    without: tuple[str, ...],
    seconds: float,
    budget: float | None,
    op_seconds: float,
    depth: int | None,
    state: Path | None,
    picture: Path | None,
    failures: Path,
    **changes: int | None,
) -> int:
    """Try every program of a scope on TARGET and the spec together, shortest first, until no new state appears.

    States are the same up to the names of blocks and the numbers of sequences. Exit status: 0 no law broke, 1 one did, 2 the request or the target is at fault.
    """
    adapter = find_cache(target)
    scope = _scope(name, without, changes)
    where = portable(target)
    if state is not None and state.exists():
        search = Search.load(state, adapter, where, scope, draw=picture is not None)
    else:
        search = Search(adapter, where, scope, draw=picture is not None)
    with stopped_by_signals(search.stop):
        _run(search, budget or seconds, depth, state, op_seconds)
    console = Output()
    for line in report(search, target):
        console.print(line, soft_wrap=True)
    written = [
        wrote(lambda: _save(search, state)),
        wrote(lambda: _draw(search, target, picture)),
        wrote(lambda: _keep(console, search, failures)),
    ]
    if search.exhausted and not search.scope.without and not search.exercised["computed"]:
        complain(f"No pass was committed in any program of this scope, {NOTHING_KNOWN}")
        return AT_FAULT
    if search.failure is not None:
        return BROKEN if search.failure.violation is not None else AT_FAULT
    return HELD if all(written) else AT_FAULT


def _scope(name: str, without: tuple[str, ...], changes: dict[str, Any]) -> Scope:
    known = {kind.__name__.lower() for kind in OP_TYPES}
    for operation_name in without:
        if operation_name not in known:
            raise click.UsageError(f"There is no operation {operation_name!r}; there are {', '.join(sorted(known))}")
    start = SCOPES[name]
    given = {field: value for field, value in changes.items() if value is not None}
    return msgspec.structs.replace(start, **given, without=start.without | set(without))


def _run(search: Search, seconds: float, depth: int | None, state: Path | None, op_seconds: float) -> None:
    """Search, and keep what was searched now and then."""
    saved, took = time.monotonic(), 0.0
    with bar("", None, TimeElapsedColumn()) as move:
        for progress in search.run(seconds=seconds, depth=depth, op_seconds=op_seconds):
            rate = progress.transitions / progress.seconds if progress.seconds else 0
            told = f"{progress.states:,} states, {progress.waiting:,} wait, depth {progress.depth}, {rate:,.0f} operations/s"
            move(description=told)
            if state is not None and time.monotonic() - saved > max(SAVE_SECONDS, SAVE_SHARE * took):
                begun = time.monotonic()
                _save(search, state)
                saved = time.monotonic()
                took = saved - begun


def report(search: Search, target: str) -> list[str]:
    """What was exhausted, in words."""
    states, tried = len(search.states), search.transitions
    what = sentence(search.scope, search.capabilities)
    rate = f"{states / search.seconds:,.0f} states/s and {tried / search.seconds:,.0f} operations/s" if search.seconds else "no time"
    lines = [f"kvproof exhaust {target}: {what}."]
    if search.failure is not None:
        violation = search.failure.violation
        told = f"{violation.law} is broken: {violation.reason}" if violation else f"The adapter is at fault: {search.failure.fault}"
        lines += [told, "No shorter program of this scope shows anything:"]
        lines += [f"    {number:2} {operation(op)}" for number, op in enumerate(search.failure.ops)]
    elif search.exhausted:
        longest = max(search.depths)
        lines.append(
            f"Exhausted: every such program, however long, ends in one of {counted(states, 'state')}; each is reached in {longest} operations or fewer."
        )
    else:
        complete = search.depths[search.done]
        lines.append(
            f"Not exhausted: every such program of up to {counted(complete, 'operation')} was tried; {states - search.done:,} of {counted(states, 'state')} wait."
        )
    drained = "each new state in which nobody held anything was drained" if search.leaks_show else "each new state was drained"
    lines.append(
        f"{counted(tried, 'operation')} {'was' if tried == 1 else 'were'} tried on cache and spec together, {search.merged:,} of them led to a state that was known; {drained}."
    )
    lines.append(f"New states by number of operations: {' '.join(map(str, search.per_depth()))}. {search.seconds:.1f} s, {rate}.")
    exercised = sorted((law for law in search.exercised if law in BY_NAME), key=list(BY_NAME).index)
    lines.append(f"Laws put to the test: {', '.join(exercised) or 'none'}.")
    if search.failure is None:
        lines.append(f"{target} broke none of them.")
    return lines


def _save(search: Search, state: Path | None) -> None:
    if state is not None:
        with writing(state, "--state"):
            search.save(state)


def _draw(search: Search, target: str, picture: Path | None) -> None:
    if picture is None:
        return
    if len(search.states) > MOST_STATES:
        raise BadFile(f"{len(search.states):,} states are too many for a picture; draw a scope of at most {MOST_STATES}.")
    title = f"{target}: {len(search.states)} states of {sentence(search.scope, search.capabilities)}"
    drawn = svg(search, title).encode()
    write_output(picture, "--picture", drawn)


def _keep(console: Console, search: Search, failures: Path) -> None:
    program = search.failure
    if program is None:
        return
    with writing(failures, "--failures"):
        path = keep_program(failures, program.violation.law if program.violation else "fault", program)
    console.print(f"See it step by step: kvproof replay {path}", soft_wrap=True)
