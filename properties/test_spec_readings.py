"""What a correct cache may do in its own way with blocks: none of these histories is a violation. Where a nearby one is, it stands beside. Of the prefix index: test_spec_readings_prefix.py."""

from __future__ import annotations

import pytest

from kvproof.models.capabilities import Group
from kvproof.models.ops import (
    OP_TYPES,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit, OutOfBlocks, Refused
from kvproof.properties.scripted import STEP, Do, computed, law, out, play

WINDOW_2 = (Group("sliding_window", window=2),)


class TestHolders:
    def test_a_count_may_fall_only_when_the_step_ends(self):
        script = [*out(0, (1, 2), [0], counts={0: 1}), Do(BeginStep()), Do(Release(0))]
        assert law([*script, Do(EndStep(), counts={})], snapshot=True, steps=True) is None
        assert law([*script, Do(EndStep())], snapshot=True, steps=True) == "refcount-equals-holders"

    @pytest.mark.parametrize(
        ("count", "verdict"), [(1, "refcount-equals-holders"), (2, None), (3, None), (4, None), (5, "refcount-equals-holders")]
    )
    def test_a_step_may_hold_a_block_once_or_once_for_each_pass(self, count, verdict):
        # Two sequences list block 0 and both are in the step: 2 without holds, 3 with one of the step, 4 with one of each pass.
        script = [
            *out(0, (1, 2), [0]),
            *STEP,
            Do(Commit(0)),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Append(0, (3,))),
            Do(Append(1, (4,))),
            Do(Extend(0, 1), tables={0: [0, 1]}),
            Do(Extend(1, 1), tables={1: [0, 2]}),
            Do(BeginStep(), counts={0: count, 1: 1, 2: 1}),
        ]
        assert law(script, snapshot=True, steps=True, fork=True) == verdict

    def test_which_blocks_are_missing_for_good_may_change_while_work_is_out(self):
        """What was let go of may wait for the pass that is out, or be out of the books for good, in place of the block that is free now: nobody can tell."""
        script = [*out(0, (1, 2), [0], free=[2]), *out(1, (3, 4), [2], free=[])]
        able = {"snapshot": True, "num_blocks": 3, "capacity": lambda blocks: blocks - 1}
        assert law([*script, Do(Release(0), free=[1])], **able) is None
        assert law([*script, Do(Release(0), free=[0, 1])], **able) == "ledger-adds-up"

    def test_the_device_may_go_on_showing_what_has_left_the_window(self):
        """No pass reads the table there. Where one does, the manager's entry is the truth."""
        script = [
            *out(0, (1, 2, 3, 4), [0, 1, 2, 3], device={0: [0, 1, 2, 3]}),
            Do(Commit(0), tables={0: [None, None, 2, 3]}),
            Do(Append(0, (5,))),
        ]
        able = {"groups": WINDOW_2, "block_size": 1, "mirror": True, "num_blocks": 5}
        for device, expected in [
            ([0, 1, 2, 3, 4], None),
            ([None, None, 2, 3, 4], None),
            ([0, 1, 1, 3, 4], "mirror-follows"),
            ([2, 3, 4], "mirror-follows"),
        ]:
            assert law([*script, Do(Extend(0, 1), tables={0: [None, None, 2, 3, 4]}, device={0: device})], **able) == expected

    def test_a_block_that_no_pass_touches_may_be_kept_back_while_work_is_out(self):
        script = [
            *out(0, (1, 2), [0]),
            *out(1, (3, 4), [1]),
            *STEP,
            Do(Commit(0)),
            Do(Commit(1)),
            Do(Append(0, (5,))),
            Do(Extend(0, 1), tables={0: [0, 2]}),
            Do(BeginStep()),
            Do(Release(1), free=[3], retiring=[1]),
        ]
        claims = {"snapshot": True, "steps": True}
        assert law([*script, Do(EndStep(), free=[3, 1], retiring=[])], **claims) is None
        assert law([*script, Do(EndStep()), Do(Commit(0))], **claims) == "pool-conserved"
        assert law([*script, Do(EndStep()), Do(Commit(0), free=[3], retiring=[])], **claims) == "pool-conserved"

    def test_a_block_that_no_pass_touches_may_also_be_reused_at_once(self):
        script = [
            *out(0, (1, 2), [0]),
            *out(1, (3, 4), [1]),
            *STEP,
            Do(Commit(0)),
            Do(Commit(1)),
            Do(Append(0, (5,))),
            Do(Extend(0, 1), tables={0: [0, 2]}),
            Do(BeginStep()),
            Do(Release(1)),
            *out(2, (6,), [1]),
        ]
        assert law(script, steps=True) is None

    def test_a_block_that_a_pass_only_reads_is_fenced_too(self):
        script = [
            *out(0, (1, 2, 3), [0, 1]),
            *STEP,
            Do(Commit(0)),
            Do(Append(0, (4,))),
            Do(Extend(0, 1)),
            Do(BeginStep()),
            Do(Release(0)),
        ]
        assert law([*script, *out(1, (9,), [0])], steps=True) == "fenced-reuse"
        assert law([*script, Do(EndStep()), *out(1, (9,), [0])], steps=True) is None

    def test_a_block_out_of_the_window_of_a_pass_is_not_fenced(self):
        script = [
            *out(0, (1, 2, 3), [0, 1, 2]),
            *STEP,
            Do(Commit(0)),
            Do(Append(0, (4,))),
            Do(Extend(0, 1), tables={0: [None, None, 2, 3]}),
            Do(BeginStep()),
            *out(1, (9,), [0]),
        ]
        assert law(script, groups=WINDOW_2, block_size=1, steps=True) is None

    def test_an_older_step_that_ends_does_not_free_what_a_younger_one_touches(self):
        script = [
            *out(0, (1, 2), [0]),
            Do(BeginStep()),
            *out(1, (3, 4), [1]),
            Do(BeginStep()),
            Do(Release(1)),
            Do(EndStep()),
        ]
        assert law([*script, *out(2, (9,), [1])], steps=True) == "fenced-reuse"
        assert law([*script, Do(EndStep()), *out(2, (9,), [1])], steps=True) is None

    def test_a_cache_that_counts_steps_may_keep_a_block_until_the_last_step_that_was_open_has_ended(self):
        script = [
            *out(0, (1,), [0]),
            Do(BeginStep()),
            Do(BeginStep()),
            Do(Release(0), free=[1, 2, 3], retiring=[0]),
            Do(EndStep()),
        ]
        claims = {"snapshot": True, "steps": True}
        assert law([*script, Do(EndStep(), free=[1, 2, 3, 0], retiring=[])], **claims) is None

    def test_a_release_before_the_launch_frees_at_once(self):
        script = [*out(0, (1, 2), [0]), Do(Release(0), free=[0, 1, 2, 3]), *out(1, (3,), [0], free=[1, 2, 3])]
        assert law(script, steps=True, snapshot=True) is None

    def test_the_source_of_a_copy_may_be_let_go_right_after_the_grant_of_a_synchronous_cache(self):
        script = [
            *computed(0, (1,), [0]),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Append(1, (2,))),
            Do(Extend(1, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Release(0)),
            *computed(2, (9,), [0]),
            Do(Commit(1)),
        ]
        assert law(script, fork=True) is None

    def test_a_copy_into_a_block_that_another_sequence_reads_is_a_violation(self):
        script = [
            *computed(0, (1, 2), [0]),
            *computed(1, (3,), [1]),
            Do(Fork(1, 2), tables={2: [1]}),
            Do(Append(2, (4,))),
            Do(Extend(2, 1), Grant(copies=[(0, 1, 0)]), tables={2: [2]}),
        ]
        assert law(script, fork=True) is not None

    def test_counts_may_be_kept_for_what_nobody_holds_any_more_as_zero(self):
        assert law([*out(0, (1,), [0], counts={0: 1}), Do(Release(0), counts={0: 0, 1: 0})], snapshot=True) is None

    @pytest.mark.parametrize("books", [{"counts": {0: 1}}, {"free": [1, 2, 3]}, {"cached": []}, {"retiring": []}])
    def test_a_cache_may_keep_some_books_and_not_others(self, books):
        assert law(out(0, (1,), [0], **books), snapshot=True) is None


