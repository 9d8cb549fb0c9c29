"""A window that is no whole number of pages is not kept for the request that reads it. Uses SGLang's unified radix tree and its allocator of two pools alone.

pip download --no-deps sglang==0.5.22 && unzip -o sglang-0.5.22-*.whl -d wheel
pip install torch numpy msgspec (a build of torch for CPUs is enough)
python sglang_window_page.py wheel
"""

import sys
from array import array
from types import SimpleNamespace

import torch
from wheel import load

SRT = "sglang.srt"
MEM = f"{SRT}.mem_cache"
PARTS = (
    "allocator", "base_prefix_cache", "base_swa_memory_pool", "buffer_mode.storage_existence_cache", "cache_init_params", "common", "events", "evict_policy",
    "radix_cache", "storage_prefetch", "unified_cache", "unified_radix_cache", "utils",
)  # fmt: skip
load(
    sys.argv[1],
    "sglang",
    [f"{MEM}.{part}" for part in PARTS] + [f"{SRT}.environ", f"{SRT}.utils", f"{SRT}.session.streaming_session"],
    keep=["torch", "numpy", "msgspec"],
)

import sglang.srt.mem_cache.allocator.paged as paged  # noqa: E402
import sglang.srt.mem_cache.allocator.swa as swa  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402

PAGE, WINDOW, SLOTS = 3, 4, 12
"""A token reads the four before it."""

plain = SimpleNamespace(capabilities=SimpleNamespace(supports_triton=False), get_paged_allocator_cls=lambda: None)
paged.current_platform = swa.current_platform = plain


class Pools(BaseSWAKVPool):
    """The tensors of both pools, as far as they are looked at here."""

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, slots):
        return self.full_to_swa_index_mapping[slots]

    def get_state_buf_infos(self):
        return [], [], []


class Request(SimpleNamespace):
    """A request and its record of slots."""

    evicted = 0

    def get_evicted_seqlen(self, component):
        return self.evicted if component == ComponentType.SWA else 0

    def set_evicted_seqlen(self, component, length):
        self.evicted = length

    def swa_dead_lo(self, page):
        return self.cache_protected_len

    def finished(self):
        return False


allocator = swa.SWATokenToKVPoolAllocator(SLOTS, SLOTS, PAGE, torch.float32, "cpu", Pools(), need_sort=False)
row = torch.zeros((1, SLOTS), dtype=torch.int32)
rows = SimpleNamespace(req_to_token=row, write=row.__setitem__)
tree = UnifiedRadixCache(
    CacheInitParams(
        disable=False, req_to_token_pool=rows, token_to_kv_pool_allocator=allocator, page_size=PAGE, sliding_window_size=WINDOW,
        tree_components=(ComponentType.FULL, ComponentType.SWA), tree_core_backend="python",
    )
)  # fmt: skip

tokens = array("q", range(8))
found = tree.match_prefix(MatchPrefixParams(key=RadixKey(tokens[:-1], None)))
request = Request(
    req_pool_idx=0, holds_kv=True, cache_protected_len=0, cache_inserted_len=0, swa_evict_floor=0, extra_key=None, cache_salt=None, priority=0, session=None,
    session_id=None, kv_rotation_base=None, swa_branching_seqlen=None, origin_input_ids=tokens, full_untruncated_fill_ids=tokens, last_node=found.last_device_node,
    lock=tree.lock(found.last_device_node), rid="0",
)  # fmt: skip
request.kv = request
none, eight = torch.tensor([0]), torch.tensor([8])
row[0, :8] = allocator.alloc_extend(none, none, eight, eight, torch.tensor([-1]), 8).to(torch.int32)
tree.checkpoint(request, up_to=8)  # the prompt is computed

reads = range(8 - WINDOW, 8)
held = tree.swa_evictable_size()
tree.evict(EvictParams(num_tokens=0, swa_num_tokens=SLOTS))  # another request needs room
gone = [position for position in reads if int(allocator.full_to_swa_index_mapping[row[0, position]]) == 0]
print(
    f"The next token of a request that runs reads the positions {list(reads)} of its window; {held} slots of windows could be evicted, and {gone or 'none'} of these are gone."
)
sys.exit(bool(gone))
