"""kvproof: verification and fuzzing for paged KV caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.impl.adapter import CacheAdapter
from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.lowbit import LowBitPool, LowBitScheme
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import Namespace
from kvproof.models.outcomes import Differs, Event, Grant, Hit, OutOfBlocks, Refused, Snapshot

if TYPE_CHECKING:
    from kvproof.cache import cache_tests, kernel_tests
    from kvproof.fuzz.traces.record import record
    from kvproof.fuzz.traces.recorder import Recorder

__all__ = [
    "CacheAdapter",
    "Capabilities",
    "Differs",
    "Event",
    "Grant",
    "Group",
    "Hit",
    "KVPool",
    "KernelCapabilities",
    "LowBitPool",
    "LowBitScheme",
    "Namespace",
    "OutOfBlocks",
    "PagedKernels",
    "Recorder",
    "Refused",
    "Snapshot",
    "cache_tests",
    "kernel_tests",
    "record",
]


def __getattr__(name: str) -> object:
    # Adapters import this package in production; only tests need pytest, which kvproof.cache brings along.
    if name in ("cache_tests", "kernel_tests"):
        from kvproof import cache

        return getattr(cache, name)
    if name == "record":
        from kvproof.fuzz.traces.record import record

        return record
    if name == "Recorder":
        from kvproof.fuzz.traces.recorder import Recorder

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