class TestTables:
    def test_a_table_may_look_ahead(self):
        script = [Do(Admit(0, (1, 2, 3, 4, 5))), Do(Extend(0, 1), tables={0: [0, 1, 2, 3]}), Do(Commit(0))]
        assert law(script) is None
        assert law(script, policy={"tight"}) == "tail-waste-bounded"

    def test_the_room_of_rejected_drafts_may_be_kept_unless_the_cache_claims_to_be_tight(self):
        script = [
            *computed(0, (1,), [0]),
            Do(Append(0, (2,))),
            Do(Extend(0, 1, (3, 4, 5)), tables={0: [0, 1, 2]}),
            Do(Commit(0, 0)),
        ]
        assert law(script, drafts=True) is None
        assert law(script, drafts=True, policy={"tight"}) == "tail-waste-bounded"
        trimmed = Do(Commit(0, 0), tables={0: [0]})
        assert law([*script[:-1], trimmed], drafts=True, policy={"tight"}) is None

    def test_rejected_drafts_make_room_for_the_next_tokens(self):
        script = [
            *computed(0, (1,), [0]),
            Do(Append(0, (2,))),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1]}),
            Do(Commit(0, 1)),
            Do(Append(0, (9,))),
            Do(Extend(0, 1)),
            Do(Commit(0)),
        ]
        lockstep = play(script, drafts=True)
        assert lockstep.spec.live[0].known == [1, 2, 3, 9]

    def test_entries_out_of_the_window_may_be_skipped_or_kept(self):
        for table in ([None, None, 2], [None, 1, 2], [0, 1, 2]):
            assert law([*out(0, (1, 2, 3), [0, 1, 2]), Do(Commit(0), tables={0: table})], groups=WINDOW_2, block_size=1) is None

    def test_a_window_of_one_token_needs_no_room(self):
        script = [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [None]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (5,)), tables={0: [None, None, None]}),
        ]
        assert law(script, groups=(Group("sliding_window", window=1),), block_size=1, drafts=True) is None

    def test_a_pass_may_skip_positions_that_nobody_will_read(self):
        script = [Do(Admit(0, (1, 2, 3, 4))), Do(Extend(0, 4), tables={0: [None, None, 0, 1]}), Do(Commit(0))]
        assert law(script, groups=WINDOW_2, block_size=1) is None

    def test_blocks_out_of_the_window_may_be_freed_by_an_extend_that_fails(self):
        script = [
            *out(0, (1, 2, 3), [0, 1, 2]),
            Do(Commit(0), counts={0: 1, 1: 1, 2: 1}, free=[]),
            Do(Append(0, (4,))),
            Do(Extend(0, 1), OutOfBlocks(), tables={0: [None, None, 2]}, counts={2: 1}, free=[0, 1]),
        ]
        how = {"groups": WINDOW_2, "block_size": 1, "num_blocks": 3, "snapshot": True}
        assert law(script, **how) is None
        too_many = Do(Extend(0, 1), OutOfBlocks(), tables={0: [None, None, None]}, counts={}, free=[0, 1, 2])
        assert law([*script[:-1], too_many], **how) == "window-keeps-what-it-needs"

    @pytest.mark.parametrize(("dropped", "broken"), [(0, None), (1, "failure-changes-nothing")])
    def test_with_a_block_out_of_the_window_goes_the_copy_that_was_to_fill_it(self, dropped, broken):
        """Nobody needs the copy of block 0 into block 3 any more: its source is let go of too, and no other."""
        held = {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2}
        copies = [(0, 0, 3), (0, 1, 4), (0, 2, 5)]
        after = {**held, 3: 0, dropped: 1}
        script = [
            *out(0, (1, 2, 3), [0, 1, 2]),
            *STEP,
            Do(Commit(0)),
            Do(Fork(0, 1), Grant(copies=copies), tables={1: [3, 4, 5]}, counts=held, free=[]),
            Do(Append(1, (4,))),
            Do(Extend(1, 1), OutOfBlocks(), tables={1: [None, 4, 5]}, counts=after, free=[3]),
        ]
        able = {"groups": (Group("sliding_window", window=3),), "block_size": 1, "num_blocks": 6}
        assert law(script, fork=True, steps=True, snapshot=True, **able) == broken

    def test_null_blocks_in_tables_are_skipped_entries(self):
        script = [*out(0, (1, 2, 3), [1, 2, 3]), Do(Commit(0), tables={0: [0, 0, 3]}), *computed(1, (1, 2, 3), [0, 0, 4])]
        assert law(script, groups=WINDOW_2, block_size=1, null_blocks={0}, num_blocks=5) is None

    def test_null_blocks_count_as_nothing_in_the_books(self):
        script = out(0, (1, 2), [1], counts={0: 7, 1: 1}, free=[2, 3], cached=[0, 1], retiring=[0])
        assert law(script, snapshot=True, null_blocks={0}, prefix=True) is None

    @pytest.mark.parametrize("capacity", [3, lambda blocks: blocks - 1], ids=["a number", "a function"])
    def test_a_capacity_is_what_the_pool_really_gives(self, capacity):
        full = [Do(Admit(0, (1, 2, 3, 4, 5, 6, 7))), Do(Extend(0, 7), OutOfBlocks())]
        fits = [Do(Admit(0, (1, 2, 3, 4, 5, 6))), Do(Extend(0, 6), OutOfBlocks())]
        assert law(full, capacity=capacity) is None
        assert law(fits, capacity=capacity) == "no-spurious-exhaustion"
        assert law(full) == "no-spurious-exhaustion"
        assert law(out(0, (1,), [0], free=[1, 2]), capacity=capacity, snapshot=True) is None

    @pytest.mark.parametrize("policy", [(), ("exact",)])
    def test_groups_that_share_no_pool_have_an_even_share_each(self, policy):
        """Seven blocks: four for the first group, three for the second."""
        how = {"groups": (Group(), *WINDOW_2), "num_blocks": 7, "block_size": 1, "policy": policy}
        full = [Do(Admit(0, (1, 2, 3, 4))), Do(Extend(0, 4), OutOfBlocks())]
        assert law(full, **how, split_pool=True) is None
        assert law([Do(Admit(0, (1, 2, 3))), Do(Extend(0, 3), OutOfBlocks())], **how, split_pool=True) == "no-spurious-exhaustion"
        assert law([Do(Admit(0, (1, 2, 3))), Do(Extend(0, 3), OutOfBlocks())], **how) == "no-spurious-exhaustion"
        beside = [Do(Admit(1, (5, 6))), Do(Extend(1, 2), tables={1: ([0, 1], [4, 5])}), *full]
        assert law(beside, **how, split_pool=True) is None

    def test_a_pool_does_not_give_more_than_it_has_whatever_the_capacity(self):
        assert law([Do(Admit(0, (1,) * 9)), Do(Extend(0, 9), OutOfBlocks())], capacity=99) is None


