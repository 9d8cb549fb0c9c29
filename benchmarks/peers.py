"""The production cache beside the caches of real engines: the same work, in one process each, in turn.

    python benchmarks/peers.py [--runs 3] [--seconds 1.0] [--peers vllm==0.33.0,...] [--json FILE]

Every cache is driven by its kvproof adapter, ours too, so that the scheduler's small part is in every row. The numbers are medians over the runs, in processor
time; the ratio is ours over the fastest peer of the row. Blocks hold 16 tokens, requests 64 blocks, decoding runs 256 sequences. *Hashed* rows make a new
request each time; in the others a preempted request comes back, and what a cache keeps of its hashes counts for it.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from production import Work, prompts
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvproof.impl.adapter import CacheAdapter
from kvproof.models.ops import NO_NAMESPACE
from kvproof.targets import find_target

OURS = "production-sync"
PEERS = ("vllm[full]==0.33.0", "vllm[full]==0.12.0", "transformers[sectors]==5.24.0", "nano-vllm-fork==20260210")
"""SGLang is not among them: it allocates for a whole batch in one call, and here every sequence is served by itself."""

BLOCK_SIZE = 16
REQUEST_TOKENS = 64 * BLOCK_SIZE
POOL_BLOCKS = 4096
SEQUENCES = 256
DECODE_TOKENS = 256
"""A sequence that has decoded so many tokens starts over."""


class Driver:
    """Numbers sequences, which are never used again, and plays the scheduler on an adapter."""

    def __init__(self, adapter: CacheAdapter) -> None:
        self.adapter = adapter
        self.next = 0

    def admit(self, prompt: list[int]) -> int:
        """A new request; returns its number."""
        self.next += 1
        self.adapter.admit(self.next, prompt, NO_NAMESPACE)
        return self.next

    def prefill(self, seq: int, tokens: int) -> int:
        """Compute all that is known; returns how many tokens were adopted."""
        adopted = self.adapter.extend(seq, tokens).adopted
        self.adapter.commit(seq, 0)
        return adopted

    def decode(self, seq: int, token: int) -> None:
        """One token more."""
        self.adapter.append(seq, (token,))
        self.adapter.extend(seq, 1)
        self.adapter.commit(seq, 0)


def publish(target: type[CacheAdapter], *, hashed: bool) -> Work:
    """Allocate, publish and free 64 blocks that nobody had: the pool is smaller than the traffic, so it evicts all the time."""
    driver = Driver(target(num_blocks=POOL_BLOCKS, block_size=BLOCK_SIZE))
    requests = prompts(SEQUENCES, REQUEST_TOKENS)
    known = [] if hashed else [driver.admit(prompt) for prompt in requests]

    def work() -> int:
        for index, prompt in enumerate(requests):
            seq = driver.admit(prompt) if hashed else known[index]
            driver.prefill(seq, REQUEST_TOKENS)
            driver.adapter.release(seq, "finish" if hashed else "preempt")
        return len(requests)

    return work


def hit(target: type[CacheAdapter], *, hashed: bool) -> Work:
    """Adopt 64 cached blocks, compute one token, free."""
    driver = Driver(target(num_blocks=POOL_BLOCKS, block_size=BLOCK_SIZE))
    requests = prompts(16, REQUEST_TOKENS + 1)
    holders = [driver.admit(prompt) for prompt in requests]
    for seq in holders:  # they stay, since some caches forget a prefix with its last holder
        driver.prefill(seq, REQUEST_TOKENS + 1)
    known = [] if hashed else [driver.admit(prompt) for prompt in requests]

    def work() -> int:
        for index, prompt in enumerate(requests):
            seq = driver.admit(prompt) if hashed else known[index]
            if driver.prefill(seq, REQUEST_TOKENS + 1) != REQUEST_TOKENS:
                raise RuntimeError("the prefix was not cached")
            driver.adapter.release(seq, "finish" if hashed else "preempt")
        return len(requests)

    return work


def decode(target: type[CacheAdapter]) -> Work:
    """One token more for each of 256 sequences, in turn."""
    driver = Driver(target(num_blocks=SEQUENCES * 64, block_size=BLOCK_SIZE))
    requests = prompts(SEQUENCES, 256)
    running: list[int] = []
    rounds = 0

    def work() -> int:
        nonlocal rounds
        if rounds % DECODE_TOKENS == 0:
            for seq in running:
                driver.adapter.release(seq, "finish")
            running[:] = [driver.admit(prompt) for prompt in requests]
            for seq in running:
                driver.prefill(seq, 256)
        rounds += 1
        for seq in running:
            driver.decode(seq, rounds)
        return SEQUENCES

    return work


def mixed(target: type[CacheAdapter]) -> Work:
    """64 sequences run; in each round the oldest finishes, one arrives with a prompt of which half is shared, and all decode a token."""
    driver = Driver(target(num_blocks=POOL_BLOCKS, block_size=BLOCK_SIZE))
    shared = prompts(4, 256)
    rng = random.Random(1)
    running: list[int] = []

    def arrive() -> None:
        prompt = [*rng.choice(shared), *(rng.randrange(32_000) for _ in range(256))]
        seq = driver.admit(prompt)
        driver.prefill(seq, len(prompt))
        running.append(seq)

    for _ in range(64):
        arrive()

    def work() -> int:
        driver.adapter.release(running.pop(0), "finish")
        arrive()
        for seq in running:
            driver.decode(seq, 7)
        return len(running)

    return work


ROWS: dict[str, tuple[str, Callable[[type[CacheAdapter]], Work]]] = {
    "allocate, publish, free 64 blocks": ("requests/s", lambda target: publish(target, hashed=False)),
    "allocate, publish, free 64 blocks, hashed": ("requests/s", lambda target: publish(target, hashed=True)),
    "prefix hit of 64 blocks": ("requests/s", lambda target: hit(target, hashed=False)),
    "prefix hit of 64 blocks, hashed": ("requests/s", lambda target: hit(target, hashed=True)),
    "decode over 256 sequences": ("tokens/s", decode),
    "mixed trace": ("tokens/s", mixed),
}


def measure(target: str, seconds: float) -> dict[str, float]:
    """The rate of each row for one cache, in this process."""
    adapter = find_target(target)
    rates = {}
    for name, (_, build) in ROWS.items():
        work = build(adapter)
        work()
        done, start = 0, time.process_time()
        while (elapsed := time.process_time() - start) < seconds:
            done += work()
        rates[name] = done / elapsed
    return rates


def main() -> None:
    """Measures every cache in turn, and prints the rates and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="processes for each cache; the median counts")
    parser.add_argument("--seconds", type=float, default=1.0, help="least duration of a row")
    parser.add_argument("--peers", default=",".join(PEERS), help="targets to stand beside")
    parser.add_argument("--one", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.seconds)))
        return
    targets = (OURS, *arguments.peers.split(","))
    runs: dict[str, list[dict[str, float]]] = {target: [] for target in targets}
    turns = [target for _ in range(arguments.runs) for target in targets]
    for target in track(turns, description="measuring", console=Console(stderr=True)):
        command = [sys.executable, __file__, "--one", target, "--seconds", str(arguments.seconds)]
        runs[target].append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    show(
        {target: {row: statistics.median(run[row] for run in results) for row in ROWS} for target, results in runs.items()}, arguments.json
    )


def show(rates: dict[str, dict[str, float]], file: Path | None) -> None:
    """The table, and the file."""
    peers = [target for target in rates if target != OURS]
    table = Table("work", "unit", "ours", *peers, "ratio", title=f"Python {platform.python_version()}, one core")
    for row, (unit, _) in ROWS.items():
        fastest = max(rates[peer][row] for peer in peers)
        ours = rates[OURS][row]
        table.add_row(row, unit, f"{ours:,.0f}", *(f"{rates[peer][row]:,.0f}" for peer in peers), f"{ours / fastest:.1f}")
    Console(width=180 if not sys.stdout.isatty() else None, markup=False).print(table)
    if file:
        file.write_text(json.dumps({"python": platform.python_version(), "rates": rates}, indent=2) + "\n")


if __name__ == "__main__":
    main()
