"""Runs kernels under Triton's own interpreter in a process of its own, because the choice is made when `triton` is imported.

Requests come on standard input as pickled `(path, kernel, grid, args, constants)`; the answer is the list of argument arrays afterwards, or
the error's text.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import time
from typing import Any, BinaryIO


def load_module(path: str) -> Any:
    """The module at a path, imported under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"kernels_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    import torch

    modules: dict[str, Any] = {}
    while True:
        try:
            path, kernel, grid, args, constants = pickle.load(source)
        except EOFError:
            return
        try:
            if path not in modules:
                modules[path] = load_module(path)
            tensors = [torch.from_numpy(arg.copy()) if hasattr(arg, "dtype") else arg for arg in args]
            start = time.perf_counter()
            getattr(modules[path], kernel)[grid](*tensors, **constants)
            seconds = time.perf_counter() - start
            answer: Any = (seconds, [tensor.numpy() if hasattr(tensor, "numpy") else tensor for tensor in tensors])
        except Exception as error:  # noqa: BLE001 - whatever the interpreter raises is the answer
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Prints of a kernel must not mix with the answers.
    serve(sys.stdin.buffer, answers)
