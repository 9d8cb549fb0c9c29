"""Where the command `kvproof` begins. Loading the rest takes a second, and an interruption in it must not end in a traceback."""

from __future__ import annotations

import os
import sys
from typing import Final

from kvproof.supervised import supervised

HYPOTHESIS_HOME: Final = ".kvproof/hypothesis"
"""Where Hypothesis keeps what it knows of the target's source. What the command leaves in a directory lies in one place."""


def main() -> int:
    """Run the command line and return its exit status."""
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", HYPOTHESIS_HOME)
    return supervised(_run)


def _run() -> int:
    try:
        from kvproof.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kvproof: The run was interrupted before it could decide anything.", file=sys.stderr)
        return 2
