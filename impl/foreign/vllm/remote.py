"""vLLM's engine V1 where keys and values come from another machine: the scheduler's own code decides when a request's blocks are freed.

Every pass is an asynchronous load of the whole prompt. It is launched by the step that begins next and has arrived when that step ends. The scheduler is the
engine's own class with a worker and a connector that are made up here: `finish_requests` aborts, `_update_from_kv_xfer_finished` hears of loads that are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.scheduler import Scheduled, bare_scheduler
from kvproof.impl.foreign.vllm.v1 import surface
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Grant, OutOfBlocks, Refused


class Connector:
    """Loads everything. With `sends`, it also sends on what was aborted while it was loaded, which ends together with the load."""

    def __init__(self, *, sends: bool) -> None:
        self.sends = sends
        self.loading: set[str] = set()
        """Requests whose load is under way."""
        self.sending: set[str] = set()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Whether the request's blocks have to wait until they are sent."""
        waits = self.sends and request.request_id in self.loading
        if waits:
            self.sending.add(request.request_id)
        return waits, None

    def update_connector_output(self, output: Any) -> None:
        """The scheduler passes on what the worker reports."""


class RemoteLoads(Scheduled):
    """Full attention without prefix caching, on the decoding side of two machines."""

    caching = False
    sends: ClassVar[bool] = False

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.connector = Connector(sends=self.sends)
        self.scheduler = bare_scheduler(self.manager, self.connector)
        self.waiting: list[str] = []
        """Loads that are not launched yet."""
        self.loading: dict[int, list[str]] = {}
        """Step -> the loads that it launched."""
        self.steps = 0

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Steps, and nothing that needs a local pass."""
        if "num_external_computed_tokens" not in surface().allocate_takes:
            raise loaded_engine().moved("allocate_slots takes no num_external_computed_tokens")
        claimed = super().capabilities()
        return Capabilities(groups=cls.groups, steps=True, snapshot=True, null_blocks=claimed.null_blocks, policy=claimed.policy)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Blocks for a prompt that another machine has computed."""
        request = self.requests[seq]
        if request.status == self.surface.status.RUNNING or count < request.num_tokens:
            raise Refused("only whole prompts are loaded here")
        allocate = self.manager.allocate_slots
        if allocate(request, 0, 0, None, num_external_computed_tokens=request.num_tokens, delay_cache_blocks=True) is None:
            raise OutOfBlocks
        request.status = self.surface.status.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = request.num_tokens
        self.waiting.append(request.request_id)
        return Grant()

    def begin_step(self) -> int:
        """The connector's worker starts every load that was asked for."""
        self.steps += 1
        self.loading[self.steps] = self.waiting
        self.connector.loading.update(self.waiting)
        self.waiting = []
        return self.steps

    def end_step(self, step: int) -> None:
        """The worker reports what has arrived."""
        arrived = set(self.loading.pop(step))
        sent = arrived & self.connector.sending
        self.connector.loading -= arrived
        self.scheduler._update_from_kv_xfer_finished(SimpleNamespace(finished_recving=arrived, finished_sending=sent))

    def commit(self, seq: int, accepted: int) -> None:
        """The scheduler takes the request out of the queue of those that wait for a load."""
        request = self.requests[seq]
        self.scheduler.finished_recving_kv_req_ids.discard(request.request_id)
        request.status = self.surface.status.RUNNING

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Never: only loads are looked at."""
        raise Refused("nothing is decoded here")

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`finish_requests`, or a preemption of a request that has arrived."""
        request = self.requests[seq]
        if request.request_id in self.waiting:
            raise Refused("the scheduler asks for a load and launches it in one call")
        if reason != "preempt" or request.is_finished():
            self.scheduler.finish_requests(request.request_id, self.surface.status.FINISHED_ABORTED)
            return
        if request.status == self.surface.status.WAITING_FOR_REMOTE_KVS:
            raise Refused("a request that waits for a load is never preempted")
        super().release(seq, reason)


class RemoteSends(RemoteLoads):
    """The same where a request that is aborted during its load is still sent on."""

    sends = True
