"""Every engine that kvproof drives, and the way from its name to an adapter."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Final

import msgspec

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.foreign.fetched import Say
from kvproof.impl.foreign.lmcache.engine import LMCACHE
from kvproof.impl.foreign.loading import load
from kvproof.impl.foreign.nano_vllm import NANO_VLLM_FORK, NANO_VLLM_NPU
from kvproof.impl.foreign.releases import BadRelease, Engine, Release, Variant, parse
from kvproof.impl.foreign.sglang.engine import SGLANG
from kvproof.impl.foreign.transformers.engine import TRANSFORMERS
from kvproof.impl.foreign.vllm.engine import VLLM
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import NO_NAMESPACE
from kvproof.models.outcomes import OutOfBlocks, Refused

ENGINES: Final[dict[str, Engine]] = {engine.name: engine for engine in (VLLM, SGLANG, TRANSFORMERS, NANO_VLLM_FORK, NANO_VLLM_NPU, LMCACHE)}
"""By the name that is typed."""


PROBE_BLOCKS: Final = 16
"""Blocks of the cache that is tried first."""


def find_release(text: str) -> Release | None:
    """The release that a target names; None where it names no engine. Raises BadRelease."""
    return parse(text, ENGINES)


def engine_adapter(release: Release, say: Say = lambda _: None) -> type:
    """The adapter for `release`, loaded into this process. Raises BadRelease."""
    loaded = load(release, say)
    variants = release.engine.variants
    if not release.variant:
        found = [name for name, variant in variants.items() if loaded.has(variant.marker)]
        if not found:
            raise loaded.moved(f"it has none of the modules {', '.join(sorted({variant.marker for variant in variants.values()}))}")
        release = msgspec.structs.replace(release, variant=found[0])
    variant = variants[release.variant]
    if not loaded.has(variant.marker):
        raise BadRelease(f"{release.name} does not exist: {release.engine.name} {release.version} has no {variant.marker}.")
    module, _, name = variant.adapter.partition(":")
    adapter: type[CacheAdapter] = getattr(importlib.import_module(module), name)
    try:
        # One cache is tried before the suite does: everything that it imports is loaded, and a surface that moved is told now.
        claimed = adapter.capabilities()
        _shortest_life(adapter(num_blocks=min(PROBE_BLOCKS, claimed.max_blocks), block_size=claimed.block_sizes[0]), claimed)
    except BadRelease:
        raise
    except Exception as error:
        raise loaded.moved(f"a cache of {release.name} with one request raised {type(error).__name__}: {error}") from error
    return adapter


def _shortest_life(cache: CacheAdapter, claimed: Capabilities) -> None:
    """One request in an empty cache: a prefill and a decode. An engine that does not get through this was not called as it wants to be: its surface moved."""
    cache.admit(0, (1, 2, 3), NO_NAMESPACE)
    with suppress(Refused):
        _pass(cache, 3, claimed)
        with suppress(Refused, OutOfBlocks):  # which are answers, to be judged later
            cache.append(0, (4,))
            _pass(cache, 1, claimed)
        cache.release(0, "finish")


def _pass(cache: CacheAdapter, count: int, claimed: Capabilities) -> None:
    cache.extend(0, count)
    if claimed.steps:
        cache.end_step(cache.begin_step())
    cache.commit(0, 0)


def described(release: Release) -> str:
    """What the target is, in a few words."""
    variant: Variant = release.engine.variants[release.variant or next(iter(release.engine.variants))]
    return f"{variant.words}, release {release.version}"
