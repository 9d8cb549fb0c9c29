"""The step table: beside each operation of a program, the block tables of the live sequences and the state of every block.

    step  operation          answer     sequences    0 1 2 3   matchable  free list
       2  extend 1 by 2      adopted 2  0 2/3: 0 1   2 1 1 .   0          3
    >  3  commit 1                      0 2/3: 0 1   2 1 1 .   0          3

A sequence is `number computed/known: blocks`, with ` | ` between groups. Below a block's id stands its reference count, or `.` free,
`c` free but matchable, `r` retiring, `-` null, `?` unknown; where the cache shows no counts, the count is of the tables that list the
block. An operation that was skipped has no step number. Columns that say nothing are left out, and the last ones also where there is no
room.
"""

from __future__ import annotations

from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.steps import Holder, Replay, Row, table_text, touched
from kvproof.models.state import Books

MOST_BLOCKS: Final = 24
"""Pools with more touched blocks than this are told as lists, not drawn block by block."""

FOLD_COLUMNS: Final = 20
"""What is long by nature, operations and answers, is folded down to this before a column is left out."""

TABLE_COLUMNS: Final = 36
"""Block tables are folded down to this: narrower ones are hard to read."""

_GAP: Final = 2


class _Column(msgspec.Struct):
    """A column of the table: one cell for each row."""

    title: str
    cells: list[str]
    optional: bool = False
    fold: int | None = None
    """The width that it may be folded down to."""

    @property
    def width(self) -> int:
        return max(len(line) for cell in (self.title, *self.cells) for line in cell.split("\n"))

    @property
    def least(self) -> int:
        return self.width if self.fold is None else min(self.width, self.fold)


def steps_table(console: Console, replay: Replay) -> None:
    """Print the steps of `replay`, the one that shows the violation or the fault marked with `>`, and a legend."""
    columns = _columns(replay)
    while _least(columns) > console.width and (spare := [c for c in columns if c.optional]):
        columns.remove(spare[-1])
    if _least(columns) > console.width:
        _list_steps(console, columns, replay)
    else:
        _table(console, columns, replay)
    for line in _legend(columns, replay):
        console.print(Text(line, style="dim"))


def _columns(replay: Replay) -> list[_Column]:
    rows = replay.rows
    columns = [
        _Column(
            "  step",
            [f"{'>' if _marked(replay, index) else ' '} {'-' if row.number is None else row.number:>4}" for index, row in enumerate(rows)],
        ),
        _Column("operation", [wording.operation(row.op) for row in rows], fold=FOLD_COLUMNS),
        _Column("answer", [row.answer for row in rows], fold=FOLD_COLUMNS),
        _Column("sequences", ["\n".join(map(_holder, row.holders)) for row in rows], fold=TABLE_COLUMNS),
        _pool(replay),
        _Column("matchable", [wording.numbers(sorted(row.books.cached or ())) for row in rows], optional=True),
        _Column("free list", [wording.numbers(row.books.free or ()) for row in rows], optional=True),
    ]
    return [column for column in columns if any(column.cells) or column.title == "operation"]


def _marked(replay: Replay, index: int) -> bool:
    """Whether the row is the one that shows the violation or the fault."""
    return not replay.ok and index == len(replay.rows) - 1 and replay.rows[index].number is not None


def _holder(holder: Holder) -> str:
    tables = " | ".join(map(table_text, holder.tables)) if any(holder.tables) else ""
    swapped = " swapped" if holder.swapped else ""
    return f"{holder.seq} {holder.computed}/{holder.known}{swapped}" + (f": {tables}" if tables else "")


def _pool(replay: Replay) -> _Column:
    blocks = touched(replay.rows) if replay.num_blocks > MOST_BLOCKS else list(range(replay.num_blocks))
    if len(blocks) > MOST_BLOCKS or not blocks:
        return _Column("reference counts", ["" if row.number is None else _counts(row) for row in replay.rows], fold=TABLE_COLUMNS)
    width = max(len(str(block)) for block in blocks)
    cells = [
        "" if row.number is None else " ".join(f"{_state(row, block, replay.null_blocks):>{width}}" for block in blocks)
        for row in replay.rows
    ]
    return _Column(" ".join(f"{block:>{width}}" for block in blocks), cells)


def _state(row: Row, block: int, null_blocks: frozenset[int]) -> str:
    if block in null_blocks:
        return "-"
    count = row.counts().get(block, 0)
    if count:
        return str(count)
    if block in (row.books.retiring or ()):
        return "r"
    if block in (row.books.cached or ()):
        return "c"
    return "." if row.books.refcounts is not None or block in (row.books.free or ()) else "?"


def _counts(row: Row) -> str:
    counts = row.counts()
    return " ".join(f"{block}:{counts[block]}" for block in sorted(counts)) or "-"


def _least(columns: list[_Column]) -> int:
    return sum(column.least + _GAP for column in columns) - _GAP


def _table(console: Console, columns: list[_Column], replay: Replay) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, no_wrap=column.fold is None, min_width=column.least)
    for number in range(len(replay.rows)):
        style = "bold red" if _marked(replay, number) else ("dim" if replay.rows[number].number is None else None)
        table.add_row(*(Text(column.cells[number]) for column in columns), style=style)
    console.print(table)


def _list_steps(console: Console, columns: list[_Column], replay: Replay) -> None:
    """Where no table fits: each step as a line that begins with `- `, or with `> ` where it is the marked one."""
    for number in range(len(replay.rows)):
        step, operation, *others = (column.cells[number] for column in columns)
        marked = step.startswith(">")
        console.print(Text(f"{'>' if marked else '-'} {step[1:].strip()}  {operation}", style="bold red" if marked else ""))
        for title, cell in zip((column.title for column in columns[2:]), others, strict=True):
            if cell:
                console.print(Text(f"    {title}: {cell}".replace("\n", "; ")))


def _legend(columns: list[_Column], replay: Replay) -> list[str]:
    titles = [column.title for column in columns]
    lines = ["  sequences: number computed/known: blocks"] if "sequences" in titles else []
    pool = next((column for column in columns if column.title.lstrip()[:1].isdigit()), None)
    if pool is not None:
        books = [row.books for row in replay.rows]
        marks = ["in how many tables" if all(shown.refcounts is None for shown in books) else "reference count"]
        if any(shown != Books() for shown in books):
            marks.append(". free, c free but matchable, r retiring")
        if any("?" in cell for cell in pool.cells):
            marks.append("? unknown")
        lines.append(f"  blocks: {', '.join(marks)}")
    return lines
