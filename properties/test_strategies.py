"""The strategies keep their promises: what they make is in range, likely to be enabled, and leans where they say."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from toys import Toy

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import NAMESPACE_FIELDS, NO_NAMESPACE, OP_TYPES, Admit, Namespace, op_name
from kvproof.properties import strategies
from kvproof.properties.lockstep import Lockstep, run

EVERYTHING = Capabilities(
    prefix=True, fork=True, truncate=True, drafts=True, steps=True, evict=True, reset=True, swap=True,
    namespace_fields=frozenset(NAMESPACE_FIELDS),
)  # fmt: skip
UNSHRUNK = settings(max_examples=5000, phases=[Phase.generate], database=None)
"""For things that need only be found."""

BLOCK_SIZES = st.sampled_from((1, 2, 3, 4, 16))
CLAIMS = st.builds(
    Capabilities,
    null_blocks=st.sampled_from((frozenset(), frozenset({0}), frozenset({0, 3}))),
    block_sizes=st.sampled_from(((1, 2, 3, 4, 16), (16,), (8, 32))),
    max_blocks=st.sampled_from((4, 8, 64)),
)


@given(CLAIMS, st.data())
def test_pools_are_within_the_claims(claims, data):
    pool = data.draw(strategies.pools(claims))
    assert pool.block_size in claims.block_sizes
    assert strategies.least_blocks(claims) <= pool.num_blocks <= min(claims.max_blocks, strategies.MAX_BLOCKS)


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from(strategies.ALPHABETS), st.data())
def test_tokens_are_of_the_alphabet(least, more, alphabet, data):
    made = data.draw(strategies.tokens(least, least + more, alphabet))
    assert least <= len(made) <= least + more
    assert set(made) <= set(alphabet)


@given(BLOCK_SIZES, st.integers(1, 100), st.data())
def test_lengths_are_in_range(block_size, most, data):
    assert 1 <= data.draw(strategies.lengths(block_size, most)) <= most


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8])
def test_every_length_at_a_boundary_comes_up(length):
    assert find(strategies.lengths(4, 8), lambda made: made == length) == length


@given(BLOCK_SIZES, st.data())
def test_prompts_are_never_empty(block_size, data):
    first = data.draw(strategies.prompts(block_size=block_size))
    second = data.draw(strategies.prompts(block_size=block_size, said=[first]))
    assert 1 <= len(first) <= strategies.PROMPT_BLOCKS * block_size
    assert second


@pytest.mark.parametrize(
    "lookalike",
    [
        pytest.param((0, 1, 1, 0), id="the-same"),
        pytest.param((0, 1, 1, 0, 1), id="continued"),
        pytest.param((0, 1), id="cut"),
        pytest.param((0, 1, 1, 1), id="differs-late"),
    ],
)
def test_prompts_look_like_what_was_said(lookalike):
    assert find(strategies.prompts(block_size=2, said=[(0, 1, 1, 0)]), lambda made: made == lookalike) == lookalike


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).map(tuple), st.integers(0, 9))
def test_a_late_difference_is_one_token(prompt, position):
    other = strategies.differs_late(prompt, position)
    assert len(other) == len(prompt)
    assert [a == b for a, b in zip(prompt, other, strict=True)].count(False) == 1


@given(BLOCK_SIZES, strategies.tokens(0, 4), st.data())
def test_drafts_are_at_most_one_more_than_a_block(block_size, likely, data):
    assert 1 <= len(data.draw(strategies.drafts(block_size=block_size, likely=likely))) <= block_size + 1


@given(st.sets(st.sampled_from(NAMESPACE_FIELDS)).map(frozenset), st.data())
def test_namespaces_set_only_the_given_fields(fields, data):
    made = [data.draw(strategies.namespaces(fields)), *data.draw(strategies.colliding_namespaces(fields))]
    for namespace in made:
        assert {name for name in NAMESPACE_FIELDS if getattr(namespace, name) is not None} <= fields


@given(strategies.colliding_namespaces(("tenant", "adapter")))
def test_colliding_namespaces_are_unequal(spaces):
    assert all(one != other for one, other in combinations(spaces, 2))


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ({NO_NAMESPACE, Namespace(tenant="None")}, "a word for None"),
        ({NO_NAMESPACE, Namespace(adapter="")}, "an empty word for None"),
        ({Namespace(tenant="a", adapter="ba"), Namespace(tenant="ab", adapter="a")}, "equal when joined"),
        ({Namespace(tenant="1"), Namespace(adapter="1")}, "moved to another field"),
    ],
)
def test_known_confusions_come_up(pair, why):
    find(strategies.colliding_namespaces(("tenant", "adapter")), lambda spaces: pair <= set(spaces), settings=UNSHRUNK)


@given(strategies.programs(EVERYTHING))
def test_programs_are_short_and_number_sequences_from_zero(ops):
    assert 1 <= len(ops) <= strategies.MAX_OPS
    admitted = [op.seq for op in ops if isinstance(op, Admit)]
    assert admitted == sorted(set(admitted))


@given(strategies.programs(Capabilities()))
def test_programs_do_only_what_is_claimed(ops):
    assert {op_name(op) for op in ops} <= {"admit", "extend", "commit", "append", "release"}


@pytest.mark.parametrize("name", [kind.__name__.lower() for kind in OP_TYPES])
def test_programs_do_all_that_is_claimed(name):
    find(strategies.programs(EVERYTHING), lambda ops: name in map(op_name, ops), settings=UNSHRUNK)


@given(strategies.programs(Toy.capabilities()), strategies.pools(Toy.capabilities()), st.data())
def test_any_part_of_a_program_can_be_run(ops, pool, data):
    part = [op for op in ops if data.draw(st.booleans())]
    result = run(part, Toy, num_blocks=pool.num_blocks, block_size=pool.block_size)
    assert result.ok, result


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(strategies.programs(Toy.capabilities()), min_size=20, max_size=20))
def test_nearly_all_operations_are_enabled(programs):
    ran = 0
    for ops in programs:
        lockstep = Lockstep(Toy, num_blocks=64, block_size=2)
        ran += sum(lockstep.do(op) for op in ops)
    assert ran >= 0.8 * sum(map(len, programs))
