"""`kvproof race` as a user types it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from kvproof import races_cli
from kvproof.cli import main
from kvproof.fuzz.races import explore
from kvproof.fuzz.races.bugs import RACES
from kvproof.fuzz.races.explore import Outcome
from kvproof.fuzz.races.history import History
from kvproof.fuzz.races.linear import Verdict
from kvproof.fuzz.races.scenarios import Scenario, catalogue

NEEDS_FRONTRUN = pytest.mark.skipif(
    importlib.util.find_spec("frontrun") is None, reason="the systematic search needs frontrun: pip install 'kvproof[concurrency]'"
)

SOONEST = ("release-in-two-pieces", "reset-unlocked", "fork-reads-unlocked", "locks-in-either-order")
"""Seeded races of four kinds: two calls at once, a call without its lock, a section in two pieces, two locks in either order. The others are found at night."""


def race(*arguments):
    return main(["race", *arguments])


def test_a_seeded_race_is_drawn(capfd):
    assert race("race-bug:fork-reads-unlocked", "--mode", "random", "--scenario", "fork-against-release", "--seconds", "20") == 1
    out = capfd.readouterr().out
    assert "fork-against-release  random  RACE" in out
    assert "┌ fork 0 to 2" in out
    assert "In no order of these calls could a correct cache have answered like this." in out
    assert out.startswith("kvproof race race-bug:fork-reads-unlocked: 1 scenario, random, at most 20 s, seed 0")
    assert "race-bug:fork-reads-unlocked is not safe for threads in fork-against-release" in out
    assert "No law of the contract speaks of threads: this is the answer to what was asked, and no broken law." in " ".join(out.split())


def test_a_race_without_a_terminal_tells_how_far_it_has_come(capfd, monkeypatch):
    monkeypatch.setattr(races_cli, "LOG_SECONDS", 0.0)
    assert race("production", "--mode", "random", "--scenario", "release-twice", "--budget", "2") == 0
    assert "1 of 1 scenario: release-twice (random): held" in capfd.readouterr().err


def test_outcomes_where_a_table_has_no_room(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert race("production", "--mode", "random", "--scenario", "release-twice", "--seconds", "1") == 0
    assert "- release-twice (random): held; schedules " in capfd.readouterr().out


def test_a_sound_cache_holds(capfd):
    assert race("production", "--mode", "random", "--scenario", "release-twice", "--random", "3", "--seconds", "2") == 0
    out = capfd.readouterr().out
    assert "production held: some order of the calls explains each history" in out
    assert "0 searches came to their end." in out
    assert "random:0:2" in out


@NEEDS_FRONTRUN
def test_a_scenario_is_exhausted_systematically(capfd):
    assert race("production", "--mode", "dpor", "--scenario", "release-twice", "--seconds", "20") == 0
    assert "release-twice  dpor  exhausted" in capfd.readouterr().out


@NEEDS_FRONTRUN
@pytest.mark.parametrize("name", [name if name in SOONEST else pytest.param(name, marks=pytest.mark.nightly) for name in RACES])
def test_every_seeded_race_is_found_systematically(capfd, name):
    scenario = RACES[name].scenario
    assert race(f"race-bug:{name}", "--mode", "dpor", "--scenario", scenario, "--seconds", "60") == 1
    out = capfd.readouterr().out
    if RACES[name].shown == "stuck":
        assert f"{scenario}  dpor  STUCK" in out
        assert "Deadlock detected" in out
    else:
        assert f"{scenario}  dpor  RACE" in out
        assert "Where the threads met:" in out
        assert "AtLock" not in out


@NEEDS_FRONTRUN
def test_two_critical_sections_are_tried_in_either_order(tmp_path):
    (tmp_path / "either.py").write_text(EITHER)
    run = subprocess.run(
        [sys.executable, tmp_path / "either.py"], env={**os.environ, "FRONTRUN_ACTIVE": "1"}, capture_output=True, text=True
    )
    assert run.stdout == "[(1, 11), (11, 10)]\n", run.stderr


EITHER = """
from kvproof.fuzz.races import doors

doors.install()
import threading

import frontrun


class State:
    def __init__(self):
        self.lock, self.total, self.one, self.two = threading.Lock(), 0, 0, 0


