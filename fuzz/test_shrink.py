"""Shrinking: the same law, nothing left to leave out, the same result each time, and in time."""

from __future__ import annotations

import random
import types

import msgspec
import pytest
from toys import DoubleFree, Faulty, Leaky, Silent, Toy
from toys_more import Everything, Greedy, RaisingHalfway

from kvproof import Capabilities, Namespace
from kvproof.fuzz import shrink as shrink_module
from kvproof.fuzz.bugs import BUGS as SEEDED
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.runnable import runnable
from kvproof.fuzz.runs import Search, Tally, run_seed
from kvproof.fuzz.shrink import Candidate, Shrinker, breaks, shrink, shrink_fault
from kvproof.fuzz.simpler import anew, by_fork, merged
from kvproof.fuzz.swarm import Swarm
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    Admit,
    Append,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Release,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.properties.lockstep import Lockstep, run


class WholePrompt(Everything):
    """Matches its whole prompt."""

    def _best(self, seq):
        tokens = self.known[seq]
        for other, row in self.rows.items():
            if (
                other != seq
                and row
                and self.known[other][: self.computed[other]][: len(tokens)] == tokens
                and self.space[other] == self.space[seq]
            ):
                return len(tokens), other
        return 0, -1


class NamespaceBlind(Everything):
    """Knows no tenant from another."""

    def admit(self, seq, prompt, namespace):
        super().admit(seq, prompt, msgspec.structs.replace(namespace, tenant=None))


class DtypeBlind(Everything):
    """Knows no dtype from another."""

    def admit(self, seq, prompt, namespace):
        super().admit(seq, prompt, msgspec.structs.replace(namespace, dtype=None))


class AllBlind(Everything):
    """Knows no namespace from another."""

    def admit(self, seq, prompt, namespace):
        super().admit(seq, prompt, Namespace())


