"""Device work in flight: fences, and the block tables that the device side holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from kvproof.fuzz.bugs.registry import UnauditedStepsAdapter, seeded
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.mirror import TableLog, WorkerMirror
from kvproof.impl.production.records import HostCopies, StepPlan, TableDelta
from kvproof.impl.production.sequence import NOT_LAUNCHED, SequenceState

# -- fences ------------------------------------------------------------------------------------------------------------------------------------


@seeded(
    "cancel-in-flight-frees-at-once",
    laws=("fenced-reuse",),
    story="When a client hangs up, the step that is running for it writes into somebody else's blocks.",
    like=("B20",),
    on=ProductionAdapter,
)
class CancelInFlightFreesAtOnce(PagedCache):
    """Frees the blocks of a cancelled sequence without asking what the device does with them."""

    def release(self, seq: int) -> bool:
        """The sequence is gone, and its pass with it."""
        state = self._sequences.get(seq)
        if state is not None and state.target and state.step != NOT_LAUNCHED:
            state.target = 0
        return super().release(seq)


@seeded(
    "preemption-in-flight-frees-at-once",
    laws=("fenced-reuse",),
    story="When memory is short, a request that makes room for another corrupts it.",
    like=("B29",),
    on=ProductionAdapter,
)
class PreemptionInFlightFreesAtOnce(PagedCache):
    """Takes the pass of a preempted sequence for one that was not launched."""

    def preempt(self, seq: int) -> bool:
        """Like release, but the sequence stays known."""
        state = self._sequences.get(seq)
        if state is not None and state.target:
            state.step = NOT_LAUNCHED
            self._unlaunched[seq] = state
        return super().preempt(seq)


@seeded(
    "fence-waits-for-the-oldest-step",
    laws=("fenced-reuse",),
    story="With two steps in flight, cancelled requests now and then corrupt others.",
    like=("B46",),
    on=ProductionAdapter,
)
class FenceWaitsForTheOldestStep(PagedCache):
    """Hands the blocks of a cancelled sequence to the step that ends first."""

    def _let_go(self, state: SequenceState) -> None:
        if state.target and state.step in self._open:
            state.step = min(self._open)
        super()._let_go(state)


@seeded(
    "cancel-in-flight-counts-on-other-holders",
    laws=("fenced-reuse", "refcount-equals-holders"),
    story="A request is cancelled while it runs, another one with the same prompt is rolled back at that moment, and a third one is corrupted.",
    like=("B20", "B29"),
    on=ProductionAdapter,
    needs_long=True,
)
class CancelInFlightCountsOnOtherHolders(PagedCache):
    """Lets go at once of what others hold too, as if they held it until the step has ended."""

    def _let_go(self, state: SequenceState) -> None:
        pinned = self._open.get(state.step) if state.target else None
        kept = 0 if pinned is None else len(pinned)
        super()._let_go(state)
        if pinned is not None:
            left, pinned[kept:] = pinned[kept:], []
            for block in left:
                if self._pool.refs[block] > 1:
                    self._pool.drop([block])
                else:
                    pinned.append(block)


@seeded(
    "swap-out-frees-what-is-read",
    laws=("fenced-reuse", "refcount-equals-holders"),
    story="A request is moved to the host while the device still reads the prompt that it shares with a cancelled one, and a third one is corrupted.",
    like=("B20",),
    on=ProductionAdapter,
    needs_long=True,
)
class SwapOutFreesWhatIsRead(PagedCache):
    """Takes the blocks of a swapped sequence for free once they are copied, whatever an open step still does with them."""

    def swap_out(self, seq: int) -> HostCopies | None:
        """Moves a sequence to the host tier, and unpins what it had."""
        copies = super().swap_out(seq)
        for pinned in self._open.values():
            left = {block for _, block, _ in copies.blocks} & set(pinned) if copies else set()
            pinned[:] = [block for block in pinned if block not in left]
            self._pool.drop(sorted(left))
        return copies


@seeded(
    "copy-source-held-until-launch-only",
    laws=("fenced-reuse",),
    story="Under load, a block that is being copied is overwritten while it is read.",
    like=("B46", "B47"),
    on=ProductionAdapter,
    needs_long=True,
)
class CopySourceHeldUntilLaunchOnly(PagedCache):
    """Protects the source of a copy until the copy is queued, not until it has run."""

    def begin_step(self) -> StepPlan:
        """Launches, and lets go of what the copies read."""
        plan = super().begin_step()
        self._pool.drop(self._open[plan.step])
        self._open[plan.step] = []
        return plan


@seeded(
    "end-of-step-forgets-the-cancelled",
    laws=("no-leak",),
    story="Every client that hangs up in the middle of a step costs its blocks for good.",
    like=("B88",),
    needs_long=True,
    on=UnauditedStepsAdapter,
)
class EndOfStepForgetsTheCancelled(PagedCache):
    """Hears that a step has ended only for sequences that still exist."""

    def end_step(self, step: int) -> None:
        """The device work of an open step has finished."""
        self._open[step] = []
        super().end_step(step)


# -- the device's tables -----------------------------------------------------------------------------------------------------------------------


@seeded(
    "resumed-table-is-appended",
    laws=("mirror-follows",),
    story="A request that was preempted and comes back is computed on the blocks that it had before.",
    like=("B31",),
    needs_long=True,
    on=ProductionAdapter,
)
class ResumedTableIsAppended(WorkerMirror):
    """Appends whatever comes to what it has."""

    __slots__ = ()

    def apply(self, plan: StepPlan) -> None:
        """Takes over what is new before a step."""
        for delta in plan.tables:
            self._tables.setdefault(delta.seq, {}).setdefault(delta.group, []).extend(delta.entries)


@seeded(
    "growth-is-not-sent",
    laws=("mirror-follows",),
    story="Answers go wrong at the first token after a whole block.",
    like=("B43",),
    on=ProductionAdapter,
)
class GrowthIsNotSent(TableLog):
    """Sends tables that are new, and misses those that have grown."""

    __slots__ = ()

    def changed(self, state: SequenceState) -> None:
        """Some table has new entries."""


@seeded(
    "delta-of-a-preempted-sequence-is-sent",
    laws=("mirror-follows",),
    story="A request that is preempted and scheduled again in one step is computed on blocks that it no longer has.",
    like=("B14",),
    on=ProductionAdapter,
)
class DeltaOfAPreemptedSequenceIsSent(PagedCache):
    """Keeps what a step was going to say of a sequence that was preempted before its launch."""

    @cached_property
    def _queued(self) -> list[TableDelta]:
        return []

    def preempt(self, seq: int) -> bool:
        """Like release, but the sequence stays known."""
        if seq in self._unlaunched:
            tables: Iterable[tuple[int, list[int | None]]] = enumerate(self._sequences[seq].tables)
            self._queued.extend(TableDelta(seq, group, 0, tuple(table)) for group, table in tables)
        return super().preempt(seq)

    def begin_step(self) -> StepPlan:
        """Launches, with everything that was queued."""
        plan = super().begin_step()
        queued = tuple(self._queued)
        self._queued.clear()
        return replace(plan, tables=plan.tables + queued)
