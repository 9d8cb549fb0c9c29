"""vLLM's engine V1 with steps in flight and deferred frees: the scheduler's own code holds back blocks that a step may still write.

The adapter schedules one request at a time, `begin_step` is the scheduler's counter of launched steps, `end_step` that of processed ones, and frees go through
`_free_request_blocks` and `_drain_deferred_frees`. The engine defers only beside an asynchronous connector; without one it relies on the order of a CUDA stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.scheduler import SCHEDULER, Scheduled, bare_scheduler
from kvproof.impl.foreign.vllm.v1 import Hybrid
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Grant, Refused


class Deferred(Scheduled):
    """Full attention with prefix caching, up to three steps in flight."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.scheduler = bare_scheduler(self.manager, None)
        self.scheduler.defer_block_free = True
        self.scheduled: set[int] = set()
        """Sequences whose pass is not launched yet."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the manager, and steps."""
        if not hasattr(loaded_engine().symbol(SCHEDULER, "Scheduler"), "_drain_deferred_frees"):
            raise loaded_engine().moved("Scheduler has no _drain_deferred_frees")
        return msgspec.structs.replace(super().capabilities(), steps=True)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Scheduled for the step that begins next; its tokens are in flight until their output is processed."""
        before = self.requests[seq].num_computed_tokens
        grant = super().extend(seq, count, drafts)
        self.requests[seq].num_in_flight_tokens = self.requests[seq].num_computed_tokens - before - grant.adopted
        self.scheduled.add(seq)
        return grant

    def begin_step(self) -> int:
        """The end of `schedule`."""
        self.scheduler.sched_step_seq += 1
        for seq in self.scheduled:
            self.requests[seq].last_sched_seq = self.scheduler.sched_step_seq
        self.scheduled.clear()
        return int(self.scheduler.sched_step_seq)

    def end_step(self, step: int) -> None:
        """The start of `update_from_output`."""
        self.scheduler.processed_step_seq = step
        self.scheduler._drain_deferred_frees()

    def commit(self, seq: int, accepted: int) -> None:
        """The output is processed."""
        self.requests[seq].num_in_flight_tokens = 0
        super().commit(seq, accepted)

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`finish_requests`, or what a preemption does."""
        request = self.requests[seq]
        if seq in self.scheduled:
            raise Refused("the scheduler schedules and launches in one call")
        self.passes.pop(seq, None)
        if reason != "preempt" or request.is_finished():
            self.scheduler.finish_requests(request.request_id, self.surface.status.FINISHED_ABORTED)
            return
        self.scheduler._free_request_blocks(request)
        request.status = self.surface.status.PREEMPTED
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.spec_token_ids = []


class HybridDeferred(Hybrid, Deferred):
    """Full layers beside layers with a window of five tokens."""
