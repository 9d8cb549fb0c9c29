"""Campaigns: what is lost is done again and counted once; what kills or blocks a worker is found; what was found is kept, told apart, replayed and pruned."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase
from toys import DoubleFree, Faulty, Leaky, Toy
from toys_more import Deaf, Dying, Slow, Tiring

from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.campaigns import conductor as conductor_module
from kvproof.fuzz.campaigns import corpus as corpus_module
from kvproof.fuzz.campaigns import devices
from kvproof.fuzz.campaigns.apart import ends_its_process, seed_apart
from kvproof.fuzz.campaigns.conductor import Conductor, Plan
from kvproof.fuzz.campaigns.crew import LocalCrew
from kvproof.fuzz.campaigns.examples import FRONT, Relay
from kvproof.fuzz.campaigns.faults import BadStore, HarnessBroken
from kvproof.fuzz.campaigns.findings import distinct, finding_of, given_up, identity, shape
from kvproof.fuzz.campaigns.orders import Job, Lost, Order, Result
from kvproof.fuzz.campaigns.outcome import report_of, situations_of
from kvproof.fuzz.campaigns.prune import cover, prune
from kvproof.fuzz.campaigns.records import Record, collected, merge, totals
from kvproof.fuzz.campaigns.store import Store, directory, untouched
from kvproof.fuzz.campaigns.work import Worker
from kvproof.fuzz.leaps import LEAP_OPERATIONS, worth_a_leap
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.runs import SERVING_LENGTH, Search, Tally, is_long, run_kept, run_program
from kvproof.fuzz.simpler import Candidate
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.models.ops import Admit, Commit, Extend, Fork, Release
from kvproof.models.spec import Violation

TARGETS = {
    "toy": Toy,
    "leaky": Leaky,
    "dying": Dying,
    "deaf": Deaf,
    "faulty": Faulty,
    "double": DoubleFree,
    "sync": SynchronousAdapter,
    "tiring": Tiring,
    "slow": Slow,
}


def find(name: str) -> type:
    """The class that a toy's name means."""
    return BUGS["canary"].adapter if name == devices.CANARY else TARGETS[name]


def search_of(name: str, op_seconds: float = 10.0) -> Search:
    target = find(name)
    return Search(target, name, read_capabilities(target), 0, 1, float("inf"), op_seconds, None, frozenset())


def new_store(name="toy", database=None):
    return Store(database or InMemoryExampleDatabase(), target=name, campaign="c")


def run_campaign(name, *, store=None, workers=1, op_seconds=10.0, disturb=lambda conductor, crew: None, **plan):
    """A whole campaign on a toy. `disturb` is called at every tick."""
    crew = LocalCrew(Job(name, op_seconds), find, "c", workers=workers)
    try:
        how = {"campaign": "c", "seed": 1, "mode": "batch", "seconds": 600.0, "batch": 10} | plan
        conductor = Conductor(Plan(**how), crew, store or new_store(name))
        conductor.run(lambda _: disturb(conductor, crew))
    finally:
        crew.close()
    return conductor


# -- records ----------------------------------------------------------------------------------------------------------------------------------------

counts = st.dictionaries(st.sampled_from(["no-leak", "own-content"]), st.integers(0, 5), max_size=2)
records = st.builds(
    Record,
    campaign=st.sampled_from(["a", "b"]),
    batch=st.integers(0, 3),
    seed=st.just("1:0"),
    attempt=st.integers(1, 2),
    programs=st.integers(0, 3),
    exercised=counts,
    failures=counts,
    situations=st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
    lost=st.sampled_from(["", "died"]),
)
logs = st.lists(records, max_size=6).map(collected)


@given(logs, logs, logs)
def test_merging_is_associative_commutative_and_idempotent(one, two, three):
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, two) == merge(two, one)
    assert merge(one, one) == one
    assert merge(one, {}) == one


@given(st.lists(records, max_size=8), st.randoms())
def test_records_that_come_twice_and_in_any_order_are_the_same_records(some, random):
    again = some + some
    random.shuffle(again)
    assert collected(again) == collected(some)
    assert totals(collected(again)).programs == totals(collected(some)).programs


def test_merging_changes_neither_side_and_prefers_a_batch_that_was_done():
    lost, done = Record("a", 0, "s", lost="died"), Record("a", 0, "s", programs=3)
    one, two = collected([lost]), collected([done])
    assert merge(one, two) == two
    assert one == collected([lost])


