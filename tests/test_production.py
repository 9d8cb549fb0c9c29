"""The production cache, promise by promise, with answers worked out by hand. Random operations are in test_production_random.py."""

import ast
import threading
from pathlib import Path

import pytest

from kvproof.impl.production import BlockPool, GroupSpec, PagedCache, WorkerMirror, errors
from kvproof.impl.production import cache as cache_module
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.impl.production.books import Auditor
from kvproof.impl.production.index import PrefixIndex, _agreement
from kvproof.models.capabilities import Group
from kvproof.models.ops import NAMESPACE_FIELDS, NO_NAMESPACE
from kvproof.models.outcomes import OutOfBlocks, Refused

WINDOW = GroupSpec("sliding_window", window=4)


def make(num_blocks=8, block_size=2, **options):
    return PagedCache(num_blocks, block_size, **{"steps": False, "events": True, **options})


def compute(cache, seq, tokens, namespace=None, **extend):
    """Admits a prompt and computes all of it at once; returns the block table."""
    cache.admit(seq, tokens, namespace)
    cache.extend(seq, len(tokens), **extend)
    cache.commit(seq)
    return cache.block_table(seq)


def cached(cache):
    return set(cache.books().cached)


def step(cache):
    plan = cache.begin_step()
    cache.end_step(plan.step)
    return plan


class TestPool:
    def test_blocks_are_handed_out_in_order(self):
        assert BlockPool(3).take(2) == [0, 1]

    def test_the_last_clean_block_let_go_is_the_first_handed_out(self):
        pool = BlockPool(4)
        pool.drop(pool.take(3)[::-1])
        pool.drop(
            [
                *pool.take(2),
            ][::-1]
        )
        assert list(pool.free_order()) == [0, 1, 2, 3]
        assert pool.take(4) == [0, 1, 2, 3]

    def test_clean_blocks_go_before_filed_ones_and_these_by_their_last_use(self):
        pool = BlockPool(4)
        pool.take(4)
        for block in (2, 0):
            pool.labels[block] = 0
        pool.drop([2, 3, 0, 1])
        assert list(pool.free_order()) == [1, 3, 2, 0]

    def test_a_shared_block_leaves_the_list_from_its_middle(self):
        pool = BlockPool(3)
        pool.take(3)
        pool.labels[:] = [0, 1, 2]
        pool.drop([0, 1, 2])
        pool.share([1])
        assert list(pool.free_order()) == [0, 2]
        assert pool.available == 2
        pool.drop([1])
        assert list(pool.free_order()) == [0, 2, 1]

    def test_letting_go_of_what_nobody_holds_is_an_error(self):
        pool = BlockPool(2)
        with pytest.raises(errors.BlockNotHeld, match="block 0"):
            pool.drop([0])


class TestBooks:
    @pytest.mark.parametrize("filed", [False, True])
    def test_an_order_that_alone_has_changed_is_shown(self, filed):
        pool = BlockPool(3)
        auditor = Auditor(pool)
        pool.take(3)
        if filed:
            pool.labels[:] = [0, 1, 2]
        pool.drop([0, 1, 2])
        before = auditor.books({})
        again = [0, 1]
        pool.share(again) if filed else pool.take(3)
        pool.drop(again if filed else [1, 0, 2])
        assert auditor.books({}).free == tuple(pool.free_order())
        assert auditor.books({}).free != before.free

    def test_books_in_which_nothing_has_moved_are_the_same_ones(self):
        cache = make()
        compute(cache, 0, [1, 2, 3])
        before = cache.books()
        cache.append(0, [4])
        assert cache.books() is before
        cache.extend(0, 1)
        cache.release(0)
        assert cache.books() is not before


class TestTablesAndRoom:
    def test_tables_are_as_long_as_the_extends_asked_for(self):
        cache = make()
        cache.admit(0, [1, 2, 3, 4, 5])
        cache.extend(0, 3)
        assert cache.block_table(0) == [0, 1]
        cache.commit(0)
        cache.extend(0, 1)
        assert cache.block_table(0) == [0, 1]
        cache.commit(0)
        cache.extend(0, 100)
        assert cache.block_table(0) == [0, 1, 2]
        assert cache.computed(0) == 4
        cache.commit(0)
        assert cache.computed(0) == 5

    def test_exhaustion_changes_nothing(self):
        cache = make(num_blocks=3)
        compute(cache, 0, [1, 2, 3])
        cache.append(0, [4, 5, 6, 7])
        cache.admit(1, [9, 9])
        before = cache.books(), cache.block_table(0), cache.stats()
        with pytest.raises(errors.OutOfBlocks, match="sequence 0 needs 2 blocks, and 1 of 3"):
            cache.extend(0, 4)
        assert (cache.books(), cache.block_table(0), cache.stats()) == before
        cache.extend(0, 3)
        with pytest.raises(errors.OutOfBlocks, match="sequence 1"):
            cache.extend(1, 2)

    def test_a_returned_table_is_a_copy(self):
        cache = make()
        compute(cache, 0, [1, 2]).append(99)
        assert cache.block_table(0) == [0]

    def test_release_is_idempotent_and_preempt_keeps_the_tokens(self):
        cache = make()
        compute(cache, 0, [1, 2, 3])
        assert cache.preempt(0)
        assert not cache.preempt(0)
        assert (cache.computed(0), cache.tokens(0), cache.block_table(0)) == (0, [1, 2, 3], [])
        assert cache.release(0)
        assert not cache.release(0)
        assert not cache.preempt(0)
        assert len(cache.books().free) == 8

    def test_a_preempted_sequence_is_extended_again_and_adopts_its_own_blocks(self):
        cache = make()
        table = compute(cache, 0, [1, 2, 3, 4, 5])
        cache.preempt(0)
        assert cache.extend(0, 1).adopted == 4
        assert cache.block_table(0)[:2] == table[:2]


