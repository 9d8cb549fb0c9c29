"""The order of a GPU run: checks of a few seconds each, then speed, then the kernel laws with the time that is left. Each entry is written to the
report when it is known, and parts run in processes that can be lost (`supervise`).

Exit status 0 if every check held that the time allowed, 1 if one is broken or could not run, 2 where there is no GPU or the request is at fault.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kvproof.kernels.gpu import ahead, checks, graphs, measure
from kvproof.kernels.gpu.report import Measurement, Report
from kvproof.kernels.gpu.supervise import LOST, end_with, supervise
from kvproof.kernels.gpu.tune import tune
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.adapter import PagedTriton

SECONDS = 420.0
"""After this no new part begins, and groups of laws share what is left of it. A case of the laws takes seconds, most of them for compiling."""

GRACE_SECONDS = 45.0
"""So long a part that has begun may go on; then the run is cut off, wherever it is, with everything on disk that was known."""


PART_SECONDS = 90.0
"""So long a part may take before its process is ended; it takes some ten seconds, most of them for compiling. Groups of laws may take as much beyond
their share of the time, tuning all that is left."""


@dataclasses.dataclass(frozen=True)
class Rig:
    """Where a run takes place. `load` makes a load of the given sizes, or a smaller one."""

    name: str
    device: str
    capture: graphs.Capture
    pool_bytes: int
    load: Callable[..., measure.Load]
    copy_megabytes: int = 4096
    matrix_size: int = 8192


def gpu() -> Rig:
    """The first GPU."""
    pool_bytes = min(6 << 30, torch.cuda.get_device_properties(0).total_memory // 4)
    return Rig(torch.cuda.get_device_name(), "cuda", graphs.cuda_graph, pool_bytes, measure.Load)


def _small(**sizes: Any) -> measure.Load:  # noqa: ANN401 - those of a load
    return dataclasses.replace(measure.Load(**sizes), seqs=2, tokens=256, kv_heads=2, head=64)


DRY = Rig("no device (a dry run: its times mean nothing)", "cpu", graphs.emulated, 1 << 20, _small, 1, 64)
"""The IR machine in place of a GPU, to see that every part runs."""

AHEAD = Rig("no device (kernels are compiled)", "meta", graphs.emulated, 6 << 30, measure.Load)
"""Tensors without contents."""


def main(arguments: Sequence[str] | None = None, script: str = "") -> int:
    """Run everything that the request names. With `script`, which must call this function, in processes of their own."""
    parser = argparse.ArgumentParser(description="Check and measure the paged kernels on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="report files without suffix (default: gpu-report)")
    parser.add_argument("--only", choices=("checks", "speed", "tune"), help="one part; without it checks and speed")
    parser.add_argument(
        "--dry-run", action="store_true", help="without a GPU: every part on the IR machine and small loads; its times mean nothing"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"begin no part after this many seconds (default: {SECONDS:.0f})")
    parser.add_argument("--worker", type=float, nargs=2, metavar=("START", "SUPERVISOR"), help=argparse.SUPPRESS)
    parser.add_argument("--ahead", type=json.loads, metavar="SHARE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ahead:
        return _compile_share(options.only, options.ahead)
    if not options.dry_run and not torch.cuda.is_available():
        print(
            "No GPU is visible to torch on this machine, so there is nothing to check or measure; run this where torch.cuda.is_available()."
        )
        return 2
    if not options.out.parent.is_dir():
        print(f"The folder {options.out.parent} does not exist; create it or name another report with --out.")
        return 2
    again = [sys.executable, script, *(sys.argv[1:] if arguments is None else arguments)]
    if script and options.worker is None:
        report = Report(options.out, "not known yet")
        worker = [*again, "--worker", str(report.start), str(os.getpid())]
        return supervise(worker, report, report.start + options.seconds + GRACE_SECONDS)
    rig = DRY if options.dry_run else gpu()
    measure.DEVICE = rig.device
    start = None
    if options.worker:
        start, supervisor = options.worker
        end_with(int(supervisor))
    report = Report(options.out, rig.name, start)
    helpers = ahead.start(again) if script and not options.dry_run and options.only != "tune" else []
    try:
        return _go_through(options.only, rig, report, options.seconds)
    finally:
        for helper in helpers:
            helper.kill()


def _compile_share(only: str | None, share: list[Any]) -> int:
    """What a process does that compiles ahead."""
    kind, target, number, count = share
    ahead.settle(target)
    measure.DEVICE = AHEAD.device
    with tempfile.TemporaryDirectory() as folder:
        parts = dict(_parts(only, AHEAD, Report(Path(folder) / "ahead", AHEAD.name), 0.0))
        groups = [group for group in checks.GROUPS if parts.pop(f"laws: {group}", None)]
        ahead.compile_share(list(parts.values()), groups, kind, number, count)
    return 0


def _go_through(only: str | None, rig: Rig, report: Report, seconds: float) -> int:
    """Every part that was not begun yet; returns the exit status."""
    known = {part.name for part in report.begun}
    for name, part in _parts(only, rig, report, seconds):
        spent = time.monotonic() - report.start
        if name in known:
            continue
        if spent > seconds:
            report.problem(f"{name}: not begun, {seconds:.0f} s had passed")
            continue
        report.begin(name, _limit(name, seconds - spent))
        if not _guarded(name, part, report, on_machine=rig.device == "cpu"):
            print("          the device no longer answers; another process goes on", flush=True)
            return LOST
    report.finish()
    print(f"{report.path}.md and {report.path}.json are written.")
    return 1 if report.at_fault else 0


def _limit(name: str, left: float) -> float:
    """How long a part may take, of the seconds that are left: a group of laws its share and what its last case may need beyond."""
    if name == "tune":
        return left + GRACE_SECONDS
    group = name.removeprefix("laws: ")
    return PART_SECONDS + (left / _groups_from(group) if group in checks.GROUPS else 0.0)


def _groups_from(group: str) -> int:
    """How many groups of laws there are from this one on, which share the time that is left."""
    return len(checks.GROUPS) - list(checks.GROUPS).index(group)


def _guarded(name: str, part: Callable[[], None], report: Report, *, on_machine: bool = False) -> bool:
    """One part; what it raises is an entry of the report. False where the device is lost to this process, so that no later part could run. A dry
    run is on the IR machine, whether there is a GPU or not.
    """
    print(f"{time.monotonic() - report.start:6.1f} s  {name}", flush=True)
    try:
        with Machine().installed() if on_machine else contextlib.nullcontext():
            part()
        _settle()
    except Exception as error:  # noqa: BLE001 - whatever ends a part must not end the run
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}"
        report.cut_off(name, "error", text)
        print(f"          {text}", flush=True)
        try:
            _settle()
        except Exception:  # noqa: BLE001 - whatever it says, nothing can be asked of the device any more
            return False
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return True


def _settle() -> None:
    """Wait for the device: what went wrong there belongs to this part."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _parts(only: str | None, rig: Rig, report: Report, seconds: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and action, in order. The laws come last: they can use whatever time there is, and what a run is cut off in should be the least of it."""
    if only in (None, "checks"):
        yield from _checks(rig, report)
    if only in (None, "speed"):
        yield from _speed(rig, report)
    if only in (None, "checks"):
        for group in checks.GROUPS:
            yield f"laws: {group}", _judging(rig, report, group, seconds)
    if only == "tune":
        yield "tune", lambda: tune(report, seconds)