class KeepsTail(Everything):
    """Forgets no token when it rolls back, so that the next one is taken for computed."""

    def truncate(self, seq, length):
        self.rows[seq] = self.rows[seq][: length // self.size]
        super().truncate(seq, length)


BUGS = [
    (DoubleFree, "no-aliasing"),
    (Leaky, "no-leak"),
    (Greedy, "tail-waste-bounded"),
    (RaisingHalfway, "failure-changes-nothing"),
    (WholePrompt, "hit-leaves-last-token"),
    (NamespaceBlind, "hit-same-namespace"),
    (KeepsTail, "truncate-exact"),
]


def search_of(target):
    return Search(target, "toy", read_capabilities(target), 1, 1, 0.0, 10.0, None, frozenset())


def long_programs(target, law, count):
    """Programs as the generator makes them, that break `law`."""
    search, found = search_of(target), []
    for index in range(2000):
        one = run_seed(search, f"long:{index}", Tally())
        if one is not None and one.program.violation is not None and one.program.violation.law == law:
            found.append(one.program)
            if len(found) == count:
                return found
    pytest.fail(f"{target.__name__} does not break {law} in 2000 programs")


def result_of(program, target, ops=None):
    ops = program.ops if ops is None else ops
    return run(ops, target, num_blocks=program.config.num_blocks, block_size=program.config.block_size)


def program_of(*ops, num_blocks=4, block_size=2, **fields):
    return Program(FORMAT, "toy", PoolConfig(num_blocks, block_size), ops, **fields)


@pytest.fixture(scope="module", params=BUGS, ids=lambda bug: bug[0].__name__)
def shrunk(request):
    """For each bug: the target, the law, long programs, and what they shrink to."""
    target, law = request.param
    programs = long_programs(target, law, 2)
    return target, law, programs, [shrink(program, target, seconds=60) for program in programs]


def test_the_result_breaks_the_same_law_where_it_says(shrunk):
    target, law, _, results = shrunk
    for result in results:
        violation = result_of(result, target).violation
        assert violation == result.violation
        assert breaks(result_of(result, target), law)
        assert violation.step == len(result.ops) - 1


def test_no_single_operation_of_the_result_can_be_left_out(shrunk):
    target, law, _, results = shrunk
    for result in results:
        for index in range(len(result.ops)):
            fewer = result.ops[:index] + result.ops[index + 1 :]
            assert not breaks(result_of(result, target, fewer), law), result.ops[index]


def test_every_operation_of_the_result_is_run(shrunk):
    target, _, _, results = shrunk
    for result in results:
        assert tuple(result_of(result, target).ran) == result.ops


def test_the_result_is_simpler_and_keeps_where_it_came_from(shrunk):
    _, _, programs, results = shrunk
    for program, result in zip(programs, results, strict=True):
        assert Candidate(result.config, result.ops).size <= Candidate(program.config, program.ops).size
        assert (result.kvproof, result.target, result.seed) == (program.kvproof, program.target, program.seed)


def test_the_shorter_of_two_results_is_short(shrunk):
    _, _, _, results = shrunk
    assert min(len(result.ops) for result in results) <= 6


def test_the_same_program_always_shrinks_to_the_same(shrunk):
    target, _, programs, results = shrunk
    assert shrink(programs[0], target, seconds=60) == results[0]


def test_a_result_shrinks_no_further(shrunk):
    target, _, _, results = shrunk
    assert shrink(results[0], target, seconds=60) == results[0]


# -- what is simpler ----------------------------------------------------------------------------------------------------------------------------


def test_the_simplest_program_of_a_double_free_is_found():
    program = program_of(
        *[op for seq in (3, 4) for op in (Admit(seq, (7, 8, 9)), Extend(seq, 2), Commit(seq), Append(seq, (4,)))],
        Admit(5, (9, 9, 9)),
        Extend(5, 3),
        Release(5, "preempt"),
        *[Release(seq, "error") for seq in (3, 4)],
        *[op for seq in (7, 8, 9) for op in (Admit(seq, (seq,) * 9), Extend(seq, 9), Commit(seq))],
        num_blocks=12,
        block_size=4,
    )
    assert not result_of(program, DoubleFree).ok
    result = shrink(program, DoubleFree)
    assert result.config.num_blocks + result.config.block_size <= 4
    assert len(result.ops) <= 5
    assert {token for op in result.ops if isinstance(op, Admit) for token in op.prompt} <= {0, 1}
    assert {op.seq for op in result.ops} <= {0, 1}


def test_namespaces_that_do_not_matter_fall_away():
    program = program_of(
        Admit(0, (1, 2), Namespace(tenant="a", model="m")),
        Extend(0, 2),
        Admit(1, (3, 4), Namespace(adapter="x")),
        Release(0, "preempt"),
        Extend(0, 2),
        Extend(1, 2),
    )
    assert {op.namespace for op in shrink(program, DoubleFree).ops if isinstance(op, Admit)} == {Namespace()}


def test_namespaces_that_matter_stay():
    program = program_of(
        Admit(0, (1, 2), Namespace(tenant="a", model="m")),
        Extend(0, 2),
        Commit(0),
        Admit(1, (1, 2, 3), Namespace(tenant="b", model="m")),
        Match(1),
    )
    spaces = [op.namespace for op in shrink(program, NamespaceBlind).ops if isinstance(op, Admit)]
    assert len({space.tenant for space in spaces}) == 2
    assert {space.tenant for space in spaces} <= {"a", "b", None}


@pytest.mark.parametrize(("target", "kept"), [(NamespaceBlind, {"tenant"}), (DtypeBlind, {"dtype"}), (AllBlind, {"tenant"})])
def test_the_field_of_a_namespace_that_matters_stays_and_else_the_first_one(target, kept):
    told = "tenant" if target is NamespaceBlind else "dtype"
    one, two = (Namespace(rope="r", **{told: value}) for value in "ab")
    program = program_of(Admit(0, (1, 2), one), Extend(0, 2), Commit(0), Admit(1, (1, 2, 3), two), Match(1))
    spaces = [op.namespace for op in shrink(program, target).ops if isinstance(op, Admit)]
    assert {field for space in spaces for field in NAMESPACE_FIELDS if getattr(space, field) is not None} == kept


def test_the_pool_stays_within_what_the_cache_claims():
    class Coarse(DoubleFree):
        @classmethod
        def capabilities(cls):
            return Capabilities(block_sizes=(4, 8), max_blocks=9)

    program = program_of(
        Admit(0, (1,) * 9), Extend(0, 9), Release(0, "preempt"), Extend(0, 9), Admit(1, (2,) * 9), Extend(1, 9), block_size=8, num_blocks=9
    )
    result = shrink(program, Coarse)
    assert result.config.block_size in (4, 8)
    assert result.config.num_blocks < 9


def test_fewer_operations_go_before_anything_else_and_smaller_numbers_come_last():
    config = PoolConfig(4, 2)
    sizes = [
        Candidate(config, (Admit(0, (0,)),)).size,
        Candidate(config, (Admit(9, (0,)),)).size,
        Candidate(config, (Admit(9, (9,)),)).size,
        Candidate(PoolConfig(5, 2), (Admit(0, (0,)),)).size,
        Candidate(config, (Admit(0, (0,), Namespace(tenant="a")),)).size,
        Candidate(config, (Admit(0, (0, 0)),)).size,
        Candidate(config, (Admit(0, (0,)), Admit(1, (0,)))).size,
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_a_release_is_simpler_than_a_swap():
    ops = (Admit(0, (0, 0)), Extend(0, 1), Commit(0), Fork(0, 1), SwapOut(1), Extend(0, 1))
    shrunk = shrink(program_of(*ops, num_blocks=1, block_size=1), SEEDED["shared-block-freed-by-its-first-holder"].adapter)
    assert shrunk.violation.law == "no-aliasing"
    assert shrunk.ops[4] == Release(1)


def test_the_numbers_of_every_kind_of_operation_count():
    config = PoolConfig(4, 2)
    for small, large in [
        (Extend(0, 1), Extend(0, 2)),
        (Commit(0, 0), Commit(0, 1)),
        (Truncate(0, 1), Truncate(0, 2)),
        (Release(0, "finish"), Release(0, "error")),
        (Evict((1,)), Evict((1, 2))),
        (Fork(0, 1), Fork(1, 2)),
        (Append(0, (1,)), Append(0, (2,))),
        (Extend(0, 1), Extend(0, 1, (0,))),
    ]:
        assert Candidate(config, (small,)).size < Candidate(config, (large,)).size


def test_a_fork_and_its_history_become_one_request():
    program = program_of(
        Admit(0, (0,)),
        Extend(0, 1),
        Commit(0),
        Fork(0, 1),
        Append(1, (1,)),
        Extend(1, 1),
        Commit(1),
        Truncate(1, 1),
        Append(1, (0,)),
        Extend(1, 1),
        Admit(2, (0, 1, 0)),
        Extend(2, 1),
        num_blocks=3,
    )
    result = shrink(program, SEEDED["published-tail-written-in-place"].adapter)
    assert [type(op) for op in result.ops] == [Admit, Extend, Commit, Truncate, Append, Extend, Admit, Extend]


def test_what_a_fork_learns_can_be_known_to_its_parent_from_the_start():
    ops = (Admit(0, (5,)), Fork(0, 1), Append(1, (6, 7)), Extend(1, 3))
    proposed = [candidate.ops for candidate in merged(Candidate(PoolConfig(4, 2), ops), read_capabilities(Toy))]
    assert (Admit(0, (5, 6, 7)), Fork(0, 1), Extend(1, 3)) in proposed


def test_a_later_request_becomes_a_fork_of_an_earlier_one():
    ops = (Admit(0, (0, 1)), Extend(0, 2), Commit(0), Admit(1, (0, 1, 2)), Extend(1, 1), Release(1))
    forked = [candidate.ops for candidate in by_fork(Candidate(PoolConfig(4, 1), ops), Capabilities(fork=True))]
    assert (Admit(0, (0, 1)), Extend(0, 2), Commit(0), Fork(0, 1), Release(1)) in forked
    assert list(by_fork(Candidate(PoolConfig(4, 1), ops), Capabilities())) == [], "a cache without forks is not asked for one"


def test_another_request_begins_where_one_was_rolled_back():
    ops = (Admit(0, (5, 6)), Extend(0, 2), Commit(0), Truncate(0, 1), Append(0, (7, 8)), Extend(0, 2), Commit(0))
    plain, whole = (
        candidate.ops for candidate in anew(Candidate(PoolConfig(4, 1), ops), Capabilities(truncate=True)) if len(candidate.ops) == 6
    )
    assert plain == (*ops[:3], Admit(1, (5, 7, 8)), Extend(1, 2), Commit(1))
    assert whole == (*ops[:3], Admit(1, (5, 7, 8)), Extend(1, 3), Commit(1))


def test_operations_that_cannot_run_are_no_other_program():
    ops = (
        Extend(0, 1),
        Admit(1, (5,)),
        Commit(1),
        Admit(1, (6,)),
        Fork(2, 3),
        EndStep(),
        Extend(1, 1),
        Release(1, "finish"),
        Append(1, (7,)),
    )
    assert runnable(ops) == (Admit(1, (5,)), Extend(1, 1), Release(1, "finish"))
    shrinker = Shrinker(DoubleFree, lambda result: False, seconds=10)
    for some in (ops, runnable(ops), (*runnable(ops), SwapIn(1))):
        shrinker._try(Candidate(PoolConfig(4, 2), some))
    assert shrinker.runs == 1


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter])
def test_whatever_runs_counts_as_runnable(adapter):
    """On a real cache: what is left out of a random program would have been skipped."""
    for program in range(30):
        rng = random.Random(f"runnable:{program}")
        ops = list(swarm_ops(adapter, rng))
        rng.shuffle(ops)
        whole = run(ops, adapter, num_blocks=8, block_size=2)
        assert whole.ran == run(runnable(ops), adapter, num_blocks=8, block_size=2).ran


