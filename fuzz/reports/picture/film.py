"""A run as a film: for each operation, what it changed in the cache and in the model beside it.

    film = Film(spec, num_blocks=8)
    spec.apply(op, outcome, seen)
    film.take("extend", "extend 0 by 2", "", seen)

Only changes are kept, so a film of 100,000 operations is small; whoever shows it replays them. Tables and books are those that were seen of
the cache; sequences and ghosts are those of the spec.

A *content* is one integer, as in `kvproof.models.memory`: an interned prefix times the number of groups, plus the group. The *generation*
of a block says how often it was handed out: `b7#3` is block 7, handed out for the third time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from kvproof.models.ops import Namespace
from kvproof.models.prefixes import PrefixTree
from kvproof.models.spec import Spec
from kvproof.models.state import Books, Seen, Table, Tables
from kvproof.models.state import Sequence as Known

FREE: Final = 0
CACHED: Final = 1
HELD: Final = 2
SHARED: Final = 3
RETIRING: Final = 4
NULL: Final = 5
MISSING: Final = 6
CONFLICT: Final = 7

STATES: Final = ("free", "cached", "held", "shared", "retiring", "null", "missing", "conflict")
"""The states of a block by their numbers. Cached: nobody holds it and its content is matchable. Missing: the books have it nowhere.
Conflict: somebody holds it and it is on the free list.
"""

NOBODY: Final = -1
"""The holder of a block that no table ever listed."""

NO_BLOCK: Final = -1
"""An entry of a block table that was skipped."""

SWAPPED: Final = 1
"""Flag of a sequence: it is on the slower tier."""

Out: TypeAlias = tuple[int, int, int, int, int]
"""The pass of a sequence that is out: start, one past its known tokens, one past its drafts, interned prefix of the last draft, launched."""


State: TypeAlias = tuple[int, int, int, int, Out | None]
"""What a sequence is besides its tables: known, computed, node, flags, out, as in SequenceChange."""


class SequenceChange(msgspec.Struct, frozen=True, array_like=True):
    """A sequence after an operation that changed it. `node` is the interned prefix of its last known token.

    `tables`: for each group, how many leading entries were kept, and then the new ones.
    """

    seq: int
    known: int
    computed: int
    node: int
    flags: int
    out: Out | None
    tables: tuple[tuple[int, ...], ...]


class Frame(msgspec.Struct, omit_defaults=True):
    """What one operation changed. The names are one letter each because there are many frames."""

    s: list[SequenceChange] = []
    """Sequences that changed."""
    x: list[int] = []
    """Sequences that are gone."""
    m: list[int] = []
    """Ghosts, three numbers each: first slot, content, how many slots. The content of the next slot is one prefix further; 0 is empty."""
    b: list[int] = []
    """Blocks, five numbers each: block, state, reference count, generation, holder (the last one, where nobody holds it)."""
    f: list[int] = []
    """The free list: where it changed, how many entries went, and the entries that came."""
    c: list[int] = []
    """The matchable set: block + 1 for one that came, the same below zero for one that went."""
    r: list[int] = []
    """The retiring set, in the same way."""
    o: int | None = None
    """How many steps are open, where that changed."""


class Film:
    """Takes one frame for each operation that `spec` has judged."""

    def __init__(self, spec: Spec, *, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.groups = len(spec.block_sizes)
        self.prefixes = Prefixes(spec.tree)
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.answers: list[str] = []
        self.numbers: list[int | None] = []
        """The number of the operation as violations count them; None for one that was skipped."""
        self.frames: list[Frame] = []
        self.books = Books()
        """As they were last seen."""
        self.owners: dict[int, dict[int, int]] = {}
        """block -> sequence -> how often its tables list the block."""
        self._sequences: dict[int, tuple[State, Tables]] = {}
        self._blocks = [(NULL if block in spec.null_blocks else FREE, 0, 0, NOBODY) for block in range(num_blocks)]
        self._slots = [0] * len(spec.memory.slots)
        self._open = 0
        self._ran = 0

    def tables(self, seq: int) -> Tables:
        """The block tables last seen of a live sequence."""
        known = self._sequences.get(seq)
        return known[1] if known else ((),) * self.groups

    def skip(self, kind: str, text: str, answer: str) -> None:
        """An operation that did not run: it changes nothing."""
        self._add(kind, text, answer, None, Frame())

    def take(self, kind: str, text: str, answer: str, seen: Seen | None) -> None:
        """One operation, after the spec has judged it. `seen` is what the cache showed after it, None if it never answered."""
        frame = Frame()
        if seen is not None:
            self._take_slots(frame)
            changed = self._take_sequences(frame, seen.tables)
            changed |= self._take_books(frame, seen.books)
            self._take_blocks(frame, changed)
            if len(self.spec.steps) != self._open:
                frame.o = self._open = len(self.spec.steps)
        self._add(kind, text, answer, self._ran, frame)
        self._ran += 1

    def _add(self, kind: str, text: str, answer: str, number: int | None, frame: Frame) -> None:
        self.kinds.append(kind)
        self.texts.append(text)
        self.answers.append(answer)
        self.numbers.append(number)
        self.frames.append(frame)

    # -- one part of the state each -------------------------------------------------------------------------------------------------------

    def _take_slots(self, frame: Frame) -> None:
        memory, groups = self.spec.memory, self.groups
        for block in sorted(memory.touched):
            first = block * memory.stride
            now = [self.prefixes.content(content, groups) for content in memory.slots[first : first + memory.stride]]
            frame.m += slot_runs(self._slots, first, now, groups)

    def _take_sequences(self, frame: Frame, seen: Mapping[int, Tables]) -> set[int]:
        """Record the sequences that changed; the blocks whose holders changed."""
        blocks: set[int] = set()
        for seq, known in self.spec.live.items():
            tables = seen.get(seq) or ((),) * self.groups
            state = self._state(known)
            old = self._sequences.get(seq)
            if old is not None and old[0] == state and old[1] == tables:
                continue
            before = old[1] if old else ((),) * self.groups
            deltas = tuple(table_delta(a, b) for a, b in zip(before, tables, strict=True))
            frame.s.append(SequenceChange(seq, *state, deltas))
            self._sequences[seq] = (state, tables)
            blocks |= self._relist(seq, before, tables)
        for seq in self._sequences.keys() - self.spec.live.keys():
            frame.x.append(seq)
            blocks |= self._relist(seq, self._sequences.pop(seq)[1], ((),) * self.groups)
        return blocks

    def _state(self, known: Known) -> State:
        out = known.out
        node = self.prefixes.node(known.path[-1]) if known.path else 0
        shown = None
        if out is not None:
            draft = self.prefixes.node(out.path[-1]) if out.path else 0
            shown = (out.start, out.known_end, out.end, draft, int(out.launched))
        return len(known.known), known.computed, node, SWAPPED if known.swapped else 0, shown

    def _relist(self, seq: int, before: Tables, tables: Tables) -> set[int]:
        """Keep up who lists which block; the blocks of which that changed."""
        changed: set[int] = set()
        for old, new in zip(before, tables, strict=True):
            kept = _common(old, new)
            for entries, times in ((old[kept:], -1), (new[kept:], 1)):
                for block in entries:
                    if block is not None:
                        self._list(seq, block, times)
                        changed.add(block)
        return changed

    def _list(self, seq: int, block: int, times: int) -> None:
        holders = self.owners.setdefault(block, {})
        holders[seq] = holders.get(seq, 0) + times
        if not holders[seq]:
            del holders[seq]
        if not holders:
            del self.owners[block]

    def _take_books(self, frame: Frame, new: Books) -> set[int]:
        """Record the lists of the books; the blocks that they say something new about."""
        old = self.books
        if old == new:
            return set()
        self.books = new
        changed = {block for block, _ in _items(old.refcounts) ^ _items(new.refcounts)}
        if old.free != new.free:
            frame.f = splice(old.free or (), new.free or ())
            changed |= set(old.free or ()) ^ set(new.free or ())
        frame.c, frame.r = set_delta(old.cached, new.cached), set_delta(old.retiring, new.retiring)
        changed.update(abs(entry) - 1 for entry in (*frame.c, *frame.r))
        if (old.free is None) != (new.free is None):
            changed |= set(range(self.num_blocks))
        return changed

    def _take_blocks(self, frame: Frame, changed: set[int]) -> None:
        free = set(self.books.free or ())
        for block in sorted(changed | self.spec.memory.touched):
            if not 0 <= block < self.num_blocks:
                continue
            now = self._block(block, free)
            if now != self._blocks[block]:
                self._blocks[block] = now
                frame.b += (block, *now)

    def _block(self, block: int, free: set[int]) -> tuple[int, int, int, int]:
        """(state, reference count, generation, holder) of a block."""
        spec, books = self.spec, self.books
        holders = self.owners.get(block, {})
        before = self._blocks[block][3]
        count = sum(holders.values()) if books.refcounts is None else books.refcounts.get(block, 0)
        holder = before if not holders or before in holders else min(holders)
        if block in spec.null_blocks:
            state = NULL
        elif holders:
            state = CONFLICT if block in free else SHARED if len(holders) > 1 else HELD
        elif block in (books.retiring or ()):
            state = RETIRING
        elif block in (books.cached or ()):
            state = CACHED
        elif books.free is None or block in free:
            state = FREE
        else:
            state = RETIRING if block in spec.pins() else MISSING
        return state, count, spec.memory.generations[block], holder


class Prefixes:
    """Interned prefixes under numbers of the film's own: those of the spec may come to stand for other prefixes in a long run."""

    def __init__(self, tree: PrefixTree) -> None:
        self.parents = [0]
        self.tokens = [-1]
        self.roots: dict[int, Namespace] = {}
        self._tree = tree
        self._numbers: dict[tuple[int, int | Namespace], int] = {}
        self._nodes: dict[int, int] = {}

    def node(self, node: int) -> int:
        """The number of the prefix that `node` stands for in the spec now."""
        way = []
        while node not in self._nodes:
            way.append(node)
            node = self._tree.edge(node)[0]
            if not node:
                break
        above = self._nodes.get(node, 0)
        for below in reversed(way):
            above = self._nodes[below] = self._number(above, below)
        return above

    def content(self, content: int, groups: int) -> int:
        """A content of the spec with the film's number of its prefix."""
        return self.node(content // groups) * groups + content % groups if content else 0

    def _number(self, above: int, node: int) -> int:
        token = self._tree.edge(node)[1]
        key = (above, token if above else self._tree.namespace(node))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.parents)
            self.parents.append(above)
            self.tokens.append(token)
            if not above:
                self.roots[number] = self._tree.namespace(node)
        return number