def _checks(rig: Rig, report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    kernels, device, pool_bytes = PagedTriton(), rig.device, rig.pool_bytes
    single: dict[str, Callable[[], str]] = {
        "decode over 8192 tokens equals torch's": lambda: checks.against_torch(kernels, device),
        "append to 8192 tokens equals torch's": lambda: checks.against_torch(kernels, device, queries=5),
        "low bits equal torch's": lambda: checks.low_bits(device),
        f"pool of {2 * pool_bytes >> 20} MiB": lambda: checks.large_pool(kernels, device, pool_bytes),
    }
    for name, kind in graphs.STEPS.items():
        single[f"captured graph: {name}"] = functools.partial(graphs.captured_graph, checks.ShortSplits(), device, rig.capture, kind)
    for name, check in single.items():
        yield name, _adding(report, name, check)


def _adding(report: Report, name: str, check: Callable[[], str]) -> Callable[[], None]:
    return lambda: report.check(checks.timed(name, check))


def _judging(rig: Rig, report: Report, group: str, seconds: float) -> Callable[[], None]:
    """An equal share of the time that is left for each group to come."""

    def judge() -> None:
        share = (seconds - (time.monotonic() - report.start)) / _groups_from(group)
        checks.laws(group, rig.device, share, lambda entries: report.check(*entries))

    return judge


def _speed(rig: Rig, report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    kernels = PagedTriton()

    def device() -> None:
        for rates, entry in measure.device_rates(rig.copy_megabytes, rig.matrix_size):
            report.rates = dataclasses.asdict(rates)
            report.measure(entry)

    def adding(make: Callable[[measure.Rates], Measurement | Iterable[Measurement]]) -> Callable[[], None]:
        def run() -> None:
            found = make(measure.Rates(**report.rates))
            for entry in [found] if isinstance(found, Measurement) else found:
                report.measure(entry)
                print(
                    f"          {entry.name}: {entry.milliseconds:.3f} ms, {entry.value:.0f} {entry.unit}, {entry.shares_text}",
                    flush=True,
                )

        return run

    yield "what the device does", device
    load = rig.load
    whole = load(seqs=4, tokens=4096)
    # The two goals first: of a run that is cut short they are the least to be missed.
    yield "speed of decode", adding(lambda rates: measure.decode(load(), rates, kernels))
    yield "speed of prefill", adding(lambda rates: measure.prefill(whole, rates, kernels))
    others = {
        "HND": load(layout="HND"),
        "8 queries a head": load(ratio=8),
        "e4m3": load(stored="float8_e4m3fn"),
        "int8": load(stored="int8"),
        "one long sequence": load(seqs=1, tokens=131072),
    }
    for name, one in others.items():
        yield f"speed of decode, {name}", adding(lambda rates, one=one: measure.decode(one, rates, kernels))  # type: ignore[misc]
    yield "speed of append", adding(lambda rates: measure.append(load(tokens=32768, seqs=16), 5, rates, kernels))
    yield "speed of torch's decode", adding(lambda rates: measure.decode_torch(load(), rates))
    yield "speed of torch's prefill", adding(lambda rates: measure.prefill_torch(whole, rates))
    for heads in (16, 128):
        yield (
            f"speed of mla decode, {heads} heads",
            adding(lambda rates, heads=heads: measure.decode_latent(load(), heads, rates, kernels)),  # type: ignore[misc]
        )
    yield "speed of mla decode, e4m3", adding(lambda rates: measure.decode_latent(load(stored="float8_e4m3fn"), 16, rates, kernels))
    yield "speed of mla append", adding(lambda rates: measure.decode_latent(load(), 128, rates, kernels, new=2))
    yield "speed of decode, low bits", adding(lambda rates: measure.decode_low_bits(load(), rates))
    yield "speed of store", adding(lambda rates: measure.store(load(tokens=2048), rates, kernels))
    yield "speed of block copies", adding(lambda rates: measure.copy_blocks(load(), rates, kernels))