def swarm_ops(adapter, rng):
    """The operations of one program of the swarm."""
    lockstep = Lockstep(adapter, num_blocks=8, block_size=2)
    swarm = Swarm(rng, lockstep.capabilities, num_blocks=8, block_size=2)
    for op in swarm.ops(lockstep.spec):
        lockstep.do(op)
    return lockstep.ops


def test_a_program_that_only_a_detour_makes_shorter_is_made_shorter():
    program = program_of(
        Admit(0, (1,)),
        Admit(1, (1,)),
        Extend(1, 1),
        Commit(1),
        Release(1),
        Extend(0, 1),
        Release(0),
        Admit(2, (0, 0)),
        Extend(2, 2),
        num_blocks=2,
        block_size=1,
    )
    result = shrink(program, SEEDED["recycled-block-counts-as-computed"].adapter)
    assert len(result.ops) == 6


# -- what is not shrunk -------------------------------------------------------------------------------------------------------------------------


def test_a_program_that_breaks_nothing_comes_back_as_it_is():
    program = program_of(Admit(0, (1, 2)), Extend(0, 2), Commit(0), Commit(0), seed="s")
    assert shrink(program, Toy) is program


def test_a_failure_that_does_not_show_any_more_comes_back_as_it_is():
    program = program_of(Admit(0, (1,)), Extend(0, 1), Release(0, "preempt"), Extend(0, 1), Admit(1, (2,)), Extend(1, 1))
    failing = shrink(program, DoubleFree)
    assert failing.violation is not None
    assert shrink(failing, Silent) is failing


