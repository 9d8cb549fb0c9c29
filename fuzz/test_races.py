"""Threads against one cache: which histories are good, that sound caches have none that is not, and that seeded races are found."""

from __future__ import annotations

import itertools
import random
import sys
import threading

import click.core
import msgspec
import pytest

from kvproof.fuzz.bugs.books import NullBlockAdapter
from kvproof.fuzz.races import baton, explore
from kvproof.fuzz.races.bugs import RACES
from kvproof.fuzz.races.drawn import random_scenario
from kvproof.fuzz.races.history import Run
from kvproof.fuzz.races.linear import SetupBroken, linearise
from kvproof.fuzz.races.scenarios import Scenario, catalogue
from kvproof.fuzz.races.story import columns, story
from kvproof.impl.production import cache as production_cache
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Match, Release, Reset
from kvproof.models.outcomes import OutOfBlocksSeen, Raised

CAPABILITIES = ProductionAdapter.capabilities()
SCENARIOS = {scenario.name: scenario for scenario in catalogue(CAPABILITIES, any_order=True)}

FINDING_SECONDS = 30.0
"""More than any seeded race takes: the slowest needs some 700 schedules of a few milliseconds."""


@pytest.fixture
def scheduled(monkeypatch):
    """The production cache takes the scheduler's locks."""
    monkeypatch.setattr("kvproof.impl.production.cache.RLock", baton.ReentrantLock)


def history_of(scenario, target=ProductionAdapter):
    """The threads one after another."""
    run = Run(scenario, target)
    for thread in range(len(scenario.threads)):
        run.thread(thread)
    return run.finish()


def timed(history, *intervals):
    """The same history with another clock: (began, ended) for the calls of all threads in turn."""
    times = iter(intervals)
    threads = []
    for calls in history.threads:
        moved = []
        for call in calls:
            began, ended = next(times)
            moved.append(msgspec.structs.replace(call, began=began, ended=ended))
        threads.append(moved)
    return msgspec.structs.replace(history, threads=threads)


def answering(history, thread, call, **changes):
    """The same history with another answer."""
    threads = [list(calls) for calls in history.threads]
    threads[thread][call] = msgspec.structs.replace(threads[thread][call], **changes)
    return msgspec.structs.replace(history, threads=threads)


# -- the checker of histories ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_threads_one_after_another_are_explained(name):
    verdict = linearise(history_of(SCENARIOS[name]), CAPABILITIES)
    assert verdict.good, verdict.reasons
    assert len(verdict.order) == len({id(call) for call in verdict.order})


RELEASED = Scenario("", "", (Admit(0, (0, 1, 0)), Admit(1, (1, 1, 1)), Extend(0, 3)), ((Release(0),), (Extend(1, 3),)), num_blocks=2)


def test_running_out_of_blocks_is_explained_only_before_they_are_released():
    history = answering(history_of(RELEASED), 1, 0, answer=OutOfBlocksSeen(), tables=((),))
    drained = msgspec.structs.replace(history_of(msgspec.structs.replace(RELEASED, threads=((Release(0),), ()))))
    history = msgspec.structs.replace(history, drain=drained.drain)
    assert linearise(timed(history, (10, 30), (20, 40)), CAPABILITIES).good
    late = linearise(timed(history, (10, 30), (31, 40)), CAPABILITIES)
    assert not late.good
    assert late.reasons[0].law in ("no-spurious-exhaustion", "no-leak")


def both_out_of_blocks():
    """Two extends that both found no room in an empty pool."""
    scenario = SCENARIOS["last-blocks"]
    nobody = history_of(msgspec.structs.replace(scenario, threads=((), ())))
    history = msgspec.structs.replace(history_of(scenario), drain=nobody.drain)
    for thread in (0, 1):
        history = answering(history, thread, 0, answer=OutOfBlocksSeen(), tables=((),))
    return history


def test_two_extends_at_once_may_take_the_last_blocks_from_each_other():
    at_once = timed(both_out_of_blocks(), (10, 30), (20, 40))
    modest = msgspec.structs.replace(CAPABILITIES, policy=CAPABILITIES.policy - {"exact"})
    assert linearise(at_once, modest).good
    exact = linearise(at_once, msgspec.structs.replace(modest, policy=modest.policy | {"exact"}))
    assert exact.reasons[0].law == "no-spurious-exhaustion"


