"""No scenario makes a call that the contract forbids, whatever the schedule: an adapter that allows nothing else goes through all of them."""

from __future__ import annotations

import threading

import msgspec
import pytest

from kvproof.fuzz.races import baton, explore
from kvproof.fuzz.races.drawn import random_scenario
from kvproof.fuzz.races.history import Call, Run, _left_open
from kvproof.fuzz.races.lawful import ThreadView, check_homes
from kvproof.fuzz.races.scenarios import Scenario, catalogue
from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
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
from kvproof.models.outcomes import OutOfBlocks, OutOfBlocksSeen, Refused, RefusedSeen
from kvproof.properties.lockstep import Lockstep


class Forbidden(Exception):
    """What a strict cache answers to a call that the contract forbids."""


class Strict(CacheAdapter):
    """The production cache under one lock, beside the spec, which says of each call whether the contract allows it. `unlawful` collects the forbidden ones that did not just come too late."""

    behind = ProductionAdapter
    unlawful: list[str] = []  # noqa: RUF012 -- one for all that are built

    def __init__(self, *, num_blocks, block_size):
        self.lock = threading.RLock()
        self.lockstep = Lockstep(self.behind, num_blocks=num_blocks, block_size=block_size)
        self.open, self.ended = [], set()

    @classmethod
    def capabilities(cls):
        """No events: the lockstep takes them for itself."""
        return msgspec.structs.replace(cls.behind.capabilities(), events=False)

    def ask(self, op, *, too_late=False):
        """Called with the lock held."""
        if not self.lockstep.do(op):
            if not too_late:
                self.unlawful.append(f"{op} with {self.lockstep.spec.live} live and {self.open} open")
            raise Forbidden(str(op))
        outcome = self.lockstep.last_outcome
        if isinstance(outcome, OutOfBlocksSeen):
            raise OutOfBlocks
        if isinstance(outcome, RefusedSeen):
            raise Refused(outcome.reason)
        return outcome

    def about(self, op, seq):
        with self.lock:
            spec = self.lockstep.spec
            return self.ask(op, too_late=seq in spec.numbers and seq not in spec.live)

    def admit(self, seq, prompt, namespace):
        self.about(Admit(seq, tuple(prompt), namespace), seq)

    def match(self, seq):
        return self.about(Match(seq), seq)

    def extend(self, seq, count, drafts=()):
        return self.about(Extend(seq, count, tuple(drafts)), seq)

    def commit(self, seq, accepted):
        self.about(Commit(seq, accepted), seq)

    def append(self, seq, tokens):
        self.about(Append(seq, tuple(tokens)), seq)

    def truncate(self, seq, length):
        self.about(Truncate(seq, length), seq)

    def fork(self, parent, child):
        return self.about(Fork(parent, child), parent)

    def release(self, seq, reason):
        self.about(Release(seq, reason), seq)

    def swap_out(self, seq):
        return self.about(SwapOut(seq), seq)

    def swap_in(self, seq):
        return self.about(SwapIn(seq), seq)

    def evict(self, blocks):
        with self.lock:
            return self.ask(Evict(tuple(blocks)))

    def reset(self):
        with self.lock:
            return self.ask(Reset())

    def begin_step(self):
        with self.lock:
            step = self.ask(BeginStep())
            self.open.append(step)
            return step

    def end_step(self, step):
        with self.lock:
            late = step in self.ended
            self.ask(EndStep(self.open.index(step) if step in self.open else -1), too_late=late)
            self.open.remove(step)
            self.ended.add(step)

    def block_table(self, seq, group=0):
        with self.lock:
            return self.lockstep.cache.adapter.block_table(seq, group)

    def worker_table(self, seq, group=0):
        with self.lock:
            return self.lockstep.cache.adapter.worker_table(seq, group)

    def snapshot(self):
        with self.lock:
            return self.lockstep.cache.adapter.snapshot()


class StrictHybrid(Strict):
    behind = HybridAdapter


class StrictSynchronous(Strict):
    behind = SynchronousAdapter


@pytest.mark.parametrize(("target", "drawn"), [(Strict, 200), (StrictHybrid, 40), (StrictSynchronous, 40)])
def test_no_scenario_makes_a_call_that_the_contract_forbids(target, drawn, monkeypatch):
    monkeypatch.setattr(target, "unlawful", [])
    capabilities = target.capabilities()
    for scenario in [*catalogue(capabilities), *(random_scenario(f"0:{number}", capabilities) for number in range(drawn))]:
        outcome = explore.explore(scenario, target, mode="random", seconds=0.03)
        assert (target.unlawful, outcome.kind) == ([], "held"), (scenario, outcome.reason, outcome.verdict)


def test_a_forbidden_call_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Strict, "unlawful", [])
    monkeypatch.setattr(ThreadView, "may", lambda *_: True)
    made(Scenario("", "", STARTED, ((Extend(0, 3), Commit(0)), ())))
    assert len(Strict.unlawful) == 1
    assert Strict.unlawful[0].startswith("Commit(seq=0, accepted=0)")


def made(scenario, target=Strict):
    """The calls that the threads made, one thread after another."""
    run = Run(scenario, target)
    for thread in range(len(scenario.threads)):
        run.thread(thread)
    return [[type(call.op) for call in calls] for calls in run.finish().threads]