def test_another_law_that_a_part_of_the_program_breaks_is_not_taken_for_the_same():
    class Both(DoubleFree):
        def append(self, seq, tokens):
            super().append(seq, tokens)
            self.rows[seq] = []

    program = program_of(
        Admit(0, (1,)),
        Extend(0, 1),
        Release(0, "preempt"),
        Extend(0, 1),
        Admit(1, (2,)),
        Extend(1, 1),
        Commit(0),
        Append(0, (1,)),
    )
    result = shrink(program, Both)
    assert result.violation.law == "no-aliasing"
    assert not any(isinstance(op, Append) for op in result.ops)


def test_a_leak_may_become_an_exhaustion_for_which_nothing_was_released():
    class Short(Silent):
        """One block less than it should have."""

        def __init__(self, *, num_blocks, block_size):
            super().__init__(num_blocks=num_blocks - 1, block_size=block_size)

    program = program_of(Admit(0, (1,)), Extend(0, 1), Release(0), Admit(1, (1,) * 8), Extend(1, 8))
    assert result_of(program, Short).violation.law == "no-leak"
    result = shrink(program, Short)
    assert result.violation.law == "no-spurious-exhaustion"
    assert len(result.ops) == 2


def test_a_target_that_cannot_be_driven_is_told():
    program = program_of(Admit(0, (1,)), Extend(0, 1))
    with pytest.raises(AdapterFault, match=r"must return kvproof\.Grant"):
        shrink(program, Faulty)
    with pytest.raises(AdapterFault, match="has no capabilities"):
        shrink(program, type("Bare", (), {}))


