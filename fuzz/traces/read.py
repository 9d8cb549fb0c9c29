"""Read a trace, line by line, in constant memory.

    reader = Reader(path)
    reader.header
    for item in reader:          # a Step for each operation, a Trouble where lines are missing, doubled or damaged
        ...

`read_trace(path)` gives whole observations instead of changes, for whoever wants to look at every step.
"""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast, get_args

import msgspec

from kvproof.fuzz.programs import FORMAT, other_version
from kvproof.fuzz.traces.format import BadTrace, Blocks, End, Field, Free, Header, LaterLine, Line, Taken
from kvproof.fuzz.traces.write import part_path
from kvproof.models.observed import NOTHING, UNMOVED, Change, Moved, Observed
from kvproof.models.ops import Admit, AnyOp, Fork, Release
from kvproof.models.outcomes import Grant, Hit, Outcome, OutOfBlocksSeen, RefusedSeen
from kvproof.models.state import Books, Seen, Tables

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


MOST_SLOTS: Final = 1 << 27
"""Blocks times tokens: a pool larger than any that is served, whose ghosts take a gigabyte."""

MOST_LINE_BYTES: Final = 1 << 24
"""A prompt of a million tokens takes less, digests in place of tokens included. What is longer is no line: a file without line ends must not be read into memory."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for a line that is no JSON, or not the JSON of a trace, or nested without end."""

Item: TypeAlias = Step | Trouble