STARTED = (Admit(0, (0, 1, 0)), Admit(1, (1, 1, 1)))


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        (((Extend(0, 3), Commit(0)), ()), [[Extend], []]),
        (((Extend(0, 3), BeginStep(), Commit(0)), ()), [[Extend, BeginStep], []]),
        (((Extend(0, 3), BeginStep(), EndStep(0), Commit(0)), ()), [[Extend, BeginStep, EndStep, Commit], []]),
        (((Extend(0, 3), BeginStep(), EndStep(0), Commit(0)), (BeginStep(),)), [[Extend, BeginStep], [BeginStep]]),
        (((Extend(0, 3), Append(0, (1,)), Match(0), Fork(0, 2), Release(2)), ()), [[Extend], []]),
        (((Truncate(0, 1), SwapOut(0), SwapIn(0), Append(0, (1,))), ()), [[Append], []]),
        (((Extend(0, 3),), (Extend(1, 3), Release(1, "preempt"), Extend(1, 2))), [[Extend], [Extend, Release, Extend]]),
    ],
)
def test_a_call_is_left_out_where_the_contract_does_not_allow_it(threads, expected):
    assert made(Scenario("", "", STARTED, threads)) == expected


def test_what_found_no_room_is_not_committed():
    assert made(Scenario("", "", STARTED, ((Extend(0, 3),), (Extend(1, 3), Append(1, (0,)))), num_blocks=2)) == [[Extend], [Extend, Append]]
    assert made(Scenario("", "", STARTED, ((Extend(0, 3), Commit(0)), ()), num_blocks=1), StrictSynchronous) == [[Extend], []]


def test_steps_are_completed_in_the_order_of_their_begins():
    setup = (*STARTED, Extend(0, 3), BeginStep(), Extend(1, 3), BeginStep())
    threads = ((EndStep(1), EndStep(0), EndStep(1)), ())
    assert made(Scenario("", "", setup, threads)) == [[EndStep, EndStep], []]
    assert made(Scenario("", "", setup, threads[::-1], any_order=True), ProductionAdapter) == [[], [EndStep, EndStep]]


def test_two_threads_do_not_work_on_one_sequence():
    check_homes(Scenario("", "", STARTED, ((Extend(0, 3),), (Release(0, "cancel"),))))
    with pytest.raises(ValueError, match="the threads 0 and 1 both work on sequence 0"):
        check_homes(Scenario("", "", STARTED, ((Extend(0, 3),), (Release(0, "preempt"),))))
    with pytest.raises(ValueError, match="both work on sequence 1"):
        explore.explore(Scenario("", "", STARTED, ((Extend(1, 3),), (Fork(1, 2),))), Strict, mode="stress", seconds=1)


def test_what_came_too_late_is_not_known_any_more():
    view = ThreadView(Strict.capabilities())
    view.learn(Admit(0, (0, 1, 0)), None)
    own = view.of_thread(Scenario("", "", (), ((), ())), 0)
    own.learn(Extend(0, 3), Forbidden("gone"))
    assert not own.may(Extend(0, 3))
    assert own.may(Release(0))
    assert view.may(Extend(0, 3))


class LocksOfItsOwn(Strict):
    """Its locks are made when it is built, by a class that is looked up then."""

    def __init__(self, **pool):
        super().__init__(**pool)
        self.stripes = [threading.Lock() for _ in range(2)]

    def about(self, op, seq):
        for stripe in self.stripes:
            stripe.acquire()
        try:
            return super().about(op, seq)
        finally:
            for stripe in self.stripes:
                stripe.release()


def test_locks_that_the_target_makes_when_it_is_built_are_the_schedulers():
    before = threading.Lock, threading.RLock
    outcome = explore.explore(catalogue(Strict.capabilities())[0], LocksOfItsOwn, mode="random", seconds=1.0)
    assert outcome.kind == "held", outcome.reason
    assert (threading.Lock, threading.RLock) == before


def test_a_lock_that_is_not_the_schedulers_is_named_as_a_cause(monkeypatch):
    monkeypatch.setattr(baton, "JOIN_SECONDS", 0.5)
    real = threading.Lock()

    class Early(Strict):
        def about(self, op, seq):
            with real:
                return super().about(op, seq)

    outcome = explore.explore(catalogue(Strict.capabilities())[0], Early, mode="random", seconds=5.0)
    assert outcome.kind == "stuck"
    assert "call `kvproof.fuzz.races.baton.install()` before the target is imported" in outcome.reason


@pytest.mark.parametrize(
    ("launches", "ends", "expected"),
    [
        ([(7, 10, 20), (3, 30, 40)], [], [7, 3]),  # one after the other
        ([(7, 10, 35), (3, 30, 40)], [], [3, 7]),  # at once
        ([(7, 10, 20), (3, 30, 40)], [(7, 50, 60), (7, 50, 60)], [3]),  # completed, and told twice
        ([(3, 10, 20), (3, 50, 60)], [(3, 30, 40)], [3]),  # the id is given again
        ([(3, 10, 20), (3, 15, 40)], [], [3]),  # a race: one id for two
    ],
)
def test_steps_are_drained_in_the_order_of_their_begins(launches, ends, expected):
    calls = [Call(0, BeginStep(), step, began, ended) for step, began, ended in launches]
    calls += [Call(1, EndStep(step), None, began, ended) for step, began, ended in ends]
    assert _left_open(calls) == expected