def test_extends_one_after_another_may_not_both_run_out_of_blocks():
    modest = msgspec.structs.replace(CAPABILITIES, policy=CAPABILITIES.policy - {"exact"})
    verdict = linearise(timed(both_out_of_blocks(), (10, 30), (31, 40)), modest)
    assert verdict.reasons[0].law == "no-spurious-exhaustion"


def test_two_threads_that_are_given_the_same_blocks_are_not_explained():
    scenario = SCENARIOS["two-first-extends"]
    history = history_of(scenario)
    same = answering(history, 1, 0, tables=history.threads[0][0].tables)
    verdict = linearise(timed(same, (10, 30), (20, 40)), CAPABILITIES)
    assert not verdict.good
    assert verdict.reasons[0].law == "no-aliasing"


def test_an_error_is_explained_only_where_the_call_came_too_late():
    scenario = SCENARIOS["abort-against-completion"]
    history = history_of(scenario)
    assert isinstance(history.threads[1][0].op, Release)
    refused = answering(history, 0, 1, answer=Raised("UnknownSequence"), tables=None)
    assert linearise(timed(refused, (10, 20), (30, 60), (25, 40)), CAPABILITIES).good
    early = linearise(timed(refused, (10, 20), (30, 60), (61, 70)), CAPABILITIES)
    assert not early.good
    assert "could have been done" in early.reasons[0].reason


def test_two_steps_of_one_id_are_not_explained():
    scenario = SCENARIOS["two-launches"]
    history = history_of(scenario)
    same = answering(history, 1, 1, answer=history.threads[0][1].answer)
    verdict = linearise(timed(same, (10, 11), (20, 30), (12, 13), (21, 31)), CAPABILITIES)
    assert not verdict.good
    assert "which is the id of a step that is open" in verdict.reasons[0].reason


def test_a_table_that_changed_behind_its_threads_back_is_not_explained():
    history = history_of(SCENARIOS["two-first-extends"])
    first = history.drain[0]
    seen = msgspec.structs.replace(first.seen, tables={**first.seen.tables, 0: first.seen.tables[1]})
    moved = msgspec.structs.replace(history, drain=[msgspec.structs.replace(first, seen=seen), *history.drain[1:]])
    verdict = linearise(moved, CAPABILITIES)
    assert not verdict.good
    assert "sequence 0 was left with the tables" in verdict.reasons[0].reason


UNSEEN = Scenario("", "", (Admit(0, (0, 1, 0)),), ((Extend(0, 3),), (Release(0),)), num_blocks=2)


def test_a_history_whose_tables_nobody_saw_is_judged_by_its_end():
    history = answering(history_of(UNSEEN), 0, 0, tables=None)
    assert linearise(history, CAPABILITIES).by_its_end
    assert linearise(history, CAPABILITIES).good
    last = history.drain[-1]
    lost = msgspec.structs.replace(last, call=msgspec.structs.replace(last.call, answer=OutOfBlocksSeen()))
    verdict = linearise(msgspec.structs.replace(history, drain=[*history.drain[:-1], lost]), CAPABILITIES)
    assert [reason.law for reason in verdict.reasons] == ["no-leak"]


def test_a_setup_that_breaks_a_law_is_no_matter_of_threads():
    from kvproof.fuzz.bugs import BUGS

    scenario = Scenario("", "", (Admit(0, (0, 1)), Admit(1, (1, 0)), Extend(0, 2), Extend(1, 2)), ((Match(0),), ()))
    with pytest.raises(SetupBroken, match="no-aliasing"):
        linearise(history_of(scenario, BUGS["canary"].adapter), BUGS["canary"].adapter.capabilities())


def test_completions_come_in_any_order():
    scenario = SCENARIOS["completed-in-another-order"]
    assert linearise(history_of(scenario), CAPABILITIES).good
    assert scenario not in catalogue(CAPABILITIES)


# -- drawing --------------------------------------------------------------------------------------------------------------------------------------


def test_a_history_is_drawn_in_columns():
    history = timed(history_of(SCENARIOS["two-first-extends"]), (10, 30), (20, 40))
    assert columns(history) == [
        "thread 0                thread 1",
        "┌ extend 0 by 3",
        "│                       ┌ extend 1 by 3",
        "└ granted, table 0 1    │",
        "                        └ granted, table 2 3",
    ]


