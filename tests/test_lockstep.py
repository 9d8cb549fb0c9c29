"""The driver: what it skips, what it counts, how it ends, and what it makes of adapters that get in its way."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import DoubleFree, Faulty, Hanging, Refusing, Silent, Toy
from toys_more import Everything, Raising, RaisingAgain, RaisingHalfway, Stepping, Swallowing

from kvproof import Capabilities, Differs, Grant, Hit, Snapshot
from kvproof.impl.checker import AdapterFault, Hung
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.ops import Admit, Append, BeginStep, Commit, EndStep, Extend, Fork, Match, Release, Reset, SwapIn, SwapOut, Truncate
from kvproof.properties import strategies
from kvproof.properties.lockstep import SERVED, LawBroken, Lockstep, run, time_limit, told_hang

POOL = {"num_blocks": 4, "block_size": 2}
PROGRAM = [Admit(0, (1, 2, 3)), Extend(0, 3), Commit(0), Append(0, (4,)), Extend(0, 1), Commit(0), Release(0)]


def lockstep(target, **how):
    return Lockstep(target, **(POOL | how))


# -- skipping -----------------------------------------------------------------------------------------------------------------------------------


def test_a_program_runs_whole_where_every_precondition_holds():
    result = run(PROGRAM, Toy, **POOL)
    assert result.ok
    assert result.ran == PROGRAM


def test_what_is_skipped_is_not_given_to_the_cache():
    driven = lockstep(Toy)
    assert not driven.do(Commit(0))
    assert not driven.do(Extend(3, 1))
    assert driven.do(Admit(0, (1,)))
    assert driven.ops == [Admit(0, (1,))]
    assert driven.spec.step == 1


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([Everything, Stepping, ProductionAdapter]).flatmap(
        lambda target: st.tuples(
            st.just(target),
            strategies.pools(target.capabilities()),
            strategies.programs(target.capabilities()),
            st.lists(st.booleans(), min_size=60, max_size=60),
        )
    )
)
def test_every_sub_list_of_a_program_can_be_run(drawn):
    target, pool, ops, kept = drawn
    some = [op for op, keep in zip(ops, kept, strict=False) if keep]
    result = run(some, target, num_blocks=pool.num_blocks, block_size=pool.block_size)
    assert result.ok, result.violation or result.fault or result.hang
    remaining = iter(some)
    assert all(op in remaining for op in result.ran), "what ran is not a sub-list of the program"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=20))
def test_operations_in_any_order_can_be_run(order):
    assert run([PROGRAM[i] for i in order], Toy, **POOL).ok


@settings(deadline=None, max_examples=50)
@given(strategies.programs(Everything.capabilities()))
def test_what_ran_runs_again_the_same(ops):
    first = run(ops, Everything, num_blocks=6, block_size=2)
    again = run(first.ran, Everything, num_blocks=6, block_size=2)
    assert again.ran == first.ran
    assert again.exercised == first.exercised


# -- results --------------------------------------------------------------------------------------------------------------------------------------


def test_a_broken_law_ends_the_run_at_its_step():
    class Forgetful(Silent):
        def commit(self, seq, accepted):
            super().commit(seq, accepted)
            self.rows[seq] = []

    result = run(PROGRAM, Forgetful, **POOL)
    assert not result.ok
    assert (result.violation.law, result.violation.step) == ("committed-is-covered", 2)
    assert result.ran == PROGRAM[:3]
    assert (result.fault, result.hang) == ("", "")


def test_a_broken_law_is_an_assertion_with_its_name_and_reason():
    driven = lockstep(DoubleFree)
    for op in [Admit(0, (1,)), Extend(0, 1), Release(0, "preempt"), Extend(0, 1), Admit(1, (2,))]:
        driven.do(op)
    with pytest.raises(LawBroken, match=r"^no-aliasing: block \d still belongs to sequence 0, yet sequence 1 was given it") as caught:
        driven.do(Extend(1, 1))
    assert isinstance(caught.value, AssertionError)
    assert caught.value.violation.step == 5


def test_a_fault_of_the_adapter_is_told_apart_from_a_broken_law():
    result = run(PROGRAM, Faulty, **POOL)
    assert result.violation is None
    assert result.fault == "extend(0, 3, ()) returned NoneType None; it must return kvproof.Grant."


def test_capabilities_that_cannot_be_read_are_a_result_not_an_exception():
    result = run(PROGRAM, type("Bare", (), {}), **POOL)
    assert "Bare has no capabilities()" in result.fault
    assert result.ran == []


@pytest.mark.parametrize("capacity", [lambda blocks: None, lambda blocks: blocks // 0], ids=["gives nothing", "raises"])
def test_a_capacity_function_that_fails_is_a_result_not_an_exception(capacity):
    assert run(PROGRAM, Toy, capabilities=Capabilities(capacity=capacity), **POOL).fault


def test_what_was_put_to_the_test_is_counted():
    result = run(PROGRAM, Toy, **POOL)
    assert result.exercised["own-content"] > 0
    appends = sum(isinstance(op, Append) for op in PROGRAM)
    assert result.exercised["pool-conserved"] == len(PROGRAM) - appends  # tokens that become known move nothing
    assert "hit-is-true-prefix" not in result.exercised


def test_refusals_are_counted_for_each_operation_and_the_program_goes_on():
    result = run([*PROGRAM[:3], Truncate(0, 1), Truncate(0, 2), *PROGRAM[3:]], Refusing, **POOL)
    assert result.ok
    assert result.refusals == {"truncate": 2}
    assert len(result.ran) == len(PROGRAM) + 2


def test_a_trace_tells_each_operation_its_outcome_and_what_was_seen():
    result = run([Admit(0, (1, 2, 3)), Commit(0), Extend(0, 3)], Toy, keep_trace=True, **POOL)
    assert [step.op for step in result.trace] == [Admit(0, (1, 2, 3)), Extend(0, 3)]
    assert [step.outcome for step in result.trace] == [None, Grant()]
    assert [step.seen.tables for step in result.trace] == [{0: ((),)}, {0: ((3, 2),)}]
    assert result.trace[-1].seen.books.free == (0, 1)


def test_a_trace_ends_with_the_step_that_broke_the_law():
    class Forgetful(Silent):
        def commit(self, seq, accepted):
            self.rows[seq] = []

    result = run(PROGRAM, Forgetful, keep_trace=True, **POOL)
    assert result.trace[-1].op == Commit(0)
    assert result.trace[-1].seen.tables == {0: ((),)}


def test_no_trace_is_kept_unless_it_is_asked_for():
    assert run(PROGRAM, Toy, **POOL).trace is None


def test_only_sequences_that_are_known_are_looked_at():
    class Strict(Toy):
        looked: set[int] = set()  # noqa: RUF012 -- shared on purpose: the test reads it

        def block_table(self, seq, group=0):
            assert seq in self.rows
            self.looked.add(seq)
            return self.rows[seq]

        def release(self, seq, reason):
            super().release(seq, reason)
            if reason != "preempt":
                del self.rows[seq]

        def snapshot(self):
            return Snapshot()

    ops = [*PROGRAM, Admit(5, (1,)), Extend(5, 1), Release(5, "preempt")]
    result = run(ops, Strict, **POOL)
    assert result.ok, result
    assert Strict.looked == {0, 5}


# -- exceptions -------------------------------------------------------------------------------------------------------------------------------------


def test_an_exception_while_there_is_room_is_a_fault_of_the_adapter():
    class Clumsy(Toy):
        def extend(self, seq, count, drafts=()):
            raise IndexError("nowhere")

    result = run(PROGRAM, Clumsy, **POOL)
    assert result.violation is None
    assert "extend(0, 3, ()) raised IndexError: nowhere at test_lockstep.py:" in result.fault


def test_an_exception_while_there_is_room_is_one_even_if_it_left_its_mark():
    class Halfway(Toy):
        def extend(self, seq, count, drafts=()):
            self.rows[seq].append(self.free.pop())
            raise IndexError("nowhere")

    result = run(PROGRAM, Halfway, **POOL)
    assert result.violation is None
    assert "raised IndexError: nowhere" in result.fault


def test_an_exception_without_room_that_left_no_mark_is_a_fault_of_the_adapter():
    result = run([Admit(0, (1,) * 5), Extend(0, 5)], Raising, num_blocks=2, block_size=2)
    assert result.violation is None
    assert "raised IndexError: pop from empty list" in result.fault
    assert "a cache that has no room raises kvproof.OutOfBlocks" in result.fault


def test_an_exception_without_room_that_left_its_mark_is_a_broken_law():
    result = run([Admit(0, (1,) * 5), Extend(0, 5)], RaisingHalfway, num_blocks=2, block_size=2, keep_trace=True)
    assert result.fault == ""
    assert result.violation.law == "failure-changes-nothing"
    assert "the block table of sequence 0 from [] to [1, 0]" in result.violation.reason
    assert "extend raised IndexError: pop from empty list" in result.violation.reason
    assert "the pool had no room for it" in result.violation.reason
    assert result.trace[-1].op == Extend(0, 5)


def test_an_exception_that_left_the_adapter_beyond_asking_is_told_as_it_was():
    class Broken(RaisingHalfway):
        def block_table(self, seq, group=0):
            if len(self.rows[seq]) > 1:
                raise RuntimeError("beyond asking")
            return self.rows[seq]

    result = run([Admit(0, (1,) * 5), Extend(0, 5)], Broken, num_blocks=2, block_size=2)
    assert result.violation is None
    assert "raised IndexError" in result.fault


def test_a_repeated_release_that_raises_is_a_broken_law():
    result = run([Admit(0, (1,)), Release(0), Release(0)], RaisingAgain, **POOL)
    assert result.violation.law == "release-once"
    assert "releasing it raised KeyError: 0" in result.violation.reason


def test_a_first_release_that_raises_is_a_fault_of_the_adapter():
    class Sticky(Toy):
        def release(self, seq, reason):
            raise KeyError(seq)

    result = run([Admit(0, (1,)), Extend(0, 1), Release(0)], Sticky, **POOL)
    assert result.violation is None
    assert result.fault.startswith("release raised KeyError: 0")


class Owning(Toy):
    """An adapter that can tell the cache's own failures: they are assertions."""

    def raised_by_cache(self, error):
        return isinstance(error, AssertionError)


