"""The scheduler of vLLM's engine V1 without its engine, and what its adapters share: the class is real, what its methods about freeing blocks look at is made here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final

from kvproof.impl.foreign.adapter import without_init
from kvproof.impl.foreign.loading import loaded_engine
from kvproof.impl.foreign.vllm.v1 import SALTS, Full
from kvproof.models.ops import Namespace

SCHEDULER: Final = "vllm.v1.core.sched.scheduler"


class Queue(set[Any]):
    """A queue of waiting requests, as far as an abort looks at it."""

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """The requests wait no more."""
        self.difference_update(requests)


class Scheduled(Full):
    """A manager whose requests a scheduler knows too. A subclass makes the `scheduler`."""

    scheduler: Any
    tells_apart = SALTS

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """`add_request`."""
        super().admit(seq, prompt, namespace)
        request = self.requests[seq]
        self.scheduler.requests[request.request_id] = request


def bare_scheduler(manager: Any, connector: Any) -> Any:
    """A Scheduler over `manager` and `connector` (None for no connector), made without its `__init__`. No request is known yet."""
    scheduler = without_init(loaded_engine().symbol(SCHEDULER, "Scheduler"))
    scheduler.kv_cache_manager = manager
    scheduler.kv_cache_config = SimpleNamespace(kv_cache_groups=[None])
    scheduler.vllm_config = SimpleNamespace(kv_transfer_config=None)
    scheduler.connector = connector
    scheduler.ec_connector = scheduler.aux_output_connector = scheduler.connector_prefix_cache_stats = None
    scheduler.encoder_cache_manager = SimpleNamespace(free=_nothing)
    scheduler.requests = {}
    scheduler.running = []
    for queue in ("waiting", "skipped_waiting", "kv_holding_waiting", "deferred_waiting"):
        setattr(scheduler, queue, Queue())
    scheduler.finished_req_ids = set()
    scheduler.finished_req_ids_dict = None
    scheduler.finished_recving_kv_req_ids = set()
    scheduler.failed_recving_kv_req_ids = set()
    scheduler.deferred_loads, scheduler.deferred_frees = {}, deque[Any]()
    scheduler.defer_block_free = False
    scheduler.sched_step_seq = scheduler.processed_step_seq = 0
    scheduler._inflight_prefills, scheduler._pending_encoder_input_ids = set(), {}
    scheduler.num_waiting_for_streaming_input = 0
    scheduler._kv_fetch_stages, scheduler._kv_fetch_counts = {}, Counter[str]()
    return scheduler


def _nothing(request: Any) -> None:
    """A request without media has nothing in the encoder's cache."""
