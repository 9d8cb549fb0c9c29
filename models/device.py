"""Device work: what the pass of an extend writes, what becomes of its drafts, when it is over, and what a cache may hold back until then.

A pass is queued by its extend and seen in the ghosts at once, since device work runs in queue order. It is launched, finishes and is committed later; one that was never launched
is taken back when its sequence is released.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.memory import Work
from kvproof.models.ops import Extend
from kvproof.models.outcomes import Grant
from kvproof.models.state import NO_BLOCKS, Pass, Sequence, Transfer

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


def new_pass(spec: Spec, sequence: Sequence, op: Extend, grant: Grant) -> Pass:
    """The pass that an extend makes: not queued yet."""
    start = sequence.computed
    count = min(op.count, len(sequence.known) - start)
    path = spec.tree.path(sequence.path[-1], op.drafts) if op.drafts else []
    end = start + count + len(op.drafts)
    return Pass(
        op.seq,
        start,
        count,
        start + count,
        end,
        op.drafts,
        path,
        tables=spec.tables(sequence),
        reach=tuple([(window_low(start, window) // size, blocks_for(end, size)) for _, size, window in spec.groups]),
        copied=frozenset(ends_of_copies(grant)) if grant.copies else NO_BLOCKS,
        launched=not spec.capabilities.steps,
    )


def ends_of_copies(grant: Grant) -> list[int]:
    """Sources and destinations of the copies of a grant, each as often as it is one."""
    return [block for _, *both in grant.copies for block in both]


def queue(spec: Spec, sequence: Sequence, out: Pass, grant: Grant) -> None:
    """Queue the work of the pass; without steps it runs and finishes at once."""
    out.work = _work(spec, sequence, out, grant)
    spec.memory.run(out.work, launched=out.launched)
    if out.drafts:
        _mark_drafts(spec, out)
    sequence.out = out
    spec.passes.append(out)
    spec.agenda.places |= out.copied
    out.finished = out.launched


def _work(spec: Spec, sequence: Sequence, out: Pass, grant: Grant) -> Work:
    writes: list[tuple[int, int]] = []
    groups, stride = len(spec.groups), spec.memory.stride
    path = sequence.path[out.start : out.known_end] + out.path
    for group, size, _ in spec.groups:
        table = out.tables[group]
        for index in range(out.start // size, out.reach[group][1]):
            block = table[index] if index < len(table) else None
            if block is None:
                continue
            low, high = max(index * size, out.start), min((index + 1) * size, out.end)
            nodes = path[low - out.start : high - out.start]
            contents = nodes if groups == 1 else [node * groups + group for node in nodes]
            writes.extend(enumerate(contents, block * stride + low - index * size))
    return Work(grant.zeroed, [(source, target) for _, source, target in grant.copies] if grant.copies else (), writes)


def _mark_drafts(spec: Spec, out: Pass) -> None:
    for group, table in enumerate(out.tables):
        for position in range(out.known_end, out.end):
            slot = spec.slot(group, table, position)
            if slot is not None:
                spec.memory.drafts.add(slot)


def reject_drafts(spec: Spec, out: Pass, accepted: int) -> None:
    """The first `accepted` drafts become tokens, the others never were."""
    if not out.drafts:
        return
    memory, groups = spec.memory, len(spec.block_sizes)
    never = set(out.path[accepted:])
    for slot, content in out.work.writes:
        if content // groups in never:
            memory.reject(slot, content)
        elif memory.slots[slot] == content:
            memory.drafts.discard(slot)


def drop(spec: Spec, out: Pass) -> None:
    """The sequence of a pass was released: before the launch it never runs, after it nothing stops it."""
    if not out.launched:
        spec.memory.abandon(out.work)
        finish(spec, out)
        return
    reject_drafts(spec, out, 0)
    if out.finished:
        finish(spec, out)
    else:
        spec.unowned += 1


def finish(spec: Spec, out: Pass) -> None:
    """Nothing waits for the pass any more."""
    out.over = True
    spec.passes.remove(out)
    spec.agenda.finished.append(out)
    work_is_over(spec, out)
    for step in spec.steps:
        if out in step:
            step.remove(out)
    if spec.deferrals:
        forget_deferrals(spec)


def work_is_over(spec: Spec, out: Pass) -> None:
    """A cache may take the end of device work for the last use of blocks, or for the time at which they were let go of. Those that are held still are let go of later."""
    if spec.lru and (out.copied or spec.seen.tables.get(out.seq) is not out.tables):
        spec.recency.settle(out.listed, spec.step)


def copied_by_fork(spec: Spec, grant: Grant) -> None:
    """The copies of a fork wait, or run, until a step has ended."""
    transfer(spec, ends_of_copies(grant))
    if spec.transfers:
        spec.transfers[-1].sources.update({target: source for _, source, target in grant.copies})


def transfer(spec: Spec, blocks: Iterable[int]) -> None:
    """A fork or a swap moves these blocks. Without steps that is over when it returns."""
    if not spec.capabilities.steps:
        return
    ends = len(spec.steps) + 1
    if not spec.transfers or spec.transfers[-1].ends != ends:
        spec.transfers.append(Transfer(ends))
    spec.transfers[-1].blocks.update(blocks)


def end_transfers(spec: Spec) -> None:
    """A step has ended: transfers that were queued before it was begun have run."""
    for out in spec.transfers:
        out.ends -= 1
        if not out.ends:
            spec.agenda.unpinned.update(out.blocks)
            if spec.lru:
                spec.recency.settle(out.blocks, spec.step)
    spec.transfers = [out for out in spec.transfers if out.ends]


def forget_deferrals(spec: Spec) -> None:
    """Once the device work of that time is over nothing may be kept back; while a step is open, a cache need not know which blocks it touches."""
    forgotten = spec.deferrals.forget(spec.passes, spec.steps, spec.transfers)
    if forgotten:
        if spec.lru:
            spec.recency.settle(forgotten, spec.step)
        spec.agenda.unpinned.update(forgotten)
        spec.awaited.difference_update(forgotten)
