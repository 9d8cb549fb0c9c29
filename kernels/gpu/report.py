"""The report of a GPU run, written anew after every entry, so that a run that ends early has lost nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
import triton


@dataclasses.dataclass(frozen=True)
class Check:
    """`verdict`: held, broken, error, or not finished where the time of the run was over first, which is no fault."""

    name: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Measurement:
    """`value` in `unit`, the median of `runs`; `shares` of what the device does, by the names of `NOTE`, as far as they are known. `fastest` and
    `slowest` in milliseconds; `work`: bytes or operations of one run.
    """

    name: str
    milliseconds: float
    value: float
    unit: str
    runs: int
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    fastest: float = 0.0
    slowest: float = 0.0
    work: float = 0.0

    @property
    def shares_text(self) -> str:
        """For a reader."""
        return ", ".join(f"{100 * share:.1f} % of the {name}" for name, share in self.shares.items())


@dataclasses.dataclass(frozen=True)
class Begun:
    """A part that was begun `started` seconds into the run, and may take `limit_seconds`."""

    name: str
    started: float
    limit_seconds: float


NOTE = (
    "Medians. Shares are of rates that this run measured on the same device: bytes read and written each second by a copy, bytes read by a sum, "
    "operations of a matrix product. The peak is what the memory's clock and width allow, where the driver names them. A decode only reads, and memory "
    "that is read alone is faster than in a copy: its share of the copy can be more than 100 %, its share of the sum is the fairer one."
)


class Report:
    """`path` without suffix; `.md` and `.json` are written beside each other. `rates`: bytes and operations each second of the device, by what was
    measured. With `start`, a time of the monotonic clock, the report of an earlier process of the same run is gone on with.
    """

    def __init__(self, path: Path, device: str, start: float | None = None) -> None:
        self.path, self.device = path, device
        self.checks: list[Check] = []
        self.measurements: list[Measurement] = []
        self.problems: list[str] = []
        self.begun: list[Begun] = []
        self.rates: dict[str, float] = {}
        self.start = time.monotonic() if start is None else start
        self.complete = False
        if start is None:
            self.write()
        else:
            self.read()
            self.device = device

    def read(self) -> None:
        """What another process has written."""
        held = json.loads(self.path.with_name(self.path.name + ".json").read_text(encoding="utf-8"))
        self.device, self.complete = held["device"], held["complete"]
        self.checks = [Check(**entry) for entry in held["checks"]]
        self.measurements = [Measurement(**entry) for entry in held["measurements"]]
        self.problems, self.rates = held["problems"], held["rates"]
        self.begun = [Begun(**entry) for entry in held["begun"]]

    def begin(self, name: str, limit_seconds: float) -> None:
        """Say what is done now."""
        self.begun.append(Begun(name, time.monotonic() - self.start, limit_seconds))
        self.write()

    def check(self, *entries: Check) -> None:
        """Add, or put in the place of what was known under the same name, and write."""
        held = {entry.name: entry for entry in self.checks}
        held.update((entry.name, entry) for entry in entries)
        self.checks = list(held.values())
        self.write()

    def cut_off(self, name: str, verdict: str, why: str) -> None:
        """A part was ended before it could say so itself; what it had said stays behind the reason."""
        known = next((entry for entry in self.checks if entry.name == name), Check(name, verdict))
        self.check(dataclasses.replace(known, verdict=verdict, detail="; ".join(filter(None, [why, known.detail]))))

    @property
    def at_fault(self) -> list[str]:
        """Names of the entries that are broken or could not run."""
        return [entry.name for entry in self.checks if entry.verdict in ("broken", "error")]

    def measure(self, entry: Measurement) -> None:
        """Add and write."""
        self.measurements.append(entry)
        self.write()

    def problem(self, text: str) -> None:
        """Add and write what kept a part of the run from happening."""
        self.problems.append(text)
        self.write()

    def finish(self) -> None:
        """Write that nothing is missing because the run was cut off."""
        self.complete = True
        self.write()

    def facts(self) -> dict[str, Any]:
        """What ran where."""
        return {
            "device": self.device,
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
            "runtime": _runtime(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "seconds": round(time.monotonic() - self.start, 1),
            "complete": self.complete,
        }

    def write(self) -> None:
        """Both files, each whole or not at all."""
        held = {
            "version": 1,
            **self.facts(),
            "checks": [dataclasses.asdict(entry) for entry in self.checks],
            "measurements": [dataclasses.asdict(entry) for entry in self.measurements],
            "problems": self.problems,
            "begun": [dataclasses.asdict(entry) for entry in self.begun],
            "rates": self.rates,
        }
        self._replace(".json", json.dumps(held, indent=2) + "\n")
        self._replace(".md", self.markdown())

    def _replace(self, suffix: str, text: str) -> None:
        target = self.path.with_name(self.path.name + suffix)
        part = target.with_name(target.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)

    def _summary(self) -> str:
        """In one sentence, for who reads no further."""
        held = sum(entry.verdict == "held" for entry in self.checks)
        faults = f"At fault: {', '.join(self.at_fault)}. " if self.at_fault else ""
        end = "The run reached its end." if self.complete else "The run was cut off, or is still going on."
        return f"{held} of {len(self.checks)} entries hold. {faults}{end}"

    def markdown(self) -> str:
        """The report as a page."""
        facts = self.facts()
        lines = [
            f"# Paged kernels on {facts['device']}",
            "",
            f"{facts['runtime']}, torch {facts['torch']}, Triton {facts['triton']}; {facts['seconds']} s on {facts['day']}. Made by `python benchmarks/gpu.py`.",
            "",
            self._summary(),
            "",
            "## Checks",
            "",
            "| check | verdict | seconds | |",
            "|---|---|--:|---|",
            *(f"| {entry.name} | {entry.verdict} | {entry.seconds:.1f} | {_cell(entry.detail)} |" for entry in self.checks),
            "",
            "## Measurements",
            "",
            NOTE,
            "",
            "| what | ms | fastest, slowest | work | rate | shares | runs |",
            "|---|--:|--:|--:|--:|---|--:|",
            *(_row(entry) for entry in self.measurements),
        ]
        if self.problems:
            lines += ["", "## Not done", "", *(f"* {_cell(problem)}" for problem in self.problems)]
        return "\n".join(lines) + "\n"


def _runtime() -> str:
    """The release of the GPU's runtime that torch was built for."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "No GPU runtime"


def _row(entry: Measurement) -> str:
    work = f"{entry.work / 1e9:.1f} {'GB' if entry.unit == 'GB/s' else 'GFLOP'}"
    times = f"{entry.milliseconds:.3f} | {entry.fastest:.3f}, {entry.slowest:.3f}"
    return f"| {entry.name} | {times} | {work} | {entry.value:.1f} {entry.unit} | {entry.shares_text} | {entry.runs} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
