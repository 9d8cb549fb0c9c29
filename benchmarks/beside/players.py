"""How each cache is driven: every player takes the calls of a scheduler, and makes those of its engine.

Prefills and releases of the peers go through their adapters, whose share is a few microseconds of a request's hundred or more. A decode takes less than that, so there
each player makes the very calls of its engine's scheduler for a batch, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, Protocol

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.production import GroupSpec, PagedCache
from kvproof.models.ops import NO_NAMESPACE
from kvproof.targets import find_target

BLOCK_SIZE: Final = 16

TOO_SMALL: Final = "the pool is too small for the work"


class Player(Protocol):
    """What a scheduler asks of a cache. Sequence numbers are never used again."""

    def admit(self, prompt: list[int]) -> int:
        """A new request; returns its number."""

    def prefill(self, seq: int, tokens: int) -> int:
        """Computes all that is known; returns how many tokens were adopted."""

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """Every sequence samples a token, and computes it."""

    def finish(self, seq: int) -> None:
        """The request is gone."""

    def preempt(self, seq: int) -> None:
        """It holds nothing, and comes back."""


class Ours:
    """The production cache as an engine would build it: with its lock, without steps, since no peer has them, and without a log of events that nobody reads.

    `decode` commits the last pass of each, so the pass of a prefill stays out until then, or until its sequence is let go.
    """

    def __init__(self, num_blocks: int, groups: Sequence[GroupSpec], *, caching: bool) -> None:
        self.cache = PagedCache(num_blocks, BLOCK_SIZE, groups=groups, steps=False, prefix_caching=caching)
        self.next = 0

    def admit(self, prompt: list[int]) -> int:
        """`admit`."""
        self.next += 1
        self.cache.admit(self.next, prompt)
        return self.next

    def prefill(self, seq: int, tokens: int) -> int:
        """`extend`."""
        return self.cache.extend(seq, tokens).adopted

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """`decode`."""
        if self.cache.decode(seqs, tokens):
            raise RuntimeError(TOO_SMALL)

    def finish(self, seq: int) -> None:
        """`commit`, so that the last whole block is matchable, and `release`."""
        self.cache.commit(seq)
        self.cache.release(seq)

    def preempt(self, seq: int) -> None:
        """`commit` and `preempt`."""
        self.cache.commit(seq)
        self.cache.preempt(seq)


def ours(groups: Sequence[GroupSpec] = (GroupSpec(),), *, caching: bool = True) -> Callable[[int], Player]:
    """What builds our cache."""
    return lambda num_blocks: Ours(num_blocks, groups, caching=caching)


class Peer:
    """An engine by its adapter, which plays the scheduler's part. Decodes are the subclasses' own."""

    adapter: Any

    def __init__(self, adapter: CacheAdapter) -> None:
        self.adapter = adapter
        self.next = 0

    def admit(self, prompt: list[int]) -> int:
        """A waiting request."""
        self.next += 1
        self.adapter.admit(self.next, prompt, NO_NAMESPACE)
        return self.next

    def prefill(self, seq: int, tokens: int) -> int:
        """A pass over the prompt."""
        adopted: int = self.adapter.extend(seq, tokens).adopted
        self.adapter.commit(seq, 0)
        return adopted

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """The calls of the engine's scheduler for a batch."""
        raise NotImplementedError

    def finish(self, seq: int) -> None:
        """The request is gone."""
        self.adapter.release(seq, "finish")

    def preempt(self, seq: int) -> None:
        """It waits again."""
        self.adapter.release(seq, "preempt")


class Vllm(Peer):
    """`KVCacheManager`: `append_output_token_ids` and `allocate_slots` for each."""

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """As `Scheduler.update_from_output` and `Scheduler.schedule` do."""
        requests, allocate = self.adapter.requests, self.adapter.manager.allocate_slots
        self.adapter._step_starts()
        for seq, token in zip(seqs, tokens, strict=True):
            request = requests[seq]
            request.append_output_token_ids(token)
            if allocate(request, 1) is None:
                raise RuntimeError(TOO_SMALL)
            request.num_computed_tokens += 1


class Nano(Peer):
    """`BlockManager`: `can_append` and `may_append` for each."""

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """As `Scheduler.postprocess` and `Scheduler.schedule` do."""
        sequences, manager = self.adapter.sequences, self.adapter.manager
        for seq, token in zip(seqs, tokens, strict=True):
            sequence = sequences[seq]
            sequence.append_token(token)
            if not manager.can_append(sequence):
                raise RuntimeError(TOO_SMALL)
            manager.may_append(sequence)


