"""How fast the production cache is: operations for each second of one core, hashing and token copies included.

    python benchmarks/production.py [--runs 5] [--seconds 0.5] [--only TEXT] [--json FILE]

Each number is the median of several runs, in processor time; the spread is between the slowest and the fastest. Blocks hold 16 tokens,
requests 64 blocks, decoding runs 256 sequences. The pool is smaller than the traffic, so that allocation evicts all the time: an empty pool
would flatter every row but the first.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvproof.impl.production import BlockPool, GroupSpec, PagedCache

BLOCK_SIZE = 16
REQUEST_BLOCKS = 64
POOL_BLOCKS = 4096
SEQUENCES = 256
DISTINCT_PROMPTS = 256
"""More prompts than the pool can keep, so that by the time one comes back its blocks are evicted."""

Work = Callable[[], int]
"""Does some work and returns how many units it was."""


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Prompts that differ from the first block on."""
    rng = random.Random(0)
    return [[index, *(rng.randrange(32_000) for _ in range(tokens - 1))] for index in range(count)]


def raw_pool() -> Work:
    """Allocate and free 64 blocks, nothing else."""
    pool = BlockPool(POOL_BLOCKS)

    def work() -> int:
        for _ in range(200):
            pool.drop(pool.take(REQUEST_BLOCKS))
        return 200

    return work


def publish(*, admit: bool = True, steps: bool = False, groups: tuple[GroupSpec, ...] = (GroupSpec(),), events: bool = False) -> Work:
    """Admit a prompt of 64 blocks that nobody had, allocate, publish, free. Without `admit`, a preempted request comes back instead."""
    cache = PagedCache(POOL_BLOCKS, BLOCK_SIZE, steps=steps, groups=groups, events=events)
    requests = prompts(DISTINCT_PROMPTS, REQUEST_BLOCKS * BLOCK_SIZE)
    for seq, prompt in enumerate(requests):
        cache.admit(seq, prompt)
    let_go = cache.release if admit else cache.preempt

    def work() -> int:
        for seq, prompt in enumerate(requests):
            cache.extend(seq, len(prompt))
            if steps:
                cache.end_step(cache.begin_step().step)
            cache.commit(seq)
            let_go(seq)
            if admit:
                cache.admit(seq, prompt)
        if events:
            cache.take_events()
        return len(requests)

    return work


def decode(*, caching: bool, steps: bool = False, groups: tuple[GroupSpec, ...] = (GroupSpec(),), locked: bool = True) -> Work:
    """Append a token, extend by it, commit; 256 sequences in turn. A sequence that has grown by 512 tokens starts over."""
    cache = PagedCache(SEQUENCES * 64, BLOCK_SIZE, prefix_caching=caching, steps=steps, groups=groups, locked=locked)
    requests = prompts(SEQUENCES, 256)
    rounds = _counter()

    def restart() -> None:
        for seq, prompt in enumerate(requests):
            cache.release(seq)
            cache.admit(seq, prompt)
            cache.extend(seq, len(prompt))
        if steps:
            cache.end_step(cache.begin_step().step)
        for seq in range(SEQUENCES):
            cache.commit(seq)

    def work() -> int:
        number = next(rounds)
        if number % 512 == 0:
            restart()
        # Distinct from round to round, so that caching has new blocks to publish.
        token = [number]
        for seq in range(SEQUENCES):
            cache.append(seq, token)
            cache.extend(seq, 1)
            if not steps:
                cache.commit(seq)
        if steps:
            cache.end_step(cache.begin_step().step)
            for seq in range(SEQUENCES):
                cache.commit(seq)
        return SEQUENCES

    return work


def decode_together(*, caching: bool) -> Work:
    """The same by one call for all 256."""
    cache = PagedCache(SEQUENCES * 64, BLOCK_SIZE, prefix_caching=caching, steps=False)
    requests = prompts(SEQUENCES, 256)
    rounds = _counter()

    def work() -> int:
        number = next(rounds)
        if number % 512 == 0:
            for seq, prompt in enumerate(requests):
                cache.release(seq)
                cache.admit(seq, prompt)
                cache.extend(seq, len(prompt))
        cache.decode(range(SEQUENCES), [number] * SEQUENCES)
        return SEQUENCES

    return work


