"""The numbers of a trace as tables, as lines of a terminal, and as a plot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kvproof.fuzz.figures import Figures, Sample
from kvproof.fuzz.programs import BadFile, write_output
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.terminal import NARROW_COLUMNS, say

BARS: Final = "▁▂▃▄▅▆▇█"

SPARK_COLUMNS: Final = 36

PLOT_SUFFIXES: Final = (".svg", ".png", ".pdf")

SERIES: Final[tuple[tuple[str, Callable[[Sample], float | None]], ...]] = (
    ("held blocks", lambda sample: sample.held_blocks),
    ("idle matchable blocks", lambda sample: sample.cached_blocks),
    ("free blocks", lambda sample: sample.free_blocks),
    ("sequences", lambda sample: sample.sequences),
    ("effective over allocated", lambda sample: sample.effective_tokens / sample.allocated_tokens if sample.allocated_tokens else None),
    ("tail waste, tokens", lambda sample: sample.allocated_tokens - sample.effective_tokens),
    ("external fragmentation", lambda sample: sample.fragmentation),
)
"""What is drawn over time, and how it is read from a sample."""


def show_figures(console: Console, figures: Figures, *, bytes_per_token: int | None = None) -> None:
    """The numbers, durations, and what the pool looked like over time."""
    rows = _rows(figures, bytes_per_token)
    if console.width < NARROW_COLUMNS:
        for name, number, remark in rows:
            say(console, f"- {name}: {number}" + (f", {remark}" if remark else ""))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if figures.durations:
        console.print()
        console.print(_durations(figures))
    if len(figures.samples) > 1:
        console.print()
        console.print(_over_time(figures.samples))


def _rows(figures: Figures, bytes_per_token: int | None) -> list[tuple[str, str, str]]:
    total = sum(figures.operations.values())
    rate = f"{total / figures.seconds:,.0f} a second by the recorder's clock" if figures.seconds else ""
    rows = [("operations", f"{total:,}", rate)]
    rows.append(("effective over allocated", _percent(figures.efficiency), f"at worst {_percent(figures.worst_efficiency)}"))
    rows.append(("tail waste", _number(figures.tail_waste), f"tokens on average; the bound n(q-1) was {_number(figures.tail_bound)}"))
    if bytes_per_token and figures.tail_waste is not None:
        rows.append(("tail waste in bytes", f"{figures.tail_waste * bytes_per_token:,.0f}", f"at {bytes_per_token:,} bytes a token"))
    rows.append(("external fragmentation", _percent(figures.fragmentation), "free blocks outside the longest run of consecutive ids"))
    reused = f"{figures.adopted_tokens:,} of {figures.prompt_tokens:,} prompt tokens were adopted"
    rows.append(("hit rate", _percent(figures.hit_rate), reused))
    rows.append(("matches that found anything", f"{figures.hits:,}", f"of {figures.matches:,}"))
    evicted = "unknown" if figures.evicted_blocks is None else f"{figures.evicted_blocks:,}"
    rows.append(("evictions", evicted, "blocks that stopped being matchable, evict and reset left out"))
    rows.append(("preemptions", f"{figures.preemptions:,}", ""))
    rows.append(("out of blocks", f"{figures.out_of_blocks:,}", f"and {figures.refused:,} refusals"))
    rows.append(("most blocks held at once", f"{figures.most_held_blocks:,}", ""))
    return rows


def _durations(figures: Figures) -> Table:
    table = Table(box=None, pad_edge=False, title="durations, in microseconds", title_justify="left")
    for name in ("operation", "count", "mean", "p50", "p90", "p99", "p99.9", "most"):
        table.add_column(name, justify="left" if name == "operation" else "right", no_wrap=True)
    for name, spent in figures.durations.items():
        values = (spent.mean, spent.p50, spent.p90, spent.p99, spent.p999, spent.most)
        table.add_row(wording.spoken(name), f"{spent.count:,}", *(f"{value:,.1f}" for value in values))
    return table


def _over_time(samples: Sequence[Sample]) -> Table:
    table = Table(box=None, pad_edge=False, title="over time", title_justify="left")
    for name in ("", "least", "", "most"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, read in SERIES:
        values = [value for sample in samples if (value := read(sample)) is not None]
        if values:
            table.add_row(name, _number(min(values)), spark(values), _number(max(values)))
    return table


def spark(values: Sequence[float]) -> str:
    """A line of bars, each the mean of its share of the values, from the least value to the most."""
    columns = min(SPARK_COLUMNS, len(values))
    shares = [values[len(values) * i // columns : len(values) * (i + 1) // columns] for i in range(columns)]
    means = [sum(share) / len(share) for share in shares]
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def plot_figures(path: Path, figures: Figures, title: str) -> None:
    """Draw the series over time into `path` (.svg, .png or .pdf). Raises BadFile where matplotlib is missing or the file cannot be written."""
    if path.suffix not in PLOT_SUFFIXES:
        raise BadFile(f"{path} cannot be drawn; name a file that ends in {wording.joined(PLOT_SUFFIXES, 'or')}.")
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise BadFile("Plots need matplotlib, which is not installed; pip install 'kvproof[plots]'.") from None
    drawn = [(name, [(s.operation, value) for s in figures.samples if (value := read(s)) is not None]) for name, read in SERIES]
    drawn = [(name, points) for name, points in drawn if points]
    if not drawn:
        raise BadFile("This trace has no operation, so there is nothing to plot.")
    figure, axes = plt.subplots(len(drawn), 1, sharex=True, figsize=(10, 1.7 * len(drawn)), squeeze=False)
    for axis, (name, points) in zip(axes[:, 0], drawn, strict=True):
        axis.plot([x for x, _ in points], [y for _, y in points], linewidth=1)
        axis.set_ylabel(name.replace(", ", "\n"), rotation=0, ha="right", va="center")
        axis.set_ylim(bottom=0)
    axes[-1, 0].set_xlabel("operation")
    axes[0, 0].set_title(title)
    figure.tight_layout()
    drawing = io.BytesIO()
    try:
        figure.savefig(drawing, format=path.suffix[1:])
    finally:
        plt.close(figure)
    write_output(path, "--plot", drawing.getvalue())


def figures_line(console: Console, figures: Figures) -> None:
    """The few numbers that an audit shows beside its verdicts."""
    parts = [f"effective over allocated {_percent(figures.efficiency)}", f"hit rate {_percent(figures.hit_rate)}"]
    parts += [wording.counted(figures.preemptions, "preemption"), f"out of blocks {figures.out_of_blocks:,} times"]
    say(console, "; ".join(parts) + "; `kvproof stats` shows all numbers.")


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