class TestPrefix:
    def test_a_match_leaves_the_last_token_and_holds_nothing(self):
        cache = make()
        compute(cache, 0, [1, 2, 3, 4])
        cache.release(0)
        cache.admit(1, [1, 2, 3, 4])
        before = cache.books()
        assert cache.match(1) == 2
        assert cache.books() == before
        cache.append(1, [5])
        assert cache.match(1) == 4

    def test_the_first_extend_looks_again(self):
        cache = make()
        cache.admit(1, [1, 2, 3])
        assert cache.match(1) == 0
        compute(cache, 0, [1, 2, 3])
        assert cache.extend(1, 5).adopted == 2
        assert cache.block_table(1)[0] == cache.block_table(0)[0]
        assert cache.books().refcounts[0] == 2

    def test_only_whole_committed_blocks_are_matchable(self):
        cache = make()
        cache.admit(0, [1, 2, 3, 4, 5])
        cache.extend(0, 5)
        assert cached(cache) == set()
        cache.commit(0)
        assert cached(cache) == {0, 1}

    def test_tokens_decide_whatever_comes_first_or_between(self):
        cache = make()
        compute(cache, 0, [1, 2, 3, 4])
        for seq, (prompt, hit) in enumerate([([9, 2, 3, 4, 0], 0), ([1, 2, 9, 4, 0], 2), ([3, 4, 1, 2, 0], 0), ([1, 2, 3, 4, 0], 4)], 1):
            cache.admit(seq, prompt)
            assert cache.match(seq) == hit

    def test_a_long_run_is_split_where_prompts_differ(self):
        cache = make(num_blocks=16)
        compute(cache, 0, [1, 2, 3, 4, 5, 6, 7, 8])
        compute(cache, 1, [1, 2, 3, 4, 9, 9, 9, 9])
        assert cache.block_table(1)[:2] == [0, 1]
        # Both go on where they stood before the split.
        for seq in (0, 1):
            cache.append(seq, [7, 7])
            cache.extend(seq, 2)
            cache.commit(seq)
        cache.admit(2, [1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 0])
        cache.admit(3, [1, 2, 3, 4, 9, 9, 9, 9, 7, 7, 0])
        assert (cache.match(2), cache.match(3)) == (10, 10)

    @pytest.mark.parametrize("agreed", range(4))
    def test_the_point_of_divergence(self, agreed):
        one, two = bytearray(8), bytearray(8)
        two[2 * agreed + 1] = 1
        assert _agreement(bytes(one), two, 2) == 2 * agreed

    def test_every_field_of_a_namespace_counts_and_fields_are_tagged(self):
        cache = make(num_blocks=32)
        namespaces = [
            None,
            {"tenant": "a"},
            {"tenant": "b"},
            {"model": "a"},
            {"tenant": "a", "model": "a"},
            {"tenant": ""},
            {"tenant": "None"},
        ]
        for seq, namespace in enumerate(namespaces):
            cache.admit(seq, [1, 2, 3], namespace)
            assert cache.match(seq) == 0
            cache.extend(seq, 3)
            cache.commit(seq)
        cache.admit(99, [1, 2, 3], {"model": None, "tenant": "a"})
        assert cache.match(99) == 2

    def test_a_second_block_of_the_same_content_stays_private(self):
        cache = make()
        for seq in (0, 1):
            cache.admit(seq, [1, 2, 3])
        for seq in (0, 1):
            cache.extend(seq, 3)
        for seq in (0, 1):
            cache.commit(seq)
        assert cached(cache) == {0}
        assert cache.block_table(1) == [2, 3]
        cache.evict([0])
        cache.admit(2, [1, 2, 3])
        assert cache.match(2) == 0
        cache.release(1)
        assert cached(cache) == set()

    def test_what_was_evicted_is_published_again_under_what_was_not(self):
        cache = make()
        compute(cache, 0, [1, 2, 3, 4, 5, 6])
        assert cache.evict([0, 0, 7]) == 1
        cache.admit(1, [1, 2, 3, 4, 5, 6, 7])
        assert cache.match(1) == 0
        cache.extend(1, 2)
        cache.commit(1)
        cache.admit(2, [1, 2, 3, 4, 5, 6, 7])
        assert cache.match(2) == 6
        assert cache.extend(2, 1).adopted == 6
        assert cache.block_table(2)[:3] == [3, 1, 2]

    def test_least_recently_used_first_and_deeper_first(self):
        cache = make(num_blocks=6)
        compute(cache, 0, [1, 2, 3, 4])
        compute(cache, 1, [1, 2, 5, 6])
        cache.release(0)
        cache.release(1)
        # Block 1 (tokens 3, 4) came first, then 2 (tokens 5, 6), then the shared 0.
        assert cache.books().free == (3, 4, 5, 1, 2, 0)
        cache.admit(2, [1, 2, 3, 4, 5])
        cache.extend(2, 1)
        cache.preempt(2)
        assert cache.books().free == (3, 4, 5, 2, 1, 0)
        compute(cache, 3, [8] * 8)
        assert cached(cache) >= {1, 0}
        assert 2 in cache.block_table(3)

    def test_a_hit_that_leaves_no_room_is_given_up_block_by_block(self):
        cache = make(num_blocks=3)
        compute(cache, 0, [1, 2, 3, 4, 5, 6])
        cache.release(0)
        cache.admit(1, [1, 2, 3, 4, 5, 6, 7])
        assert cache.match(1) == 6
        assert cache.extend(1, 1).adopted == 4
        assert cache.block_table(1) == [0, 1, 2]

    def test_held_hits_cost_nothing(self):
        cache = make(num_blocks=3)
        compute(cache, 0, [1, 2, 3, 4])
        cache.admit(1, [1, 2, 3, 4, 5])
        assert cache.extend(1, 1).adopted == 4
        assert cache.block_table(1) == [0, 1, 2]

    def test_without_caching_nothing_is_matchable(self):
        cache = make(prefix_caching=False)
        compute(cache, 0, [1, 2, 3])
        cache.admit(1, [1, 2, 3])
        assert cache.match(1) == 0
        assert cache.extend(1, 3).adopted == 0
        assert cached(cache) == set()

    def test_tokens_beyond_32_bits_are_told_apart(self):
        cache = make()
        big = 2**32
        compute(cache, 0, [1, big + 2, 3])
        cache.admit(1, [1, 2, 3])
        cache.admit(2, [1, big + 2, 3])
        assert (cache.match(1), cache.match(2)) == (0, 2)
        with pytest.raises(errors.TokenOutOfRange):
            cache.admit(3, [2**64])

    def test_a_wide_token_in_mid_course_ends_publication_and_loses_nothing(self):
        cache = make()
        compute(cache, 0, [1, 2])
        cache.append(0, [3, -1])
        cache.extend(0, 2)
        cache.commit(0)
        assert cache.tokens(0) == [1, 2, 3, -1]
        assert cached(cache) == {0}
        with pytest.raises(errors.TokenOutOfRange):
            cache.append(0, [4, 2**70])
        assert cache.tokens(0) == [1, 2, 3, -1]

    def test_nothing_is_remembered_once_everything_is_gone(self):
        cache = make()
        compute(cache, 0, [1, 2, 3, 4, 5], {"tenant": "a"})
        cache.fork(0, 1)
        cache.release(0)
        cache.release(1)
        cache.evict(range(8))
        index: PrefixIndex = cache._index
        assert not index._roots
        assert not index._root_keys
        assert index.filed == 0


