"""Audit the KV events that vLLM and SGLang publish: `BlockStored`, `BlockRemoved` and `AllBlocksCleared`, as msgpack or JSON.

    report = audit_events(Path("events.msgpack"))

A file holds batches (`[time, [event, ...], ...]`), one after the other: msgpack objects without anything between them, or JSON lines. An event is an array that begins with its
name, as the engines send it, or an object with a key `type`. Single events are taken too.

Such a stream names content by hash, and neither blocks, tables, counts nor requests. So it can show that one hash stands for two prefixes, that an open block was published, and that
the events cannot be replayed. Of every other law nothing can be told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from kvproof.fuzz.audit import AuditReport
from kvproof.fuzz.auditor import Breach, LawFinding
from kvproof.fuzz.programs import FORMAT
from kvproof.fuzz.reports import wording
from kvproof.fuzz.traces.format import BadTrace
from kvproof.models.laws import CACHE_LAWS

KINDS: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")

STORED_FIELDS: Final = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
"""What both engines send first, in this order; what follows differs."""

READ_BYTES: Final = 1 << 20

JUDGED: Final = ("hit-is-true-prefix", "published-is-committed", "events-replay-index")
"""The laws of which a stream of events can tell something."""


Key: TypeAlias = tuple[object, ...]
"""(hash, medium, group): what content is stored under."""


class Content(msgspec.Struct, frozen=True):
    """What a hash stands for: its own tokens, and the hash of what comes before. A parent that was not told is None."""

    tokens: tuple[int, ...]
    parent: object
    namespace: str


class Stored(msgspec.Struct):
    """A stored hash: how often, and what it stands for, if that was told."""

    times: int
    content: Content | None
    event: int


class Stream:
    """Replays events and judges them."""

    def __init__(self) -> None:
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.index: dict[Key, Stored] = {}
        self.most = 0
        self.known_from_empty = False
        """Whether the index is known to have been empty once: before that, the engine may have stored what this stream does not tell."""
        self.removed_unknown = 0
        self.two_namespaces = 0
        self.exercised: Counter[str] = Counter()
        self.breaches: dict[str, Breach] = {}
        """The first fault of each broken law."""

    def take(self, event: Mapping[str, Any], place: int) -> None:
        """One event. `place` is its line or batch. Raises ValueError for what is no event."""
        kind = event.get("type")
        if kind == "BlockStored":
            self._store(event, place)
        elif kind == "BlockRemoved":
            self._remove(event, place)
        elif kind == "AllBlocksCleared":
            self.index.clear()
            self.known_from_empty = True
        else:
            raise ValueError(f"there is no event {kind!r}; there are {wording.joined(list(KINDS))}")
        self.counts[str(kind)] += 1
        self.events += 1
        self.most = max(self.most, len(self.index))

    def _store(self, event: Mapping[str, Any], place: int) -> None:
        hashes, tokens = _list(event, "block_hashes"), _list(event, "token_ids")
        given = event.get("block_size")
        size = given if isinstance(given, int) else 0
        whole = bool(tokens) and size > 0
        if whole:
            self.exercised["published-is-committed"] += 1
            if len(tokens) % size or len(tokens) < size * len(hashes):
                told = f"{wording.counted(len(hashes), 'block')} of {wording.counted(size, 'token')} were stored with {wording.counted(len(tokens), 'token')}"
                self._break("published-is-committed", place, f"{told}: a block that is not full was published")
                whole = False  # which tokens belong to which hash cannot be told
        parent = event.get("parent_block_hash")
        # An engine that skips blocks (out of a window) sends more tokens than hashes, and does not say which belong to which.
        paired = whole and len(tokens) == size * len(hashes)
        for at, name in enumerate(hashes):
            own = tuple(tokens[at * size : (at + 1) * size]) if paired else None
            content = None if own is None else Content(own, parent, _namespace(event, at))
            self._store_one(key_of(name, event), content, place)
            parent = name

    def _store_one(self, key: Key, content: Content | None, place: int) -> None:
        stored = self.index.get(key)
        if stored is None:
            self.index[key] = Stored(1, content, self.events)
            return
        stored.times += 1
        if stored.content is None or content is None:
            return
        self.exercised["hit-is-true-prefix"] += 1
        self.two_namespaces += stored.content.namespace != content.namespace
        other_parent = None not in (stored.content.parent, content.parent) and stored.content.parent != content.parent
        if stored.content.tokens != content.tokens or other_parent:
            what = "tokens" if stored.content.tokens != content.tokens else "a parent"
            self._break(
                "hit-is-true-prefix",
                place,
                f"hash {shown_hash(key[0])} was stored by event {stored.event} and is stored again, before it was removed, with other {what}: "
                f"it stands for two prefixes, and whoever looks it up gets one of them",
            )

    def _remove(self, event: Mapping[str, Any], place: int) -> None:
        for name in _list(event, "block_hashes"):
            key = key_of(name, event)
            stored = self.index.get(key)
            if stored is None:
                self.removed_unknown += 1
                if self.known_from_empty:
                    reason = f"hash {shown_hash(name)} is removed, but since everything was cleared it has not been stored, or was removed already"
                    self._break("events-replay-index", place, reason)
                continue
            self.exercised["events-replay-index"] += self.known_from_empty
            stored.times -= 1
            if stored.times == 0:
                del self.index[key]

    def _break(self, law: str, place: int, reason: str) -> None:
        self.breaches.setdefault(law, Breach(law, self.events, place, reason))


def audit_events(path: Path, *, tolerant: bool = False) -> AuditReport:
    """Audit a stream of events: the first fault of each broken law. `tolerant`: go on after what cannot be read. Raises BadTrace."""
    begun = time.perf_counter()
    stream = Stream()
    troubles: list[str] = []
    for place, found in _objects(path):
        try:
            if isinstance(found, Exception):
                raise ValueError(str(found))
            for event in _events(found):
                stream.take(event, place)
        except (ValueError, TypeError) as error:
            if not tolerant and not stream.breaches:
                raise BadTrace(f"{path}: item {place} is no KV event ({error}); add --tolerant to audit the rest.") from error
            troubles.append(wording.sentence(f"item {place} is no KV event: {error}"))
            if not tolerant:
                troubles.append("The audit ended there; add --tolerant to audit the rest.")
                break
    if not stream.events:
        raise BadTrace(f"{path} holds no KV event that can be judged, so it tells nothing of any law; record a run.")
    return AuditReport(
        FORMAT,
        str(path),
        "a stream of KV events",
        "broken" if stream.breaches else "proved",
        {law.name: _finding(stream, law.name) for law in CACHE_LAWS},
        list(stream.breaches.values()),
        stream.events,
        round(time.perf_counter() - begun, 3),
        troubles,
        _notes(stream),
    )


def _finding(stream: Stream, law: str) -> LawFinding:
    times = stream.exercised[law]
    if law in stream.breaches:
        return LawFinding("broken", times, stream.breaches[law].reason)
    if law not in JUDGED:
        return LawFinding(
            "unknown", 0, "a stream of KV events names content by hash, and shows neither blocks, block tables, counts nor requests"
        )
    if not times:
        return LawFinding("unknown", 0, "nothing that happened in it put this law to the test")
    return LawFinding("proved", times, _LIMITS[law])


_LIMITS: Final = {
    "hit-is-true-prefix": "as far as hashes tell: no hash stood for two prefixes at once; which hits there were is not shown",
    "published-is-committed": "as far as lengths tell: only whole blocks were published; whether their passes had run is not shown",
    "events-replay-index": "as far as a replay tells: nothing was removed that was not stored; the index itself is not shown",
}


def _notes(stream: Stream) -> list[str]:
    counts = ", ".join(f"{stream.counts[kind]:,} {kind}" for kind in KINDS)
    notes = [f"{counts}; at most {stream.most:,} hashes were stored at once."]
    if stream.removed_unknown and not stream.known_from_empty:
        notes.append(f"{stream.removed_unknown:,} removals name a hash that this stream never stored: it may begin after the engine did.")
    if stream.two_namespaces:
        notes.append(
            f"{stream.two_namespaces:,} times a stored hash was stored again for another adapter or salt: whoever routes by these hashes cannot tell the two apart."
        )
    return notes


def is_event_stream(path: Path) -> bool:
    """Whether the file begins as a stream of KV events does."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    return b'"kvproof"' not in start.split(b"\n", 1)[0] and any(kind.encode() in start for kind in KINDS)


