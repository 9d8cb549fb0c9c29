"""Decoding in batches: `decode` is the single operations for all its sequences, and all or nothing where it raises.

`test_production_random.py` compares it with the single operations on random histories; here is each case by itself.
"""

from copy import deepcopy

import pytest

from kvproof.impl.production import GroupSpec, PagedCache, WorkerMirror, errors

SIZE = 4


def running(*prompts, num_blocks=32, steps=False, **options):
    """A cache on which each prompt is a sequence, numbered from 0, whose prefill is out."""
    cache = PagedCache(num_blocks, SIZE, steps=steps, events=True, locked=False, **options)
    for seq, prompt in enumerate(prompts):
        cache.admit(seq, prompt)
        cache.extend(seq, len(prompt))
    return cache


def shown(cache, seqs):
    tables = {seq: (cache.block_table(seq), cache.tokens(seq), cache.computed(seq)) for seq in seqs}
    return tables, list(cache._events), cache.books(), cache.stats()


class TestWhatItDoes:
    def test_commits_appends_and_extends(self):
        cache = running([1, 2, 3], [5, 6, 7, 8])
        assert cache.decode([0, 1], [40, 90]) == ()
        assert (cache.tokens(0), cache.computed(0)) == ([1, 2, 3, 40], 3)
        assert (cache.tokens(1), cache.computed(1)) == ([5, 6, 7, 8, 90], 4)
        assert [len(cache.block_table(seq)) for seq in (0, 1)] == [1, 2]
        with pytest.raises(errors.UncommittedPass):
            cache.extend(0, 1)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"prefix_caching": False},
            {"groups": (GroupSpec(), GroupSpec("sliding_window", window=5))},
            {"groups": (GroupSpec(), GroupSpec("sliding_window", block_size=2, window=3))},
        ],
        ids=["full", "uncached", "window", "unequal blocks"],
    )
    def test_many_rounds_are_what_single_operations_make(self, options):
        prompts = [1, 2, 3, 4], [1, 2, 3, 9], [7, 7], [1, 2, 3, 4, 5, 6, 7]
        batch, single = (running(*prompts, num_blocks=99, **options) for _ in range(2))
        for token in range(20):
            assert batch.decode(range(4), [token] * 4) == ()
            for seq in range(4):
                single.commit(seq)
                single.append(seq, [token])
            for seq in range(4):
                single.extend(seq, 1)
        assert shown(batch, range(4)) == shown(single, range(4))

    def test_equal_sequences_publish_each_block_once(self):
        cache = running([1, 2, 3], [1, 2, 3])
        for token in range(10):
            cache.decode([0, 1], [token, token])
        assert cache.books().cached == set(cache.block_table(0)[:3])

    def test_what_was_decoded_is_found_again(self):
        cache = running([1, 2, 3])
        for token in range(10):
            cache.decode([0], [token])
        cache.admit(1, [1, 2, 3, *range(9), 77])
        assert cache.match(1) == 12

    def test_nobody_is_asked_for(self):
        cache = running([1, 2, 3])
        before = shown(cache, [0])
        assert cache.decode([], []) == ()
        assert shown(cache, [0]) == before

    def test_a_window_slides(self):
        groups = (GroupSpec(), GroupSpec("sliding_window", window=5))
        cache = running([1, 2, 3], groups=groups)
        for token in range(15):
            cache.decode([0], [token])
        assert cache.computed(0) == 17
        assert [block is None for block in cache.block_table(0, 1)] == [True, True, True, False, False]
        assert None not in cache.block_table(0, 0)

    def test_a_wide_token_in_the_batch_concerns_its_own_sequence_alone(self):
        cache = running([1, 2, 3], [5, 6, 7], [8, 9, 9])
        assert cache.decode([0, 1, 2], [4, 2**40, 4]) == ()
        for token in range(9):
            assert cache.decode([0, 1, 2], [token] * 3) == ()
        assert cache.tokens(1) == [5, 6, 7, 2**40, *range(9)]
        assert not set(cache.block_table(1)) & cache.books().cached
        assert set(cache.block_table(0)[:3] + cache.block_table(2)[:3]) == cache.books().cached

    def test_a_wide_token_behind_a_published_block_ends_publication(self):
        cache = running([1, 2, 3, 4, 5])
        for token in (2**40, *range(9)):
            cache.decode([0], [token])
        assert cache.books().cached == {cache.block_table(0)[0]}


