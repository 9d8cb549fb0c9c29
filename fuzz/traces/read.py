"""Read a trace, line by line, in constant memory.

    reader = Reader(path)
    reader.header
    for item in reader:          # a Step for each operation, a Trouble where lines are missing, doubled or damaged
        ...

`read_trace(path)` gives whole observations instead of changes, for whoever wants to look at every step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, get_args

import msgspec

from kvproof.fuzz.traces.format import BadTrace, End, Field, Free, LaterLine, Line
from kvproof.fuzz.traces.header import MOST_LINE_BYTES, UNREADABLE, first_line, open_trace, read_header
from kvproof.fuzz.traces.unfold import Unfold
from kvproof.fuzz.traces.write import part_path
from kvproof.models.observed import Change, Observed
from kvproof.models.ops import AnyOp
from kvproof.models.outcomes import Outcome
from kvproof.models.state import Books, Seen

REORDER_LINES: Final = 1000
"""How far a line may have strayed before it is given up: writers that race for a file swap neighbours."""


class Step(msgspec.Struct, frozen=True):
    """One operation of a trace. `line` counts the lines of its file from 1."""

    number: int
    line: int
    op: AnyOp
    outcome: Outcome
    change: Change
    at: int | None = None
    took: int | None = None
    free: Free | None = None
    """How the free list changed, in its order, where the line says so."""


class Trouble(msgspec.Struct, frozen=True):
    """Something is wrong with a line. `lost`: operations are missing from here on, so that the state of the cache is not known any more."""

    line: int
    what: str
    lost: bool = False


Item: TypeAlias = Step | Trouble


class Reader:
    """The header and the operations of a trace, all parts in order. Raises BadTrace where there is nothing to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path, first_line(path))
        self.bytes_read = 0
        """How far the reader has come, all parts together."""
        self.notes: list[str] = []
        """What is odd about the file as a whole, in full sentences."""
        self._unfold = Unfold(self.header)
        self._clock: int | None = 0
        """The latest time on any line so far; None once the clock has gone back."""
        self._lines: dict[int, tuple[int, Line]] = {}
        """Lines that came too early, by the number of their operation."""
        if self.header.part:
            raise BadTrace(
                f"{path} is part {self.header.part} of a recording and begins at operation {self.header.first}; name its first part, the others are found beside it."
            )

    def __iter__(self) -> Iterator[Item]:
        expected, part = self.header.first, 0
        more = True
        while more:
            path = part_path(self.path, part)
            if part and not path.exists():
                self.notes.append(f"{path} is missing: the recording went on after operation {expected - 1}.")
                return
            more = False
            for number, found in _lines_of(path, self, part):
                if isinstance(found, Line) and found.i == expected and not self._lines:
                    item = self._step(number, found)
                    expected += isinstance(item, Step)
                    yield item
                elif isinstance(found, End):
                    more = found.more
                    yield from self._end(found, number, expected)
                elif isinstance(found, Trouble):
                    yield found
                else:
                    for item in self._in_order(number, found, expected):
                        expected = item.number + 1 if isinstance(item, Step) else expected
                        yield item
            for item in self._give_up(expected):
                expected = item.number + 1 if isinstance(item, Step) else expected
                yield item
            part += 1

    def _in_order(self, number: int, line: Line, expected: int) -> Iterator[Item]:
        if line.i < expected or line.i in self._lines:
            yield Trouble(number, f"line {number} repeats operation {line.i}")
            return
        if line.i > expected:
            if not self._lines:
                yield Trouble(number, f"line {number} holds operation {line.i}, where operation {expected} should be")
            self._lines[line.i] = (number, line)
            if len(self._lines) > REORDER_LINES:
                yield from self._give_up(expected)
            return
        yield self._step(number, line)
        expected += 1
        while expected in self._lines:
            yield self._step(*self._lines.pop(expected))
            expected += 1

    def _give_up(self, expected: int) -> Iterator[Item]:
        """Go on with the lines that came too early: those before them are missing."""
        for number in sorted(self._lines):
            line_number, line = self._lines.pop(number)
            if number != expected:
                missing = f"operation {expected}" if number == expected + 1 else f"operations {expected} to {number - 1}"
                self._unfold.forget()
                yield Trouble(
                    line_number, f"{missing} {'is' if number == expected + 1 else 'are'} missing before line {line_number}", lost=True
                )
            yield self._step(line_number, line)
            expected = number + 1

    def _step(self, number: int, line: Line) -> Item:
        try:
            change = self._unfold.change(line)
        except ValueError as error:
            return Trouble(number, f"line {number} is damaged: {error}")
        if line.at is not None:
            self._follow_clock(number, line.at)
        free = None if line.free is msgspec.UNSET else line.free
        return Step(line.i, number, line.op, line.out, change, line.at, line.took, free)

    def _follow_clock(self, number: int, at: int) -> None:
        if self._clock is None:
            return
        if at < self._clock:
            self.notes.append(
                f"The clock goes back on line {number}, from {self._clock:,} to {at:,} ns: no law needs it, but times and durations may be wrong."
            )
            self._clock = None
        else:
            self._clock = at

    def _end(self, end: End, number: int, expected: int) -> Iterator[Item]:
        if end.end > expected and not self._lines:
            yield Trouble(number, f"operations {expected} to {end.end - 1} are missing before line {number}", lost=True)


