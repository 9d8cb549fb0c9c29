"""The lock of the production cache: free after every operation, whether that did something or raised, and held while it is at work."""

from __future__ import annotations

import threading

import pytest

from kvproof.impl.production import PagedCache
from kvproof.impl.production.errors import CacheError, SequenceExists, UnknownSequence
from kvproof.impl.production.records import StepPlan

OPERATIONS = {
    "admit": lambda cache: cache.admit(9, [1, 2]),
    "append": lambda cache: cache.append(0, [4]),
    "match": lambda cache: cache.match(1),
    "extend": lambda cache: cache.extend(1, 2),
    "commit": lambda cache: cache.commit(2),
    "decode": lambda cache: cache.decode([2], [7]),
    "truncate": lambda cache: cache.truncate(0, 1),
    "fork": lambda cache: cache.fork(0, 9),
    "release": lambda cache: cache.release(0),
    "preempt": lambda cache: cache.preempt(0),
    "begin_step": lambda cache: cache.begin_step(),
    "end_step": lambda cache: cache.end_step(cache.begin_step().step),
    "evict": lambda cache: cache.evict([0]),
    "reset": lambda cache: cache.reset(),
    "swap_out": lambda cache: cache.swap_out(0),
    "swap_in": lambda cache: (cache.swap_out(0), cache.swap_in(0)),
    "block_table": lambda cache: cache.block_table(0),
    "tokens": lambda cache: cache.tokens(0),
    "computed": lambda cache: cache.computed(0),
    "take_events": lambda cache: cache.take_events(),
    "books": lambda cache: cache.books(),
    "stats": lambda cache: cache.stats(),
}

FAILING = {
    "admit": lambda cache: cache.admit(0, [1]),
    "append": lambda cache: cache.append(7, [1]),
    "match": lambda cache: cache.match(7),
    "extend": lambda cache: cache.extend(7, 1),
    "commit": lambda cache: cache.commit(0),
    "decode": lambda cache: cache.decode([2, 0], [7, 7]),
    "truncate": lambda cache: cache.truncate(0, 99),
    "fork": lambda cache: cache.fork(0, 1),
    "end_step": lambda cache: cache.end_step(99),
    "evict": lambda cache: cache.evict([99]),
    "swap_out": lambda cache: cache.swap_out(7),
    "swap_in": lambda cache: cache.swap_in(0),
    "block_table": lambda cache: cache.block_table(7),
}


@pytest.fixture
def cache():
    """Sequence 0 has computed three tokens, 1 nothing, and the pass of 2 is done and not committed."""
    cache = PagedCache(8, 2, host_blocks=4, events=True)
    for seq in range(3):
        cache.admit(seq, [1, 2, seq])
    cache.extend(0, 3)
    cache.extend(2, 3)
    cache.end_step(cache.begin_step().step)
    cache.commit(0)
    return cache


def free(cache):
    """Whether another thread can have the lock at once."""
    got = []

    def take():
        if cache._lock.acquire(blocking=False):
            got.append(True)
            cache._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got == [True]


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_lock_is_free_after_an_operation(cache, name):
    OPERATIONS[name](cache)
    assert free(cache)


@pytest.mark.parametrize("name", FAILING)
def test_the_lock_is_free_after_an_operation_that_raised(cache, name):
    with pytest.raises(CacheError):
        FAILING[name](cache)
    assert free(cache)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_waits_for_the_lock(cache, name):
    done = threading.Event()

    def work():
        OPERATIONS[name](cache)
        done.set()

    thread = threading.Thread(target=work)
    with cache._lock:
        thread.start()
        assert not done.wait(0.02)
    thread.join()
    assert done.is_set()


MEANWHILE = {
    "admit": (lambda cache: cache.admit(9, [1]), SequenceExists),
    "append": (lambda cache: cache.release(0), UnknownSequence),
    "match": (lambda cache: cache.release(1), UnknownSequence),
    "extend": (lambda cache: cache.release(1), UnknownSequence),
    "commit": (lambda cache: cache.release(2), UnknownSequence),
    "decode": (lambda cache: cache.release(2), UnknownSequence),
    "truncate": (lambda cache: cache.release(0), UnknownSequence),
    "fork": (lambda cache: cache.admit(9, [1]), SequenceExists),
    "release": (lambda cache: cache.release(0), False),
    "preempt": (lambda cache: cache.preempt(0), False),
    "begin_step": (lambda cache: cache.begin_step(), StepPlan(4)),
    "evict": (lambda cache: cache.evict([0]), 0),
    "swap_out": (lambda cache: cache.release(0), UnknownSequence),
    "block_table": (lambda cache: cache.release(0), UnknownSequence),
    "tokens": (lambda cache: cache.append(0, [4]), [1, 2, 0, 4]),
    "computed": (lambda cache: cache.truncate(0, 1), 1),
    "take_events": (lambda cache: cache.take_events(), []),
}
"""What another thread does while an operation waits for the lock, and what the operation then answers or raises: it sees the cache as that left it."""


@pytest.mark.parametrize("name", MEANWHILE)
def test_an_operation_looks_at_nothing_before_it_has_the_lock(cache, name):
    meanwhile, expected = MEANWHILE[name]
    cache.begin_step()
    told = []

    def work():
        try:
            told.append(OPERATIONS[name](cache))
        except CacheError as error:
            told.append(type(error))

    thread = threading.Thread(target=work)
    with cache._lock:
        thread.start()
        thread.join(0.02)
        assert not told
        meanwhile(cache)
    thread.join()
    assert told == [expected]


class Noting:
    """Stands in for the lock, and notes all that the cache knows when it is taken and when it is free again."""

    def __init__(self, cache):
        self.cache = cache
        self.depth = 0
        self.noted = []

    def acquire(self):
        self.note()
        self.depth += 1

    def release(self):
        self.depth -= 1
        self.note()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()

    def note(self):
        if not self.depth:
            self.depth += 1  # to look takes the lock as well
            self.noted.append(known(self.cache))
            self.depth -= 1


def known(cache):
    sequences = {seq: (cache.tokens(seq), cache.computed(seq), cache.block_table(seq)) for seq in cache._sequences}
    return sequences, cache.books(), cache.stats(), list(cache._events), set(cache._open), set(cache._unlaunched)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_changes_nothing_before_it_has_the_lock_and_nothing_after(cache, name):
    lock = cache._lock = Noting(cache)
    cache._enter, cache._leave = lock.acquire, lock.release
    before = known(cache)
    lock.noted.clear()
    OPERATIONS[name](cache)
    first, last = lock.noted[0], lock.noted[-1]
    assert first == before
    assert last == known(cache)
