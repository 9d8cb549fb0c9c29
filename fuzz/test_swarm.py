"""The random generator: seeded, nearly always enabled, and it leaves out nothing that a cache claims and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Silent
from toys_more import Everything, Stepping

from kvproof import Capabilities, Group
from kvproof.fuzz.operations import STRANGERS, STRIDES
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    NO_NAMESPACE,
    OP_TYPES,
    RELEASE_REASONS,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
    sequences_of,
)
from kvproof.models.outcomes import OutOfBlocksSeen
from kvproof.properties.lockstep import Lockstep

PROGRAMS = 60


class Program:
    """What one seed makes, and what came of it."""

    def __init__(self, target: type, seed: object, capabilities: Capabilities | None = None) -> None:
        rng = random.Random(f"{seed}")
        capabilities = capabilities or target.capabilities()
        self.config = Config(rng, capabilities)
        pool = {"num_blocks": self.config.num_blocks, "block_size": self.config.block_size}
        swarm = Swarm(rng, capabilities, **pool)
        self.length = swarm.length
        lockstep = Lockstep(target, capabilities=capabilities, keep_trace=True, **pool)
        self.ops = []
        self.enabled = 0
        self.in_flight = self.again = 0
        for op in swarm.ops(lockstep.spec):
            if isinstance(op, Release):
                sequence = lockstep.spec.sequences[op.seq]
                self.in_flight += sequence.out is not None
                self.again += sequence.gone
            self.ops.append(op)
            self.enabled += lockstep.do(op)
        self.outcomes = [step.outcome for step in lockstep.trace]


@pytest.fixture(scope="module")
def whole():
    """Programs for a cache that claims everything."""
    return [Program(ProductionAdapter, seed) for seed in range(PROGRAMS)]


@pytest.fixture(scope="module")
def synchronous():
    """Programs for a cache that claims everything but steps, so that more passes are committed."""
    return [Program(SynchronousAdapter, seed) for seed in range(2 * PROGRAMS)]


@pytest.mark.parametrize("target", [Silent, Everything, ProductionAdapter])
def test_a_seed_always_makes_the_same_program(target):
    for seed in range(10):
        one, two = Program(target, seed), Program(target, seed)
        assert (one.ops, one.config.num_blocks, one.config.block_size) == (two.ops, two.config.num_blocks, two.config.block_size)


def test_other_seeds_make_other_programs(whole):
    assert len({tuple(program.ops) for program in whole}) == PROGRAMS


@pytest.mark.parametrize("target", [Silent, Everything, Stepping, ProductionAdapter])
def test_nearly_every_operation_is_enabled(target):
    programs = [Program(target, seed) for seed in range(30)]
    made, enabled = sum(len(program.ops) for program in programs), sum(program.enabled for program in programs)
    assert made > 300
    assert enabled / made > 0.98


def test_every_kind_of_operation_appears_where_everything_is_claimed(whole):
    kinds = Counter(type(op) for program in whole for op in program.ops)
    assert set(kinds) == set(OP_TYPES)
    assert min(kinds.values()) >= 5, kinds


def test_drafts_are_made_and_accepted_whole_in_part_and_not_at_all(synchronous):
    accepted = Counter()
    for program in synchronous:
        out = {}
        for op in program.ops:
            if isinstance(op, Extend):
                out[op.seq] = len(op.drafts)
            elif isinstance(op, Commit) and out.get(op.seq):
                accepted["none" if not op.accepted else "all" if op.accepted == out[op.seq] else "some"] += 1
    assert set(accepted) == {"none", "some", "all"}


def test_what_breaks_caches_is_asked_for(whole):
    assert sum(program.in_flight for program in whole) > 10
    assert sum(program.again for program in whole) > 5
    assert sum(isinstance(outcome, OutOfBlocksSeen) for program in whole for outcome in program.outcomes) > 10
    assert {op.reason for program in whole for op in program.ops if isinstance(op, Release)} == set(RELEASE_REASONS)
    assert any(program.config.block_size == 1 for program in whole)


def test_prefixes_are_adopted_and_rolled_back_into():
    programs = [Program(ProductionAdapter, seed) for seed in range(4 * PROGRAMS)]  # of 60 a handful adopts, and the rest is chance
    adopted = sum(bool(getattr(outcome, "adopted", 0)) for program in programs for outcome in program.outcomes)
    copies = sum(bool(getattr(outcome, "copies", ())) for program in programs for outcome in program.outcomes)
    first = sum(isinstance(op, Admit) for program in programs for op in program.ops)
    assert adopted > first / 40
    assert copies > adopted / 4


def test_look_ups_find_something_and_nothing(synchronous):
    hits = Counter()
    for program in synchronous:
        for op, outcome in zip(program.ops, program.outcomes, strict=True):
            if isinstance(op, Match):
                hits[outcome.tokens > 0] += 1
    assert min(hits[True], hits[False]) > 10, hits


def test_every_namespace_field_is_varied(whole):
    values: dict[str, set[str | None]] = {field: set() for field in NAMESPACE_FIELDS}
    for program in [*whole, *(Program(Everything, f"n{seed}") for seed in range(PROGRAMS))]:
        for op in program.ops:
            if isinstance(op, Admit):
                for field in NAMESPACE_FIELDS:
                    values[field].add(getattr(op.namespace, field))
    assert [field for field in NAMESPACE_FIELDS if len(values[field]) < 3] == []


@pytest.mark.parametrize("field", NAMESPACE_FIELDS)
def test_only_claimed_namespace_fields_are_varied(field):
    capabilities = Capabilities(namespace_fields={field})
    spaces = {op.namespace for seed in range(15) for op in Program(Silent, seed, capabilities).ops if isinstance(op, Admit)}
    assert len(spaces) > 1
    assert {name for space in spaces for name in NAMESPACE_FIELDS if getattr(space, name) is not None} == {field}


def test_a_cache_that_claims_nothing_is_asked_for_nothing_more():
    ops = [op for seed in range(PROGRAMS) for op in Program(Silent, seed).ops]
    assert {type(op) for op in ops} == {Admit, Extend, Commit, Append, Release}
    assert {op.drafts for op in ops if isinstance(op, Extend)} == {()}
    assert {op.namespace for op in ops if isinstance(op, Admit)} == {NO_NAMESPACE}


ALWAYS = {Admit, Extend, Commit, Append, Release}


@pytest.mark.parametrize(
    ("target", "claim", "kinds"),
    [
        (Everything, "prefix", {Match}),
        (Everything, "fork", {Fork}),
        (Everything, "truncate", {Truncate}),
        (Everything, "drafts", set()),
        (Everything, "evict", {Evict}),
        (Everything, "reset", {Reset}),
        (Everything, "swap", {SwapOut, SwapIn}),
        (Stepping, "steps", {BeginStep, EndStep}),
    ],
)
def test_each_claim_adds_its_own_operations_and_no_others(target, claim, kinds):
    class One(target):
        def _best(self, seq):
            return super()._best(seq) if claim == "prefix" else (0, -1)

    capabilities = Capabilities(**{claim: True})
    ops = [op for seed in range(30) for op in Program(One, seed, capabilities).ops]
    assert {type(op) for op in ops} == ALWAYS | kinds
    assert any(op.drafts for op in ops if isinstance(op, Extend)) == (claim == "drafts")


def test_a_program_ends_soon_after_its_length(whole):
    for program in whole:
        assert program.length <= len(program.ops) <= program.length + 30


def test_a_cache_that_refuses_everything_it_may_ends_too():
    class Full(Silent):
        @classmethod
        def capabilities(cls):
            return Capabilities(max_blocks=2, block_sizes=(1,))

    assert all(len(Program(Full, seed).ops) < 100 for seed in range(20))


# -- pools ----------------------------------------------------------------------------------------------------------------------------------------

claims = st.builds(
    Capabilities,
    groups=st.lists(st.just(Group()), min_size=1, max_size=3),
    null_blocks=st.sets(st.integers(0, 3), max_size=2),
    block_sizes=st.lists(st.sampled_from([1, 2, 3, 4, 16, 32, 128]), min_size=1, unique=True),
    max_blocks=st.integers(6, 128),
)


@settings(deadline=None)
@given(claims, st.integers())
def test_a_pool_is_within_what_the_cache_claims_and_has_a_block_for_each_group(claimed, seed):
    config = Config(random.Random(seed), claimed)
    assert config.block_size in claimed.block_sizes
    assert config.num_blocks <= claimed.max_blocks
    usable = set(range(config.num_blocks)) - set(claimed.null_blocks)
    assert len(usable) >= len(claimed.groups)


def test_every_claimed_block_size_is_tried_and_small_ones_most():
    sizes = Counter(Config(random.Random(seed), Capabilities()).block_size for seed in range(600))
    assert set(sizes) == {1, 2, 3, 4, 16}
    assert 600 / 50 < sizes[16] < 600 / 15
    assert sizes[16] < min(sizes[size] for size in (1, 2, 3, 4))


def test_tiny_and_large_pools_are_tried():
    blocks = Counter(Config(random.Random(seed), Capabilities()).num_blocks for seed in range(600))
    assert min(blocks) == 2
    assert max(blocks) > 32
    assert sum(count for number, count in blocks.items() if number <= 12) > 500


def test_a_pool_of_one_block_is_made_where_no_more_is_allowed():
    assert Config(random.Random(0), Capabilities(max_blocks=1)).num_blocks == 1


def courses(programs, *kinds):
    """Every run of operations of these kinds, one right after the other."""
    for program in programs:
        for first in range(len(program.ops) - len(kinds) + 1):
            run = program.ops[first : first + len(kinds)]
            if all(isinstance(op, kind) for op, kind in zip(run, kinds, strict=True)):
                yield run


def test_look_ups_go_stale_while_others_publish_in_the_same_blocks(synchronous):
    """A newcomer takes all blocks, publishes in them, and is gone when what was found before is asked for."""
    runs = courses(synchronous, Match, Admit, Extend, Commit, Release, Extend)
    assert any(run[0].seq == run[-1].seq and run[1].seq == run[4].seq for run in runs)


def test_who_asked_for_what_waits_for_the_device_may_be_gone_in_a_step_of_its_own(whole):
    assert any(run[0].seq == run[3].seq for run in courses(whole, Admit, Extend, BeginStep, Release, EndStep))


@pytest.mark.parametrize("way", [Release, Truncate, SwapOut, Append])
def test_the_last_holder_lets_go_while_the_device_reads_for_a_fork_that_is_gone(way):
    programs = (Program(HybridAdapter, seed) for seed in range(5 * PROGRAMS))
    runs = courses(programs, Fork, Append, Extend, BeginStep, Release, way)
    assert any(run[0].child == run[4].seq and run[0].parent == run[5].seq for run in runs)


def test_drafts_may_go_over_several_blocks(synchronous):
    drafts = [(len(op.drafts), program.config.block_size) for program in synchronous for op in program.ops if isinstance(op, Extend)]
    assert any(count > 2 * size + 1 for count, size in drafts)
    assert all(count <= 3 * size + 1 for count, size in drafts)


def test_an_eviction_may_name_all_that_is_cached(synchronous):
    assert any(len(op.blocks) > 3 for program in synchronous for op in program.ops if isinstance(op, Evict))


def failed(programs, *kinds):
    """The runs of operations of these kinds whose first one found no room, all about the sequence that it was for."""
    for program in programs:
        for first, outcome in enumerate(program.outcomes):
            run = program.ops[first : first + len(kinds)]
            if isinstance(outcome, OutOfBlocksSeen) and tuple(map(type, run)) == kinds and run[0].seq == sequences_of(run[1])[0]:
                yield run


@pytest.mark.parametrize("way", [Fork, Truncate, SwapOut, Release])
def test_who_found_no_room_goes_on_in_another_way(synchronous, way):
    assert any(True for _ in failed(synchronous, Extend, way))


def test_what_goes_first_is_asked_after_a_failure(synchronous):
    runs = [
        program.ops[first : first + 3]
        for program in synchronous
        for first, outcome in enumerate(program.outcomes)
        if isinstance(outcome, OutOfBlocksSeen)
    ]
    assert any(tuple(map(type, run)) == (Extend, Admit, Extend) and set(run[1].prompt) <= set(STRANGERS) for run in runs)


def test_a_sequence_swaps_again_with_other_tokens_and_finds_no_room_to_come_back(synchronous):
    assert any(courses(synchronous, SwapOut, SwapIn, Truncate, Append, Extend, Commit, SwapOut, SwapIn))
    assert any(run[0].seq == run[3].seq for run in courses(synchronous, SwapOut, Admit, Extend, SwapIn))


def test_a_fork_comes_and_goes_while_its_parent_copies_what_it_reads():
    programs = (Program(HybridAdapter, seed) for seed in range(5 * PROGRAMS))
    runs = courses(programs, Fork, Truncate, Append, Extend, BeginStep, Append, Extend, BeginStep, Release, EndStep)
    assert any(run[0].parent == run[1].seq and run[0].child == run[6].seq == run[8].seq for run in runs)


def test_the_numbers_of_sequences_may_lie_far_apart():
    programs = [Program(Silent, seed) for seed in range(200)]
    numbers = [sorted({op.seq for op in program.ops if isinstance(op, Admit)}) for program in programs]
    strides = Counter(second - first for first, second, *_ in (made for made in numbers if len(made) > 1))
    assert set(strides) == {1, *STRIDES}
    assert strides[1] > sum(strides.values()) * 4 / 5