def read_trace(path: Path) -> Iterator[tuple[Step, Seen]]:
    """Every operation with all that was seen after it. Raises BadTrace at the first line that is missing, doubled or damaged."""
    reader = Reader(path)
    observed = Observed(len(reader.header.capabilities.groups))
    for item in reader:
        if isinstance(item, Trouble):
            raise BadTrace(f"{path}: {item.what}.")
        observed.take(item.change)
        yield item, _whole(observed)


def _whole(observed: Observed) -> Seen:
    books, last = observed.books, observed.last
    return Seen(
        dict(observed.tables),
        Books(
            None if books.refcounts is None else dict(books.refcounts),
            None if books.free is None else tuple(books.free),
            None if books.cached is None else frozenset(books.cached),
            None if books.retiring is None else frozenset(books.retiring),
            books.free_count,
        ),
        last.worker_tables,
        None if last.events is None else frozenset(observed.replayed),
    )


def _lines_of(path: Path, reader: Reader, part: int) -> Iterator[tuple[int, Line | End | Trouble]]:
    """(line number, what it holds) of one part, the header left out."""
    known = reader.header.sees.keys() <= set(get_args(Field))
    decode = msgspec.json.Decoder(Line if known else LaterLine).decode
    crc, number, ended = 0, 0, False
    try:
        with open_trace(path) as file:
            for raw in iter(lambda: file.readline(MOST_LINE_BYTES), b""):
                number += 1
                reader.bytes_read += len(raw)
                if number == 1:
                    if part:
                        _follows(path, raw, reader, part)
                    crc = zlib.crc32(raw)
                    continue
                if ended:
                    yield number, Trouble(number, f"line {number} follows the end line")
                    return
                if len(raw) == MOST_LINE_BYTES:
                    reader.bytes_read += _skip_line(file, raw)
                    yield (
                        number,
                        Trouble(number, f"line {number} is damaged: it is longer than {MOST_LINE_BYTES:,} bytes, and no operation is"),
                    )
                    continue
                try:
                    found: Line | End = msgspec.json.decode(raw, type=End) if raw.startswith(b'{"end"') else decode(raw)
                except UNREADABLE as error:
                    yield number, _damage(number, raw, error)
                    continue
                if isinstance(found, Line):
                    crc = zlib.crc32(raw, crc)
                else:
                    ended = True
                    if found.crc32 != crc:
                        reader.notes.append(
                            f"{path} was changed after it was recorded: its checksum is another one. Verdicts are on the file as it is."
                        )
                yield number, found
    except (OSError, EOFError, zlib.error) as error:
        yield number + 1, Trouble(number + 1, f"the file cannot be read after line {number}: {error}")
        return
    if not ended:
        reader.notes.append(f"{path} has no end line: its recorder was not closed, and what it had not written yet is missing.")


def _skip_line(file: BinaryIO, raw: bytes) -> int:
    """Read on to the end of a line that begins with `raw`; how many bytes that were."""
    skipped = 0
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(MOST_LINE_BYTES)
        skipped += len(raw)
    return skipped


def _damage(number: int, raw: bytes, error: Exception) -> Trouble:
    cut = not raw.endswith(b"\n")
    return Trouble(number, f"line {number} is {'cut off' if cut else 'damaged'}: {error}")


def _follows(path: Path, line: bytes, reader: Reader, part: int) -> None:
    header = read_header(path, line)
    if header.part != part or header.config != reader.header.config:
        raise BadTrace(f"{path} does not belong to {reader.path}: its header names another part or pool.")
