"""What a correct cache must remember, and what was seen of the one under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from kvproof.models.memory import Work
from kvproof.models.ops import Namespace

Table: TypeAlias = tuple[int | None, ...]
"""A block table: the physical block of each logical block; None where it was skipped."""

Tables: TypeAlias = tuple[Table, ...]
"""One block table for each group."""

NO_BLOCKS: Final[frozenset[int]] = frozenset()


def listed_blocks(tables: Tables) -> set[int]:
    """The blocks that the tables of one sequence list."""
    found: set[int | None] = set().union(*tables)
    found.discard(None)
    return found  # type: ignore[return-value]  # None was taken out


class Books(msgspec.Struct, frozen=True):
    """A snapshot, normalised: null blocks left out, zero counts left out. None where the cache keeps no books."""

    refcounts: dict[int, int] | None = None
    free: tuple[int, ...] | None = None
    cached: frozenset[int] | None = None
    retiring: frozenset[int] | None = None
    free_count: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """Everything that was seen of the cache after one operation. Sequences that are gone are left out."""

    tables: Mapping[int, Tables] = {}
    books: Books = Books()
    worker_tables: Mapping[int, Tables] = {}
    matchable_by_events: frozenset[int] | None = None
    """The matchable set that replaying all events so far gives; None where the cache claims no events."""


class Pass(msgspec.Struct, eq=False):
    """The forward pass of one extend: positions start to start+count+len(drafts)-1 of a sequence."""

    seq: int
    start: int
    count: int
    known_end: int
    """One past the last known (not draft) token that it computes."""
    end: int
    """One past the last position that it writes."""
    drafts: tuple[int, ...]
    path: list[int]
    """Interned prefixes of the drafts."""
    work: Work = msgspec.field(default_factory=Work)
    tables: Tables = ()
    """The tables of its sequence when it was extended."""
    reach: tuple[tuple[int, int], ...] = ()
    """For each group, the first logical block that it reads or writes, and one past the last."""
    copied: frozenset[int] = frozenset()
    """Sources and destinations of its copies."""
    launched: bool = False
    finished: bool = False
    over: bool = False
    """Whether it is committed, abandoned, or, where its sequence was released, finished."""
    _blocks: frozenset[int] | None = None
    _listed: frozenset[int] | None = None

    @property
    def blocks(self) -> frozenset[int]:
        """The blocks that it reads, writes or copies."""
        if self._blocks is None:
            reached = tuple(table[first:last] for table, (first, last) in zip(self.tables, self.reach, strict=True))
            self._blocks = frozenset(listed_blocks(reached) | self.copied)
        return self._blocks

    @property
    def listed(self) -> frozenset[int]:
        """All blocks of its sequence and its copies: what a cache that holds back more than it must may pin."""
        if self._listed is None:
            self._listed = frozenset(listed_blocks(self.tables) | self.copied)
        return self._listed


class Transfer(msgspec.Struct, eq=False):
    """Copies of forks, or between the tiers of a swap, since the last step began. Nothing says which step runs them, so a cache may hold their blocks until the next one has ended."""

    ends: int
    """How many steps are still to end until then."""
    blocks: Counter[int] = msgspec.field(default_factory=Counter)
    """How often each is copied from or to."""
    sources: dict[int, int] = msgspec.field(default_factory=dict)
    """Destination -> source, of the copies of forks: a copy whose destination is dropped has nothing to do any more."""


class Sequence(msgspec.Struct, eq=False):
    """One request. `computed <= len(known)`; while a pass is out, its tokens are known but not computed."""

    seq: int
    namespace: Namespace
    known: list[int]
    path: list[int]
    """Interned prefix of each known position."""
    born: int = 0
    """Sequences are numbered in the order in which they became known."""
    computed: int = 0
    asked: int = 0
    """One past the last position that there must be room for: computed, or asked for by the pass that is out."""
    out: Pass | None = None
    """The pass that was extended and not committed yet."""
    used: Tables = ()
    """Its tables at its last commit, which every notion of recency takes for a use, and the step of that."""
    used_at: int = 0
    swapped: bool = False
    saved: tuple[tuple[tuple[int, int], ...], ...] = ()
    """While swapped: for each group, the (position, content) pairs that went to the slower tier."""
    gone: bool = False


class Evicted(msgspec.Struct, frozen=True):
    """A matchable block that nobody held and that was handed out, with what was known of its recency."""

    block: int
    step: int
    used_at: int
    """Step at which a holder last used it."""
    seen_at: int
    """Last step that any notion of recency could take for its last use."""
    settled_at: int
    """Step at which it could be evicted at the earliest."""
    let_go: tuple[int, int, int, int] | None
    """(step, sequence, group, index) of the release that left it unheld."""
