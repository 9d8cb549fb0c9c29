"""Ghost memory: what each slot shows after device work in queue order, and after work that never ran is taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.models.memory import EMPTY, GhostMemory, Lost, Work


def memory(*contents: int, stride: int = 2) -> GhostMemory:
    """Blocks that show `contents`, all of it on the device."""
    made = GhostMemory(len(contents) // stride, stride)
    made.run(Work(writes=[(slot, content) for slot, content in enumerate(contents) if content]), launched=True)
    return made


def writes(*pairs: tuple[int, int]) -> Work:
    return Work(writes=pairs)


class TestRunning:
    def test_a_fresh_memory_shows_nothing(self):
        assert GhostMemory(2, 3).slots == [EMPTY] * 6

    def test_a_write_shows_where_it_was_written(self):
        ghosts = memory(0, 0, 7, 0)
        assert ghosts.slots == [0, 0, 7, 0]
        assert set(ghosts.where(7)) == {2}
        assert ghosts.block_of(2) == 1

    def test_within_one_work_clearing_comes_first_then_copies_then_writes(self):
        ghosts = memory(1, 2, 3, 4)
        ghosts.run(Work(zeroed=[1], copies=[(0, 1)], writes=[(3, 9)]), launched=True)
        assert ghosts.slots == [1, 2, 1, 9]

    def test_a_cleared_source_copies_nothing(self):
        ghosts = memory(1, 2, 3, 4)
        ghosts.run(Work(zeroed=[0], copies=[(0, 1)]), launched=True)
        assert ghosts.slots == [0, 0, 0, 0]

    def test_copies_of_one_work_read_before_any_writes(self):
        ghosts = memory(1, 2, 3, 4, 5, 6)
        ghosts.run(Work(copies=[(0, 1), (1, 2), (2, 0)]), launched=True)
        assert ghosts.slots == [5, 6, 1, 2, 3, 4]

    def test_a_copy_moves_empty_slots_too(self):
        ghosts = memory(1, 0, 3, 4)
        ghosts.run(Work(copies=[(0, 1)]), launched=True)
        assert ghosts.slots == [1, 0, 1, 0]

    def test_later_work_writes_over_earlier_work(self):
        ghosts = memory(1, 2)
        ghosts.run(writes((0, 5)), launched=True)
        ghosts.run(writes((0, 6)), launched=True)
        assert ghosts.slots == [6, 2]
        assert list(ghosts.where(5)) == []

    def test_queued_work_shows_at_once(self):
        ghosts = memory(1, 2)
        ghosts.run(writes((0, 5)), launched=False)
        assert ghosts.slots == [5, 2]

    def test_a_block_holds_contents_from_an_offset_on(self):
        ghosts = memory(1, 2, 3, 4, 5, 6, stride=3)
        assert ghosts.holds(1, [4, 5, 6])
        assert ghosts.holds(1, [5, 6], offset=1)
        assert ghosts.holds(1, [5], offset=1)
        assert not ghosts.holds(1, [5])
        assert not ghosts.holds(0, [4])


class TestAbandoning:
    def test_abandoned_work_leaves_what_was_there_before(self):
        ghosts = memory(1, 2)
        work = writes((0, 5))
        ghosts.run(work, launched=False)
        ghosts.abandon(work)
        assert ghosts.slots == [1, 2]
        assert ghosts.lost[5] == Lost("abandoned", 0, 0)

    def test_work_queued_after_it_still_runs(self):
        ghosts = memory(1, 2)
        first, second = writes((0, 5), (1, 6)), writes((0, 7))
        ghosts.run(first, launched=False)
        ghosts.run(second, launched=False)
        ghosts.abandon(first)
        assert ghosts.slots == [7, 2]

    def test_work_queued_after_it_copies_what_was_there_before(self):
        ghosts = memory(1, 2, 0, 0)
        first, second = writes((0, 5)), Work(copies=[(0, 1)])
        ghosts.run(first, launched=False)
        ghosts.run(second, launched=False)
        assert ghosts.slots == [5, 2, 5, 2]
        ghosts.abandon(first)
        assert ghosts.slots == [1, 2, 1, 2]

    def test_what_it_wrote_over_is_back(self):
        ghosts = memory(1, 2)
        work = writes((0, 5))
        ghosts.run(work, launched=False)
        assert list(ghosts.where(1)) == []
        ghosts.abandon(work)
        assert set(ghosts.where(1)) == {0}

    def test_launched_work_is_not_taken_back_by_abandoning_another(self):
        ghosts = memory(1, 2)
        first, second = writes((0, 5)), writes((1, 6))
        ghosts.run(first, launched=False)
        ghosts.launch()
        ghosts.run(second, launched=False)
        ghosts.abandon(second)
        assert ghosts.slots == [5, 2]

    def test_launched_work_cannot_be_abandoned(self):
        ghosts = memory(1, 2)
        work = writes((0, 5))
        ghosts.run(work, launched=False)
        ghosts.launch()
        with pytest.raises(ValueError, match="not in list"):
            ghosts.abandon(work)

    def test_a_copy_that_runs_at_once_survives_the_abandoning_of_queued_work(self):
        ghosts = memory(1, 2, 0, 0, 0, 0)
        waiting = writes((4, 9))
        ghosts.run(waiting, launched=False)
        ghosts.run(Work(copies=[(0, 1)]), launched=True)
        ghosts.abandon(waiting)
        assert ghosts.slots == [1, 2, 1, 2, 0, 0]

    def test_a_block_handed_out_meanwhile_does_not_come_back(self):
        ghosts = memory(1, 2)
        work = writes((1, 6))
        ghosts.clear(0, "reused")
        ghosts.run(work, launched=False)
        ghosts.abandon(work)
        assert ghosts.slots == [0, 0]


class TestLosing:
    def test_a_cleared_block_shows_nothing_and_tells_how_its_content_was_lost(self):
        ghosts = memory(1, 2, 3, 4)
        ghosts.step = 17
        ghosts.clear(0, "reused")
        assert ghosts.slots == [0, 0, 3, 4]
        assert ghosts.lost == {1: Lost("reused", 0, 17), 2: Lost("reused", 0, 17)}

    def test_a_cleared_block_can_be_matched_again_once_it_is_filled(self):
        ghosts = memory(1, 2)
        ghosts.forget(0, "evicted")
        ghosts.proven.add(0)
        ghosts.clear(0, "reused")
        assert (ghosts.forgotten, ghosts.proven) == ({}, set())

    def test_a_forgotten_block_keeps_its_content_and_is_no_longer_proven(self):
        ghosts = memory(1, 2)
        ghosts.proven.add(0)
        ghosts.forget(0, "reset")
        assert ghosts.slots == [1, 2]
        assert (ghosts.forgotten, ghosts.proven, ghosts.lost) == ({0: "reset"}, set(), {})

    def test_an_overwritten_content_is_lost_and_an_equal_one_is_not(self):
        ghosts = memory(1, 2)
        ghosts.run(writes((0, 5), (1, 2)), launched=True)
        assert ghosts.lost == {1: Lost("overwritten", 0, 0)}

    def test_the_newest_loss_of_a_content_counts(self):
        ghosts = memory(1, 0, 1, 0)
        ghosts.clear(0, "reused")
        ghosts.step = 3
        ghosts.clear(1, "zeroed")
        assert ghosts.lost[1] == Lost("zeroed", 1, 3)

    def test_a_rejected_draft_is_gone_for_good(self):
        ghosts = memory(1, 0)
        work = writes((1, 6))
        ghosts.run(work, launched=False)
        ghosts.drafts.add(1)
        ghosts.launch()
        ghosts.reject(1, 6)
        assert ghosts.slots == [1, 0]
        assert ghosts.lost[6].how == "rejected"
        other = writes((0, 9))
        ghosts.run(other, launched=False)
        ghosts.abandon(other)
        assert ghosts.slots == [1, 0]

    def test_what_is_no_draft_is_not_rejected(self):
        ghosts = memory(1, 6)
        ghosts.reject(1, 6)
        assert ghosts.slots == [1, 6]

    def test_what_wrote_over_a_draft_is_not_rejected_with_it(self):
        ghosts = memory(1, 6)
        ghosts.drafts.add(1)
        ghosts.run(writes((1, 7)), launched=True)
        ghosts.reject(1, 6)
        assert ghosts.slots == [1, 7]
        assert ghosts.drafts == set()

    def test_a_copy_that_changed_nothing_changes_something_once_the_work_before_it_is_abandoned(self):
        ghosts, abandoned = memory(0, 0, stride=1), Work(copies=[(0, 1)])
        for work in (writes((1, 7)), abandoned, Work(copies=[(1, 0)])):
            ghosts.run(work, launched=False)
        assert ghosts.slots == [0, 0]
        ghosts.abandon(abandoned)
        assert ghosts.slots == [7, 7]

    def test_the_blocks_that_changed_are_remembered_until_somebody_looked(self):
        ghosts = memory(1, 2, 3, 4, 5, 6)
        ghosts.touched.clear()
        ghosts.run(Work(copies=[(0, 2)], writes=[(1, 8)]), launched=True)
        assert ghosts.touched == {0, 2}


# -- against a plain replay ----------------------------------------------------------------------------------------------------------------

BLOCKS, STRIDE = 3, 2
blocks = st.integers(0, BLOCKS - 1)
works = st.builds(
    Work,
    zeroed=st.lists(blocks, max_size=1),
    copies=st.lists(st.tuples(blocks, blocks), max_size=2, unique_by=lambda pair: pair[1]),
    writes=st.lists(st.tuples(st.integers(0, BLOCKS * STRIDE - 1), st.integers(1, 9)), max_size=3),
)
turns = st.lists(st.one_of(works, st.just("launch"), st.integers(0, 3)), max_size=12)


def replay(queue: list[Work]) -> list[int]:
    slots = [EMPTY] * (BLOCKS * STRIDE)
    for work in queue:
        for block in work.zeroed:
            slots[block * STRIDE : (block + 1) * STRIDE] = [EMPTY] * STRIDE
        read = [(target, slots[source * STRIDE : (source + 1) * STRIDE]) for source, target in work.copies]
        for target, contents in read:
            slots[target * STRIDE : (target + 1) * STRIDE] = contents
        for slot, content in work.writes:
            slots[slot] = content
    return slots


@settings(deadline=None)
@given(turns)
def test_memory_shows_what_a_plain_replay_of_the_work_that_was_not_abandoned_leaves(turns):
    ghosts, launched, queued = GhostMemory(BLOCKS, STRIDE), [], []
    for turn in turns:
        if isinstance(turn, Work):
            ghosts.run(turn, launched=False)
            queued.append(turn)
        elif turn == "launch":
            ghosts.launch()
            launched, queued = launched + queued, []
        elif queued:
            # Equal pieces of work are told apart by nothing, so take the first of them, as a queue does.
            taken = queued[turn % len(queued)]
            ghosts.abandon(taken)
            queued.remove(taken)
        assert ghosts.slots == replay(launched + queued)
        for content in range(1, 10):
            assert set(ghosts.where(content)) == {slot for slot, shown in enumerate(ghosts.slots) if shown == content}


@settings(deadline=None)
@given(st.lists(works, max_size=6), st.lists(works, max_size=3))
def test_launched_work_runs_at_once_and_cannot_be_taken_back(first, second):
    ghosts = GhostMemory(BLOCKS, STRIDE)
    for work in first:
        ghosts.run(work, launched=True)
    for work in second:
        ghosts.run(work, launched=False)
    for work in second:
        ghosts.abandon(work)
    assert ghosts.slots == replay(first)
