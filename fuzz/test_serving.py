"""The scheduler that draws long programs: what it drives, and that such programs are shrunk to short ones."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.runs import SERVING_LENGTH
from kvproof.fuzz.serving import Serving, serving_pool
from kvproof.fuzz.shrink import shrink
from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import OP_TYPES, Extend, Op, Release, op_name
from kvproof.models.outcomes import Grant, Refused
from kvproof.properties.lockstep import LawBroken, Lockstep, time_limit

FAULTY = (
    "evictable-count-drifts",
    "newest-is-evicted-first",
    "failed-admission-keeps-its-hits",
    "reset-is-not-announced",
    "swap-in-stops-halfway",
)
"""Bugs that need a full pool, or a history."""


class Endless(CacheAdapter):
    """Never runs out: every sequence gets what it asks for, and gives nothing back."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(capacity=10_000, max_blocks=10_000)

    def admit(self, seq, prompt, namespace):
        self.tables[seq], self.lengths[seq] = [], 0

    def extend(self, seq, count, drafts=()):
        self.lengths[seq] += count
        while len(self.tables[seq]) * self.size < self.lengths[seq]:
            self.tables[seq].append(self.free.pop())
        return Grant()

    def commit(self, seq, accepted):
        pass

    def append(self, seq, tokens):
        pass

    def release(self, seq, reason):
        self.tables[seq], self.lengths[seq] = [], 0

    def block_table(self, seq, group=0):
        return self.tables[seq]


def served(target: type, seed: int, length: int, pool: PoolConfig | None = None) -> Lockstep:
    """A cache that has run the program of `seed`. Raises LawBroken, with the lockstep as `lockstep`."""
    rng, capabilities = random.Random(seed), target.capabilities()
    pool = pool or serving_pool(rng, capabilities)
    lockstep = Lockstep(target, num_blocks=pool.num_blocks, block_size=pool.block_size)
    serving = Serving(rng, capabilities, num_blocks=pool.num_blocks, block_size=pool.block_size)
    try:
        for op in islice(serving.ops(lockstep.spec), length):
            lockstep.do(op)
    except LawBroken as broken:
        broken.lockstep = lockstep
        raise
    return lockstep


@pytest.mark.parametrize("nulls", [frozenset(), frozenset({0, 1})])
def test_the_pool_keeps_to_the_claims_of_a_tiny_cache(nulls):
    for most in range(len(nulls) + 1, 5):
        claimed = Capabilities(max_blocks=most, null_blocks=nulls)
        assert all(serving_pool(random.Random(seed), claimed).num_blocks <= most for seed in range(20))


@pytest.mark.parametrize("target", [ProductionAdapter, HybridAdapter])
def test_a_correct_cache_serves_and_every_operation_is_among_it(target):
    done: Counter[str] = Counter()
    for seed in range(8):
        done.update(op_name(op) for op in served(target, seed, SERVING_LENGTH).ops)
    assert done.keys() == {kind.__name__.lower() for kind in OP_TYPES}
    assert sum(done.values()) > 0.9 * 8 * SERVING_LENGTH, "nearly every operation that it draws can be run"


def test_the_pool_is_full_most_of_the_time():
    """Reuse, eviction and preemption begin only then."""
    runs = [served(ProductionAdapter, seed, SERVING_LENGTH, PoolConfig(24, 4)) for seed in range(6)]
    assert sum(run.spec.exercised["eviction-follows-policy"] for run in runs) > 100
    assert sum(isinstance(op, Release) and op.reason == "preempt" for run in runs for op in run.ops) > 20


def test_the_same_seed_draws_the_same_program():
    assert served(ProductionAdapter, 5, 200).ops == served(ProductionAdapter, 5, 200).ops


def test_a_cache_that_claims_nothing_is_driven_by_what_every_cache_has():
    ops = served(Endless, 1, 200, PoolConfig(10_000, 4)).ops
    assert {op_name(op) for op in ops} <= {"admit", "extend", "commit", "append", "release"}
    assert not any(op.drafts for op in ops if isinstance(op, Extend))


def test_an_engine_that_takes_no_tokens_at_once_goes_on_being_served():
    class OneByOne(Endless):
        """Samples one token at a time, as SGLang does."""

        def append(self, seq, tokens):
            if len(tokens) > 1:
                raise Refused

    for seed in range(8):
        with time_limit(5):
            run = served(OneByOne, seed, SERVING_LENGTH, PoolConfig(10_000, 4))
        assert run.refusals["append"] > 0


@pytest.mark.parametrize("name", FAULTY)
def test_a_long_program_shrinks_to_a_short_one(name):
    """A long history on a full pool: cutting operations out of it gets nowhere, since what is left no longer fills the pool."""
    bug = BUGS[name]
    ops, law, pool = _failure(bug.adapter, bug.laws)
    program = Program(FORMAT, f"bug:{name}", pool, tuple(ops))
    short = shrink(program, bug.adapter, seconds=60)
    assert short.violation is not None
    assert short.violation.law == law
    assert len(short.ops) <= bug.most_operations


def _failure(target: type, laws: tuple[str, ...]) -> tuple[list[Op], str, PoolConfig]:
    pool = PoolConfig(48, 4)
    for seed in range(30):
        try:
            served(target, seed, 3000, pool)
        except LawBroken as broken:
            ops = broken.lockstep.ops
            if broken.violation.law in laws and len(ops) > 100:
                return ops, broken.violation.law, pool
    raise AssertionError("no program of these seeds breaks a law late enough")