def test_a_failure_of_the_caches_own_that_left_its_mark_is_a_broken_law():
    class Halfway(Owning):
        def extend(self, seq, count, drafts=()):
            self.rows[seq].append(self.free.pop())
            raise AssertionError("the books are wrong")

    result = run(PROGRAM, Halfway, keep_trace=True, **POOL)
    assert (result.fault, result.violation.law) == ("", "failure-changes-nothing")
    assert "extend raised AssertionError: the books are wrong at test_lockstep.py" in result.violation.reason
    assert "in the cache's own code" in result.violation.reason
    assert result.trace[-1].outcome.error.startswith("AssertionError")


def test_a_failure_of_the_caches_own_where_there_was_room_denies_room():
    class Dead(Owning):
        def extend(self, seq, count, drafts=()):
            raise AssertionError("the books are wrong")

    result = run(PROGRAM, Dead, **POOL)
    assert (result.fault, result.violation.law) == ("", "no-spurious-exhaustion")
    assert "yet extend raised AssertionError: the books are wrong" in result.violation.reason


def test_a_failure_of_the_caches_own_is_no_way_to_say_that_there_will_be_no_room():
    class Dead(Owning):
        def extend(self, seq, count, drafts=()):
            raise AssertionError("the books are wrong")

    result = run([Admit(0, (1,) * 5), Extend(0, 1)], Dead, num_blocks=2, block_size=2)
    assert result.violation.law == "no-spurious-exhaustion"
    assert "there was room for what sequence 0 asks for, yet extend raised AssertionError" in result.violation.reason
    assert run([Admit(0, (1,) * 5), Extend(0, 5)], Dead, num_blocks=2, block_size=2).violation is None


