"""What was measured, as a table and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pictures import pyplot, save
from rich.table import Table

from beside.players import OURS

TARGET: Final = 2.0
"""What is wanted of every row: at least twice the fastest peer."""

COLOURS: Final = ("#2a5d8f", "#7fa8cf", "#c1693c", "#5b8a4e", "#8a6fae", "#999999")
INK, GRID = "#222222", "#dddddd"


@dataclass(frozen=True)
class Measured:
    """One row: the rate of each round, by cache."""

    name: str
    unit: str
    rates: dict[str, list[float]]

    def ratios(self, peer: str) -> list[float]:
        """Ours over the peer's, round by round, sorted."""
        return sorted(ours / theirs for ours, theirs in zip(self.rates[OURS], self.rates[peer], strict=True))

    @property
    def peers(self) -> list[str]:
        """Who else ran it."""
        return [target for target in self.rates if target != OURS]

    @property
    def fastest(self) -> str:
        """The peer to which our ratio is the least."""
        return min(self.peers, key=lambda peer: statistics.median(self.ratios(peer)))


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which of the sorted ratios they lie; of eight or more, an eighth at either end is left out."""
    cut = len(ratios) // 8
    return ratios[cut], ratios[-1 - cut]


def table(measured: Sequence[Measured], targets: Sequence[str]) -> Table:
    """Our rate, our ratio to each peer, and that to the fastest with its spread."""
    peers = [target for target in targets if target != OURS]
    made = Table(
        "work",
        "ours",
        *(f"/ {peer}" for peer in peers),
        "/ fastest",
        "spread",
        title="The production cache, and how many times as fast as each peer",
    )
    for row in measured:
        ours = f"{statistics.median(row.rates[OURS]):,.0f} {row.unit}"
        cells = [f"{statistics.median(row.ratios(peer)):.1f}" if peer in row.rates else "-" for peer in peers]
        if not row.peers:
            made.add_row(row.name, ours, *cells, "-", "-")
            continue
        ratios = row.ratios(row.fastest)
        low, high = spread(ratios)
        made.add_row(row.name, ours, *cells, f"{statistics.median(ratios):.1f}", f"{low:.1f} to {high:.1f}")
    return made


def drawn(measured: Sequence[Measured], file: Path) -> None:
    """Bars of the ratios, a group for each row, as SVG. Needs matplotlib."""
    peers = list(dict.fromkeys(peer for row in measured for peer in row.peers))
    lines = sum(len(row.peers) + 1 for row in measured)
    figure, axes = pyplot().subplots(figsize=(9, 0.19 * lines + 0.9))
    _bars(axes, measured, peers)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.axvline(TARGET, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("times as fast as the peer, median of the rounds with their spread; dashed: twice")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor=GRID)
    save(figure, file)


def _bars(axes: Any, measured: Sequence[Measured], peers: Sequence[str]) -> None:  # noqa: ANN401 -- matplotlib has no types
    """A bar for each peer of each row, from above; the name of the row beside the middle of its group."""
    place, middles = 0.0, []
    labelled: set[str] = set()
    for row in measured:
        first = place
        for peer in row.peers:
            ratios = row.ratios(peer)
            median, (low, high) = statistics.median(ratios), spread(ratios)
            axes.barh(
                place,
                median,
                height=0.85,
                color=COLOURS[peers.index(peer)],
                label=None if peer in labelled else peer.replace("==", " "),
                xerr=[[median - low], [high - median]],
                error_kw={"ecolor": INK, "elinewidth": 0.7},
            )
            axes.text(high * 1.06, place, f"{median:.1f}", va="center", fontsize=7, color=INK)
            labelled.add(peer)
            place += 1
        middles.append((first + place - 1) / 2)
        place += 1
    axes.set_yticks(middles, [row.name for row in measured])
    axes.set_ylim(place - 1, -1)
