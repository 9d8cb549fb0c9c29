"""What kvproof knows of transformers: where its files are, which of its modules run, and how they are driven."""

from __future__ import annotations

from typing import Final

from kvproof.impl.foreign.releases import Engine, Variant

BATCHING: Final = "transformers.generation.continuous_batching"
_BLOCKS: Final = "kvproof.impl.foreign.transformers.blocks"

TRANSFORMERS: Final = Engine(
    name="transformers",
    package="transformers",
    sources=("transformers",),
    keep=("transformers/generation/continuous_batching/",),
    real=(f"{BATCHING}.cache", f"{BATCHING}.cache_allocators", f"{BATCHING}.cache_manager", f"{BATCHING}.requests", f"{BATCHING}.utils"),
    inert={
        "transformers.utils.logging": "it only writes logs",
        "torch._dynamo": "it only marks tensors for a compiler",
        "torch.zeros": "the memory behind the books, which they never look at",
    },
    variants={
        "full": Variant(f"{_BLOCKS}:Full", "the block manager of transformers' continuous batching", f"{BATCHING}.cache_manager"),
        "window": Variant(
            f"{_BLOCKS}:Window", "the sliding-window allocator of transformers' continuous batching", f"{BATCHING}.cache_manager"
        ),
        "sectors": Variant(
            "kvproof.impl.foreign.transformers.sectors:Sectors",
            "the paged cache of transformers' continuous batching, with its pool of sectors",
            f"{BATCHING}.cache_allocators",
        ),
    },
    oldest="5.0.0",
    newest="5.24.0",
)
