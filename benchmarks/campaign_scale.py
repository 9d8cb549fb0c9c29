"""How many workers one conductor can serve: its work for an order is measured, and a campaign of up to 10,000 workers is simulated with it, beside the estimate on paper.

    python benchmarks/campaign_scale.py [--target production] [--redis redis://HOST:PORT/0]

A worker works W seconds on an order and then needs the conductor for s seconds, one worker at a time: a closed queue with one server. On paper it saturates at
N* = (W + s) / s workers; below that, the conductor is busy N s / (W + s) of the time and hardly anybody waits, above it the rate stays at 1 / s orders a second. The
simulation draws the length of each order at random (W times an exponential and a constant half each) and plays an hour of the queue.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

from kvproof.fuzz.campaigns.conductor import BATCH_SECONDS, BATCH_SECONDS_PER_WORKER, Conductor, Plan
from kvproof.fuzz.campaigns.devices import CANARY
from kvproof.fuzz.campaigns.orders import Answer, Job, Order, Result
from kvproof.fuzz.campaigns.store import Store, directory, redis
from kvproof.fuzz.campaigns.work import Worker
from kvproof.fuzz.mutants import PARENTS
from kvproof.targets import find_target

CYCLES = 400
"""Orders that the conductor is timed with."""

SIMULATED_SECONDS = 3600.0


class Echo:
    """A crew whose workers answer at once, with results of real orders: what is left is the work of the conductor, messages included."""

    def __init__(self, results: Sequence[Result], canary: Result, workers: int) -> None:
        self.results = itertools.cycle(results)
        self.canary = canary
        self.size = workers
        self.out: dict[int, Order] = {}
        self.bytes_out = self.bytes_in = self.messages = 0

    def free(self) -> list[int]:
        """Everybody who has no order."""
        return [worker for worker in range(self.size) if worker not in self.out]

    def give(self, worker: int, order: Order) -> None:
        """Send it."""
        data = msgspec.msgpack.encode(order)
        self.bytes_out += len(data)
        self.out[worker] = order

    def wait(self, seconds: float) -> list[tuple[int, Answer]]:
        """Everybody's answer."""
        del seconds
        answers: list[tuple[int, Answer]] = []
        for worker, order in self.out.items():
            result = self.canary if order.kind == "canary" else next(self.results)
            record = msgspec.structs.replace(result.record, batch=order.number, seed=order.seed)
            data = msgspec.msgpack.encode(msgspec.structs.replace(result, record=record))
            self.bytes_in += len(data)
            self.messages += 1
            answers.append((worker, msgspec.msgpack.decode(data, type=Result)))
        self.out.clear()
        return answers

    def replace(self, worker: int) -> None:
        """Nobody is lost here."""

    def close(self) -> None:
        """Nothing to end."""


def real_results(target: str, programs: int) -> tuple[list[Result], Result]:
    """What a worker answers: its first orders, which reach much that is new, and later ones, which reach little."""
    worker = Worker(Job(target, 10.0), find_target, "c", lambda _: None)
    canary = worker.do(Order(-1, "canary", "canary:0", 200))
    kept = tuple(one.program for one in worker.do(Order(0, "swarm", "w:0", programs)).kept[:PARENTS])
    return [worker.do(Order(number, "swarm", f"w:{number}", programs, kept)) for number in range(1, 9)], canary


def service(database: ExampleDatabase, results: Sequence[Result], canary: Result) -> tuple[float, float, float]:
    """Seconds of the conductor for one order, and the bytes of an order and of a result."""
    assert canary.findings, f"{CANARY} was not caught"
    crew = Echo(results, canary, 8)
    programs = results[0].record.programs
    plan = Plan("c", 1, "batch", 1e9, programs, CYCLES * programs)
    conductor = Conductor(plan, crew, Store(database, target="t", campaign="c"))
    begun = time.perf_counter()
    conductor.run()
    return (time.perf_counter() - begun) / CYCLES, crew.bytes_out / crew.messages, crew.bytes_in / crew.messages


def simulate(workers: int, work_seconds: float, service_seconds: float, seed: int = 0) -> tuple[float, float, float]:
    """An hour of the queue: orders a second, how much of its time the conductor is busy, and seconds that an order waits for it."""
    rng = random.Random(seed)
    ready = [(work_seconds * rng.random(), worker) for worker in range(workers)]
    heapq.heapify(ready)
    idle_from = busy = waited = 0.0
    orders = 0
    while ready[0][0] < SIMULATED_SECONDS:
        at, worker = heapq.heappop(ready)
        begins = max(at, idle_from)
        if begins >= SIMULATED_SECONDS:
            break
        waited += begins - at
        idle_from = begins + service_seconds
        busy += service_seconds
        orders += 1
        heapq.heappush(ready, (idle_from + work_seconds * (0.5 + rng.expovariate(2.0)), worker))
    return orders / SIMULATED_SECONDS, busy / SIMULATED_SECONDS, waited / max(1, orders)


def show(service_seconds: float, order_bytes: float, result_bytes: float) -> None:
    """The table for one store."""
    print(
        f"{'workers':>8} {'order':>7} {'saturates':>10} {'orders/s':>9} {'paper':>8} {'busy':>6} {'paper':>6} {'waits':>9} {'lost':>6} {'MB/s':>6}"
    )
    for workers in (1, 8, 64, 256, 1000, 3000, 10_000):
        for work in dict.fromkeys((BATCH_SECONDS, max(BATCH_SECONDS, BATCH_SECONDS_PER_WORKER * workers))):
            rate, busy, waits = simulate(workers, work, service_seconds)
            paper = min(workers / (work + service_seconds), 1 / service_seconds)
            saturates = (work + service_seconds) / service_seconds
            lost = 1 - rate * work / workers
            print(
                f"{workers:>8,} {work:>6.1f}s {saturates:>10,.0f} {rate:>9.1f} {paper:>8.1f} {busy:>6.0%} {paper * service_seconds:>6.0%} {waits:>8.3f}s {lost:>6.1%} "
                f"{rate * (order_bytes + result_bytes) / 1e6:>6.2f}"
            )


def main() -> None:
    """Measure, then simulate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="production")
    parser.add_argument("--programs", type=int, default=60, help="programs of an order while results are collected")
    parser.add_argument("--redis", metavar="URL", help="measure a store in Redis too; it is left with keys of this benchmark")
    options = parser.parse_args()
    results, canary = real_results(options.target, options.programs)
    with tempfile.TemporaryDirectory() as place:
        databases: dict[str, ExampleDatabase] = {"memory": InMemoryExampleDatabase(), "directory": directory(Path(place))}
        if options.redis:
            databases["redis"] = redis(options.redis)
        for name, database in databases.items():
            seconds, order_bytes, result_bytes = service(database, results, canary)
            print(
                f"\nstore: {name}; the conductor takes {1000 * seconds:.2f} ms for an order of {order_bytes:,.0f} bytes and its result of {result_bytes:,.0f} bytes"
            )
            show(seconds, order_bytes, result_bytes)
    print(f"\na worker ran {statistics.mean(r.record.programs / r.record.seconds for r in results):.0f} programs/s")


if __name__ == "__main__":
    main()
