"""A KV cache manager of vLLM's engine V1 and requests for it, for the scripts beside this file. Uses the files of vLLM's wheel and no kvproof."""

import importlib
import inspect
from types import SimpleNamespace

from wheel import load

PARTS = (
    "vllm.distributed.kv_events", "vllm.envs", "vllm.inputs", "vllm.lora.request", "vllm.multimodal.utils", "vllm.sequence", "vllm.utils", "vllm.v1.core", "vllm.v1.engine",
    "vllm.v1.kv_cache_interface", "vllm.v1.metrics", "vllm.v1.request", "vllm.v1.spec_decode.metrics", "vllm.v1.structured_output.request", "vllm.v1.utils",
)  # fmt: skip


def fitting(function, **offered):
    """The arguments that this release takes."""
    return {name: value for name, value in offered.items() if name in inspect.signature(function).parameters}


def manager(wheel, *, blocks=8, block_size=1, windows=(None,), events=False, eagle=False):
    """A manager of `blocks` blocks; `windows` has the window of each group, or None for full attention."""
    load(wheel, "vllm", PARTS, keep=["numpy", "msgspec", "typing_extensions"])
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    about = {"max_model_len": 1024, "block_size": block_size, "num_gpu_blocks": blocks, "sliding_window": None, "num_preallocate_tokens": 0}
    options = {
        "enable_caching": True,
        "enable_kv_cache_events": events,
        "use_eagle": eagle,
        "dcp_world_size": 1,
        "hash_block_size": block_size,
    }
    if "kv_cache_config" in inspect.signature(KVCacheManager).parameters:
        options["kv_cache_config"] = config(blocks, block_size, windows)
    return KVCacheManager(**fitting(KVCacheManager, **about, **options))


def config(blocks, block_size, windows):
    """One group of layers for each window."""
    from vllm.v1 import kv_cache_interface as kinds

    groups = []
    for number, window in enumerate(windows):
        kind = kinds.FullAttentionSpec if window is None else kinds.SlidingWindowSpec
        shape = {
            "block_size": block_size,
            "num_kv_heads": 1,
            "head_size": 8,
            "dtype": "float32",
            "use_mla": False,
            "sliding_window": window,
        }
        groups.append(kinds.KVCacheGroupSpec([f"layer.{number}"], kind(**fitting(kind, **shape))))
    make = kinds.KVCacheConfig
    return make(**fitting(make, num_blocks=blocks, kv_cache_tensors=[], tensors={}, kv_cache_groups=groups))


class Place(dict):
    """Where an image lies in the prompt: its first token."""

    offset, length = 0, 1


def prompt(number, tokens, *, block_size=1, adapter=None, image=None, hashing="vllm.utils.hashing"):
    """A request with an adapter's name, or an image's hash. `hashing` is where the release has its hash functions."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    sampling = SimpleNamespace(
        max_tokens=64, extra_args=None, guided_decoding=None, prompt_logprobs=None, structured_outputs=None, skip_reading_prefix_cache=None
    )
    lora = None
    if adapter is not None:
        from vllm.lora.request import LoRARequest

        lora = LoRARequest(lora_name=adapter, lora_int_id=1, lora_path="/adapter")
    hasher = None
    if hasattr(kv_cache_utils, "get_request_block_hasher"):
        hash_function = importlib.import_module(hashing).sha256
        kv_cache_utils.init_none_hash(hash_function)
        hasher = kv_cache_utils.get_request_block_hasher(block_size, hash_function)
    place = Place(offset=0, length=1)
    media = {"multi_modal_inputs": [None], "multi_modal_hashes": [image], "multi_modal_placeholders": [place]} if image else {}
    media = media or {"multi_modal_inputs": None, "multi_modal_hashes": None, "multi_modal_placeholders": None}
    made = {
        "request_id": number, "inputs": {"type": "token", "prompt_token_ids": tokens}, "prompt": None, "prompt_token_ids": tokens, "sampling_params": sampling,
        "pooling_params": None, "eos_token_id": None, "arrival_time": 0.0, "lora_request": lora, "cache_salt": None, "mm_features": [], "multi_modal_kwargs": None,
        "block_hasher": hasher, **media,
    }  # fmt: skip
    return Request(**fitting(Request, **made))
