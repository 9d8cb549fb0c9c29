"""What sequences of the production cache share: prefixes, what is copied before it is written, what is evicted and reset."""

import pytest
from production_caches import cached, compute, make, step

from kvproof.impl.production import errors
from kvproof.impl.production.index import PrefixIndex, _agreement


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
