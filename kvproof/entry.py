"""Where the command `kvproof` begins. Loading the rest takes a second, and an interruption in it must not end in a traceback."""

from __future__ import annotations

import sys

from kvproof.supervised import supervised


def main() -> int:
    """Run the command line and return its exit status."""
    return supervised(_run)


def _run() -> int:
    try:
        from kvproof.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kvproof: The run was interrupted before it could decide anything.", file=sys.stderr)
        return 2
