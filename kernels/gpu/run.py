"""The order of a GPU run: checks first, then speed, each entry written to the report when it is known.

Exit status 0 if every check held, 1 if one is broken, 2 where there is no GPU or the request is at fault.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from kvproof.kernels.gpu import checks, measure
from kvproof.kernels.gpu.report import Check, Measurement, Report
from kvproof.kernels.gpu.tune import tune
from kvproof.kernels.paged.adapter import PagedTriton

SECONDS = 420.0
"""After this no new part begins; the longest takes half a minute, so that a run ends within eight minutes."""

LAW_SECONDS = 45.0
"""For each group of laws. Compiling is most of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything that the request names."""
    parser = argparse.ArgumentParser(description="Check and measure the paged kernels on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="report files without suffix (default: gpu-report)")
    parser.add_argument("--only", choices=("checks", "speed", "tune"), help="one part; without it checks and speed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"begin no part after this many seconds (default: {SECONDS:.0f})")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "No GPU is visible to torch on this machine, so there is nothing to check or measure; run this where torch.cuda.is_available()."
        )
        return 2
    if not options.out.parent.is_dir():
        print(f"The folder {options.out.parent} does not exist; create it or name another report with --out.")
        return 2
    report = Report(options.out, torch.cuda.get_device_name())
    for name, part in _parts(options.only, report):
        if time.monotonic() - report.start > options.seconds:
            report.problem(f"{name}: not begun, {options.seconds:.0f} s had passed")
            continue
        _guarded(name, part, report)
    print(f"{options.out}.md and {options.out}.json are written.")
    return 1 if any(check.verdict in ("broken", "error") for check in report.checks) else 0


def _guarded(name: str, part: Callable[[], None], report: Report) -> None:
    """One part; what it raises is an entry of the report, and the next part runs."""
    print(f"{time.monotonic() - report.start:6.1f} s  {name}", flush=True)
    try:
        part()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever ends a part must not end the run
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}"
        report.check(Check(name, "error", text))
        print(f"          {text}", flush=True)
    gc.collect()
    torch.cuda.empty_cache()


def _parts(only: str | None, report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and action, in order."""
    if only in (None, "checks"):
        yield from _checks(report)
    if only in (None, "speed"):
        yield from _speed(report)
    if only == "tune":
        yield "tune", lambda: tune(report)


def _checks(report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    kernels = PagedTriton()
    memory = torch.cuda.get_device_properties(0).total_memory
    pool_bytes = min(6 << 30, memory // 4)
    single: dict[str, Callable[[], str]] = {
        "decode over 8192 tokens equals torch's": lambda: checks.against_torch(kernels, "cuda"),
        "captured graph with padded lanes": lambda: checks.captured_graph(kernels, "cuda"),
        "low bits equal torch's": lambda: checks.low_bits("cuda"),
        f"pool of {2 * pool_bytes >> 30} GiB": lambda: checks.large_pool(kernels, "cuda", pool_bytes),
    }
    for name, check in single.items():
        yield name, _adding(report, name, check)
    for group in checks.GROUPS:
        yield f"laws: {group}", _judging(report, group)


def _adding(report: Report, name: str, check: Callable[[], str]) -> Callable[[], None]:
    return lambda: report.check(checks.timed(name, check))


def _judging(report: Report, group: str) -> Callable[[], None]:
    def judge() -> None:
        for entry in checks.laws(group, "cuda", LAW_SECONDS):
            report.check(entry)

    return judge


def _speed(report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    kernels, rates = PagedTriton(), measure.Rates(0.0, 0.0)

    def device() -> None:
        nonlocal rates
        copy, copied = measure.copy_bandwidth()
        matrix, multiplied = measure.matrix_rate()
        rates = measure.Rates(copy, matrix)
        report.measure(copied)
        report.measure(multiplied)

    def adding(make: Callable[[], Measurement | list[Measurement]]) -> Callable[[], None]:
        def run() -> None:
            found = make()
            for entry in found if isinstance(found, list) else [found]:
                report.measure(entry)
                print(
                    f"          {entry.name}: {entry.milliseconds:.3f} ms, {entry.value:.0f} {entry.unit}, {100 * entry.share:.1f} %",
                    flush=True,
                )

        return run

    yield "what the device does", device
    load = measure.Load
    for one in (load(), load(layout="HND"), load(ratio=8), load(stored="float8_e4m3fn"), load(stored="int8"), load(seqs=1, tokens=131072)):
        yield f"decode {one}", adding(lambda one=one: measure.decode(one, rates, kernels))  # type: ignore[misc]
    yield "decode by torch", adding(lambda: measure.decode_torch(load(), rates))
    for heads in (16, 128):
        yield f"mla decode {heads}", adding(lambda heads=heads: measure.decode_latent(64, 8192, heads, rates, kernels))  # type: ignore[misc]
    whole = load(seqs=4, tokens=4096)
    yield "prefill", adding(lambda: measure.prefill(whole, rates, kernels))
    yield "prefill by torch", adding(lambda: measure.prefill_torch(whole, rates))
    yield "store", adding(lambda: measure.store(load(tokens=2048), rates, kernels))
    yield "copy", adding(lambda: measure.copy_blocks(load(), rates, kernels))
