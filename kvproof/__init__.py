"""kvproof: verification and fuzzing for paged KV caches."""

from kvproof.impl.adapter import CacheAdapter
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
    "Namespace",
    "OutOfBlocks",
    "Refused",
    "Snapshot",
]