def test_a_failure_of_the_caches_own_that_breaks_no_law_is_told_as_a_fault():
    class Deaf(Owning):
        def append(self, seq, tokens):
            raise AssertionError("the books are wrong")

    result = run(PROGRAM, Deaf, **POOL)
    assert result.violation is None
    assert "append(0, (4,)) raised AssertionError: the books are wrong" in result.fault


@pytest.mark.parametrize(
    ("method", "law", "program"),
    [
        ("commit", "committed-is-covered", [Extend(0, 2), Commit(0)]),
        ("truncate", "truncate-exact", [Extend(0, 2), Commit(0), Truncate(0, 1)]),
        ("reset", "reset-forgets", [Reset()]),
        ("swap_in", "swap-round-trip", [Extend(0, 2), Commit(0), SwapOut(0), SwapIn(0)]),
    ],
)
def test_what_the_caches_own_code_cannot_finish_is_never_done(method, law, program):
    def dies(*_):
        raise AssertionError("the books are wrong")

    def claims(cls):
        return Capabilities(truncate=True, swap=True, prefix=True, reset=True)

    others = {
        "match": lambda *_: Hit(),
        "truncate": lambda *_: None,
        "reset": lambda _: True,
        "swap_out": lambda *_: True,
        "swap_in": lambda *_: True,
    }
    how = {"capabilities": classmethod(claims), **others, method: dies}
    result = run([Admit(0, (1, 2)), *program], type("Dead", (Owning,), how), **POOL)
    assert (result.fault, result.violation.law) == ("", law)
    assert f"{method.replace('_', '')} raised AssertionError: the books are wrong" in result.violation.reason
    adapters = run([Admit(0, (1, 2)), *program], type("Dead", (Toy,), how), **POOL)
    assert adapters.violation is None
    assert "AssertionError: the books are wrong" in adapters.fault


