"""Record what a cache does, as a trace that `kvproof audit` judges.

    cache = kvproof.record(MyAdapter(num_blocks=1024, block_size=16), "trace.jsonl")
    cache.admit(0, prompt, Namespace())        # every call goes on to the adapter, and becomes a line
    ...
    cache.close()

The recording adapter takes the same calls as the adapter that it stands before, and raises and returns the same. After each it looks at the block tables and the books, as the
suite does, so it costs what a snapshot costs; an engine that cannot afford that calls a `Recorder` itself.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.traces.format import BOOK_FIELDS, Claims, Header, Looks, Source, Taken
from kvproof.fuzz.traces.redact import Redactor
from kvproof.fuzz.traces.write import TraceWriter
from kvproof.impl.adapter import CacheAdapter
from kvproof.impl.checker import AdapterFault, Checked
from kvproof.models.capabilities import Capabilities
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
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Event, Grant, Hit, Outcome, OutOfBlocks, OutOfBlocksSeen, Raised, Refused, RefusedSeen, Snapshot
from kvproof.models.state import Seen, Tables

Value = TypeVar("Value")


def header_for(
    target: str,
    capabilities: Capabilities,
    config: PoolConfig,
    sees: dict[str, Looks],
    *,
    source: Source = "record",
    redacted: bool = False,
) -> Header:
    """The header of a recording that begins now."""
    started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    claims = Claims.of(capabilities, config.num_blocks)
    return Header(target=target, config=config, capabilities=claims, sees=sees, source=source, redacted=redacted, started=started)


def record(
    cache: CacheAdapter,
    path: str | Path,
    *,
    num_blocks: int | None = None,
    block_size: int | None = None,
    redact: bool = False,
    salt: bytes | None = None,
    part_bytes: int | None = None,
    target: str = "",
) -> RecordingAdapter:
    """Put a recorder before `cache`; use what is returned in its place, and close it at the end.

    `num_blocks` and `block_size` (tokens) are those that the adapter was built with, where they are not given.
    `redact`: write salted digests in place of tokens and namespaces; `salt` makes two recordings comparable, and else is drawn anew. `part_bytes`: begin a new file
    after that many. `target`: how the trace calls the cache. Raises ValueError where the pool is not known, OSError where the file cannot be written.
    """
    config = PoolConfig(_size(cache, "num_blocks", num_blocks), _size(cache, "block_size", block_size))
    name = target or f"{type(cache).__module__}:{type(cache).__qualname__}"
    return RecordingAdapter(cache, Path(path), config, name, Redactor(salt) if redact else None, part_bytes)


def _size(cache: CacheAdapter, name: str, given: int | None) -> int:
    value = given if given is not None else getattr(cache, "pool_asked_for", {}).get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"record needs to know {name} of the cache: give {name}=... (1 or more).")
    return value


class RecordingAdapter(CacheAdapter):
    """An adapter that writes down every call, its answer, and what was seen after it."""

    def __init__(
        self, cache: CacheAdapter, path: Path, config: PoolConfig, target: str, redactor: Redactor | None, part_bytes: int | None
    ) -> None:
        self.recorded = cache
        claimed = self.claimed = type(cache).capabilities()
        self._checked = Checked(lambda **_: cache, claimed, num_blocks=config.num_blocks, block_size=config.block_size)  # type: ignore[arg-type]
        self._live: dict[int, None] = {}
        self._waiting: dict[int, None] = {}
        """Sequences whose pass was extended and is launched by the next step."""
        self._open: list[int] = []
        self._doubtful: set[int] = set()
        """Sequences of operations that raised what the contract does not know."""
        self._redactor = redactor
        self._taken: list[Event] = []
        self._begun = time.perf_counter_ns()
        header = header_for(target, claimed, config, self._sees(claimed), redacted=redactor is not None)
        self.writer = TraceWriter(path, header, part_bytes=part_bytes)

    def _sees(self, claimed: Capabilities) -> dict[str, Looks]:
        sees: dict[str, Looks] = {"tables": "always"}
        if claimed.snapshot:
            books = self._checked.books()
            sees.update((name, "always") for name in BOOK_FIELDS if getattr(books, name) is not None)
        if claimed.mirror:
            sees["worker_tables"] = "sometimes"
        if claimed.events:
            sees["events"] = "sometimes"
        return sees

    def capabilities(self) -> Capabilities:  # type: ignore[override]  # the claims of the cache that is recorded
        """What the recorded cache claims."""
        return self.claimed

    def close(self) -> None:
        """Write what is left, and the end line."""
        self.writer.close()

    def __enter__(self) -> RecordingAdapter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- the contract -----------------------------------------------------------------------------------------------------------------------------

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> None:
        """A request is known."""
        self._do(Admit(seq, tuple(prompt), namespace), lambda: self.recorded.admit(seq, prompt, namespace))

    def match(self, seq: int) -> Hit:
        """How long a prefix could be reused now."""
        return self._do(Match(seq), lambda: self.recorded.match(seq))

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room for a pass; raises OutOfBlocks."""
        return self._do(Extend(seq, count, tuple(drafts)), lambda: self.recorded.extend(seq, count, drafts))

    def commit(self, seq: int, accepted: int = 0) -> None:
        """The pass is done."""
        self._do(Commit(seq, accepted), lambda: self.recorded.commit(seq, accepted))

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known."""
        self._do(Append(seq, tuple(tokens)), lambda: self.recorded.append(seq, tokens))

    def truncate(self, seq: int, length: int) -> None:
        """Roll back."""
        self._do(Truncate(seq, length), lambda: self.recorded.truncate(seq, length))

    def fork(self, parent: int, child: int) -> Grant:
        """The child shares what the parent has."""
        return self._do(Fork(parent, child), lambda: self.recorded.fork(parent, child))

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """The sequence lets go of everything."""
        self._do(Release(seq, reason), lambda: self.recorded.release(seq, reason))

    def begin_step(self) -> int:
        """Device work is launched."""
        return self._do(BeginStep(), self.recorded.begin_step)

    def end_step(self, step: int) -> None:
        """The device work of a step has finished. A program counts the open steps from the oldest, and so does the trace."""
        place = self._open.index(step) if step in self._open else len(self._open)
        self._do(EndStep(place), lambda: self.recorded.end_step(step))

    def evict(self, blocks: Sequence[int]) -> int:
        """Make blocks unmatchable."""
        return self._do(Evict(tuple(blocks)), lambda: self.recorded.evict(blocks))

    def reset(self) -> bool:
        """Make everything unmatchable."""
        return self._do(Reset(), self.recorded.reset)

    def swap_out(self, seq: int) -> bool:
        """Move a sequence to the slower tier."""
        return self._do(SwapOut(seq), lambda: self.recorded.swap_out(seq))

    def swap_in(self, seq: int) -> bool:
        """Move it back."""
        return self._do(SwapIn(seq), lambda: self.recorded.swap_in(seq))

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The recorded cache's; not an operation."""
        return self.recorded.block_table(seq, group)

    def worker_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The recorded cache's; not an operation."""
        return self.recorded.worker_table(seq, group)

    def snapshot(self) -> Snapshot:
        """The recorded cache's; not an operation."""
        return self.recorded.snapshot()

    def take_events(self) -> Sequence[Event]:
        """The events since the last call: the recorder has taken them from the cache already, and hands them on."""
        taken, self._taken = self._taken, []
        return taken

    # -- recording --------------------------------------------------------------------------------------------------------------------------------

    def _do(self, op: AnyOp, call: Callable[[], Value]) -> Value:
        begun = time.perf_counter_ns()
        try:
            value = call()
        except OutOfBlocks:
            self._note(op, OutOfBlocksSeen(), begun)
            raise
        except Refused as refused:
            self._note(op, RefusedSeen("" if self._redactor else str(refused)), begun)
            raise
        except Exception as error:
            self._note(op, Raised(type(error).__name__ if self._redactor else f"{type(error).__name__}: {error}"), begun)
            raise
        outcome = cast("Outcome", value if value is None or isinstance(value, Hit | Grant | bool) else int(cast("int", value)))
        self._note(op, outcome, begun)
        return value

    def _note(self, op: AnyOp, outcome: Outcome, begun: int) -> None:
        ended = time.perf_counter_ns()
        failed = isinstance(outcome, OutOfBlocksSeen | RefusedSeen | Raised)
        launched = self._follow(op, outcome) if not failed else ()
        if isinstance(outcome, Raised):
            self._doubtful.update(seq for name in ("seq", "parent", "child") if (seq := getattr(op, name, None)) is not None)
        seen, events = self._look(launched)
        self.writer.step(
            self._redactor.op(op, answered=not failed) if self._redactor else op,
            outcome,
            seen,
            at=ended - self._begun,
            took=ended - begun,
            events=events,
        )

    def _look(self, launched: Sequence[int]) -> tuple[Seen, tuple[Taken, ...] | None]:
        """What is to be seen of the cache now, and the events since the last look."""
        seen = Seen(
            {seq: self._tables(seq) for seq in self._live},
            self._checked.books(),
            {seq: self._checked.worker_tables(seq) for seq in launched} if self.claimed.mirror else {},
        )
        if not self.claimed.events:
            return seen, None
        events = self._checked.events()
        self._taken += events
        return seen, tuple((event.kind, tuple(event.blocks)) for event in events)

    def _tables(self, seq: int) -> Tables:
        """The block tables of `seq`. Where the cache failed in the middle of an operation on it and cannot be asked, those that were seen last."""
        try:
            return self._checked.tables(seq)
        except AdapterFault:
            if seq not in self._doubtful:
                raise
            return self.writer.observed.tables.get(seq, self.writer.observed.no_tables)

    def _follow(self, op: AnyOp, outcome: Outcome) -> Sequence[int]:
        """Who is alive now, and whose pass this operation launched."""
        match op:
            case Admit():
                self._live[op.seq] = None
            case Fork():
                self._live[op.child] = None
            case Release():
                self._waiting.pop(op.seq, None)
                if op.reason != "preempt":
                    self._live.pop(op.seq, None)
            case Extend() if self.claimed.steps:
                self._waiting[op.seq] = None
            case Extend():
                return (op.seq,)
            case BeginStep():
                self._open.append(cast("int", outcome))
                launched, self._waiting = tuple(self._waiting), {}
                return launched
            case EndStep() if op.step < len(self._open):
                del self._open[op.step]
        return ()


__all__ = ["RecordingAdapter", "header_for", "record"]
