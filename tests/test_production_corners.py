"""Corners of the production cache that mutants showed to be untested: events of nothing, an index that is turned off, rooms of shared blocks."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from kvproof.impl.production import BlockPool, GroupSpec, PagedCache, WorkerMirror
from kvproof.impl.production.errors import CacheError, OutOfBlocks, TooManyAccepted, WindowPassed
from kvproof.impl.production.groups import layouts_of
from kvproof.impl.production.records import BlockEvent, ExtendGrant, HostCopies, StepPlan, TableDelta
from kvproof.impl.production.sequence import deepest_first

WINDOWED = (GroupSpec(), GroupSpec("sliding_window", window=3))


def computed(cache, seq, prompt):
    cache.admit(seq, prompt)
    cache.extend(seq, len(prompt))
    cache.end_step(cache.begin_step().step)
    cache.commit(seq)


def test_evicting_what_is_not_matchable_is_no_event():
    cache = PagedCache(4, 2, events=True)
    assert cache.evict([0, 1]) == 0
    assert cache.take_events() == []


def test_a_cache_without_events_evicts_too():
    cache = PagedCache(4, 2)
    computed(cache, 0, [1, 2, 3])
    assert cache.evict(cache.block_table(0)) == 1


def test_without_prefix_caching_nothing_is_matchable_though_blocks_leave_a_window():
    cache = PagedCache(12, 2, groups=WINDOWED, prefix_caching=False)
    computed(cache, 0, list(range(8)))
    assert cache.block_table(0, 1)[0] is None
    assert cache.books().cached == frozenset()


def test_the_room_of_a_shared_block_is_counted_once_and_by_its_longest_holder():
    cache = PagedCache(4, 4)
    computed(cache, 0, [1, 2, 3])
    cache.fork(0, 1)
    cache.truncate(1, 1)
    assert cache.block_table(1) == cache.block_table(0)
    assert cache.stats().fragmentation_tokens == 1


def test_a_sequence_that_holds_something_matches_nothing():
    cache = PagedCache(8, 2)
    computed(cache, 0, [1, 2, 3, 4, 5])
    cache.admit(1, [1, 2, 3, 4, 5])
    assert cache.match(1) == 4
    cache.extend(1, 1)
    assert cache.match(1) == 0
    assert cache.match(0) == 0


def test_without_prefix_caching_nothing_matches():
    cache = PagedCache(8, 2, prefix_caching=False)
    computed(cache, 0, [1, 2, 3])
    cache.admit(1, [1, 2, 3])
    assert cache.match(1) == 0


def test_blocks_of_unequal_groups_are_let_go_by_the_position_at_which_they_end():
    layouts = layouts_of((GroupSpec(block_size=2), GroupSpec(block_size=4)), 2)
    assert deepest_first([[0, 1], [2]], layouts) == [2, 1, 0]
    assert deepest_first([[0, 1, 2], [3]], layouts) == [2, 3, 1, 0]


def test_a_fork_remembers_what_has_left_the_window_of_its_parent():
    cache = PagedCache(16, 2, groups=WINDOWED)
    computed(cache, 0, list(range(9)))
    cache.fork(0, 1)
    with pytest.raises(WindowPassed):
        cache.truncate(1, 3)


def test_a_block_that_fills_a_gap_in_a_known_prefix_counts():
    cache = PagedCache(8, 2)
    prompt = [1, 2, 3, 4, 5]
    computed(cache, 0, prompt)
    first, second, _ = cache.block_table(0)
    cache.evict([first])
    computed(cache, 1, prompt)
    cache.evict([second, cache.block_table(1)[1]])
    cache.release(0)
    cache.release(1)
    cache.admit(2, prompt)
    assert cache.match(2) == 2


def test_the_device_hears_nothing_of_a_sequence_that_is_gone_before_the_step():
    cache, mirror = PagedCache(8, 2), WorkerMirror()
    cache.admit(0, [1, 2, 3])
    cache.extend(0, 3)
    cache.release(0)
    plan = cache.begin_step()
    assert (plan.tables, plan.dropped) == ((), ())
    mirror.apply(plan)
    assert mirror.table(0) == []


def test_without_prefix_caching_a_pool_that_is_too_small_says_so_and_changes_nothing():
    cache = PagedCache(2, 2, prefix_caching=False)
    cache.admit(0, [1, 2, 3, 4, 5])
    with pytest.raises(OutOfBlocks):
        cache.extend(0, 5)
    assert cache.stats().free_blocks == 2
    cache.extend(0, 4)
    assert sorted(cache.block_table(0)) == [0, 1]


def test_a_hit_is_cut_where_a_windowed_group_has_a_gap():
    cache = PagedCache(16, 2, groups=WINDOWED)
    prompt = list(range(10))
    computed(cache, 0, prompt[:9])
    cache.evict([cache.block_table(0, 1)[3]])
    cache.admit(1, prompt)
    assert cache.match(1) == 6


def test_an_index_in_which_nothing_is_left_keeps_nothing():
    cache = PagedCache(8, 2)
    prompt = [1, 2, 3, 4, 5]
    computed(cache, 0, prompt)
    cache.evict(cache.block_table(0)[:1])
    computed(cache, 1, prompt)
    cache.release(0)
    cache.release(1)
    cache.evict(range(8))
    assert cache._index._roots == {}
    assert cache._index.filed == 0


def test_a_prefix_whose_gap_was_filled_outlives_its_holders():
    cache = PagedCache(8, 2)
    prompt = [1, 2, 3, 4, 5]
    computed(cache, 0, prompt)
    cache.evict(cache.block_table(0)[:1])
    computed(cache, 1, prompt)
    cache.release(0)
    cache.release(1)
    cache.admit(2, prompt)
    assert cache.match(2) == 4


def test_what_was_trimmed_from_a_prefix_is_no_hit_of_what_took_its_place():
    cache = PagedCache(8, 2)
    computed(cache, 0, [1, 2, 3, 4, 9])
    second = cache.block_table(0)[1]
    cache.release(0)
    cache.evict([second])
    computed(cache, 1, [1, 2, 5, 6, 9])
    cache.admit(2, [1, 2, 3, 4, 9])
    cache.admit(3, [1, 2, 5, 6, 9])
    assert (cache.match(2), cache.match(3)) == (2, 4)


def test_a_prompt_that_leaves_a_prefix_early_does_not_go_on_where_that_branches():
    cache = PagedCache(12, 2)
    computed(cache, 0, [1, 2, 3, 4, 5, 6])
    computed(cache, 1, [1, 2, 3, 4, 7, 8])
    cache.admit(2, [1, 2, 7, 8, 9])
    assert cache.match(2) == 2


def test_a_gap_that_was_filled_in_one_of_two_groups_is_found_by_its_block_again():
    cache = PagedCache(24, 2, groups=WINDOWED)
    prompt = list(range(9))
    computed(cache, 0, prompt)
    cache.evict([cache.block_table(0)[2]])
    computed(cache, 1, prompt)
    cache.admit(2, prompt)
    assert cache.match(2) == 8
    cache.evict([cache.block_table(1)[2]])
    assert cache.match(2) == 4


def test_a_window_alone_lets_go_of_what_is_left_in_it():
    cache = PagedCache(8, 2, groups=(GroupSpec("sliding_window", window=3),))
    computed(cache, 0, list(range(9)))
    assert cache.block_table(0)[0] is None
    cache.release(0)
    assert cache.stats().free_blocks == 8


def test_a_tree_in_which_nobody_stands_is_gone():
    cache = PagedCache(8, 4)
    computed(cache, 0, [1, 2])
    assert cache._index._roots
    cache.release(0)
    assert cache._index._roots == {}


def test_a_prefix_whose_blocks_were_all_reused_is_gone_from_the_tree():
    cache = PagedCache(2, 2)
    computed(cache, 0, [1, 2, 3, 4])
    cache.release(0)
    computed(cache, 1, [5, 6, 7, 8])
    [root] = cache._index._roots.values()
    assert len(root.children) == 1


def test_a_windowed_group_serves_with_no_more_than_the_blocks_that_are_needed():
    cache = PagedCache(16, 2, groups=WINDOWED)
    prompt = list(range(10))
    cache.admit(0, prompt[:9])
    for count in (7, 2):
        cache.extend(0, count)
        cache.end_step(cache.begin_step().step)
        cache.commit(0)
        if count == 7:
            older = cache.block_table(0, 1)[2]
    cache.evict([older])
    cache.admit(1, prompt)
    assert cache.match(1) == 8


def test_a_matchable_tail_is_copied_while_one_block_is_free():
    cache = PagedCache(2, 2)
    computed(cache, 0, [1, 2])
    cache.truncate(0, 1)
    cache.append(0, [3])
    assert len(cache.extend(0, 1).copies) == 1
    assert cache.books().cached == {0}


def test_a_matchable_tail_is_rewritten_where_no_block_is_free():
    cache = PagedCache(1, 2)
    computed(cache, 0, [1, 2])
    cache.truncate(0, 1)
    cache.append(0, [3])
    assert cache.extend(0, 1).copies == ()
    assert cache.books().cached == frozenset()


def test_what_a_truncation_frees_is_evicted_from_the_end_whatever_the_size_of_the_blocks():
    cache = PagedCache(20, 2, groups=(GroupSpec(block_size=2), GroupSpec(block_size=4)))
    computed(cache, 0, list(range(12)))
    ends = {block: size * (index + 1) for group, size in enumerate((2, 4)) for index, block in enumerate(cache.block_table(0, group))}
    cache.truncate(0, 1)
    evictable = [block for block in cache.books().free if block in cache.books().cached]
    assert [ends[block] for block in evictable] == [12, 12, 10, 8, 8, 6, 4]


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_an_accepted_draft_may_be_wider_than_all_tokens_before_it(accepted):
    wide = 2**40
    cache = PagedCache(8, 2)
    computed(cache, 0, [1, 2, 3])
    cache.append(0, [4])
    cache.extend(0, 1, (5, wide))
    cache.end_step(cache.begin_step().step)
    cache.commit(0, accepted)
    assert cache.tokens(0) == [1, 2, 3, 4, 5, wide][: 4 + accepted]
    # What it computes from here on would be filed where its beginning is not, so nothing more is.
    assert len(cache.books().cached) == (1 if accepted == 2 else 2)


def test_drafts_are_those_of_one_pass():
    cache = PagedCache(8, 2)
    computed(cache, 0, [1, 2, 3])
    cache.append(0, [4])
    cache.extend(0, 1, (5,))
    cache.end_step(cache.begin_step().step)
    cache.commit(0, 1)
    cache.append(0, [6])
    cache.extend(0, 1)
    cache.end_step(cache.begin_step().step)
    with pytest.raises(TooManyAccepted):
        cache.commit(0, 1)


def test_a_window_that_was_cut_back_past_what_had_left_it_frees_what_leaves_it_again():
    cache = PagedCache(16, 2, groups=(GroupSpec("sliding_window", window=1),))
    computed(cache, 0, list(range(9)))
    assert [block is None for block in cache.block_table(0)] == [True] * 4 + [False]
    cache.truncate(0, 4)
    cache.append(0, [9, 10, 11, 12, 13])
    cache.extend(0, 5)
    cache.end_step(cache.begin_step().step)
    cache.commit(0)
    assert [block is None for block in cache.block_table(0)] == [True] * 4 + [False]


def test_a_block_that_was_evicted_while_it_was_held_stays_unmatchable_when_the_next_one_fills():
    """It was offered to the index once, when it filled up: what was offered is not offered again."""
    cache = PagedCache(8, 2, events=True)
    computed(cache, 0, [1, 2])
    for token in (3, 4):
        grow(cache, 0, token)
    first, second = cache.block_table(0)
    assert cache.evict([second]) == 1
    cache.take_events()
    for token in (5, 6):
        grow(cache, 0, token)
    assert second not in cache.books().cached
    assert [event.blocks for event in cache.take_events()] == [(cache.block_table(0)[2],)]
    cache.admit(1, [1, 2, 3, 4, 5])
    assert cache.match(1) == 2
    assert first in cache.books().cached


def grow(cache, seq, token):
    cache.append(seq, [token])
    cache.extend(seq, 1)
    cache.end_step(cache.begin_step().step)
    cache.commit(seq)


@pytest.mark.parametrize(
    "answer",
    [
        ExtendGrant(),
        TableDelta(0, 0, 0, ()),
        StepPlan(1),
        HostCopies(0),
        BlockEvent("cleared"),
        PagedCache(1, 1).books(),
        PagedCache(1, 1).stats(),
        GroupSpec(),
        *layouts_of((GroupSpec(),), 1),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_nobody_can_change_an_answer(answer):
    with pytest.raises(FrozenInstanceError):
        setattr(answer, fields(answer)[0].name, None)
    assert not hasattr(answer, "__dict__")


def test_what_a_cache_is_when_nothing_is_asked_of_it():
    cache = PagedCache(2, 2)
    computed(cache, 0, [1, 2, 3])
    assert cache.swap_out(0) is None  # no host tier
    assert cache.begin_step().step == 2  # device steps, counted from 1
    cache.admit(1, [1, 2, 3])
    assert cache.match(1) == 2  # prefix caching
    assert cache.stats().host_blocks_used == 0
    with pytest.raises(CacheError, match="keeps no events"):
        cache.take_events()


def test_the_source_of_a_copy_that_never_ran_is_evicted_before_what_it_builds_on():
    cache = PagedCache(8, 2)
    computed(cache, 0, [1, 2, 3, 4])
    first, second = cache.block_table(0)
    cache.truncate(0, 3)
    cache.append(0, [9])
    [(_, source, _)] = cache.extend(0, 1).copies
    assert source == second
    cache.release(0)
    assert [block for block in cache.books().free if block in cache.books().cached] == [second, first]


def test_drafts_that_found_no_room_are_forgotten():
    cache = PagedCache(1, 2)
    computed(cache, 0, [1])
    cache.append(0, [2])
    with pytest.raises(OutOfBlocks):
        cache.extend(0, 1, (3,))
    cache.extend(0, 1)
    cache.end_step(cache.begin_step().step)
    with pytest.raises(TooManyAccepted):
        cache.commit(0, 1)


def test_the_source_of_a_copy_stays_held_where_a_commit_raises():
    cache = PagedCache(4, 2, steps=False)
    cache.admit(0, [1, 2])
    cache.extend(0, 2)
    cache.commit(0)
    cache.truncate(0, 1)
    cache.append(0, [3])
    assert cache.extend(0, 1).copies == ((0, 0, 1),)
    before = cache.books()
    with pytest.raises(TooManyAccepted):
        cache.commit(0, 1)
    assert cache.books() == before
    assert before.retiring == {0}


def test_the_order_in_which_namespace_fields_are_named_says_nothing():
    cache = PagedCache(8, 2)
    cache.admit(0, [1, 2, 3], {"tenant": "a", "model": "b"})
    cache.extend(0, 3)
    cache.end_step(cache.begin_step().step)
    cache.commit(0)
    cache.admit(1, [1, 2, 3], {"model": "b", "tenant": "a"})
    assert cache.match(1) == 2


def test_tokens_and_blocks_may_come_from_an_iterator():
    cache = PagedCache(8, 2)
    cache.admit(0, iter([1, 2, 3]))
    cache.append(0, iter([4, 5]))
    assert cache.tokens(0) == [1, 2, 3, 4, 5]
    cache.extend(0, 5)
    cache.end_step(cache.begin_step().step)
    cache.commit(0)
    assert cache.evict(iter(cache.block_table(0))) == 2


def test_a_prompt_that_repeats_its_beginning_is_filed_where_it_stands():
    cache = PagedCache(16, 1)
    computed(cache, 0, [0, 1])
    computed(cache, 1, [0, 0, 1])
    cache.admit(2, [0, 1, 1, 5])
    cache.admit(3, [0, 0, 1, 5])
    assert (cache.match(2), cache.match(3)) == (2, 3)


def test_a_truncate_offers_no_block_again_that_is_whole():
    """Were they offered again, a block that the engine had made unmatchable would come back."""
    cache = PagedCache(20, 2, groups=(GroupSpec(block_size=2), GroupSpec(block_size=4)), steps=False, events=True)
    cache.admit(0, range(8))
    cache.extend(0, 8)
    cache.commit(0)
    cache.evict([cache.block_table(0)[2]])
    cache.truncate(0, 7)
    cache.append(0, [9])
    cache.take_events()
    cache.extend(0, 1)
    cache.commit(0)
    stored = [(event.group, event.blocks) for event in cache.take_events()]
    assert stored == [(0, (cache.block_table(0)[3],)), (1, (cache.block_table(0, 1)[1],))]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_blocks_are_handed_out_in_the_order_that_the_books_show(count):
    pool = BlockPool(4)
    pool.take(2)
    pool.labels[1] = 0
    pool.drop([1, 0])
    assert pool.free_order() == [0, 2, 3, 1]
    assert pool.take(count) == [0, 2, 3, 1][:count]
