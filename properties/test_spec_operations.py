"""What each operation means, and when a program may ask for it: the state that the specification keeps beside a scripted cache."""

from __future__ import annotations

from typing import Any

import pytest

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
    Namespace,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit
from kvproof.models.preconditions import MAX_OPEN_STEPS
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence
from kvproof.properties.scripted import Do, play

ALL = dict.fromkeys(("prefix", "fork", "truncate", "drafts", "evict", "reset", "swap"), True)

ADMITTED = [Do(Admit(0, (1, 2, 3)))]
OUT = [*ADMITTED, Do(Extend(0, 2), tables={0: [0, 1]})]
COMPUTED = [*OUT, Do(Commit(0))]
WHOLE = [*COMPUTED, Do(Extend(0, 1)), Do(Commit(0))]
SWAPPED = [*COMPUTED, Do(SwapOut(0), tables={0: []})]


def spec_after(script: list[Do], **claims: Any) -> Spec:
    return play(script, **(claims or ALL)).spec


def sequence_after(script: list[Do], seq: int = 0, **claims: Any) -> Sequence:
    return spec_after(script, **claims).sequences[seq]


class TestMeanings:
    def test_admit_makes_a_prompt_known_and_nothing_computed(self):
        found = sequence_after([Do(Admit(7, (1, 2), Namespace(tenant="a")))], 7)
        assert (found.known, found.computed, found.namespace, found.out) == ([1, 2], 0, Namespace(tenant="a"), None)

    def test_match_changes_nothing(self):
        found = sequence_after([*ADMITTED, Do(Match(0), Hit(0))])
        assert (found.known, found.computed, found.out) == ([1, 2, 3], 0, None)

    def test_extend_sends_out_a_pass_and_computes_nothing_yet(self):
        found = sequence_after(OUT)
        assert (found.computed, found.out.start, found.out.end, found.asked) == (0, 0, 2, 2)

    def test_the_count_of_an_extend_is_cut_to_the_known_tokens(self):
        found = sequence_after([*ADMITTED, Do(Extend(0, 99), tables={0: [0, 1]}), Do(Commit(0))])
        assert found.computed == 3

    def test_the_count_of_a_first_extend_counts_from_the_adopted_tokens(self):
        script = [*WHOLE, Do(Admit(1, (1, 2, 8, 9))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 2]})]
        found = sequence_after(script, 1)
        assert (found.computed, found.out.start, found.out.end) == (2, 2, 3)

    def test_drafts_follow_the_last_known_token_in_the_pass(self):
        found = sequence_after([*COMPUTED, Do(Extend(0, 1, (8, 9)), tables={0: [0, 1, 2]})])
        assert (found.out.start, found.out.known_end, found.out.end) == (2, 3, 5)
        assert found.known == [1, 2, 3]

    @pytest.mark.parametrize("accepted", [0, 1, 2])
    def test_commit_computes_the_tokens_and_the_accepted_drafts(self, accepted):
        found = sequence_after([*COMPUTED, Do(Extend(0, 1, (8, 9)), tables={0: [0, 1, 2]}), Do(Commit(0, accepted))])
        assert found.known == [1, 2, 3, *(8, 9)[:accepted]]
        assert (found.computed, found.out) == (3 + accepted, None)

    def test_append_makes_tokens_known_and_computes_none(self):
        found = sequence_after([*COMPUTED, Do(Append(0, (4, 5)))])
        assert (found.known, found.computed) == ([1, 2, 3, 4, 5], 2)

    def test_truncate_forgets_known_and_computed_tokens_alike(self):
        found = sequence_after([*COMPUTED, Do(Truncate(0, 1))])
        assert (found.known, found.computed, found.asked) == ([1], 1, 1)

    def test_a_fork_knows_and_has_computed_what_its_parent_has_and_goes_its_own_way(self):
        spec = spec_after([*COMPUTED, Do(Fork(0, 1), tables={1: [0, 1]}), Do(Append(1, (9,)))])
        assert (spec.live[1].known, spec.live[1].computed) == ([1, 2, 3, 9], 2)
        assert spec.live[0].known == [1, 2, 3]

    @pytest.mark.parametrize("reason", ["finish", "cancel", "error"])
    def test_a_final_release_forgets_the_sequence(self, reason):
        spec = spec_after([*COMPUTED, Do(Release(0, reason))])
        assert spec.sequences[0].gone
        assert 0 not in spec.live

    def test_a_preempted_sequence_keeps_what_it_knows_and_has_computed_nothing(self):
        found = sequence_after([*COMPUTED, Do(Release(0, "preempt"), tables={0: []})])
        assert (found.known, found.computed, found.asked, found.gone) == ([1, 2, 3], 0, 0, False)

    def test_a_preempted_sequence_can_be_extended_again_from_its_start(self):
        found = sequence_after([*COMPUTED, Do(Release(0, "preempt"), tables={0: []}), Do(Extend(0, 3), tables={0: [2, 3]}), Do(Commit(0))])
        assert found.computed == 3

    def test_a_step_launches_what_was_neither_launched_nor_released(self):
        script = [
            *[step for seq in (0, 1, 2) for step in (Do(Admit(seq, (seq, 1))), Do(Extend(seq, 1), tables={seq: [seq]}))],
            Do(Release(1)),
            Do(BeginStep()),
            Do(BeginStep()),
        ]
        spec = spec_after(script, steps=True)
        assert [[out.seq for out in step] for step in spec.steps] == [[0, 2], []]
        assert not spec.sequences[0].out.finished

    def test_the_oldest_step_ends_first_and_its_passes_can_be_committed(self):
        script = [
            Do(Admit(0, (1,))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(BeginStep()),
            Do(Admit(1, (2,))),
            Do(Extend(1, 1), tables={1: [1]}),
            Do(BeginStep()),
            Do(EndStep()),
        ]
        lockstep = play(script, steps=True)
        assert (lockstep.spec.enabled(Commit(0)), lockstep.spec.enabled(Commit(1))) == (True, False)
        assert lockstep.cache.adapter.ended == [0]

    def test_the_adapter_is_given_the_step_id_that_it_chose(self):
        lockstep = play([Do(BeginStep(), 40), Do(BeginStep(), 41), Do(EndStep()), Do(EndStep())], steps=True)
        assert lockstep.cache.adapter.ended == [40, 41]

    def test_evict_and_reset_take_nothing_from_a_holder(self):
        found = sequence_after([*COMPUTED, Do(Evict((0, 1))), Do(Reset())])
        assert found.computed == 2

    def test_a_sequence_keeps_all_it_has_computed_over_a_swap(self):
        found = sequence_after(SWAPPED)
        assert (found.swapped, found.computed) == (True, 2)
        found = sequence_after([*SWAPPED, Do(SwapIn(0), tables={0: [3]})])
        assert (found.swapped, found.computed) == (False, 2)

    def test_a_swap_that_could_not_be_made_leaves_the_sequence_where_it_is(self):
        assert not sequence_after([*COMPUTED, Do(SwapOut(0), answer=False)]).swapped
        assert sequence_after([*SWAPPED, Do(SwapIn(0), answer=False)]).swapped

    def test_a_sequence_released_in_a_step_is_done_when_the_step_ends(self):
        script = [Do(Admit(0, (1,))), Do(Extend(0, 1), tables={0: [0]}), Do(BeginStep()), Do(Release(0))]
        assert len(spec_after(script, steps=True).passes) == 1
        assert spec_after([*script, Do(EndStep())], steps=True).passes == []

    def test_a_sequence_preempted_in_a_step_can_be_extended_again_while_its_old_pass_runs(self):
        script = [
            Do(Admit(0, (1,))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(BeginStep()),
            Do(Release(0, "preempt"), tables={0: []}),
            Do(Extend(0, 1), tables={0: [1]}),
            Do(EndStep()),
        ]
        spec = spec_after(script, steps=True)
        assert not spec.enabled(Commit(0))
        again = spec_after([*script, Do(BeginStep()), Do(EndStep()), Do(Commit(0))], steps=True)
        assert again.live[0].computed == 1


STEPPED_OUT = [Do(Admit(0, (1, 2))), Do(Extend(0, 1), tables={0: [0]})]
IN_STEP = [*STEPPED_OUT, Do(BeginStep())]
GONE = [*COMPUTED, Do(Release(0))]

ENABLED: list[tuple[str, list[Do], Op, dict[str, Any]]] = [
    ("a sequence number that was never used is admitted", [], Admit(0, (1,)), ALL),
    ("any number can be used", [], Admit(10**9, (1,)), ALL),
    ("what holds nothing is matched", ADMITTED, Match(0), ALL),
    ("a preempted sequence is matched", [*COMPUTED, Do(Release(0, "preempt"), tables={0: []})], Match(0), ALL),
    ("a known token is left to compute", COMPUTED, Extend(0, 1), ALL),
    ("drafts follow the last known token", COMPUTED, Extend(0, 1, (9,)), ALL),
    ("a count beyond the last known token reaches it", COMPUTED, Extend(0, 5, (9,)), ALL),
    ("a synchronous pass is committed at once", OUT, Commit(0), ALL),
    ("a pass whose step has ended is committed", [*IN_STEP, Do(EndStep())], Commit(0), {"steps": True}),
    ("what holds nothing is appended to", ADMITTED, Append(0, (1,)), ALL),
    ("everything computed is kept", COMPUTED, Truncate(0, 2), ALL),
    ("what holds nothing is forked", ADMITTED, Fork(0, 1), ALL),
    ("what is gone is released again", GONE, Release(0), ALL),
    ("a pass is out and its sequence is released", OUT, Release(0), ALL),
    ("a step begins without any pass", [], BeginStep(), {"steps": True}),
    ("blocks that the pool lacks are left out", ADMITTED, Evict((99, 3)), ALL),
    ("a reset is always possible", [], Reset(), ALL),
    ("a computed sequence is swapped out", COMPUTED, SwapOut(0), ALL),
    ("a swapped sequence is swapped in", SWAPPED, SwapIn(0), ALL),
    ("a swapped sequence is released", SWAPPED, Release(0), ALL),
]

SKIPPED: list[tuple[str, list[Do], Op, dict[str, Any]]] = [
    ("a number is admitted twice", ADMITTED, Admit(0, (1,)), ALL),
    ("a number is used again after its release", GONE, Admit(0, (1,)), ALL),
    ("a prompt is empty", [], Admit(0, ()), ALL),
    ("an unknown sequence is matched", [], Match(0), ALL),
    ("a computed sequence is matched", COMPUTED, Match(0), ALL),
    ("a pass is out and the sequence is matched", OUT, Match(0), ALL),
    ("no prefix is claimed", ADMITTED, Match(0), {"fork": True}),
    ("an unknown sequence is extended", [], Extend(0, 1), ALL),
    ("a sequence that is gone is extended", GONE, Extend(0, 1), ALL),
    ("nothing is asked for", ADMITTED, Extend(0, 0), ALL),
    ("less than nothing is asked for", ADMITTED, Extend(0, -1), ALL),
    ("every known token is computed", WHOLE, Extend(0, 1), ALL),
    ("a pass is out and the sequence is extended", OUT, Extend(0, 1), ALL),
    ("drafts come on a first extend", ADMITTED, Extend(0, 3, (9,)), ALL),
    ("drafts come before the last known token", [*COMPUTED, Do(Append(0, (4,)))], Extend(0, 1, (9,)), ALL),
    ("no drafts are claimed", COMPUTED, Extend(0, 1, (9,)), {"swap": True, "fork": True}),
    ("nothing is out to commit", COMPUTED, Commit(0), ALL),
    ("more is accepted than drafted", OUT, Commit(0, 1), ALL),
    ("less than nothing is accepted", OUT, Commit(0, -1), ALL),
    ("a pass that is not launched is committed", STEPPED_OUT, Commit(0), {"steps": True}),
    ("a pass that still runs is committed", IN_STEP, Commit(0), {"steps": True}),
    ("a pass whose sequence was released is committed", [*OUT, Do(Release(0))], Commit(0), ALL),
    ("a pass whose sequence was preempted is committed", [*OUT, Do(Release(0, "preempt"), tables={0: []})], Commit(0), ALL),
    ("nothing is appended", ADMITTED, Append(0, ()), ALL),
    ("a pass is out and the sequence is appended to", OUT, Append(0, (1,)), ALL),
    ("a swapped sequence is appended to", SWAPPED, Append(0, (1,)), ALL),
    ("more is kept than was computed", COMPUTED, Truncate(0, 3), ALL),
    ("nothing is kept", COMPUTED, Truncate(0, 0), ALL),
    ("a pass is out and the sequence is truncated", OUT, Truncate(0, 1), ALL),
    ("no truncation is claimed", COMPUTED, Truncate(0, 1), {"fork": True}),
    ("a pass is out and the sequence is forked", OUT, Fork(0, 1), ALL),
    ("a fork uses a known number", COMPUTED, Fork(0, 0), ALL),
    ("a fork uses the number of what is gone", [*GONE, Do(Admit(1, (1,)))], Fork(1, 0), ALL),
    ("an unknown parent is forked", [], Fork(0, 1), ALL),
    ("no fork is claimed", COMPUTED, Fork(0, 1), {"truncate": True}),
    ("an unknown sequence is released", [], Release(0), ALL),
    ("no steps are claimed", OUT, BeginStep(), ALL),
    ("too many steps are open", [Do(BeginStep())] * MAX_OPEN_STEPS, BeginStep(), {"steps": True}),
    ("no step is open", [], EndStep(), {"steps": True}),
    ("a younger step ends first", [Do(BeginStep()), Do(BeginStep())], EndStep(1), {"steps": True}),
    ("the pool has none of the blocks", ADMITTED, Evict((4, 99, -1)), ALL),
    ("no block is named", ADMITTED, Evict(()), ALL),
    ("only null blocks are evicted", ADMITTED, Evict((0,)), {"evict": True, "null_blocks": {0}}),
    ("no eviction is claimed", ADMITTED, Evict((0,)), {"reset": True}),
    ("no reset is claimed", [], Reset(), {"evict": True}),
    ("what computed nothing is swapped out", ADMITTED, SwapOut(0), ALL),
    ("a pass is out and the sequence is swapped out", OUT, SwapOut(0), ALL),
    ("a swapped sequence is swapped out again", SWAPPED, SwapOut(0), ALL),
    ("what was not swapped out is swapped in", COMPUTED, SwapIn(0), ALL),
    ("a swapped sequence is extended", SWAPPED, Extend(0, 1), ALL),
    ("a swapped sequence is forked", SWAPPED, Fork(0, 1), ALL),
    ("no swap is claimed", COMPUTED, SwapOut(0), {"fork": True}),
]


@pytest.mark.parametrize(("script", "op", "claims"), [row[1:] for row in ENABLED], ids=[row[0] for row in ENABLED])
def test_an_operation_whose_precondition_holds_is_run(script, op, claims):
    assert spec_after(script, **claims).enabled(op)


@pytest.mark.parametrize(("script", "op", "claims"), [row[1:] for row in SKIPPED], ids=[row[0] for row in SKIPPED])
def test_an_operation_whose_precondition_does_not_hold_is_skipped_and_leaves_no_mark(script, op, claims):
    lockstep = play(script, **claims)
    step, ran = lockstep.spec.step, list(lockstep.ops)
    assert not lockstep.do(op)
    assert (lockstep.spec.step, lockstep.ops) == (step, ran)


def test_every_operation_that_needs_a_claim_is_skipped_without_it():
    spec = spec_after([*COMPUTED, Do(Admit(1, (1,)))], snapshot=True)
    ops = [Match(1), Truncate(0, 1), Fork(0, 2), BeginStep(), EndStep(), Evict((0,)), Reset(), SwapOut(0), SwapIn(0), Extend(0, 1, (9,))]
    assert [op for op in ops if spec.enabled(op)] == []