class TestDrafts:
    def test_accepted_ones_come_before_the_sampled_token(self):
        cache = running([1, 2, 3], [5, 6, 7])
        cache.decode([0, 1], [10, 20], drafts={0: [11, 12, 13]})
        assert [len(cache.block_table(seq)) for seq in (0, 1)] == [2, 1]
        cache.decode([0, 1], [14, 21], accepted={0: 2})
        assert (cache.tokens(0), cache.computed(0)) == ([1, 2, 3, 10, 11, 12, 14], 6)
        assert (cache.tokens(1), cache.computed(1)) == ([5, 6, 7, 20, 21], 4)

    def test_the_others_are_forgotten_with_their_blocks(self):
        cache = running([1, 2, 3])
        cache.decode([0], [10], drafts={0: [11, 12, 13, 14, 15]})
        assert len(cache.block_table(0)) == 3
        cache.decode([0], [20])
        assert cache.tokens(0) == [1, 2, 3, 10, 20]
        assert len(cache.block_table(0)) == 2

    def test_a_calm_sequence_can_be_given_some(self):
        cache = running([1])
        cache.decode([0], [2])
        cache.decode([0], [3], drafts={0: [4, 5]})
        assert len(cache.block_table(0)) == 2
        cache.decode([0], [6], accepted={0: 2})
        assert cache.tokens(0) == [1, 2, 3, 4, 5, 6]


class TestExhaustion:
    def test_who_finds_no_room_is_returned_and_waits(self):
        cache = running([1, 2, 3], [5, 6, 7, 8], [9, 9, 9, 9], num_blocks=4)
        assert cache.decode([0, 1, 2], [40, 50, 60]) == (2,)
        assert (cache.tokens(2), cache.computed(2)) == ([9, 9, 9, 9, 60], 4)
        assert len(cache.block_table(2)) == 1
        cache.release(1)
        cache.extend(2, 1)
        assert cache.decode([0, 2], [41, 61]) == ()

    def test_nobody_behind_takes_what_a_short_one_waits_for(self):
        cache = running([1, 2, 3, 4], [5, 6, 7, 8], [9, 9], num_blocks=4)
        # One block is left: too little for 0 with its drafts, enough for 1.
        assert cache.decode([0, 1, 2], [1, 1, 1], drafts={0: [2, 2, 2, 2]}) == (0, 1)
        assert cache.stats().free_blocks == 1
        with pytest.raises(errors.UncommittedPass):
            cache.extend(2, 1)

    def test_what_rejected_drafts_held_serves_a_sequence_before(self):
        cache = running([1, 2, 3, 4], [5, 6, 7], num_blocks=4)
        assert cache.decode([1], [8], drafts={1: [9, 9, 9, 9]}) == ()
        assert cache.stats().free_blocks == 1
        assert cache.decode([0, 1], [5, 9], accepted={1: 0}) == ()
        assert [len(cache.block_table(seq)) for seq in (0, 1)] == [2, 2]

    def test_a_short_one_goes_on_like_any_other(self):
        cache = running([1, 2, 3, 4], [5, 6, 7, 8], num_blocks=3)
        assert cache.decode([0, 1], [1, 1]) == (1,)
        with pytest.raises(errors.NothingToCommit):
            cache.decode([1], [2])
        cache.preempt(1)
        assert cache.stats().preemptions == 1
        cache.release(0)
        cache.extend(1, 5)
        assert cache.decode([1], [2]) == ()


class TestSteps:
    def test_the_next_step_launches_what_was_granted(self):
        cache = running([1, 2, 3], [5, 6, 7, 8], [9, 9, 9, 9], num_blocks=4, steps=True)
        mirror = WorkerMirror()
        plan = cache.begin_step()
        mirror.apply(plan)
        cache.end_step(plan.step)
        assert cache.decode([0, 1, 2], [1, 1, 1]) == (2,)
        plan = cache.begin_step()
        mirror.apply(plan)
        assert plan.sequences == (0, 1)
        assert [mirror.table(seq) for seq in range(3)] == [cache.block_table(seq) for seq in range(3)]

    @pytest.mark.parametrize("launched", [False, True])
    def test_a_pass_has_to_be_finished(self, launched):
        cache = running([1, 2, 3], steps=True)
        if launched:
            cache.begin_step()
        with pytest.raises(errors.PassNotFinished, match="end_step" if launched else "begin_step"):
            cache.decode([0], [1])

    def test_a_granted_pass_has_to_be_finished_as_well(self):
        cache = running([1], steps=True)
        cache.end_step(cache.begin_step().step)
        cache.decode([0], [2])
        with pytest.raises(errors.PassNotFinished):
            cache.decode([0], [3])

    def test_a_release_before_the_launch(self):
        cache = running([1, 2, 3], [4], steps=True)
        cache.end_step(cache.begin_step().step)
        cache.decode([0, 1], [7, 7])
        cache.release(0)
        assert cache.begin_step().sequences == (1,)
        assert cache.stats().used_blocks == 1


