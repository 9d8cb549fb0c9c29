"""What kvproof knows of LMCache: where its files are, which of its modules run, and how they are driven."""

from __future__ import annotations

from typing import Final

from kvproof.impl.foreign.releases import Engine, Variant

MANAGEMENT: Final = "lmcache.v1.memory_management"
ALLOCATORS: Final = "lmcache.v1.memory_allocators"
STORAGE: Final = "lmcache.v1.storage_backend"
HOT: Final = f"{STORAGE}.local_cpu_backend"


class PinMonitor:
    """Unpins what has been pinned for minutes, which never comes to pass here."""

    @classmethod
    def GetOrCreate(cls, *_: object) -> PinMonitor:  # noqa: N802 -- the engine's name
        """The one that watches."""
        return cls()

    def on_pin(self, *_: object) -> None:
        """Nothing is waited for."""

    on_unpin = on_pin


LMCACHE: Final = Engine(
    name="lmcache",
    package="lmcache",
    sources=("lmcache",),
    keep=(
        "lmcache/integration/vllm/utils.py",
        "lmcache/utils.py",
        "lmcache/v1/memory_management.py",
        "lmcache/v1/memory_allocators/",
        "lmcache/v1/storage_backend/",
    ),
    real=(
        MANAGEMENT,
        HOT,
        f"{ALLOCATORS}.mixed_memory_allocator",
        f"{ALLOCATORS}.tensor_memory_allocator",
        f"{STORAGE}.abstract_backend",
        f"{STORAGE}.cache_policy",
        "lmcache.integration.vllm.utils",
        "lmcache.utils",
    ),
    kept=("cachetools", "numpy", "sortedcontainers", "torch"),
    needs=("sortedcontainers", "torch"),
    inert={
        "lmcache.logging": "it only writes logs",
        "lmcache.observability": "it only measures",
    },
    answers={"lmcache.v1.pin_monitor.PinMonitor": PinMonitor},
    variants={
        "tensors": Variant("kvproof.impl.foreign.lmcache.memory:Tensors", "LMCache's allocator of memory objects in CPU RAM", MANAGEMENT),
        "hot": Variant("kvproof.impl.foreign.lmcache.hot:Hot", "LMCache's index of chunks in CPU RAM over its allocator", HOT),
    },
    oldest="0.3.1",
    newest="0.5.6",
)
