"""Check and measure the paged kernels on this machine's GPU; needs torch, triton and numpy, and no installation of kvproof.

    python benchmarks/gpu.py --out report            # report.md and report.json, under eight minutes
    python benchmarks/gpu.py --only tune --out tuned

docs/run-on-your-gpu.md says what is checked and measured.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def find_checkout() -> None:
    """Import the kernels from this checkout, without the package's public names: those need packages that a GPU machine may lack."""
    package = types.ModuleType("kvproof")
    package.__path__ = [str(ROOT)]
    sys.modules["kvproof"] = package


if __name__ == "__main__":
    find_checkout()
    try:
        from kvproof.kernels.gpu.run import main
    except ImportError as error:
        print(
            f"This run needs torch 2.11 or later, triton 3.6 or later and numpy: {error}. Install what is missing, or run it with a Python that has it."
        )
        raise SystemExit(2) from None

    raise SystemExit(main(script=__file__))
