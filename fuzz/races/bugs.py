"""Seeded races: the production cache with one critical section too few or too short. One thread alone never notices any of them.

    kvproof race race-bug:lock-left-out

`RACES` holds each by its name, with the scenario that shows it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final, Literal

import msgspec

from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.errors import NothingToCommit, UnknownSequence, UnknownStep
from kvproof.impl.production.records import ExtendGrant, StepPlan
from kvproof.impl.production.reuse import Reuse
from kvproof.impl.production.sequence import SequenceState


class SeededRace(msgspec.Struct, frozen=True):
    """A cache that is sound in one thread and not in two. `scenario`: one that must show it, as what `shown` says. `story`: what an operator would see."""

    name: str
    adapter: type[ProductionAdapter]
    scenario: str
    story: str
    shown: Literal["race", "stuck"] = "race"


RACES: Final[dict[str, SeededRace]] = {}
"""Every seeded race by its name."""


def raced(
    name: str, *, scenario: str, story: str, shown: Literal["race", "stuck"] = "race"
) -> Callable[[type[PagedCache]], type[ProductionAdapter]]:
    """Enter the decorated cache as a seeded race; returns its adapter."""

    def enter(cache: type[PagedCache]) -> type[ProductionAdapter]:
        def build(adapter: ProductionAdapter, *, num_blocks: int, block_size: int) -> None:
            ProductionAdapter.__init__(adapter, num_blocks=num_blocks, block_size=block_size)
            adapter.cache.__class__ = cache

        names = {"__init__": build, "__module__": cache.__module__, "__qualname__": cache.__qualname__, "__doc__": cache.__doc__}
        adapter = type(cache.__name__, (ProductionAdapter,), names)
        RACES[name] = SeededRace(name, adapter, scenario, story, shown)
        return adapter

    return enter


@raced("lock-left-out", scenario="two-first-extends", story="Two requests write into each other's blocks, once a day.")
class LockLeftOut(PagedCache):
    """`extend` takes no lock at all."""

    def extend(self, seq: int, count: int, drafts: tuple[int, ...] | list[int] = ()) -> ExtendGrant:  # type: ignore[override]
        """As ever, but for the lock."""
        bare = copy.copy(self)  # all that it changes, both hold
        bare._enter = bare._leave = _nothing
        return PagedCache.extend(bare, seq, count, drafts)


@raced(
    "room-is-checked-first", scenario="last-blocks", story="Under load an extend fails inside the pool, and half a request is left behind."
)
class RoomIsCheckedFirst(PagedCache):
    """Looks whether there is room, lets go of the lock, and believes what it saw."""

    def _affordable(self, state: SequenceState, reuse: Reuse | None, count: int) -> int:
        length = super()._affordable(state, reuse, count)
        self._leave()
        self._enter()
        return length


@raced(
    "extend-looks-first",
    scenario="first-extend-against-abort",
    story="A request that is cancelled while it starts takes its blocks with it, for ever.",
)
class ExtendLooksFirst(PagedCache):
    """Finds the sequence, lets go of the lock, and gives it its first blocks, whatever became of it between."""

    def _start(self, state: SequenceState, count: int) -> ExtendGrant:
        self._leave()
        self._enter()
        return super()._start(state, count)


@raced(
    "step-is-ended-twice", scenario="completed-twice", story="A completion that is delivered twice at once frees blocks that others hold."
)
class StepIsEndedTwice(PagedCache):
    """Checks that the step is open before it takes the lock, and forgets it after."""

    def end_step(self, step: int) -> None:
        """As ever, in three pieces."""
        pinned = self._open.get(step)
        if pinned is None:
            raise UnknownStep(f"step {step} is not open")
        with self._lock:
            self._pool.drop(pinned)
        self._open.pop(step, None)


@raced(
    "commit-looks-first",
    scenario="abort-against-completion",
    story="A request that is cancelled while it completes leaves blocks behind that are matchable and free.",
)
class CommitLooksFirst(PagedCache):
    """Finds the sequence under the lock, and commits it under the lock again, whatever became of it between."""

    def commit(self, seq: int, accepted: int = 0) -> None:
        """As ever, in two pieces."""
        with self._lock:
            state = self._sequences.get(seq)
        if state is None:
            raise UnknownSequence(f"sequence {seq} is not known")
        with self._lock:
            if not state.target:
                raise NothingToCommit(f"sequence {seq} has no uncommitted extend")
            self._sequences[seq] = state
            super().commit(seq, accepted)


@raced("match-is-trusted", scenario="adopt-against-eviction", story="Now and then a request starts from another's prefix.")
class MatchIsTrusted(PagedCache):
    """Looks the prefix up under one lock and adopts it under the next: it may have been evicted between."""

    def _look_up(self, state: SequenceState) -> Reuse | None:
        found = super()._look_up(state)
        self._leave()
        self._enter()
        return found


@raced("release-in-two-pieces", scenario="release-twice", story="A request that is finished and cancelled at once is let go of twice.")
class ReleaseInTwoPieces(PagedCache):
    """Looks whether the sequence is known, and lets go of it under the next lock."""

    def release(self, seq: int) -> bool:
        """As ever, in two pieces."""
        state = self._sequences.get(seq)
        if state is None:
            return False
        with self._lock:
            self._sequences.pop(seq, None)
            self._let_go(state)
            return True


@raced("reset-unlocked", scenario="reset-against-match", story="After a change of weights under load, blocks are held and free at once.")
class ResetUnlocked(PagedCache):
    """Makes blocks unmatchable without the lock, while others adopt them."""

    def reset(self) -> bool:
        """As ever, but the first half has no lock."""
        self._index.forget(range(self._pool.num_blocks))
        return super().reset()


@raced(
    "fork-reads-unlocked",
    scenario="fork-against-release",
    story="A beam that is forked from a cancelled request decodes somebody else's text.",
)
class ForkReadsUnlocked(PagedCache):
    """Finds the parent before it takes the lock."""

    def fork(self, parent: int, child: int) -> None:
        """As ever, in two pieces."""
        state = self._sequences.get(parent)
        if state is None:
            raise UnknownSequence(f"sequence {parent} is not known")
        twin = SequenceState(child, state.tokens[:], state.namespace, len(self._layouts), len(self._chain_sizes))
        with self._lock:
            if state.computed:
                self._share(state, twin)
            self._sequences[child] = twin


@raced("eviction-unlocked", scenario="evict-against-match", story="An operator who evicts blocks under load breaks the free list.")
class EvictionUnlocked(PagedCache):
    """Makes blocks unmatchable without the lock."""

    def evict(self, blocks: Iterable[int]) -> int:
        """As ever, but for the lock."""
        return self._forget(list(blocks), "requested")


@raced(
    "locks-in-either-order",
    scenario="fork-against-launch",
    story="Once a week the server stands still: a beam is forked and a step launched, and each waits for the other.",
    shown="stuck",
)
class LocksInEitherOrder(PagedCache):
    """A launch takes the lock of launches and then that of the cache, a fork takes them the other way round."""

    @cached_property
    def _launches(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def begin_step(self) -> StepPlan:
        """As ever, under both locks."""
        with self._launches:
            return super().begin_step()

    def fork(self, parent: int, child: int) -> None:
        """As ever, under both locks."""
        with self._lock, self._launches:
            super().fork(parent, child)


@raced(
    "steps-counted-unlocked",
    scenario="two-launches",
    story="Two steps have one id, and the completion of the first frees blocks that the second still writes.",
)
class StepsCountedUnlocked(PagedCache):
    """Reads the number of the last step before it takes the lock."""

    def begin_step(self) -> StepPlan:
        """As ever, in two pieces."""
        last = self._last_step
        with self._lock:
            self._last_step = last
            return super().begin_step()


@raced(
    "published-after-unlock",
    scenario="commit-against-abort-and-reuse",
    story="After a cancelled request, somebody with the same prompt is answered from a block that holds another's text.",
)
class PublishedAfterUnlock(PagedCache):
    """A commit lets go of the lock before it publishes: the blocks may be another's by then."""

    def _publish_next(self, state: SequenceState, computed: int) -> bool:  # noqa: ARG002 -- all blocks of a pass go one way
        return False

    def _publish(self, state: SequenceState) -> None:
        found = copy.copy(state)
        found.tables, found.cursors = [list(table) for table in state.tables], list(state.cursors)
        self._leave()
        self._enter()
        super()._publish(found)
        state.cursors = found.cursors


@raced(
    "truncate-unlocked",
    scenario="truncate-against-release",
    story="A request that is cancelled while it rolls back gives blocks away twice.",
)
class TruncateUnlocked(PagedCache):
    """Cuts a table back without the lock."""

    def truncate(self, seq: int, length: int) -> None:
        """As ever, but for the lock."""
        state = self._sequences.get(seq)
        if state is None:
            raise UnknownSequence(f"sequence {seq} is not known")
        self._cut_back(state, length)


def _nothing() -> None:
    """Stands in for a lock."""
