"""The IR machine against Triton's own interpreter, on the same kernels and data, in one run.

    python benchmarks/machine.py

Columns: programs in the grid; seconds of the interpreter (one run); seconds of the machine with all its checks, best and median of the runs
after the first; seconds of the first run, compilation included; interpreter divided by the machine's median; and whether the results are
equal to the last bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvproof.kernels.machine import installed
from kvproof.kernels.machine.interpreter import TritonInterpreter
from kvproof.kernels.plain import kernels

HEADS, HEAD, BLOCK = 4, 64, 16


def decode_arguments(seqs: int, longest: int, dtype: type[np.floating[Any]]) -> tuple[str, tuple[int, int], list[Any], dict[str, Any]]:
    """A decode batch: sequences of half to all of `longest` tokens, four query heads on one key head."""
    rng = np.random.default_rng(0)
    lens = rng.integers(longest // 2, longest + 1, seqs)
    width = -(-longest // BLOCK)
    blocks = seqs * width
    pools = [rng.standard_normal((blocks, BLOCK, 1, HEAD)).astype(dtype) for _ in range(2)]
    query = rng.standard_normal((seqs, HEADS, HEAD)).astype(dtype)
    table = rng.permutation(blocks).reshape(seqs, width).astype(np.int32)
    one = np.ones(1, np.float32)
    arguments = [
        query,
        *pools,
        one,
        one,
        one,
        np.zeros_like(query),
        table,
        np.arange(seqs, dtype=np.int32),
        (lens - 1).astype(np.int32),
        HEAD**-0.5,
        1.0,
    ]
    strides = [BLOCK * HEAD, HEAD, HEAD]
    arguments += [HEADS * HEAD, HEAD, width, *strides, *strides, 1]
    sizes = {"RATIO": HEADS, "BLOCK": BLOCK, "PADDED_BLOCK": BLOCK, "HEAD": HEAD, "PADDED": HEAD, "VALUE_HEAD": HEAD, "VALUE_PADDED": HEAD}
    sizes |= {"WINDOW": 0, "SINKS": False, "CAPPED": False, "MODE": "plain"}
    return "attend_kernel", (seqs, HEADS), arguments, sizes


def store_arguments(tokens: int) -> tuple[str, tuple[int, int], list[Any], dict[str, Any]]:
    """A store of one tensor, a tenth of it padding."""
    rng = np.random.default_rng(1)
    blocks = -(-tokens // BLOCK)
    slots = rng.permutation(blocks * BLOCK)[:tokens].astype(np.int64)
    slots[::10] = -1
    source = rng.standard_normal((tokens, 2, HEAD)).astype(np.float32)
    pool = np.zeros((blocks, BLOCK, 2, HEAD), np.float32)
    arguments = [source, pool, np.ones(1, np.float32), slots, 2 * HEAD, HEAD, BLOCK * 2 * HEAD, 2 * HEAD, HEAD, 2]
    return "store_kernel", (tokens, 2), arguments, {"BLOCK": BLOCK, "HEAD": HEAD, "PADDED": HEAD, "MODE": "plain"}


def copy_arguments(pairs: int) -> tuple[str, tuple[int, int, int], list[Any], dict[str, Any]]:
    """A batch of block copies."""
    rng = np.random.default_rng(2)
    pool = rng.standard_normal((2 * pairs, BLOCK, 2, HEAD)).astype(np.float32)
    order = rng.permutation(2 * pairs).astype(np.int64).reshape(pairs, 2)
    sizes = {"LAST": HEAD, "PADDED": HEAD}
    return "copy_kernel", (pairs, BLOCK, 2), [pool, order, BLOCK * 2 * HEAD, 2 * HEAD, HEAD], sizes


def machine_times(
    kernel: str, grid: Sequence[int], arguments: list[Any], constants: dict[str, Any], runs: int
) -> tuple[list[float], list[Any]]:
    """Seconds of each run, and the arguments after the first one."""
    seconds: list[float] = []
    first: list[Any] = []
    for run in range(runs):
        values = [torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value for value in arguments]
        with installed() as machine:
            start = time.perf_counter()
            getattr(kernels, kernel)[tuple(grid)](*values, **constants)
            seconds.append(time.perf_counter() - start)
        if machine.violations:
            raise RuntimeError(str(machine.violations[0]))
        first = first if run else [value.numpy() if isinstance(value, torch.Tensor) else value for value in values]
    return seconds, first


def main() -> None:
    """Print one line for each workload."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="runs of the machine for each workload")
    options = parser.parse_args()
    work = {
        "decode, 4 programs, 256 tokens": decode_arguments(1, 256, np.float32),
        "decode, 64 programs, 256 tokens": decode_arguments(16, 256, np.float32),
        "decode, 64 programs, float16": decode_arguments(16, 256, np.float16),
        "decode, 256 programs, 256 tokens": decode_arguments(64, 256, np.float32),
        "store, 4 programs": store_arguments(2),
        "store, 512 programs": store_arguments(256),
        "copy, 512 programs": copy_arguments(16),
    }
    print(f"{'workload':<34} {'programs':>8} {'interpreter':>11} {'best':>9} {'median':>9} {'first':>9} {'ratio':>7}  equal")
    with TritonInterpreter() as interpreter:
        for name, (kernel, grid, arguments, constants) in work.items():
            slow, expected = interpreter.run(kernels.__file__, kernel, grid, arguments, constants)
            seconds, actual = machine_times(kernel, grid, arguments, constants, options.runs + 1)
            equal = all(np.array_equal(want, got) for want, got in zip(expected, actual, strict=True) if isinstance(want, np.ndarray))
            median = statistics.median(seconds[1:])
            best, programs = min(seconds[1:]), int(np.prod(grid))
            row = f"{name:<34} {programs:>8} {slow:>11.4f} {best:>9.4f} {median:>9.4f} {seconds[0]:>9.4f} {slow / median:>6.0f}x  {equal}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
