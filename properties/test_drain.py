"""The end of every program: device work finishes, everyone lets go, and one fresh sequence takes the whole pool."""

from __future__ import annotations

import random

import pytest
from toys import Leaky, Toy
from toys_more import Everything, Stepping

from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import Admit, BeginStep, EndStep, Extend, Release
from kvproof.models.spec import Spec
from kvproof.properties.drain import DRAIN_TOKEN, FINAL_REASONS, drain, whole_pool_tokens
from kvproof.properties.lockstep import LawBroken, Lockstep


def after(target, ops, **pool):
    driven = Lockstep(target, **({"num_blocks": 4, "block_size": 2} | pool))
    for op in ops:
        assert driven.do(op)
    return driven


def test_every_live_sequence_is_released_for_good_and_the_last_one_asks_for_all():
    driven = after(Toy, [Admit(0, (1,)), Extend(0, 1), Admit(1, (2,)), Admit(2, (3,)), Release(2)])
    ops = drain(random.Random(1), driven.spec, 3)
    assert {op.seq for op in ops[:2]} == {0, 1}
    assert all(isinstance(op, Release) and op.reason in FINAL_REASONS for op in ops[:2])
    assert ops[2:] == [Admit(3, (DRAIN_TOKEN,) * 8), Extend(3, 8)]
    assert all(driven.do(op) for op in ops)
    assert len(driven.last_seen.tables[3][0]) == 4
    assert driven.spec.exercised["no-leak"] == 1


def test_open_steps_end_before_anything_is_released():
    driven = after(Stepping, [Admit(0, (1,)), Extend(0, 1), BeginStep(), BeginStep()])
    ops = drain(random.Random(1), driven.spec, 1)
    assert ops[:2] == [EndStep(), EndStep()]
    assert all(driven.do(op) for op in ops)
    assert driven.spec.steps == []


def test_a_leak_shows():
    driven = after(Leaky, [Admit(0, (1,)), Extend(0, 1), Release(0, "cancel")])
    ops = drain(random.Random(1), driven.spec, 1)
    driven.do(ops[0])
    with pytest.raises(LawBroken, match=r"no-leak: .* sequence 1, which needs 4 of 4 blocks, got OutOfBlocks"):
        driven.do(ops[1])


def test_sequences_are_released_in_any_order_and_for_any_reason():
    driven = after(Everything, [Admit(seq, (1,)) for seq in range(4)])
    drained = [drain(random.Random(seed), driven.spec, 9)[:4] for seed in range(60)]
    assert len({tuple(op.seq for op in ops) for ops in drained}) > 10
    assert {op.reason for ops in drained for op in ops} == set(FINAL_REASONS)


@pytest.mark.parametrize(
    ("claims", "tokens"),
    [
        ({}, 16),
        ({"capacity": 3}, 6),
        ({"null_blocks": {0}}, 14),
        ({"groups": (Group(), Group())}, 8),
        ({"groups": (Group(), Group(block_size=4))}, 10),
        ({"groups": (Group(block_size=16),)}, 128),
        ({"capacity": 0}, 0),
    ],
)
def test_the_whole_pool_is_what_the_usable_blocks_hold_in_all_groups_at_once(claims, tokens):
    assert whole_pool_tokens(Spec(Capabilities(**claims), num_blocks=8, block_size=2)) == tokens


def test_a_pool_that_holds_nothing_is_not_asked_for():
    spec = Spec(Capabilities(groups=(Group(), Group())), num_blocks=1, block_size=2)
    assert drain(random.Random(1), spec, 0) == []
