"""A run as a film: for each operation, what it changed in the cache and in the model beside it.

    film = Film(spec, num_blocks=8)
    spec.apply(op, outcome, seen)
    film.take(op, "extend 0 by 2", "", seen.books.free)

Only changes are kept, so a film of 100,000 operations is small; whoever shows it replays them. Everything is taken from the spec, which keeps
what was last seen of the cache beside its own sequences and ghosts; but for the order of the free list, which no law asks for.

A *content* is one integer, as in `kvproof.models.memory`: an interned prefix times the number of groups, plus the group. The *generation*
of a block says how often it was handed out: `b7#3` is block 7, handed out for the third time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.traces.format import Free
from kvproof.models.memory import EMPTY
from kvproof.models.observed import Moved
from kvproof.models.ops import Namespace, Op, op_name
from kvproof.models.prefixes import PrefixTree
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence as Known
from kvproof.models.state import Table, Tables

FREE: Final = 0
CACHED: Final = 1
HELD: Final = 2
SHARED: Final = 3
RETIRING: Final = 4
NULL: Final = 5
MISSING: Final = 6
CONFLICT: Final = 7
UNKNOWN: Final = 8
ASIDE: Final = 9

STATES: Final = ("free", "cached", "held", "shared", "retiring", "null", "missing", "conflict", "unknown", "aside")
"""The states of a block by their numbers. Cached: nobody holds it and its content is matchable. Missing: the books have it nowhere.
Conflict: somebody holds it and it is on the free list. Unknown: operations are missing, and nothing that began later holds it.
Aside: a fault before accuses it, so that no law is asked of it any more.
"""

NOBODY: Final = -1
"""The holder of a block that no table ever listed."""

NO_BLOCK: Final = -1
"""An entry of a block table that was skipped."""

SWAPPED: Final = 1
"""Flag of a sequence: it is on the slower tier."""

LEFT_OUT: Final = 2
"""Flag of a sequence: a fault before accuses it, so that no law is asked of it any more."""

Out: TypeAlias = tuple[int, int, int, int, int]
"""The pass of a sequence that is out: start, one past its known tokens, one past its drafts, interned prefix of the last draft, launched."""


SetAside: TypeAlias = tuple[Set[int], Set[int]]
"""The blocks and the sequences that faults accuse."""

NOTHING_ASIDE: Final[SetAside] = (frozenset(), frozenset())


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
    f: list[list[int]] = []
    """The free list, one change after another: where, how many entries went there, and the entries that came."""
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
        """The number of the operation as violations count them; None for one that was skipped, and for a gap."""
        self.frames: list[Frame] = []
        self.books: set[str] = set()
        """Which books the cache has shown so far."""
        self.gaps: list[int] = []
        """Rows in whose place operations are missing."""
        self._sequences: dict[int, tuple[State, Tables]] = {}
        self._out: set[int] = set()
        """Sequences whose pass was out."""
        self._blocks = [(NULL if block in spec.null_blocks else FREE, 0, 0, NOBODY) for block in range(num_blocks)]
        self._generations = [0] * num_blocks
        """How often each block was handed out before the last gap."""
        self._slots = [0] * len(spec.memory.slots)
        self._free: list[int] = []
        self._open = 0
        self._ran = 0
        self._aside: SetAside = NOTHING_ASIDE
        """The blocks and sequences that faults before the next operation have set aside."""
        self._newly_aside: SetAside = NOTHING_ASIDE
        """Those of them that the last operation added."""

    def skip(self, op: Op, text: str, answer: str) -> None:
        """An operation that did not run: it changes nothing."""
        self._add(op, text, answer, None, Frame())

    def unanswered(self, op: Op, text: str) -> None:
        """An operation that ran and never answered: nothing was seen after it."""
        self._add(op, text, "no answer", self._ran, Frame())
        self._ran += 1

    def lose(self, spec: Spec, text: str) -> None:
        """Operations are missing: what is known of the cache is void, and `spec` judges what begins later."""
        frame = Frame(x=sorted(self._sequences), o=0)
        frame.m = [number for block in range(self.num_blocks) for number in self._emptied(block)]
        frame.f = [[0, len(self._free)]] if self._free else []
        frame.c = set_delta(Moved(left=self.spec.seen.books.kept_cached))
        frame.r = set_delta(Moved(left=self.spec.seen.books.kept_retiring))
        self._generations = [generation for _, _, generation, _ in self._blocks]
        self.spec = spec
        self.prefixes.follow(spec.tree)
        self._sequences.clear()
        self._out.clear()
        self._free.clear()
        self._open = 0
        self.gaps.append(len(self.frames))
        self._blocks = [self._block(block) for block in range(self.num_blocks)]
        frame.b = [number for block, now in enumerate(self._blocks) for number in (block, *now)]
        self.kinds.append("gap")
        self.texts.append(text)
        self.answers.append("")
        self.numbers.append(None)
        self.frames.append(frame)

    def unfollowed(self, op: Op, text: str) -> None:
        """An operation about what began before operations were lost: what it changed is not known."""
        self._add(op, text, "not followed", self._ran, Frame())
        self._ran += 1

    def resume(self, number: int) -> None:
        """The next operation has this number."""
        self._ran = number

    def take(self, op: Op, text: str, answer: str, free: Sequence[int] | Free | None) -> None:
        """One operation that the spec has just judged. `free`: the free list in its order, or how it changed; None where it was not shown."""
        frame = Frame()
        self._take_slots(frame)
        self._take_sequences(frame, op)
        changed = self._take_books(frame, free)
        self._take_blocks(frame, changed)
        self._accused()
        if len(self.spec.steps) != self._open:
            frame.o = self._open = len(self.spec.steps)
        self._add(op, text, answer, self._ran, frame)
        self._ran += 1

    def _add(self, op: Op, text: str, answer: str, number: int | None, frame: Frame) -> None:
        self.kinds.append(op_name(op))
        self.texts.append(text)
        self.answers.append(answer)
        self.numbers.append(number)
        self.frames.append(frame)

    @property
    def aside(self) -> SetAside:
        """The blocks and sequences that are set aside: faults accuse them, and what else they show may be a consequence."""
        return self._aside

    def _accused(self) -> None:
        """What this operation's fault accuses is shown as it is here, and set aside from the next operation on."""
        aside = self.spec.aside
        if aside is None or not aside.anything:
            return
        blocks, sequences = self._aside
        if len(aside.blocks) == len(blocks) and aside.sequences <= sequences:
            self._newly_aside = NOTHING_ASIDE
            return
        self._newly_aside = (aside.blocks - blocks, aside.sequences - sequences)
        self._aside = (blocks | aside.blocks, sequences | aside.sequences)

    # -- one part of the state each -------------------------------------------------------------------------------------------------------

    def _emptied(self, block: int) -> list[int]:
        stride = self.spec.memory.stride
        return slot_runs(self._slots, block * stride, [0] * stride, self.groups)

    def _take_slots(self, frame: Frame) -> None:
        memory, groups = self.spec.memory, self.groups
        for block in sorted(memory.touched):
            first = block * memory.stride
            now = [self.prefixes.content(content, groups) for content in memory.slots[first : first + memory.stride]]
            frame.m += slot_runs(self._slots, first, now, groups)

    def _take_sequences(self, frame: Frame, op: Op) -> None:
        """Record the sequences that changed: those of the operation, those whose tables did, and those whose pass was launched or ended."""
        live, seen = self.spec.live, self.spec.seen
        named = {seq for name in ("seq", "parent", "child") if (seq := getattr(op, name, None)) is not None}
        for seq in sorted(named | seen.was.keys() | self._out | self._newly_aside[1] & live.keys()):
            if seq not in live:
                if self._sequences.pop(seq, None) is not None:
                    frame.x.append(seq)
                self._out.discard(seq)
                continue
            tables = seen.tables.get(seq, seen.no_tables)
            state = self._state(seq, live[seq])
            old = self._sequences.get(seq)
            if old is None or old != (state, tables):
                before = old[1] if old else seen.no_tables
                deltas = tuple(table_delta(a, b) for a, b in zip(before, tables, strict=True))
                frame.s.append(SequenceChange(seq, *state, deltas))
                self._sequences[seq] = (state, tables)
            (self._out.add if live[seq].out else self._out.discard)(seq)

    def _state(self, seq: int, known: Known) -> State:
        out = known.out
        node = self.prefixes.node(known.path[-1]) if known.path else 0
        shown = None
        if out is not None:
            draft = self.prefixes.node(out.path[-1]) if out.path else 0
            shown = (out.start, out.known_end, out.end, draft, int(out.launched))
        flags = (SWAPPED if known.swapped else 0) | (LEFT_OUT if seq in self._aside[1] else 0)
        return len(known.known), known.computed, node, flags, shown

    def _take_books(self, frame: Frame, free: Sequence[int] | Free | None) -> set[int]:
        """Record the lists of the books; the blocks that they say something new about."""
        last = self.spec.seen.last
        shown = {"refcounts": last.refcounts, "free": last.free, "cached": last.cached, "retiring": last.retiring}
        # Until the free list is shown for the first time, a block that nobody holds is taken for free.
        first = last.free is not None and "free" not in self.books
        changed = set(range(self.num_blocks if first else 0))
        self.books.update(name for name, seen in shown.items() if seen is not None)
        changed.update(last.refcounts or ())
        for moved in (last.free, last.cached, last.retiring):
            if moved is not None:
                changed.update(moved.joined, moved.left)
        frame.f = free_splices(self._free, None if self.gaps else free)
        frame.c = set_delta(last.cached)
        frame.r = set_delta(last.retiring)
        return changed

    def _take_blocks(self, frame: Frame, changed: set[int]) -> None:
        for block in sorted(changed | self.spec.memory.touched | self.spec.seen.relisted | self._newly_aside[0]):
            if not 0 <= block < self.num_blocks:
                continue
            now = self._block(block)
            if now != self._blocks[block]:
                self._blocks[block] = now
                frame.b += (block, *now)

    def _block(self, block: int) -> tuple[int, int, int, int]:
        """(state, reference count, generation, holder) of a block."""
        spec, books = self.spec, self.spec.seen.books
        entries = spec.owners.get(block, ())
        holders = {seq for seq, _, _ in entries}
        before = self._blocks[block][3]
        count = books.kept_counts.get(block, 0) if "refcounts" in self.books and not self.gaps else len(entries)
        generation = self._generations[block] + spec.memory.generations[block]
        holder = before if not holders or before in holders else min(holders)
        free = block in books.kept_free
        if block in spec.null_blocks:
            state = NULL
        elif block in self._aside[0]:
            state = ASIDE
        elif holders:
            state = CONFLICT if free else SHARED if len(holders) > 1 else HELD
        elif self.gaps:
            state = UNKNOWN
        elif block in books.kept_retiring:
            state = RETIRING
        elif block in books.kept_cached:
            state = CACHED
        elif free or "free" not in self.books:
            state = FREE
        else:
            state = RETIRING if spec.pins(block) and (count > 0 or "retiring" not in self.books) else MISSING
        return state, count, generation, holder


