"""The Hypothesis machine: it passes a correct cache, finds wrong ones, and says what it found so that it can be run again."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from toys import DoubleFree, Faulty, Hanging, Leaky, Refusing, Silent, Toy

from kvproof.impl.checker import AdapterFault
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import Admit, Extend, Namespace, Release
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep, run
from kvproof.properties.machine import CacheMachine, cache_machine
from kvproof.properties.machine_runs import run_machine
from kvproof.properties.strategies import Pool

QUICK = settings(
    max_examples=15, stateful_step_count=20, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


class OfToy(CacheMachine):
    adapter = Toy


TestToy = OfToy.TestCase
TestToy.settings = QUICK

TestRefusing = cache_machine(Refusing).TestCase
TestRefusing.settings = QUICK


@pytest.mark.parametrize("adapter", [Leaky, DoubleFree])
def test_a_broken_law_is_told_with_its_program(adapter):
    with pytest.raises(LawBroken) as caught:
        run_state_machine_as_test(cache_machine(adapter), settings=settings(QUICK, max_examples=100, phases=[Phase.generate]))
    broken = caught.value
    text = str(broken)
    assert text.startswith(
        f"{broken.violation.law} is broken at operation {broken.violation.step}: {BY_NAME[broken.violation.law].sentence}"
    )
    assert broken.violation.reason in text
    assert f"from toys import {adapter.__name__}" in text


def test_the_program_in_the_message_can_be_pasted():
    with pytest.raises(LawBroken) as caught:
        run_state_machine_as_test(cache_machine(DoubleFree), settings=settings(QUICK, max_examples=100, phases=[Phase.generate]))
    source = str(caught.value).split("\n\n", 2)[2]
    with pytest.raises(AssertionError, match=caught.value.violation.law):
        exec(source, {})


def test_an_adapter_at_fault_is_not_a_broken_law():
    with pytest.raises(AdapterFault, match=r"extend\(.*\) returned NoneType None; it must return kvproof.Grant"):
        run_state_machine_as_test(cache_machine(Faulty), settings=settings(QUICK, phases=[Phase.generate]))


def test_a_machine_without_an_adapter_says_so():
    class Nobody(CacheMachine):
        pass

    with pytest.raises(TypeError, match="Nobody has no adapter; set the class attribute `adapter` to your CacheAdapter subclass"):
        Nobody()


def test_a_third_party_adds_rules_and_narrows_strategies():
    pools, slept = set(), []

    class Narrow(CacheMachine):
        adapter = Toy

        def pools(self):
            return st.just(Pool(5, 3))

        @rule(seq=CacheMachine.live)
        def sleep(self, seq):
            pools.add((self.lockstep.num_blocks, self.lockstep.block_size))
            slept.append(seq)

    run_state_machine_as_test(Narrow, settings=QUICK)
    assert pools == {(5, 3)}
    assert slept


# -- run_machine --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [Leaky, DoubleFree])
def test_a_find_can_be_run_again(adapter):
    programs, operations, _, found = run_machine(adapter, seed=0, examples=200, steps=40)
    assert found is not None
    assert found.violation is not None
    again = run(found.ops, adapter, num_blocks=found.num_blocks, block_size=found.block_size)
    assert again.violation == found.violation
    assert programs >= 1
    assert operations >= len(found.ops)


def test_a_correct_cache_is_exercised_and_drained():
    programs, operations, exercised, found = run_machine(Silent, seed=1, examples=30, steps=30)
    assert found is None
    assert programs >= 30
    assert operations > 10 * programs
    assert exercised["no-leak"] > 0
    assert exercised["own-content"] > 0


def test_the_same_seed_runs_the_same_programs():
    assert run_machine(Toy, seed=3, examples=10, steps=20) == run_machine(Toy, seed=3, examples=10, steps=20)
    assert run_machine(Toy, seed=3, examples=10, steps=20) != run_machine(Toy, seed=4, examples=10, steps=20)


def test_nothing_starts_after_the_deadline():
    programs, operations, _, found = run_machine(Toy, seed=0, examples=1000, steps=50, deadline=time.monotonic() - 1)
    assert (operations, found) == (0, None)
    assert programs <= 1


def test_a_fault_is_found_with_its_program():
    *_, found = run_machine(Faulty, seed=0, examples=50, steps=30)
    assert found is not None
    assert "it must return kvproof.Grant" in found.fault
    assert run(found.ops, Faulty, num_blocks=found.num_blocks, block_size=found.block_size).fault == found.fault


def test_the_time_that_hypothesis_takes_between_operations_is_no_hang(monkeypatch):
    """On a busy machine it may be longer than an operation may take, and a program without operations was said to hang."""
    note = CacheMachine._note

    def slow(machine, op, ran):
        time.sleep(0.2)
        return note(machine, op, ran)

    monkeypatch.setattr(CacheMachine, "_note", slow)
    *_, found = run_machine(Toy, seed=0, examples=1, steps=5, op_seconds=0.1)
    assert found is None


def test_a_hang_is_found_with_its_program():
    *_, found = run_machine(Hanging, seed=0, examples=50, steps=30, op_seconds=0.3)
    assert found is not None
    assert found.hang == "one operation ran for more than 0.3 s"
    assert type(found.ops[-1]).__name__ == "Commit"


def test_claims_that_are_wrong_are_a_fault():
    class Claimless(Toy):
        @classmethod
        def capabilities(cls):
            return {}

    assert run_machine(Claimless, seed=0, examples=1, steps=1)[3].fault.endswith("it must return kvproof.Capabilities.")


# -- drain --------------------------------------------------------------------------------------------------------------------------------


def test_a_drained_cache_has_given_everything_to_the_last_sequence():
    lockstep = Lockstep(Toy, num_blocks=6, block_size=2)
    for op in (Admit(0, (1, 2, 3)), Extend(0, 3), Admit(1, (1, 2)), Extend(1, 2), Release(1, "preempt")):
        lockstep.do(op)
    for op in drain(random.Random(0), lockstep.spec, 7):
        assert lockstep.do(op)
    assert list(lockstep.spec.live) == [7]
    assert lockstep.spec.live[7].namespace == Namespace()
    assert len(lockstep.last_seen.tables[7][0]) == 6


def test_a_leak_shows_when_the_cache_is_drained():
    lockstep = Lockstep(Leaky, num_blocks=6, block_size=2)
    for op in (Admit(0, (1, 2, 3)), Extend(0, 3), Release(0, "cancel")):
        lockstep.do(op)
    *first, last = drain(random.Random(0), lockstep.spec, 7)
    assert all(map(lockstep.do, first))
    with pytest.raises(LawBroken, match="no-leak"):
        lockstep.do(last)
