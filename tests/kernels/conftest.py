"""What all kernel tests share: skipping where torch or triton is missing, and Triton's interpreter in a process of its own."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("torch", "triton", "numpy") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


class Interpreter:
    """Triton's interpreter behind a pipe."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(HERE / "interpreter_server.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def run(
        self, path: Path | str, kernel: str, grid: tuple[int, ...], args: list[Any], constants: dict[str, Any]
    ) -> tuple[float, list[Any]]:
        """Seconds taken and the arguments afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((str(path), kernel, grid, args, constants), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, str):
            raise AssertionError(f"the interpreter refused {kernel}: {answer}")
        return answer

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(timeout=30)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    server = Interpreter()
    yield server
    server.close()
