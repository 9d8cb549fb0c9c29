"""Pictures of the KV events that vLLM and SGLang publish: the index as a replay of the stream gives it.

    document = event_document(Path("events.jsonl"))

A stream names content by hash and shows no block. So each stored hash is given a place of its own, the lowest that is free, and these places are what the map shows as blocks: matchable while the hash is
stored, free when it is not. Their slots show the tokens, as far as the stream tells them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvproof.fuzz.auditor import Breach
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.picture.differences import accusation
from kvproof.fuzz.reports.picture.document import Document, GroupShape, Picture, Tree
from kvproof.fuzz.reports.picture.film import CACHED, FREE, NOBODY, Frame, slot_runs
from kvproof.fuzz.traces.format import BadTrace
from kvproof.fuzz.traces.kv_events import Key, Stored, Stream, events_of, key_of, shown_hash
from kvproof.models.evidence import Evidence
from kvproof.models.spec import Violation

MOST_EVENTS: Final = 300_000
"""Of a longer stream the beginning is drawn: a browser holds that many steps at ease."""

MOST_HASHES: Final = 6
"""How many hashes of one event are named."""

MOST_STRIDE: Final = 1024
"""Tokens of one place that are shown: no engine has larger blocks."""

KINDS: Final = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}


class EventFilm:
    """Takes one frame for each event."""

    def __init__(self, stride: int) -> None:
        self.stream = Stream()
        self.stride = stride
        """Tokens of one place."""
        self.frames: list[Frame] = []
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.answers: list[str] = []
        self.places = 0
        """How many places were ever taken at once."""
        self.accused: tuple[int, ...] = ()
        """The places of the hashes in the last event."""
        self.parents, self.tokens, self.roots = [0], [-1], {}  # type: list[int], list[int], dict[int, str]
        self._nodes: dict[tuple[int, object], int] = {}
        self._place: dict[Key, int] = {}
        self._end: dict[Key, int] = {}
        """The prefix that ends in each stored hash."""
        self._free: list[int] = []
        self._generations: list[int] = []
        self._slots: list[int] = []

    def take(self, event: Mapping[str, Any], place: int) -> None:
        """Replay one event and film it. Raises ValueError for what is no event."""
        kind = str(event.get("type"))
        keys = [] if kind == "AllBlocksCleared" else [key_of(name, event) for name in event.get("block_hashes") or ()]
        before = {key: times for key in keys if (times := self._times(key))}
        self.stream.take(event, place)
        frame = Frame()
        for key in dict.fromkeys(keys if kind in ("BlockStored", "BlockRemoved") else list(self._place)):
            if self._times(key) != before.get(key, 0) or key not in self.stream.index:
                self._move(key, frame)
        self.frames.append(frame)
        self.kinds.append(KINDS[kind])
        self.texts.append(_text(KINDS[kind], event, keys))
        self.answers.append("")
        self.accused = tuple(dict.fromkeys(self._place[key] for key in keys if key in self._place))

    def _times(self, key: Key) -> int:
        stored = self.stream.index.get(key)
        return stored.times if stored else 0

    def _move(self, key: Key, frame: Frame) -> None:
        """A hash is stored, stored once more, or not any more."""
        stored = self.stream.index.get(key)
        at = self._place.get(key)
        if stored is None:
            if at is not None:
                self._leave(key, at, frame)
            return
        if at is None:
            at = self._enter(key, stored, frame)
        frame.b += (at, CACHED, stored.times, self._generations[at], NOBODY)

    def _enter(self, key: Key, stored: Stored, frame: Frame) -> int:
        if self._free:
            at = heapq.heappop(self._free)
        else:
            at, self.places = self.places, self.places + 1
            self._generations.append(0)
            self._slots += [0] * self.stride
        self._place[key] = at
        self._generations[at] += 1
        frame.c.append(at + 1)
        nodes = self._prefix(key, stored)
        frame.m += slot_runs(self._slots, at * self.stride, (nodes + [0] * self.stride)[: self.stride], 1)
        return at

    def _leave(self, key: Key, at: int, frame: Frame) -> None:
        del self._place[key]
        self._end.pop(key, None)
        heapq.heappush(self._free, at)
        frame.c.append(-at - 1)
        frame.m += slot_runs(self._slots, at * self.stride, [0] * self.stride, 1)
        frame.b += (at, FREE, 0, self._generations[at], NOBODY)

    def _prefix(self, key: Key, stored: Stored) -> list[int]:
        """The interned prefixes of the tokens of a hash; none where the stream does not tell them."""
        content = stored.content
        if content is None:
            return []
        above = None if content.parent is None else self._end.get((content.parent, *key[1:]))
        node = above if above is not None else self._node(0, self._root(content.parent, content.namespace))
        nodes = []
        for token in content.tokens:
            node = self._node(node, token)
            nodes.append(node)
        self._end[key] = node
        return nodes

    def _root(self, parent: object, namespace: str) -> str:
        return namespace if parent is None else f"{namespace} after {shown_hash(parent)}, which is not stored".strip()

    def _node(self, above: int, token: object) -> int:
        number = self._nodes.get((above, token))
        if number is None:
            number = self._nodes[above, token] = len(self.parents)
            self.parents.append(above)
            self.tokens.append(-1 if above == 0 else int(token))  # type: ignore[call-overload]  # a token is an integer
            if above == 0:
                self.roots[number] = str(token)
        return number


def film_events(path: Path) -> Picture:
    """The picture of a stream, up to the first broken law. Raises BadTrace where an item is no event."""
    film = EventFilm(_stride(path))
    note = ""
    for place, event in events_of(path):
        try:
            film.take(event, place)
        except (ValueError, TypeError) as error:
            raise BadTrace(f"{path}: item {place} is no KV event ({error}); `kvproof audit --tolerant {path}` judges the rest.") from error
        if film.stream.breaches:
            break
        if len(film.frames) >= MOST_EVENTS:
            note = f"The stream goes on: its first {len(film.frames):,} events are drawn. "
            break
    picture = _picture(path, film)
    picture.note = f"{note}A stream shows no blocks: b0, b1, ... are the places of stored hashes."
    for breach in film.stream.breaches.values():
        row = len(film.frames) - 1
        picture.faults = [accusation(_violation(breach, row, film.accused), row, picture.numbers)]
        break
    return picture


def event_document(path: Path) -> Document:
    """The page of one stream."""
    return Document(path.name, [film_events(path)])


def _violation(breach: Breach, row: int, accused: tuple[int, ...]) -> Violation:
    return Violation(breach.law, row, breach.reason, Evidence(accused))


def _stride(path: Path) -> int:
    """The largest block of the stream, in tokens; every slot of a picture is drawn, so it is looked for first."""
    sizes = (event.get("block_size") for _, event in events_of(path))
    return min(MOST_STRIDE, max((size for size in sizes if isinstance(size, int)), default=1) or 1)


def _picture(path: Path, film: EventFilm) -> Picture:
    kind_names = sorted(set(film.kinds))
    back = [node - parent if parent else 0 for node, parent in enumerate(film.parents)]
    return Picture(
        path.name,
        "a stream of KV events",
        max(1, film.places),
        film.stride,
        [GroupShape("full", film.stride, None)],
        [],
        ["cached"],
        kind_names,
        [kind_names.index(kind) for kind in film.kinds],
        film.texts,
        film.answers,
        list(range(len(film.frames))),
        film.frames,
        Tree(back, film.tokens, film.roots),
    )


def _text(kind: str, event: Mapping[str, Any], keys: list[Key]) -> str:
    """An event in a few words: `stored 11 12 after 10`."""
    if not keys:
        return kind
    named = " ".join(shown_hash(key[0]) for key in keys[:MOST_HASHES])
    more = f" ... ({wording.counted(len(keys), 'hash')} in all)" if len(keys) > MOST_HASHES else ""
    parent = event.get("parent_block_hash")
    after = f" after {shown_hash(parent)}" if kind == "stored" and parent is not None else ""
    medium = f" on {event['medium']}" if event.get("medium") else ""
    return f"{kind} {named}{more}{after}{medium}"