class TestForks:
    def test_a_fork_may_copy_everything_at_once(self):
        script = [
            *computed(0, (1, 2, 3), [0, 1]),
            Do(Fork(0, 1), Grant(copies=[(0, 0, 2), (0, 1, 3)]), tables={1: [2, 3]}),
            Do(Append(0, (4,))),
            Do(Append(1, (5,))),
            Do(Extend(0, 1)),
            Do(Extend(1, 1)),
            Do(Commit(1)),
            Do(Commit(0)),
        ]
        assert law(script, fork=True) is None

    def test_a_fork_may_share_whole_blocks_and_copy_the_tail(self):
        script = [
            *computed(0, (1, 2, 3), [0, 1]),
            Do(Fork(0, 1), Grant(copies=[(0, 1, 2)]), tables={1: [0, 2]}),
            Do(Append(1, (5,))),
            Do(Extend(1, 1)),
            Do(Commit(1)),
        ]
        assert law(script, fork=True) is None

    @pytest.mark.parametrize("first", [0, 1])
    def test_a_shared_tail_is_copied_by_whoever_writes_first_and_the_other_writes_in_place(self, first):
        other = 1 - first
        script = [
            *computed(0, (1,), [0]),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Append(0, (2,))),
            Do(Append(1, (3,))),
            Do(Extend(first, 1), Grant(copies=[(0, 0, 1)]), tables={first: [1]}),
            Do(Extend(other, 1)),
            Do(Commit(0)),
            Do(Commit(1)),
        ]
        assert law(script, fork=True) is None

    def test_a_fork_of_a_sequence_that_computed_nothing_holds_nothing(self):
        script = [Do(Admit(0, (1, 2))), Do(Fork(0, 1)), *[Do(Extend(s, 2), tables={s: [s]}) for s in (0, 1)], Do(Commit(0)), Do(Commit(1))]
        assert law(script, fork=True) is None

    def test_a_fork_may_find_no_room(self):
        assert law([*computed(0, (1,), [0]), Do(Fork(0, 1), OutOfBlocks()), Do(Fork(0, 1), tables={1: [0]})], fork=True) is None

    @pytest.mark.parametrize("books", ["retiring", "counts", "none"])
    def test_both_ends_of_its_copies_may_wait_for_the_next_step(self, books):
        """Nothing says which step runs them; once that has ended, nothing may wait any more."""
        waiting = {"retiring": {"free": [2, 3], "retiring": [0]}, "counts": {"counts": {0: 1, 1: 2}}, "none": {"free": [2, 3]}}[books]
        over = {"retiring": {"free": [2, 3, 0], "retiring": []}, "counts": {"counts": {1: 1}}, "none": {"free": [2, 3, 0]}}[books]
        forked = [
            *out(0, (1, 2), [0]),
            *STEP,
            Do(Commit(0)),
            Do(Fork(0, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Release(0), **waiting),
            Do(BeginStep()),
        ]
        claims = {"fork": True, "steps": True, "snapshot": True}
        assert law([*forked, Do(EndStep(), **over)], **claims) is None
        leaked = {"retiring": "pool-conserved", "counts": "refcount-equals-holders", "none": "pool-conserved"}[books]
        assert law([*forked, Do(EndStep())], **claims) == leaked

    def test_a_step_that_was_open_before_does_not_run_its_copies(self):
        script = [
            *out(0, (1, 2), [0]),
            *STEP,
            Do(Commit(0)),
            Do(BeginStep()),
            Do(Fork(0, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Release(0), free=[2, 3], retiring=[0]),
            Do(EndStep()),
            Do(BeginStep()),
        ]
        claims = {"fork": True, "steps": True, "snapshot": True}
        assert law([*script, Do(EndStep(), free=[2, 3, 0], retiring=[])], **claims) is None
        assert law([*script, Do(EndStep())], **claims) == "pool-conserved"


class TestFailures:
    def test_an_exhaustion_is_true_while_others_hold_the_pool(self):
        script = [*computed(0, (1, 2), [0]), Do(Admit(1, (3,))), Do(Extend(1, 1), OutOfBlocks())]
        assert law(script, num_blocks=1, policy={"exact"}) is None
        assert law(script, num_blocks=2, policy={"exact"}) == "no-spurious-exhaustion"
        assert law(script, num_blocks=2) is None

    def test_an_exhaustion_is_true_while_device_work_holds_the_pool(self):
        script = [*out(0, (1,), [0]), Do(BeginStep()), Do(Release(0)), Do(Admit(1, (2,))), Do(Extend(1, 1), OutOfBlocks())]
        assert law(script, num_blocks=1, steps=True, policy={"exact"}) is None
        again = [*script, Do(EndStep()), Do(Extend(1, 1), OutOfBlocks())]
        assert law(again, num_blocks=1, steps=True, policy={"exact"}) == "no-leak"

    def test_an_exact_cache_may_need_one_block_more_to_copy_an_open_tail(self):
        # It lacks one block for the tokens, and its open tail may have to be copied: with one block left, nothing is owed.
        script = [
            *computed(0, (1,), [0]),
            Do(Append(0, (2, 3))),
            *computed(1, (9,), [1]),
            Do(Extend(0, 2), OutOfBlocks()),
        ]
        assert law(script, num_blocks=3, fork=True, policy={"exact"}) is None
        assert law(script, num_blocks=4, fork=True, policy={"exact"}) == "no-spurious-exhaustion"

    def test_an_exact_cache_need_not_share_what_it_has_not_just_promised(self):
        script = [*computed(0, (1, 2, 3), [0, 1, 2]), Do(Admit(1, (1, 2, 4))), Do(Match(1), Hit(2)), Do(Extend(1, 1), OutOfBlocks())]
        how = {"num_blocks": 4, "block_size": 1, "prefix": True, "policy": {"exact"}}
        assert law(script, **how) == "no-spurious-exhaustion"
        assert law([*script[:-2], script[-1]], **how) is None
        assert law([*script[:-1], Do(Append(0, (9,))), script[-1]], **how) is None
        assert law([*script[:-2], Do(Match(1), Hit(0)), script[-1]], **how) is None

    def test_an_exact_cache_may_take_a_free_block_for_what_it_promised(self):
        # Nobody holds block 0: to adopt it uses it up as well, and the four blocks that are asked for are more than there are.
        script = [*computed(0, (1,), [0]), Do(Release(0)), *computed(1, (9,), [1])]
        full = [*script, Do(Admit(2, (1, 2, 3))), Do(Match(2), Hit(1)), Do(Extend(2, 2), OutOfBlocks())]
        how = {"block_size": 1, "prefix": True, "policy": {"exact"}}
        assert law(full, num_blocks=3, **how) is None
        assert law(full, num_blocks=4, **how) == "no-spurious-exhaustion"

    def test_what_a_window_has_passed_takes_no_room(self):
        script = [
            *computed(0, (1, 2, 3), ([0, 1, 2], [3, 4, 5])),
            Do(Append(0, (4,))),
            Do(Extend(0, 1), tables={0: ([0, 1, 2, 3], [None, 4, 5, 6])}),
        ]
        asks = [Do(Admit(1, (1, 2, 3, 9))), Do(Match(1), Hit(3)), Do(Extend(1, 1), OutOfBlocks())]
        how = {"groups": (Group(), *WINDOW_2), "block_size": 1, "prefix": True, "policy": {"exact"}}
        assert law([*script[:3], *asks], num_blocks=8, **how) == "no-spurious-exhaustion"
        assert law([*script[:3], *asks], num_blocks=7, **how) is None

    def test_a_hit_of_all_that_is_known_may_be_copied_to_be_computed_again(self):
        # A cache may adopt the block of the last token too, and copy it: two blocks of the pool for that token.
        script = [*computed(0, (1, 2, 3), [0, 1, 2]), Do(Release(0)), Do(Admit(1, (1, 2, 3))), Do(Extend(1, 1), OutOfBlocks())]
        assert law(script, num_blocks=3, block_size=1, prefix=True) is None
        assert law([*script[:-2], Do(Admit(1, (1, 2, 4))), script[-1]], num_blocks=3, block_size=1, prefix=True) == "no-leak"

    def test_a_request_that_resumes_need_not_be_matched_as_another_with_its_prompt(self):
        script = [*computed(0, (1, 2, 3), [0, 1]), Do(Admit(1, (1, 2, 3))), Do(Release(0, "preempt"), tables={0: []}), Do(Match(1), Hit(2))]
        assert law([*script, Do(Match(0), Hit(0))], prefix=True) is None
        assert law([*script, Do(Match(1), Hit(0))], prefix=True) == "failure-changes-nothing"

    def test_a_match_stays_steady_over_an_extend_that_failed(self):
        script = [
            *out(0, (1, 2), [0]),
            Do(Admit(1, (1, 2, 3))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 1), OutOfBlocks()),
            Do(Match(1), Hit(0)),
        ]
        assert law(script, prefix=True, num_blocks=1) == "failure-changes-nothing"
        assert law([*script[:-1], Do(Match(1), Hit(2))], prefix=True, num_blocks=1) is None

    def test_a_match_may_say_something_else_after_any_operation_that_succeeded(self):
        script = [*out(0, (1, 2), [0]), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2)), Do(Commit(0)), Do(Match(1), Hit(0))]
        assert law(script, prefix=True) is None

    def test_a_repeated_release_is_silent(self):
        for reason in ("finish", "cancel", "error", "preempt"):
            assert law([*out(0, (1,), [0]), Do(Release(0, "cancel")), Do(Release(0, reason)), Do(Release(0, reason))]) is None

    @pytest.mark.parametrize(
        "kind",
        OP_TYPES,
        ids=lambda kind: kind.__name__,
    )
    def test_any_operation_may_be_refused_and_the_program_goes_on(self, kind):
        setup: dict[type[Op], tuple[list[Do], Op]] = {
            Admit: ([], Admit(0, (1,))),
            Match: ([Do(Admit(0, (1,)))], Match(0)),
            Extend: ([Do(Admit(0, (1,)))], Extend(0, 1)),
            Commit: ([*out(0, (1,), [0]), *STEP], Commit(0)),
            Append: ([Do(Admit(0, (1,)))], Append(0, (2,))),
            Truncate: ([*out(0, (1, 2), [0]), *STEP, Do(Commit(0))], Truncate(0, 1)),
            Fork: ([*out(0, (1, 2), [0]), *STEP, Do(Commit(0))], Fork(0, 1)),
            Release: ([*out(0, (1, 2), [0]), *STEP], Release(0)),
            BeginStep: (out(0, (1, 2), [0]), BeginStep()),
            EndStep: ([*out(0, (1, 2), [0]), Do(BeginStep())], EndStep()),
            Evict: ([*out(0, (1, 2), [0])], Evict((0,))),
            Reset: ([*out(0, (1, 2), [0])], Reset()),
            SwapOut: ([*out(0, (1, 2), [0]), *STEP, Do(Commit(0))], SwapOut(0)),
            SwapIn: ([*out(0, (1, 2), [0]), *STEP, Do(Commit(0)), Do(SwapOut(0), tables={0: []})], SwapIn(0)),
        }
        before, op = setup[kind]
        claims = dict.fromkeys(("prefix", "fork", "truncate", "drafts", "steps", "evict", "reset", "swap"), True)
        lockstep = play([*before, Do(op, Refused("not here"))], **claims)
        assert lockstep.refusals == {kind.__name__.lower(): 1}
        assert lockstep.spec.enabled(op)
        tables = {1: [0]} if kind is Fork else {0: [0]} if kind in (Extend, SwapIn) else {0: []} if kind is SwapOut else {}
        assert law([*before, Do(op, Refused()), Do(op, tables=tables)], **claims) is None


