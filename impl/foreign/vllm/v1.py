"""vLLM's engine V1: its `KVCacheManager`, with the adapter in the part of the scheduler.

As there, a look-up and the allocation that adopts it stand back to back, counters run ahead by what was scheduled and fall back by what was rejected, and a
preemption frees everything. The pass of an extend runs at once: `docs/engines.md` says what that leaves out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from kvproof.impl.foreign.adapter import EngineAdapter
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.surface import Surface
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused, Snapshot


@functools.cache
def surface() -> Surface:
    """The surface of the release that this process holds."""
    return Surface(loaded_engine())


class Full(EngineAdapter):
    """Full attention with prefix caching."""

    groups: ClassVar[Sequence[Group]] = (Group(),)
    caching: ClassVar[bool] = True
    events: ClassVar[bool] = False
    ranks: ClassVar[int] = 1
    """Over how many ranks of decode context parallelism a block is spread."""
    unscheduled_drafts: ClassVar[int] = 0
    """How many more drafts are proposed than a step takes."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.surface = surface()
        self.hashed_tokens = self.surface.hashed_tokens(block_size, self.ranks)
        self.manager = self.surface.manager(self.groups, num_blocks, block_size, caching=self.caching, ranks=self.ranks, events=self.events)
        self.nulls = self.surface.null_blocks(self.manager)
        self.requests: dict[int, Any] = {}
        self.passes: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Sequence -> the first position behind the known tokens of its pass, and its drafts."""
        self.lora_ids: dict[str, int] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        """What the release that is loaded offers."""
        release = surface()
        probe = release.manager(cls.groups, 4, 4, caching=cls.caching, ranks=cls.ranks)
        return Capabilities(
            groups=cls.groups,
            prefix=cls.caching,
            drafts=release.knows_drafts,
            evict=cls.caching and hasattr(probe, "evict_blocks"),
            reset=cls.caching and hasattr(probe, "reset_prefix_cache"),
            snapshot=True,
            namespace_fields=release.namespace_fields if cls.caching else frozenset(),
            null_blocks=release.null_blocks(probe),
            policy=frozenset({"lru", "groups-in-turn", "exact"}) if cls.caching else frozenset({"exact"}),
        )

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request in the waiting queue."""
        if namespace.tenant == "" or namespace.adapter == "":
            raise Refused("vLLM's front end takes no empty cache_salt and no adapter without a name")
        lora_id = self.lora_ids.setdefault(namespace.adapter or "", len(self.lora_ids) + 1)
        self.requests[seq] = self.surface.request(seq, prompt, namespace, self.hashed_tokens, lora_id)

    def match(self, seq: int) -> Hit:
        """`get_computed_blocks`, which takes no references."""
        return Hit(self.surface.hit(self.manager, self.requests[seq])[1])

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """`get_computed_blocks` for a waiting request, then `allocate_slots`."""
        request = self.requests[seq]
        first = request.status != self.surface.status.RUNNING
        self._step_starts()
        hit = self.surface.hit(self.manager, request) if first else None
        adopted = hit[1] if hit else 0
        start = request.num_computed_tokens + adopted
        known = min(count, request.num_tokens - start)
        request.spec_token_ids = [*drafts, *[0] * (self.unscheduled_drafts if drafts else 0)]
        if not self.surface.allocate(self.manager, request, known + len(drafts), len(drafts), hit):
            request.spec_token_ids = []
            raise OutOfBlocks
        request.status = self.surface.status.RUNNING
        request.num_computed_tokens = start + known + len(drafts)
        self.passes[seq] = start + known, tuple(drafts)
        return Grant(adopted=adopted)

    def commit(self, seq: int, accepted: int) -> None:
        """The counter falls back by the rejected drafts; the accepted ones become output."""
        request = self.requests[seq]
        known_end, drafts = self.passes.pop(seq)
        request.num_computed_tokens = known_end + accepted
        request.spec_token_ids = []
        if accepted:
            request.append_output_token_ids(list(drafts[:accepted]))

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Sampled tokens, which only a request that runs has.

        Releases whose manager hashes rely on more: that a token is sampled once all before it are computed, and one at a time.
        """
        request = self.requests[seq]
        if request.status != self.surface.status.RUNNING:
            raise Refused("vLLM samples only for requests that run")
        if self.surface.hash_function is None and (len(tokens) > 1 or request.num_computed_tokens < request.num_tokens):
            raise Refused("this release samples one token after another, each once all before it are computed")
        request.append_output_token_ids(list(tokens))

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`free`; a preempted request waits again with nothing computed."""
        request = self.requests[seq]
        self.passes.pop(seq, None)
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        if reason == "preempt":
            request.status = self.surface.status.PREEMPTED
        elif hasattr(self.manager, "free_block_hashes"):
            self.manager.free_block_hashes(request)

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The manager's table; null blocks stand where a window has passed."""
        blocks = self.surface.tables(self.manager)[group].get(str(seq), ())
        return [block.block_id for block in blocks]

    def evict(self, blocks: Sequence[int]) -> int:
        """`evict_blocks`."""
        before = {block.block_id for block in self.surface.indexed(self.manager)}
        self.manager.evict_blocks(set(blocks))
        return len(before - {block.block_id for block in self.surface.indexed(self.manager)})

    def reset(self) -> bool:
        """`reset_prefix_cache`."""
        return bool(self.manager.reset_prefix_cache())

    def snapshot(self) -> Snapshot:
        """Reference counts, the free queue in its order and its counter, and the index."""
        blocks = self.surface.blocks(self.manager)
        counts = {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt and block.block_id not in self.nulls}
        queue = self.surface.pool(self.manager).free_block_queue
        return Snapshot(
            refcounts=counts,
            free=[block.block_id for block in queue.get_all_free_blocks()],
            cached={block.block_id for block in self.surface.indexed(self.manager)},
            free_count=queue.num_free_blocks,
        )

    def _step_starts(self) -> None:
        """Each extend is a scheduler step of its own."""
        if hasattr(self.manager, "new_step_starts"):
            self.manager.new_step_starts()


class Uncached(Full):
    """Full attention without prefix caching."""

    caching = False


class Window(Full):
    """Every layer attends to the last five tokens."""

    groups = (Group(kind="sliding_window", window=5),)


class Hybrid(Full):
    """Full layers beside layers with a window of five tokens, on one pool."""

    groups = (Group(), Group(kind="sliding_window", window=5))


class Drafting(Full):
    """Full attention, with a drafter that proposes two tokens more than each step has a budget for."""

    unscheduled_drafts = 2


class Sharded(Full):
    """Full attention, every block spread over two ranks of decode context parallelism."""

    ranks = 2

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Blocks that can be spread."""
        return msgspec.structs.replace(super().capabilities(), block_sizes=(2, 4, 16))
