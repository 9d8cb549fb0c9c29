"""What the random generator asks for: prompts and namespaces that only a confused cache takes for others."""

from __future__ import annotations

import random

import pytest

from kvproof.fuzz.prompts import SEPARATORS, Prompts
from kvproof.impl.production.adapter import ProductionAdapter, SynchronousAdapter
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Evict, Extend, Namespace, Release
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


def test_what_earlier_users_of_a_block_had_behind_it_is_asked_for_in_the_namespace_of_the_last():
    made = prompts(0)
    lockstep = Lockstep(SynchronousAdapter, num_blocks=2, block_size=2)
    for seq, prompt in enumerate([(0, 1, 2, 3), (5, 5, 6, 6), (7, 7, 4, 4), (9, 9, 8, 8)]):
        for op in (Admit(seq, prompt, Namespace(tenant="b" if seq == 3 else None)), Extend(seq, 4), Commit(seq)):
            lockstep.do(op)
        made.doubt_blocks(lockstep.spec, lockstep.spec.live[seq])
        if seq < 3:
            lockstep.do(Release(seq))
    # Deeper blocks are used again first, so each block is the first one of every other sequence.
    prompts_asked = {(9, 9, 6, 6), (9, 9, 8, 8, 2, 3), (9, 9, 8, 8, 4, 4)}
    asked = {made._asked_after_reuse(lockstep.spec) for _ in range(300)} - {None}
    assert {(prompt[:-1], namespace) for prompt, namespace in asked} == {(prompt, Namespace(tenant="b")) for prompt in prompts_asked}


def test_a_twin_begins_with_what_is_being_computed_and_goes_on_otherwise():
    made = prompts(0)
    lockstep = Lockstep(SynchronousAdapter, num_blocks=6, block_size=2)
    for op in (Admit(0, (4, 5, 6, 7, 8)), Extend(0, 5)):
        lockstep.do(op)
    twins = {made.twin(lockstep.spec.live[0]) for _ in range(50)}
    assert {twin[:2] for twin in twins} == {(4, 5)}
    assert {twin[:4] == (4, 5, 6, 7) for twin in twins} == {True, False}
    assert min(map(len, twins)) > 3


def test_a_prompt_goes_on_from_what_was_let_go_of_in_flight():
    made = prompts(0, ProductionAdapter)
    lockstep = Lockstep(ProductionAdapter, num_blocks=6, block_size=2)
    for op in (Admit(0, (4, 5, 6)), Extend(0, 3), BeginStep()):
        lockstep.do(op)
    assert made.let_go_in_flight(lockstep.spec) is None
    lockstep.do(Release(0))
    prompt, namespace = made.let_go_in_flight(lockstep.spec)
    assert (prompt[:3], len(prompt) > 3, namespace) == ((4, 5, 6), True, Namespace())
    lockstep.do(EndStep())
    assert made.let_go_in_flight(lockstep.spec) is None


def test_namespaces_may_differ_in_one_field_of_many():
    fields = ProductionAdapter.capabilities().namespace_fields

    def unequal(one, two):
        return sum(getattr(one, field) != getattr(two, field) for field in fields)

    def set_in(space):
        return sum(getattr(space, field) is not None for field in fields)

    spaces = [prompts(seed, ProductionAdapter)._namespaces for seed in range(200)]
    assert any(set_in(pair[-1]) == len(fields) and unequal(*pair[-2:]) == 1 for pair in spaces if len(pair) > 1)


def pairs_of_namespaces():
    """The last two namespaces of many programs, as the fields that are set."""
    fields = ProductionAdapter.capabilities().namespace_fields
    spaces = [prompts(seed, ProductionAdapter)._namespaces for seed in range(400)]
    return [
        [{field: value for field in fields if (value := getattr(space, field)) is not None} for space in made[-2:]]
        for made in spaces
        if len(made) > 1
    ]


def test_namespaces_may_differ_by_a_field_that_is_empty_or_not_set_beside_others():
    less = [(one, other) for one, other in pairs_of_namespaces() if other and one.items() > other.items() and len(one) == len(other) + 1]
    assert {one[field] == "" for one, other in less for field in one.keys() - other.keys()} == {True, False}


def test_namespaces_may_have_their_fields_swapped_or_look_alike():
    pairs = pairs_of_namespaces()
    assert any(one != other and one.keys() == other.keys() and sorted(one.values()) == sorted(other.values()) for one, other in pairs)
    values = [(*one.values(), *other.values()) for one, other in pairs if one.keys() == other.keys() and len(one) == 1]
    assert any(one != other and one.lower() == other.strip().lower() for one, other in values)
    assert any(one != other and len(one) > 32 and one[:32] == other[:32] for one, other in values)


@pytest.mark.parametrize("separator", ["", *SEPARATORS])
def test_namespaces_may_be_one_text_with_a_separator_between_their_fields(separator):
    def texts(space):
        return [separator.join(space[field] for field in sorted(space, reverse=reverse)) for reverse in (False, True)]

    assert any(
        one.keys() == other.keys() and len(one) == 2 and one != other and texts(one) == texts(other) for one, other in pairs_of_namespaces()
    )
