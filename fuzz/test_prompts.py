"""What the random generator asks for: prompts and namespaces that only a confused cache takes for others."""

from __future__ import annotations

import random

import pytest

from kvproof.fuzz.prompts import Prompts
from kvproof.impl.production.adapter import ProductionAdapter, SynchronousAdapter
from kvproof.models.ops import Admit, Commit, Evict, Extend, Release
from kvproof.properties.lockstep import Lockstep


def prompts(seed, adapter=SynchronousAdapter):
    return Prompts(random.Random(seed), adapter.capabilities(), num_blocks=2, block_size=2)


@pytest.mark.parametrize("seed", range(5))
def test_a_prompt_goes_on_behind_the_beginning_of_another(seed):
    made = prompts(seed)
    made.say((0, 1, 2, 3))
    assert made._spliced((5, 6, 7, 8, 9)) in {(0, 1, 7, 8, 9), (0, 1, 2, 3, 9)}
    assert made._spliced((5, 6)) == (5, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_prompt_follows_a_block_whose_id_is_used_again(seed):
    made = prompts(seed)
    lockstep = Lockstep(SynchronousAdapter, num_blocks=2, block_size=2)
    for op in (Admit(0, (0, 1, 2, 3)), Extend(0, 4), Commit(0)):
        lockstep.do(op)
    made.doubt_blocks(lockstep.spec, lockstep.spec.live[0])
    for op in (Release(0), Evict((0, 1)), Admit(1, (9, 9, 8, 8)), Extend(1, 4), Commit(1)):
        lockstep.do(op)
    assert made._followed(lockstep.spec) in {(9, 9, 2, 3), (9, 9, 8, 8, 2, 3)}


def test_namespaces_may_differ_in_one_field_of_many():
    fields = ProductionAdapter.capabilities().namespace_fields

    def unequal(one, two):
        return sum(getattr(one, field) != getattr(two, field) for field in fields)

    def set_in(space):
        return sum(getattr(space, field) is not None for field in fields)

    spaces = [prompts(seed, ProductionAdapter)._namespaces for seed in range(200)]
    assert any(set_in(pair[-1]) == len(fields) and unequal(*pair[-2:]) == 1 for pair in spaces if len(pair) > 1)