class TestDrafts:
    def test_rejected_drafts_are_forgotten_and_their_blocks_freed(self):
        cache = make()
        compute(cache, 0, [1])
        cache.append(0, [2])
        cache.extend(0, 1, drafts=[3, 4, 5])
        assert cache.block_table(0) == [0, 1, 2]
        cache.commit(0, accepted=1)
        assert (cache.tokens(0), cache.computed(0), cache.block_table(0)) == ([1, 2, 3], 3, [0, 1])
        assert cached(cache) == {0}
        cache.append(0, [9])
        cache.extend(0, 1)
        cache.commit(0)
        cache.admit(1, [1, 2, 3, 4, 5])
        cache.admit(2, [1, 2, 3, 9, 5])
        assert (cache.match(1), cache.match(2)) == (2, 4)

    def test_drafts_of_a_preempted_extend_are_dropped(self):
        cache = make()
        compute(cache, 0, [1])
        cache.append(0, [2])
        cache.extend(0, 1, drafts=[3])
        cache.preempt(0)
        assert cache.tokens(0) == [1, 2]
        with pytest.raises(errors.NothingToCommit, match="sequence 0"):
            cache.commit(0, 1)

    def test_drafts_follow_the_last_known_token(self):
        cache = make()
        cache.admit(0, [1, 2, 3])
        with pytest.raises(errors.DraftsNotAllowed, match="first extend of sequence 0"):
            cache.extend(0, 3, drafts=[4])
        cache.extend(0, 1)
        cache.commit(0)
        with pytest.raises(errors.DraftsNotAllowed, match="1 known tokens behind"):
            cache.extend(0, 1, drafts=[4])
        cache.extend(0, 2, drafts=[4])
        with pytest.raises(errors.TooManyAccepted, match="accept 0 up to that, not 2"):
            cache.commit(0, 2)
        cache.commit(0, 1)
        assert cache.tokens(0) == [1, 2, 3, 4]


