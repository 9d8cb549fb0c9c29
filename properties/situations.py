"""Abstract situations: what happened, and under which law-relevant circumstance. `copy / while a step is open` is one.

    watcher = Watcher(lockstep)
    if lockstep.do(op):
        watcher.note(op)
    watcher.reached                       # for each event, a bit set of circumstances
    names(watcher.reached)                # the same as words

Ownership bugs need two facts at once: a match alone is harmless, and so is an eviction, but a match of what was evicted a moment ago is not. So a situation is a pair, and a
program is worth keeping if it reaches a pair that no program reached before. The same pairs are the labels that the Hypothesis machine gives to `event`, and their number
is what it gives to `target`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit, Outcome, OutOfBlocksSeen, RefusedSeen
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence as Request
from kvproof.properties.lockstep import Lockstep

Reached: TypeAlias = list[int]
"""For each event, by its place in EVENTS, the bit set of the circumstances under which it happened, by their places in CIRCUMSTANCES."""

RECENT: Final = 3
"""How many operations back an event counts as having happened a moment ago."""

# -- the facts -------------------------------------------------------------------------------------------------------------------------------

_ANY: Final = ""

_STANDING: Final[dict[str, str]] = {
    "with nothing else going on": _ANY,
    "while a step is open": "steps",
    "while two steps are open": "steps",
    "while a pass waits for its launch": "steps",
    "while a released sequence is in flight": "steps",
    "while released blocks wait for device work": "steps",
    "while drafts are out": "drafts",
    "while a block is shared": "fork|prefix",
    "while three sequences share a block": "fork|prefix",
    "while a sequence is swapped out": "swap",
    "while no block is free without eviction": "prefix",
    "while no block is left": _ANY,
    "while sequences of two namespaces live": "namespace_fields",
}
"""Circumstances of the whole cache, and the capability that each needs."""

_LATELY: Final[dict[str, str]] = {
    "just after a matchable block was handed out": "prefix",
    "just after a pass found no room": _ANY,
    "just after a preemption": _ANY,
    "just after a release in flight": "steps",
    "just after a rejection": "drafts",
    "just after a truncation": "truncate",
    "just after a fork": "fork",
    "just after an eviction or a reset": "evict|reset",
    "just after a swap": "swap",
}
"""Circumstances of the last few operations."""

_OWN: Final[dict[str, str]] = {
    "on an open block": _ANY,
    "on a shared open block": "fork|prefix",
    "on a whole block": _ANY,
    "on a sequence that was preempted": _ANY,
    "on a sequence that adopted a prefix": "prefix",
    "on a sequence that was forked": "fork",
    "on a sequence that had drafts rejected": "drafts",
    "on a sequence that was truncated": "truncate",
    "on a sequence that was swapped": "swap",
}
"""Circumstances of the sequence that the operation is about, before the operation."""

CIRCUMSTANCES: Final[tuple[str, ...]] = (*_STANDING, *_LATELY, *_OWN)

_HELD: Final = "held"
_FRESH: Final = "fresh"

_EVENTS: Final[dict[str, tuple[str, str]]] = {
    "admit": (_ANY, _ANY),
    "match that misses": ("prefix", _FRESH),
    "match that hits": ("prefix", _FRESH),
    "first extend without a hit": (_ANY, _FRESH),
    "first extend that adopts": ("prefix", _FRESH),
    "extend within its blocks": (_ANY, _HELD),
    "extend into new blocks": (_ANY, _HELD),
    "extend with drafts": ("drafts", _HELD),
    "extend that finds no room": (_ANY, _HELD),
    "copy": ("fork|prefix", _HELD),
    "handing out a matchable block": ("prefix", _HELD),
    "repointing another table": (_ANY, _HELD),
    "commit": (_ANY, _HELD),
    "commit that accepts all drafts": ("drafts", _HELD),
    "commit that accepts some drafts": ("drafts", _HELD),
    "commit that accepts no draft": ("drafts", _HELD),
    "publishing a block": ("prefix", _HELD),
    "append": (_ANY, _HELD),
    "truncate within a block": ("truncate", _HELD),
    "truncate to a boundary": ("truncate", _HELD),
    "fork within a block": ("fork", _HELD),
    "fork at a boundary": ("fork", _HELD),
    "fork of what has computed nothing": ("fork", _FRESH),
    "fork that finds no room": ("fork", _HELD),
    "final release": (_ANY, _HELD),
    "preemption": (_ANY, _HELD),
    "release before the launch": ("steps", _HELD),
    "release in flight": ("steps", _HELD),
    "repeated release": (_ANY, _ANY),
    "begin of a step": ("steps", _ANY),
    "end of a step": ("steps", _ANY),
    "end of a step whose sequence is gone": ("steps", _ANY),
    "evict": ("evict", _ANY),
    "evict that drops nothing": ("evict", _ANY),
    "reset": ("reset", _ANY),
    "reset that cannot": ("reset", _ANY),
    "swap out": ("swap", _HELD),
    "swap in": ("swap", _HELD),
    "swap that cannot": ("swap", _HELD),
    "refusal": (_ANY, _HELD),
}
"""Event -> the capability that it needs, and what its sequence has: something computed (held), nothing (fresh), or there is none."""

EVENTS: Final[tuple[str, ...]] = tuple(_EVENTS)

_BIT: Final = {name: 1 << place for place, name in enumerate(CIRCUMSTANCES)}
_PLACE: Final = {name: place for place, name in enumerate(EVENTS)}

_ALONE: Final = _BIT["with nothing else going on"]
_OPEN_BLOCK: Final = _BIT["on an open block"]
_SHARED_OPEN_BLOCK: Final = _BIT["on a shared open block"]
_WHOLE_BLOCK: Final = _BIT["on a whole block"]

_IMPOSSIBLE: Final = frozenset(
    {
        ("extend within its blocks", "on a whole block"),
        ("fork within a block", "on a whole block"),
        ("fork at a boundary", "on an open block"),
        ("fork at a boundary", "on a shared open block"),
        ("commit that accepts all drafts", "with nothing else going on"),
        ("commit that accepts some drafts", "with nothing else going on"),
        ("commit that accepts no draft", "with nothing else going on"),
        ("release in flight", "with nothing else going on"),
        ("release before the launch", "with nothing else going on"),
        ("end of a step", "with nothing else going on"),
        ("end of a step whose sequence is gone", "with nothing else going on"),
        ("swap in", "with nothing else going on"),
    }
)
"""Pairs that contradict themselves: drafts that are committed are out, a step that ends is open, a whole block is not open."""


# -- names -----------------------------------------------------------------------------------------------------------------------------------


def nothing_reached() -> Reached:
    """No situation yet."""
    return [0] * len(EVENTS)


def name(event: str, circumstance: str) -> str:
    """One situation as words."""
    return f"{event} / {circumstance}"


def names(reached: Sequence[int]) -> list[str]:
    """The situations in `reached` as words, in the order of the events."""
    return [name(EVENTS[place], what) for place, mask in enumerate(reached) if mask for what, bit in _BIT.items() if mask & bit]


def masks(situations: Iterable[str]) -> Reached:
    """The reverse of `names`. Words that this release does not know are left out, so that the records of another release can be read."""
    reached = nothing_reached()
    for situation in situations:
        event, _, circumstance = situation.partition(" / ")
        if event in _PLACE and circumstance in _BIT:
            reached[_PLACE[event]] |= _BIT[circumstance]
    return reached


def possible(capabilities: Capabilities) -> Iterator[tuple[str, str]]:
    """Every (event, circumstance) that a cache with these capabilities might reach. A few may still contradict themselves on a given cache."""
    for event, (needed, subject) in _EVENTS.items():
        if not _claimed(capabilities, needed):
            continue
        own = {_HELD: _OWN, _FRESH: {what: need for what, need in _OWN.items() if what.startswith("on a sequence")}, _ANY: {}}[subject]
        for circumstance, need in (_STANDING | _LATELY | own).items():
            if _claimed(capabilities, need) and (event, circumstance) not in _IMPOSSIBLE:
                yield event, circumstance


def _claimed(capabilities: Capabilities, needed: str) -> bool:
    return needed == _ANY or any(getattr(capabilities, need) for need in needed.split("|"))


# -- watching --------------------------------------------------------------------------------------------------------------------------------


class Watcher:
    """Notes the situations of one program, operation by operation."""

    def __init__(self, lockstep: Lockstep, known: Reached | None = None) -> None:
        """`known`: situations that are not new."""
        self.lockstep = lockstep
        self.reached = nothing_reached()
        self.frontier = 0
        """How many operations it took until the last situation that was not known."""
        self._known = known or nothing_reached()
        self._standing = _ALONE
        self._tails: dict[int, int] = {}
        """sequence -> the circumstances of its last block, as far as they were asked for."""
        self._past: dict[int, int] = {}
        """sequence -> what happened to it so far, as circumstances."""
        self._lately = [0] * RECENT

    def note(self, op: Op) -> None:
        """`op` has run on the lockstep driver that is watched."""
        spec = self.lockstep.spec
        happened = [_PLACE[event] for event in _events(spec, op, self.lockstep.last_outcome)]
        subject = getattr(op, "seq", None) if not isinstance(op, Fork) else op.parent
        circumstances = self._standing
        for lately in self._lately:
            circumstances |= lately
        if subject is not None and not isinstance(op, Admit):
            circumstances |= self._past.get(subject, 0) | self._tails.get(subject, 0)
        for place in happened:
            here = circumstances & _MEANT[place]
            if here & ~self._known[place]:
                self.frontier = len(self.lockstep.ops)
            self.reached[place] |= here
        self._remember(op, subject, happened)
        self._standing = _standing(spec)
        self._tails = {sequence.seq: _tail(spec, sequence) for sequence in spec.live.values() if sequence.computed}

    def _remember(self, op: Op, subject: int | None, happened: list[int]) -> None:
        lately = 0
        for place in happened:
            lately |= _LEAVES.get(place, 0)
            if subject is not None and place in _MARKS:
                self._past[subject] = self._past.get(subject, 0) | _MARKS[place]
        if isinstance(op, Fork):
            self._past[op.child] = self._past.get(op.parent, 0)
        self._lately.pop(0)
        self._lately.append(lately)


def _meant() -> list[int]:
    """For each event the circumstances that mean something for it: those of a sequence only where it is about one."""
    general = sum(_BIT[what] for what in (*_STANDING, *_LATELY))
    own = sum(_BIT[what] for what in _OWN)
    past = own & ~(_OPEN_BLOCK | _SHARED_OPEN_BLOCK | _WHOLE_BLOCK)
    return [general | {_HELD: own, _FRESH: past, _ANY: 0}[subject] for _, subject in _EVENTS.values()]


_MEANT: Final = _meant()

_LEAVES: Final = {
    _PLACE[event]: _BIT[circumstance]
    for event, circumstance in {
        "handing out a matchable block": "just after a matchable block was handed out",
        "extend that finds no room": "just after a pass found no room",
        "fork that finds no room": "just after a pass found no room",
        "preemption": "just after a preemption",
        "release in flight": "just after a release in flight",
        "commit that accepts some drafts": "just after a rejection",
        "commit that accepts no draft": "just after a rejection",
        "truncate within a block": "just after a truncation",
        "truncate to a boundary": "just after a truncation",
        "fork within a block": "just after a fork",
        "fork at a boundary": "just after a fork",
        "evict": "just after an eviction or a reset",
        "reset": "just after an eviction or a reset",
        "swap out": "just after a swap",
        "swap in": "just after a swap",
    }.items()
}
"""What an event leaves behind for the next few operations."""

_MARKS: Final = {
    _PLACE[event]: _BIT[circumstance]
    for event, circumstance in {
        "preemption": "on a sequence that was preempted",
        "first extend that adopts": "on a sequence that adopted a prefix",
        "fork within a block": "on a sequence that was forked",
        "fork at a boundary": "on a sequence that was forked",
        "commit that accepts some drafts": "on a sequence that had drafts rejected",
        "commit that accepts no draft": "on a sequence that had drafts rejected",
        "truncate within a block": "on a sequence that was truncated",
        "truncate to a boundary": "on a sequence that was truncated",
        "swap out": "on a sequence that was swapped",
    }.items()
}
"""What an event leaves behind for its sequence."""


def _standing(spec: Spec) -> int:
    """The circumstances of the whole cache as it stands now."""
    mask = _BIT["while a step is open"] if spec.steps else 0
    if len(spec.steps) > 1:
        mask |= _BIT["while two steps are open"]
    if spec.unowned:
        mask |= _BIT["while a released sequence is in flight"]
    if spec.awaited:
        mask |= _BIT["while released blocks wait for device work"]
    for out in spec.passes:
        if out.drafts:
            mask |= _BIT["while drafts are out"]
        if not out.launched:
            mask |= _BIT["while a pass waits for its launch"]
    return mask | _sharing(spec) | _company(spec) or _ALONE


def _sharing(spec: Spec) -> int:
    """Who holds the blocks, and how many are left."""
    owners = spec.owners
    most = max(map(len, owners.values()), default=0)
    mask = _BIT["while a block is shared"] if most > 1 else 0
    if most > 2:
        mask |= _BIT["while three sequences share a block"]
    left = spec.usable - len(owners)
    if left <= 0:
        return mask | _BIT["while no block is left"]
    cached = spec.seen.books.cached
    if cached and left <= len(cached) and left <= len(cached - owners.keys()):
        mask |= _BIT["while no block is free without eviction"]
    return mask


def _company(spec: Spec) -> int:
    """The other sequences."""
    mask, first = 0, None
    for sequence in spec.live.values():
        if sequence.swapped:
            mask |= _BIT["while a sequence is swapped out"]
        if first is None:
            first = sequence.namespace
        elif sequence.namespace is not first and sequence.namespace != first:
            mask |= _BIT["while sequences of two namespaces live"]
    return mask


def _tail(spec: Spec, sequence: Request) -> int:
    """How the last computed block of a sequence stands."""
    size = spec.block_sizes[0]
    if sequence.computed % size == 0:
        return _WHOLE_BLOCK
    table, index = spec.tables(sequence)[0], sequence.computed // size
    block = table[index] if index < len(table) else None
    shared = block is not None and len(spec.owners[block]) > 1
    return _OPEN_BLOCK | (_SHARED_OPEN_BLOCK if shared else 0)


# -- what happened ---------------------------------------------------------------------------------------------------------------------------


def _events(spec: Spec, op: Op, outcome: Outcome) -> Iterator[str]:
    """The events of one operation that has run."""
    if isinstance(outcome, RefusedSeen):
        yield "refusal"
        return
    yield from _MEANINGS[type(op)](spec, op, outcome)
    seen = spec.seen
    if seen.newly_held and seen.last.cached is not None and any(seen.was_cached(block) for block in seen.newly_held):
        yield "handing out a matchable block"
    if len(seen.was) > 1:
        yield "repointing another table"
    if seen.last.cached is not None and seen.last.cached.joined:
        yield "publishing a block"


def _admit(spec: Spec, op: Admit, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001 -- every operation's events are asked for in the same way
    yield "admit"


def _match(spec: Spec, op: Match, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "match that hits" if isinstance(outcome, Hit) and outcome.tokens else "match that misses"


def _extend(spec: Spec, op: Extend, outcome: Outcome) -> Iterator[str]:
    if isinstance(outcome, OutOfBlocksSeen):
        yield "extend that finds no room"
        return
    assert isinstance(outcome, Grant)
    out = spec.live[op.seq].out
    if outcome.adopted:
        yield "first extend that adopts"
    elif out is not None and out.start == 0:
        yield "first extend without a hit"
    else:
        yield "extend into new blocks" if op.seq in spec.seen.was else "extend within its blocks"
    if op.drafts:
        yield "extend with drafts"
    if outcome.copies:
        yield "copy"


def _commit(spec: Spec, op: Commit, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    drafts = next((len(out.drafts) for out in spec.agenda.finished if out.seq == op.seq), 0)
    if not drafts:
        yield "commit"
    else:
        yield f"commit that accepts {'all drafts' if op.accepted == drafts else 'some drafts' if op.accepted else 'no draft'}"


def _append(spec: Spec, op: Append, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "append"


def _truncate(spec: Spec, op: Truncate, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "truncate within a block" if op.length % spec.block_sizes[0] else "truncate to a boundary"


def _fork(spec: Spec, op: Fork, outcome: Outcome) -> Iterator[str]:
    computed = spec.live[op.parent].computed
    if isinstance(outcome, OutOfBlocksSeen):
        yield "fork that finds no room"
    elif not computed:
        yield "fork of what has computed nothing"
    else:
        yield "fork within a block" if computed % spec.block_sizes[0] else "fork at a boundary"
    if isinstance(outcome, Grant) and outcome.copies:
        yield "copy"


def _release(spec: Spec, op: Release, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    if spec.idle_release:
        yield "repeated release"
        return
    yield "preemption" if op.reason == "preempt" else "final release"
    if any(out.seq == op.seq and not out.launched for out in spec.agenda.finished):
        yield "release before the launch"
    elif any(out.seq == op.seq for step in spec.steps for out in step):
        yield "release in flight"


def _begin(spec: Spec, op: BeginStep, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "begin of a step"


def _end(spec: Spec, op: EndStep, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "end of a step whose sequence is gone" if spec.agenda.finished else "end of a step"


def _evict(spec: Spec, op: Evict, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "evict" if outcome else "evict that drops nothing"


def _reset(spec: Spec, op: Reset, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "reset" if outcome else "reset that cannot"


def _swap(spec: Spec, op: SwapOut | SwapIn, outcome: Outcome) -> Iterator[str]:  # noqa: ARG001
    yield "swap that cannot" if outcome is False else "swap out" if isinstance(op, SwapOut) else "swap in"


_MEANINGS: Final[dict[type[Op], Callable[..., Iterator[str]]]] = {
    Admit: _admit,
    Match: _match,
    Extend: _extend,
    Commit: _commit,
    Append: _append,
    Truncate: _truncate,
    Fork: _fork,
    Release: _release,
    BeginStep: _begin,
    EndStep: _end,
    Evict: _evict,
    Reset: _reset,
    SwapOut: _swap,
    SwapIn: _swap,
}
