"""Write what was seen of a cache as a trace.

    with TraceWriter(path, header) as writer:
        writer.step(op, outcome, seen)

The writer is given full observations and finds the changes itself. Lines are collected in a buffer and written together; what a crash can cost is that buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import msgspec

from kvproof.fuzz.traces.format import Blocks, End, Free, Header, Line, Looks, Slice, Taken, header_line
from kvproof.models.observed import Change, Moved, Observed
from kvproof.models.ops import AnyOp
from kvproof.models.outcomes import Outcome
from kvproof.models.state import Seen, Table, Tables

BUFFER_BYTES: Final = 1 << 18
"""How much may be lost in a crash: some two thousand operations."""

MOST_MOVED: Final = 64
"""A free list of which more than this moves in one operation is written whole."""


class Parts:
    """The files of one recording: a new part begins where the one before has grown to `part_bytes`."""

    def __init__(self, path: Path, header: Header, *, part_bytes: int | None = None) -> None:
        self.path = path
        self.header = header
        self.part_bytes = part_bytes
        self.next = header.first
        """The number of the next operation."""
        self._file: BinaryIO | None = None
        self._crc = 0
        self._size = 0
        self._open(header)

    def write(self, data: bytes, operations: int) -> None:
        """Write lines of that many operations, and hand them to the operating system at once."""
        if self.part_bytes is not None and self._size >= self.part_bytes:
            self._end(more=True)
            self.header = msgspec.structs.replace(self.header, part=self.header.part + 1, first=self.next)
            self._open(self.header)
        self._put(data)
        self.next += operations

    def close(self) -> None:
        """Write the end line. A second close does nothing."""
        if self._file is not None:
            self._end(more=False)

    def _open(self, header: Header) -> None:
        path = part_path(self.path, header.part)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)
        self._crc = self._size = 0
        self._put(header_line(header))

    def _put(self, data: bytes) -> None:
        assert self._file is not None, "the recording is closed"
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)

    def _end(self, *, more: bool) -> None:
        assert self._file is not None
        self._file.write(msgspec.json.encode(End(self.next, self._crc, more)) + b"\n")
        self._file.close()
        self._file = None


def part_path(path: Path, part: int) -> Path:
    """The file of one part: `trace.jsonl`, `trace.1.jsonl`, `trace.2.jsonl`, ..."""
    return path if part == 0 else path.with_name(f"{path.stem}.{part}{path.suffix}")


class TraceWriter:
    """Writes operations with full observations."""

    def __init__(
        self, path: Path, header: Header, *, part_bytes: int | None = None, tokens: Callable[[AnyOp], AnyOp] | None = None
    ) -> None:
        self.parts = Parts(path, header, part_bytes=part_bytes)
        self.observed = Observed(len(header.capabilities.groups))
        self._sees = header.sees
        self._redact = tokens
        self._free: list[int] = []
        self._free_count: int | None = None
        self._encoder = msgspec.json.Encoder()
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._number = header.first

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(
        self,
        op: AnyOp,
        outcome: Outcome,
        seen: Seen,
        *,
        at: int | None = None,
        took: int | None = None,
        events: tuple[Taken, ...] | None = None,
    ) -> None:
        """One operation and what was seen after it. Without `events`, those are written that make the matchable set which `seen` replays."""
        change = self.observed.difference(seen)
        line = Line(
            self._number,
            self._redact(op) if self._redact else op,
            outcome,
            at,
            took,
            tables=self._slices(change),
            refcounts=_counts(change.refcounts, self._sees.get("refcounts")),
            free=self._free_list(seen.books.free, change.free),
            cached=_blocks(change.cached, self._sees.get("cached")),
            retiring=_blocks(change.retiring, self._sees.get("retiring")),
            free_count=self._counter(change.free_count),
            worker_tables=tuple((seq, group, t) for seq, tables in seen.worker_tables.items() for group, t in enumerate(tables)),
            events=self._events(change) if events is None else events,
        )
        self.observed.take(change)
        data = self._encoder.encode(line)
        self._buffer.append(data)
        self._number += 1
        self._buffered += len(data)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system: what is written survives the death of this process."""
        if self._buffer:
            self.parts.write(b"\n".join(self._buffer) + b"\n", len(self._buffer))
            self._buffer.clear()
            self._buffered = 0

    def close(self) -> None:
        """Flush, and write the end line."""
        self.flush()
        self.parts.close()

    def _slices(self, change: Change) -> tuple[Slice, ...]:
        slices: list[Slice] = []
        empty = self.observed.no_tables
        for seq, tables in change.tables.items():
            if tables is not None:
                old: Tables = self.observed.tables.get(seq, empty)
                slices += [_slice(seq, group, had, has) for group, (had, has) in enumerate(zip(old, tables, strict=True)) if had != has]
        return tuple(slices)

    def _counter(self, now: int | None) -> int | msgspec.UnsetType | None:
        looks = self._sees.get("free_count")
        if looks is None or (now == self._free_count and looks == "always"):
            return msgspec.UNSET
        self._free_count = now
        return msgspec.UNSET if now is None and looks != "always" else now

    @staticmethod
    def _events(change: Change) -> tuple[Taken, ...] | msgspec.UnsetType:
        if change.events is None:
            return msgspec.UNSET
        kinds: tuple[Taken, ...] = (("removed", tuple(sorted(change.events.left))), ("stored", tuple(sorted(change.events.joined))))
        return tuple(event for event in kinds if event[1])

    def _free_list(self, now: tuple[int, ...] | None, moved: Moved | None) -> Free | msgspec.UnsetType | None:
        if now is None or moved is None:
            return None if self._sees.get("free") == "always" else msgspec.UNSET
        before, self._free = self._free, list(now)
        if before == self._free:
            return msgspec.UNSET if self._sees.get("free") == "always" else Free()
        return _reordered(before, self._free, moved)