def slot_runs(slots: list[int], first: int, now: list[int], groups: int) -> list[int]:
    """Where the slots from `first` on are no longer as in `slots`, as runs (slot, content, how many); `slots` is brought up to date."""
    runs: list[int] = []
    if slots[first : first + len(now)] == now:
        return runs
    for slot, content in enumerate(now, first):
        if content == slots[slot]:
            continue
        slots[slot] = content
        if runs and slot == runs[-3] + runs[-1] and content == (runs[-2] + runs[-1] * groups if runs[-2] else 0):
            runs[-1] += 1
        else:
            runs += (slot, content, 1)
    return runs


def table_delta(old: Table, new: Table) -> tuple[int, ...]:
    """How many leading entries were kept, and the entries after them."""
    kept = _common(old, new)
    return (kept, *(NO_BLOCK if block is None else block for block in new[kept:]))


def splice(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Where a list changed, how many entries went there, and the entries that came: [at, gone, *came]."""
    start = _common(old, new)
    most = min(len(old), len(new)) - start
    end = 0
    while end < most and old[-1 - end] == new[-1 - end]:
        end += 1
    return [start, len(old) - end - start, *new[start : len(new) - end]]


def set_delta(old: frozenset[int] | None, new: frozenset[int] | None) -> list[int]:
    """Block + 1 for each that came, -(block + 1) for each that went."""
    old, new = old or frozenset(), new or frozenset()
    return [] if old == new else [block + 1 for block in sorted(new - old)] + [-block - 1 for block in sorted(old - new)]


def _common(old: Sequence[int | None], new: Sequence[int | None]) -> int:
    """The length of the common beginning."""
    if old == new[: len(old)]:
        return len(old)
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _items(counts: Mapping[int, int] | None) -> set[tuple[int, int]]:
    return set(counts.items()) if counts else set()