# -- findings ---------------------------------------------------------------------------------------------------------------------------------------


def program(*ops, law="no-leak", **how):
    return Program(FORMAT, "toy", PoolConfig(4, 2), ops, violation=Violation(law, len(ops) - 1, "reason"), **how)


def test_a_shape_leaves_out_numbers_and_renames_sequences():
    assert shape((Admit(4, (1, 2)), Extend(4, 2), Fork(4, 9), Release(9, "cancel"))) == "admit 0, extend 0, fork 0 1, release 1 cancel"


def test_failures_are_told_apart_by_law_and_shape():
    one = finding_of(program(Admit(0, (1,)), Extend(0, 1)))
    same = finding_of(program(Admit(3, (7, 7)), Extend(3, 2)))
    longer = finding_of(program(Admit(0, (1,)), Extend(0, 1), Release(0)))
    other = finding_of(program(Admit(0, (1,)), Extend(0, 1), law="no-aliasing"))
    assert identity(one) == identity(same)
    assert len(distinct([one, same, longer, other])) == 3
    assert distinct([one, same]) == distinct([same, one])


def test_faults_are_told_apart_by_their_complaint():
    faults = [
        finding_of(Program(FORMAT, "toy", PoolConfig(4, 2), (), fault=text))
        for text in ("extend(0, 1) raised KeyError: 3.", "extend(5, 2) raised KeyError: 9.", "commit(0, 0) hung.")
    ]
    assert len(distinct(faults)) == 2


# -- a whole campaign ---------------------------------------------------------------------------------------------------------------------------------


def test_every_batch_is_done_once_and_counted_once():
    store = new_store()
    conductor = run_campaign("toy", store=store, workers=2, programs=95)
    assert sorted(batch for _, batch in conductor.records) == list(range(10))
    assert conductor.totals.programs == conductor.programs_here == 95
    assert store.records() == conductor.records
    assert store.open_orders() == []
    assert conductor.caught == 2
    assert (conductor.failures.found, conductor.incidents) == ({}, [])


def test_the_programs_of_a_campaign_without_a_corpus_are_those_of_its_seed():
    done = [run_campaign("toy", programs=30, batch=30).totals.exercised for _ in range(2)]
    assert done[0] == done[1]
    tally = Tally()
    for index in range(30):
        run_program(search_of("toy"), f"1:0:{index}", tally)
    assert tally.exercised == done[0]


def test_a_killed_worker_loses_nothing_and_nothing_is_counted_twice():
    killed = []

    def disturb(conductor, crew):
        if not killed and conductor.totals.batches >= 2 and conductor.out:
            worker = next(iter(conductor.out))
            killed.append(worker)
            os.kill(crew._places[worker].process.pid, signal.SIGKILL)

    conductor = run_campaign("toy", workers=2, programs=200, disturb=disturb)
    assert killed
    assert sorted(batch for _, batch in conductor.records) == list(range(20))
    assert conductor.totals.programs == 200
    assert len(conductor.incidents) == 1
    assert "died with signal 9" in conductor.incidents[0]
    assert conductor.failures.found == {}  # the same programs ran through with another worker


CAMPAIGN = """
import sys
from kvproof.fuzz.test_campaigns import new_store, run_campaign
from kvproof.fuzz.campaigns.store import directory
from pathlib import Path
conductor = run_campaign("toy", store=new_store(database=directory(Path(sys.argv[1]))), workers=2, programs=300)
"""