def test_a_look_up_that_the_cache_itself_fails_at_is_judged_by_the_extend_that_follows():
    class Blind(Owning):
        @classmethod
        def capabilities(cls):
            return Capabilities(prefix=True)

        def match(self, seq):
            raise AssertionError("the books are wrong")

        def extend(self, seq, count, drafts=()):
            self.match(seq)

    assert run([Admit(0, (1, 2)), Match(0)], Blind, **POOL).refusals == {"match": 1}
    assert run([Admit(0, (1, 2)), Match(0), Extend(0, 2)], Blind, **POOL).violation.law == "no-spurious-exhaustion"


def test_a_release_that_the_cache_itself_cannot_finish_is_a_broken_law():
    class Sticky(Owning):
        def release(self, seq, reason):
            raise AssertionError("the books are wrong")

    result = run([Admit(0, (1,)), Extend(0, 1), Release(0)], Sticky, **POOL)
    assert (result.fault, result.violation.law) == ("", "release-once")
    assert "sequence 0 cannot be let go of: release raised AssertionError: the books are wrong" in result.violation.reason


def test_what_the_adapter_does_not_put_on_the_cache_stays_its_own_fault():
    class Clumsy(Owning):
        def extend(self, seq, count, drafts=()):
            self.rows[seq].append(self.free.pop())
            raise IndexError("nowhere")

    result = run(PROGRAM, Clumsy, **POOL)
    assert result.violation is None
    assert "raised IndexError: nowhere" in result.fault


@pytest.mark.parametrize(
    ("claims", "adopted", "words"),
    [
        ({}, 1, "extend reported adopted=1, but the capability prefix is not claimed."),
        ({"prefix": True}, 9, "hit-leaves-last-token"),
    ],
)
def test_an_adoption_that_cannot_be_is_told(claims, adopted, words):
    class Adopting(Silent):
        @classmethod
        def capabilities(cls):
            return Capabilities(**claims)

        def match(self, seq):
            return Hit()

        def extend(self, seq, count, drafts=()):
            super().extend(seq, count, drafts)
            return Grant(adopted=adopted)

    result = run(PROGRAM, Adopting, **POOL)
    assert words in (result.fault or result.violation.law)


def test_an_adoption_after_the_first_extend_is_a_fault_of_the_adapter():
    class Late(Silent):
        @classmethod
        def capabilities(cls):
            return Capabilities(prefix=True)

        def match(self, seq):
            return Hit()

        def extend(self, seq, count, drafts=()):
            super().extend(seq, count, drafts)
            return Grant(adopted=1 if self.computed[seq] else 0)

    assert run(PROGRAM, Late, **POOL).fault == "extend reported adopted=1 for a sequence that has already computed 3 tokens."


def test_a_copy_in_a_group_that_is_not_there_is_a_fault():
    class Grouping(Silent):
        def extend(self, seq, count, drafts=()):
            super().extend(seq, count, drafts)
            return Grant(copies=[(1, 0, 1)])

    assert "names group 1, but there is only group 0." in run(PROGRAM, Grouping, **POOL).fault