class Prefixes:
    """Interned prefixes under numbers of the film's own: those of the spec may come to stand for other prefixes in a long run."""

    def __init__(self, tree: PrefixTree) -> None:
        self.parents = [0]
        self.tokens = [-1]
        self.roots: dict[int, Namespace] = {}
        self._tree = tree
        self._forgettings = tree.forgettings
        self._numbers: dict[tuple[int, int | Namespace], int] = {}
        self._nodes: dict[int, int] = {}

    def follow(self, tree: PrefixTree) -> None:
        """From now on nodes are those of another tree."""
        self._tree = tree
        self._forgettings = tree.forgettings
        self._nodes.clear()

    def node(self, node: int) -> int:
        """The number of the prefix that `node` stands for in the spec now."""
        if self._tree.forgettings != self._forgettings:
            self._forgettings = self._tree.forgettings
            self._nodes.clear()
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
        return self.node(content // groups) * groups + content % groups if content > EMPTY else 0

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


def free_splices(order: list[int], free: Sequence[int] | Free | None) -> list[list[int]]:
    """What turns the free list `order` into `free`, or changes it as `free` says: [at, gone, *came] one after another; `order` is brought up to date."""
    if free is None:
        return []
    if not isinstance(free, Free):
        splices = [] if list(free) == order else [splice(order, free)]
    elif free.whole is not None:
        splices = [splice(order, free.whole)]
    else:
        return list(_steps(order, free))
    for at, gone, *came in splices:
        order[at : at + gone] = came
    return splices


def _steps(order: list[int], free: Free) -> Iterator[list[int]]:
    for block in free.left:
        if block not in order:
            continue  # after a fault a block may leave a list that it never came back to
        at = order.index(block)
        del order[at]
        yield [at, 1]
    for place, blocks in free.joined:
        at = len(order) if place is None else place
        order[at:at] = blocks
        yield [at, 0, *blocks]


def set_delta(moved: Moved | None) -> list[int]:
    """Block + 1 for each that came, -(block + 1) for each that went."""
    return [] if moved is None else [block + 1 for block in sorted(moved.joined)] + [-block - 1 for block in sorted(moved.left)]


def _common(old: Sequence[int | None], new: Sequence[int | None]) -> int:
    """The length of the common beginning."""
    if old == new[: len(old)]:
        return len(old)
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