def test_the_story_says_what_speaks_against_every_order():
    history = history_of(SCENARIOS["two-first-extends"])
    same = answering(history, 1, 0, tables=history.threads[0][0].tables)
    told = "\n".join(story(same, linearise(same, CAPABILITIES)))
    assert "In no order of these calls could a correct cache have answered like this." in told
    assert "no-aliasing: " in told


# -- schedules ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("scheduled")
@pytest.mark.parametrize("name", RACES)
def test_every_seeded_race_is_found_at_random(name):
    race = RACES[name]
    outcome = explore.explore(SCENARIOS[race.scenario], race.adapter, mode="random", seconds=FINDING_SECONDS, seed=2)
    assert outcome.kind == race.shown, outcome
    assert outcome.history is None or story(outcome.history, outcome.verdict)


def test_any_of_three_threads_may_be_held_up_until_both_others_have_waited_for_each_other():
    """One of two that go on may first wait for the other: the third was always woken before it."""
    plans = [explore._plan(random.Random(seed), [50, 50, 50]) for seed in range(60)]
    assert {tuple(thread for thread, _ in plan[-3:]) for plan in plans} == set(itertools.permutations(range(3)))
    assert all(points == sys.maxsize for plan in plans for _, points in plan[-6:])


@pytest.mark.parametrize("name", RACES)
def test_one_thread_alone_never_notices_a_seeded_race(name):
    from kvproof.fuzz.check import check

    report = check(RACES[name].adapter, name=name, seconds=30, seed=1, programs=25)
    assert report.verdict == "held", report.violations


@pytest.mark.usefixtures("scheduled")
@pytest.mark.parametrize(
    "target", [ProductionAdapter, SynchronousAdapter, HybridAdapter, NullBlockAdapter], ids=lambda target: target.__name__
)
def test_the_production_cache_holds_under_random_schedules(target):
    scenarios = catalogue(target.capabilities(), any_order=True)
    schedules = 0
    for scenario in scenarios:
        outcome = explore.explore(scenario, target, mode="random", seconds=0.08)
        assert outcome.kind == "held", (scenario.name, outcome.reason, outcome.verdict)
        schedules += outcome.schedules
    assert schedules > len(scenarios)


@pytest.mark.usefixtures("scheduled")
def test_the_production_cache_holds_in_random_scenarios():
    for number in range(30):
        scenario = random_scenario(f"test:{number}", CAPABILITIES)
        outcome = explore.explore(scenario, ProductionAdapter, mode="random", seconds=0.05)
        assert outcome.kind == "held", (scenario, outcome.reason, outcome.verdict)


def test_the_production_cache_holds_under_stress():
    outcome = explore.explore(SCENARIOS["abort-completion-and-extend"], ProductionAdapter, mode="stress", seconds=1.0)
    assert outcome.kind == "held", outcome
    assert outcome.schedules > 10


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_production_cache_holds_for_long(name, monkeypatch):
    monkeypatch.setattr("kvproof.impl.production.cache.RLock", baton.ReentrantLock)
    outcome = explore.explore(SCENARIOS[name], ProductionAdapter, mode="random", seconds=60)
    assert outcome.kind == "held", outcome


def test_random_schedules_are_drawn_from_the_seed(monkeypatch):
    monkeypatch.setattr("kvproof.impl.production.cache.RLock", baton.ReentrantLock)
    race = RACES["fork-reads-unlocked"]
    found = [explore.explore(SCENARIOS[race.scenario], race.adapter, mode="random", seconds=FINDING_SECONDS, seed=5) for _ in range(2)]
    assert found[0].schedules == found[1].schedules


def test_random_scenarios_are_drawn_from_the_seed():
    assert random_scenario("1:2", CAPABILITIES) == random_scenario("1:2", CAPABILITIES)
    drawn = [random_scenario(f"1:{number}", CAPABILITIES) for number in range(40)]
    used = {type(op) for scenario in drawn for calls in scenario.threads for op in calls}
    assert {Extend, Match, Release, Commit, EndStep, BeginStep, Reset} <= used


