"""From the lines of a trace to what each operation changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from kvproof.fuzz.traces.format import Blocks, Field, Free, Header, Line, Taken
from kvproof.models.observed import NOTHING, UNMOVED, Change, Moved
from kvproof.models.ops import Admit, Fork, Release
from kvproof.models.outcomes import Grant, Hit, OutOfBlocksSeen, RefusedSeen
from kvproof.models.state import Tables

_CHANGES_WHO_LIVES: Final = frozenset({Admit, Fork, Release})

_SILENT: Final[dict[Field, Any]] = {"refcounts": NOTHING, "free": UNMOVED, "cached": UNMOVED, "retiring": UNMOVED}


class Unfold:
    """Takes the lines in their order. It knows the block tables so far, and replays events."""

    def __init__(self, header: Header) -> None:
        self._silent = Change(**{name: value for name, value in _SILENT.items() if header.sees.get(name) == "always"})
        """What a line that does not say anything of the books says of them."""
        self._groups = len(header.capabilities.groups)
        self._empty: Tables = ((),) * self._groups
        self._tables: dict[int, Tables] = {}
        self._replayed: set[int] = set()
        self._freed: set[int] = set()
        self._counts_free = header.sees.get("free_count") == "always"
        self._free_count: int | None = None
        """What the cache's own counter of free blocks shows; None where a line says nothing and it is not shown always."""
        self._adrift = False
        """Whether lines are missing, so that changes say nothing any more of what began before."""
        self._nulls = frozenset(header.capabilities.null_blocks)
        self._valid = frozenset(range(header.config.num_blocks)) | {None}
        self._most = header.config.num_blocks

    def forget(self) -> None:
        """Lines are missing: what is known of tables and books is void, and only sequences that begin from now on can be followed."""
        self._tables.clear()
        self._adrift = True

    def change(self, line: Line) -> Change:
        """What the operation of `line` changed. Raises ValueError for what no cache can have shown."""
        if line.out is not None:
            self._check_answer(line)
        if self._adrift:
            return Change(self._changed_tables(line))
        unset, silent = msgspec.UNSET, self._silent
        return Change(
            self._changed_tables(line) if line.tables or type(line.op) in _CHANGES_WHO_LIVES else NOTHING,
            silent.refcounts if line.refcounts is unset else self._counts(line),
            silent.free if line.free is unset else self._free(line),
            silent.cached if line.cached is unset else self._moved(line.cached),
            silent.retiring if line.retiring is unset else self._moved(line.retiring),
            None if line.events is unset else self._replay(cast("Sequence[Taken]", line.events)),
            self._worker_tables(line) if line.worker_tables else NOTHING,
            self._free_count if line.free_count is unset else self._counter(line),
        )

    def _check_answer(self, line: Line) -> None:
        out = line.out
        if isinstance(out, Grant):
            for group, source, target in out.copies:
                if not 0 <= group < self._groups:
                    raise ValueError(f"it copies in group {group}, but there are {self._groups} groups")
                self._shown((source, target))
            self._shown(tuple(out.zeroed))
            if out.adopted < 0:
                raise ValueError(f"it adopts {out.adopted} tokens")
        elif isinstance(out, Hit) and out.tokens < 0:
            raise ValueError(f"it found {out.tokens} tokens")

    def _changed_tables(self, line: Line) -> dict[int, Tables | None]:
        changed: dict[int, Tables | None] = {}
        op = line.op
        answered = not isinstance(line.out, OutOfBlocksSeen | RefusedSeen)
        if answered and isinstance(op, Admit | Fork):
            changed[op.child if isinstance(op, Fork) else op.seq] = self._empty
        for seq, group, start, stop, blocks in line.tables:
            tables = changed.get(seq) or self._tables.get(seq)
            if tables is None:
                if self._adrift:
                    continue
                raise ValueError(f"it changes a block table of sequence {seq}, which is not there")
            if not 0 <= group < self._groups:
                raise ValueError(f"it names group {group}, but there are {self._groups} groups")
            table = tables[group]
            if not 0 <= start <= (len(table) if stop is None else stop) <= len(table):
                raise ValueError(f"it replaces the entries {start} to {stop} of a block table of {len(table)}")
            shown = self._shown(blocks)
            new = table[:start] + shown if stop is None else table[:start] + shown + table[stop:]
            changed[seq] = (*tables[:group], new, *tables[group + 1 :])
        if answered and isinstance(op, Release) and op.reason != "preempt" and op.seq in self._tables:
            changed[op.seq] = None
        for seq, now in changed.items():
            if now is None:
                del self._tables[seq]
            else:
                self._tables[seq] = now
        return changed

    def _shown(self, blocks: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if not self._valid.issuperset(blocks):
            wrong = next(block for block in blocks if block not in self._valid)
            raise ValueError(f"it names block {wrong}, but the pool has blocks 0 to {self._most - 1}")
        return tuple(None if block in self._nulls else block for block in blocks) if self._nulls else blocks

    def _counts(self, line: Line) -> dict[int, int] | None:
        counts = line.refcounts
        if not counts:
            return {} if counts is not None else None
        changed = dict(cast("Sequence[tuple[int, int]]", counts))
        self._shown(tuple(changed))
        return changed

    def _counter(self, line: Line) -> int | None:
        count = cast("int | None", line.free_count)
        if self._counts_free:
            self._free_count = count
        return count

    def _free(self, line: Line) -> Moved | None:
        free = cast("Free | None", line.free)
        if free is None:
            return None
        if free.whole is not None:
            self._shown(free.whole)
            now = set(free.whole)
            joined = tuple(now - self._freed) + _doubled(free.whole)
            left = tuple(self._freed - now)
        else:
            joined = tuple(block for _, blocks in free.joined for block in blocks)
            self._shown(joined)
            self._shown(free.left)
            # A block that never came back after a fault cannot leave the list once more.
            left = free.left if self._freed.issuperset(free.left) else tuple(block for block in free.left if block in self._freed)
        self._freed.difference_update(left)
        self._freed.update(joined)
        return Moved(joined, left)

    def _moved(self, blocks: Blocks | None) -> Moved | None:
        if blocks is None:
            return None
        self._shown(blocks.joined)
        self._shown(blocks.left)
        return Moved(blocks.joined, blocks.left)

    def _replay(self, events: Sequence[Taken]) -> Moved:
        if not events:
            return UNMOVED
        joined: set[int] = set()
        left: set[int] = set()
        for kind, blocks in events:
            self._shown(blocks)
            if kind == "stored":
                joined.update(set(blocks) - self._replayed)
                left.difference_update(blocks)
            elif kind == "removed":
                joined.difference_update(blocks)
                left.update(self._replayed.intersection(blocks))
            else:
                joined.clear()
                left = set(self._replayed)
        self._replayed -= left
        self._replayed |= joined
        return Moved(joined, left)

    def _worker_tables(self, line: Line) -> dict[int, Tables]:
        tables: dict[int, list[tuple[int | None, ...]]] = {}
        for seq, group, table in line.worker_tables:
            if group != len(tables.setdefault(seq, [])):
                raise ValueError(f"the device's tables of sequence {seq} are not in the order of groups")
            tables[seq].append(self._shown(table))
        return {seq: tuple(shown) for seq, shown in tables.items()}


def _doubled(blocks: Sequence[int]) -> tuple[int, ...]:
    """The blocks that are listed again, once for each time."""
    seen: set[int] = set()
    again = []
    for block in blocks:
        if block in seen:
            again.append(block)
        seen.add(block)
    return tuple(again)
