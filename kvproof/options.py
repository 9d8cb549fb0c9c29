"""Types and options that several commands take."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kvproof.fuzz.programs import FAILURES


class _Place(click.Path):
    """A path with a name. An empty one, as an unset variable of a shell gives it, would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 -- as click has it
        if value == "":
            self.fail("the name is empty, and it must be that of a file or a directory", param, ctx)
        return super().convert(value, param, ctx)


FILE: Final = _Place(dir_okay=False, path_type=Path)
OUTPUT: Final = _Place(dir_okay=False, allow_dash=True, path_type=Path)
FOLDER: Final = _Place(file_okay=False, path_type=Path)
SECONDS: Final = click.FloatRange(min=0, min_open=True, max=3600)

Option = Callable[[Any], Any]

OP_SECONDS: Final[Option] = click.option("--op-seconds", type=SECONDS, default=10.0, show_default=True, help="Time limit of one operation.")
HTML: Final[Option] = click.option("--html", "html_file", type=FILE, help="Write the picture as an HTML page.")
SARIF: Final[Option] = click.option("--sarif", "sarif_file", type=FILE, help="Write the findings as SARIF.")
FAILURE_FILES: Final[Option] = click.option("--failures", type=FOLDER, default=FAILURES, show_default=True, help="Where failure files go.")


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


def _budget_if_any(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else budget_seconds(ctx, param, value)


BUDGET_TOO: Final[Option] = click.option(
    "--budget", metavar="quick|ci|nightly|SECONDS", callback=_budget_if_any, help="The same as `kvproof check` takes, in place of the time."
)
"""For commands whose time has an option of another name."""


def default_workers() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
