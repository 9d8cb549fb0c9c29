"""Other sizes of decode and prefill, measured: what to put into `sizes.py` for a device.

python benchmarks/gpu.py --only tune --out tuned
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kvproof.kernels.gpu import measure
from kvproof.kernels.gpu.report import Measurement, Report
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.sizes import Tiles


def tuned(tiles: Tiles, split: int = 1024) -> PagedTriton:
    """Kernels with the given sizes for decode and prefill alike."""

    def same(*_: object, **__: object) -> Tiles:
        return tiles

    parts = {"decode_tiles": staticmethod(same), "prefill_tiles": staticmethod(same), "split_tokens": split}
    return type("Tuned", (PagedTriton,), parts)()  # type: ignore[no-any-return]


def tune(report: Report) -> None:
    """Decode by tile, warps, stages and split; prefill by rows, tile, warps and stages. What does not compile or fit is skipped with its reason."""
    copy, copied = measure.copy_bandwidth()
    matrix, multiplied = measure.matrix_rate()
    report.measure(copied)
    report.measure(multiplied)
    rates = measure.Rates(copy, matrix)
    for tile, warps, stages, split in itertools.product((32, 64, 128), (4, 8), (2, 4, 6), (512, 1024, 2048)):
        name = f"decode tile {tile}, {warps} warps, {stages} stages, split {split}"
        sizes = Tiles(16, tile, warps, stages)
        _try(report, name, lambda name=name, sizes=sizes, split=split: measure.decode(measure.Load(), rates, tuned(sizes, split), name))  # type: ignore[misc]
    for rows, tile, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        name = f"prefill rows {rows}, tile {tile}, {warps} warps, {stages} stages"
        sizes, whole = Tiles(rows, tile, warps, stages), measure.Load(seqs=4, tokens=4096)
        _try(report, name, lambda name=name, sizes=sizes, whole=whole: measure.prefill(whole, rates, tuned(sizes), name))  # type: ignore[misc]


def _try(report: Report, name: str, run: Callable[[], Measurement]) -> None:
    try:
        found = run()
    except Exception as error:  # noqa: BLE001 - sizes that a device refuses are part of the answer
        report.problem(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1]}")
        return
    report.measure(found)
    print(f"{found.name}: {found.milliseconds:.3f} ms, {100 * found.share:.1f} %", flush=True)
