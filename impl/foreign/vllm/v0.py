"""vLLM's engine V0: its block manager with forks, copy-on-write and swap, with the adapter in the part of the scheduler.

A prompt is prefilled whole: `can_allocate`, `allocate`, then the blocks that are computed already. A running sequence is decoded one token at a time:
`can_append_slots`, `append_slots`. Prefills in chunks are refused, since V0 publishes a prompt's blocks when it allocates them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import msgspec

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.loading import LoadedEngine, loaded_engine
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot

PLACES: Final = (("vllm.core.block_manager", "SelfAttnBlockSpaceManager"), ("vllm.core.block_manager_v2", "BlockSpaceManagerV2"))
"""Where the block manager stands, newest release first."""


class Request:
    """A sequence that is a group of its own, as far as the block manager reads either."""

    def __init__(self, number: int, prompt: Sequence[int], adapter: str | None) -> None:
        self.seq_id = number
        self.request_id = str(number)
        self.tokens = list(prompt)
        self.computed = 0
        self.swapped = False
        self.adapter = adapter
        self.data = SimpleNamespace(get_num_computed_tokens=lambda: self.computed)

    def get_token_ids(self) -> list[int]:
        """All tokens that are known."""
        return list(self.tokens)

    def get_len(self) -> int:
        """Their number."""
        return len(self.tokens)

    def extra_hash(self) -> int | None:
        """What else a block's content depends on."""
        return None if self.adapter is None else hash(self.adapter)

    def is_prefill(self) -> bool:
        """Whether nothing has been sampled yet."""
        return self.computed == 0

    def get_seqs(self, status: object = None) -> list[Request]:
        """The sequences of the group."""
        return [self]

    def get_max_num_running_seqs(self) -> int:
        """How many of them run."""
        return 1

    def is_encoder_decoder(self) -> bool:
        """Whether there are encoder blocks too."""
        return False