def events_of(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number of its item from 1, event) of every event in the file. Raises BadTrace at what is none."""
    for place, found in _objects(path):
        try:
            if isinstance(found, Exception):
                raise ValueError(str(found))
            yield from ((place, event) for event in list(_events(found)))
        except (ValueError, TypeError) as error:
            raise BadTrace(f"{path}: item {place} is no KV event ({error}); `kvproof audit --tolerant {path}` judges the rest.") from error


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """(number from 1, object) of everything in the file; an exception in place of what cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(1) in (b"{", b"[")
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error
    yield from _json_lines(path) if text else _msgpack(path)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield number, error


def _msgpack(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import msgpack
    except ImportError:
        raise BadTrace(f"{path} is msgpack, and the package that reads streams of it is missing; pip install 'kvproof[events]'.") from None
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="replace")
    number = 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            unpacker.feed(data)
            while True:
                number += 1
                try:
                    yield number, unpacker.unpack()
                except msgpack.OutOfData:
                    number -= 1
                    break
                except (ValueError, msgpack.UnpackException) as error:
                    yield number, error
                    return
        if unpacker.tell() < file.tell():
            yield number + 1, ValueError("the file ends in the middle of it")


def _events(found: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 -- whatever was in the file
    """The events of a batch, or the one event that it is."""
    if isinstance(found, Mapping):
        if "events" in found:
            for event in found["events"]:
                yield from _events(event)
            return
        kind = next((found[key] for key in ("type", "event_type", "kind") if key in found), None)
        yield {**found, "type": kind}
    elif isinstance(found, Sequence) and not isinstance(found, str | bytes) and found:
        if isinstance(found[0], str):
            yield _named(found)
            return
        if len(found) < 2 or not isinstance(found[1], Sequence):
            raise ValueError("it is neither a batch, which is [time, events], nor an event")
        for event in found[1]:
            yield from _events(event)
    else:
        raise ValueError("it is neither a batch nor an event")


def _named(event: Sequence[Any]) -> dict[str, Any]:
    """An event that was sent as an array."""
    if event[0] != "BlockStored":
        return dict(zip(("type", "block_hashes", "medium", "group_idx"), event, strict=False))
    named = {"type": event[0], **dict(zip(STORED_FIELDS, event[1:], strict=False))}
    # Then vLLM sends lora_name, extra_keys, group_idx, ..., and SGLang cache_salt, session_id, lora_name: told apart by what they are.
    rest = [*event[1 + len(STORED_FIELDS) :], None, None, None][:3]
    named["salt_or_adapter"] = rest[0]
    named["extra_keys"] = rest[1] if isinstance(rest[1], Sequence) and not isinstance(rest[1], str) else None
    named["group_idx"] = rest[2] if isinstance(rest[2], int) else None
    named["lora_name"] = rest[2] if isinstance(rest[2], str) else None
    return named


def key_of(name: object, event: Mapping[str, Any]) -> Key:
    """What a hash of an event is stored under. Raises ValueError."""
    if not isinstance(name, int | str | bytes):
        raise ValueError(f"a block hash is {name!r}; hashes are integers or bytes")
    return name, event.get("medium"), event.get("group_idx")


def _namespace(event: Mapping[str, Any], at: int) -> str:
    extra = event.get("extra_keys")
    own = extra[at] if isinstance(extra, Sequence) and at < len(extra) else None
    return repr((event.get("lora_id"), event.get("lora_name"), event.get("cache_salt"), event.get("salt_or_adapter"), own))


def _list(event: Mapping[str, Any], field: str) -> Sequence[Any]:
    value = event.get(field)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{field} is {value!r}; it must be a list")
    return value


def shown_hash(name: object) -> str:
    """A hash in words."""
    return name.hex() if isinstance(name, bytes) else str(name)