class TestCopyOnWrite:
    def test_a_fork_shares_everything_and_the_first_writer_copies_the_tail(self):
        cache = make()
        compute(cache, 0, [1, 2, 3])
        cache.fork(0, 1)
        assert cache.block_table(1) == [0, 1]
        assert cache.books().refcounts == {0: 2, 1: 2}
        for seq in (0, 1):
            cache.append(seq, [4 + seq])
        assert cache.extend(0, 1).copies == ((0, 1, 2),)
        cache.commit(0)
        assert (cache.block_table(0), cache.block_table(1)) == ([0, 2], [0, 1])
        # The other is alone in the tail now.
        assert cache.extend(1, 1).copies == ()
        cache.commit(1)
        assert cached(cache) == {0, 1, 2}

    def test_a_fork_at_a_block_boundary_needs_no_copy(self):
        cache = make()
        compute(cache, 0, [1, 2])
        cache.fork(0, 1)
        for seq in (0, 1):
            cache.append(seq, [3])
            assert cache.extend(seq, 1).copies == ()
        assert (cache.block_table(0), cache.block_table(1)) == ([0, 1], [0, 2])

    def test_a_fork_of_what_holds_nothing_is_a_fresh_sequence(self):
        cache = make()
        cache.admit(0, [1, 2, 3], {"tenant": "a"})
        cache.fork(0, 1)
        compute(cache, 2, [1, 2, 3], {"tenant": "a"})
        assert cache.match(1) == 2

    def test_a_published_tail_is_copied_and_stays_matchable(self):
        cache = make()
        compute(cache, 0, [1, 2])
        cache.truncate(0, 1)
        cache.append(0, [9])
        assert cache.extend(0, 1).copies == ((0, 0, 1),)
        # Until the copy has run its source is nobody's, and not free.
        assert cache.books().retiring == {0}
        assert 0 not in cache.books().free
        cache.commit(0)
        assert cached(cache) == {0, 1}
        assert cache.books().free[-1] == 0

    def test_without_a_block_for_the_copy_the_promise_is_broken_instead(self):
        cache = make(num_blocks=1)
        compute(cache, 0, [1, 2])
        cache.truncate(0, 1)
        cache.append(0, [9])
        assert cache.extend(0, 1).copies == ()
        assert cached(cache) == set()
        assert [(event.kind, event.reason) for event in cache.take_events()] == [("stored", None), ("removed", "rewritten")]

    def test_a_shared_tail_without_a_block_for_the_copy_is_exhaustion(self):
        cache = make(num_blocks=1)
        compute(cache, 0, [1])
        cache.fork(0, 1)
        cache.append(0, [2])
        with pytest.raises(errors.OutOfBlocks):
            cache.extend(0, 1)
        cache.release(1)
        assert cache.extend(0, 1).copies == ()

    def test_the_copies_of_one_step_are_one_sound_batch(self):
        cache = make(steps=True)
        cache.admit(0, [1])
        cache.extend(0, 1)
        step(cache)
        cache.commit(0)
        for child in (1, 2):
            cache.fork(0, child)
        for seq in (0, 1, 2):
            cache.append(seq, [5 + seq])
            cache.extend(seq, 1)
        plan = cache.begin_step()
        # The source of a copy that has not run is not written, so all three copy.
        assert plan.copies == ((0, 0, 1), (0, 0, 2), (0, 0, 3))
        assert cache.books().retiring == {0}
        cache.end_step(plan.step)
        assert 0 in cache.books().free


class TestTruncate:
    def test_blocks_past_the_length_are_freed_and_the_rest_is_forgotten(self):
        cache = make()
        compute(cache, 0, [1, 2, 3, 4, 5])
        cache.append(0, [6])
        cache.truncate(0, 3)
        assert (cache.tokens(0), cache.computed(0), cache.block_table(0)) == ([1, 2, 3], 3, [0, 1])
        cache.append(0, [7, 8])
        cache.extend(0, 2)
        cache.commit(0)
        cache.admit(1, [1, 2, 3, 7, 8])
        cache.admit(2, [1, 2, 3, 4, 5])
        assert (cache.match(1), cache.match(2)) == (4, 4)

    @pytest.mark.parametrize("length", [0, 4])
    def test_out_of_range(self, length):
        cache = make()
        compute(cache, 0, [1, 2, 3])
        with pytest.raises(errors.LengthOutOfRange, match="sequence 0 has computed 3"):
            cache.truncate(0, length)