class Plain(EngineAdapter):
    """Without prefix caching."""

    caching: ClassVar[bool] = False
    tick: ClassVar[float] = 1.0
    """How far the clock goes on with each step."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.engine = loaded_engine()
        self.block_size = block_size
        make = manager_class(self.engine)
        self.manager = make(
            **self.engine.fit(
                make,
                block_size=block_size,
                num_gpu_blocks=num_blocks,
                num_cpu_blocks=num_blocks,
                watermark=0.0,
                enable_caching=self.caching,
            )
        )
        status = self.engine.symbol("vllm.core.interfaces", "AllocStatus")
        self.fits = status.OK
        allocators = self.manager.block_allocator._allocators
        self.allocator = next(allocator for device, allocator in allocators.items() if device.name == "GPU")
        self.requests: dict[int, Request] = {}
        self.out: dict[int, int] = {}
        self.now = 0.0

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Swap where the release has it, and not together with prefix caching, where every release fails to let go of what is swapped out.

        Adapters are told apart where blocks are hashed with what else they depend on.
        """
        engine = loaded_engine()
        table = engine.symbol("vllm.core.block.block_table", "BlockTable")
        told_apart = cls.caching and "extra_hash" in inspect.signature(table.allocate).parameters
        return Capabilities(
            prefix=cls.caching,
            fork=True,
            swap=not cls.caching and "raise NotImplementedError" not in inspect.getsource(manager_class(engine).swap_out),
            snapshot=True,
            namespace_fields=frozenset({"adapter"} if told_apart else ()),
            policy=frozenset({"rewrites"}),
        )

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A waiting sequence."""
        self.requests[seq] = Request(seq, prompt, namespace.adapter)

    def match(self, seq: int) -> Hit:
        """What is computed already is known once the blocks are allocated."""
        raise Refused("V0 looks for a prefix while it allocates")

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """A whole prefill, or the decode of one token."""
        request = self.requests[seq]
        self.now += self.tick
        grant = self._decode(request) if seq in self.manager.block_tables else self._prefill(request, count)
        self.out[seq] = len(request.tokens)
        self.manager.access_all_blocks_in_seq(request, self.now)
        return grant

    def _prefill(self, request: Request, count: int) -> Grant:
        if count < len(request.tokens):
            raise Refused("V0 prefills whole prompts here")
        if hasattr(self.manager, "get_num_cached_tokens"):
            self.manager.get_num_cached_tokens(request)
        if self.manager.can_allocate(request) != self.fits:
            if hasattr(self.manager, "remove_seq_from_computed_blocks_tracker"):  # the scheduler's part since 0.9.2
                self.manager.remove_seq_from_computed_blocks_tracker(request)
            raise OutOfBlocks
        self.manager.allocate(request)
        found = len(self.manager.get_common_computed_block_ids([request])) if self.caching else 0
        mark = self.manager.mark_blocks_as_computed
        mark(**self.engine.fit(mark, seq_group=request, token_chunk_size=len(request.tokens)))
        return Grant(adopted=min(found * self.block_size, len(request.tokens) - 1))

    def _decode(self, request: Request) -> Grant:
        if not self.manager.can_append_slots(request, 0):
            raise OutOfBlocks
        copies = self.manager.append_slots(request, 0)
        pairs = copies if isinstance(copies, list) else [(source, target) for source, targets in copies.items() for target in targets]
        return Grant(copies=[(0, source, target) for source, target in pairs])

    def commit(self, seq: int, accepted: int) -> None:
        """The step is done."""
        self.requests[seq].computed = self.out.pop(seq)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """One sampled token after another, each once all before it are computed."""
        request = self.requests[seq]
        if len(tokens) > 1 or request.computed < len(request.tokens):
            raise Refused("V0 samples one token at a time, for sequences that run")
        request.tokens += tokens

    def fork(self, parent: int, child: int) -> Grant:
        """`fork`; what has to be copied is copied when somebody writes."""
        source = self.requests[parent]
        if source.computed < len(source.tokens):
            raise Refused("V0 forks where every known token is computed")
        copy = Request(child, source.tokens, source.adapter)
        copy.computed = source.computed
        self.manager.fork(source, copy)
        if hasattr(self.manager, "get_num_cached_tokens"):
            self.manager.get_num_cached_tokens(copy)
        self.requests[child] = copy
        return Grant()

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`free`."""
        request = self.requests[seq]
        self.out.pop(seq, None)
        self.manager.free(request)
        request.computed, request.swapped = 0, False

    def swap_out(self, seq: int) -> bool:
        """`can_swap_out`, `swap_out`."""
        request = self.requests[seq]
        if not self.manager.can_swap_out(request):
            return False
        self.manager.swap_out(request)
        request.swapped = True
        return True

    def swap_in(self, seq: int) -> bool:
        """`can_swap_in`, `swap_in`."""
        request = self.requests[seq]
        if self.manager.can_swap_in(request, 0) != self.fits:
            return False
        arguments = {"seq_group": request, "num_lookahead_slots": 0}
        self.manager.swap_in(**self.engine.fit(self.manager.swap_in, **arguments))
        request.swapped = False
        return True

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The manager's table; what is swapped out lies elsewhere."""
        request = self.requests.get(seq)
        if request is None or request.swapped or seq not in self.manager.block_tables:
            return []
        return list(self.manager.block_tables[seq].physical_block_ids)

    def snapshot(self) -> Snapshot:
        """The shared reference counter, free blocks without and with content, and what a hash leads to."""
        hashless = getattr(self.allocator, "_hashless_allocator", self.allocator)
        evictor = getattr(self.allocator, "evictor", None)
        counts = {block: count for block, count in hashless.refcounter._refcounts.items() if count}
        kept = list(evictor.free_table) if evictor is not None else []
        cached = set(self.allocator._cached_blocks.values()) if self.caching else None
        return Snapshot(refcounts=counts, free=[*hashless._free_block_indices, *kept], cached=cached)


class Cached(Plain):
    """With prefix caching."""

    caching = True


class Swapping(Cached):
    """With prefix caching and swap."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of `v0`, and swap."""
        return msgspec.structs.replace(super().capabilities(), swap=True)


class SameTick(Cached):
    """With prefix caching, and all steps within one tick of the clock."""

    tick = 0.0


def manager_class(engine: LoadedEngine) -> Any:
    """The block manager of this release."""
    for module, name in PLACES:
        if engine.has(module):
            return engine.symbol(module, name)
    raise engine.moved("it has no block manager of V0")
