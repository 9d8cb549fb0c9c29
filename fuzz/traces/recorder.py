"""A recorder that an engine calls itself, where it changes its block tables: about a microsecond for each operation.

    recorder = Recorder("trace.jsonl", num_blocks=4096, block_size=16, capabilities=Capabilities(prefix=True, steps=True))
    recorder.admit(seq, prompt)
    recorder.extend(seq, len(prompt), blocks=[7, 3, 9])          # three blocks were added to its table
    step = recorder.begin_step()
    recorder.end_step()
    recorder.commit(seq)
    recorder.append(seq, [token])
    recorder.release(seq, "finish")
    recorder.close()

The engine calls it after each operation, from one thread, with the same meanings as the contract of adapters. Operations are collected and written together, once there are `buffer_operations` of
them or a second has passed: a process that dies loses at most those. Memory is bounded by the buffer and, for each live sequence, one number (with `redact`, its tokens).
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.traces.format import BOOK_FIELDS, Answer, Blocks, Free, Line, Looks, Slice, Taken
from kvproof.fuzz.traces.record import header_for
from kvproof.fuzz.traces.redact import Redactor
from kvproof.fuzz.traces.write import Parts
from kvproof.models.capabilities import Capabilities
from kvproof.models.observed import Ledger
from kvproof.models.ops import (
    NO_NAMESPACE,
    Admit,
    AnyOp,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Namespace,
    Release,
    ReleaseReason,
    Reset,
    Tokens,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit, OutOfBlocksSeen, RefusedSeen, Snapshot
from kvproof.models.state import Books

BUFFER_OPERATIONS: Final = 256
"""Writing them takes about a third of a millisecond, which an engine does not notice between two steps."""

FLUSH_NANOSECONDS: Final = 1_000_000_000

NO_GRANT: Final = Grant()
OUT_OF_BLOCKS: Final = OutOfBlocksSeen()


class Recorder:
    """Writes a trace. Not for several threads at once. Raises OSError where the file cannot be written."""

    def __init__(
        self,
        path: str | Path,
        *,
        num_blocks: int,
        block_size: int,
        capabilities: Capabilities | None = None,
        target: str = "engine",
        redact: bool = False,
        salt: bytes | None = None,
        part_bytes: int | None = None,
        buffer_operations: int = BUFFER_OPERATIONS,
    ) -> None:
        """`capabilities`: what the engine claims; a claimed snapshot or claimed events are taken from `look`. `part_bytes`: begin a new file after that many."""
        claimed = Capabilities() if capabilities is None else capabilities
        sees: dict[str, Looks] = {"tables": "always"}
        if claimed.snapshot:
            sees |= dict.fromkeys(BOOK_FIELDS, "sometimes")
        if claimed.events:
            sees["events"] = "sometimes"
        config = PoolConfig(num_blocks, block_size)
        header = header_for(target, claimed, config, sees, source="engine", redacted=redact)
        self._groups = len(claimed.groups)
        self._redactor = Redactor(salt) if redact else None
        self._parts = Parts(Path(path), header, part_bytes=part_bytes)
        self._encode = msgspec.json.Encoder().encode_lines
        self._buffer: list[Line] = []
        self._most = buffer_operations
        self._number = 0
        self._clock = time.perf_counter_ns
        self._begun = self._flushed = self._clock()
        self._lengths: list[dict[int, int]] = [{} for _ in claimed.groups]
        """For each group, how long the table of each sequence is."""
        self._steps = 0
        self._ledger = Ledger()
        self._closed = False
        atexit.register(self.close)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- operations -------------------------------------------------------------------------------------------------------------------------------

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> None:
        """A request is known. Its number was never used before."""
        for lengths in self._lengths:
            lengths[seq] = 0
        self._put(Admit(seq, tuple(prompt), namespace), None, ())

    def match(self, seq: int, tokens: int) -> None:
        """A look-up found that many tokens of its prompt."""
        self._put(Match(seq), Hit(tokens), ())

    def extend(
        self,
        seq: int,
        count: int,
        blocks: Sequence[int] = (),
        *,
        drafts: Tokens = (),
        adopted: int = 0,
        copies: Sequence[tuple[int, int, int]] = (),
        slices: Sequence[Slice] = (),
    ) -> None:
        """Room was made for `count` tokens beyond the `adopted` ones, and for drafts. `blocks` were added to the table of group 0, adopted ones included; what else changed is in `slices`."""
        grant = NO_GRANT if not adopted and not copies else Grant(copies, (), adopted)
        self._put(Extend(seq, count, drafts), grant, self._added(seq, blocks, slices))

    def out_of_blocks(self, seq: int, count: int, drafts: Tokens = ()) -> None:
        """There was no room for an extend, and nothing has changed."""
        self._put(Extend(seq, count, drafts), OUT_OF_BLOCKS, (), answered=False)

    def commit(self, seq: int, accepted: int = 0, slices: Sequence[Slice] = ()) -> None:
        """The pass is done."""
        self._put(Commit(seq, accepted), None, slices)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens became known."""
        self._put(Append(seq, tuple(tokens)), None, ())

    def truncate(self, seq: int, length: int, slices: Sequence[Slice] = ()) -> None:
        """Rolled back to `length` tokens."""
        self._put(Truncate(seq, length), None, slices)

    def fork(
        self, parent: int, child: int, blocks: Sequence[int], *, copies: Sequence[tuple[int, int, int]] = (), slices: Sequence[Slice] = ()
    ) -> None:
        """`child` shares what `parent` has; `blocks` is its table in group 0."""
        for lengths in self._lengths:
            lengths[child] = 0
        self._put(Fork(parent, child), Grant(copies), self._added(child, blocks, slices))

    def release(self, seq: int, reason: ReleaseReason = "finish") -> None:
        """The sequence let go of all its blocks."""
        slices: Sequence[Slice] = ()
        if reason == "preempt":
            slices = [(seq, group, 0, None, ()) for group, lengths in enumerate(self._lengths) if lengths.get(seq)]
            for lengths in self._lengths:
                lengths[seq] = 0
        else:
            for lengths in self._lengths:
                lengths.pop(seq, None)
        self._put(Release(seq, reason), None, slices)

    def begin_step(self) -> int:
        """Device work is launched; the number of the step is returned."""
        self._steps += 1
        self._put(BeginStep(), self._steps, ())
        return self._steps

    def end_step(self, place: int = 0) -> None:
        """The device work of an open step has finished: of the oldest, where `place` is 0."""
        self._put(EndStep(place), None, ())

    def evict(self, blocks: Sequence[int], dropped: int) -> None:
        """Blocks were made unmatchable on request."""
        self._put(Evict(tuple(blocks)), dropped, ())

    def reset(self, *, done: bool) -> None:
        """Everything was made unmatchable, if it could be."""
        self._put(Reset(), done, ())

    def refused(self, op: AnyOp, reason: str = "") -> None:
        """The engine would not do `op`, and nothing has changed."""
        self._put(op, RefusedSeen("" if self._redactor else reason), (), answered=False)

    def look(self, snapshot: Snapshot, events: Sequence[Taken] | None = None) -> None:
        """The books as they are after the last operation, and the events since the last look. Costs what the pool holds; look now and then."""
        line = self._buffer[-1] if self._buffer else None
        if line is None:
            raise ValueError("look belongs to the operation before it, which was written already; look right after an operation.")
        books = Books(
            None if snapshot.refcounts is None else {block: count for block, count in snapshot.refcounts.items() if count},
            None if snapshot.free is None else tuple(snapshot.free),
            None if snapshot.cached is None else frozenset(snapshot.cached),
            None if snapshot.retiring is None else frozenset(snapshot.retiring),
            snapshot.free_count,
        )
        change = self._ledger.difference(books)
        self._ledger.take(change)
        line.refcounts = msgspec.UNSET if change.refcounts is None else tuple(change.refcounts.items())
        line.free = msgspec.UNSET if books.free is None else Free(whole=books.free)
        line.cached = msgspec.UNSET if change.cached is None else Blocks(tuple(change.cached.joined), tuple(change.cached.left))
        line.retiring = msgspec.UNSET if change.retiring is None else Blocks(tuple(change.retiring.joined), tuple(change.retiring.left))
        line.free_count = msgspec.UNSET if books.free_count is None else books.free_count
        if events is not None:
            line.events = tuple(events)

    # -- writing ----------------------------------------------------------------------------------------------------------------------------------

    def _added(self, seq: int, blocks: Sequence[int], slices: Sequence[Slice]) -> Sequence[Slice]:
        if not blocks:
            return slices
        lengths = self._lengths[0]
        start = lengths[seq]
        lengths[seq] = start + len(blocks)
        return ((seq, 0, start, None, tuple(blocks)), *slices)

    def _put(self, op: AnyOp, out: Answer, slices: Sequence[Slice], *, answered: bool = True) -> None:
        now = self._clock()
        buffer = self._buffer
        if len(buffer) >= self._most or now - self._flushed > FLUSH_NANOSECONDS:
            self.flush()
        if self._redactor is not None:
            op = self._redactor.op(op, answered=answered)
        # Any sequence of slices is written alike, and making it a tuple would cost.
        buffer.append(Line(self._number, op, out, now - self._begun, None, slices))  # type: ignore[arg-type]
        self._number += 1

    def flush(self) -> None:
        """Hand everything to the operating system: what is written survives the death of this process."""
        self._flushed = self._clock()
        if self._buffer:
            self._parts.write(self._encode(self._buffer), len(self._buffer))
            self._buffer.clear()

    def close(self) -> None:
        """Flush, and write the end line. A second close does nothing."""
        if not self._closed:
            self._closed = True
            self.flush()
            self._parts.close()
            atexit.unregister(self.close)
