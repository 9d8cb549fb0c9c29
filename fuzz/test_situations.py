"""Abstract situations: what is noted of an operation, what is possible, that kept programs lead further, and the same labels in Hypothesis."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from toys import Leaky, Toy

from kvproof.fuzz.from_bytes import ByteChoices, run_bytes
from kvproof.fuzz.mutants import MOST_MUTANT_OPS, mutant, parents_of
from kvproof.fuzz.runs import Search, Tally, run_kept, run_program
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Admit, Append, BeginStep, Commit, EndStep, Evict, Extend, Fork, Match, Release, Truncate
from kvproof.properties.lockstep import Lockstep
from kvproof.properties.machine import cache_machine
from kvproof.properties.situations import CIRCUMSTANCES, EVENTS, Watcher, masks, name, names, nothing_reached, possible


def search_of(target):
    return Search(target, "toy", read_capabilities(target), 0, 1, float("inf"), 10.0, None, frozenset())


def reached_by(target, *ops, num_blocks=8, block_size=2):
    """The situations of a program."""
    lockstep = Lockstep(target, num_blocks=num_blocks, block_size=block_size)
    watcher = Watcher(lockstep)
    for op in ops:
        assert lockstep.do(op)
        watcher.note(op)
    return set(names(watcher.reached))


ONE = (Admit(0, (5, 6, 7)), Extend(0, 3), Commit(0))


def test_the_first_operations_happen_with_nothing_else_going_on():
    assert reached_by(Toy, *ONE) == {
        "admit / with nothing else going on",
        "first extend without a hit / with nothing else going on",
        "commit / with nothing else going on",
    }


def test_a_copy_while_a_block_is_shared_and_just_after_a_fork():
    reached = reached_by(SynchronousAdapter, *ONE, Fork(0, 1), Append(1, (8,)), Extend(1, 1))
    assert "fork within a block / on an open block" in reached
    assert {
        "copy / while a block is shared",
        "copy / just after a fork",
        "copy / on a shared open block",
        "copy / on a sequence that was forked",
    } <= reached


def test_a_match_of_what_was_evicted_a_moment_ago():
    block = 0
    for number in range(8):
        ops = (*ONE, Release(0), Evict((number,)), Admit(1, (5, 6, 7)), Match(1))
        if "evict / with nothing else going on" in reached_by(SynchronousAdapter, *ops):
            block = number
    reached = reached_by(SynchronousAdapter, *ONE, Release(0), Evict((block,)), Admit(1, (5, 6, 7)), Match(1))
    assert "match that misses / just after an eviction or a reset" in reached
    assert "match that hits / with nothing else going on" in reached_by(SynchronousAdapter, *ONE, Release(0), Admit(1, (5, 6, 7)), Match(1))


def test_steps_and_what_is_in_flight():
    ops = (Admit(0, (5, 6, 7)), Extend(0, 3), BeginStep(), Release(0, "cancel"), Admit(1, (9,)), Extend(1, 1), Release(1), EndStep())
    reached = reached_by(ProductionAdapter, *ops)
    assert {
        "begin of a step / while a pass waits for its launch",
        "release in flight / while a step is open",
        "admit / while a released sequence is in flight",
        "first extend without a hit / just after a release in flight",
        "release before the launch / while a pass waits for its launch",
        "end of a step whose sequence is gone / while a released sequence is in flight",
    } <= reached


def test_drafts_and_truncation():
    ops = (*ONE, Append(0, (8,)), Extend(0, 1, (9, 9)), Commit(0, 1), Truncate(0, 2), Append(0, (4,)))
    reached = reached_by(SynchronousAdapter, *ops)
    assert "commit that accepts some drafts / while drafts are out" in reached
    assert "truncate to a boundary / just after a rejection" in reached
    assert "append / on a sequence that was truncated" in reached
    assert "append / on a whole block" in reached


def test_what_a_cache_does_not_claim_is_not_possible():
    plain = {name(*pair) for pair in possible(Capabilities())}
    full = {name(*pair) for pair in possible(read_capabilities(ProductionAdapter))}
    assert plain < full
    assert not any("fork" in situation or "step" in situation or "prefix" in situation for situation in plain)
    assert len(full) < len(EVENTS) * len(CIRCUMSTANCES)


@pytest.mark.parametrize("target", [ProductionAdapter, HybridAdapter, SynchronousAdapter, Toy])
def test_what_is_reached_was_thought_possible(target):
    search, reached = search_of(target), nothing_reached()
    for seed in range(40):
        ran = run_program(search, f"possible:{seed}", Tally())
        reached = [one | two for one, two in zip(reached, ran.reached, strict=True)]
    assert set(names(reached)) <= {name(*pair) for pair in possible(search.capabilities)}


def test_words_and_masks_are_the_same():
    ran = run_program(search_of(ProductionAdapter), "words:1", Tally())
    assert masks(names(ran.reached)) == ran.reached
    assert masks(["no such event / at all"]) == nothing_reached()


def test_watching_changes_no_program():
    search = search_of(ProductionAdapter)
    for seed in range(5):
        assert run_program(search, f"w:{seed}", Tally()).program == run_program(search, f"w:{seed}", Tally(), watch=False).program


def test_what_is_kept_ends_where_it_reached_something_new():
    search = search_of(ProductionAdapter)
    ran = run_program(search, "f:1", Tally())
    beginning = run_kept(search, ran.beginning, Tally())
    assert beginning.reached == ran.reached
    assert 0 < len(ran.beginning.ops) <= len(ran.program.ops)
    again = run_program(search, "f:1", Tally(), known=ran.reached)
    assert again.frontier == 0


def reached_in(search, operations, *, guided):
    rng, tally, known, corpus = random.Random(3), Tally(), nothing_reached(), []
    while tally.operations < operations:
        ran = run_program(search, f"g:{tally.programs}", tally, parents=parents_of(rng, corpus) if guided else (), known=known)
        assert ran.found is None
        if any(mask & ~old for mask, old in zip(ran.reached, known, strict=True)):
            known = [mask | old for mask, old in zip(ran.reached, known, strict=True)]
            corpus.append(ran.beginning)
    return len(names(known))


@pytest.mark.nightly
def test_going_on_from_kept_programs_reaches_more():
    search = search_of(ProductionAdapter)
    assert reached_in(search, 40_000, guided=True) > reached_in(search, 40_000, guided=False)


def test_a_mutant_is_made_of_its_parents_and_is_the_same_again():
    search = search_of(SynchronousAdapter)
    parents = [run_program(search, f"p:{seed}", Tally()).program for seed in range(3)]
    made = [mutant(random.Random(seed), parents) for seed in range(60)]
    assert made == [mutant(random.Random(seed), parents) for seed in range(60)]
    assert {one is None for one in made} == {True, False}
    assert all(len(one.ops) <= MOST_MUTANT_OPS for one in made if one)
    assert mutant(random.Random(1), []) is None
    one, two = (run_program(search, "m:5", Tally(), parents=parents) for _ in range(2))
    assert one == two


def test_the_hypothesis_machine_tells_the_same_labels(monkeypatch):
    told, aimed = set(), []
    monkeypatch.setattr("kvproof.properties.machine_base.event", lambda label: told.add(label))
    monkeypatch.setattr("kvproof.properties.machine_base.target", lambda value, label: aimed.append((value, label)))
    run_state_machine_as_test(cache_machine(Toy), settings=settings(max_examples=15, stateful_step_count=15, database=None, deadline=None))
    labels = {label for label in told if " / " in label}
    assert "admit / with nothing else going on" in labels
    assert labels <= {name(*pair) for pair in possible(read_capabilities(Toy))}
    assert {label for _, label in aimed} == {"situations"}
    assert max(value for value, _ in aimed) > 5


# -- from bytes -----------------------------------------------------------------------------------------------------------------------------------------


def test_bytes_choose_a_program_and_the_same_bytes_the_same_one():
    search = search_of(SynchronousAdapter)
    programs = [run_bytes(search, bytes([byte] * length)).program for byte, length in ((0, 0), (0, 200), (7, 40), (255, 400))]
    assert programs == [run_bytes(search, bytes([byte] * length)).program for byte, length in ((0, 0), (0, 200), (7, 40), (255, 400))]
    assert len({program.ops for program in programs}) == 4


def test_choices_read_the_bytes_in_order_and_then_go_on():
    choices = ByteChoices(b"\x05\x01\x02")
    assert choices.getrandbits(8) == 5
    assert choices.getrandbits(16) == 0x0201
    assert 0 <= choices.random() < 1
    assert ByteChoices(b"\xff").getrandbits(3) == 7


def test_bytes_find_a_broken_law():
    found = [run_bytes(search_of(Leaky), random.Random(seed).randbytes(300)).found for seed in range(20)]
    assert any(one is not None and one.program.violation is not None for one in found)
