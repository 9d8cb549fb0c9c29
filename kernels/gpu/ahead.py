"""Kernels compiled ahead of a run, by processes that need no GPU: compiling takes most of the time of a run, and a process compiles on one core.

Each takes a share of the run's parts on tensors without contents ("meta"), and of the cases of the laws on CPU tensors, compiles what they launch, and
leaves it in Triton's cache on disk, where the run finds it. What fails here fails there again, and is reported there.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kvproof.kernels.gpu import checks
from kvproof.kernels.laws.cases import sweep
from kvproof.kernels.laws.staging import stage
from kvproof.kernels.paged import sizes
from kvproof.kernels.paged.compiling import compile_for

PROCESSES = 8
"""At most; two cores are left to the run itself."""

SECONDS = 240
"""So long a process may live, whatever becomes of the run."""


def start(command: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """The processes, for the GPU of this one: `command` with their share behind `--ahead`. None where its kind cannot be told."""
    try:
        found = triton.runtime.driver.active.get_current_target()
        own = sizes.target_of(torch.device("cuda"))
    except Exception:  # noqa: BLE001 - the run says what is wrong
        return []
    count = min(PROCESSES, len(os.sched_getaffinity(0)) - 2)
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    kind = [found.backend, found.arch, found.warp_size], [own.backend, own.e4m3, own.shared_operands]
    return [
        subprocess.Popen(  # noqa: S603 - this run's own script
            [*command, "--ahead", json.dumps([*kind, number, count])],
            env=hidden,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(count)
    ]


def settle(target: Sequence[Any]) -> None:
    """Make this process one that compiles for such a GPU, on one core, and that ends by itself."""
    signal.alarm(SECONDS)
    os.nice(10)
    torch.set_num_threads(1)
    sizes.target_of.cache_clear()
    sizes.ELSEWHERE = sizes.Target(*target)


def compile_share(parts: Sequence[Callable[[], None]], groups: Sequence[str], kind: Sequence[Any], number: int, count: int) -> None:
    """Share `number` of `count` of the parts, every `count`th of them, and of the cases of these groups of laws, whose neighbours share kernels."""
    with compiling(GPUTarget(*kind)):
        for part in parts[number::count]:
            with contextlib.suppress(Exception):
                part()
        cases = [case for group in groups for case in sweep(checks.claims_of(group), random.Random(0))]
        for case in cases[number * len(cases) // count : (number + 1) * len(cases) // count]:
            with contextlib.suppress(Exception):
                stage(case).invoke(checks.ShortSplits())


@contextlib.contextmanager
def compiling(target: GPUTarget) -> Iterator[None]:
    """Compile the launches of the block instead of running them."""
    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ANN401, ARG001 - Triton's own signature
        with contextlib.suppress(Exception):
            compile_for(target, self, args, options)

    JITFunction.run = compiled
    try:
        yield
    finally:
        JITFunction.run = run