@pytest.mark.parametrize("target", [Everything, Stepping])
def test_the_device_has_a_table_only_of_what_was_launched(target):
    class Mirrored(target):
        @classmethod
        def capabilities(cls):
            return msgspec.structs.replace(super().capabilities(), mirror=True)

        def __init__(self, **pool):
            super().__init__(**pool)
            self.rows_there = {}

        def extend(self, seq, count, drafts=()):
            grant = super().extend(seq, count, drafts)
            self.rows_there[seq] = self.rows[seq]
            return grant

        def worker_table(self, seq, group=0):
            return self.rows_there[seq]

    ops = [Admit(0, (1,) * 9), Extend(0, 9), Admit(1, (1,) * 2), Extend(1, 2), BeginStep(), EndStep(), Commit(1)]
    result = run(ops, Mirrored, **POOL)
    assert result.ok, result.violation or result.fault
    assert result.exercised["mirror-follows"] == 1


# -- time -----------------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [Hanging, Swallowing])
def test_an_operation_that_hangs_is_stopped_even_if_the_adapter_swallows_exceptions(target):
    start = time.monotonic()
    result = run(PROGRAM, target, op_seconds=0.2, **POOL)
    assert result.hang == "one operation ran for more than 0.2 s"
    assert (result.violation, result.fault) == (None, "")
    assert result.ran[-1] == Commit(0)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("method", ["block_table", "snapshot", "worker_table", "take_events"])
def test_a_look_that_hangs_is_named_and_no_operation_is_blamed(method):
    class Stuck(Everything):
        pass

    def stuck(self, *_):
        while True:
            time.sleep(0.01)

    setattr(Stuck, method, stuck)
    result = run(PROGRAM, Stuck, **POOL, op_seconds=0.2)
    assert result.hang == f"{method} ran for more than 0.2 s"
    assert told_hang([Commit(0)], result.hang) == f"{method} hung after commit(0, 0): it ran for more than 0.2 s."
    assert run(PROGRAM, Hanging, **POOL, op_seconds=0.2).hang == "one operation ran for more than 0.2 s"


def _spins(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


class Finalized:
    def __init__(self, seconds):
        self.seconds = seconds

    def __del__(self):
        _spins(self.seconds)


@pytest.mark.parametrize("where", ["finalizer", "collector"])
def test_an_alarm_is_not_lost_where_python_would_swallow_it(where, monkeypatch):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)

    class Stuck(Toy):
        def commit(self, seq, accepted):
            if where == "finalizer":
                Finalized(1.1)
            else:
                gc.collect()
            _spins(60)

    def slow(phase, _):
        if phase == "start":
            _spins(1.1)

    gc.callbacks.append(slow)
    try:
        start = time.monotonic()
        result = run(PROGRAM, Stuck, op_seconds=1.0, **POOL)
    finally:
        gc.callbacks.remove(slow)
    assert result.hang == "one operation ran for more than 1 s"
    assert time.monotonic() - start < 20
    assert swallowed == []


def test_a_finalizer_that_never_ends_is_ended(monkeypatch):
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: swallowed.append(type(told.exc_value)))

    class Stuck(Toy):
        def commit(self, seq, accepted):
            Finalized(60)
            _spins(60)

    start = time.monotonic()
    assert run(PROGRAM, Stuck, op_seconds=0.1, **POOL).hang
    assert swallowed == [Hung]
    assert time.monotonic() - start < 5


def test_a_cache_that_hangs_while_it_is_built_is_stopped():
    class Slow(Toy):
        def __init__(self, **pool):
            time.sleep(60)

    result = run(PROGRAM, Slow, op_seconds=0.1, **POOL)
    assert result.hang
    assert result.ran == []


def test_many_quick_operations_may_take_longer_than_the_limit_of_one():
    driven = lockstep(Toy)
    with time_limit(0.2):
        for seq in range(30):
            time.sleep(0.02)
            driven.do(Admit(seq, (1,)))
    assert len(driven.ops) == 30


def test_the_limit_is_gone_after_the_run_and_leaves_no_timer_behind():
    before = signal.getsignal(signal.SIGALRM)
    run(PROGRAM, Hanging, op_seconds=0.1, **POOL)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_hang_is_no_exception_that_an_adapter_would_catch():
    assert not issubclass(Hung, Exception)
    with pytest.raises(Hung), time_limit(0.05):
        time.sleep(10)


def test_outside_the_main_thread_a_run_is_not_limited_and_still_works():
    results = []
    worker = threading.Thread(target=lambda: results.append(run(PROGRAM, Toy, op_seconds=0.1, **POOL)))
    worker.start()
    worker.join(timeout=30)
    assert results[0].ok


# -- claims -----------------------------------------------------------------------------------------------------------------------------------------------


