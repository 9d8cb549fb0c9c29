"""What a correct cache may publish and evict in its own way: none of these histories is a violation. Where a nearby one is, it stands beside."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from kvproof.models.capabilities import Group
from kvproof.models.ops import (
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit
from kvproof.properties.scripted import STEP, Do, computed, law, out

WINDOW_2 = (Group("sliding_window", window=2),)


class TestPublishing:
    def test_a_block_may_be_matched_and_adopted_before_its_commit(self):
        script = [
            *out(0, (1, 2), [0], cached=[0]),
            Do(Admit(1, (1, 2, 3))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]}),
            Do(Commit(1)),
            Do(Commit(0)),
        ]
        assert law(script, prefix=True, snapshot=True) is None

    def test_a_block_may_be_adopted_before_the_pass_that_fills_it_is_launched(self):
        script = [
            *out(0, (1, 2), [0]),
            Do(Admit(1, (1, 2, 3))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]}),
            *STEP,
            Do(Commit(1)),
            Do(Commit(0)),
        ]
        assert law(script, prefix=True, steps=True) is None

    def test_what_an_unlaunched_pass_promised_does_not_survive_its_release(self):
        script = [
            *out(0, (1, 2), [0]),
            Do(Admit(1, (1, 2, 3))),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]}),
            Do(Release(0)),
        ]
        assert law(script, prefix=True, steps=True) == "published-is-committed"
        assert law([*script[:-1], Do(BeginStep()), Do(Release(0))], prefix=True, steps=True) is None

    def test_a_block_that_was_not_matchable_yet_cannot_be_evicted(self):
        """Its first publication may come at any time: with an admission of somebody else, say."""
        script = [*out(0, (1, 2), [0], cached=[]), Do(Commit(0)), Do(Evict((0,)), 0), Do(Admit(1, (3,)), cached=[0])]
        assert law(script, prefix=True, evict=True, snapshot=True) is None
        told = [*out(0, (1, 2), [0], cached=[0]), Do(Commit(0)), Do(Evict((0,)), 1, cached=[]), Do(Admit(1, (3,)), cached=[0])]
        assert law(told, prefix=True, evict=True, snapshot=True) == "eviction-forgets"

    @pytest.mark.parametrize(
        "publishing",
        [
            Do(Append(0, (3,)), cached=[0]),
            Do(Truncate(0, 2), cached=[0]),
            Do(Fork(0, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}, cached=[0]),
            Do(SwapOut(0), True, tables={0: []}, cached=[0]),
        ],
    )
    def test_any_operation_on_its_holder_may_publish_an_evicted_block_again(self, publishing):
        """A cache may walk over what a sequence has computed whenever the sequence is touched, and insert what its index lacks."""
        script = [*computed(0, (1, 2), [0], cached=[0]), Do(Evict((0,)), 1, cached=[])]
        able = {"prefix": True, "evict": True, "truncate": True, "fork": True, "swap": True, "snapshot": True}
        assert law([*script, publishing], **able) is None
        let_go = [*script, Do(Release(0)), Do(Evict((0,)), 0), Do(Admit(2, (9,)), cached=[0])]
        assert law(let_go, **able) == "eviction-forgets"

    def test_a_step_that_begins_or_ends_may_publish_what_is_held(self):
        script = [*out(0, (1, 2), [0]), Do(Evict((0,)), 0)]
        asked = [Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))]
        able = {"prefix": True, "evict": True, "steps": True}
        assert law([*script, Do(BeginStep()), *asked], **able) is None
        assert law([*script, *STEP, *asked], **able) is None
        assert law([*script, *asked], **able) == "eviction-forgets"

    def test_a_step_that_ends_may_publish_what_leaves_the_window_with_it(self):
        script = [
            *out(0, (1, 2, 3), [0, 1, 2]),
            *STEP,
            Do(Commit(0), cached=[0, 1, 2]),
            Do(BeginStep()),
            Do(Evict((0,)), 1, cached=[1, 2]),
            Do(EndStep(), tables={0: [None, 1, 2]}, cached=[0, 1, 2]),
        ]
        able = {"prefix": True, "evict": True, "steps": True, "snapshot": True}
        assert law(script, groups=WINDOW_2, block_size=1, **able) is None

    def test_a_step_does_not_publish_what_nobody_holds(self):
        script = [*out(0, (1, 2), [0]), *STEP, Do(Commit(0)), Do(Release(0)), Do(Evict((0,)), 1)]
        asked = [Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))]
        assert law([*script, *STEP, *asked], prefix=True, evict=True, steps=True) == "eviction-forgets"

    def test_a_step_that_ends_may_publish_what_was_kept_back_for_it_and_never_was_matchable(self):
        """A cache that publishes when the device is done with a block does so after its sequence has gone, too; what had been published stays evicted."""
        able = {"prefix": True, "evict": True, "steps": True, "snapshot": True}
        for cached, expected in [([], None), ([0], "eviction-forgets")]:
            held = [Do(Admit(0, (1, 2, 3))), Do(Extend(0, 2), tables={0: [0]}), *STEP, Do(Commit(0), cached=cached)]
            let_go = [Do(Extend(0, 1), tables={0: [0, 1]}), Do(BeginStep()), Do(Release(0)), Do(Evict((0,)), len(cached), cached=[])]
            assert law([*held, *let_go, Do(EndStep(), cached=[0])], **able) == expected

    def test_an_admission_may_work_off_what_was_put_off(self):
        script = [*computed(0, (1, 2), [0]), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(0)), Do(Admit(2, (9,))), Do(Match(1), Hit(2))]
        assert law(script, prefix=True) is None

    def test_a_waiting_request_that_is_preempted_may_skip_the_index_from_then_on(self):
        script = [*computed(0, (1, 2), [0]), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2)), Do(Release(1, "preempt")), Do(Match(1), Hit(0))]
        assert law(script, prefix=True) is None

    def test_an_adoption_needs_no_match(self):
        script = [*computed(0, (1, 2), [0]), Do(Admit(1, (1, 2, 3))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]})]
        assert law(script, prefix=True) is None

    @pytest.mark.parametrize("adopted", [0, 1, 2, 3, 4])
    def test_an_adoption_may_differ_from_the_match(self, adopted):
        copies = [(0, adopted // 2, 2)] if adopted % 2 else []
        table = [0, 1, 3][: adopted // 2] + [2, 3, 4][: 3 - adopted // 2]
        script = [
            *computed(0, (1, 2, 3, 4), [0, 1]),
            Do(Admit(1, (1, 2, 3, 4, 5))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 5), Grant(adopted=adopted, copies=copies), tables={1: table}),
            Do(Commit(1)),
        ]
        assert law(script, prefix=True, num_blocks=5) is None

    def test_a_hit_may_end_inside_a_whole_block_that_is_copied(self):
        script = [
            *computed(0, (1, 2), [0]),
            Do(Admit(1, (1, 3))),
            Do(Match(1), Hit(1)),
            Do(Extend(1, 1), Grant(adopted=1, copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Commit(1)),
        ]
        assert law(script, prefix=True) is None

    def test_a_hit_may_end_inside_an_open_block_that_is_copied(self):
        script = [
            *computed(0, (1,), [0]),
            Do(Admit(1, (1, 3))),
            Do(Match(1), Hit(1)),
            Do(Extend(1, 1), Grant(adopted=1, copies=[(0, 0, 1)]), tables={1: [1]}),
        ]
        assert law(script, prefix=True) is None

    def test_a_released_block_stays_matchable_until_it_is_handed_out(self):
        script = [
            *computed(0, (1, 2), [0]),
            Do(Release(0)),
            Do(Admit(1, (1, 2, 3))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]}),
        ]
        assert law(script, prefix=True) is None

    def test_a_commit_may_repoint_a_table_to_an_equal_block(self):
        script = [*computed(0, (1, 2), [0]), *out(1, (1, 2), [1]), Do(Commit(1), tables={1: [0]}, counts={0: 2}, free=[1, 2, 3])]
        assert law(script, prefix=True, snapshot=True) is None

    @pytest.mark.parametrize("forget", [Evict((0,)), Reset()], ids=["evict", "reset"])
    def test_a_holder_publishes_again_with_its_next_commit(self, forget):
        script = [
            *computed(0, (1, 2), [0]),
            Do(forget),
            Do(Append(0, (3, 4))),
            Do(Extend(0, 2), tables={0: [0, 1]}),
            Do(Commit(0)),
            Do(Admit(1, (1, 2, 9))),
            Do(Match(1), Hit(2)),
        ]
        claims = {"prefix": True, "evict": True, "reset": True}
        assert law(script, **claims) is None
        assert law([*script[:4], *script[-2:]], **claims) == ("eviction-forgets" if isinstance(forget, Evict) else "reset-forgets")

    def test_a_commit_publishes_again_what_leaves_the_window_with_it(self):
        script = [*out(0, (1, 2, 3), [0, 1, 2], cached=[0, 1, 2]), Do(Evict((0,)), 1, cached=[1, 2])]
        how = {"groups": WINDOW_2, "block_size": 1, "prefix": True, "evict": True, "snapshot": True}
        assert law([*script, Do(Commit(0), tables={0: [None, None, 2]}, cached=[0, 1, 2])], **how) is None
        assert law([*script, *out(1, (9,), [3], cached=[0, 1, 2])], **how) == "eviction-forgets"

    def test_a_reset_that_could_not_be_made_forgets_nothing(self):
        script = [*computed(0, (1, 2), [0], cached=[0]), Do(Reset(), answer=False), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))]
        assert law(script, prefix=True, reset=True, snapshot=True) is None

    def test_a_cache_that_finds_nothing_is_poor_but_lawful(self):
        script = [*computed(0, (1, 2), [0]), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(0)), Do(Extend(1, 3), tables={1: [1, 2]})]
        assert law(script, prefix=True) is None


class TestEviction:
    """Two blocks of two sequences, 0 and 1, are matchable and unheld; the next extend takes one of them."""

    HOW: ClassVar[dict[str, Any]] = {"prefix": True, "snapshot": True, "policy": {"lru"}, "num_blocks": 2}

    @staticmethod
    def take(block: int, free: list[int], seq: int = 9) -> list[Do]:
        return [Do(Admit(seq, (7, 7))), Do(Extend(seq, 1), tables={seq: [block]}, free=free, cached=free)]

    @pytest.mark.parametrize(("released", "taken"), [((0, 1), 0), ((1, 0), 0), ((1, 0), 1)])
    def test_least_recently_used_may_mean_released_or_computed(self, released, taken):
        script = [
            *computed(0, (1, 2), [0]),
            *out(1, (3, 4), [1]),
            Do(Commit(1), free=[], cached=[0, 1]),
            Do(Release(released[0]), free=[released[0]]),
            Do(Release(released[1]), free=[0, 1]),
            *self.take(taken, [1 - taken]),
        ]
        assert law(script, **self.HOW) is None

    def test_neither_notion_lets_the_newest_go_first(self):
        script = [
            *computed(0, (1, 2), [0]),
            Do(Release(0), free=[0, 1], cached=[0]),
            *out(1, (3, 4), [1], free=[0]),
            Do(Commit(1), cached=[0, 1]),
            Do(Release(1), free=[0, 1]),
        ]
        assert law([*script, *self.take(1, [0])], **self.HOW) == "eviction-follows-policy"
        assert law([*script, *self.take(0, [1])], **self.HOW) is None

    def test_a_look_up_may_count_as_a_use(self):
        script = [
            *computed(0, (1, 2), [0]),
            Do(Release(0), free=[0, 1], cached=[0]),
            *out(1, (3, 4), [1], free=[0]),
            Do(Commit(1), cached=[0, 1]),
            Do(Release(1), free=[0, 1]),
            Do(Admit(2, (1, 2, 3))),
            Do(Match(2), Hit(2)),
        ]
        assert law([*script, *self.take(1, [0])], **self.HOW) is None
        assert law([*script, *self.take(0, [1])], **self.HOW) is None

    @pytest.mark.parametrize(("order", "verdict"), [((1, 0), None), ((0, 1), "eviction-follows-policy")])
    def test_of_one_release_deeper_blocks_go_first(self, order, verdict):
        script = [
            *out(0, (1, 2, 3, 4), [0, 1]),
            Do(Commit(0), free=[], cached=[0, 1]),
            Do(Release(0), free=[0, 1]),
            *self.take(order[0], [order[1]], 8),
            *self.take(order[1], []),
        ]
        assert law(script, **self.HOW) == verdict

    @pytest.mark.parametrize(
        ("order", "lawful"),
        [
            ((1, 3, 0, 2), {"lru", "groups-together"}),
            ((3, 1, 2, 0), {"lru", "groups-together"}),
            ((1, 0, 3, 2), {"lru", "groups-in-turn"}),
            ((3, 2, 1, 0), {"lru"}),
        ],
    )
    @pytest.mark.parametrize("policy", [{"lru"}, {"lru", "groups-together"}, {"lru", "groups-in-turn"}])
    def test_which_group_of_one_release_goes_first_is_a_promise_of_its_own(self, order, lawful, policy):
        script = [
            *out(0, (1, 2), ([0, 1], [2, 3])),
            Do(Commit(0), free=[], cached=[0, 1, 2, 3]),
            Do(Release(0), free=list(order)),
        ]
        for number in range(2):
            left = list(order[2 * number + 2 :])
            taken = ([order[2 * number]], [order[2 * number + 1]])
            script += [Do(Admit(8 + number, (7,))), Do(Extend(8 + number, 1), tables={8 + number: taken}, free=left, cached=left)]
        how = {"groups": (Group(), Group()), "block_size": 1, "num_blocks": 4, "prefix": True, "snapshot": True}
        assert law(script, policy=policy, **how) == (None if policy <= lawful else "eviction-follows-policy")

    def test_without_books_a_hit_proves_what_was_kept(self):
        script = [
            *computed(0, (1, 2), [0]),
            Do(Release(0)),
            *computed(1, (3, 4), [1]),
            Do(Release(1)),
            Do(Admit(2, (3, 4, 5))),
            Do(Match(2), Hit(2)),
            *out(3, (7,), [1]),
            Do(Admit(4, (1, 2, 3))),
            Do(Match(4), Hit(2)),
        ]
        how = {"prefix": True, "policy": {"lru"}, "num_blocks": 2}
        assert law(script, **how) == "eviction-follows-policy"
        assert law([*script[:-1], Do(Match(4), Hit(0))], **how) is None

    @pytest.mark.parametrize("shows", [True, False])
    def test_what_came_back_from_the_host_is_no_longer_known_to_be_matchable(self, shows):
        """A swap-in may take the very blocks that a hit once proved matchable, and fill them anew without publishing them."""

        def books(free: list[int], cached: list[int]) -> dict[str, list[int]]:
            return {"free": free, "cached": cached} if shows else {}

        script = [
            *computed(0, (1, 2, 3, 4), [0, 1]),
            Do(Release(0), **books([3, 2, 1, 0], [0, 1])),
            Do(Admit(1, (1, 2, 3, 4, 5))),
            Do(Match(1), Hit(4)),
            Do(Extend(1, 1), Grant(adopted=4), tables={1: [0, 1, 2]}, **books([3], [0, 1])),
            Do(Commit(1)),
            Do(SwapOut(1), tables={1: []}, **books([3, 2, 1, 0], [0, 1])),
            Do(SwapIn(1), tables={1: [0, 1, 2]}, **books([3], [])),
            Do(Append(1, (6,))),
            Do(Extend(1, 1)),
            Do(Commit(1), **books([3], [2])),
            Do(Release(1), **books([0, 1, 3, 2], [2])),
            Do(Admit(2, (7, 7))),
            Do(Extend(2, 2), tables={2: [0]}, **books([1, 3, 2], [2])),
            Do(Admit(3, (1, 2, 3, 4, 5, 6, 7))),
            Do(Match(3), Hit(0)),
        ]
        assert law(script, prefix=True, swap=True, snapshot=shows, policy={"lru"}) is None

    def test_the_source_of_a_copy_that_has_not_run_cannot_be_evicted(self):
        """A hit proves it matchable, and it is older than what was evicted, but device work waits for it."""
        script = [
            *out(0, (1, 2), [1]),
            *out(1, (3, 4), [2]),
            *STEP,
            Do(Commit(0)),
            Do(Truncate(0, 1)),
            Do(Append(0, (5, 6))),
            Do(Extend(0, 2), Grant(copies=((0, 1, 3),)), tables={0: [3, 0]}),
            Do(Commit(1)),
            Do(Release(1), tables={1: []}),
            Do(Admit(2, (3, 4, 9))),
            Do(Match(2), Hit(2)),
            *out(3, (7, 8), [2]),
            Do(Admit(4, (1, 2, 9))),
            Do(Match(4), Hit(2)),
        ]
        assert law(script, prefix=True, truncate=True, steps=True, policy={"lru"}) is None

    def test_a_block_that_is_held_is_not_passed_over(self):
        script = [
            *computed(0, (1, 2), [0]),
            *out(1, (3, 4), [1]),
            Do(Commit(1), free=[], cached=[0, 1]),
            Do(Release(1), free=[1]),
            *self.take(1, []),
        ]
        script[-1] = Do(Extend(9, 1), tables={9: [1]}, free=[], cached=[0])
        assert law(script, **self.HOW) is None
