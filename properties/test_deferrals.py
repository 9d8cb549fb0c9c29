"""Drops that device work excuses: how long a cache may go on counting them, where work never drains."""

from __future__ import annotations

import pytest

from kvproof.models.deferrals import PERIODS, Deferrals
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Release
from kvproof.models.state import Pass
from kvproof.properties.scripted import Do, judge


def a_pass() -> Pass:
    return Pass(0, 0, 1, 1, 1, (), [])


def test_a_drop_is_excused_until_nothing_is_out():
    deferrals, out = Deferrals(), a_pass()
    deferrals.add(7)
    assert list(deferrals.forget([out], [])) == []
    assert (deferrals.count(7), deferrals.left(7), 7 in deferrals) == (1, PERIODS - 1, True)
    assert list(deferrals.forget([], [])) == [7]
    assert (deferrals.count(7), deferrals.left(7), bool(deferrals)) == (0, 0, False)


def test_where_something_is_always_out_a_drop_outlives_what_was_out_with_it_and_what_came_next():
    """Two passes take turns, so that there is never a moment without one."""
    deferrals, old = Deferrals(), a_pass()
    deferrals.forget([old], [])
    deferrals.add(7)
    for turn in range(1, PERIODS + 1):
        new = a_pass()
        old.over = True
        forgotten = list(deferrals.forget([new], []))
        assert forgotten == ([7] if turn == PERIODS else []), turn
        assert list(deferrals.forget([new], [])) == [], "the period waits for the new pass"
        old = new


def test_a_step_without_passes_is_waited_for_too():
    deferrals = Deferrals()
    first: list[Pass] = []
    deferrals.add(7)
    deferrals.forget([], [first])
    for _ in range(PERIODS):
        assert list(deferrals.forget([], [first])) == []
    assert list(deferrals.forget([], [])) == [7]


def test_each_drop_is_excused_by_itself():
    deferrals, old = Deferrals(), a_pass()
    deferrals.add(7)
    deferrals.forget([old], [])
    deferrals.add(7)
    counts = []
    for _ in range(PERIODS):
        new, old.over = a_pass(), True
        deferrals.forget([new], [])
        counts.append(deferrals.count(7))
        old = new
    assert counts == [2, 1, 0]


# -- in a cache that never rests ----------------------------------------------------------------------------------------------------------


def pipeline(rounds: int, leak: int | None = None) -> list[Do]:
    """One request in each round, begun before the one before ends, so that a pass is always out. The release of round `leak` frees nothing."""
    free = [1, 2, 3]
    script = [Do(Admit(0, (1, 2))), Do(Extend(0, 2), tables={0: [0]}, free=list(free))]
    block = 0
    for seq in range(rounds):
        after = free.pop(0)
        script += [Do(BeginStep()), Do(Admit(seq + 1, (seq, 2))), Do(Extend(seq + 1, 2), tables={seq + 1: [after]}, free=list(free))]
        script += [Do(EndStep()), Do(Commit(seq))]
        if seq != leak:
            free.append(block)
        script.append(Do(Release(seq), tables={seq: []}, free=list(free)))
        block = after
    return script


def test_a_leak_is_told_although_work_never_drains():
    claims = {"steps": True, "snapshot": True}
    assert judge(pipeline(12), **claims) is None
    violation = judge(pipeline(12, leak=2), **claims)
    assert violation is not None
    assert (violation.law, violation.evidence.blocks) == ("pool-conserved", (2,))
    assert 3 * 6 < violation.step < 8 * 6, "in the rounds after the third, not when everything has ended"


@pytest.mark.parametrize("shown", [{"retiring": set()}, {"retiring": {0}}])
def test_a_cache_that_shows_what_is_retiring_shows_it_at_once(shown):
    script = [
        Do(Admit(0, (1, 2)), free=[0, 1], retiring=set()),
        Do(Extend(0, 2), tables={0: [0]}, free=[1], retiring=set()),
        Do(BeginStep(), tables={0: [0]}, free=[1], retiring=set()),
        Do(Release(0), free=[1], **shown),
    ]
    violation = judge(script, num_blocks=2, steps=True, snapshot=True)
    assert (violation.law if violation else None) == (None if shown["retiring"] else "pool-conserved")
