"""What the commands share on the way out: plain text on a terminal or in a log, one sentence for an error, a bar for what takes long."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn

from kvproof.fuzz.programs import BadFile
from kvproof.fuzz.verdicts import AT_FAULT, HELD

LOG_COLUMNS: Final = 100
"""Width of output that goes to a file or a log and not to a terminal."""


class Unusable(ValueError):
    """A request that cannot be met: one sentence that names the cause and the mend."""


def complain(sentence: str) -> None:
    """One sentence on stderr."""
    click.echo(f"kvproof: {sentence}", err=True)


def wrote(write: Callable[[], object]) -> bool:
    """Write a file that a command was asked for besides its answer; whether it could be. Where it cannot, that is told, and the verdict stays."""
    try:
        write()
    except BadFile as error:
        complain(str(error))
        return False
    return True


def all_written(verdict: int, *written: bool) -> int:
    """The exit status of a command whose `verdict` is a status too: a broken law outweighs a file that could not be written."""
    return verdict or (HELD if all(written) else AT_FAULT)


class Output(Console):
    """A console that prints plain text, as wide as the terminal or as a log, and ends quietly where nobody reads any more."""

    def __init__(self, *, stderr: bool = False, log_columns: int = LOG_COLUMNS) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = log_columns

    def on_broken_pipe(self) -> None:
        """Go on without output: the exit status still tells the verdict."""
        self.quiet = True
        drop_stdout()


def give_streams() -> None:
    """Streams that go nowhere for those that were closed before the command began, as `>&-` does."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 -- open as long as the process lives


def drop_stdout() -> None:
    """Let whatever is still written to stdout go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def bar(what: str, total: float | None, *columns: ProgressColumn, forks: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr that goes away at the end; nothing where stderr is no terminal. What it gives takes changes as `Progress.update` of rich does.
    Besides its own, columns may show the field `counts`.

    `forks`: processes are forked while it is shown. There is no refresh thread then, since a lock that a thread holds at that moment would stay held in them.
    """
    console = Output(stderr=True)
    if not console.is_terminal:
        yield unseen
        return
    description = TextColumn("{task.description}", markup=False)
    with Progress(description, *columns, console=console, transient=True, auto_refresh=not forks) as shown:
        task = shown.add_task(what, total=total, counts="")
        yield lambda **changes: shown.update(task, refresh=forks, **changes)


def unseen(**changes: object) -> None:
    """The changes of a bar that is not shown."""
