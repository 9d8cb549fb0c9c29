"""kvproof: verification and fuzzing for paged KV caches."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvproof.cache import cache_tests, kernel_tests
    from kvproof.fuzz.traces.record import record
    from kvproof.fuzz.traces.recorder import Recorder
    from kvproof.impl.adapter import CacheAdapter
    from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
    from kvproof.kernels.lowbit import LowBitPool, LowBitScheme
    from kvproof.models.capabilities import Capabilities, Group
    from kvproof.models.ops import Namespace
    from kvproof.models.outcomes import Differs, Event, Grant, Hit, OutOfBlocks, Refused, Snapshot

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


_PLACES: Final = {
    "kvproof.cache": ("cache_tests", "kernel_tests"),
    "kvproof.fuzz.traces.record": ("record",),
    "kvproof.fuzz.traces.recorder": ("Recorder",),
    "kvproof.impl.adapter": ("CacheAdapter",),
    "kvproof.kernels.contract": ("KVPool", "KernelCapabilities", "PagedKernels"),
    "kvproof.kernels.lowbit": ("LowBitPool", "LowBitScheme"),
    "kvproof.models.capabilities": ("Capabilities", "Group"),
    "kvproof.models.ops": ("Namespace",),
    "kvproof.models.outcomes": ("Differs", "Event", "Grant", "Hit", "OutOfBlocks", "Refused", "Snapshot"),
}


def __getattr__(name: str) -> object:
    # Adapters import this package in production, and only tests need pytest, which kvproof.cache brings along. The command imports it before it can catch
    # an interruption, so nothing is loaded here that is not asked for.
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
