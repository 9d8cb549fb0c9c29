"""For a conftest.py of tests that need the extra `kernels`: `from kvproof.properties.extras import pytest_pycollect_makemodule`.

The fixture `interpreter` is there for tests that compare with Triton's interpreter, which runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

MISSING = [name for name in ("torch", "triton", "numpy") if importlib.util.find_spec(name) is None]


class Unavailable(pytest.Module):
    """A module that cannot be imported here: skipped as a whole, with the reason in the summary."""

    def collect(self) -> NoReturn:
        """Nothing to collect."""
        raise pytest.skip.Exception(f"{', '.join(MISSING)} not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Put `Unavailable` in the place of every module where the extra `kernels` is missing."""
    return Unavailable.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Any]:
    """Triton's interpreter, one process for the session."""
    from kvproof.kernels.machine.interpreter import TritonInterpreter

    with TritonInterpreter() as running:
        yield running
