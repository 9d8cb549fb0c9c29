"""The device side's copy of the block tables, fed by the splices of each step plan."""

from __future__ import annotations

from kvproof.impl.production.records import StepPlan, Table


class WorkerMirror:
    """What a worker keeps: the block tables of each sequence, by group. After `apply(cache.begin_step())` they equal the manager's."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, Table]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Takes over what changed before a step: drops first, then splices."""
        for seq in plan.dropped:
            self._tables.pop(seq, None)
        for delta in plan.tables:
            table = self._tables.setdefault(delta.seq, {}).setdefault(delta.group, [])
            table[delta.start :] = delta.entries

    def table(self, seq: int, group: int = 0) -> Table:
        """A copy of the device-side block table of a sequence; empty if the device side does not know it."""
        return list(self._tables.get(seq, {}).get(group, ()))