class TestWindows:
    def test_blocks_that_left_the_window_are_freed_and_nulled(self):
        cache = make(groups=[WINDOW])
        cache.admit(0, list(range(9)))
        cache.extend(0, 9)
        assert cache.block_table(0) == [0, 1, 2, 3, 4]
        cache.commit(0)
        # Position 9 reads 6 to 9.
        assert cache.block_table(0) == [None, None, None, 3, 4]
        assert cached(cache) == {0, 1, 2, 3}

    def test_rejected_drafts_do_not_move_the_window(self):
        cache = make(groups=[WINDOW])
        compute(cache, 0, [1, 2, 3, 4])
        cache.append(0, [5])
        cache.extend(0, 1, drafts=[6, 7])
        assert None not in cache.block_table(0)
        cache.commit(0, 0)
        # Position 5 reads 2 to 5.
        assert cache.block_table(0) == [None, 1, 2]

    def test_a_truncation_that_needs_what_was_dropped_is_refused(self):
        cache = make(groups=[WINDOW])
        compute(cache, 0, list(range(9)))
        before = cache.books()
        with pytest.raises(errors.WindowPassed, match="sequence 0 at 8 tokens needs block 2 of group 0"):
            cache.truncate(0, 8)
        assert cache.books() == before
        cache.truncate(0, 9)

    def test_a_joint_hit_is_the_longest_that_every_group_can_serve(self):
        cache = make(num_blocks=16, groups=[GroupSpec(), WINDOW])
        compute(cache, 0, list(range(8)))
        full, windowed = [0, 1, 2, 3], [4, 5, 6, 7]
        assert cached(cache) == {*full, *windowed}
        cache.release(0)
        cache.admit(1, [*range(8), 99])
        assert cache.match(1) == 8
        # At 8 the window reads 5 to 7: blocks 6 and 7. Without 7 the longest is 6, which needs 3 to 5: blocks 5 and 6.
        cache.evict([7])
        assert cache.match(1) == 6
        cache.evict([0])
        assert cache.match(1) == 0
        cache.evict([])
        cache.extend(1, 1)

    def test_an_adopted_table_starts_at_the_window(self):
        cache = make(num_blocks=16, groups=[GroupSpec(), WINDOW])
        compute(cache, 0, list(range(8)))
        cache.admit(1, [*range(8), 99])
        cache.extend(1, 1)
        assert cache.block_table(1, 0)[:4] == [0, 1, 2, 3]
        assert cache.block_table(1, 1)[:4] == [None, None, 6, 7]

    def test_groups_with_blocks_of_their_own_size_hit_at_common_boundaries(self):
        cache = make(num_blocks=32, groups=[GroupSpec(block_size=4), GroupSpec(block_size=6)])
        compute(cache, 0, list(range(24)))
        cache.admit(1, [*range(20), 99])
        assert cache.match(1) == 12
        assert len(cache.block_table(0, 0)) == 6
        assert len(cache.block_table(0, 1)) == 4

    def test_no_group_takes_what_another_is_about_to_adopt(self):
        cache = make(num_blocks=6, groups=[GroupSpec(), GroupSpec()])
        compute(cache, 0, [1, 2, 3, 4])
        cache.release(0)
        cache.admit(1, [1, 2, 3, 4, 5])
        assert cache.extend(1, 1).adopted == 4
        tables = cache.block_table(1, 0) + cache.block_table(1, 1)
        assert len(set(tables)) == 6


class TestSteps:
    def test_a_release_in_flight_frees_at_the_end_of_the_step(self):
        cache = make(steps=True)
        cache.admit(0, [1, 2, 3])
        cache.extend(0, 3)
        plan = cache.begin_step()
        assert plan.sequences == (0,)
        cache.release(0)
        assert cache.books().retiring == {0, 1}
        assert cache.books().refcounts == {}
        assert cache.stats().retiring_blocks == 2
        cache.admit(1, [1] * 12)
        cache.extend(1, 12)
        assert not {0, 1} & set(cache.block_table(1))
        cache.end_step(plan.step)
        assert set(cache.books().free) == {0, 1}

    def test_a_release_before_the_launch_abandons_the_pass(self):
        cache = make(steps=True)
        cache.admit(0, [1, 2, 3])
        cache.extend(0, 3)
        cache.release(0)
        assert len(cache.books().free) == 8
        assert cached(cache) == set()
        assert cache.begin_step().sequences == ()

    def test_a_commit_waits_for_the_end_of_its_step(self):
        cache = make(steps=True)
        cache.admit(0, [1])
        cache.extend(0, 1)
        with pytest.raises(errors.PassNotFinished, match="sequence 0 was not launched"):
            cache.commit(0)
        plan = cache.begin_step()
        with pytest.raises(errors.PassNotFinished, match=r"end_step\(1\)"):
            cache.commit(0)
        cache.end_step(plan.step)
        cache.commit(0)

    def test_steps_may_overlap_and_end_in_any_order(self):
        cache = make(steps=True)
        plans = []
        for seq in (0, 1):
            cache.admit(seq, [seq, 2])
            cache.extend(seq, 2)
            plans.append(cache.begin_step())
        cache.preempt(0)
        cache.extend(0, 1)
        cache.end_step(plans[1].step)
        cache.commit(1)
        assert cache.books().retiring == {0}
        cache.end_step(plans[0].step)
        assert cache.books().retiring == set()
        with pytest.raises(errors.PassNotFinished):
            cache.commit(0)
        with pytest.raises(errors.UnknownStep, match="step 1 is not open; open steps: none"):
            cache.end_step(plans[0].step)

    def test_a_source_outlives_all_its_holders_until_the_copy_has_run(self):
        cache = make(steps=True)
        cache.admit(0, [1])
        cache.extend(0, 1)
        step(cache)
        cache.commit(0)
        cache.fork(0, 1)
        cache.append(0, [2])
        assert cache.extend(0, 1).copies == ((0, 0, 1),)
        cache.release(1)
        assert cache.books().retiring == {0}
        plan = cache.begin_step()
        cache.release(0)
        assert cache.books().retiring == {0, 1}
        cache.end_step(plan.step)
        assert len(cache.books().free) == 8

    def test_an_abandoned_copy_lets_go_of_its_source(self):
        cache = make(steps=True)
        cache.admit(0, [1])
        cache.extend(0, 1)
        step(cache)
        cache.commit(0)
        cache.fork(0, 1)
        cache.append(0, [2])
        cache.extend(0, 1)
        cache.preempt(0)
        assert cache.begin_step().copies == ()
        assert cache.books().refcounts == {0: 1}

    def test_without_steps_there_is_nothing_to_begin(self):
        with pytest.raises(errors.StepsDisabled):
            make().begin_step()