def test_switches_come_where_the_cache_is_and_nowhere_else(tmp_path, monkeypatch):
    (tmp_path / "adapter_of_races.py").write_text("import click\nfrom cache_of_races import Cache\n\nclass Adapter(Cache):\n    pass\n")
    (tmp_path / "cache_of_races.py").write_text("class Cache:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import adapter_of_races

    traced = explore.traced_files(adapter_of_races.Adapter)
    assert traced(adapter_of_races.__file__)
    assert traced(str(tmp_path / "cache_of_races.py"))
    assert traced(click.core.__file__)  # an installed package that the adapter imports
    assert traced(production_cache.__file__)
    assert not traced(pytest.__file__)
    assert not traced(threading.__file__)
    assert not traced(explore.__file__)


@pytest.mark.usefixtures("scheduled")
def test_a_launch_that_raises_leaves_nothing_to_complete():
    class NeverLaunches(ProductionAdapter):
        def begin_step(self):
            raise RuntimeError("no launch")

    scenario = Scenario("", "", (Admit(0, (0, 1)),), ((Extend(0, 2), BeginStep(), EndStep(0)), ()))
    outcome = explore.explore(scenario, NeverLaunches, mode="random", seconds=0.05)
    assert outcome.kind == "race", outcome
    assert msgspec.json.encode(outcome)


# -- the scheduler --------------------------------------------------------------------------------------------------------------------------------


def here(file):
    return file == __file__


def test_the_plan_says_who_runs_how_far():
    seen = []

    def work(name):
        seen.append(name)
        seen.append(name)
        seen.append(name)

    baton.Baton([lambda: work("a"), lambda: work("b")], here).run([(0, 3), (1, 1000)])
    assert seen.index("b") > 0
    assert seen[-1] == "a"


def test_a_switch_may_come_between_two_critical_sections():
    lock, seen = baton.Lock(), []

    def work(name):
        with lock:
            seen.append(name)
        with lock:
            seen.append(name)

    baton.Baton([lambda: work("a"), lambda: work("b")], here, "lock").run([(0, 2), (1, 1000)])
    assert seen == ["a", "b", "b", "a"]


def test_locks_are_the_schedulers():
    lock, inside, worst = baton.Lock(), 0, 0

    def work():
        nonlocal inside, worst
        for _ in range(5):
            with lock:
                inside += 1
                worst = max(worst, inside)
                inside -= 1

    for points in range(1, 30):
        baton.Baton([work, work], here).run([(0, points), (1, points), (0, points)])
    assert worst == 1


def test_a_thread_can_be_stopped_between_the_read_and_the_store():
    class Counter:
        count = 0

    counter = Counter()

    def work():
        counter.count += 1

    scheduler = baton.Baton([work, work], here, "store")
    scheduler.run([(0, 1), (1, 1000)])
    assert counter.count == 1
    assert scheduler.points == [1, 1]


@pytest.mark.parametrize("grain", ["line", "opcode", "store", "lock"])
def test_a_thread_that_asks_again_and_again_makes_way(grain):
    lock, done = baton.Lock(), []

    def ask():
        while not done:
            if lock.acquire(blocking=False):
                lock.release()

    def answer():
        with lock:
            done.append(True)

    baton.Baton([ask, answer, ask], here, grain).run([(1, 1), (0, 5), (2, 100_000)])
    assert done


def test_threads_that_wait_for_each_other_are_found():
    one, two = baton.Lock(), baton.Lock()

    def forwards():
        one.acquire()
        two.acquire()
        two.release()
        one.release()

    def backwards():
        two.acquire()
        one.acquire()
        one.release()
        two.release()

    baton.Baton([forwards, backwards], here).run([])
    with pytest.raises(baton.Stuck, match="none of them will let go"):
        baton.Baton([forwards, backwards], here).run([(0, 2), (1, 1000)])


def test_a_condition_made_of_the_schedulers_locks_works(monkeypatch):
    monkeypatch.setattr(threading, "_allocate_lock", baton.Lock)
    condition = threading.Condition(baton.ReentrantLock())
    full = []

    def consume():
        with condition:
            while not full:
                condition.wait()
            full.pop()

    def produce():
        with condition:
            full.append(1)
            condition.notify()

    for points in range(1, 12):
        baton.Baton([consume, produce], here).run([(0, points), (1, points)])
    assert full == []


def test_outside_the_scheduler_its_locks_are_locks():
    lock, again = baton.Lock(), baton.ReentrantLock()
    assert lock.acquire()
    assert lock.locked()
    assert not lock.acquire(blocking=False)
    lock.release()
    assert not lock.locked()
    with again, again:
        assert again._is_owned()
    assert not again._is_owned()
