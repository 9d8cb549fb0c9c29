"""kvproof: verification and fuzzing for paged KV caches."""

from kvproof.impl.adapter import CacheAdapter
from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import Namespace
from kvproof.models.outcomes import Event, Grant, Hit, OutOfBlocks, Refused, Snapshot

__all__ = [
    "CacheAdapter",
    "Capabilities",
    "Event",
    "Grant",
    "Group",
    "Hit",
    "KVPool",
    "KernelCapabilities",
    "Namespace",
    "OutOfBlocks",
    "PagedKernels",
    "Refused",
    "Snapshot",
]
