"""A retraction loses the last token of a prompt with EAGLE. Uses SGLang's radix tree and token allocator alone.

pip download --no-deps sglang==0.5.3 && unzip -o sglang-0.5.3-py3-none-any.whl -d wheel
pip install torch (a build for CPUs is enough)
python sglang_eagle_retract.py wheel
"""

import sys
from types import SimpleNamespace

import torch
from wheel import load

MEM = "sglang.srt.mem_cache"
load(
    sys.argv[1],
    "sglang",
    [f"{MEM}.{name}" for name in ("allocator", "base_prefix_cache", "evict_policy", "radix_cache")],
    keep=["torch", "numpy"],
)

from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402

SLOTS = 8
TOKENS = [7, 7, 7]
allocator = TokenToKVPoolAllocator(SLOTS, torch.float32, "cpu", None, need_sort=False)
row = torch.zeros((1, SLOTS), dtype=torch.int32)
tree = RadixCache(SimpleNamespace(req_to_token=row, write=row.__setitem__), allocator, 1, is_eagle=True)

found = tree.match_prefix(RadixKey(TOKENS[:-1], None))
tree.inc_lock_ref(found.last_device_node)
request = SimpleNamespace(
    req_pool_idx=0,
    extra_key=None,
    fill_ids=TOKENS,
    prefix_indices=found.device_indices,
    last_node=found.last_device_node,
    last_matched_prefix_len=0,
)
row[0, :3] = allocator.alloc(3).to(torch.int32)
tree.cache_unfinished_req(request)  # the prompt is computed

# What `ScheduleBatch.release_req` does with a request that is retracted, with pages of one token.
allocator.free(row[0, len(request.prefix_indices) : 3])
tree.dec_lock_ref(request.last_node)

missing = SLOTS - allocator.available_size() - tree.evictable_size()
print(f"{SLOTS} slots: {allocator.available_size()} free, {tree.evictable_size()} in the tree, {missing} lost. Nothing runs.")
sys.exit(missing > 0)
