"""The production cache, promise by promise, with answers worked out by hand: pool, books, tables, drafts, truncation, windows, errors. Random operations are in test_production_random.py."""

import threading

import pytest
from production_caches import WINDOW, cached, compute, make

from kvproof.impl.production import BlockPool, GroupSpec, PagedCache, errors
from kvproof.impl.production.books import Auditor


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
