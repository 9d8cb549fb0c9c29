"""Laws on content: what each live sequence reads, position by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.checks.naming import Broken, in_group, show, show_lost, show_namespace, show_positions, show_tokens
from kvproof.models.layouts import window_low
from kvproof.models.ops import Evict, Extend, Fork, Op, Release, SwapIn, Truncate, op_name, sequences_of
from kvproof.models.state import Pass, Sequence, Table

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


def contents(spec: Spec, op: Op, changed: Iterable[Sequence]) -> None:
    """Every readable position of every live sequence shows its own ghost; only what changed is looked at again."""
    for sequence in changed:
        if not sequence.computed and sequence.out is None and not sequence.swapped and not spec.left_out(sequence.seq):
            holds_nothing(sequence, spec.tables(sequence), op)
    last = None
    for _, group, index, sequence in _readers(spec):
        entry_contents(spec, op, sequence, group, index)
        if last != (sequence, group):
            last = sequence, group
            _count_reading(spec, sequence, group)


def _readers(spec: Spec) -> list[tuple[int, int, int, Sequence]]:
    """The table entries that have to be read again, as (birth of the sequence, group, index, sequence) and in that order."""
    live = spec.live
    found = []
    for seq, group, index in spec.agenda.entries:
        sequence = live.get(seq)
        if sequence is not None and sequence.computed and not sequence.swapped and not spec.left_out(seq):
            found.append((sequence.born, group, index, sequence))
    if len(found) > 1:
        found.sort()
    return found


def holds_nothing(sequence: Sequence, tables: tuple[Table, ...], op: Op) -> None:
    """A sequence that has computed nothing and has no pass out holds no block."""
    for table in tables:
        if table:
            law = "release-once" if isinstance(op, Release) else "committed-is-covered"
            raise Broken(
                law,
                f"sequence {sequence.seq} holds nothing, yet its block table is {show(table)} after {op_name(op)}",
                blocks=(block for block in table if block is not None),
                sequences=(sequence.seq,),
            )


def entry_contents(spec: Spec, op: Op, sequence: Sequence, group: int, index: int) -> None:
    """The positions in one table entry that the next token of `sequence` reads are in the table, were written, and are the sequence's own."""
    _, size, window = spec.groups[group]
    low, high = index * size, min((index + 1) * size, sequence.computed)
    if window is not None:
        low = max(low, window_low(sequence.computed, window))
    if low >= high:
        return
    table = spec.tables(sequence)[group]
    block = table[index] if index < len(table) else None
    if block is None:
        law = _law_for_missing(spec, op, sequence, group)
        raise Broken(law, told_missing(spec, sequence, group, table, low), sequences=(sequence.seq,), positions=(low,), group=group)
    if block not in spec.judged:
        return
    wanted = expected_ghosts(spec, sequence, group, low, high)
    offset = low - index * size
    first = block * spec.memory.stride + offset
    if spec.memory.slots[first : first + len(wanted)] == wanted or spec.memory.learn(block, wanted, offset):
        return
    wrong = next(i for i, content in enumerate(wanted) if spec.memory.slots[first + i] != content)
    law = _law_for_wrong(spec, op, sequence, group, low + wrong, spec.memory.slots[first + wrong])
    lost = spec.memory.lost.get(wanted[wrong]) if not spec.memory.slots[first + wrong] else None
    raise Broken(
        law,
        _wrong(spec, op, sequence, group, low + wrong, first + wrong),
        blocks=(block, lost.block) if lost else (block,),
        sequences=(sequence.seq,),
        positions=(low + wrong,),
        slots=((block, offset + wrong),),
        steps=(lost.step,) if lost else (),
        group=group,
    )


def expected_ghosts(spec: Spec, sequence: Sequence, group: int, low: int, high: int) -> list[int]:
    """The ghosts that the positions `low` to `high` - 1 must show."""
    groups = len(spec.block_sizes)
    nodes = sequence.path[low:high]
    return nodes if groups == 1 else [node * groups + group for node in nodes]


