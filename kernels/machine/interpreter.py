"""Triton's own interpreter in a process of its own: what the machine is compared with and measured against.

Triton decides when it is imported whether `@triton.jit` compiles or interprets, so both cannot live in one process. This file is also the
program of that other process: requests come on its standard input as pickled `(path, kernel, grid, arguments, constants)`, the answer is
the seconds taken and the argument arrays afterwards, or the text of the error.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO


class InterpreterError(RuntimeError):
    """Triton's interpreter refused a kernel; the message is its own."""


class TritonInterpreter:
    """The other process. Use as a context manager, or call `close`."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        command = [sys.executable, "-W", "ignore", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)  # noqa: S603

    def run(
        self, path: Path | str, kernel: str, grid: tuple[int, ...], arguments: Sequence[Any], constants: dict[str, Any]
    ) -> tuple[float, list[Any]]:
        """Run the kernel of a source file on numpy arrays and numbers: seconds taken, and the arguments afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((str(path), kernel, grid, list(arguments), constants), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)  # noqa: S301 - our own process
        if isinstance(answer, str):
            raise InterpreterError(f"{kernel}: {answer}")
        seconds, arrays = answer
        return float(seconds), list(arrays)

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(timeout=30)

    def __enter__(self) -> TritonInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_module(path: str | Path) -> Any:
    """Import a source file by its path."""
    name = "kernels_" + "".join(char if char.isalnum() else "_" for char in str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    import torch

    torch.set_num_threads(1)
    modules: dict[str, Any] = {}
    while True:
        try:
            path, kernel, grid, arguments, constants = pickle.load(source)  # noqa: S301 - our own process
        except EOFError:
            return
        try:
            if path not in modules:
                modules[path] = load_module(path)
            tensors = [torch.from_numpy(value.copy()) if hasattr(value, "dtype") else value for value in arguments]
            start = time.perf_counter()
            getattr(modules[path], kernel)[grid](*tensors, **constants)
            seconds = time.perf_counter() - start
            answer: Any = (seconds, [value.numpy() if hasattr(value, "numpy") else value for value in tensors])
        except Exception as error:  # noqa: BLE001 - whatever the interpreter raises is the answer
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a kernel prints must not mix with the answers.
    _serve(sys.stdin.buffer, answers)