class TestMixedWithSingleOperations:
    def test_a_commit_ends_the_batch_for_a_sequence(self):
        cache = running([1], [2])
        cache.decode([0, 1], [5, 5])
        cache.commit(0)
        cache.fork(0, 2)
        cache.append(0, [6])
        grant = cache.extend(0, 1)
        assert len(grant.copies) == 1
        cache.decode([0, 1], [7, 6])
        assert cache.tokens(0) == [1, 5, 6, 7]

    def test_a_preempted_one_comes_back(self):
        cache = running([1, 2, 3], [2])
        cache.decode([0, 1], [5, 5])
        cache.preempt(0)
        cache.extend(0, 4)
        cache.decode([0, 1], [6, 6])
        assert (cache.tokens(0), cache.computed(0)) == ([1, 2, 3, 5, 6], 4)
        assert len(cache.block_table(0)) == 2

    def test_after_a_truncation(self):
        cache = running([1, 2, 3])
        for token in range(8):
            cache.decode([0], [token])
        cache.commit(0)
        cache.truncate(0, 5)
        cache.append(0, [50])
        cache.extend(0, 1)
        for token in range(60, 66):
            assert cache.decode([0], [token]) == ()
        assert cache.tokens(0) == [1, 2, 3, 0, 1, 50, *range(60, 66)]
        assert len(cache.block_table(0)) == 3

    def test_a_reset_in_between(self):
        cache = running([1, 2, 3])
        cache.decode([0], [4])
        cache.reset()
        for token in range(8):
            cache.decode([0], [token])
        assert not cache.books().cached


REQUESTS = {
    "unknown": (([0, 9], [1, 1]), {}, errors.UnknownSequence, "sequence 9"),
    "twice": (([0, 1, 0], [1, 1, 1]), {}, errors.BadBatch, "sequence 0 is in the batch twice"),
    "too few tokens": (([0, 1], [1]), {}, errors.BadBatch, "1 tokens were sampled for 2 sequences"),
    "committed": (([0, 2], [1, 1]), {}, errors.NothingToCommit, "decode sequence 2"),
    "prefilling": (([0, 3], [1, 1]), {}, errors.StillPrefilling, "ends at token 2 of 3"),
    "too wide": (([0, 1], [1, 2**64]), {}, errors.TokenOutOfRange, "64 bits"),
    "drafts of a stranger": (([0], [1]), {"drafts": {1: [1]}}, errors.BadBatch, "not in the batch"),
    "accepted of a stranger": (([0], [1]), {"accepted": {1: 0}}, errors.BadBatch, "not in the batch"),
    "too many accepted": (([0, 4], [1, 1]), {"accepted": {4: 3}}, errors.TooManyAccepted, "extended by 2 drafts"),
    "too many accepted of a later one": (([4, 5], [1, 1]), {"accepted": {5: 3}}, errors.TooManyAccepted, "extended by 1 drafts"),
    "less than none accepted": (([0, 4], [1, 1]), {"accepted": {4: -1}}, errors.TooManyAccepted, "accept 0 up to that"),
    "accepted of none": (([0, 1], [1, 1]), {"accepted": {1: 1}}, errors.TooManyAccepted, "extended by 0 drafts"),
    "a draft too wide": (([0, 4, 5], [1, 1, 1]), {"accepted": {4: 1, 5: 1}}, errors.TokenOutOfRange, "64 bits"),
    "swapped out": (([0, 6], [1, 1]), {}, errors.SwappedOut, "swap it in"),
    "no token": (([0, 1], [1, None]), {}, TypeError, "integer"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bad_request_changes_nothing(name):
    """0 and 1 can decode, 0 calmly; 2 is committed, 3 half prefilled, 4 and 5 have drafts out, 6 is on the host."""
    cache = running([1, 2], [1, 2, 3], [3], [7, 8], [9], [9, 9], [6], host_blocks=4)
    cache.decode([0, 4, 5], [0, 0, 0], drafts={4: [1, 1], 5: [2**64]})
    for seq in (2, 3, 6):
        cache.commit(seq)
    cache.append(3, [1])
    cache.preempt(3)
    cache.extend(3, 2)
    cache.append(6, [1])
    cache.swap_out(6)
    before, again = shown(cache, range(7)), deepcopy(cache)
    batch, options, error, words = REQUESTS[name]
    with pytest.raises(error, match=words):
        cache.decode(*batch, **options)
    assert shown(cache, range(7)) == before
    for same in (cache, again):
        assert same.decode([0, 1], [1, 1]) == ()
    assert shown(cache, range(7)) == shown(again, range(7))


def test_the_source_of_a_copy_is_let_go_when_its_pass_is_decoded():
    cache = PagedCache(8, 2, steps=False)
    cache.admit(0, [1, 2, 3])
    cache.extend(0, 3)
    cache.commit(0)
    cache.fork(0, 1)
    cache.append(1, [4])
    assert len(cache.extend(1, 1).copies) == 1
    cache.release(0)
    assert cache.books().retiring
    cache.decode([1], [5])
    assert not cache.books().retiring


@pytest.mark.parametrize("seqs", [[0, 1], [1, 0]])
def test_every_pass_of_a_batch_has_finished(seqs):
    cache = running([1], [2], steps=True)
    cache.end_step(cache.begin_step().step)
    cache.decode([0, 1], [3, 3])
    cache.begin_step()
    cache.release(0)
    cache.admit(0, [1])
    cache.extend(0, 1)
    second = cache.begin_step().step
    cache.end_step(second)
    before = shown(cache, [0, 1])
    with pytest.raises(errors.PassNotFinished, match="sequence 1 is in step 2"):
        cache.decode(seqs, [4, 4])
    assert shown(cache, [0, 1]) == before
