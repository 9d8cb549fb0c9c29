"""Where the command `kvproof` begins. Loading the rest takes a second, and an interruption in it must not end in a traceback."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        from kvproof.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kvproof: The run was interrupted before it could decide anything.", file=sys.stderr)
        return 2
