"""A request that fits the cache exactly is never scheduled. Uses the scheduler of transformers' continuous batching and its block manager alone.

pip download --no-deps transformers==5.16.0 && unzip -o transformers-5.16.0-py3-none-any.whl -d wheel
python transformers_last_block.py wheel
"""

import sys
from types import SimpleNamespace

from wheel import load

BATCHING = "transformers.generation.continuous_batching"
load(sys.argv[1], "transformers", [f"{BATCHING}.{name}" for name in ("cache", "cache_manager", "requests", "scheduler", "utils")])

from transformers.generation.continuous_batching.cache import PagedAttentionCache  # noqa: E402
from transformers.generation.continuous_batching.cache_manager import BlockManager, FullAttentionCacheAllocator  # noqa: E402
from transformers.generation.continuous_batching.scheduler import Scheduler  # noqa: E402

BLOCK, BLOCKS = 4, 2
TOKENS = BLOCK * BLOCKS - 1
cache = object.__new__(PagedAttentionCache)
cache.__dict__.update(
    block_size=BLOCK, num_groups=1, num_full_attention_groups=1, num_sliding_attention_groups=0, max_sliding_window_blocks_per_request=0,
    group_cache_managers=[FullAttentionCacheAllocator(0, BLOCK, allow_block_sharing=True)], allow_block_sharing=True, use_prefix_sharing=True,
    blocks_to_complete={}, _block_manager=BlockManager(BLOCKS, BLOCK, tp_on=False), _total_prefix_length=0,
)  # fmt: skip
scheduler = SimpleNamespace(cache=cache, active_requests={}, starved_requests=[])
request = SimpleNamespace(request_id="0", allocated_blocks=0, current_len=lambda: 0)

fits = Scheduler._allocate_blocks_if_needed(scheduler, request, TOKENS)
print(
    f"A request of {TOKENS} tokens, alone in a cache of {BLOCKS} blocks of {BLOCK} tokens, is {'scheduled' if fits else 'never scheduled'}."
)
sys.exit(not fits)
