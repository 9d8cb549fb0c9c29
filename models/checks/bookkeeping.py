"""Laws on the cache's own books: reference counts, free list, matchable and retiring blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.models.checks.naming import FORGOTTEN_BREAKS, LOST_BREAKS, Broken, Why, counted, show_holders, show_lost
from kvproof.models.memory import EMPTY
from kvproof.models.observed import Ledger
from kvproof.models.ops import Op, Release, op_name

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


def books(spec: Spec, op: Op) -> None:
    """The cache's own books agree with what its tables show. Which fields were ever kept is noted beside the laws, as `books:free` and so on."""
    seen, agenda, exercised = spec.seen.books, spec.agenda, spec.exercised
    _note_kept(seen, exercised)
    if seen.refcounts is not None:
        if agenda.counts or agenda.surplus:
            refcounts(spec, seen.refcounts)
        if spec.owners:
            exercised["refcount-equals-holders"] += 1
    if seen.free is None:
        agenda.places.update(*(out.blocks for out in agenda.launched))
    else:
        if agenda.places or agenda.launched:
            free_list(spec, op, seen.free)
        if spec.unowned and spec.capabilities.steps:
            exercised["fenced-reuse"] += 1
        partition(spec, op, seen.free, seen.retiring)
    if seen.cached is not None:
        if agenda.matchable:
            matchable_blocks(spec, seen.cached)
        if seen.cached:
            exercised["published-is-committed"] += 1
    if seen.free is not None and seen.free_count is not None and seen.free_count != len(seen.free):
        raise Broken(
            "pool-conserved",
            f"the cache counts {counted(seen.free_count, 'free block')} after {op_name(op)}, but its free list has {len(seen.free)}",
        )


def _note_kept(seen: Ledger, exercised: dict[str, int]) -> None:
    if seen.refcounts is not None:
        exercised["books:refcounts"] = 1
    if seen.free is not None:
        exercised["books:free"] = 1
    if seen.cached is not None:
        exercised["books:cached"] = 1


def refcounts(spec: Spec, counts: dict[int, int]) -> None:
    """Each count lies between the table entries that list the block and those plus the device work that may pin it."""
    agenda = spec.agenda
    blocks = agenda.counts
    if agenda.surplus:
        blocks = blocks.union(agenda.loosened(agenda.surplus))
    for block in sorted(blocks & spec.judged) if blocks else ():
        count, listed = counts.get(block, 0), len(spec.owners.get(block, ()))
        if count == listed:
            agenda.surplus.discard(block)
            continue
        if count < 0:
            raise Broken("release-once", f"the reference count of block {block} is {count}", blocks=(block,))
        pins = spec.pins(block)
        if count > listed == 0 and block in (spec.seen.books.free or ()):
            raise Broken(
                "refcount-equals-holders", f"the reference count of block {block} is {count}, but it is on the free list", blocks=(block,)
            )
        if not listed <= count <= listed + pins:
            only = "only " if count > listed > 0 else ""
            who = "device work may pin it" if spec.capabilities.steps or spec.transfers else "passes that are not committed may count it"
            pinned = f", and {who} {counted(pins, 'time')}" if pins else ""
            raise Broken(
                "refcount-equals-holders",
                f"the reference count of block {block} is {count}, but {only}{show_holders(spec.owners.get(block, ()))}{pinned}",
                blocks=(block,),
                sequences=(seq for seq, _, _ in spec.owners.get(block, ())),
            )
        agenda.surplus.add(block)
    agenda.counts.clear()


def free_list(spec: Spec, op: Op, free: dict[int, int]) -> None:
    """A free block is listed once, by nobody else, and no device work touches it."""
    blocks = spec.agenda.places
    if spec.agenda.launched:
        blocks = blocks.union(*[out.blocks for out in spec.agenda.launched])
    for block in sorted(blocks & free.keys()):
        if block not in spec.judged:
            if block in spec.null_blocks:
                raise Broken("pool-conserved", f"block {block} is a null block, yet it is on the free list", blocks=(block,))
            continue
        if free[block] > 1:
            law = "release-once" if isinstance(op, Release) else "pool-conserved"
            raise Broken(law, f"block {block} is on the free list twice", blocks=(block,))
        if block in spec.owners:
            holder = next(iter(spec.owners[block]))[0]
            raise Broken(
                "pool-conserved", f"block {block} is on the free list, but sequence {holder} lists it", blocks=(block,), sequences=(holder,)
            )
        if spec.passes or spec.steps:
            _not_in_use(spec, block)