class Reader:
    """The header and the operations of a trace, all parts in order. Raises BadTrace where there is nothing to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = _header(path, _first_line(path))
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


_CHANGES_WHO_LIVES: Final = frozenset({Admit, Fork, Release})

_SILENT: Final[dict[Field, Any]] = {"refcounts": NOTHING, "free": UNMOVED, "cached": UNMOVED, "retiring": UNMOVED}


class Unfold:
    """From the lines of a trace to what each operation changed. Knows block tables and replays events."""

    def __init__(self, header: Header) -> None:
        self._silent = Change(**{name: value for name, value in _SILENT.items() if header.sees.get(name) == "always"})
        """What a line that does not say anything of the books says of them."""
        self._groups = len(header.capabilities.groups)
        self._empty: Tables = ((),) * self._groups
        self._tables: dict[int, Tables] = {}
        self._replayed: set[int] = set()
        self._freed: set[int] = set()
        self._counts_free = header.sees.get("free_count") == "always"
        self._free_count: int | None = None
        """What the cache's own counter of free blocks shows; None where a line says nothing and it is not shown always."""
        self._adrift = False
        """Whether lines are missing, so that changes say nothing any more of what began before."""
        self._nulls = frozenset(header.capabilities.null_blocks)
        self._valid = frozenset(range(header.config.num_blocks)) | {None}
        self._most = header.config.num_blocks

    def forget(self) -> None:
        """Lines are missing: what is known of tables and books is void, and only sequences that begin from now on can be followed."""
        self._tables.clear()
        self._adrift = True

    def change(self, line: Line) -> Change:
        """What the operation of `line` changed. Raises ValueError for what no cache can have shown."""
        if line.out is not None:
            self._check_answer(line)
        if self._adrift:
            return Change(self._changed_tables(line))
        unset, silent = msgspec.UNSET, self._silent
        return Change(
            self._changed_tables(line) if line.tables or type(line.op) in _CHANGES_WHO_LIVES else NOTHING,
            silent.refcounts if line.refcounts is unset else self._counts(line),
            silent.free if line.free is unset else self._free(line),
            silent.cached if line.cached is unset else self._moved(line.cached),
            silent.retiring if line.retiring is unset else self._moved(line.retiring),
            None if line.events is unset else self._replay(cast("Sequence[Taken]", line.events)),
            self._worker_tables(line) if line.worker_tables else NOTHING,
            self._free_count if line.free_count is unset else self._counter(line),
        )

    def _check_answer(self, line: Line) -> None:
        out = line.out
        if isinstance(out, Grant):
            for group, source, target in out.copies:
                if not 0 <= group < self._groups:
                    raise ValueError(f"it copies in group {group}, but there are {self._groups} groups")
                self._shown((source, target))
            self._shown(tuple(out.zeroed))
            if out.adopted < 0:
                raise ValueError(f"it adopts {out.adopted} tokens")
        elif isinstance(out, Hit) and out.tokens < 0:
            raise ValueError(f"it found {out.tokens} tokens")

    def _changed_tables(self, line: Line) -> dict[int, Tables | None]:
        changed: dict[int, Tables | None] = {}
        op = line.op
        answered = not isinstance(line.out, OutOfBlocksSeen | RefusedSeen)
        if answered and isinstance(op, Admit | Fork):
            changed[op.child if isinstance(op, Fork) else op.seq] = self._empty
        for seq, group, start, stop, blocks in line.tables:
            tables = changed.get(seq) or self._tables.get(seq)
            if tables is None:
                if self._adrift:
                    continue
                raise ValueError(f"it changes a block table of sequence {seq}, which is not there")
            if not 0 <= group < self._groups:
                raise ValueError(f"it names group {group}, but there are {self._groups} groups")
            table = tables[group]
            if not 0 <= start <= (len(table) if stop is None else stop) <= len(table):
                raise ValueError(f"it replaces the entries {start} to {stop} of a block table of {len(table)}")
            shown = self._shown(blocks)
            new = table[:start] + shown if stop is None else table[:start] + shown + table[stop:]
            changed[seq] = (*tables[:group], new, *tables[group + 1 :])
        if answered and isinstance(op, Release) and op.reason != "preempt" and op.seq in self._tables:
            changed[op.seq] = None
        for seq, now in changed.items():
            if now is None:
                del self._tables[seq]
            else:
                self._tables[seq] = now
        return changed

    def _shown(self, blocks: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if not self._valid.issuperset(blocks):
            wrong = next(block for block in blocks if block not in self._valid)
            raise ValueError(f"it names block {wrong}, but the pool has blocks 0 to {self._most - 1}")
        return tuple(None if block in self._nulls else block for block in blocks) if self._nulls else blocks

    def _counts(self, line: Line) -> dict[int, int] | None:
        counts = line.refcounts
        if not counts:
            return {} if counts is not None else None
        changed = dict(cast("Sequence[tuple[int, int]]", counts))
        self._shown(tuple(changed))
        return changed

    def _counter(self, line: Line) -> int | None:
        count = cast("int | None", line.free_count)
        if self._counts_free:
            self._free_count = count
        return count

    def _free(self, line: Line) -> Moved | None:
        free = cast("Free | None", line.free)
        if free is None:
            return None
        if free.whole is not None:
            self._shown(free.whole)
            now = set(free.whole)
            joined = tuple(now - self._freed) + _doubled(free.whole)
            left = tuple(self._freed - now)
        else:
            joined = tuple(block for _, blocks in free.joined for block in blocks)
            self._shown(joined)
            self._shown(free.left)
            # A block that never came back after a fault cannot leave the list once more.
            left = free.left if self._freed.issuperset(free.left) else tuple(block for block in free.left if block in self._freed)
        self._freed.difference_update(left)
        self._freed.update(joined)
        return Moved(joined, left)

    def _moved(self, blocks: Blocks | None) -> Moved | None:
        if blocks is None:
            return None
        self._shown(blocks.joined)
        self._shown(blocks.left)
        return Moved(blocks.joined, blocks.left)

    def _replay(self, events: Sequence[Taken]) -> Moved:
        if not events:
            return UNMOVED
        joined: set[int] = set()
        left: set[int] = set()
        for kind, blocks in events:
            self._shown(blocks)
            if kind == "stored":
                joined.update(set(blocks) - self._replayed)
                left.difference_update(blocks)
            elif kind == "removed":
                joined.difference_update(blocks)
                left.update(self._replayed.intersection(blocks))
            else:
                joined.clear()
                left = set(self._replayed)
        self._replayed -= left
        self._replayed |= joined
        return Moved(joined, left)

    def _worker_tables(self, line: Line) -> dict[int, Tables]:
        tables: dict[int, list[tuple[int | None, ...]]] = {}
        for seq, group, table in line.worker_tables:
            if group != len(tables.setdefault(seq, [])):
                raise ValueError(f"the device's tables of sequence {seq} are not in the order of groups")
            tables[seq].append(self._shown(table))
        return {seq: tuple(shown) for seq, shown in tables.items()}


def _doubled(blocks: Sequence[int]) -> tuple[int, ...]:
    """The blocks that are listed again, once for each time."""
    seen: set[int] = set()
    again = []
    for block in blocks:
        if block in seen:
            again.append(block)
        seen.add(block)
    return tuple(again)


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


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _first_line(path: Path) -> bytes:
    try:
        with _open(path) as file:
            return file.readline(MOST_LINE_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise BadTrace(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def is_trace(path: Path) -> bool:
    """Whether the file begins as a trace does."""
    try:
        return msgspec.json.decode(_first_line(path), type=_Kind).kind == "trace"
    except (BadTrace, *UNREADABLE):
        return False


def _what_else(path: Path) -> str:
    """What a file is that is no trace, in a sentence with the mend; empty where it is none of ours either."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Whole)
    except (OSError, *UNREADABLE):
        return ""
    if found.ops is not msgspec.UNSET:
        return f"{path} is a program or a failure file, not a trace; see it with `kvproof replay {path}`, or write its trace with `kvproof record {path}`."
    if found.verdict is not msgspec.UNSET:
        return f"{path} is a report, not a trace; see it with `kvproof open {path}`."
    return ""


class _Whole(msgspec.Struct):
    """What tells programs and reports from other JSON files."""

    kvproof: int
    ops: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    verdict: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Kind(msgspec.Struct):
    kind: str = ""
    kvproof: int = 0


def _header(path: Path, line: bytes) -> Header:
    if line.startswith((BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE)):
        raise BadTrace(
            f"line 1 of {path} begins with a byte order mark, as some editors write it; a trace is UTF-8 without one: save it again like that."
        )
    if not line.strip():
        raise BadTrace(
            f"{path} is empty or begins with an empty line, so it is no trace: its recorder may have died before it wrote anything."
        )
    try:
        kind = msgspec.json.decode(line, type=_Kind)
    except UNREADABLE as error:
        raise BadTrace(
            _what_else(path) or f"line 1 of {path} is no trace header ({error}); a trace begins with a JSON object whose kind is trace."
        ) from error
    if kind.kind != "trace":
        raise BadTrace(_what_else(path) or f"{path} is no trace: line 1 has no kind that says so; record one with kvproof.record.")
    if kind.kvproof != FORMAT:
        raise BadTrace(other_version(path, kind.kvproof))
    try:
        header = msgspec.json.decode(line, type=Header)
    except UNREADABLE as error:
        raise BadTrace(f"line 1 of {path} is damaged: {error}.") from error
    wrong = _impossible(header)
    if wrong:
        raise BadTrace(f"line 1 of {path} is damaged: {wrong}.")
    return header


def _impossible(header: Header) -> str:
    """Why no cache can have this pool or these groups; empty if one can."""
    config, groups = header.config, header.capabilities.groups
    sizes = [config.block_size, *(group.block_size for group in groups if group.block_size is not None)]
    if config.num_blocks < 1 or min(sizes) < 1:
        return f"its pool has {config.num_blocks} blocks of {min(sizes)} tokens"
    if config.num_blocks * max(sizes) > MOST_SLOTS:
        return f"its pool has {config.num_blocks} blocks of {max(sizes)} tokens, more than the {MOST_SLOTS} slots that can be followed"
    if not groups:
        return "it has no group of layers"
    for group in groups:
        if group.kind not in ("full", "sliding_window"):
            return f"it has a group of kind {group.kind}, and only full and sliding_window are judged"
        if group.kind == "sliding_window" and (group.window is None or group.window < 1):
            return "it has a sliding window without a length"
    return ""


def _lines_of(path: Path, reader: Reader, part: int) -> Iterator[tuple[int, Line | End | Trouble]]:
    """(line number, what it holds) of one part, the header left out."""
    known = reader.header.sees.keys() <= set(get_args(Field))
    decode = msgspec.json.Decoder(Line if known else LaterLine).decode
    crc, number, ended = 0, 0, False
    try:
        with _open(path) as file:
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
    header = _header(path, line)
    if header.part != part or header.config != reader.header.config:
        raise BadTrace(f"{path} does not belong to {reader.path}: its header names another part or pool.")
