"""The blocks of a prompt behind its image are found for the same prompt with another image. Uses vLLM's KV cache manager alone.

pip download --no-deps vllm==0.7.0 && unzip -o vllm-0.7.0-*.whl -d wheel
pip install numpy msgspec
python vllm_media_chain.py wheel
"""

import sys

from vllm_v1 import manager, prompt

cache = manager(sys.argv[1])
TEXT = [0, 1, 2]
"""The image is the first token, a block has one."""

for number, image in (("0", "a photograph of a cat"), ("1", "a photograph of a dog")):
    request = prompt(number, TEXT[: 3 if number == "0" else 2], image=image)
    cache.get_computed_blocks(request)
    cache.allocate_slots(request, len(request.prompt_token_ids), [])
    request.num_computed_tokens = len(request.prompt_token_ids)

again = prompt("2", TEXT + [3], image="a photograph of a dog")
_, tokens = cache.get_computed_blocks(again)
print(f"Of the prompt with the dog, {tokens} tokens are found; only 2 were ever computed with the dog.")
sys.exit(tokens > 2)
