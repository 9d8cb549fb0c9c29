"""What is set aside after a broken law, so that the rest of a history can still be judged.

    spec.go_on()                   # from now on `judge` does not end at a broken law
    spec.aside.spread(op, outcome, change)
    spec.judge(op, outcome, change)
    spec.aside.found               # the faults of this operation that nothing set aside before explains

A broken law has consequences: a block that two sequences write gives one of them wrong content, is counted wrongly, is freed twice. They must not be told as faults of their own. So what
a broken law accuses is set aside for good: no law is asked of these blocks and sequences any more, nor of what their content is copied to and what such a sequence is given. The meaning
of operations goes on for all. Some laws cannot be told any more at all (`Aside.untold`), since what was set aside may be what they miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvproof.models.checks import Broken
from kvproof.models.observed import Change
from kvproof.models.ops import Fork, Op, Release
from kvproof.models.outcomes import Grant, Outcome
from kvproof.models.state import listed_blocks

if TYPE_CHECKING:
    from kvproof.models.spec import Spec

OF_THE_WHOLE: Final = frozenset(
    {"no-leak", "no-spurious-exhaustion", "ledger-adds-up", "eviction-follows-policy", "failure-changes-nothing"}
)
"""Laws that weigh all blocks against each other, and the one on operations that fail: a cache may stumble over its own wrong books anywhere."""

OF_SKIPPED: Final = frozenset({"committed-is-covered", "window-keeps-what-it-needs"})
"""Laws on skipped entries: a cache whose null block is in use shows real blocks as skipped."""

OF_BOOKS: Final = frozenset(
    {"refcount-equals-holders", "pool-conserved", "release-once", "events-replay-index", "eviction-follows-policy", "no-leak"}
)
"""Laws on books: they name holders who did nothing wrong, and whose other blocks may still be judged."""

OF_TABLES: Final = frozenset({"release-once", "truncate-exact", "tail-waste-bounded", "committed-is-covered", "mirror-follows"})
"""Laws on what an operation does to a whole table: a cache may stumble over any block in it."""


class Aside:
    """The blocks and sequences that are judged no more, and the faults of the operation that is judged now."""

    def __init__(self, spec: Spec) -> None:
        self.blocks: set[int] = set()
        self.sequences: set[int] = set()
        self.found: list[Broken] = []
        """Faults of this operation that do not touch what was set aside by earlier ones."""
        self.anything = False
        """Whether any law was broken so far."""
        self.untold = OF_THE_WHOLE | (OF_SKIPPED if spec.null_blocks else frozenset())
        """The laws of which nothing can be told once `anything` was broken."""
        self._spec = spec
        self._afresh = True
        """Whether this operation has shown no fault so far: one operation has one cause, and what else it shows is its consequence."""

    def begin(self) -> None:
        """A new operation."""
        self.found.clear()
        self._afresh = True

    def take(self, broken: Broken) -> bool:
        """Set aside what is accused; whether any of it was not set aside before."""
        accused = broken.evidence
        if self.anything and broken.law in self.untold and not accused:
            return False
        if self._afresh and self._is_new(broken):
            self.found.append(broken)
        self._afresh, self.anything = False, True
        blocks = set(accused.blocks)
        sequences: set[int] = set()
        if broken.law not in OF_BOOKS or not accused.blocks:
            sequences = {*accused.sequences, *self._spec.seen.was} - self.sequences
        for seq in sequences:
            blocks |= self._own_blocks(seq)
        blocks |= self._unexplained()
        self.sequences |= sequences
        return self._set_aside(blocks) or bool(sequences)

    def spread(self, op: Op, outcome: Outcome, change: Change) -> None:
        """Set aside what `op` is about to derive from what already is: copies, forks, and the blocks that such a sequence is given."""
        if not self.blocks and not self.sequences:
            return
        blocks: set[int] = set()
        if isinstance(outcome, Grant):
            blocks.update(target for _, source, target in outcome.copies if source in self.blocks)
        if isinstance(op, Fork) and op.parent in self.sequences:
            self.sequences.add(op.child)
        for seq in self.sequences & change.tables.keys():
            now = change.tables[seq]
            if now is None or (isinstance(op, Release) and not listed_blocks(now)):
                self.sequences.discard(seq)  # one that is preempted begins anew
                continue
            before = self._spec.seen.tables.get(seq)
            given = listed_blocks(now) - (listed_blocks(before) if before else set())
            blocks |= {block for block in given if block not in self._spec.owners}
        self._set_aside(blocks)

    def leave_out(self, blocks: set[int]) -> None:
        """Set these blocks aside: a fault that was told elsewhere accuses them."""
        self.anything = True
        self._set_aside(blocks)

    def _is_new(self, broken: Broken) -> bool:
        if not self.anything:
            return True
        accused = broken.evidence
        if not accused or broken.law in self.untold:
            return False
        if not self.blocks.isdisjoint(accused.blocks) or not self.sequences.isdisjoint(accused.sequences):
            return False
        return broken.law not in OF_TABLES or not any(self._lists_any(seq) for seq in accused.sequences)

    def _lists_any(self, seq: int) -> bool:
        """Whether `seq` lists, or listed before this operation, a block that was set aside."""
        seen = self._spec.seen
        return any(
            not self.blocks.isdisjoint(listed_blocks(tables)) for tables in (seen.tables.get(seq), seen.tables_before(seq)) if tables
        )

    def _own_blocks(self, seq: int) -> set[int]:
        """The blocks that `seq` alone lists, and those that this operation took from it."""
        seen, owners = self._spec.seen, self._spec.owners
        taken = {block for entry, block in seen.unlisted if entry[0] == seq}
        tables = seen.tables.get(seq, ())
        return taken | {block for block in listed_blocks(tables) if all(entry[0] == seq for entry in owners[block])}

    def _unexplained(self) -> set[int]:
        """The blocks that this operation took from the free list, or counted, although nobody lists them: whoever should is what went wrong."""
        seen = self._spec.seen
        change, free = seen.last, seen.books.kept_free
        taken = {*(change.free.left if change.free else ()), *(block for block, count in (change.refcounts or {}).items() if count)}
        return {block for block in taken if block not in self._spec.owners and block not in free}

    def _set_aside(self, blocks: set[int]) -> bool:
        """Whether any of `blocks` was not set aside before."""
        blocks = (blocks & self._spec.universe) - self.blocks
        if blocks:
            self.blocks |= blocks
            self._spec.stop_judging(blocks)
        return bool(blocks)
