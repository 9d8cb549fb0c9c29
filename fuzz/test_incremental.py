"""The laws look only at what an operation changed. Here they are held against themselves, looking at everything after every operation."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from msgspec.structs import replace

from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import AdapterFault, Raises, read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.impl.production.books import audit, pins
from kvproof.models.spec import Spec
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep

BUG_PROGRAMS = 40
"""Programs for each seeded bug, or as many as it takes until one breaks a law: most do within ten."""

SOUND_PROGRAMS = 60

READ_PROGRAMS = 15

MISCOUNTING = ("trimmed-blocks-are-lost", "last-block-freed-twice")
"""Seeded bugs that change a list of the pool behind the back of everything else."""


def traced(adapter, seed):
    """One swarm program: the pool, what was seen of every operation, and the violation that ended it."""
    rng = random.Random(seed)
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities, keep_trace=True)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    violation = None
    try:
        for op in swarm.ops(lockstep.spec):
            lockstep.do(op)
        for op in drain(rng, lockstep.spec, swarm.next_seq):
            lockstep.do(op)
    except LawBroken as broken:
        violation = broken.violation
        if isinstance(broken.__cause__, Raises):  # the driver has added what was raised
            violation = replace(violation, reason=violation.reason.rpartition(" (")[0])
    except AdapterFault:
        del lockstep.trace[lockstep.spec.step :]  # the spec did not judge what the contract rules out
    return lockstep, violation


def thorough(lockstep):
    """What a spec that looks at everything says of the same history."""
    spec = Spec(lockstep.capabilities, num_blocks=lockstep.num_blocks, block_size=lockstep.block_size, thorough=True)
    for step in lockstep.trace:
        violation = spec.apply(step.op, step.outcome, step.seen)
        if violation is not None:
            return violation
    return None


@pytest.mark.parametrize("name", BUGS)
def test_both_say_the_same_of_a_seeded_bug(name):
    for program in range(BUG_PROGRAMS):
        lockstep, violation = traced(BUGS[name].adapter, f"same:{program}")
        assert thorough(lockstep) == violation
        if violation is not None:
            return


class NowAndThen(ProductionAdapter):
    """Every fifth time it is asked, its books say something else."""

    looks = 0

    def snapshot(self):
        self.looks += 1
        shot = super().snapshot()
        return shot if self.looks % 5 else self.otherwise(shot)


class HidesWhatRetires(NowAndThen):
    """What waits for device work is shown neither as retiring nor as free."""

    def otherwise(self, shot):
        return replace(shot, retiring=frozenset())


class ForgetsWhatRetires(NowAndThen):
    """The same, and its count is gone too."""

    def otherwise(self, shot):
        return replace(
            shot, retiring=frozenset(), refcounts={block: count for block, count in shot.refcounts.items() if block not in shot.retiring}
        )


class FreesWhatRetires(NowAndThen):
    """What waits for device work is counted, and free already."""

    def otherwise(self, shot):
        return replace(
            shot, retiring=frozenset(), free=[*shot.free, *shot.retiring], refcounts={**shot.refcounts, **dict.fromkeys(shot.retiring, 1)}
        )


@pytest.mark.parametrize("adapter", [HidesWhatRetires, ForgetsWhatRetires, FreesWhatRetires])
def test_both_say_the_same_of_books_that_change_their_mind(adapter):
    found = 0
    for program in range(SOUND_PROGRAMS):
        lockstep, violation = traced(adapter, f"books:{program}")
        assert thorough(lockstep) == violation
        found += violation is not None
    assert found


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_neither_accuses_a_sound_cache(adapter):
    for program in range(SOUND_PROGRAMS):
        lockstep, violation = traced(adapter, f"sound:{program}")
        assert violation is None
        assert thorough(lockstep) is None


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, *(BUGS[name].adapter for name in MISCOUNTING)])
def test_what_is_compared_with_the_last_look_is_what_a_fresh_look_shows(adapter):
    """Neither the cache nor the reader of its books may miss that something moved, whoever moved it and however wrongly."""
    for program in range(READ_PROGRAMS):
        ops = [step.op for step in traced(adapter, f"read:{program}")[0].trace]
        config = Config(random.Random(f"read:{program}"), adapter.capabilities())
        lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size)
        for op in ops:
            with suppress(LawBroken, AdapterFault):
                lockstep.do(op)
            checked, cache = lockstep.cache, lockstep.cache.adapter.cache
            seen, live = lockstep.last_seen, list(cache._sequences)
            assert checked.all_tables(live, seen.tables) == {seq: checked.tables(seq) for seq in live}
            assert checked.books(seen.books) == checked.books()
            assert cache.books() == audit(cache._pool, pins(cache._open.values(), cache._sequences.values()))


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_a_long_run_in_which_all_is_forgotten_early_accuses_nobody(adapter, monkeypatch):
    """Prefixes are cleared, and losses dropped, as in a run of millions of operations; node numbers come back for other prefixes."""
    monkeypatch.setattr("kvproof.models.remembered.TREE_SLACK", 30)
    monkeypatch.setattr("kvproof.models.memory.LEAST_LOSSES", 40)
    monkeypatch.setattr("kvproof.models.memory.LOSSES_PER_SLOT", 0)
    rng = random.Random("long")
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    swarm.length = 3000
    cleared = 0
    for op in swarm.ops(lockstep.spec):
        before = len(lockstep.spec.tree)
        lockstep.do(op)
        cleared += len(lockstep.spec.tree) < before
    assert len(lockstep.ops) >= 3000
    assert len(lockstep.spec.memory.lost) == 40
    assert cleared > 1
