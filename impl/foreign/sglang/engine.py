"""What kvproof knows of SGLang: where its files are, which of its modules run, and how they are driven."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

from kvproof.impl.foreign.releases import Engine, Variant

CACHE: Final = "sglang.srt.mem_cache"
_RADIX: Final = "kvproof.impl.foreign.sglang.radix"
_UNIFIED: Final = "kvproof.impl.foreign.sglang.unified"

PLATFORM: Final = SimpleNamespace(capabilities=SimpleNamespace(supports_triton=False), get_paged_allocator_cls=lambda: None)
"""The plain platform: no Triton, and no page allocator of its own."""

SGLANG: Final = Engine(
    name="sglang",
    package="sglang",
    sources=("sglang",),
    keep=("sglang/srt/mem_cache/", "sglang/srt/session/", "sglang/srt/utils/", "sglang/srt/utils.py", "sglang/srt/environ.py"),
    edition=2,
    real=(
        f"{CACHE}.allocator",
        f"{CACHE}.base_prefix_cache",
        f"{CACHE}.base_swa_memory_pool",
        f"{CACHE}.buffer_mode.storage_existence_cache",
        f"{CACHE}.cache_init_params",
        f"{CACHE}.common",
        f"{CACHE}.events",
        f"{CACHE}.evict_policy",
        f"{CACHE}.radix_cache",
        f"{CACHE}.session_radix_cache",
        f"{CACHE}.storage_prefetch",
        f"{CACHE}.unified_cache",
        f"{CACHE}.unified_cache_components",
        f"{CACHE}.unified_radix_cache",
        f"{CACHE}.utils",
        "sglang.srt.environ",
        "sglang.srt.session.streaming_session",
        "sglang.srt.utils",
    ),
    kept=("numpy", "torch"),
    needs=("torch",),
    inert={"sglang.srt.observability": "it only measures"},
    answers={"sglang.srt.platforms.current_platform": PLATFORM},
    variants={
        "radix": Variant(f"{_RADIX}:Radix", "SGLang's radix tree over its allocators", f"{CACHE}.radix_cache"),
        "salted": Variant(f"{_RADIX}:Salted", "SGLang's radix tree over its allocators, requests with salts", f"{CACHE}.radix_cache"),
        "keyed": Variant(
            f"{_RADIX}:Keyed", "SGLang's radix tree over its allocators, requests with keys of the caller's", f"{CACHE}.radix_cache"
        ),
        "eagle": Variant(f"{_RADIX}:Eagle", "SGLang's radix tree over its allocators, keys of token pairs", f"{CACHE}.radix_cache"),
        "unified": Variant(f"{_UNIFIED}:Unified", "SGLang's unified radix tree over its allocators", f"{CACHE}.unified_radix_cache"),
        "unified-eagle": Variant(
            f"{_UNIFIED}:UnifiedEagle",
            "SGLang's unified radix tree over its allocators, keys of token pairs",
            f"{CACHE}.unified_radix_cache",
        ),
        "swa": Variant(
            "kvproof.impl.foreign.sglang.windowed:Windowed",
            "SGLang's unified radix tree over its two pools, full and sliding-window layers",
            f"{CACHE}.unified_radix_cache",
        ),
    },
    oldest="0.4.8",
    newest="0.5.23",
)
