"""A prompt of whole blocks that is in the cache leaves no token to compute. Uses the block manager of nano-vllm alone.

pip download --no-deps nano-vllm-fork==20260210 && unzip -o nano_vllm_fork-20260210-py3-none-any.whl -d wheel
pip install numpy xxhash
python nano_vllm_full_hit.py wheel
"""

import sys
import types

# The package's own __init__ wants a GPU; its block manager does not.
package = types.ModuleType("nanovllm")
package.__path__ = [f"{sys.argv[1]}/nanovllm"]
sys.modules["nanovllm"] = package

from nanovllm.engine.block_manager import BlockManager  # noqa: E402
from nanovllm.engine.sequence import Sequence  # noqa: E402

BLOCK_SIZE = 4
Sequence.block_size = BLOCK_SIZE
manager = BlockManager(num_blocks=4, block_size=BLOCK_SIZE)

first = Sequence([1, 2, 3, 4])
assert manager.can_allocate(first)
manager.allocate(first)

second = Sequence([1, 2, 3, 4])
assert manager.can_allocate(second)
manager.allocate(second)

left = len(second) - second.num_cached_tokens
print(f"The second prompt has {len(second)} tokens, {second.num_cached_tokens} are cached: {left} are left to compute.")
sys.exit(left == 0)
