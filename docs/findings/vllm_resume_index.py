"""A request that was preempted after a draft was accepted is never resumed. Uses vLLM's KV cache manager alone.

pip download --no-deps vllm==0.9.0.1 && unzip -o vllm-0.9.0.1-*.whl -d wheel
pip install numpy msgspec
python vllm_resume_index.py wheel
"""

import sys
import traceback

from vllm_v1 import manager, prompt

cache = manager(sys.argv[1], eagle=True)
request = prompt("0", [1, 2])
hit, tokens = cache.get_computed_blocks(request)
cache.allocate_slots(request, 1, tokens, hit)  # a chunk of the prompt
request.num_computed_tokens = 1
request.spec_token_ids = [3]
cache.allocate_slots(request, 2, num_draft_tokens=1)  # the rest, and a draft
request.append_output_token_ids([3])  # it is accepted
request.spec_token_ids = []
request.num_computed_tokens = 3
request.append_output_token_ids([4])

cache.free(request)  # preempted
request.num_computed_tokens = 0
hit, tokens = cache.get_computed_blocks(request)
try:
    cache.allocate_slots(request, request.num_tokens - tokens, tokens, hit)
except IndexError:
    traceback.print_exc(limit=-1)
    print("The request cannot be resumed: the engine ends here.")
    sys.exit(1)
print("The request was resumed.")