class TestMirror:
    def test_the_device_side_follows_by_splices(self):
        cache, mirror = make(steps=True), WorkerMirror()
        cache.admit(0, [1, 2, 3])
        cache.extend(0, 3)
        plan = step(cache)
        mirror.apply(plan)
        assert [(d.seq, d.group, d.start, d.entries) for d in plan.tables] == [(0, 0, 0, (0, 1))]
        cache.commit(0)
        cache.append(0, [4])
        cache.extend(0, 1)
        assert step(cache).tables == ()
        cache.commit(0)
        cache.append(0, [5])
        cache.extend(0, 1)
        plan = step(cache)
        mirror.apply(plan)
        assert [(d.start, d.entries) for d in plan.tables] == [(2, (2,))]
        assert mirror.table(0) == cache.block_table(0)

    def test_preempted_and_resumed_between_two_steps(self):
        cache, mirror = make(steps=True), WorkerMirror()
        cache.admit(0, [1, 2, 3, 4, 5])
        cache.extend(0, 5)
        mirror.apply(step(cache))
        cache.preempt(0)
        cache.extend(0, 1)
        mirror.apply(cache.begin_step())
        assert mirror.table(0) == cache.block_table(0) != []
        cache.release(0)
        plan = cache.begin_step()
        mirror.apply(plan)
        assert plan.dropped == (0,)
        assert mirror.table(0) == []


class TestEvictAndReset:
    def test_eviction_on_request_touches_no_holder(self):
        cache = make()
        compute(cache, 0, [1, 2, 3])
        assert cache.evict([0, 1]) == 1
        assert cache.block_table(0) == [0, 1]
        with pytest.raises(errors.BlockOutOfRange, match="block 8"):
            cache.evict([8])

    def test_what_was_held_at_a_reset_is_never_published_again(self):
        cache = make(num_blocks=16, host_blocks=8)
        compute(cache, 0, [1, 2, 3])
        compute(cache, 1, [5, 6, 7])
        cache.swap_out(1)
        assert cache.reset()
        assert cached(cache) == set()
        cache.swap_in(1)
        cache.fork(0, 2)
        for seq in (0, 1, 2):
            cache.append(seq, [8, 9])
            cache.extend(seq, 2)
            cache.commit(seq)
        assert cached(cache) == set()
        cache.preempt(0)
        cache.extend(0, 5)
        cache.commit(0)
        assert len(cached(cache)) == 2

    def test_a_pass_in_flight_at_a_reset_publishes_nothing(self):
        cache = make(steps=True)
        cache.admit(0, [1, 2])
        cache.extend(0, 2)
        plan = cache.begin_step()
        cache.reset()
        cache.end_step(plan.step)
        cache.commit(0)
        assert cached(cache) == set()

    def test_events_tell_what_became_matchable_and_why_it_ceased(self):
        cache = make(num_blocks=2)
        compute(cache, 0, [1, 2, 3, 4])
        cache.release(0)
        cache.evict([1])
        compute(cache, 1, [5, 6, 7])
        cache.reset()
        assert [(event.kind, event.blocks, event.reason) for event in cache.take_events()] == [
            ("stored", (0, 1), None),
            ("removed", (1,), "requested"),
            ("removed", (0,), "evicted"),
            ("stored", (1,), None),
            ("cleared", (), None),
        ]
        assert cache.take_events() == []