def one(state):
    with state.lock:
        state.total += 1
        state.one = state.total


def two(state):
    with state.lock:
        state.total += 10
        state.two = state.total


seen = set()
frontrun.explore(setup=State, workers=[one, two], invariant=lambda state: seen.add((state.one, state.two)) is None, detect_io=False)
print(sorted(seen))
"""


def test_threads_that_never_end_are_a_finding(capfd, tmp_path):
    (tmp_path / "deadlock.py").write_text(DEADLOCK)
    assert race(f"{tmp_path}/deadlock.py:Adapter", "--mode", "random", "--scenario", "fork-against-release", "--seconds", "10") == 1
    out = capfd.readouterr().out
    assert "STUCK" in out
    assert "threads wait for locks that none of them will let go of" in out


DEADLOCK = '''
import threading

from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """Takes its two locks in either order."""

    def __init__(self, **pool):
        super().__init__(**pool)
        self.one = threading.Lock()
        self.two = threading.Lock()

    def fork(self, parent, child):
        with self.one:
            with self.two:
                return super().fork(parent, child)

    def release(self, seq, reason):
        with self.two:
            with self.one:
                super().release(seq, reason)
'''


@NEEDS_FRONTRUN
def test_a_cache_behind_a_read_write_lock_is_exhausted(capfd, tmp_path):
    (tmp_path / "sound.py").write_text(READ_WRITE)
    assert race(f"{tmp_path}/sound.py:Adapter", "--mode", "dpor", "--scenario", "release-twice", "--seconds", "30") == 0
    assert "release-twice  dpor  exhausted" in capfd.readouterr().out


@NEEDS_FRONTRUN
def test_a_read_write_lock_that_lets_two_writers_in_is_found(capfd, tmp_path):
    sound, raced = (f"self.changed.wait()\n{indent}self.writing = True" for indent in (" " * 12, " " * 8))
    assert sound in READ_WRITE
    (tmp_path / "raced.py").write_text(READ_WRITE.replace(sound, raced))
    assert race(f"{tmp_path}/raced.py:Adapter", "--mode", "dpor", "--scenario", "siblings-released", "--seconds", "30") == 1
    assert "siblings-released  dpor  RACE" in capfd.readouterr().out


@pytest.mark.parametrize("mode", [pytest.param("dpor", marks=NEEDS_FRONTRUN), "random"])
def test_a_lock_that_is_left_held_leaves_the_next_call_stuck(capfd, tmp_path, mode):
    (tmp_path / "left.py").write_text(LEFT_HELD)
    assert race(f"{tmp_path}/left.py:Adapter", "--mode", mode, "--scenario", "release-twice", "--seconds", "5") == 1
    out = capfd.readouterr().out
    assert f"release-twice  {mode}" in out
    assert "STUCK" in out


LEFT_HELD = '''
import threading

from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """Does not let go of its lock where the request is gone already."""

    def __init__(self, **pool):
        super().__init__(**pool)
        self.lock = threading.Lock()
        self.gone = set()

    def release(self, seq, reason):
        self.lock.acquire()
        if seq in self.gone and threading.current_thread() is not threading.main_thread():
            return
        self.gone.add(seq)
        super().release(seq, reason)
        self.lock.release()
'''


@pytest.mark.parametrize("mode", [pytest.param("dpor", marks=NEEDS_FRONTRUN), "random"])
def test_a_lock_that_one_call_takes_and_another_lets_go_of_is_no_finding(capfd, tmp_path, mode):
    (tmp_path / "busy.py").write_text(BUSY)
    scenarios = ("--scenario", "completed-twice", "--scenario", "two-launches", "--scenario", "never-completed")
    assert race(f"{tmp_path}/busy.py:Adapter", "--mode", mode, *scenarios, "--seconds", "3") == 0, capfd.readouterr().out


BUSY = '''
import threading

from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """The first step that is launched on a device that was idle takes a lock, and the end of any step lets go of it."""

    def __init__(self, **pool):
        super().__init__(**pool)
        self.busy = threading.Lock()
        self.own = threading.Lock()

    def begin_step(self):
        with self.own:
            self.busy.acquire(blocking=False)
            return super().begin_step()

    def end_step(self, step):
        with self.own:
            if self.busy.locked():
                self.busy.release()
            super().end_step(step)
'''


@NEEDS_FRONTRUN
def test_a_notification_that_is_left_out_leaves_threads_stuck(capfd, tmp_path):
    (tmp_path / "silent.py").write_text(READ_WRITE.replace("self.changed.notify_all()", "pass"))
    assert race(f"{tmp_path}/silent.py:Adapter", "--mode", "dpor", "--scenario", "release-twice", "--seconds", "10") == 1
    out = capfd.readouterr().out
    assert "STUCK" in out
    assert "threads wait for locks or notifications that nobody is left to give" in out


READ_WRITE = '''
import threading
from contextlib import contextmanager

from kvproof.impl.production.adapter import ProductionAdapter


class Unlocked:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


class ReadWriteLock:
    def __init__(self):
        self.changed = threading.Condition()
        self.readers = 0
        self.writing = False

    @contextmanager
    def read(self):
        with self.changed:
            while self.writing:
                self.changed.wait()
            self.readers += 1
        try:
            yield
        finally:
            with self.changed:
                self.readers -= 1
                self.changed.notify_all()

    @contextmanager
    def write(self):
        with self.changed:
            while self.writing or self.readers:
                self.changed.wait()
            self.writing = True
        try:
            yield
        finally:
            with self.changed:
                self.writing = False
                self.changed.notify_all()


class Adapter(ProductionAdapter):
    """Readers together, writers alone; the cache behind them has no lock of its own."""

    def __init__(self, **pool):
        super().__init__(**pool)
        self.cache._lock = Unlocked()
        self.lock = ReadWriteLock()

    def block_table(self, seq, group=0):
        with self.lock.read():
            return super().block_table(seq, group)


def writing(method):
    def alone(self, *arguments):
        with self.lock.write():
            return method(self, *arguments)

    return alone


for name in ("admit", "append", "extend", "commit", "release", "fork", "begin_step", "end_step"):
    setattr(Adapter, name, writing(getattr(ProductionAdapter, name)))
'''


@pytest.mark.parametrize("mode", [pytest.param("dpor", marks=NEEDS_FRONTRUN), "random"])
def test_a_cache_with_threads_of_its_own_is_not_accused(capfd, tmp_path, mode):
    (tmp_path / "actor.py").write_text(ACTOR)
    scenarios = ("--scenario", "release-twice", "--scenario", "two-first-extends")
    assert race(f"{tmp_path}/actor.py:Adapter", "--mode", mode, *scenarios, "--seconds", "5") == 2
    out = capfd.readouterr().out
    assert f"release-twice and two-first-extends ({mode}): inconclusive." in out
    assert "the cache starts a thread of its own (mailbox), which this mode cannot schedule; use the mode stress" in out


def test_a_cache_with_threads_of_its_own_is_judged_under_stress(capfd, tmp_path):
    (tmp_path / "actor.py").write_text(ACTOR)
    assert race(f"{tmp_path}/actor.py:Adapter", "--mode", "stress", "--scenario", "release-twice", "--seconds", "1") == 0


ACTOR = '''
import queue
import threading

from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """Releases are done by a thread of the cache."""

    def release(self, seq, reason):
        mail, done = queue.Queue(), queue.Queue()
        mail.put((seq, reason))
        threading.Thread(target=lambda: done.put(ProductionAdapter.release(self, *mail.get())), name="mailbox").start()
        return done.get()
'''


def an_outcome(kind, mode, *, reason="", history=None):
    scenario = Scenario("two-first-extends", "", (), ())
    verdict = None if history is None else Verdict(False, [])
    return Outcome(scenario, mode, kind, reason=reason, history=history, verdict=verdict)


def test_a_race_is_told_though_another_mode_could_not_go_on(capfd, monkeypatch):
    history = History(Scenario("two-first-extends", "", (), ()), [], [[], []], [])
    outcomes = [an_outcome("inconclusive", "dpor", reason="no way on"), an_outcome("race", "random", history=history)]
    monkeypatch.setattr(races_cli, "_run", lambda work, modes: outcomes)
    assert race("production", "--mode", "random") == 1
    out = capfd.readouterr().out
    assert "In no order of these calls could a correct cache have answered like this." in out
    assert "no way on" in out


def test_a_process_that_dies_is_told_under_the_scenario_that_it_was_at(monkeypatch):
    monkeypatch.setattr(races_cli, "CHILD", DIES_AT_THE_SECOND)
    work = races_cli.Work("production", "random", 1.0, 0, [Scenario(name, "", (), ()) for name in ("one", "two", "three")])
    told = [(outcome.scenario.name, outcome.kind) for outcome in races_cli.outcomes_of(work)]
    assert told == [("one", "held"), ("two", "stuck"), ("three", "held")]


DIES_AT_THE_SECOND = """
import msgspec, os, sys
from kvproof.fuzz.races.explore import Outcome
from kvproof.races_cli import Work
work = msgspec.json.decode(sys.stdin.buffer.read(), type=Work)
print(msgspec.json.encode(Outcome(work.scenarios[0], work.mode, "held")).decode(), flush=True)
os._exit(9 if len(work.scenarios) > 1 else 0)
"""


def test_a_call_that_goes_on_for_ever_once_the_threads_are_done_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "spins.py").write_text(SPINS)
    monkeypatch.setattr(explore, "RUN_SECONDS", 0.5)
    monkeypatch.syspath_prepend(tmp_path)
    import spins

    scenario = next(scenario for scenario in catalogue(spins.Adapter.capabilities()) if scenario.name == "release-twice")
    outcome = explore.explore(scenario, spins.Adapter, mode="random", seconds=5)
    assert (outcome.kind, outcome.reason) == ("stuck", "once all threads were done, one operation ran for more than 0.5 s")


SPINS = '''
import threading

from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """Retries for ever once a request was released by a thread."""

    spoilt = False

    def release(self, seq, reason):
        self.spoilt |= threading.current_thread() is not threading.main_thread()
        super().release(seq, reason)

    def extend(self, seq, count, drafts=()):
        while self.spoilt:
            pass
        return super().extend(seq, count, drafts)
'''


def test_what_breaks_the_protocol_under_some_schedule_only_is_a_race(capfd, tmp_path):
    (tmp_path / "torn.py").write_text(TORN)
    assert race(f"{tmp_path}/torn.py:Adapter", "--mode", "random", "--scenario", "two-first-extends", "--seconds", "10") == 1
    out = capfd.readouterr().out
    assert "two-first-extends (random): RACE." in out
    assert "under one schedule, and not with the threads one after another: extend(" in out
    assert "is not safe for threads in two-first-extends" in out


TORN = '''
from kvproof.impl.production.adapter import ProductionAdapter


class Adapter(ProductionAdapter):
    """Hands every answer on through one variable."""

    def extend(self, seq, count, drafts=()):
        self.answer = super().extend(seq, count, drafts)
        answer, self.answer = self.answer, None
        return answer
'''


def test_searches_that_cannot_go_on_end_with_the_time(monkeypatch):
    def answers(work):
        yield an_outcome("inconclusive", "dpor", reason="no way on")

    monkeypatch.setattr(races_cli, "_answers", answers)
    work = races_cli.Work("production", "dpor", 0.0, 0, [Scenario(name, "", (), ()) for name in ("one", "two", "three")])
    assert [outcome.reason for outcome in races_cli.outcomes_of(work)] == ["no way on", races_cli._NO_TIME, races_cli._NO_TIME]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("production", "--scenario", "nonsense"), "There is no scenario 'nonsense' for this target"),
        (("race-bug:nonsense",), "There is no seeded race 'nonsense'"),
        (("kvproof.targets:BadTarget",), "is no cache"),
    ],
)
def test_a_request_that_cannot_be_met_gets_one_sentence(capfd, arguments, sentence):
    assert race(*arguments) == 2
    assert sentence in capfd.readouterr().err


def test_without_frontrun_the_systematic_search_says_what_to_install(capfd, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "frontrun" else find(name))
    assert race("production", "--mode", "dpor") == 2
    assert "pip install 'kvproof[concurrency]'" in capfd.readouterr().err