def prefix_hit(
    *, admit: bool = True, steps: bool = False, groups: tuple[GroupSpec, ...] = (GroupSpec(),), look_first: bool = False
) -> Work:
    """Admit a prompt whose 64 blocks are cached, adopt them, free. Without `admit`, a preempted request comes back instead."""
    cache = PagedCache(POOL_BLOCKS, BLOCK_SIZE, steps=steps, groups=groups)
    requests = prompts(16, REQUEST_BLOCKS * BLOCK_SIZE + 1)
    for seq, prompt in enumerate(requests):
        cache.admit(seq, prompt)
    let_go = cache.release if admit else cache.preempt

    def request(seq: int, prompt: list[int]) -> int:
        if look_first:
            cache.match(seq)
        adopted = cache.extend(seq, len(prompt)).adopted
        if steps:
            cache.end_step(cache.begin_step().step)
        cache.commit(seq)
        let_go(seq)
        if admit:
            cache.admit(seq, prompt)
        return adopted

    for seq, prompt in enumerate(requests):
        request(seq, prompt)

    def work() -> int:
        for seq, prompt in enumerate(requests):
            if request(seq, prompt) != REQUEST_BLOCKS * BLOCK_SIZE:
                raise RuntimeError("the prefix was not cached")
        return len(requests)

    return work


HYBRID = (GroupSpec(), GroupSpec("sliding_window", window=128))

ROWS: list[tuple[str, str, Callable[[], Work]]] = [
    ("raw pool: take and drop 64 blocks", "requests", raw_pool),
    ("allocate, publish, free 64 blocks", "requests", publish),
    ("  admitted before", "requests", lambda: publish(admit=False)),
    ("  with steps", "requests", lambda: publish(steps=True)),
    ("  with events", "requests", lambda: publish(events=True)),
    ("  full and window groups", "requests", lambda: publish(groups=HYBRID)),
    ("decode over 256 sequences, caching on", "tokens", lambda: decode(caching=True)),
    ("  in one call", "tokens", lambda: decode_together(caching=True)),
    ("  with steps", "tokens", lambda: decode(caching=True, steps=True)),
    ("  full and window groups", "tokens", lambda: decode(caching=True, groups=HYBRID)),
    ("decode over 256 sequences, caching off", "tokens", lambda: decode(caching=False)),
    ("  without the lock", "tokens", lambda: decode(caching=False, locked=False)),
    ("prefix hit of 64 blocks", "requests", prefix_hit),
    ("  admitted before", "requests", lambda: prefix_hit(admit=False)),
    ("  with steps", "requests", lambda: prefix_hit(steps=True)),
    ("  matched first", "requests", lambda: prefix_hit(look_first=True)),
    ("  full and window groups", "requests", lambda: prefix_hit(groups=HYBRID)),
]


def rate(work: Work, seconds: float) -> float:
    """Units for each second, over at least `seconds`."""
    done = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        done += work()
    return done / elapsed


def measure(work: Work, runs: int, seconds: float) -> list[float]:
    """The rates of several runs, after one that warms up and fills the pool."""
    work()
    return sorted(rate(work, seconds) for _ in range(runs))


def _counter() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def main() -> None:
    """Measures every row and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs for each row; the median counts")
    parser.add_argument("--seconds", type=float, default=0.5, help="least duration of a run")
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows whose work contains this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    arguments = parser.parse_args()
    table = Table("work", "unit/s", "median", "slowest", "fastest", title=f"production cache, Python {platform.python_version()}")
    results = []
    section = ""
    for label, unit, build in ROWS:
        section = section if label.startswith(" ") else label
        name = label if label == section else f"{section},{label[1:]}"
        if arguments.only not in name:
            continue
        rates = measure(build(), arguments.runs, arguments.seconds)
        median = statistics.median(rates)
        table.add_row(label, unit, f"{median:,.0f}", f"{rates[0]:,.0f}", f"{rates[-1]:,.0f}")
        results.append({"work": name, "unit": f"{unit}/s", "median": median, "slowest": rates[0], "fastest": rates[-1]})
    Console(width=110 if not sys.stdout.isatty() else None).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"python": platform.python_version(), "rows": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
