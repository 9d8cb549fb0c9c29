"""A chunked prompt goes on naming a page that was given back. Uses SGLang's radix tree and page allocator alone.

pip download --no-deps sglang==0.5.4 && unzip -o sglang-0.5.4-py3-none-any.whl -d wheel
pip install torch (a build for CPUs is enough)
python sglang_eagle_chunk.py wheel
"""

import sys
from types import SimpleNamespace

import torch
from wheel import load

MEM = "sglang.srt.mem_cache"
load(
    sys.argv[1],
    "sglang",
    [f"{MEM}.{name}" for name in ("allocator", "base_prefix_cache", "cache_init_params", "evict_policy", "radix_cache", "utils")]
    + ["sglang.srt.environ"],
    keep=["torch", "numpy"],
)

from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402

PAGE = 2
TOKENS = [7, 7, 7]
allocator = PagedTokenToKVPoolAllocator(8, PAGE, torch.float32, "cpu", None, need_sort=False)
row = torch.zeros((2, 8), dtype=torch.int32)
rows = SimpleNamespace(req_to_token=row, write=row.__setitem__, free=lambda _: None)
try:
    tree = RadixCache(rows, allocator, PAGE, is_eagle=True)
except TypeError:  # since 0.5.6
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    tree = RadixCache(
        CacheInitParams(disable=False, req_to_token_pool=rows, token_to_kv_pool_allocator=allocator, page_size=PAGE, is_eagle=True)
    )


def admit(number):
    """Match, lock, and a row."""
    found = tree.match_prefix(RadixKey(TOKENS[:-1], None))
    tree.inc_lock_ref(found.last_device_node)
    nothing = len(found.device_indices)
    return SimpleNamespace(
        req_pool_idx=number, extra_key=None, priority=0, prefix_indices=found.device_indices, last_node=found.last_device_node, last_matched_prefix_len=nothing, cache_protected_len=nothing,
    )  # fmt: skip


def prefill(request, start, end):
    """Whole pages for the chunk, as the allocator's kernel gives them, then the chunk is computed and entered into the tree."""
    pages = allocator.alloc(-(-end // PAGE) * PAGE - start)
    row[request.req_pool_idx, start:end] = pages[: end - start].to(torch.int32)
    request.fill_ids = TOKENS[:end]
    request.get_fill_ids = lambda: request.fill_ids
    tree.cache_unfinished_req(request)


first, second = admit(0), admit(1)
prefill(first, 0, 2)  # a chunk of one page
prefill(second, 0, 3)  # the same prompt in one pass: its first page is entered
prefill(first, 2, 3)  # the rest of the chunked one

named = {int(slot) // PAGE for slot in row[0, :3]}
stale = sorted(named & {int(page) for page in allocator.free_pages})
print(f"The first request's slots lie in the pages {sorted(named)}; free is {stale or 'none of them'}.")
sys.exit(bool(stale))