def test_a_fault_of_the_adapter_shrinks_to_the_call_that_shows_it():
    fault = "extend(5, 3, ()) returned NoneType None; it must return kvproof.Grant."
    program = program_of(Admit(3, (1,)), Release(3), Admit(5, (1, 2, 3)), Extend(5, 3), fault=fault)
    result = shrink_fault(program, Faulty)
    assert [type(op) for op in result.ops] == [Admit, Extend]
    assert result.fault == "extend(0, 1, ()) returned NoneType None; it must return kvproof.Grant."


def test_a_fault_that_does_not_show_comes_back_as_it_is():
    program = program_of(Admit(0, (1,)), fault="match(0) returned nothing.")
    assert shrink_fault(program, Toy) is program


# -- time -----------------------------------------------------------------------------------------------------------------------------------------


class Clock:
    """Every look at it takes one second."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize("seconds", [3, 10, 30])
def test_shrinking_ends_in_time_with_the_best_so_far(monkeypatch, seconds):
    clock = Clock()
    monkeypatch.setattr(shrink_module, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    program = long_programs(DoubleFree, "no-aliasing", 1)[0]
    result = shrink(program, DoubleFree, seconds=seconds)
    assert clock.now <= seconds + 10
    assert breaks(result_of(result, DoubleFree), "no-aliasing")
    assert len(result.ops) <= len(program.ops)


def test_the_time_is_looked_at_between_candidates_that_do_not_help(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(shrink_module, "time", clock)

    def wanted(result):
        clock.now += 1
        return shrinker.runs == 1

    shrinker = Shrinker(DoubleFree, wanted, seconds=5)
    program = long_programs(DoubleFree, "no-aliasing", 1)[0]
    shrinker.shrink(Candidate(program.config, program.ops))
    assert shrinker.runs <= 6


def test_what_is_not_simpler_is_not_taken():
    shrinker = Shrinker(Toy, lambda result: True, seconds=60)
    config = PoolConfig(2, 2)
    assert shrinker._try(Candidate(config, (Admit(0, (1,)),)))
    assert not shrinker._try(Candidate(config, (Admit(0, (1,)), Admit(1, (1,)))))
    assert not shrinker._try(Candidate(config, (Admit(1, (1,)),)))
    assert shrinker.best.ops == (Admit(0, (1,)),)
    assert shrinker._try(Candidate(config, (Admit(0, (0,)),)))


def test_more_time_gives_a_program_that_is_no_longer(monkeypatch):
    program = long_programs(DoubleFree, "no-aliasing", 1)[0]
    lengths = []
    for seconds in (2, 20, 2000):
        monkeypatch.setattr(shrink_module, "time", types.SimpleNamespace(monotonic=Clock().monotonic))
        lengths.append(len(shrink(program, DoubleFree, seconds=seconds).ops))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_a_program_says_whether_the_time_to_shrink_it_ran_out(monkeypatch):
    program = long_programs(DoubleFree, "no-aliasing", 1)[0]
    for seconds, unfinished in ((10, True), (10_000, False)):
        monkeypatch.setattr(shrink_module, "time", types.SimpleNamespace(monotonic=Clock().monotonic))
        short = shrink(program, DoubleFree, seconds=seconds)
        assert short.unfinished == unfinished
    monkeypatch.setattr(shrink_module, "time", types.SimpleNamespace(monotonic=Clock().monotonic))
    assert not shrink(msgspec.structs.replace(short, unfinished=True), DoubleFree, seconds=10_000).unfinished
