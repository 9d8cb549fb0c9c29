"""Worker processes of this machine. Each does one order at a time; one that dies, or gives no sign of life, is replaced and its order is reported as lost."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from kvproof.fuzz.campaigns.devices import CANARY_SECONDS, ORDER_SECONDS, device_of
from kvproof.fuzz.campaigns.faults import BadStore
from kvproof.fuzz.campaigns.orders import Answer, Failed, Job, Lost, Order, Result
from kvproof.fuzz.campaigns.work import SHRINK_SECONDS, Find, Worker
from kvproof.fuzz.processes import forking, kill_with_parent, process_context
from kvproof.properties.lockstep import show_life_to

SEED_BYTES: Final = 96
"""Room for the seed of the program that a worker runs, in shared memory and in its file."""

SLACK_SECONDS: Final = 10.0
"""A worker on a busy machine may be silent for so much longer than its work explains."""


class Crew(Protocol):
    """Workers that a conductor gives orders to, wherever they are."""

    @property
    def size(self) -> int:
        """How many workers there are now; they are numbered from 0, and a number is never given to another place."""

    def free(self) -> list[int]:
        """The workers that have no order."""

    def give(self, worker: int, order: Order) -> None:
        """Let a free worker do an order."""

    def wait(self, seconds: float) -> list[tuple[int, Answer]]:
        """The answers that came within `seconds`, each with the worker that gave it. A worker that is lost is replaced at once."""

    def replace(self, worker: int) -> None:
        """End a worker and put a fresh one in its place."""

    def close(self) -> None:
        """End all workers."""


class _Place(msgspec.Struct):
    """One worker process."""

    process: Any
    connection: Connection
    beat: Any
    """When it last gave a sign of life, on the monotonic clock, in shared memory."""
    seed: Any
    """The program that it runs, in shared memory."""
    order: Order | None = None


class LocalCrew:
    """Processes of this machine.

    `notes`: a directory where each worker writes down the program that it is about to run, for whoever comes after the whole machine went down.
    """

    def __init__(
        self, job: Job, find: Find, campaign: str, *, workers: int, notes: Path | None = None, context: BaseContext | None = None
    ) -> None:
        self.job = job
        self.find = find
        self.campaign = campaign
        self.notes = notes
        self.context: Any = context or process_context()
        self._places = [self._start(number) for number in range(workers)]

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._places)

    def free(self) -> list[int]:
        """The workers that have no order."""
        return [number for number, place in enumerate(self._places) if place.order is None]

    def give(self, worker: int, order: Order) -> None:
        """Let a free worker do an order. That it is dead shows when it is waited for."""
        place = self._places[worker]
        place.order = order
        place.seed.value = order.seed.encode()
        place.beat.value = time.monotonic()
        with contextlib.suppress(OSError):
            place.connection.send_bytes(msgspec.msgpack.encode(order))

    def wait(self, seconds: float) -> list[tuple[int, Answer]]:
        """The answers that came within `seconds`."""
        at_work = {place.connection: number for number, place in enumerate(self._places) if place.order is not None}
        answers: list[tuple[int, Answer]] = []
        for connection in wait(list(at_work), timeout=seconds):
            assert isinstance(connection, Connection)
            number = at_work[connection]
            try:
                answer: Answer = msgspec.msgpack.decode(connection.recv_bytes(), type=Result | Failed)
                self._places[number].order = None
            except (EOFError, OSError):
                answer = self._lost(number, "")
            answers.append((number, answer))
        answered = {number for number, _ in answers}
        for number, place in enumerate(self._places):
            silent = time.monotonic() - place.beat.value
            if place.order is not None and number not in answered and silent > self._patience(place.order):
                answers.append((number, self._lost(number, f"gave no sign of life for {silent:.0f} s")))
        return answers

    def replace(self, worker: int) -> None:
        """End a worker and put a fresh one in its place."""
        self._end(self._places[worker])
        self._places[worker] = self._start(worker)

    def close(self) -> None:
        """End all workers."""
        for place in self._places:
            self._end(place)

    def _lost(self, number: int, how: str) -> Lost:
        place = self._places[number]
        if not how:
            place.process.join(1.0)
            code = place.process.exitcode
            how = f"died with exit code {code}" if code is None or code >= 0 else f"died with signal {-code}"
        seed = place.seed.value.decode()
        self.replace(number)
        return Lost(f"A worker process {how} in or soon after program {seed}", seed=seed)

    def _patience(self, order: Order) -> float:
        """How long a worker may be silent: a program may shrink, and one in a process of its own shrinks by processes."""
        at_work = max(ORDER_SECONDS, CANARY_SECONDS) * 3 if self.job.kernels else 3 * self.job.op_seconds + 2 * SHRINK_SECONDS
        return SLACK_SECONDS + at_work * (1 if order.attempt == 1 else 3)

    def _start(self, number: int) -> _Place:
        ours, theirs = self.context.Pipe(duplex=True)
        beat = self.context.Value("d", time.monotonic(), lock=False)
        seed = self.context.Array("c", SEED_BYTES, lock=False)
        note = None if self.notes is None else self.notes / str(number)
        device = device_of(number) if self.job.devices else None
        arguments = (self.job, self.find, self.campaign, theirs, ours, beat, seed, note, device, os.getpid())
        process = self.context.Process(target=_work, args=arguments, daemon=True)
        with forking():
            process.start()
        theirs.close()
        return _Place(process, ours, beat, seed)

    def _end(self, place: _Place) -> None:
        place.connection.close()
        place.process.kill()
        place.process.join()


def _work(
    job: Job,
    find: Find,
    campaign: str,
    connection: Connection,
    parents_end: Connection,
    beat: Any,  # noqa: ANN401 -- shared values of multiprocessing
    seed: Any,  # noqa: ANN401
    note: Path | None,
    device: str | None,
    parent: int,
) -> None:
    """A worker process: do orders until nobody sends any."""
    kill_with_parent(parent)
    parents_end.close()  # else this end stays open here, and the loss of the parent never shows
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt), _Notebook(note) as write:

        def alive() -> None:
            beat.value = time.monotonic()

        def starts(program: str) -> None:
            seed.value = program.encode()[: SEED_BYTES - 1]
            alive()
            write(program)

        show_life_to(alive)
        worker = Worker(job, find, campaign, starts)
        while True:
            order = msgspec.msgpack.decode(connection.recv_bytes(), type=Order)
            connection.send_bytes(msgspec.msgpack.encode(_done(worker, order)))


def _done(worker: Worker, order: Order) -> Result | Failed:
    try:
        return worker.do(order)
    except BadStore as error:
        return Failed("", str(error))
    except Exception:  # noqa: BLE001 -- told to the conductor, which raises it
        return Failed(traceback.format_exc())


class _Notebook:
    """The file in which a worker writes down what it is about to run. One write for a program: what was written outlives the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._handle: int | None = None

    def __enter__(self) -> Callable[[str], None]:
        return self._write

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def _write(self, program: str) -> None:
        """Raises BadStore. The file is opened here, where that can be told."""
        if self._path is None:
            return
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.pwrite(self._handle, program.encode().ljust(SEED_BYTES - 1) + b"\n", 0)
        except OSError as error:
            raise BadStore(f"{self._path} cannot be written ({error.strerror}); mend that and start the same command again.") from error
