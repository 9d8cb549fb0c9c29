"""`kvproof race` as a user types it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from kvproof import races_cli
from kvproof.cli import main
from kvproof.fuzz.races.bugs import RACES

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