class TestHostTier:
    def test_out_and_in_again(self):
        cache = make(host_blocks=4)
        compute(cache, 0, [1, 2, 3])
        out = cache.swap_out(0)
        assert out.blocks == ((0, 0, 0), (0, 1, 1))
        assert cache.block_table(0) == []
        assert cache.computed(0) == 3
        assert cache.stats().host_blocks_used == 2
        assert len(cache.books().free) == 8
        back = cache.swap_in(0)
        assert [host for _, _, host in back.blocks] == [0, 1]
        assert cache.block_table(0) == [block for _, block, _ in back.blocks]
        assert cache.stats().host_blocks_used == 0
        cache.append(0, [4])
        cache.extend(0, 1)
        cache.commit(0)
        cache.admit(1, [1, 2, 3, 4, 5])
        assert cache.match(1) == 4

    def test_all_or_nothing(self):
        cache = make(num_blocks=2, host_blocks=1)
        compute(cache, 0, [1, 2, 3])
        before = cache.books()
        assert cache.swap_out(0) is None
        assert cache.books() == before
        cache.truncate(0, 2)
        assert cache.swap_out(0) is not None
        compute(cache, 1, [7, 8, 9])
        assert cache.swap_in(0) is None
        assert cache.block_table(0) == []
        cache.release(1)
        assert cache.swap_in(0) is not None

    def test_nothing_to_move(self):
        cache = make(host_blocks=4)
        cache.admit(0, [1])
        assert cache.swap_out(0) is None

    def test_a_swapped_sequence_must_come_back_first_but_may_go(self):
        cache = make(host_blocks=4)
        compute(cache, 0, [1, 2, 3])
        cache.append(0, [4])
        cache.swap_out(0)
        for operation in (
            lambda: cache.extend(0, 1),
            lambda: cache.match(0),
            lambda: cache.truncate(0, 1),
            lambda: cache.fork(0, 1),
            lambda: cache.swap_out(0),
            lambda: cache.commit(0),
        ):
            with pytest.raises(errors.SwappedOut, match="sequence 0: it is on the host tier; swap it in first"):
                operation()
        assert cache.preempt(0)
        assert cache.stats().host_blocks_used == 0
        with pytest.raises(errors.NotSwappedOut):
            cache.swap_in(0)


class TestErrors:
    def test_unknown_sequences(self):
        cache = make(host_blocks=1)
        for operation in (
            lambda: cache.append(7, [1]),
            lambda: cache.match(7),
            lambda: cache.extend(7, 1),
            lambda: cache.commit(7),
            lambda: cache.truncate(7, 1),
            lambda: cache.fork(7, 8),
            lambda: cache.swap_out(7),
            lambda: cache.swap_in(7),
            lambda: cache.block_table(7),
            lambda: cache.tokens(7),
            lambda: cache.computed(7),
        ):
            with pytest.raises(errors.UnknownSequence, match="sequence 7"):
                operation()

    def test_between_an_extend_and_its_commit(self):
        cache = make(host_blocks=1)
        cache.admit(0, [1, 2])
        cache.extend(0, 1)
        for operation in (
            lambda: cache.append(0, [1]),
            lambda: cache.extend(0, 1),
            lambda: cache.truncate(0, 1),
            lambda: cache.fork(0, 8),
            lambda: cache.swap_out(0),
        ):
            with pytest.raises(errors.UncommittedPass, match="commit or release it first"):
                operation()

    def test_numbers_are_taken_once(self):
        cache = make()
        cache.admit(0, [1])
        with pytest.raises(errors.SequenceExists, match="sequence 0"):
            cache.admit(0, [1])
        with pytest.raises(errors.SequenceExists, match="fork 0 to another number"):
            cache.fork(0, 0)
        cache.release(0)
        cache.admit(0, [2])

    def test_nothing_to_extend_or_commit(self):
        cache = make()
        cache.admit(0, [])
        with pytest.raises(errors.NothingToExtend, match="all its 0 tokens are computed"):
            cache.extend(0, 1)
        cache.append(0, [1])
        for count in (0, -1):
            with pytest.raises(errors.NothingToExtend, match="ask for one at least"):
                cache.extend(0, count)
        with pytest.raises(errors.NothingToCommit, match="extend it first"):
            cache.commit(0)

    @pytest.mark.parametrize(
        "options",
        [
            {"num_blocks": 0},
            {"block_size": 0},
            {"host_blocks": -1},
            {"groups": []},
            {"groups": [GroupSpec("sliding_window")]},
            {"groups": [GroupSpec("full", window=3)]},
            {"groups": [GroupSpec("sliding_window", window=0)]},
        ],
    )
    def test_impossible_configurations(self, options):
        with pytest.raises(errors.BadConfiguration):
            make(**options)

    def test_events_must_be_asked_for(self):
        with pytest.raises(errors.CacheError, match="events=True"):
            make(events=False).take_events()