class TestSwap:
    @pytest.mark.parametrize("table", [[0, 1], [2, 3], [0, 3]])
    def test_a_sequence_may_come_back_anywhere(self, table):
        script = [*computed(0, (1, 2, 3), [0, 1]), Do(SwapOut(0), tables={0: []}), Do(SwapIn(0), tables={0: table})]
        assert law(script, swap=True) is None

    def test_its_blocks_may_be_used_in_the_meantime(self):
        script = [
            *computed(0, (1, 2, 3), [0, 1]),
            Do(SwapOut(0), tables={0: []}),
            *computed(1, (9, 9, 9), [0, 1]),
            Do(SwapIn(0), tables={0: [2, 3]}),
            Do(Append(0, (4,))),
            Do(Extend(0, 1)),
            Do(Commit(0)),
        ]
        assert law(script, swap=True) is None

    def test_its_blocks_may_wait_for_the_next_step(self):
        script = [
            *out(0, (1, 2), [0]),
            *STEP,
            Do(Commit(0)),
            Do(SwapOut(0), tables={0: []}, free=[1, 2, 3], retiring=[0]),
            Do(BeginStep()),
        ]
        claims = {"swap": True, "steps": True, "snapshot": True}
        assert law([*script, Do(EndStep(), free=[1, 2, 3, 0], retiring=[])], **claims) is None
        assert law([*script, Do(EndStep())], **claims) == "pool-conserved"

    def test_it_may_not_come_back_into_what_another_holds(self):
        script = [
            *computed(0, (1, 2, 3), [0, 1]),
            Do(SwapOut(0), tables={0: []}),
            *computed(1, (9,), [0]),
            Do(SwapIn(0), tables={0: [0, 3]}),
        ]
        assert law(script, swap=True) == "no-aliasing"

    def test_a_swapped_sequence_may_be_released(self):
        script = [*computed(0, (1,), [0]), Do(SwapOut(0), tables={0: []}), Do(Release(0, "preempt")), Do(Extend(0, 1), tables={0: [2]})]
        assert law(script, swap=True) is None