def _counts(counts: Mapping[int, int] | None, looks: Looks | None) -> tuple[tuple[int, int], ...] | msgspec.UnsetType | None:
    if counts is None:
        return None if looks == "always" else msgspec.UNSET
    return tuple(sorted(counts.items())) if counts or looks != "always" else msgspec.UNSET


def _blocks(moved: Moved | None, looks: Looks | None) -> Blocks | msgspec.UnsetType | None:
    if moved is None:
        return None if looks == "always" else msgspec.UNSET
    if not moved.joined and not moved.left and looks == "always":
        return msgspec.UNSET
    return Blocks(tuple(sorted(moved.joined)), tuple(sorted(moved.left)))


def _slice(seq: int, group: int, had: Table, has: Table) -> Slice:
    """The shortest slice whose replacement turns one table into the other: what both begin and end with is left alone."""
    start, most = 0, min(len(had), len(has))
    if had[:most] == has[:most]:
        return seq, group, most, None, has[most:]
    while had[start] == has[start]:
        start += 1
    end = 0
    while end < most - start and had[len(had) - 1 - end] == has[len(has) - 1 - end]:
        end += 1
    return seq, group, start, len(had) - end if end else None, has[start : len(has) - end]


def _reordered(before: list[int], now: list[int], moved: Moved) -> Free:
    left = tuple(moved.left)
    if len(left) + len(moved.joined) > MOST_MOVED:
        return Free(whole=tuple(now))
    kept = list(before)
    for block in left:
        kept.remove(block)
    joined: list[tuple[int | None, tuple[int, ...]]] = []
    new = set(moved.joined)
    for index, block in enumerate(now):
        if block in new:
            new.discard(block)
            if joined and joined[-1][0] is not None and joined[-1][0] + len(joined[-1][1]) == index:
                joined[-1] = (joined[-1][0], (*joined[-1][1], block))
            else:
                joined.append((index, (block,)))
    for place, blocks in joined:
        assert place is not None, "only the last one is put at the end, and that comes later"
        kept[place:place] = blocks
    if kept != now:
        return Free(whole=tuple(now))
    if joined and joined[-1][0] is not None and joined[-1][0] + len(joined[-1][1]) == len(now):
        joined[-1] = (None, joined[-1][1])
    return Free(left, tuple(joined))
