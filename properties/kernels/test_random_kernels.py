"""On random kernels the machine and Triton's interpreter agree to the last bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, note, reject, settings

from kvproof.kernels.machine import installed
from kvproof.kernels.machine.interpreter import InterpreterError, load_module

from .random_kernels import kernels

PROGRAMS, N = 5, 16


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=kernels())
def test_the_machine_equals_the_interpreter(source: str, interpreter: Any, tmp_path_factory: Any) -> None:
    path = _write(source, tmp_path_factory.getbasetemp())
    note(source)
    rng = np.random.default_rng(len(source))
    x, y = (rng.integers(-(2**31), 2**31, PROGRAMS * N).astype(np.int32) for _ in range(2))
    arrays, n = [x, y, np.zeros(PROGRAMS * N + 8, np.int32)], PROGRAMS * N - 11
    try:
        _, expected = interpreter.run(path, "kernel", (PROGRAMS,), [*arrays, n], {"N": N})
    except InterpreterError as error:
        # Triton 3.8's interpreter refuses some kernels that its compiler takes; too many of them fail the test as unsatisfiable.
        note(str(error))
        reject()
    actual = [torch.from_numpy(array.copy()) for array in arrays]
    with installed() as machine:
        load_module(path).kernel[(PROGRAMS,)](*actual, n, N=N)
    assert machine.violations == []
    assert [array.tobytes() for array in expected[:3]] == [tensor.numpy().tobytes() for tensor in actual]


def _write(source: str, directory: Path) -> Path:
    path = directory / f"random_{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
    path.write_text(source)
    return path
