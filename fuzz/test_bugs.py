"""The suite is itself under test: it must catch every seeded bug, name the right law, and show it in a few operations."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from kvproof.fuzz import check as checking
from kvproof.fuzz.bugs import BUGS, NOT_SEEDED
from kvproof.fuzz.bugs.books import NullBlockAdapter
from kvproof.fuzz.bugs.hunt import SEED
from kvproof.fuzz.bugs.registry import SynchronousHybridAdapter, UnauditedAdapter, UnauditedStepsAdapter
from kvproof.fuzz.check import BUDGETS, check
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.impl.production.batched_adapter import BatchedAdapter, BatchedHybridAdapter, BatchedSynchronousAdapter
from kvproof.models.laws import BY_NAME, CACHE_LAWS, LAWS

SOUND = (
    ProductionAdapter,
    SynchronousAdapter,
    HybridAdapter,
    SynchronousHybridAdapter,
    UnauditedAdapter,
    UnauditedStepsAdapter,
    NullBlockAdapter,
    BatchedAdapter,
    BatchedHybridAdapter,
    BatchedSynchronousAdapter,
)
"""Every adapter that a seeded bug starts from."""

SOUND_SECONDS = 2.0
"""A glance at each: `tests/` and the nightly run look longer."""

GRACE_SECONDS = 0.8
"""How long the first hunt goes on for a shorter program: less than a check for a user would, since there are many bugs."""


PROGRAMS = 5000
"""How far a hunt goes. The programs are the same on every machine, so a bug that is caught once is always caught; the rarest takes about 1500."""

PLENTY_SECONDS = 120.0
"""More than any hunt takes: the number of programs is the limit."""


SEEDS = (SEED, 2, 3, 4)
"""A bug whose first program shrinks badly, or shows itself under a neighbouring name, is hunted again with other programs."""


def complaint(name, seconds, programs=None, seed=SEED):
    """What is wrong with the way in which a bug was caught; empty if nothing is."""
    bug = BUGS[name]
    report = check(bug.adapter, name=f"bug:{name}", seconds=seconds, seed=seed, workers=1, programs=programs)
    if report.verdict != "broken":
        return f"{name} was not caught in {report.programs} programs: {report.verdict} {report.error}"
    fitting = [finding for finding in report.violations if finding.law in bug.laws]
    shown = "\n\n".join(
        f"{finding.law}: {finding.reason}\n{finding.program.config}\n" + "\n".join(map(repr, finding.program.ops))
        for finding in report.violations
    )
    if not fitting:
        return f"{report.violations[0].law} was named for {name}, not {' or '.join(bug.laws)}:\n{shown}"
    if fitting[0].steps > bug.most_operations:
        return f"the shortest program for {name} takes {fitting[0].steps} operations, not {bug.most_operations}:\n{shown}"
    return ""


def test_the_canary_is_caught_at_once():
    report = check(BUGS["canary"].adapter, name="bug:canary", seconds=1.0, seed=SEED, workers=1)
    assert report.verdict == "broken", (
        "THE CANARY IS ALIVE: a cache that hands out one and the same block, always, passed. Until this is mended, nothing that passes means anything."
    )
    assert report.violations[0].law == "no-aliasing"


@pytest.mark.parametrize("name", BUGS)
def test_every_seeded_bug_is_caught(name, monkeypatch):
    monkeypatch.setattr(checking, "GRACE_SECONDS", GRACE_SECONDS)
    wrong = ""
    for seed in SEEDS:
        wrong = complaint(name, PLENTY_SECONDS, PROGRAMS, seed)
        if not wrong:
            return
    pytest.fail(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUGS)
def test_every_seeded_bug_is_caught_with_other_programs(name, monkeypatch):
    monkeypatch.setitem(globals(), "SEED", random.SystemRandom().getrandbits(32))
    wrong = complaint(name, BUDGETS["nightly"], seed=SEED)
    assert not wrong, f"{wrong}\nseed {SEED}"


@pytest.mark.parametrize("adapter", SOUND, ids=lambda adapter: adapter.__name__)
def test_what_the_bugs_start_from_keeps_every_law(adapter):
    report = check(adapter, name=adapter.__name__, seconds=SOUND_SECONDS, seed=SEED, workers=1)
    assert report.verdict == "held", report.violations or report.error


@pytest.mark.nightly
@pytest.mark.parametrize("adapter", SOUND, ids=lambda adapter: adapter.__name__)
def test_what_the_bugs_start_from_keeps_every_law_for_long(adapter):
    report = check(adapter, name=adapter.__name__, seconds=BUDGETS["nightly"], seed=SEED, workers=1)
    assert report.verdict == "held", report.violations or report.error


def test_every_law_has_a_seeded_bug():
    applying = {law.name for law in CACHE_LAWS for adapter in SOUND if law.applies(adapter.capabilities())}
    assert applying - {bug.laws[0] for bug in BUGS.values()} == set(), "a law that no seeded bug breaks is not a law yet"


def test_seeded_bugs_name_laws_that_apply_to_them():
    for bug in BUGS.values():
        for law in bug.laws:
            assert BY_NAME[law].applies(bug.adapter.capabilities()), f"{bug.name} names {law}, which does not apply to it"


def test_names_and_stories_are_written_for_a_reader():
    for name, bug in BUGS.items():
        assert bug.name == name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert re.fullmatch(r"[A-Z`].*\.", bug.story), f"the story of {name} is not a sentence"
        assert bug.adapter.__doc__, f"{name} does not say what it does wrong"


def test_an_adapter_can_be_found_by_its_module_and_name():
    import importlib

    for bug in BUGS.values():
        assert getattr(importlib.import_module(bug.adapter.__module__), bug.adapter.__qualname__) is bug.adapter


def test_every_known_bug_is_seeded_or_said_not_to_be():
    shown = {like for bug in BUGS.values() for like in bug.like}
    listed = {bug for law in LAWS for bug in law.bugs}
    assert shown & NOT_SEEDED.keys() == set()
    assert listed - shown - NOT_SEEDED.keys() == set()


def test_the_bug_list_is_covered():
    page = (Path(__file__).parents[1] / "docs" / "bugs.md").read_text()
    ids = set(re.findall(r"^\| (B\d+) \|", page, re.MULTILINE))
    assert ids == {like for bug in BUGS.values() for like in bug.like} | NOT_SEEDED.keys()