class TestOperators:
    def test_stats(self):
        cache = make(num_blocks=4, block_size=4, host_blocks=4)
        compute(cache, 0, [1, 2, 3, 4, 5])
        cache.fork(0, 1)
        stats = cache.stats()
        assert (stats.used_blocks, stats.free_blocks, stats.cached_blocks, stats.sequences) == (2, 2, 1, 2)
        # One tail with one token, shared.
        assert stats.fragmentation_tokens == 3
        assert stats.usage == 0.5
        cache.append(1, [6])
        cache.extend(1, 1)
        cache.commit(1)
        cache.preempt(0)
        cache.extend(0, 1)
        cache.commit(0)
        cache.swap_out(1)
        cache.swap_in(1)
        stats = cache.stats()
        assert (stats.copied_blocks, stats.preemptions, stats.swaps_out, stats.swaps_in) == (1, 1, 1, 1)
        assert (stats.lookup_tokens, stats.hit_tokens, stats.hit_rate) == (10, 4, 0.4)
        with pytest.raises(AttributeError):
            stats.sequences = 3

    def test_the_hit_rate_of_an_idle_cache(self):
        assert make().stats().hit_rate == 0.0

    def test_threads_see_whole_operations(self):
        cache = PagedCache(64, 2, steps=False)
        failures = []

        def work(first):
            try:
                for seq in range(first, first + 200):
                    cache.admit(seq, [1, 2, 3, seq])
                    cache.extend(seq, 4)
                    cache.commit(seq)
                    cache.release(seq)
            except Exception as error:  # noqa: BLE001 -- carried to the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(cache.books().free) == 64

    def test_one_thread_can_do_without_the_lock(self):
        cache = make(locked=False)
        assert compute(cache, 0, [1, 2, 3]) == [0, 1]


class TestAdapter:
    @pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
    def test_it_claims_what_it_defines(self, adapter):
        claims = adapter.capabilities()
        for capability in ("prefix", "fork", "truncate", "drafts", "evict", "reset", "swap", "snapshot", "events"):
            assert getattr(claims, capability), capability
        assert claims.steps == claims.mirror == (adapter is not SynchronousAdapter)
        assert claims.groups == adapter.groups
        assert claims.policy - {"groups-together"} == {"lru", "tight", "exact"}
        assert ("groups-together" in claims.policy) == (adapter is HybridAdapter)
        assert claims.namespace_fields == set(NAMESPACE_FIELDS)
        assert not claims.transfer

    def test_a_life_through_the_contract(self):
        adapter = ProductionAdapter(num_blocks=4, block_size=2)
        adapter.admit(0, (1, 2, 3), NO_NAMESPACE)
        assert adapter.match(0).tokens == 0
        assert adapter.extend(0, 3).copies == ()
        number = adapter.begin_step()
        assert adapter.worker_table(0) == adapter.block_table(0) == [0, 1]
        adapter.end_step(number)
        adapter.commit(0, 0)
        assert [event.kind for event in adapter.take_events()] == ["stored"]
        assert adapter.fork(0, 1).copies == ()
        assert adapter.swap_out(1)
        assert adapter.swap_in(1)
        adapter.append(0, (4,) * 5)
        with pytest.raises(OutOfBlocks):
            adapter.extend(0, 5)
        adapter.truncate(0, 1)
        assert adapter.evict([0]) == 1
        assert adapter.reset()
        adapter.release(0, "preempt")
        adapter.release(0, "finish")
        adapter.release(1, "error")
        assert sorted(adapter.snapshot().free) == [0, 1, 2, 3]

    def test_the_reason_of_an_event_is_told(self):
        adapter = ProductionAdapter(num_blocks=2, block_size=1)
        adapter.admit(0, (1,), NO_NAMESPACE)
        adapter.extend(0, 1)
        adapter.end_step(adapter.begin_step())
        adapter.commit(0, 0)
        adapter.evict([0])
        assert [(event.kind, event.reason) for event in adapter.take_events()] == [("stored", ""), ("removed", "requested")]

    def test_groups_may_have_blocks_of_their_own_size(self):
        class Unequal(ProductionAdapter):
            groups = (Group(), Group(kind="sliding_window", window=3, block_size=4))

        adapter = Unequal(num_blocks=8, block_size=2)
        adapter.admit(0, (1, 2, 3, 4, 5), NO_NAMESPACE)
        adapter.extend(0, 5)
        assert [len(adapter.block_table(0, group)) for group in (0, 1)] == [3, 2]

    def test_a_group_of_another_kind_is_an_error(self):
        class Odd(ProductionAdapter):
            groups = (Group(kind="state"),)

        with pytest.raises(ValueError, match="no groups of kind 'state'; use full or sliding_window"):
            Odd(num_blocks=2, block_size=1)

    def test_a_passed_window_is_a_refusal(self):
        adapter = HybridAdapter(num_blocks=16, block_size=2)
        adapter.admit(0, range(12), NO_NAMESPACE)
        adapter.extend(0, 12)
        adapter.end_step(adapter.begin_step())
        adapter.commit(0, 0)
        with pytest.raises(Refused, match="left the window"):
            adapter.truncate(0, 6)


def test_the_core_imports_nothing_of_the_suite():
    root = Path(cache_module.__file__).parent
    for path in root.glob("*.py"):
        if path.name in ("adapter.py", "batched_adapter.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for name in names:
                assert not name.startswith("kvproof") or name.startswith("kvproof.impl.production"), f"{path.name} imports {name}"
