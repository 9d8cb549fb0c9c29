"""A fork that finds no room leaves references behind. Uses the cache of transformers' continuous batching alone, without its tensors.

pip download --no-deps transformers==5.0.0 && unzip -o transformers-5.0.0-py3-none-any.whl -d wheel
python transformers_fork_leak.py wheel
"""

import sys
from types import SimpleNamespace

from wheel import load

BATCHING = "transformers.generation.continuous_batching"
load(sys.argv[1], "transformers", [f"{BATCHING}.{name}" for name in ("cache", "cache_manager", "requests", "utils")])

from transformers.generation.continuous_batching.cache import PagedAttentionCache  # noqa: E402
from transformers.generation.continuous_batching.cache_manager import BlockManager, FullAttentionCacheAllocator  # noqa: E402
from transformers.generation.continuous_batching.requests import RequestStatus  # noqa: E402

BLOCK, BLOCKS = 4, 4
PROMPT = list(range(10))
try:
    manager = BlockManager(BLOCKS, BLOCK)
except TypeError:  # later releases
    manager = BlockManager(BLOCKS, BLOCK, tp_on=False)
cache = object.__new__(PagedAttentionCache)
for name, value in {
    "block_size": BLOCK, "num_groups": 1, "num_full_attention_groups": 1, "num_sliding_attention_groups": 0, "max_sliding_window_blocks_per_request": 0,
    "group_cache_managers": [FullAttentionCacheAllocator(0, BLOCK, allow_block_sharing=True)], "allow_block_sharing": True, "use_prefix_sharing": True,
    "blocks_to_complete": {"parent": 2}, "_block_manager": manager, "_total_prefix_length": 0,
}.items():  # fmt: skip
    setattr(cache, name, value)

cache.allocate_blocks(4, "parent", 0)  # room for the prompt and what follows: the pool is full
state = SimpleNamespace(request_id="parent", status=RequestStatus.DECODING, initial_tokens=PROMPT, generated_tokens=[])
try:
    cache.mark_shareable_blocks_as_complete(state)
except TypeError:  # later releases
    cache.mark_shareable_blocks_as_complete(state, 2)  # two whole blocks are computed

if hasattr(cache, "compute_max_num_forks") and cache.compute_max_num_forks("parent") < 1:
    sys.exit(print("This release asks first whether there is room for a fork, and does not try."))
try:
    cache.fork_request("parent", ["child"])
    sys.exit("The fork found room, which it should not.")
except ValueError as error:
    print(f"The fork fails: {error}")
cache.free_blocks("parent")
held = {number: block.ref_count for number, block in manager._id_to_block.items() if block.ref_count}
print(f"Nothing runs. References that are left, by block: {held}; {manager.num_free_blocks} of {BLOCKS} blocks are free.")
sys.exit(bool(held))