def test_a_campaign_that_is_killed_goes_on_where_it_stopped(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", CAMPAIGN, str(tmp_path)], env=environment)
    until = time.monotonic() + 60
    store = new_store(database=directory(tmp_path))
    while len(store.records()) < 3 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = store.records()
    assert 3 <= len(before) < 30
    assert store.open_orders()
    conductor = run_campaign("toy", store=new_store(database=directory(tmp_path)), workers=2, programs=300)
    assert sorted(batch for _, batch in conductor.records) == list(range(30))
    assert conductor.totals.programs == 300
    assert conductor.programs_here == 300 - totals(before).programs
    assert before.items() <= conductor.records.items()
    assert store.open_orders() == []


class Alone:
    """A crew of one worker in this process."""

    size = 1

    def __init__(self, name):
        self.worker = Worker(Job(name, 10.0), find, "c", lambda _: None)
        self.order = None

    def free(self):
        return [] if self.order else [0]

    def give(self, worker, order):
        self.order = order

    def wait(self, seconds):
        order, self.order = self.order, None
        return [(0, self.worker.do(order))] if order else []


class Fragile(InMemoryExampleDatabase):
    """Ends its process, so to speak, before one of the changes that are asked of it."""

    left = 10**9

    def save(self, key, value):
        self._change()
        super().save(key, value)

    def delete(self, key, value):
        self._change()
        super().delete(key, value)

    def _change(self):
        self.left -= 1
        if not self.left:
            raise Killed


class Killed(BaseException):
    pass


def test_a_campaign_that_is_killed_before_any_change_of_its_store_loses_and_doubles_nothing(monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.campaigns.work.SHRINK_SECONDS", 0.0)
    monkeypatch.setattr("kvproof.fuzz.campaigns.conductor.SHRINK_AGAIN_SHARE", 0.0)

    def run(database):
        conductor = Conductor(Plan("c", 1, "batch", 600.0, 2, 4), Alone("leaky"), new_store("leaky", database))
        conductor.run()
        return conductor

    whole = Fragile()
    asked = run(whole)
    assert asked.failures.found
    for change in range(1, 10**9 - whole.left + 1):
        database = Fragile()
        database.left = change
        with pytest.raises((Killed, BadStore)):
            run(database)
        database.left = 10**9
        again = run(database)
        assert {number for _, number in again.records if number >= 0} == {0, 1}, change
        assert sum(record.programs for (_, number), record in again.records.items() if number >= 0) == 4
        assert again.store.findings() == asked.store.findings(), change
        assert again.store.open_orders() == []


def test_a_late_answer_of_a_batch_that_was_done_again_counts_once():
    conductor = run_campaign("toy", programs=20)
    [record] = [record for record in conductor.records.values() if record.batch == 0]
    conductor._take(0, Order(0, "swarm", "1:0", 10), Result(msgspec.structs.replace(record, attempt=2)))
    assert conductor.totals.programs == 20


def test_a_broken_law_is_found_shrunk_and_kept():
    store = new_store("leaky")
    conductor = run_campaign("leaky", store=store, programs=60)
    report = report_of(conductor, "leaky", read_capabilities(Leaky), 1.0)
    assert (report.verdict, report.exit_status) == ("broken", 1)
    assert "no-leak" in {finding.law for finding in report.violations}
    assert all(finding.steps <= 8 for finding in report.violations)
    assert {identity(finding) for finding in store.findings()} == set(conductor.failures.found)
    assert conductor.totals.failures["no-leak"] >= 1


def test_a_campaign_stops_at_the_first_failure_if_asked_to():
    assert run_campaign("leaky", programs=3000, stop_at_first=True).totals.programs < 400


def test_a_waived_law_does_not_stop_a_campaign():
    laws = frozenset({"no-leak", "no-spurious-exhaustion"})
    conductor = run_campaign("leaky", programs=40, stop_at_first=True, waived=laws)
    assert conductor.totals.batches == 4
    assert report_of(conductor, "leaky", read_capabilities(Leaky), 1.0).verdict == "held"


def test_a_fault_of_the_adapter_is_an_error():
    report = report_of(run_campaign("faulty", programs=20), "faulty", read_capabilities(Faulty), 1.0)
    assert (report.verdict, report.exit_status) == ("error", 2)
    assert "must return kvproof.Grant" in report.error
    assert report.error_program is not None


def test_a_campaign_that_cannot_catch_the_canary_ends_without_a_verdict(monkeypatch):
    monkeypatch.setitem(BUGS, "canary", msgspec.structs.replace(BUGS["canary"], adapter=Toy))
    with pytest.raises(HarnessBroken, match="canary"):
        run_campaign("toy", programs=20)


def test_a_failure_of_kvproof_itself_ends_the_campaign(monkeypatch):
    monkeypatch.setattr(Worker, "do", lambda worker, order: 1 / 0)
    with pytest.raises(RuntimeError, match=r"(?s)kvproof failed in a worker.*ZeroDivisionError"):
        run_campaign("toy", programs=20)


LONG_BATCH = 5
"""The first batch of a campaign with seed 1 that has a long program among its first ten."""


def test_what_only_a_long_program_shows_is_found_and_its_seed_replays_it():
    [seed] = [seed for index in range(10) if is_long(seed := f"1:{LONG_BATCH}:{index}")]
    found = run_program(search_of("tiring"), seed, Tally()).found
    assert found is not None
    assert len(found.program.ops) > 100
    conductor = run_campaign("tiring", programs=10 * LONG_BATCH)
    assert conductor.failures.found == {}, "short programs do not show it"
    conductor = run_campaign("tiring", programs=10 * LONG_BATCH + 10)
    [finding] = conductor.failures.found.values()
    assert finding.law == found.program.violation.law
    assert conductor.records["c", LONG_BATCH].seed == f"1:{LONG_BATCH}"


def test_a_long_program_in_a_process_of_its_own_is_the_same():
    [seed] = [seed for index in range(10) if is_long(seed := f"1:{LONG_BATCH}:{index}")]
    ran = run_program(search_of("sync"), seed, Tally())
    assert len(ran.program.ops) > SERVING_LENGTH / 2
    assert seed_apart(search_of("sync"), seed).ran == ran


# -- what kills or blocks a worker ----------------------------------------------------------------------------------------------------------------------


def test_a_program_that_kills_its_process_is_found_and_shrunk(monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.campaigns.apart.SHRINK_SECONDS", 3.0)
    conductor = run_campaign("dying", programs=20)
    [finding] = conductor.failures.found.values()
    assert "died with exit code 7 in " in finding.reason
    assert finding.steps <= 6
    assert ends_its_process(finding.program)
    assert conductor.incidents
    assert sorted(batch for _, batch in conductor.records) == [0, 1]
    report = report_of(conductor, "dying", read_capabilities(Dying), 1.0)
    assert (report.verdict, report.error_program) == ("error", None)


def test_a_long_program_that_kills_its_process_is_shrunk_and_costs_no_worker(monkeypatch):
    """The shrinker of other failures runs a long program in its own process, to begin anew in its middle: that was the death of a worker each time."""
    monkeypatch.setattr("kvproof.fuzz.campaigns.apart.SHRINK_SECONDS", 5.0)
    short = [op for seq in range(LEAP_OPERATIONS // 2) for op in (Admit(seq, (seq,)), Release(seq))]
    deadly = Program(FORMAT, "dying", PoolConfig(4, 2), (*short, Admit(99, (0, 1, 2, 3)), Extend(99, 4), Commit(99)))
    assert worth_a_leap(Candidate(deadly.config, deadly.ops))
    crew = LocalCrew(Job("dying", 10.0), find, "c", workers=1)
    try:
        crew.give(0, Order(0, "replay", "1:0", 1, (deadly,), attempt=2))
        while not (answers := crew.wait(1.0)):
            pass
    finally:
        crew.close()
    [(_, answer)] = answers
    assert isinstance(answer, Result)
    [finding] = answer.findings
    assert "died with exit code 7 in commit" in finding.reason
    assert finding.steps == 3


class Cancelled(Toy):
    """Raises what no handler of exceptions catches."""

    def commit(self, seq, accepted):
        raise asyncio.CancelledError


def test_what_is_no_ordinary_exception_is_the_targets_and_not_kvproofs(monkeypatch):
    monkeypatch.setitem(TARGETS, "cancelled", Cancelled)
    assert any("died with exit code 1 in commit" in seed_apart(search_of("cancelled"), f"1:{index}").how for index in range(5))


def test_a_program_that_blocks_its_process_is_found(monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.campaigns.apart.SHRINK_SECONDS", 2.0)
    monkeypatch.setattr("kvproof.fuzz.campaigns.crew.SLACK_SECONDS", 0.5)
    conductor = run_campaign("deaf", programs=10, batch=10, op_seconds=0.2)
    [finding] = conductor.failures.found.values()
    assert "gave no sign of life" in finding.reason


def test_a_long_program_of_a_slow_cache_is_no_stall(monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.campaigns.crew.SLACK_SECONDS", -2.8)  # a patience of 0.8 s
    order = Order(0, "swarm", next(f"1:{number}" for number in range(999) if is_long(f"1:{number}:0")), 1)
    crew = LocalCrew(Job("slow", 0.2), find, "c", workers=1)
    begun = time.monotonic()
    try:
        crew.give(0, order)
        while not (answers := crew.wait(1.0)):
            pass
    finally:
        crew.close()
    assert time.monotonic() - begun > 2 * crew._patience(order)
    [(_, answer)] = answers
    assert isinstance(answer, Result)


class Stalled(Toy):
    """Stalls once, in its first commit."""

    stalled = False

    def commit(self, seq, accepted):
        super().commit(seq, accepted)
        if not Stalled.stalled:
            Stalled.stalled = True
            time.sleep(0.5)


def test_a_hang_that_does_not_come_again_is_told_as_one():
    worker = Worker(Job("stalled", 0.2), lambda _: Stalled, "c", lambda _: None)
    [finding] = worker.do(Order(0, "swarm", "1:0", 20)).findings
    assert finding.law == ""
    assert "but not when the same program was run again" in finding.reason


def test_a_program_in_a_process_of_its_own_gives_what_it_gives_here():
    for index in range(5):
        apart, tally = seed_apart(search_of("leaky"), f"2:{index}"), Tally()
        here = run_program(search_of("leaky"), f"2:{index}", tally)
        assert apart.how == ""
        assert apart.ran == here
        assert (apart.tally.programs, apart.tally.operations) == (1, tally.operations)


def test_the_program_that_is_about_to_run_is_on_disk(tmp_path):
    crew = LocalCrew(Job("dying", 10.0), find, "c", workers=1, notes=tmp_path)
    try:
        crew.give(0, Order(0, "swarm", "1:0", 400))
        answers = []
        while not answers:
            answers = crew.wait(1.0)
        [(_, lost)] = answers
        assert isinstance(lost, Lost)
        seed = lost.seed
    finally:
        crew.close()
    assert "died with exit code 7" in seed_apart(search_of("dying"), seed).how


def test_a_note_that_cannot_be_written_is_told_in_one_sentence(tmp_path):
    (tmp_path / "0").mkdir()
    crew = LocalCrew(Job("toy", 10.0), find, "c", workers=1, notes=tmp_path)
    try:
        conductor = Conductor(Plan("c", 1, "batch", 600.0), crew, new_store())
        with pytest.raises(BadStore, match=r"0 cannot be written \(Is a directory\); mend that and start the same command again\."):
            conductor.run()
    finally:
        crew.close()


class Fickle(LocalCrew):
    """A crew whose machines go away now and then: the first three orders are lost, and nobody is to blame."""

    losses = 3

    def wait(self, seconds):
        answers = super().wait(seconds)
        spoiled = []
        for worker, answer in answers:
            loses = self.losses and isinstance(answer, Result) and answer.record.batch >= 0
            self.losses -= bool(loses)
            spoiled.append((worker, Lost("A machine went away", blame=False) if loses else answer))
        return spoiled


def test_a_machine_that_goes_away_is_nobodys_fault():
    crew = Fickle(Job("toy", 10.0), find, "c", workers=2)
    try:
        conductor = Conductor(Plan("c", 1, "batch", 600.0, 10, 60), crew, new_store())
        conductor.run()
    finally:
        crew.close()
    assert conductor.totals.programs == 60
    assert {record.attempt for record in conductor.records.values()} == {1}
    assert (len(conductor.incidents), conductor.failures.found) == (3, {})


# -- what is kept ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched():
    """A store with the corpus of a short campaign on the production cache."""
    store = new_store("sync")
    run_campaign("sync", store=store, programs=150, batch=25)
    return store


def reached_by(programs):
    reached = [run_kept(search_of("sync"), program, Tally()).reached for program in programs]
    return [functools.reduce(int.__or__, masks) for masks in zip(*reached, strict=True)]


def test_what_reached_something_new_is_kept_and_reaches_it_again(searched):
    corpus = searched.corpus()
    assert len(corpus) > 10
    known = totals(searched.records()).situations
    assert len(known) > 200
    situations = situations_of(known, read_capabilities(SynchronousAdapter))
    assert set(situations.reached) <= known
    assert not set(situations.never) & known


def test_pruning_reaches_the_same_with_fewer_programs(searched):
    store = new_store("sync")
    for kept in searched.corpus():
        store.keep(kept)
    before = reached_by(store.corpus())
    pruned = prune(search_of("sync"), store)
    after = reached_by(store.corpus())
    assert after == before
    assert pruned.programs == len(store.corpus()) < pruned.programs_before == len(searched.corpus())


def test_a_cover_leaves_out_what_adds_nothing():
    one, two, both = (program(Admit(seq, (1,)), law=f"l{seq}") for seq in range(3))
    assert cover([(one, [1, 0]), (two, [0, 2]), (both, [1, 2])]) == {both}
    assert cover([]) == set()


def test_pruning_takes_out_failures_that_are_gone():
    store = new_store("toy")
    gone = finding_of(program(Admit(0, (1,)), Extend(0, 1)))
    store.keep_finding(gone)
    pruned = prune(search_of("toy"), store)
    assert (pruned.findings, pruned.findings_before, store.findings()) == (0, 1, [])


class Stillborn(Toy):
    """Takes its process with it at once."""

    def admit(self, seq, prompt, namespace):
        os._exit(7)


@pytest.mark.parametrize("seed", ["1:11", "1:0:40"], ids=["batch of the machine", "program without its parents"])
@pytest.mark.parametrize(("name", "fails"), [("stillborn", True), ("toy", False)])
def test_a_failure_that_has_no_program_is_run_again_as_a_batch(name, fails, seed, monkeypatch):
    """What was given up after three workers were lost says nothing but its seed; a replay called it held, and pruning never let go of it."""
    monkeypatch.setitem(TARGETS, "stillborn", Stillborn)
    store = new_store(name)
    store.keep_finding(
        given_up("A worker process died with exit code 7 in or soon after program 1:11; the target ends or blocks its process.", seed)
    )
    conductor = run_campaign(name, store=store, mode="replay")
    assert conductor.decided
    assert bool(conductor.failures.broken()) == fails
    assert prune(search_of(name), store).findings == len(store.findings()) == (len(conductor.failures.found) if fails else 0)


def test_a_gate_runs_what_was_kept_and_keeps_nothing():
    database = InMemoryExampleDatabase()
    kept = new_store("leaky", database)
    run_campaign("leaky", store=kept, programs=60)
    before = Counter(map(identity, kept.findings()))
    gate = Store(untouched(database), target="leaky", campaign="g")
    conductor = run_campaign("leaky", store=gate, mode="gate", stop_at_first=True)
    assert conductor.failures.broken()
    assert {key[1] for key in conductor.records} <= {-2}
    assert Counter(map(identity, kept.findings())) == before


def test_a_campaign_runs_the_failures_that_were_kept_again():
    store = new_store("leaky")
    first = run_campaign("leaky", store=store, programs=60)
    again = run_campaign("leaky", store=store, programs=60)
    assert set(again.failures.broken()) == set(first.failures.found)
    assert again.failures.new == []
    assert again.programs_here == len(first.failures.found)
    assert report_of(again, "leaky", read_capabilities(Leaky), 1.0).verdict == "broken"


def test_a_replay_runs_only_what_was_kept_and_tells_what_is_gone():
    store = new_store("leaky")
    run_campaign("leaky", store=store, programs=60)
    again = Store(untouched(store.database), target="leaky", campaign="r")
    conductor = run_campaign("leaky", store=again, mode="replay")
    assert conductor.totals.programs == len(store.findings()) + len(store.corpus())
    assert set(conductor.failures.broken()) == set(conductor.failures.found)
    TARGETS["mended"] = Toy
    mended = Store(InMemoryExampleDatabase(), target="mended", campaign="r")
    for finding in store.findings():
        mended.keep_finding(finding)
    conductor = run_campaign("mended", store=mended, mode="replay")
    assert conductor.failures.found
    assert conductor.failures.broken() == {}


def test_kept_failures_are_run_again_even_if_there_is_no_time_left():
    store = new_store("leaky")
    run_campaign("leaky", store=store, programs=60)
    again = run_campaign("leaky", store=store, seconds=0.0)
    assert again.decided
    assert set(again.failures.broken()) == set(again.failures.found)


def test_nothing_is_decided_before_kept_failures_were_run_again():
    store = new_store("leaky")
    run_campaign("leaky", store=store, programs=60)
    conductor = Conductor(Plan("c", 1, "batch", 600.0, 10, 60), Alone("leaky"), store)
    assert not conductor.decided
    conductor.run()
    assert conductor.decided


def test_a_record_that_cannot_be_read_any_more_is_made_again(tmp_path):
    store = new_store(database=directory(tmp_path))
    run_campaign("toy", store=store, programs=50)
    whole = store.records()
    [file] = [path for path in tmp_path.glob("*/*") if b'"batch":2,' in path.read_bytes()]
    file.write_bytes(file.read_bytes()[:40])
    assert len(store.records()) == 4
    conductor = run_campaign("toy", store=store, programs=50)
    assert (conductor.programs_here, conductor.totals.programs) == (10, 50)
    assert {key: record.programs for key, record in store.records().items()} == {key: record.programs for key, record in whole.items()}


def test_what_nobody_of_us_has_put_into_a_store_is_left_out(tmp_path):
    store = new_store(database=directory(tmp_path))
    store.keep_record(Record("c", 0, "1:0"))
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    (folder / "folder").mkdir()
    (folder / "noise").write_bytes(b"\xff\x00" * 99)
    (folder / "empty").touch()
    assert list(store.records()) == [("c", 0)]


def test_half_a_value_in_the_store_is_left_out():
    store = new_store()
    store.keep(program(Admit(0, (1,))))
    store.database.save(store._of_target("corpus"), b'{"kvproof":1,"tar')
    assert len(store.corpus()) == 1


# -- Hypothesis examples ----------------------------------------------------------------------------------------------------------------------------


def machine_order(number, examples=()):
    return Order(number, "machine", f"1:{number}", 1, examples=tuple(examples))


def test_a_batch_of_the_machine_brings_its_best_examples_and_the_next_begins_with_them(monkeypatch):
    worker = Worker(Job("toy", 10.0), find, "c", lambda _: None)
    first = worker.do(machine_order(0))
    assert first.examples
    assert first.record.programs > 1

    fetched = []
    monkeypatch.setattr(Relay, "fetch", lambda self, key: fetched.append(key) or (sorted(first.examples) if key.endswith(FRONT) else []))
    second = worker.do(machine_order(1, first.examples))
    assert any(key.endswith(FRONT) for key in fetched)
    assert second.record.programs > 1


def test_a_campaign_keeps_the_examples_of_hypothesis_in_its_store_and_goes_on_from_them(monkeypatch):
    monkeypatch.setattr(conductor_module, "MACHINE_EVERY", 1)
    monkeypatch.setattr(corpus_module, "MOST_EXAMPLES", 5)
    store = new_store()
    conductor = run_campaign("toy", store=store, seconds=1.0)
    assert 0 < len(store.examples()) <= 5
    assert set(store.examples()) == conductor.corpus.examples

    given = []
    again = run_campaign("toy", store=store, seconds=0.5, disturb=lambda conductor, crew: given.extend(conductor.out.values()))
    assert any(order.kind == "machine" and order.examples for order in given)
    assert again.records.keys() >= conductor.records.keys()


def test_what_hypothesis_drops_leaves_the_store():
    relay = Relay([b"a", b"b"])
    relay.save(b"key.pareto", b"c")
    relay.delete(b"key.pareto", b"a")
    relay.save(b"key", b"of this run alone")
    assert sorted(relay.fetch(b"other key.pareto")) == [b"b", b"c"]
    assert (relay.kept, relay.dropped) == ((b"c",), (b"a",))


# -- the store --------------------------------------------------------------------------------------------------------------------------------------


def test_a_value_that_was_cut_off_is_written_again(tmp_path):
    database = directory(tmp_path)
    store = new_store(database=database)
    record = Record("c", 0, "1:0", programs=3)
    store.keep_record(record)
    [file] = [path for path in tmp_path.glob("*/*") if path.read_bytes().startswith(b'{"campaign"')]
    file.write_bytes(file.read_bytes()[:7])
    assert new_store(database=directory(tmp_path)).records() == {}
    new_store(database=directory(tmp_path)).keep_record(record)
    assert new_store(database=directory(tmp_path)).records() == {("c", 0): record}


def test_the_directory_of_a_store_is_one_that_hypothesis_reads_and_writes(tmp_path):
    ours, theirs = directory(tmp_path), DirectoryBasedExampleDatabase(tmp_path)
    ours.save(b"key", b"one")
    theirs.save(b"key", b"two")
    ours.save(b"key", b"two")
    assert sorted(theirs.fetch(b"key")) == sorted(ours.fetch(b"key")) == [b"one", b"two"]
    ours.move(b"key", b"other", b"one")
    ours.delete(b"key", b"two")
    ours.delete(b"key", b"never kept")
    assert (list(ours.fetch(b"key")), list(theirs.fetch(b"key")), list(theirs.fetch(b"other"))) == ([], [], [b"one"])


def test_a_full_disk_is_told_and_leaves_no_half_value(tmp_path, monkeypatch):
    store = new_store(database=directory(tmp_path))

    def full(self, place):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BadStore, match="No space left on device"):
        store.keep_record(Record("c", 0, "1:0"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
