"""Other sizes of decode and prefill, measured: what to put into `sizes.py` for a device.

python benchmarks/gpu.py --only tune --out tuned
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

from kvproof.kernels.gpu import measure
from kvproof.kernels.gpu.device import lost
from kvproof.kernels.gpu.report import Measurement, Report
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.sizes import Tiles

DECODES = list(itertools.product((64, 128, 32), (4, 8), (5, 7), (1024, 2048, 512)))
"""Tile, warps, stages, tokens of a split. An even number of stages makes the pipeline of the odd one below it, and three fetch nothing ahead
(`sizes.DEEP`)."""

PREFILLS = [(rows, tile, warps, stages) for warps, stages, rows, tile in itertools.product((8, 4), (5, 7), (128, 64), (64, 128, 32))]
"""Rows, tile, warps, stages."""


def tuned(tiles: Tiles, split: int = 1024) -> PagedTriton:
    """Kernels with the given sizes for decode and prefill alike."""

    def same(*_: object, **__: object) -> Tiles:
        return tiles

    parts = {"decode_tiles": staticmethod(same), "prefill_tiles": staticmethod(same), "split_tokens": split, "append_tokens": 0}
    return type("Tuned", (PagedTriton,), parts)()  # type: ignore[no-any-return]


def tune(report: Report, seconds: float) -> None:
    """Decode by tile, warps, stages and split; prefill by rows, tile, warps and stages; what is likeliest to win first, turn about, until the time is
    up. What does not compile or fit is skipped with its reason; what loses the device is raised.
    """
    rates = measure.Rates()
    for known, entry in measure.device_rates(4096, 8192):
        rates = known
        report.measure(entry)
    load, whole = measure.Load(), measure.Load(seqs=4, tokens=4096)
    made, filled = measure.batch(load), measure.batch(whole)
    tries: list[tuple[str, Callable[[], Measurement]]] = []
    for decoding, prefilling in itertools.zip_longest(DECODES, PREFILLS):
        if decoding:
            tile, warps, stages, split = decoding
            name, kernels = (
                f"decode tile {tile}, {warps} warps, {stages} stages, split {split}",
                tuned(Tiles(16, tile, warps, stages), split),
            )
            tries.append((name, functools.partial(measure.decode, load, rates, kernels, name, made)))
        if prefilling:
            name, kernels = "prefill rows {}, tile {}, {} warps, {} stages".format(*prefilling), tuned(Tiles(*prefilling))
            tries.append((name, functools.partial(measure.prefill, whole, rates, kernels, name, filled)))
    for done, (name, run) in enumerate(tries):
        if time.monotonic() - report.start > seconds:
            report.problem(f"{len(tries) - done} of {len(tries)} sizes were not tried: {seconds:.0f} s had passed")
            return
        _try(report, name, run)


def _try(report: Report, name: str, run: Callable[[], Measurement]) -> None:
    try:
        found = run()
    except Exception as error:  # sizes that a device refuses are part of the answer
        lines = str(error).strip().splitlines() or ["no reason given"]
        report.problem(f"{name}: {type(error).__name__}: {lines[-1]}")
        if lost(measure.DEVICE):
            raise
        return
    report.measure(found)
    print(f"{found.name}: {found.milliseconds:.3f} ms, {found.shares_text}", flush=True)
