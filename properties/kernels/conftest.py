"""What all kernel properties share: skipping where torch or triton is missing, and Triton's interpreter in a process of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

MISSING = [name for name in ("torch", "triton", "numpy") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    """Say why nothing is collected."""
    return f"kernel properties skipped: {', '.join(MISSING)} not installed" if MISSING else "kernel properties: torch and triton found"


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Any]:
    """Triton's interpreter, one process for the session."""
    from kvproof.kernels.machine.interpreter import TritonInterpreter

    with TritonInterpreter() as running:
        yield running
