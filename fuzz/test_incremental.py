"""The laws look only at what an operation changed. Here they are held against themselves, looking at everything after every operation."""

from __future__ import annotations

import random

import pytest

from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.spec import Spec
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep

BUG_PROGRAMS = 40
"""Programs for each seeded bug, or as many as it takes until one breaks a law: most do within ten."""

SOUND_PROGRAMS = 60


def traced(adapter, seed):
    """One swarm program: the pool, what was seen of every operation, and the violation that ended it."""
    rng = random.Random(seed)
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities, keep_trace=True)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    violation = None
    try:
        while (op := swarm.next(lockstep.spec)) is not None:
            lockstep.do(op)
        for op in drain(rng, lockstep.spec, swarm.next_seq):
            lockstep.do(op)
    except LawBroken as broken:
        violation = broken.violation
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


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_neither_accuses_a_sound_cache(adapter):
    for program in range(SOUND_PROGRAMS):
        lockstep, violation = traced(adapter, f"sound:{program}")
        assert violation is None
        assert thorough(lockstep) is None


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_a_long_run_in_which_all_is_forgotten_early_accuses_nobody(adapter, monkeypatch):
    """Prefixes are cleared, and losses dropped, as in a run of millions of operations; node numbers come back for other prefixes."""
    monkeypatch.setattr("kvproof.models.spec.TREE_SLACK", 30)
    monkeypatch.setattr("kvproof.models.memory.LEAST_LOSSES", 40)
    monkeypatch.setattr("kvproof.models.memory.LOSSES_PER_SLOT", 0)
    rng = random.Random("long")
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    swarm.length = 3000
    cleared = 0
    while (op := swarm.next(lockstep.spec)) is not None:
        before = len(lockstep.spec.tree)
        lockstep.do(op)
        cleared += len(lockstep.spec.tree) < before
    assert len(lockstep.ops) >= 3000
    assert len(lockstep.spec.memory.lost) == 40
    assert cleared > 1
