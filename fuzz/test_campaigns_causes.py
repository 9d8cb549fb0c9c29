"""Failures by cause: what goes together, what stays apart, what is a cause of its own again once another one is mended, and the files of all that."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Toy

from kvproof.fuzz.campaigns import conductor as conductor_module
from kvproof.fuzz.campaigns import work
from kvproof.fuzz.campaigns.causes import cause_name, causes
from kvproof.fuzz.campaigns.findings import finding_of, identity, takes
from kvproof.fuzz.campaigns.folder import arrange, file_name
from kvproof.fuzz.campaigns.orders import Job, Order
from kvproof.fuzz.campaigns.outcome import report_of
from kvproof.fuzz.campaigns.prune import prune
from kvproof.fuzz.campaigns.work import Worker
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program, read_program
from kvproof.fuzz.test_campaigns import TARGETS, new_store, program, run_campaign, search_of
from kvproof.impl.checker import read_capabilities
from kvproof.models.ops import Admit, Commit, Evict, Extend, Fork, Match, Namespace, Release, SwapOut


class TwoLeaks(Toy):
    """Two faults behind one law: a cancelled sequence loses its last block, a preempted one its first."""

    def release(self, seq, reason):
        if reason == "cancel":
            self.rows[seq] = self.rows[seq][:-1]
        if reason == "preempt":
            self.rows[seq] = self.rows[seq][1:]
        super().release(seq, reason)


class SecondLeak(Toy):
    """The second of two faults, the first of which is mended: a sequence that was preempted once loses its last block when it is cancelled."""

    def release(self, seq, reason):
        if reason == "preempt":
            self.preempted = seq
        elif reason == "cancel" and getattr(self, "preempted", None) == seq:
            self.rows[seq] = self.rows[seq][:-1]
        super().release(seq, reason)


TARGETS |= {"two": TwoLeaks, "second": SecondLeak}

BEGUN = (Admit(0, (1, 1)), Extend(0, 2), Commit(0))


def found(*ops, law="no-aliasing"):
    return finding_of(program(*BEGUN, *ops, law=law))


PARENT_FIRST = found(Fork(0, 1), Release(0), Extend(1, 1))
CHILD_FIRST = found(Fork(0, 1), Release(1), Extend(0, 1))
ANOTHER_ASKS = found(Fork(0, 1), Release(1), Admit(2, (1,)), Extend(2, 1))
EVICTED_TOO = found(Fork(0, 1), Release(1), Evict((0,)), Extend(0, 1))
SWAPPED = found(Fork(0, 1), SwapOut(1), Extend(0, 1))
AT_RELEASE = found(Fork(0, 1), Release(1), Release(0))
TENANT = finding_of(program(Admit(0, (1,), Namespace(tenant="a")), Extend(0, 1), Match(0), law="hit-same-namespace"))
MODEL = finding_of(program(Admit(0, (1,), Namespace(model="a")), Extend(0, 1), Match(0), law="hit-same-namespace"))
ADOPTED = finding_of(program(Admit(0, (1,), Namespace(tenant="a")), Extend(0, 1), Extend(0, 1), law="hit-same-namespace"))
FAULTS = [
    finding_of(Program(FORMAT, "toy", PoolConfig(4, 2), BEGUN, fault=text)) for text in ("extend(0, 1) raised E.", "commit(0, 0) hung.")
]
EVERYTHING = [PARENT_FIRST, CHILD_FIRST, ANOTHER_ASKS, EVICTED_TOO, SWAPPED, AT_RELEASE, TENANT, MODEL, ADOPTED, *FAULTS]


# -- what goes together -----------------------------------------------------------------------------------------------------------------------------


def test_what_takes_the_same_operations_goes_together_whoever_does_them():
    [cause] = causes([ANOTHER_ASKS, EVICTED_TOO, CHILD_FIRST, PARENT_FIRST])
    assert cause.name == "no-aliasing at extend: fork, release"
    assert cause.first in (CHILD_FIRST, PARENT_FIRST)
    assert set(cause.variants) == {CHILD_FIRST, PARENT_FIRST, ANOTHER_ASKS, EVICTED_TOO} - {cause.first}


def test_a_longer_program_that_takes_less_shows_that_the_rest_is_not_needed_and_the_shortest_is_shown():
    longer = found(Fork(0, 1), Admit(2, (1,)), Extend(0, 1), Commit(0), Extend(2, 1))
    [cause] = causes([CHILD_FIRST, SWAPPED, longer])
    assert cause.first in (CHILD_FIRST, SWAPPED)
    assert longer in cause.variants
    assert len(causes([CHILD_FIRST, SWAPPED])) == 2


@pytest.mark.parametrize("other", [SWAPPED, AT_RELEASE, msgspec.structs.replace(CHILD_FIRST, law="own-content")])
def test_another_operation_another_end_or_another_law_stays_apart(other):
    assert len(causes([CHILD_FIRST, other])) == 2


def test_a_wrong_hit_goes_together_with_its_promise_and_the_fields_of_namespaces_stay_apart():
    sizes = {cause.name: len(cause.members) for cause in causes([TENANT, MODEL, ADOPTED])}
    assert sizes == {"hit-same-namespace at extend: tenant": 2, "hit-same-namespace at extend: model": 1}
    assert identity(TENANT) != identity(MODEL)


def test_faults_are_told_apart_by_their_complaint():
    assert [cause.variants for cause in causes(FAULTS)] == [(), ()]


def test_cases_of_kernels_go_together_by_what_is_done():
    cases = [msgspec.structs.replace(FAULTS[0], law="own-rows", program=text) for text in ("Case('attend', n=1)", "Case('attend', n=2)")]
    assert len(causes(cases)) == 1


def test_a_variant_stands_for_itself_once_the_shorter_one_is_gone():
    assert causes([EVICTED_TOO])[0].name == "no-aliasing at extend: evict, fork, release"
    assert takes(EVICTED_TOO.program.ops) > takes(CHILD_FIRST.program.ops)


@given(st.permutations(EVERYTHING), st.integers(0, len(EVERYTHING)))
def test_causes_depend_on_the_set_of_findings_alone(findings, cut):
    one, two = findings[:cut], findings[cut:]
    assert causes(findings) == causes(EVERYTHING)
    assert sorted(map(identity, EVERYTHING)) == sorted(identity(member) for cause in causes(findings) for member in cause.members)
    merged = [member for part in (one, two) for cause in causes(part) for member in cause.members]
    assert causes(merged) == causes(EVERYTHING), "what two campaigns have grouped gives the same groups together"


def test_the_name_of_a_cause_is_that_of_its_shape():
    again = finding_of(program(Admit(5, (9, 9)), Extend(5, 2), Commit(5), Fork(5, 7), Release(7), Extend(5, 1), law="no-aliasing"))
    assert (identity(again), cause_name(again)) == (identity(CHILD_FIRST), cause_name(CHILD_FIRST))


# -- in a campaign ----------------------------------------------------------------------------------------------------------------------------------


def test_two_faults_behind_one_law_are_both_told():
    conductor = run_campaign("two", programs=100)
    report = report_of(conductor, "two", read_capabilities(TwoLeaks), 1.0)
    told = {finding.program.ops[-1].reason for finding in report.violations if finding.law == "pool-conserved"}
    assert told == {"cancel", "preempt"}
    assert len(report.violations) + len(report.variants) == len(conductor.failures.broken())


def test_a_fault_that_went_with_another_one_stands_for_itself_once_that_is_mended():
    first = finding_of(program(Admit(0, (1,)), Extend(0, 1), Release(0, "cancel"), law="no-leak"))
    second = finding_of(program(Admit(0, (1,)), Extend(0, 1), Release(0, "preempt"), Extend(0, 1), Release(0, "cancel"), law="no-leak"))
    assert [(cause.first, cause.variants) for cause in causes([first, second])] == [(first, (second,))]
    store = new_store("second")
    for finding in (first, second):
        store.keep_finding(finding)
    [cause] = run_campaign("second", store=store, mode="replay").failures.causes()
    assert (identity(cause.first), cause.variants) == (identity(second), ())


def test_a_further_shape_of_a_known_cause_is_no_news():
    store = new_store("leaky")
    first = run_campaign("leaky", store=store, programs=60)
    assert first.failures.fresh_causes() == first.failures.causes()
    again = run_campaign("leaky", store=store, programs=60)
    known = again.failures.causes()[0].first
    ops = known.program.ops
    again.failures.keep(finding_of(msgspec.structs.replace(known.program, ops=(Admit(9, (1,)), *ops))))
    assert len(again.failures.new) == 1
    assert again.failures.fresh_causes() == []
    again.failures.keep(finding_of(msgspec.structs.replace(known.program, ops=(Admit(9, (1,), Namespace("t")), *ops[:-1], Evict((0,))))))
    assert [cause.first.program.ops[-1] for cause in again.failures.fresh_causes()] == [Evict((0,))]


@pytest.mark.parametrize(("share", "shrunk"), [(0.0, 1), (1e9, 3)])
def test_a_worker_that_has_shrunk_a_few_goes_on_while_there_is_time(share, shrunk, monkeypatch):
    monkeypatch.setattr(work, "SHRINKS_PER_LAW", 1)
    monkeypatch.setattr(work, "SHRINK_SHARE", share)
    worker = Worker(Job("two", 10.0), lambda _: TwoLeaks, "c", lambda _: None)
    orders = [Order(number, "swarm", f"1:{number}", 10) for number in range(3)]
    found = [finding for order in orders for finding in worker.do(order).findings if finding.law == "pool-conserved"]
    assert len(found) == shrunk


def test_what_stands_for_a_cause_is_made_shorter_and_takes_the_place_of_the_longer_one(monkeypatch):
    monkeypatch.setattr(work, "SHRINK_SECONDS", 0.0)
    monkeypatch.setattr(conductor_module, "SHRINK_AGAIN_SHARE", 0.0)
    store = new_store("leaky")
    long = run_campaign("leaky", store=store, programs=40)
    monkeypatch.setattr(work, "SHRINKS_PER_LAW", 0)
    monkeypatch.setattr(work, "SHRINK_SHARE", 0.0)
    monkeypatch.setattr(conductor_module, "SHRINK_AGAIN_SHARE", 1e9)
    conductor = run_campaign("leaky", store=store, programs=80)
    assert max(finding.steps for finding in long.failures.found.values()) > 10
    assert all(cause.first.steps <= 8 for cause in conductor.failures.causes())
    assert {identity(finding) for finding in store.findings()} == set(conductor.failures.found)
    assert conductor.failures.fresh_causes() == []
    assert set(conductor.failures.surpassed) == set(long.failures.found.values()) - set(conductor.failures.found.values())
    assert sorted(batch for _, batch in conductor.records if batch >= 0) == list(range(8))


def test_a_shorter_program_that_breaks_another_law_takes_nobodys_place():
    conductor = run_campaign("leaky", programs=60)
    known = conductor.failures.causes()[0].first
    violation = msgspec.structs.replace(known.program.violation, law="own-content")
    other = finding_of(msgspec.structs.replace(known.program, ops=known.program.ops[1:], violation=violation))
    conductor.failures.replace(known, other)
    assert {identity(known), identity(other)} <= set(conductor.failures.found)


# -- files ------------------------------------------------------------------------------------------------------------------------------------------


def names(folder):
    return {path.name for path in folder.glob("*.json")}


def test_a_file_for_each_cause_and_its_variants_beneath(tmp_path):
    arrange(tmp_path, causes([EVICTED_TOO, SWAPPED]))
    assert names(tmp_path) == {file_name(EVICTED_TOO), file_name(SWAPPED)}
    (tmp_path / "mine.json").write_text("{}")

    arrange(tmp_path, causes([EVICTED_TOO, SWAPPED, CHILD_FIRST]))
    assert names(tmp_path) == {file_name(CHILD_FIRST), file_name(SWAPPED), "mine.json"}
    assert names(tmp_path / "variants") == {file_name(EVICTED_TOO)}
    assert read_program(tmp_path / "variants" / file_name(EVICTED_TOO)).ops == EVICTED_TOO.program.ops

    arrange(tmp_path, causes([EVICTED_TOO, SWAPPED]), [CHILD_FIRST])
    assert names(tmp_path) == {file_name(EVICTED_TOO), file_name(SWAPPED), "mine.json"}
    assert names(tmp_path / "variants") == set()


def test_pruning_runs_what_ends_its_process_in_a_process_of_its_own():
    TARGETS["mended death"] = Toy
    ops = (Admit(0, (1, 1, 1, 1)), Extend(0, 4), Commit(0))
    death = finding_of(Program(FORMAT, "dying", PoolConfig(4, 2), ops, fault="The process died with exit code 7 in commit(0, 0)."))
    for name, left in (("dying", 1), ("mended death", 0)):
        store = new_store(name)
        store.keep_finding(death)
        assert prune(search_of(name), store).findings == left
        assert len(store.findings()) == left