def _count_reading(spec: Spec, sequence: Sequence, group: int) -> None:
    exercised = spec.exercised
    exercised["committed-is-covered"] += 1
    exercised["initialised-read"] += 1
    exercised["own-content"] += 1
    if spec.windows[group] is not None and spec.readable(sequence, group).start > 0:
        spec.exercised["window-keeps-what-it-needs"] += 1


def room(spec: Spec, sequence: Sequence, out: Pass) -> None:
    """The table has a block for every position that the pass writes.

    A windowed group may leave out positions that no token after the pass can read, all drafts rejected; with a window of 1 those are all.
    """
    for group, size, window in spec.groups:
        if window == 1:  # no token reads another
            continue
        table = out.tables[group]
        needed_from = out.start if window is None else max(out.start, window_low(out.known_end, window))
        for index in range(needed_from // size, out.reach[group][1]):
            if index >= len(table) or table[index] is None:
                skipped = window is not None and index < len(table)
                nulls = " or ".join(map(str, sorted(spec.null_blocks))) if index < len(table) else ""
                position = max(needed_from, index * size)
                raise Broken(
                    "window-keeps-what-it-needs" if skipped else "committed-is-covered",
                    f"extend granted sequence {sequence.seq} {show_positions(range(out.start, out.end))}, but its table {show(table)} "
                    f"has no block for position {position}{in_group(spec, group)}"
                    + (f": the null block {nulls} stands there, or None" if nulls else ""),
                    sequences=(sequence.seq,),
                    positions=(position,),
                    group=group,
                )


def _law_for_missing(spec: Spec, op: Op, sequence: Sequence, group: int) -> str:
    if isinstance(op, Evict):
        return "evict-only-unheld"
    if sequence.seq in sequences_of(op):
        special = {Truncate: "truncate-exact", SwapIn: "swap-round-trip"}.get(type(op))
        if special:
            return special
    return "committed-is-covered" if spec.windows[group] is None else "window-keeps-what-it-needs"


def _law_for_wrong(spec: Spec, op: Op, sequence: Sequence, group: int, position: int, found: int) -> str:
    if sequence.seq in sequences_of(op):
        special = {Truncate: "truncate-exact", Fork: "fork-shares-then-diverges", SwapIn: "swap-round-trip"}.get(type(op))
        if special:
            return special
        index = position // spec.block_sizes[group]
        old = spec.seen.tables_before(sequence.seq)
        if (
            isinstance(op, Extend)
            and old
            and old[group]
            and old[group][index : index + 1] != spec.tables(sequence)[group][index : index + 1]
        ):
            return "copy-before-write"
    elif isinstance(op, Release):
        return "published-is-committed"
    return "own-content" if found else "initialised-read"


def told_missing(spec: Spec, sequence: Sequence, group: int, table: Table, position: int) -> str:
    """That a readable position has no block, in words."""
    return f"sequence {sequence.seq} reads position {position}{in_group(spec, group)}, but its table {show(table)} has no block for it"


def _wrong(spec: Spec, op: Op, sequence: Sequence, group: int, position: int, slot: int) -> str:
    memory, groups = spec.memory, len(spec.block_sizes)
    block, offset = memory.block_of(slot), slot % memory.stride
    found = memory.slots[slot]
    told = f"after {op_name(op)}, position {position} of sequence {sequence.seq}{in_group(spec, group)} lies in block {block}, offset {offset}, where"
    if not found:
        lost = memory.lost.get(spec.content(sequence, group, position))
        return f"{told} nothing of it has been written" + (f"; it was lost from block {lost.block} when {show_lost(lost)}" if lost else "")
    tokens, namespace = spec.tree.tokens(found // groups), spec.tree.namespace(found // groups)
    whose = "" if namespace == sequence.namespace else f" of {show_namespace(namespace)}"
    layers = "" if found % groups == group else f" of group {found % groups}"
    return f"{told} position {len(tokens) - 1} of the tokens {show_tokens(tokens)}{whose}{layers} was written"
