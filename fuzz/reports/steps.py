"""A program, step by step: what each operation answered and what was seen of the cache after it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvproof.fuzz.programs import Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.skips import why_skipped
from kvproof.impl.checker import AdapterFault, Hung
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Violation
from kvproof.models.state import Books, Table, Tables
from kvproof.properties.lockstep import OP_SECONDS, LawBroken, Lockstep, time_limit, told_hang


class Holder(msgspec.Struct, frozen=True):
    """A live sequence after a step: how many of its tokens are computed, how many are known, and its block table in every group."""

    seq: int
    computed: int
    known: int
    tables: Tables
    swapped: bool = False


class Row(msgspec.Struct, frozen=True):
    """One operation of a program. `number` counts those that ran from 0, as the step of a violation does; None where it was skipped."""

    number: int | None
    op: AnyOp
    answer: str
    holders: tuple[Holder, ...]
    books: Books

    def counts(self) -> dict[int, int]:
        """Block -> reference count: the cache's own where it keeps one, else in how many tables it stands."""
        if self.books.refcounts is not None:
            return self.books.refcounts
        counts: dict[int, int] = {}
        for block in _listed(table for holder in self.holders for table in holder.tables):
            counts[block] = counts.get(block, 0) + 1
        return counts


class Replay(msgspec.Struct):
    """What came of a program. At most one of `violation`, `fault` and `hang` is set, the last two as sentences, and then the last row is the step that shows it."""

    num_blocks: int
    null_blocks: frozenset[int] = frozenset()
    rows: list[Row] = []
    violation: Violation | None = None
    fault: str = ""
    hang: str = ""

    @property
    def skipped(self) -> int:
        """How many operations did not run, because their precondition did not hold."""
        return sum(1 for row in self.rows if row.number is None)

    @property
    def trouble(self) -> str:
        """Why the cache could not be judged: a full sentence, empty if it could."""
        return self.fault or self.hang

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return self.violation is None and not self.fault and not self.hang


def replay(program: Program, target: type, *, op_seconds: float = OP_SECONDS) -> Replay:
    """Run `program` on a fresh cache and keep every step. Never raises for what the target does."""
    seen = Replay(program.config.num_blocks)
    lockstep: Lockstep | None = None
    try:
        with time_limit(op_seconds):
            lockstep = Lockstep(target, num_blocks=program.config.num_blocks, block_size=program.config.block_size, keep_trace=True)
            seen.null_blocks = lockstep.spec.null_blocks
            for op in program.ops:
                if lockstep.do(op):
                    seen.rows.append(_row(lockstep))
                else:
                    seen.rows.append(_skipped_row(lockstep, op))
    except LawBroken as broken:
        seen.violation = broken.violation
    except AdapterFault as fault:
        seen.fault = str(fault)
    except Hung as hung:
        seen.hang = told_hang(lockstep.ops if lockstep else (), str(hung))
    if lockstep is not None and len(lockstep.ops) > len(seen.rows) - seen.skipped:
        seen.rows.append(_row(lockstep))
    return seen


def _row(lockstep: Lockstep) -> Row:
    """The last operation that `lockstep` ran. An operation that never answered shows what was seen before it."""
    number = len(lockstep.ops) - 1
    op: AnyOp = lockstep.ops[number]  # type: ignore[assignment]  # every operation is one of AnyOp
    trace = lockstep.trace or []
    answered = len(trace) > number
    seen = trace[number].seen if answered else lockstep.last_seen
    holders = tuple(
        Holder(seq, known.computed, len(known.known), tables, known.swapped)
        for seq, tables in seen.tables.items()
        if (known := lockstep.spec.live.get(seq)) is not None
    )
    return Row(number, op, wording.answer(op, trace[number].outcome) if answered else "no answer", holders, seen.books)


def _skipped_row(lockstep: Lockstep, op: AnyOp) -> Row:
    """An operation that did not run: nothing was seen after it."""
    reason = why_skipped(lockstep.spec, op)
    return Row(None, op, f"skipped: {reason}" if reason else "skipped", (), Books())


def _listed(tables: Iterable[Table]) -> list[int]:
    return [block for table in tables for block in table if block is not None]


def touched(rows: list[Row]) -> list[int]:
    """The blocks that were ever held, matchable or retiring, or stood in a table."""
    blocks: set[int] = set()
    for row in rows:
        blocks.update(row.counts(), row.books.cached or (), row.books.retiring or ())
        blocks.update(_listed(table for holder in row.holders for table in holder.tables))
    return sorted(blocks)


def table_text(table: Table) -> str:
    """A block table in one line; a skipped block is `-`."""
    return " ".join("-" if block is None else str(block) for block in table)
