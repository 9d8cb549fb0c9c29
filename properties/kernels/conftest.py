"""Kernel properties need torch and triton; without them they are skipped, and say so."""

from __future__ import annotations

import importlib.util

MISSING = [name for name in ("torch", "triton", "numpy") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    """Say why nothing is collected."""
    return f"kernel properties skipped: {', '.join(MISSING)} not installed" if MISSING else "kernel properties: torch and triton found"