class Transformers(Peer):
    """`PagedAttentionCache`: `can_store_request_tokens` and the count of complete blocks for each, which are marked after the batch."""

    def __init__(self, adapter: CacheAdapter) -> None:
        super().__init__(adapter)
        self.states: dict[int, Any] = {}

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """As `Scheduler._process_candidates` and the batch processor do."""
        cache = self.adapter.cache
        cache.pool.try_to_free_sectors()
        completed = []
        for seq, token in zip(seqs, tokens, strict=True):
            state = self.states.get(seq) or self._state(seq)
            state.generated_tokens.append(token)
            if not (cache.can_store_request_tokens(state, 1) or self._evict_and_store(state)):
                raise RuntimeError(TOO_SMALL)
            completed.append((state, cache.count_new_complete_blocks(state, 1)))
        for state, blocks in completed:
            state.position_offset += 1
            cache.mark_complete_blocks(state, blocks)

    def _evict_and_store(self, state: Any) -> bool:  # noqa: ANN401 -- an object of the engine's own kind
        self.adapter.cache.evict_cached_blocks()
        self.adapter.cache.pool.try_to_free_sectors()
        return bool(self.adapter.cache.can_store_request_tokens(state, 1))

    def _state(self, seq: int) -> Any:  # noqa: ANN401 -- an object of the engine's own kind
        request = self.adapter.requests[seq]
        state = self.states[seq] = SimpleNamespace(
            request_id=request.request_id,
            status=self.adapter.status.DECODING,
            initial_tokens=request.tokens,
            generated_tokens=[],
            position_offset=request.computed,
        )
        state.current_len = lambda: state.position_offset
        return state

    def finish(self, seq: int) -> None:
        """Its state goes as well."""
        self.states.pop(seq, None)
        super().finish(seq)


class UncachedTransformers(Transformers):
    """The same with block sharing switched off."""

    def __init__(self, adapter: CacheAdapter) -> None:
        super().__init__(adapter)
        self.adapter.cache.allow_block_sharing = self.adapter.cache.use_prefix_sharing = False
        self.adapter.allocator.use_block_sharing = False


class Sglang(Peer):
    """`alloc_decode` for the whole batch, whose tensors are made anew when its sequences change."""

    def __init__(self, adapter: CacheAdapter) -> None:
        super().__init__(adapter)
        self.batch: list[int] = []

    def decode(self, seqs: Sequence[int], tokens: Sequence[int]) -> None:
        """As `alloc_for_decode` does."""
        torch, cache = self.adapter.torch, self.adapter
        if seqs != self.batch:
            self.batch = list(seqs)
            self.requests = [cache.requests[seq] for seq in seqs]
            self.rows = torch.tensor([request.kv.req_pool_idx for request in self.requests], dtype=torch.int64)
            self.lengths = torch.tensor([request.computed for request in self.requests], dtype=torch.int64)
        last = cache.rows.req_to_token[self.rows, self.lengths - 1].to(torch.int64)
        longer = self.lengths + 1
        cache.allocator.evict_to_free_tokens(cache.tree, len(seqs) * cache.page)
        slots = cache.allocator.alloc_decode(longer, longer, last)
        if slots is None:
            raise RuntimeError(TOO_SMALL)
        cache.rows.write((self.rows, self.lengths), slots.to(torch.int32))
        self.lengths = longer
        for request, token in zip(self.requests, tokens, strict=True):
            request.tokens.append(token)
            request.computed = request.out = request.out + 1


PLAYERS: Final[dict[str, type[Peer]]] = {
    "vllm": Vllm,
    "transformers": Transformers,
    "nano-vllm-fork": Nano,
    "nano-vllm-npu": Nano,
    "sglang": Sglang,
}
"""By the name of the engine."""

CACHED, UNCACHED, HYBRID = "cached", "uncached", "hybrid"
"""Ways to run a cache: with prefix caching, without, and with windowed layers beside full ones."""

OURS: Final = "production"

VLLM_WINDOW: Final = 5
"""Tokens that the windowed layers of vLLM's variant attend to."""


def builder(target: str, way: str) -> Callable[[int], Player] | None:
    """What builds a player with so many blocks; None where the engine does not run that way."""
    if target == OURS:
        return {
            CACHED: ours(),
            UNCACHED: ours(caching=False),
            HYBRID: ours((GroupSpec(), GroupSpec("sliding_window", window=VLLM_WINDOW))),
        }[way]
    engine, _, version = target.partition("==")
    player = PLAYERS[engine]
    variants = {
        ("vllm", CACHED): "[full]",
        ("vllm", UNCACHED): "[uncached]",
        ("vllm", HYBRID): "[hybrid]",
        ("transformers", CACHED): "[sectors]",
        ("transformers", UNCACHED): "[sectors]",
        ("sglang", CACHED): "[radix]",
    }
    if way != CACHED and (engine, way) not in variants:
        return None
    if (engine, way) == ("transformers", UNCACHED):
        player = UncachedTransformers
    adapter = find_target(f"{engine}{variants.get((engine, way), '')}=={version}")
    return lambda num_blocks: player(adapter(num_blocks=num_blocks, block_size=BLOCK_SIZE))
