"""vLLM's engine V1 with a KV connector that has everything: a preempted request comes back by local hits and an asynchronous load of the rest.

Swapping out stands for a preemption whose blocks the connector had saved, swapping in for the admission that follows: look up, allocate with external tokens and
delayed publishing, and publish once the load has finished (`WAITING_FOR_REMOTE_KVS` in the scheduler).
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.v1 import SALTS, Full, Hybrid, surface
from kvproof.models.capabilities import Capabilities
from kvproof.models.outcomes import Refused


class Offload(Full):
    """Full attention."""

    tells_apart = SALTS

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.saved: dict[int, int] = {}
        """Sequence -> the tokens that the connector holds for it."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the manager, and swap."""
        claimed = super().capabilities()
        if "num_external_computed_tokens" not in surface().allocate_takes:
            raise loaded_engine().moved("allocate_slots takes no num_external_computed_tokens")
        return msgspec.structs.replace(claimed, swap=True)

    def swap_out(self, seq: int) -> bool:
        """Preempt a request whose blocks the connector has saved."""
        request = self.requests[seq]
        computed = request.num_computed_tokens
        if computed == request.num_tokens:
            raise Refused("a request that runs has always sampled one token more than it has computed")
        self.release(seq, "preempt")
        self.saved[seq] = computed
        return True

    def swap_in(self, seq: int) -> bool:
        """Admit it again with what the local index lacks as external tokens."""
        request, computed = self.requests[seq], self.saved[seq]
        self._step_starts()
        blocks, local = self.surface.hit(self.manager, request)
        if local >= computed:
            return False  # nothing is left to load: the scheduler would go on from the local hit, which holds more than was saved
        if not self._load(request, local, blocks, computed - local):
            return False
        request.num_computed_tokens = computed
        self.manager.cache_blocks(request, computed)
        request.status = self.surface.status.RUNNING
        del self.saved[seq]
        return True

    def _load(self, request: Any, local: int, blocks: Any, external: int) -> bool:
        allocate = self.manager.allocate_slots
        return allocate(request, 0, local, blocks, num_external_computed_tokens=external, delay_cache_blocks=True) is not None


class HybridOffload(Hybrid, Offload):
    """Full layers beside layers with a window of five tokens."""


class Paused(Offload):
    """A request that keeps its blocks while it waits, and is then told of external tokens: the call that vllm-project/vllm#52707 is about.

    Its managers are called directly. `allocate_slots` makes that call only for requests that it takes for new, and how one with blocks comes there was not reproduced.
    """

    def swap_out(self, seq: int) -> bool:
        """The request waits, its blocks stay."""
        request = self.requests[seq]
        self.saved[seq] = request.num_computed_tokens
        request.num_computed_tokens = 0
        return True

    def swap_in(self, seq: int) -> bool:
        """All that it had computed is offered as external tokens."""
        request, computed = self.requests[seq], self.saved.pop(seq)
        for manager in self.manager.coordinator.single_type_managers:
            manager.allocate_external_computed_blocks(request.request_id, 0, computed)
        request.num_computed_tokens = computed
        return True
