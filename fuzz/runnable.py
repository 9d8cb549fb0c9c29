"""The part of a program that can run at all: operations on sequences that are not there, and steps that never began, are skipped whatever the cache does.

    runnable((Extend(0, 1), Admit(1, (5,)), Commit(1)))     # (Admit(1, (5,)),)

Candidates of a shrink that differ only in such operations are the same program, and none is run twice. That saves a quarter of all runs
(`python benchmarks/shrinking.py --again`, before and after).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Fork, Op, Release, SwapIn, SwapOut


def runnable(ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops` without those whose precondition cannot hold, as far as that can be told without a cache."""
    possible = _Possible()
    return tuple(op for op in ops if possible.take(op))


class _Possible:
    """What may be so after the operations so far, if the cache agrees to everything."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        """Every number that a sequence may have had."""
        self.live: set[int] = set()
        self.extended: set[int] = set()
        """Those whose pass may be out."""
        self.swapped: set[int] = set()
        self.steps = 0

    def take(self, op: Op) -> bool:
        """Whether `op` may run; what it does is noted."""
        if isinstance(op, Admit):
            return self._born(op.seq)
        if isinstance(op, Fork):
            return op.parent in self.live and self._born(op.child)
        if isinstance(op, Release):
            return self._let_go(op)
        if isinstance(op, BeginStep):
            self.steps += 1
        elif isinstance(op, EndStep):
            if op.step >= self.steps:
                return False
            self.steps -= 1
        seq = getattr(op, "seq", None)
        return seq is None or (seq in self.live and self._used(op, seq))

    def _born(self, seq: int) -> bool:
        if seq in self.known:
            return False
        self.known.add(seq)
        self.live.add(seq)
        return True

    def _let_go(self, op: Release) -> bool:
        if op.seq not in self.known:
            return False
        self.extended.discard(op.seq)
        self.swapped.discard(op.seq)
        if op.reason != "preempt":
            self.live.discard(op.seq)
        return True

    def _used(self, op: Op, seq: int) -> bool:
        if isinstance(op, Commit):
            return seq in self.extended
        if isinstance(op, SwapIn):
            return seq in self.swapped
        if isinstance(op, Extend):
            self.extended.add(seq)
        elif isinstance(op, SwapOut):
            self.swapped.add(seq)
        return True
