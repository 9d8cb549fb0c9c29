"""Write a trace for other tools: Perfetto's (Chrome's) trace events, and ITF, the traces of Apalache and Quint.

Both are written as they are read, beside the target, and moved there when they are whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from kvproof.fuzz.programs import BadFile, writing
from kvproof.fuzz.reports import wording
from kvproof.fuzz.traces.read import Reader, Step, Trouble, read_trace
from kvproof.models.observed import Observed
from kvproof.models.ops import BeginStep, EndStep, Fork, op_name
from kvproof.models.state import Seen

ITF_STATES: Final = 10_000
"""ITF holds every state whole; more than this no tool shows."""

PROCESS: Final = 1
ENGINE_TRACK: Final = 0
"""Operations that belong to no sequence."""


@contextmanager
def _whole(place: Path) -> Iterator[IO[bytes]]:
    with writing(place, "--output"):
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as file:
            work = Path(file.name)
            try:
                yield file
            except BaseException:
                work.unlink()
                raise
        work.chmod(0o644)
        work.replace(place)


def _steps(path: Path, first: int, count: int | None) -> Iterator[Step]:
    """The wanted operations. Raises BadTrace at a line that is missing, doubled or damaged."""
    for item in Reader(path):
        if isinstance(item, Trouble):
            raise BadFile(f"{path}: {item.what}; a damaged trace cannot be exported.")
        if count is not None and item.number >= first + count:
            return
        yield item


# -- Perfetto -----------------------------------------------------------------------------------------------------------------------------------


def export_perfetto(path: Path, place: Path, *, first: int = 0, count: int | None = None) -> int:
    """Write trace events: a track for each sequence, one for the engine with its steps, and counters of the pool. Returns the number of operations.

    Times are the recorder's, in microseconds; where it kept none, each operation takes one.
    """
    header = Reader(path).header
    written = 0
    with _whole(place) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        file.write(msgspec.json.encode(_named("process_name", ENGINE_TRACK, f"kvproof: {header.target}")))
        file.write(b",\n" + msgspec.json.encode(_named("thread_name", ENGINE_TRACK, "engine")))
        named: set[int] = set()
        observed = Observed(len(header.capabilities.groups))
        opened: list[int] = []
        for step in _steps(path, first, count):
            observed.take(step.change)
            if step.number < first:
                _follow_steps(step, opened)
                continue
            begun = [] if written else [_step_event("b", number, _began(step)) for number in opened]
            written += 1
            file.writelines(b",\n" + msgspec.json.encode(event) for event in (*begun, *_perfetto_events(step, observed, named, opened)))
        file.write(b"\n]}\n")
    return written


def _perfetto_events(step: Step, observed: Observed, named: set[int], opened: list[int]) -> Iterator[dict[str, Any]]:
    op = step.op
    begun, end = _began(step), _ended(step)
    seq = op.child if isinstance(op, Fork) else getattr(op, "seq", None)
    track = ENGINE_TRACK if seq is None else seq + 1
    if seq is not None and seq not in named:
        named.add(seq)
        yield _named("thread_name", track, f"sequence {seq}")
    told = {"operation": step.number, "told": wording.operation(op), "answer": wording.answer(op, step.outcome)}
    yield {
        "name": wording.spoken(op_name(op)),
        "cat": "op",
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": begun,
        "dur": end - begun,
        "args": told,
    }
    phase, number = _follow_steps(step, opened)
    if number is not None:
        yield _step_event(phase, number, end)
    change = step.change
    if (
        change.tables
        or (change.free and (change.free.joined or change.free.left))
        or (change.cached and (change.cached.joined or change.cached.left))
    ):
        yield _counters(observed, end)


def _follow_steps(step: Step, opened: list[int]) -> tuple[str, int | None]:
    """Keep `opened` up to date, oldest step first; the phase and the number of the step that this operation begins or ends."""
    op = step.op
    if isinstance(op, BeginStep) and isinstance(step.outcome, int):
        opened.append(step.outcome)
        return "b", opened[-1]
    if isinstance(op, EndStep) and op.step < len(opened):
        return "e", opened.pop(op.step)
    return "", None


def _ended(step: Step) -> float:
    """When the operation was over, in microseconds."""
    return float(step.number + 1) if step.at is None else step.at / 1000


def _began(step: Step) -> float:
    return _ended(step) - (1.0 if step.took is None else max(step.took / 1000, 0.001))


def _step_event(phase: str, step: int, at: float) -> dict[str, Any]:
    return {"name": f"step {step}", "cat": "step", "ph": phase, "id": step, "pid": PROCESS, "tid": ENGINE_TRACK, "ts": at}


def _counters(observed: Observed, at: float) -> dict[str, Any]:
    counts = {"held": len(observed.owners)}
    if observed.books.free is not None:
        counts["free"] = len(observed.books.free)
    if observed.books.cached is not None:
        counts["matchable"] = len(observed.books.cached)
    return {"name": "blocks", "ph": "C", "pid": PROCESS, "ts": at, "args": counts}


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}


# -- ITF ----------------------------------------------------------------------------------------------------------------------------------------


def export_itf(path: Path, place: Path, *, first: int = 0, count: int | None = None) -> int:
    """Write states: the operation, its answer, and what was seen after it. Returns the number of operations.

    Format: https://apalache.informal.systems/docs/adr/015adr-trace.html. A skipped block of a table is -1.
    """
    header = Reader(path).header
    most = first + (ITF_STATES if count is None else count)
    books = [name for name in ("refcounts", "free", "cached", "retiring") if name in header.sees]
    written = 0
    with _whole(place) as file:
        meta = {"format": "ITF", "description": f"recorded by kvproof from {header.target}", "config": msgspec.to_builtins(header.config)}
        variables = ["op", "answer", "tables", *books]
        file.write(b'{"#meta":' + msgspec.json.encode(meta) + b',"vars":' + msgspec.json.encode(variables) + b',"states":[\n')
        for step, seen in read_trace(path):
            if step.number >= most:
                break
            if step.number >= first:
                file.write((b",\n" if written else b"") + msgspec.json.encode(_state(step, seen, books, written)))
                written += 1
        file.write(b"\n]}\n")
    return written


def _state(step: Step, seen: Seen, books: Iterable[str], index: int) -> dict[str, Any]:
    state: dict[str, Any] = {
        "#meta": {"index": index, "operation": step.number},
        "op": wording.operation(step.op),
        "answer": wording.answer(step.op, step.outcome),
        "tables": _map(
            {seq: [[-1 if block is None else block for block in table] for table in tables] for seq, tables in seen.tables.items()}
        ),
    }
    for name in books:
        value = getattr(seen.books, name)
        if isinstance(value, Mapping):
            state[name] = _map(value)
        elif name == "free":
            state[name] = list(value or ())
        else:
            state[name] = {"#set": sorted(value or ())}
    return state


def _map(values: Mapping[int, object]) -> dict[str, Any]:
    return {"#map": [[key, value] for key, value in sorted(values.items())]}
