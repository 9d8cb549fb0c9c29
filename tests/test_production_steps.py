"""The production cache beside a device: steps, the mirror of its tables, the host tier."""

import pytest
from production_caches import cached, compute, make, step

from kvproof.impl.production import WorkerMirror, errors


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
