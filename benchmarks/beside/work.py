"""What the caches are given to do: one row of the table each. Blocks hold 16 tokens, requests 64 blocks, decoding runs 256 sequences.

A *hashed* row makes a new request each time; in the others a preempted one comes back, and what a cache keeps of its hashes counts for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from beside.players import BLOCK_SIZE, CACHED, HYBRID, UNCACHED, Player

Build = Callable[[int], Player]


@dataclass(frozen=True)
class Work:
    """`run` does some work, and returns how many units it was. `prepare` goes before it, and is not measured."""

    run: Callable[[], int]
    prepare: Callable[[], None] = lambda: None


REQUEST_TOKENS: Final = 64 * BLOCK_SIZE
POOL_BLOCKS: Final = 4096
SEQUENCES: Final = 256
DECODE_TOKENS: Final = 256
"""A sequence that has decoded so many tokens starts over."""

TRACE_RUNNING: Final = 64
TRACE_REQUESTS: Final = 512
TRACE_OUTPUTS: Final = (16, 256)
"""Fewest and most tokens that a request of the trace decodes."""
VOCABULARY: Final = 32_000


def prompts(count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Prompts that differ from the first token on."""
    rng = random.Random(seed)
    return [[index, *rng.choices(range(VOCABULARY), k=tokens - 1)] for index in range(count)]


def publish(build: Build, *, hashed: bool) -> Work:
    """Allocate, publish and free 64 blocks that nobody had: the pool is smaller than the traffic, so it evicts all the time."""
    player = build(POOL_BLOCKS)
    requests = prompts(SEQUENCES, REQUEST_TOKENS)
    known = [] if hashed else [player.admit(prompt) for prompt in requests]

    def work() -> int:
        for index, prompt in enumerate(requests):
            seq = player.admit(prompt) if hashed else known[index]
            player.prefill(seq, REQUEST_TOKENS)
            (player.finish if hashed else player.preempt)(seq)
        return len(requests)

    return Work(work)


def hit(build: Build, *, hashed: bool) -> Work:
    """Adopt 64 cached blocks, compute one token, free."""
    player = build(POOL_BLOCKS)
    requests = prompts(16, REQUEST_TOKENS + 1)
    holders = [player.admit(prompt) for prompt in requests]
    for seq in holders:  # they stay, since some caches forget a prefix with its last holder
        player.prefill(seq, REQUEST_TOKENS + 1)
    player.decode(holders, [0] * len(holders))  # where a commit is due, it has happened now
    known = [] if hashed else [player.admit(prompt) for prompt in requests]

    def work() -> int:
        for index, prompt in enumerate(requests):
            seq = player.admit(prompt) if hashed else known[index]
            if player.prefill(seq, REQUEST_TOKENS + 1) != REQUEST_TOKENS:
                raise RuntimeError("the prefix was not cached")
            (player.finish if hashed else player.preempt)(seq)
        return len(requests)

    return Work(work)


def decode(build: Build) -> Work:
    """One token more for each of 256 sequences."""
    player = build(SEQUENCES * 64)
    requests = prompts(SEQUENCES, 256)
    running: list[int] = []
    rounds = 0

    def restart() -> None:
        if rounds % DECODE_TOKENS == 0:
            for seq in running:
                player.finish(seq)
            running[:] = [player.admit(prompt) for prompt in requests]
            for seq in running:
                player.prefill(seq, 256)

    def work() -> int:
        nonlocal rounds
        rounds += 1
        player.decode(running, [rounds] * SEQUENCES)
        return SEQUENCES

    return Work(work, restart)


def mixed(build: Build) -> Work:
    """64 requests run. Half of each prompt is one of four that are shared; whoever has decoded its share leaves, and another arrives."""
    player = build(POOL_BLOCKS)
    rng = random.Random(1)
    shared, own = prompts(4, 256), prompts(TRACE_REQUESTS, 256, seed=2)
    requests = [([*rng.choice(shared), *tokens], rng.randint(*TRACE_OUTPUTS)) for tokens in own]
    arrived = rounds = 0
    running: list[int] = []
    leaving: dict[int, list[int]] = {}

    def arrive() -> None:
        nonlocal arrived
        prompt, outputs = requests[arrived % TRACE_REQUESTS]
        arrived += 1
        seq = player.admit(prompt)
        player.prefill(seq, len(prompt))
        running.append(seq)
        leaving.setdefault(rounds + outputs, []).append(seq)

    def work() -> int:
        nonlocal rounds
        for seq in leaving.pop(rounds, ()):
            player.finish(seq)
            running.remove(seq)
        while len(running) < TRACE_RUNNING:
            arrive()
        rounds += 1
        player.decode(running, [7] * TRACE_RUNNING)
        return TRACE_RUNNING

    return Work(work)


@dataclass(frozen=True)
class Row:
    """One line of the table. `settle`: how often the work is done before it is measured, so that whatever recurs has happened."""

    name: str
    unit: str
    way: str
    make: Callable[[Build], Work]
    settle: int = 1


ROWS: Final = (
    Row("allocate, publish, free 64 blocks", "requests/s", CACHED, lambda build: publish(build, hashed=False)),
    Row("allocate, publish, free 64 blocks, hashed", "requests/s", CACHED, lambda build: publish(build, hashed=True)),
    Row("allocate, free 64 blocks, caching off", "requests/s", UNCACHED, lambda build: publish(build, hashed=False)),
    Row("prefix hit of 64 blocks", "requests/s", CACHED, lambda build: hit(build, hashed=False)),
    Row("prefix hit of 64 blocks, hashed", "requests/s", CACHED, lambda build: hit(build, hashed=True)),
    Row("decode over 256 sequences", "tokens/s", CACHED, decode),
    Row("decode over 256 sequences, caching off", "tokens/s", UNCACHED, decode),
    Row("mixed trace", "tokens/s", CACHED, mixed, settle=300),
    Row("mixed trace, caching off", "tokens/s", UNCACHED, mixed, settle=300),
    Row("full and window: allocate, publish, free", "requests/s", HYBRID, lambda build: publish(build, hashed=False)),
    Row("full and window: prefix hit", "requests/s", HYBRID, lambda build: hit(build, hashed=False)),
    Row("full and window: decode", "tokens/s", HYBRID, decode),
)