def _not_in_use(spec: Spec, block: int) -> None:
    """No device work that is launched or waits uses `block`, which is on the free list."""
    fence = spec.fence(block)
    if fence is not None:
        raise Broken(
            "fenced-reuse",
            f"block {block} is on the free list, but the pass of sequence {fence.seq} in an open step still touches it",
            blocks=(block,),
            sequences=(fence.seq,),
        )
    for out in spec.passes:
        if not out.launched and block in out.copied:
            raise Broken(
                "copy-batch-sound",
                f"block {block} is on the free list, but a copy for sequence {out.seq} that uses it has not run yet",
                blocks=(block,),
                sequences=(out.seq,),
            )


def partition(spec: Spec, op: Op, free: dict[int, int], retiring: set[int] | None) -> None:
    """Every block is held, free or retiring; only device work may keep one that nobody lists out of the free list."""
    agenda, owners, lost = spec.agenda, spec.owners, spec.agenda.lost
    for block in sorted(retiring & agenda.places.union(agenda.loosened(retiring)) & spec.judged) if retiring else ():
        if block in free:
            raise Broken("pool-conserved", f"block {block} is both free and retiring", blocks=(block,))
        if not spec.pins(block):
            raise Broken("pool-conserved", f"block {block} waits for device work, but no device work touches it", blocks=(block,))
    if agenda.kept_back:
        agenda.places.update(agenda.loosened(agenda.kept_back))
    if agenda.places:
        agenda.kept_back -= agenda.places
        lost -= agenda.places
        for block in agenda.places.intersection(spec.judged).difference(free).difference(owners):
            (agenda.kept_back if _may_be_kept_back(spec, block, retiring) else lost).add(block)
        agenda.places.clear()
    spare = len(spec.judged) - spec.usable
    if len(lost) > spare:
        law = "no-leak" if not owners and not spec.passes and spec.any_drop else "pool-conserved"
        raise Broken(law, f"block {max(lost)} is neither free nor held nor retiring after {op_name(op)}", blocks=(max(lost),))
    there = len(spec.judged) - len(lost)
    if retiring is None:
        there -= len(agenda.kept_back)  # they may wait for device work, or be among those that are missing for good
    if there > spec.usable:
        raise Broken("ledger-adds-up", f"the cache claims {counted(spec.usable, 'usable block')}, but {there} are free, held or retiring")
    spec.exercised["pool-conserved"] += 1
    spec.exercised["ledger-adds-up"] += 1


def _may_be_kept_back(spec: Spec, block: int, retiring: set[int] | None) -> bool:
    """Whether device work may keep `block`, which nobody lists, out of the free list. A cache that shows what waits for device work has to show it there, or count its holder."""
    if not spec.pins(block):
        return False
    if retiring is None or block in retiring or any(block in out.copied for out in spec.passes):
        return True
    counts = spec.seen.books.refcounts
    return counts is not None and counts.get(block, 0) > 0


def matchable_blocks(spec: Spec, cached: set[int]) -> None:
    """What the books call matchable holds accepted tokens from its first slot on."""
    memory = spec.memory
    for block in sorted(cached & spec.agenda.matchable & spec.judged):
        how = memory.forgotten.get(block)
        if how is not None:
            raise Broken(
                FORGOTTEN_BREAKS[how],
                f"block {block} was made unmatchable ({how}) and not published again, yet the cache counts it as matchable",
                blocks=(block,),
            )
        slot = block * memory.stride
        if memory.slots[slot] == EMPTY:
            why = _why_empty(spec, block)
            raise Broken(why.law, f"the cache counts block {block} as matchable, but {why.words}", blocks=(block,), steps=why.steps)
        if slot in memory.drafts:
            raise Broken(
                "published-is-committed",
                f"the cache counts block {block} as matchable, but its first token is a draft that was not accepted yet",
                blocks=(block,),
                slots=((block, 0),),
            )
    spec.agenda.matchable.clear()


def _why_empty(spec: Spec, block: int) -> Why:
    """Why `block` shows no content: the newest loss recorded in it."""
    losses = [lost for lost in spec.memory.lost.values() if lost.block == block]
    if not losses:
        return Why("published-is-committed", "no accepted token was ever written there")
    newest = max(losses, key=lambda lost: lost.step)
    return Why(LOST_BREAKS[newest.how], f"what it held was lost when {show_lost(newest)}", (block,), (newest.step,))
