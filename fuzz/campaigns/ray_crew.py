"""Workers on a Ray cluster: one actor for each core, or for each accelerator, wherever Ray finds one.

An actor keeps one worker process on its machine and passes orders on. So whatever the target does to its process is seen by the actor, which lives on, and is told as on one machine;
while the loss of an actor, or of its whole machine, is nobody's fault, and its order is simply done again elsewhere. A place that comes free takes a new actor as soon as
the cluster has room for one, so machines may leave and join while a campaign runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any, Final

import msgspec

from kvproof.fuzz.campaigns.crew import LocalCrew
from kvproof.fuzz.campaigns.faults import BadCluster
from kvproof.fuzz.campaigns.orders import Answer, Failed, Job, Lost, Order, Result
from kvproof.fuzz.campaigns.work import Find

CONNECT_SECONDS: Final = 10.0
"""How long the head of a cluster may take to answer at all."""

_MEND: Final = "start one with `ray start --head`, or give its address as HOST:PORT."

POLL_SECONDS: Final = 1.0
"""How often an actor looks at its worker process."""


class Hand:
    """What runs in an actor: one worker process, and what it answers."""

    def __init__(self, job: bytes, find: Find, campaign: str) -> None:
        told = msgspec.msgpack.decode(job, type=Job)
        self.crew = LocalCrew(
            msgspec.structs.replace(told, devices=False), find, campaign, workers=1
        )  # Ray has set the device of the actor

    def ready(self) -> bool:
        """The actor has been placed."""
        return True

    def pid(self) -> int:
        """The process of the actor."""
        return os.getpid()

    def do(self, order: bytes) -> bytes:
        """Let the process do an order, and wait for its answer."""
        self.crew.give(0, msgspec.msgpack.decode(order, type=Order))
        while not (answers := self.crew.wait(POLL_SECONDS)):
            pass
        return msgspec.msgpack.encode(answers[0][1])


class _Place(msgspec.Struct):
    """One place for an actor. `placed` is pending until the cluster has room for it."""

    actor: Any
    placed: Any
    ready: bool = False
    answer: Any = None


class RayCrew:
    """Actors of a Ray cluster. `workers`: how many, 0 for as many as the cluster has cores (or accelerators) now."""

    def __init__(self, job: Job, find: Find, campaign: str, *, address: str, workers: int = 0) -> None:
        """Raises BadCluster."""
        self.ray: Any = _connected(address)
        unit = "GPU" if job.devices else "CPU"
        there = int(self.ray.cluster_resources().get(unit, 0))
        if not workers and not there:
            raise BadCluster(f"The Ray cluster at {address} has no {unit}; add a node that has one, or name another cluster with --ray.")
        needs = {"num_gpus": 1} if job.devices else {"num_cpus": 1}
        # No restarts by Ray: it would give a second actor the same number, and what the first one was told is not known to it.
        self._hand: Any = self.ray.remote(max_restarts=0, max_task_retries=0, **needs)(Hand)
        self._arguments = (msgspec.msgpack.encode(job), find, campaign)
        self._places = [self._start() for _ in range(workers or there)]

    @property
    def size(self) -> int:
        """How many actors are placed."""
        return sum(place.ready for place in self._places)

    def free(self) -> list[int]:
        """The placed actors that have no order."""
        return [number for number, place in enumerate(self._places) if place.ready and place.answer is None]

    def give(self, worker: int, order: Order) -> None:
        """Let a free actor do an order."""
        place = self._places[worker]
        place.answer = place.actor.do.remote(msgspec.msgpack.encode(order))

    def wait(self, seconds: float) -> list[tuple[int, Answer]]:
        """The answers that came within `seconds`. An actor that was placed meanwhile becomes free."""
        waited = {
            place.answer if place.ready else place.placed: number
            for number, place in enumerate(self._places)
            if place.answer or not place.ready
        }
        if not waited:
            return []
        done, rest = self.ray.wait(list(waited), num_returns=1, timeout=seconds)
        if rest and done:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [(waited[one], answer) for one in done if (answer := self._take(waited[one], one)) is not None]

    def replace(self, worker: int) -> None:
        """End an actor and ask for another one."""
        self._end(self._places[worker])
        self._places[worker] = self._start()

    def close(self) -> None:
        """End all actors and leave the cluster."""
        for place in self._places:
            self._end(place)
        self.ray.shutdown()

    def _start(self) -> _Place:
        actor = self._hand.remote(*self._arguments)
        return _Place(actor, actor.ready.remote())

    def _end(self, place: _Place) -> None:
        with contextlib.suppress(Exception):  # it may be gone already, with its machine
            self.ray.kill(place.actor)

    def _take(self, worker: int, reference: Any) -> Answer | None:  # noqa: ANN401 -- a reference of Ray's
        place = self._places[worker]
        try:
            found = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            return Failed(str(error))
        except self.ray.exceptions.RayError as error:
            had_order = place.answer is not None
            self.replace(worker)
            told = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            return Lost(f"A Ray worker, or its machine, is gone ({told})", blame=False) if had_order else None
        if not place.ready:
            place.ready = True
            return None
        place.answer = None
        answer: Answer = msgspec.msgpack.decode(found, type=Result | Lost | Failed)
        return answer


def _reached(address: str) -> None:
    """Raises BadCluster where nobody listens at a HOST:PORT: Ray itself would try for five minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise BadCluster(f"There is no Ray cluster at {address} ({error.strerror or error}); {_MEND}") from error


def _connected(address: str) -> Any:  # noqa: ANN401 -- the module ray, which has no complete types
    """The module ray, connected to the cluster at `address`."""
    try:
        import ray
    except ImportError as error:
        raise BadCluster("A campaign on a Ray cluster needs the package ray; run `pip install 'kvproof[ray]'`.") from error
    if ray.is_initialized():
        return ray
    _reached(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="kvproof")
    except Exception as error:
        told = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadCluster(
            f"There is no Ray cluster at {address} ({told}); start one with `ray start --head`, or give its address."
        ) from error
    return ray
