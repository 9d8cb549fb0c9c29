"""The production cache beside the caches of real engines: the same work, in one process each, in turn.

    python benchmarks/peers.py [--rounds 7] [--seconds 0.2] [--peers vllm==0.33.0,...] [--rows TEXT] [--json FILE] [--picture FILE]

In each round of a row every cache works for so many seconds of processor time, one after the other, ours first, so that what disturbs the machine disturbs all. The
ratio of a round is ours over the peer's; what is printed is the median of the rounds, and between which ratios they lie. Where a peer is not given, the
engine does not run that way. `docs/speed.md` says which promises stand behind the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from beside.players import OURS, PLAYERS
from beside.show import Measured, drawn, table
from beside.work import ROWS
from rich.console import Console
from rich.progress import Progress

PEERS: Final = (
    "vllm==0.33.0",
    "vllm==0.12.0",
    "sglang==0.5.23",
    "transformers==5.24.0",
    "nano-vllm-fork==20260210",
    "nano-vllm-npu==0.0.2",
)
"""The newest release of each engine, and the vLLM whose decode is the fastest."""

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Tensors of 256 numbers gain nothing by threads, and processor time counts them all."""


class Worker:
    """A process with one cache."""

    def __init__(self, target: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "beside.worker", target],
            cwd=Path(__file__).parent,
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.target = target

    def rate(self, row: int, seconds: float) -> float | None:
        """How fast it is, in units for each second; None where it does not run that way."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        try:
            self.process.stdin.write(json.dumps({"row": row, "seconds": seconds}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            last = self.process.stderr.read().strip().splitlines()[-1:]
            raise SystemExit(f"The process of {self.target} ended at the row {ROWS[row].name!r}: {' '.join(last)}")
        rate: float | None = json.loads(answer)
        return rate

    def end(self) -> None:
        """No more work."""
        self.process.kill()
        self.process.communicate()


def measure(targets: tuple[str, ...], rows: list[int], rounds: int, seconds: float, tick: Callable[[], object]) -> list[Measured]:
    """Every row on every cache, in turn."""
    workers = [Worker(target) for target in targets]
    measured = []
    try:
        for row in rows:
            rates: dict[str, list[float]] = {target: [] for target in targets}
            for _ in range(rounds):
                for worker in workers:
                    rate = worker.rate(row, seconds)
                    if rate is not None:
                        rates[worker.target].append(rate)
                    tick()
            measured.append(Measured(ROWS[row].name, ROWS[row].unit, {target: found for target, found in rates.items() if found}))
    finally:
        for worker in workers:
            worker.end()
    return measured


def main() -> None:
    """Measures, prints the table, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each row; the median counts")
    parser.add_argument("--seconds", type=float, default=0.2, help="processor time of one cache in one round")
    parser.add_argument("--peers", default=",".join(PEERS), help="releases to stand beside")
    parser.add_argument("--rows", metavar="TEXT", default="", help="only rows whose name contains this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every rate there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios there, as SVG (extra `plots`)")
    arguments = parser.parse_args()
    peers = tuple(filter(None, arguments.peers.split(",")))
    for peer in peers:
        if peer.partition("==")[0] not in PLAYERS:
            parser.exit(2, f"There is no player for {peer}; --peers takes releases of {', '.join(sorted(PLAYERS))}.\n")
    targets = (OURS, *peers)
    rows = [number for number, row in enumerate(ROWS) if arguments.rows in row.name]
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=len(rows) * arguments.rounds * len(targets))
        measured = measure(targets, rows, arguments.rounds, arguments.seconds, lambda: progress.advance(task))
    Console(width=200 if not sys.stdout.isatty() else None, markup=False).print(table(measured, targets))
    if arguments.json:
        told = {"python": platform.python_version(), "rounds": arguments.rounds, "seconds": arguments.seconds}
        rows_told = [{"work": row.name, "unit": row.unit, "rates": row.rates} for row in measured]
        arguments.json.write_text(json.dumps({**told, "rows": rows_told}, indent=2) + "\n")
    if arguments.picture:
        drawn(measured, arguments.picture)


if __name__ == "__main__":
    main()
