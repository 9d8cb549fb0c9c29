"""nano-vllm: the block manager of two forks that are on PyPI, with the adapter in the part of its scheduler.

`nano-vllm-npu` has it as upstream had it until April 2026; `nano-vllm-fork` forgets a block's hash when the last holder lets go.

A waiting sequence is prefilled whole (`can_allocate`, `allocate`), a running one is decoded one token at a time (`can_append`, `may_append`), and a preemption
deallocates. What the scheduler never does is refused: a prefill in chunks, a decode of several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.releases import Engine, Variant
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot


def _engine(name: str, package: str, oldest: str, newest: str) -> Engine:
    manager = f"{package}.engine.block_manager"
    return Engine(
        name=name,
        package=package,
        sources=(name,),
        keep=(f"{package}/engine/block_manager.py", f"{package}/engine/sequence.py", f"{package}/sampling_params.py"),
        real=(manager, f"{package}.engine.sequence", f"{package}.sampling_params"),
        kept=("numpy", "xxhash"),
        needs=("numpy", "xxhash"),
        variants={"full": Variant(f"{__name__}:NanoVllm", f"the block manager of {name}", manager)},
        oldest=oldest,
        newest=newest,
    )


NANO_VLLM_FORK: Final = _engine("nano-vllm-fork", "nanovllm", "20260210", "20260210")
NANO_VLLM_NPU: Final = _engine("nano-vllm-npu", "nanovllmnpu", "0.0.1.post1", "0.0.2")


class NanoVllm(EngineAdapter):
    """Whole prefills, single decodes, prefix reuse."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        engine = loaded_engine()
        self.block_size = block_size
        package = engine.release.engine.package
        self.sequence_class = engine.symbol(f"{package}.engine.sequence", "Sequence")
        self.manager = engine.symbol(f"{package}.engine.block_manager", "BlockManager")(num_blocks, block_size)
        self.sequences: dict[int, Any] = {}
        self.computed: dict[int, int] = {}
        self.out: dict[int, int] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Prefix reuse without namespaces; the engine's blocks have 256 tokens, and a block of one is a case that its decode cannot count."""
        return Capabilities(prefix=True, snapshot=True, policy=frozenset({"tight"}), block_sizes=(2, 3, 4, 16))

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A sequence in the waiting queue."""
        sequence = self.sequences[seq] = self.sequence_class(list(prompt))
        sequence.block_size = self.block_size  # the engine sets it once for all sequences of a process
        self.computed[seq] = 0

    def match(self, seq: int) -> Hit:
        """There is no look-up apart from the allocation."""
        raise Refused("nano-vllm looks for a prefix only while it allocates")

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """A whole prefill, or the decode of one token."""
        sequence = self.sequences[seq]
        if sequence.block_table:
            return self._decode(seq, sequence)
        if count < len(sequence):
            raise Refused("nano-vllm prefills whole prompts")
        if not self.manager.can_allocate(sequence):
            raise OutOfBlocks
        self.manager.allocate(sequence)
        self.out[seq] = len(sequence)
        return Grant(adopted=sequence.num_cached_tokens)

    def _decode(self, seq: int, sequence: Any) -> Grant:
        if not self.manager.can_append(sequence):
            raise OutOfBlocks
        self.manager.may_append(sequence)
        self.out[seq] = len(sequence)
        return Grant()

    def commit(self, seq: int, accepted: int) -> None:
        """The step is done."""
        self.computed[seq] = self.out.pop(seq)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """One sampled token after another, each once all before it are computed."""
        sequence = self.sequences[seq]
        if len(tokens) > 1 or (sequence.block_table and self.computed[seq] < len(sequence)):
            raise Refused("nano-vllm samples one token at a time")
        if not sequence.block_table:
            raise Refused("nano-vllm samples only for sequences that run")
        sequence.append_token(tokens[0])

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`deallocate`."""
        self.out.pop(seq, None)
        self.computed[seq] = 0
        self.manager.deallocate(self.sequences[seq])

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The sequence's own table."""
        return list(self.sequences[seq].block_table)

    def snapshot(self) -> Snapshot:
        """Counts, the free deque, and the blocks that a hash leads to."""
        counts = {block.block_id: block.ref_count for block in self.manager.blocks if block.ref_count}
        return Snapshot(refcounts=counts, free=list(self.manager.free_block_ids), cached=set(self.manager.hash_to_block_id.values()))
