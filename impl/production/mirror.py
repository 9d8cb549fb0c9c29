"""Block tables on two sides: the manager's log of what changed, and the device side's copy that is fed from it step by step."""

from __future__ import annotations

from kvproof.impl.production.records import StepPlan, Table, TableDelta
from kvproof.impl.production.sequence import NEVER, SequenceState


class TableLog:
    """The manager's side: which sequences have table entries that the device side does not have yet, and which it must drop.

    Each sequence keeps, for each group, the first entry that is `stale`; a splice sends everything from there on.
    """

    __slots__ = ("_changed", "_dropped", "_groups")

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._changed: dict[int, SequenceState] = {}
        self._dropped: list[int] = []

    def changed(self, state: SequenceState) -> None:
        """Some table has new entries; its `stale` says from where on."""
        self._changed[state.seq] = state

    def renewed(self, state: SequenceState) -> None:
        """Every table is new: a first extend, a fork, a return from the host tier."""
        state.stale = [0] * self._groups
        self._changed[state.seq] = state

    def dropped(self, state: SequenceState) -> None:
        """The sequence holds nothing any more."""
        self._changed.pop(state.seq, None)
        if state.mirrored:
            state.mirrored = False
            self._dropped.append(state.seq)

    def take(self) -> tuple[tuple[int, ...], tuple[TableDelta, ...]]:
        """What the device side must drop, and the splices that make the rest equal; from here on it has them."""
        deltas = []
        for state in self._changed.values():
            state.mirrored = True
            for group, start in enumerate(state.stale):
                if start != NEVER:
                    deltas.append(TableDelta(state.seq, group, start, tuple(state.tables[group][start:])))
                    state.stale[group] = NEVER
        dropped = tuple(self._dropped)
        self._changed = {}
        self._dropped = []
        return dropped, tuple(deltas)


class WorkerMirror:
    """The device side: the block tables of each sequence, by group. After `apply(cache.begin_step())` they equal the manager's."""

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
