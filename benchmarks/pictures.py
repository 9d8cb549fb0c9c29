"""What the pictures of all benchmarks share: how matplotlib is set up, and how a figure becomes an SVG that is the same for the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot() -> Any:  # noqa: ANN401 -- matplotlib has no types
    """Matplotlib's pyplot. Ends the program with a sentence where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise SystemExit("The picture needs matplotlib: python -m pip install 'kvproof[plots]'") from None
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "kvproof", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, file: Path) -> None:  # noqa: ANN401 -- matplotlib has no types
    """Write a figure as SVG."""
    figure.savefig(file, format="svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})
