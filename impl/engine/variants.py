"""The engine with each kind of attention and storage under the suite: `kvproof check kvproof.impl.engine.variants:LatentEngine`."""

from __future__ import annotations

from kvproof.impl.engine.adapter import EngineAdapter
from kvproof.impl.engine.config import ModelConfig


class MultiHeadEngine(EngineAdapter):
    """MHA: a key head for each query head. Heads before tokens in the blocks."""

    config = ModelConfig(kv_heads=4)
    layout = "HND"


class MultiQueryEngine(EngineAdapter):
    """MQA: one key head."""

    config = ModelConfig(kv_heads=1)


class LatentEngine(EngineAdapter):
    """MLA: a latent and a rotary part for each token."""

    config = ModelConfig(latent=16, rotary=4)


class Int8LatentEngine(EngineAdapter):
    """MLA in eight-bit integers, with a scale for each token."""

    config = ModelConfig(latent=16, rotary=4, storage="int8")


class HybridEngine(EngineAdapter):
    """Layers with full attention and layers with a window of five tokens, in turn, on one memory."""

    config = ModelConfig(layers=4, windows=(None, 5))


class Int8Engine(EngineAdapter):
    """Eight-bit integers with a scale for each slot and head."""

    config = ModelConfig(storage="int8")


class Fp8Engine(EngineAdapter):
    """float8 e4m3 with one scale."""

    config = ModelConfig(storage="fp8")
    layout = "HND"


VARIANTS = (EngineAdapter, MultiHeadEngine, MultiQueryEngine, LatentEngine, Int8LatentEngine, HybridEngine, Int8Engine, Fp8Engine)
"""All of them, GQA first."""