def test_capabilities_may_be_given_instead_of_being_read_again():
    class Counting(Toy):
        calls = 0

        @classmethod
        def capabilities(cls):
            cls.calls += 1
            return super().capabilities()

    claimed = Counting.capabilities()
    run(PROGRAM, Counting, capabilities=claimed, **POOL)
    assert Counting.calls == 1


def test_operations_that_are_not_claimed_are_skipped():
    ops = [Admit(0, (1, 2)), Match(0), Extend(0, 2), BeginStep(), EndStep(), Commit(0), Fork(0, 1), Truncate(0, 1)]
    result = run(ops, Toy, **POOL)
    assert result.ok
    assert result.ran == [Admit(0, (1, 2)), Extend(0, 2), Commit(0)]


def test_events_are_replayed_over_the_whole_program():
    from kvproof import Event

    class Telling(Everything):
        def __init__(self, **pool):
            super().__init__(**pool)
            self.events = []

        @classmethod
        def capabilities(cls):
            return Capabilities(prefix=True, snapshot=True, events=True)

        def match(self, seq):
            return Hit()

        def _best(self, seq):
            return (0, -1)

        def commit(self, seq, accepted):
            super().commit(seq, accepted)
            self.events.append(Event("stored", self.rows[seq][0]))

        def release(self, seq, reason):
            self.events += [Event("removed", self.rows[seq][:1])] if seq else [Event("cleared")]
            super().release(seq, reason)

        def snapshot(self):
            return Snapshot()

        def take_events(self):
            taken, self.events = self.events, []
            return taken

    seen, rarely = [], []
    driven, seldom = lockstep(Telling, num_blocks=5), lockstep(Telling, num_blocks=6)
    for op in [
        *[op for seq in (0, 1) for op in (Admit(seq, (seq,)), Extend(seq, 1), Commit(seq))],
        Release(1),
        Release(0),
    ]:
        driven.do(op)
        seldom.do(op)
        seen.append(driven.last_seen.matchable_by_events)
        rarely.append(seldom.last_seen.matchable_by_events)
    assert seen == [frozenset(), frozenset(), {4}, {4}, {4}, {3, 4}, {4}, frozenset()]
    # In pools with an even number of blocks they are taken after every seventh operation, all that came in between at once.
    assert rarely == [None, None, None, None, None, None, {5}, None]


@pytest.mark.parametrize("target", [Toy, Everything, Stepping])
def test_the_correct_toys_are_correct(target):
    from kvproof.fuzz.check import check

    report = check(target, name="toy", seconds=60, seed=1, programs=60)
    assert report.verdict == "held", report.violations or report.error


def test_an_adapter_fault_ends_the_lockstep_as_an_exception():
    driven = lockstep(Faulty)
    driven.do(Admit(0, (1,)))
    with pytest.raises(AdapterFault, match=r"must return kvproof\.Grant"):
        driven.do(Extend(0, 1))


# -- adapters with tensors ------------------------------------------------------------------------------------------------------------------------


class Numbers(Toy):
    """Compares something after each pass; the second is wrong."""

    @classmethod
    def capabilities(cls):
        return msgspec.structs.replace(super().capabilities(), tensors=True)

    def commit(self, seq, accepted):
        super().commit(seq, accepted)
        if self.computed[seq] == 4:
            raise Differs("position 3 is off by 0.5")


class Unclaimed(Numbers):
    """Says so without a claim."""

    capabilities = Toy.capabilities


def test_wrong_numbers_break_the_law_that_only_the_adapter_can_judge():
    result = run(PROGRAM, Numbers, **POOL, keep_trace=True)
    assert result.violation is not None
    assert (result.violation.law, result.violation.step, result.violation.reason) == (SERVED, 5, "position 3 is off by 0.5")
    assert result.exercised[SERVED] == 1
    assert len(result.trace) == len(result.ran) == 6


def test_right_numbers_are_counted_pass_by_pass():
    result = run(PROGRAM[:3], Numbers, **POOL)
    assert result.ok
    assert result.exercised[SERVED] == 1
    assert run(PROGRAM[:3], Toy, **POOL).exercised[SERVED] == 0


def test_whoever_compares_tensors_claims_it():
    assert run(PROGRAM, Unclaimed, **POOL).fault == "commit(0, 0) raised Differs; claim the capability tensors, or do not raise it."
