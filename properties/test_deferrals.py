"""Drops that device work excuses: how long a cache may go on counting them, where work never drains."""

from __future__ import annotations

import pytest

from kvproof.models.deferrals import PERIODS, Deferrals
from kvproof.models.ops import Admit, Append, BeginStep, Commit, EndStep, Extend, Fork, Release
from kvproof.models.state import Pass
from kvproof.properties.scripted import Do, judge


def a_pass() -> Pass:
    return Pass(0, 0, 1, 1, 1, (), [])


def test_a_drop_is_excused_until_nothing_is_out():
    deferrals, out = Deferrals(), a_pass()
    deferrals.add(7)
    assert list(deferrals.forget([out], [])) == []
    assert (deferrals.count(7), 7 in deferrals) == (1, True)
    assert list(deferrals.forget([], [])) == [7]
    assert (deferrals.count(7), bool(deferrals)) == (0, False)


def piecemeal() -> Deferrals:
    """Those of a cache that has given back a block without a pause."""
    deferrals = Deferrals()
    deferrals.add(0, touched=True)
    deferrals.back(0, [[a_pass()]])
    deferrals.forget([], [])
    return deferrals


def test_a_cache_that_may_wait_for_a_pause_is_excused_until_then():
    deferrals = Deferrals()
    deferrals.add(7, touched=True)
    for _ in range(20):
        assert list(deferrals.forget([], [[a_pass()]])) == []
    assert deferrals.count(7) == 1
    assert list(deferrals.forget([], [])) == [7]
    deferrals.add(7, touched=True)
    deferrals.forget([a_pass()], [])
    deferrals.back(7, [[a_pass()]])
    assert not deferrals.piecemeal, "there was a pause between the steps"


def test_where_something_is_always_out_a_drop_outlives_what_was_out_with_it_and_what_came_next():
    """Two passes take turns, so that there is never a moment without one."""
    deferrals, old = piecemeal(), a_pass()
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
    deferrals = piecemeal()
    first: list[Pass] = []
    deferrals.add(7)
    deferrals.forget([], [first])
    for _ in range(PERIODS):
        assert list(deferrals.forget([], [first])) == []
    assert list(deferrals.forget([], [])) == [7]


def test_each_drop_is_excused_by_itself():
    deferrals, old = piecemeal(), a_pass()
    deferrals.add(7)
    deferrals.forget([old], [])
    deferrals.add(7)
    counts = []
    for _ in range(PERIODS):
        new, old.over = a_pass(), True
        deferrals.forget([new], [])
        counts.append(deferrals.count(7))
        old = new
    assert counts == [*[2] * (PERIODS - 2), 1, 0]


# -- in a cache that never rests ----------------------------------------------------------------------------------------------------------


BLOCKS = 2 * PERIODS


def pipeline(rounds: int, *, until_pause: bool = False, leak: int | None = None) -> list[Do]:
    """One request in each round, released in flight after the step of the next one has begun, so that a step is always open.

    Its block is given back when its step has ended, or waits for a pause that never comes; that of round `leak` never is.
    """
    free = list(range(1, BLOCKS))
    script = [Do(Admit(0, (1, 2))), Do(Extend(0, 2), tables={0: [0]}, free=list(free)), Do(BeginStep())]
    block = 0
    for seq in range(rounds):
        after = free.pop(0)
        script += [Do(Admit(seq + 1, (seq, 2))), Do(Extend(seq + 1, 2), tables={seq + 1: [after]}, free=list(free)), Do(BeginStep())]
        script.append(Do(Release(seq), tables={seq: []}))
        if seq != leak and not until_pause:
            free.append(block)
        script.append(Do(EndStep(), free=list(free)))
        block = after
    return script


CLAIMS = {"steps": True, "snapshot": True, "num_blocks": BLOCKS}


def test_a_leak_is_told_although_work_never_drains():
    assert judge(pipeline(2 * PERIODS), **CLAIMS) is None
    violation = judge(pipeline(2 * PERIODS, leak=2), **CLAIMS)
    assert violation is not None
    assert (violation.law, violation.evidence.blocks) == ("pool-conserved", (2,))
    assert PERIODS * 5 < violation.step < (PERIODS + 5) * 5, "when the rounds are over, not when everything has ended"


@pytest.mark.parametrize("frames", [1, 2, 3, 6])
def test_a_ring_of_frames_is_not_accused(frames):
    """What was let go of in one step is free so many steps later, in a pipeline that never rests."""
    script, free, ring, last = [], list(range(BLOCKS)), [], 0
    for seq in range(2 * PERIODS):
        block = free.pop(0)
        script += [
            Do(Admit(seq, (seq, 2)), free=[block, *free]),
            Do(Extend(seq, 2), tables={seq: [block]}, free=list(free)),
            Do(BeginStep()),
        ]
        if seq:
            script.append(Do(Release(seq - 1), tables={seq - 1: []}))
            ring.append(last)
            if len(ring) > frames:
                free.append(ring.pop(0))
            script.append(Do(EndStep(), free=list(free)))
        last = block
    assert judge(script, **CLAIMS) is None


def test_a_cache_that_gives_back_nothing_before_a_pause_is_not_accused():
    assert judge(pipeline(2 * PERIODS - 2, until_pause=True), **CLAIMS) is None


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


def kept_until_a_pause(before: list[Do], free: list[int]) -> list[Do]:
    """After what went before, with an empty step open, requests come and go in flight, and their blocks wait for a pause: nobody may be accused."""
    script, left = list(before), list(free)
    for seq in range(10, 10 + PERIODS + 10):
        block = left.pop()
        script += [Do(Admit(seq, (seq, 2))), Do(Extend(seq, 2), tables={seq: [block]}, free=list(left)), Do(BeginStep()), Do(EndStep())]
        script.append(Do(Release(seq), tables={seq: []}))
    return script


def test_a_block_that_another_holder_keeps_says_nothing_of_how_a_cache_waits():
    """Block 0 is shared; one holder lets go of it in flight, the other one later, when nothing reads it, and it is free at once."""
    free = list(range(1, BLOCKS))
    shared = [
        Do(Admit(0, (1, 2)), free=[0, *free]),
        Do(Extend(0, 2), tables={0: [0]}, free=free),
        Do(BeginStep()),
        Do(EndStep()),
        Do(Commit(0)),
        Do(Fork(0, 1), tables={1: [0]}),
        Do(Append(1, (3,))),
        Do(Extend(1, 1), tables={1: [0, 1]}, free=free[1:]),
        Do(BeginStep()),
        Do(Release(1), tables={1: []}),
        Do(BeginStep()),
        Do(EndStep()),
        Do(Release(0), free=[*free[1:], 0]),
    ]
    assert judge(kept_until_a_pause(shared, [*free[1:], 0]), num_blocks=BLOCKS, steps=True, snapshot=True, fork=True) is None
