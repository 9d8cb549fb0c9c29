"""How the calls that the V1 adapter makes are spelt in each release of vLLM: everything that moved between 0.6.4 and today stands here.

A release is recognised by the names and arguments that it has, never by its version, so a release that is not known yet is driven like its neighbours.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

from kvproof.impl.foreign.loading import LoadedEngine
from kvproof.models.capabilities import Group
from kvproof.models.ops import Namespace

MODEL_TOKENS: Final = 4096
"""The longest request that the engine is told of; no program comes near it."""

_CORE: Final = "vllm.v1.core"


class Placeholder(dict[str, int]):
    """Where media lie in a prompt; older releases read it as a mapping, newer ones by attribute."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Surface:
    """The names of one release, found once."""

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine
        self.manager_class = engine.symbol(f"{_CORE}.kv_cache_manager", "KVCacheManager")
        self.request_class = engine.symbol("vllm.v1.request", "Request")
        self.status = engine.symbol("vllm.v1.request", "RequestStatus")
        self.lora_class = engine.optional("vllm.lora.request", "LoRARequest")
        self.utils = engine.module(f"{_CORE}.kv_cache_utils")
        self.allocate_takes = frozenset(inspect.signature(self.manager_class.allocate_slots).parameters)
        self.request_takes = frozenset(inspect.signature(self.request_class).parameters)
        self.full_hit_gives_back = self._full_hit_rule()
        self.hash_function = self._hash_function()

    @property
    def knows_eagle(self) -> bool:
        """Whether the manager can be told of EAGLE's drafter."""
        return "use_eagle" in inspect.signature(self.manager_class).parameters

    @property
    def knows_drafts(self) -> bool:
        """Whether the manager keeps drafts out of what it publishes; before 0.7.3 it takes every token for final."""
        return not self.allocate_takes.isdisjoint({"num_lookahead_tokens", "num_draft_tokens"}) or "spec_token_ids" in inspect.getsource(
            self.manager_class.allocate_slots
        )

    # -- building ---------------------------------------------------------------------------------------------------------------------------------

    def manager(
        self,
        groups: Sequence[Group],
        num_blocks: int,
        block_size: int,
        *,
        caching: bool,
        ranks: int = 1,
        events: bool = False,
        eagle: bool = False,
    ) -> Any:
        """A KVCacheManager, or its ancestor of the same name. A block of `block_size` tokens is spread over `ranks` of decode context parallelism."""
        offered: dict[str, Any] = {
            "max_model_len": MODEL_TOKENS,
            "scheduler_block_size": block_size,
            "hash_block_size": block_size,
            "enable_caching": caching,
            "dcp_world_size": ranks,
            "enable_kv_cache_events": events,
            "use_eagle": eagle,
            "block_size": block_size,
            "num_gpu_blocks": num_blocks,
            "sliding_window": groups[0].window,
            "num_preallocate_tokens": block_size,
        }
        if "kv_cache_config" in inspect.signature(self.manager_class).parameters:
            offered["kv_cache_config"] = self._config(groups, num_blocks, block_size // ranks, eagle=eagle)
        return self.manager_class(**self.engine.fit(self.manager_class, **offered))

    def _config(self, groups: Sequence[Group], num_blocks: int, block_size: int, *, eagle: bool) -> Any:
        interface = "vllm.v1.kv_cache_interface"
        group_class = self.engine.symbol(interface, "KVCacheGroupSpec")
        config_class = self.engine.symbol(interface, "KVCacheConfig")
        dtype = self.engine.module(interface).torch.float32
        specs = []
        for number, group in enumerate(groups):
            windowed = group.kind == "sliding_window"
            spec_class = self.engine.symbol(interface, "SlidingWindowSpec" if windowed else "FullAttentionSpec")
            shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 8, "dtype": dtype, "use_mla": False}
            window = {"sliding_window": group.window} if windowed else {}
            spec = spec_class(**self.engine.fit(spec_class, **shape, **window))
            specs.append(
                group_class(**self.engine.fit(group_class, layer_names=[f"layer.{number}"], kv_cache_spec=spec, is_eagle_group=eagle))
            )
        return config_class(**self.engine.fit(config_class, num_blocks=num_blocks, kv_cache_tensors=[], tensors={}, kv_cache_groups=specs))

    def request(self, number: int, prompt: Sequence[int], namespace: Namespace, hashed_tokens: int, lora_id: int) -> Any:
        """A Request as the front end would make it; every `hashed_tokens` tokens get a hash."""
        sampling = SimpleNamespace(
            max_tokens=MODEL_TOKENS,
            extra_args=None,
            guided_decoding=None,
            prompt_logprobs=None,
            structured_outputs=None,
            skip_reading_prefix_cache=None,
        )
        lora = None
        if namespace.adapter is not None:
            lora = self.lora_class(lora_name=namespace.adapter, lora_int_id=lora_id, lora_path=f"/lora/{namespace.adapter}")
        place = Placeholder(offset=0, length=1)
        media = namespace.media is not None
        feature = SimpleNamespace(identifier=namespace.media, mm_hash=namespace.media, mm_position=place, modality="image", data=None)
        return self.request_class(
            **self.engine.fit(
                self.request_class,
                request_id=str(number),
                inputs={"type": "token", "prompt_token_ids": list(prompt)},
                prompt=None,
                prompt_token_ids=list(prompt),
                sampling_params=sampling,
                pooling_params=None,
                eos_token_id=None,
                arrival_time=float(number),
                lora_request=lora,
                cache_salt=namespace.tenant,
                mm_features=[feature] if media else [],
                multi_modal_inputs=[None] if media else None,
                multi_modal_kwargs=[None] if media else None,
                multi_modal_hashes=[namespace.media] if media else None,
                multi_modal_placeholders=[place] if media else None,
                block_hasher=self._block_hasher(hashed_tokens),
            )
        )

    def _block_hasher(self, tokens: int) -> Any:
        make = getattr(self.utils, "get_request_block_hasher", None)
        return None if make is None else make(tokens, self.hash_function)

    def hashed_tokens(self, block_size: int, ranks: int) -> int:
        """How many tokens the release's engine hashes at once, where a block of `block_size` is spread over `ranks`: read from the engine's own code."""
        unit = re.search(r"get_request_block_hasher\(\s*(\w+)", self.engine.source("vllm.v1.engine.core"))
        return block_size // ranks if unit is not None and unit[1] == "block_size" else block_size

    def _hash_function(self) -> Any:
        """SHA-256, and the start of every chain; None where the manager itself hashes."""
        start = getattr(self.utils, "init_none_hash", None)
        if start is None:
            return None
        place = "vllm.utils.hashing" if self.engine.has("vllm.utils.hashing") else "vllm.utils"
        function = self.engine.symbol(place, "sha256")
        start(function)
        return function

    @property
    def namespace_fields(self) -> frozenset[str]:
        """What this release's keys tell apart."""
        fields = {"tenant"} if "cache_salt" in self.request_takes else set()
        if hasattr(self.utils, "_gen_lora_extra_hash_keys") and self.lora_class is not None:
            fields.add("adapter")
        if hasattr(self.utils, "generate_block_hash_extra_keys") and not self.request_takes.isdisjoint(
            {"mm_features", "multi_modal_hashes"}
        ):
            fields.add("media")
        return frozenset(fields)

    # -- calls ------------------------------------------------------------------------------------------------------------------------------------

    def hit(self, manager: Any, request: Any) -> tuple[Any, int]:
        """The blocks that a look-up finds and the tokens that they hold, as the release's scheduler takes them."""
        found = manager.get_computed_blocks(request)
        blocks, tokens = (found[0], found[1]) if isinstance(found, tuple) else (found, len(found) * manager.block_size)
        if tokens and tokens == request.num_tokens and self.full_hit_gives_back is not None:
            blocks = list(blocks)
            blocks.pop()
            tokens -= self.full_hit_gives_back or manager.block_size
        return blocks, tokens

    def allocate(self, manager: Any, request: Any, tokens: int, drafts: int, hit: tuple[Any, int] | None) -> bool:
        """Make room for `tokens` behind what is computed, the last `drafts` of them drafts. `hit` is None for a request that runs already.

        Returns whether there was room.
        """
        blocks, hit_tokens = hit if hit is not None else (None, 0)
        if "num_draft_tokens" in self.allocate_takes:
            return manager.allocate_slots(request, tokens, hit_tokens, blocks, num_draft_tokens=drafts) is not None
        if "num_new_computed_tokens" in self.allocate_takes:
            return manager.allocate_slots(request, tokens, hit_tokens, blocks) is not None
        if "new_computed_blocks" in self.allocate_takes:
            return manager.allocate_slots(request, tokens, blocks) is not None
        if hit is None:
            return manager.append_slots(request, tokens) is not None
        return manager.allocate_slots(request, tokens, blocks) is not None

    def _full_hit_rule(self) -> int | None:
        """How many tokens the scheduler of an old release gives back where a look-up finds the whole prompt: 0 stands for a block.

        Later the manager itself leaves the last token, which is None here. The rule is read from the release's own scheduler.
        """
        rule = re.search(r"num_computed_tokens -= (1|self\.block_size)\n", self.engine.source(f"{_CORE}.scheduler"))
        return None if rule is None else int(rule[1] == "1")

    # -- books ------------------------------------------------------------------------------------------------------------------------------------

    def pool(self, manager: Any) -> Any:
        """What keeps blocks, free queue and index: the manager itself before there was a BlockPool."""
        return manager if isinstance(manager.block_pool, list) else manager.block_pool

    def blocks(self, manager: Any) -> Sequence[Any]:
        """Every block of the pool."""
        return manager.block_pool if isinstance(manager.block_pool, list) else manager.block_pool.blocks

    def null_blocks(self, manager: Any) -> frozenset[int]:
        """The block that stands where nothing is kept; releases before 0.8 have none."""
        null = getattr(self.pool(manager), "null_block", None)
        return frozenset() if null is None else frozenset({null.block_id})

    def tables(self, manager: Any) -> list[dict[str, list[Any]]]:
        """For each group, request -> blocks. Read from the books themselves: the accessors of some releases enter who is asked for."""
        coordinator = getattr(manager, "coordinator", None)
        if coordinator is not None:
            return [single.req_to_blocks for single in coordinator.single_type_managers]
        single = getattr(manager, "single_type_manager", manager)
        return [single.req_to_blocks]

    def indexed(self, manager: Any) -> Iterator[Any]:
        """Every block that the prefix index can find."""
        index = self.pool(manager).cached_block_hash_to_block
        for found in getattr(index, "_cache", index).values():
            yield from found.values() if isinstance(found, dict) else (found,)
