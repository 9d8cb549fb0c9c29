"""How blocks change hands: which ones a sequence was handed, which ones a table let go of, and which ones came back from device work.

The spec never says which block a cache should take. It looks at what the tables list now and did not list before, and judges whether it could be taken.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from kvproof.models import checks, uses
from kvproof.models.observed import Change
from kvproof.models.ops import Op, Release
from kvproof.models.state import NO_BLOCKS, Pass, Sequence

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


# -- handed out ------------------------------------------------------------------------------------------------------------------------------


def take_blocks(spec: Spec, sequence: Sequence, computed: int, filled: Set[int], shared: Set[int] = NO_BLOCKS) -> None:
    """Judge and clear every block that `sequence` was handed: newly listed, and not there for tokens that are already computed.

    `filled` are blocks that were handed out although they lie under computed tokens (copy destinations), `shared` are blocks that a fork shares.
    """
    if sequence.seq not in spec.seen.was:
        return
    for group, index, block in _newly_listed(spec, sequence):
        if block in shared or _shared_for_its_content(spec, sequence, group, index, block):
            continue
        if block in filled or index * spec.block_sizes[group] >= computed:
            spec.ask(checks.handed_out, sequence, group, index, block)
            spec.memory.clear(block, "reused")
            if block in spec.awaited:
                spec.deferrals.back(block, spec.steps)


def _newly_listed(spec: Spec, sequence: Sequence) -> list[tuple[int, int, int]]:
    """(group, index, block) of every block that this operation put into a table of `sequence` where it was not listed before."""
    had, tables = spec.seen.was[sequence.seq], spec.tables(sequence)
    found = []
    for seq, group, index in spec.seen.listed:
        if seq == sequence.seq:
            block = tables[group][index]
            if block is not None and block not in had[group]:
                found.append((group, index, block))
    return found


def _shared_for_its_content(spec: Spec, sequence: Sequence, group: int, index: int, block: int) -> bool:
    """Whether others hold the block and it shows what `sequence` would compute there: then it was shared, not handed out."""
    position = index * spec.block_sizes[group]
    return (
        block in spec.seen.held_twice
        and position < len(sequence.path)
        and spec.memory.slots[block * spec.memory.stride] == spec.content(sequence, group, position)
    )


def rewritten(spec: Spec, sequence: Sequence, out: Pass) -> frozenset[int]:
    """The blocks that already show all that the pass writes there: with the policy `rewrites` they may be shared by it."""
    shown: dict[int, bool] = {}
    for group, table in enumerate(spec.tables(sequence)):
        for position in range(out.start, out.known_end):
            slot = spec.slot(group, table, position)
            if slot is not None:
                block = spec.memory.block_of(slot)
                same = spec.memory.slots[slot] == spec.content(sequence, group, position)
                shown[block] = shown.get(block, True) and same
    return frozenset(block for block, same in shown.items() if same)


def stale(spec: Spec, sequence: Sequence) -> set[int]:
    """The blocks of `sequence` that do not show what its computed positions need."""
    found = set()
    for group, table in enumerate(spec.tables(sequence)):
        for position in spec.readable(sequence, group):
            slot = spec.slot(group, table, position)
            if slot is not None and spec.memory.slots[slot] != spec.content(sequence, group, position):
                found.add(spec.memory.block_of(slot))
    return found


# -- let go of -------------------------------------------------------------------------------------------------------------------------------


def note_drops(spec: Spec, op: Op) -> None:
    """Remember every block that a table let go of, and which device work was out at that time."""
    for (seq, group, index), block in spec.seen.unlisted:
        tables = spec.seen.tables.get(seq)
        if tables is None or block not in tables[group]:
            _drop(spec, op, block, (spec.step, seq, group, index))


def _drop(spec: Spec, op: Op, block: int, where: tuple[int, int, int, int]) -> None:
    spec.any_drop = True
    if spec.lru:
        uses.let_go(spec, block, where)
    if type(op) is Release:
        spec.memory.forgotten.pop(block, None)
    if spec.capabilities.steps and spec.is_busy():
        touched = any(out.launched and not out.finished and block in out.blocks for out in spec.passes)
        spec.deferrals.add(block, touched=touched and block not in spec.owners)
        if touched:
            spec.awaited.add(block)


def note_returns(spec: Spec, change: Change) -> None:
    """Remember which of the blocks that had to be kept back are held again for what they hold, and which are free."""
    for block in spec.seen.newly_held & spec.awaited:
        spec.deferrals.held(block)
    for block in change.free.joined if change.free else ():
        if block in spec.awaited and spec.fence(block) is None:
            spec.deferrals.back(block, spec.steps)
