"""How worker processes are started, the same for every tool that uses several cores."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext


def process_context() -> BaseContext:
    """Forked workers on Linux, which know every class that the parent loaded; fresh ones elsewhere, since a fork is not safe there."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
