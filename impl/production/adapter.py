"""The production cache under the contract of the suite. The only module here that imports it; it adds no bookkeeping of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.errors import OutOfBlocks as PoolExhausted
from kvproof.impl.production.errors import WindowPassed
from kvproof.impl.production.groups import GroupSpec
from kvproof.impl.production.mirror import WorkerMirror
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import NAMESPACE_FIELDS, Namespace, ReleaseReason
from kvproof.models.outcomes import Event, Grant, Hit, OutOfBlocks, Refused, Snapshot


class ProductionAdapter(CacheAdapter):
    """One full group, device steps, a host tier as large as the pool."""

    groups: ClassVar[Sequence[Group]] = (Group(),)
    steps: ClassVar[bool] = True
    locked: ClassVar[bool] = True

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.cache = PagedCache(
            num_blocks,
            block_size,
            groups=[_spec(group) for group in self.groups],
            steps=self.steps,
            host_blocks=num_blocks,
            events=True,
            locked=self.locked,
        )
        self.mirror = WorkerMirror()

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Everything but transfer."""
        return Capabilities(
            groups=cls.groups,
            prefix=True,
            fork=True,
            truncate=True,
            drafts=True,
            steps=cls.steps,
            evict=True,
            reset=True,
            swap=True,
            snapshot=True,
            events=True,
            mirror=cls.steps,
            namespace_fields=frozenset(NAMESPACE_FIELDS),
            policy=frozenset({"lru", "tight", "exact"}),
        )

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request is known; it holds nothing yet."""
        self.cache.admit(seq, prompt, msgspec.structs.asdict(namespace))

    def match(self, seq: int) -> Hit:
        """How many leading tokens could be reused now."""
        return Hit(self.cache.match(seq))

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room for a pass; raises OutOfBlocks."""
        try:
            grant = self.cache.extend(seq, count, drafts)
        except PoolExhausted as error:
            raise OutOfBlocks(str(error)) from error
        return Grant(copies=grant.copies, adopted=grant.adopted)

    def commit(self, seq: int, accepted: int) -> None:
        """The pass is done."""
        self.cache.commit(seq, accepted)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known."""
        self.cache.append(seq, tokens)

    def truncate(self, seq: int, length: int) -> None:
        """Roll back; refused where a window has passed what would be needed."""
        try:
            self.cache.truncate(seq, length)
        except WindowPassed as error:
            raise Refused(str(error)) from error

    def fork(self, parent: int, child: int) -> Grant:
        """Shares all blocks, copies none."""
        self.cache.fork(parent, child)
        return Grant()

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """Lets go of everything."""
        if reason == "preempt":
            self.cache.preempt(seq)
        else:
            self.cache.release(seq)

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The manager's table."""
        return self.cache.block_table(seq, group)

    def begin_step(self) -> int:
        """Launches, and feeds the mirror as the device side would be fed."""
        plan = self.cache.begin_step()
        self.mirror.apply(plan)
        return plan.step

    def end_step(self, step: int) -> None:
        """The device work of that step has finished."""
        self.cache.end_step(step)

    def worker_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The table that the device side holds."""
        return self.mirror.table(seq, group)

    def evict(self, blocks: Sequence[int]) -> int:
        """Makes blocks unmatchable."""
        return self.cache.evict(blocks)

    def reset(self) -> bool:
        """Makes everything unmatchable."""
        return self.cache.reset()

    def swap_out(self, seq: int) -> bool:
        """Moves a sequence to the host tier."""
        return self.cache.swap_out(seq) is not None

    def swap_in(self, seq: int) -> bool:
        """Moves a sequence back."""
        return self.cache.swap_in(seq) is not None

    def snapshot(self) -> Snapshot:
        """The books."""
        books = self.cache.books()
        return Snapshot(refcounts=books.refcounts, free=books.free, cached=books.cached, retiring=books.retiring)

    def take_events(self) -> Sequence[Event]:
        """What became matchable and unmatchable."""
        return [Event(kind=event.kind, blocks=event.blocks, reason=event.reason or "") for event in self.cache.take_events()]


class HybridAdapter(ProductionAdapter):
    """A full group beside a sliding window of five tokens, on one pool."""

    groups = (Group(), Group(kind="sliding_window", window=5))

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the production cache; no group outlives what the others need for a hit."""
        claimed = super().capabilities()
        return msgspec.structs.replace(claimed, policy={*claimed.policy, "groups-together"})


class SynchronousAdapter(ProductionAdapter):
    """Without device steps: passes run at their extend and have finished at their commit."""

    steps = False


def _spec(group: Group) -> GroupSpec:
    if group.kind not in ("full", "sliding_window"):
        raise ValueError(f"the production cache has no groups of kind {group.kind!r}; use full or sliding_window")
    return GroupSpec(kind=group.kind, block_size=group.block_size, window=group.window)
