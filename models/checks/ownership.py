"""Laws on ownership: who lists which block, who may write where, and what a failure may change."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from kvproof.models.checks.content import contents
from kvproof.models.checks.naming import Broken, changed_sequences, counted, in_group, show
from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.observed import Entry, Observed
from kvproof.models.ops import Commit, Extend, Op, Release, Reset, SwapIn, Truncate, op_name, sequences_of
from kvproof.models.outcomes import Grant, Outcome
from kvproof.models.state import Pass, Sequence, Table

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


def no_aliasing(spec: Spec) -> None:
    """Sequences list one block only at the same place and where their committed tokens in it agree."""
    if len(spec.seen.holding) > 1:
        spec.exercised["no-aliasing"] += 1
    owners, held_twice = spec.owners, spec.seen.held_twice
    if not held_twice:
        return
    suspects: dict[int, set[Entry]] = {}
    for entry in spec.agenda.shared:
        block = _listed_at(spec, entry)
        if block in held_twice:
            suspects.setdefault(block, set()).add(entry)
    for block in spec.seen.orphaned & held_twice:
        suspects.setdefault(block, set()).update(owners[block])
    for block in sorted(suspects.keys() & spec.judged if spec.partial else suspects) if suspects else ():
        first, *others = owners[block]
        for other in others if first in suspects[block] else [entry for entry in others if entry in suspects[block]]:
            _may_share(spec, block, first, other)


def _listed_at(spec: Spec, entry: Entry) -> int | None:
    seq, group, index = entry
    tables = spec.seen.tables.get(seq)
    return None if tables is None or index >= len(tables[group]) else tables[group][index]


def _may_share(spec: Spec, block: int, one: tuple[int, int, int], two: tuple[int, int, int]) -> None:
    a, b = spec.live[one[0]], spec.live[two[0]]
    if a is b or one[1:] != two[1:]:
        place = "twice" if a is b else f"at index {one[2]} of group {one[1]} and at index {two[2]} of group {two[1]}"
        who = f"sequence {a.seq} lists" if a is b else f"sequences {a.seq} and {b.seq} list"
        raise Broken("no-aliasing", f"{who} block {block} {place}", blocks=(block,), sequences=(a.seq, b.seq), group=one[1])
    size = spec.block_sizes[one[1]]
    last = min(a.computed, b.computed, (one[2] + 1) * size) - 1
    if last >= one[2] * size and a.path[last] != b.path[last]:
        raise Broken(
            "no-aliasing",
            f"sequences {a.seq} and {b.seq} both list block {block}, but their {'namespaces' if a.namespace != b.namespace else 'tokens'} "
            f"up to position {last} differ",
            blocks=(block,),
            sequences=(a.seq, b.seq),
            positions=(last,),
            group=one[1],
        )


def handed_out(spec: Spec, sequence: Sequence, group: int, index: int, block: int) -> None:
    """A block that is handed out belongs to nobody and no device work still touches it."""
    if block not in spec.judged:
        return
    others = [other for other, _, _ in spec.owners[block] if other != sequence.seq] if block in spec.seen.held_twice else ()
    if others:
        raise Broken(
            "no-aliasing",
            f"block {block} still belongs to sequence {others[0]}, yet {_given(spec, sequence, group, index)}",
            blocks=(block,),
            sequences=(others[0], sequence.seq),
            group=group,
        )
    for step in spec.steps:
        for out in step:
            if block in out.blocks:
                raise Broken(
                    "fenced-reuse",
                    f"block {block} is still read or written by the pass of sequence {out.seq} in a step that has not ended, "
                    f"yet {_given(spec, sequence, group, index)}",
                    blocks=(block,),
                    sequences=(out.seq, sequence.seq),
                    group=group,
                )
    if spec.capabilities.steps:
        for out in spec.passes:
            if block in out.copied and not out.launched and out.seq != sequence.seq:
                raise Broken(
                    "copy-batch-sound",
                    f"block {block} takes part in a copy for sequence {out.seq} that has not run yet, yet {_given(spec, sequence, group, index)}",
                    blocks=(block,),
                    sequences=(out.seq, sequence.seq),
                    group=group,
                )
        if spec.steps and spec.awaited:
            spec.exercised["fenced-reuse"] += 1
    if not spec.lru:
        return
    shown = spec.seen.books.cached is not None
    if (spec.seen.was_cached(block) if shown else block in spec.memory.proven) and not spec.seen.was_held(block):
        spec.evicted.append(spec.recency.evicted(block, spec.step))


def _given(spec: Spec, sequence: Sequence, group: int, index: int) -> str:
    return f"sequence {sequence.seq} was given it at index {index} of its table{in_group(spec, group)}"


def exclusive_write(spec: Spec, sequence: Sequence, out: Pass, targets: Set[int]) -> None:
    """The pass writes only in blocks that its sequence alone holds. `targets` are filled by its copies first."""
    shared = spec.seen.held_twice & spec.judged
    for group, size, _ in spec.groups if shared else ():
        table = out.tables[group]
        for index in range(out.start // size, min(out.reach[group][1], len(table))):
            block = table[index]
            if block is None or block not in shared:
                continue
            others = [other for other, _, _ in spec.owners[block] if other != sequence.seq]
            positions = range(max(out.start, index * size), min(out.end, (index + 1) * size))
            if others and not (block not in targets and _rewrites(spec, sequence, out, group, positions)):
                position = next(p for p in positions if block in targets or not _rewrites(spec, sequence, out, group, range(p, p + 1)))
                raise Broken(
                    "exclusive-write",
                    f"the pass of sequence {sequence.seq} writes position {position} into block {block}{in_group(spec, group)}, "
                    f"which sequence {others[0]} holds too",
                    blocks=(block,),
                    sequences=(sequence.seq, others[0]),
                    positions=(position,),
                    slots=((block, position % size),),
                    group=group,
                )
    if len(spec.live) > 1:
        spec.exercised["exclusive-write"] += 1


def _rewrites(spec: Spec, sequence: Sequence, out: Pass, group: int, positions: range) -> bool:
    """Whether the pass may write these positions into a shared block, since it writes only what is there."""
    if not spec.rewrites:
        return False
    path = sequence.path[out.start : out.known_end] + out.path
    slots = [spec.slot(group, spec.tables(sequence)[group], position) for position in positions]
    wanted = [path[position - out.start] * len(spec.block_sizes) + group for position in positions]
    return [None if slot is None else spec.memory.slots[slot] for slot in slots] == wanted


def copy_batch(spec: Spec, op: Op, grant: Grant) -> None:
    """The copies of one grant are sound as one gather and scatter."""
    sources, targets = set(), set()
    for group, source, target in grant.copies:
        if (group, target) in targets:
            raise Broken(
                "copy-batch-sound",
                f"{op_name(op)} copies to block {target} twice in one grant",
                blocks=(target,),
                sequences=sequences_of(op),
            )
        groups = {entry[1] for entry in spec.owners.get(target, ())}
        if groups and group not in groups:
            raise Broken(
                "copy-before-write",
                f"{op_name(op)} copies block {source} to block {target} for the layers of group {group}, but block {target} is listed in group {min(groups)}, "
                "whose layers find nothing there",
                blocks=(source, target),
                sequences=sequences_of(op),
                group=group,
            )
        sources.add((group, source))
        targets.add((group, target))
    both = sorted(sources & targets)
    if both:
        raise Broken(
            "copy-batch-sound",
            f"block {both[0][1]} is both source and destination in one grant of {op_name(op)}: {list(grant.copies)}",
            blocks=(block for _, block in both),
            sequences=sequences_of(op),
        )
    if grant.copies:
        spec.exercised["copy-batch-sound"] += 1
        spec.exercised["copy-before-write"] += 1


def repeated_release(spec: Spec, op: Release, outcome: Outcome) -> None:
    """Releasing again changes nothing."""
    if outcome is not None:
        raise Broken(
            "release-once",
            f"sequence {op.seq} holds nothing, and releasing it raised {getattr(outcome, 'error', outcome)}",
            sequences=(op.seq,),
        )
    change = _difference(spec.seen, frozenset())
    if change:
        raise Broken(
            "release-once",
            f"sequence {op.seq} holds nothing, yet releasing it changed {change.words}",
            blocks=change.blocks,
            sequences=(op.seq, *change.sequences),
        )
    spec.exercised["release-once"] += 1


def dead_release(op: Release, error: str) -> NoReturn:
    """A release that the cache's own code cannot finish never lets go."""
    raise Broken("release-once", f"sequence {op.seq} cannot be let go of: release raised {error}")


NEVER_DONE: Final = {
    Commit: ("committed-is-covered", "the pass of sequence {0.seq} is computed, and the cache cannot count it"),
    Truncate: ("truncate-exact", "sequence {0.seq} is neither cut to {0.length} tokens nor was that refused"),
    Reset: ("reset-forgets", "the reset neither succeeded nor said that it cannot"),
    SwapIn: ("swap-round-trip", "sequence {0.seq} was swapped out and cannot be brought back"),
}
"""Which law a cache breaks that dies in an operation without a mark on its books, and why; in other operations no law has a word for that."""


def dead(spec: Spec, op: Op) -> None:  # noqa: ARG001 -- every check takes the spec
    """What the cache's own code cannot finish is not done."""
    if type(op) in NEVER_DONE:
        law, why = NEVER_DONE[type(op)]
        raise Broken(law, why.format(op), sequences=sequences_of(op))


def failure_changes_nothing(spec: Spec, op: Op) -> None:
    """An operation that failed left everything as it was; blocks already out of a window may be freed."""
    change = _difference(spec.seen, _left_the_window(spec))
    if change:
        if any(spec.windows):
            contents(spec, op, changed_sequences(spec, op))  # a block that left a window too early is that law's affair
        raise Broken(
            "failure-changes-nothing",
            f"{op_name(op)} failed, yet it changed {change.words}",
            blocks=change.blocks,
            sequences=(*change.sequences, *sequences_of(op)),
        )
    spec.exercised["failure-changes-nothing"] += 1


def no_spurious_exhaustion(spec: Spec, op: Extend, raised: str) -> None:
    """OutOfBlocks is true: a sequence that is alone fits if the pool could hold it; `exact` caches use every free or evictable block.

    `raised` is OutOfBlocks, or what the cache itself failed with instead: there was room, and the sequence did not get it.
    """
    sequence = spec.live[op.seq]
    alone = spec.seen.holding.keys() <= {op.seq} and not spec.is_busy()
    needs = _needs(spec, sequence, op)
    need, haves = sum(needs), [len(table) for table in spec.tables(sequence)]
    if alone and spec.room_for(needs, frozenset()):
        free = spec.seen.books.free
        if spec.any_drop and (free is None or len(free) + len(spec.owners) < need):
            raise Broken(
                "no-leak",
                f"every other block was released and device work has drained, yet sequence {op.seq}, which needs {need} of {spec.usable} blocks, "
                f"got {raised}",
                sequences=(op.seq,),
            )
        raise Broken(
            "no-spurious-exhaustion",
            f"sequence {op.seq} is alone and needs {need} of {spec.usable} blocks, yet extend raised {raised}",
            sequences=(op.seq,),
        )
    if spec.exact:
        kept_back = set(spec.owners) | spec.pinned()
        promised = [_promised(spec, sequence, group, kept_back) for group in range(len(needs))]
        lacks = [blocks - have - shared for blocks, have, shared in zip(needs, haves, promised, strict=True)]
        if spec.room_for(lacks, kept_back):
            raise Broken(
                "no-spurious-exhaustion",
                f"sequence {op.seq} needs at most {counted(sum(lacks), 'more block')}, and {counted(spec.usable - len(kept_back), 'block')} can be had, free or evictable, yet extend raised {raised}",
                sequences=(op.seq,),
            )
    if "exact" in spec.capabilities.policy and raised != "OutOfBlocks" and not spec.exhausted(op):
        # A cache that plans for more than it is asked for says OutOfBlocks, and does not fail.
        raise Broken("no-spurious-exhaustion", f"there was room for what sequence {op.seq} asks for, yet extend raised {raised}")
    spec.exercised["no-spurious-exhaustion"] += 1


def whole_pool_again(spec: Spec, sequence: Sequence) -> None:
    """Count an extend that was given (nearly) the whole pool: the pool holds that much, and nothing leaked."""
    if len(spec.owners) > spec.usable - len(spec.block_sizes) and spec.seen.holding.keys() <= {sequence.seq}:
        spec.exercised["no-spurious-exhaustion"] += 1
        spec.exercised["no-leak"] += spec.any_drop


def _needs(spec: Spec, sequence: Sequence, op: Extend) -> list[int]:
    """The most blocks of each group that a correct cache could want for the sequence: room for all it knows, and a copy of each block that it may not write in."""
    first = sequence.computed == 0
    tokens = len(sequence.known) + len(op.drafts)
    if spec.tight and not first:
        tokens = min(tokens, sequence.computed + op.count + len(op.drafts))
    needs = []
    for group, (table, size) in enumerate(zip(spec.tables(sequence), spec.block_sizes, strict=True)):
        need = blocks_for(tokens, size)
        to_write = table[sequence.computed // size :]
        if first:
            need += spec.capabilities.prefix and _may_end_inside(spec, sequence, group, size)
        elif spec.capabilities.prefix or spec.capabilities.fork:
            need += sum(block in spec.seen.held_twice for block in to_write[1:])
            need += sequence.computed % size != 0 or any(block in spec.seen.held_twice for block in to_write[:1])
        needs.append(need)
    return needs


def _may_end_inside(spec: Spec, sequence: Sequence, group: int, size: int) -> bool:
    """Whether a hit may end inside a block, so that a block is copied which both ends of the copy hold.

    A hit of blocks of one token cannot, unless even the last token is there: a cache may adopt the block of that one, and copy it to compute it again.
    """
    where = spec.memory.where
    return bool(where(spec.content(sequence, group, 0))) and (
        size > 1 or bool(where(spec.content(sequence, group, len(sequence.known) - 1)))
    )


def _promised(spec: Spec, sequence: Sequence, group: int, kept_back: Set[int]) -> int:
    """How many of the blocks that match has just promised take no room: they are kept back anyway, or no token to come reads them."""
    tokens = spec.hits.get(sequence.seq, 0) if sequence.computed == 0 else 0
    size, low = spec.block_sizes[group], window_low(tokens, spec.windows[group])
    shared = 0
    for end in range(size, tokens + 1, size):
        shown_by = set(spec.memory.blocks_showing((spec.content(sequence, group, end - 1),)))
        shared += shown_by <= kept_back if shown_by else end <= low
    return shared


def mirror(spec: Spec, launched: Iterable[Pass]) -> None:
    """When a step begins, the device's tables of the sequences in it are the manager's."""
    for out in launched:
        worker = spec.seen.last.worker_tables.get(out.seq)
        if worker is None or spec.left_out(out.seq):
            continue
        for group, (theirs, ours) in enumerate(zip(worker, spec.seen.tables.get(out.seq, spec.seen.no_tables), strict=True)):
            if not _follows(theirs, ours, out.reach[group][0]):
                raise Broken(
                    "mirror-follows",
                    f"the step begins with {show(theirs)} as the device's table of sequence {out.seq}{in_group(spec, group)}, but the manager's is {show(ours)}",
                    sequences=(out.seq,),
                    group=group,
                )
        spec.exercised["mirror-follows"] += 1


def _follows(theirs: Table, ours: Table, first_read: int) -> bool:
    """Whether a table of the device is the manager's, but for blocks that the manager let go of behind the window, where no pass reads the table."""
    if theirs == ours:
        return True
    behind = [block if block is not None else theirs[index] for index, block in enumerate(ours[:first_read]) if index < len(theirs)]
    return theirs == (*behind, *ours[first_read:])


def tail_waste(spec: Spec, changed: Iterable[Sequence]) -> None:
    """A tight cache allocates no block beyond what extends asked for."""
    for sequence in changed:
        tables = spec.tables(sequence)
        for group, size, _ in spec.groups:
            table = tables[group]
            if not table:
                continue
            if (len(table) - 1) * size >= sequence.asked:
                raise Broken(
                    "tail-waste-bounded",
                    f"sequence {sequence.seq} was asked to have room for {counted(sequence.asked)}, "
                    f"which is {counted(blocks_for(sequence.asked, size), 'block')}, but its table is {show(table)}{in_group(spec, group)}",
                    sequences=(sequence.seq,),
                    group=group,
                )
            spec.exercised["tail-waste-bounded"] += 1


def _left_the_window(spec: Spec) -> frozenset[int]:
    """The blocks that tables dropped because every token in them is out of the window, and those that were only held to be copied there."""
    dropped = set()
    for (seq, group, index), block in spec.seen.unlisted:
        sequence, now = spec.live.get(seq), spec.seen.tables.get(seq)
        if sequence is None or now is None or spec.windows[group] is None:
            continue
        oldest_needed = window_low(sequence.computed, spec.windows[group]) // spec.block_sizes[group]
        if index < oldest_needed and index < len(now[group]) and now[group][index] is None:
            dropped.add(block)
    for transfer in reversed(spec.transfers):
        for target, source in reversed(transfer.sources.items()):  # a source may be the destination of an earlier copy
            if target in dropped:
                dropped.add(source)
    return frozenset(dropped)


class Altered(NamedTuple):
    """One thing that an operation changed: in words, and whose it is."""

    words: str
    blocks: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()


def _difference(seen: Observed, ignored: frozenset[int]) -> Altered | None:
    """What the last operation changed first; None if it changed nothing. Blocks in `ignored` may have moved."""
    for seq, tables in seen.was.items():
        now = seen.tables.get(seq)
        if now is None:
            return Altered(f"sequence {seq}, which is gone", sequences=(seq,))
        for old, new in zip(tables, now, strict=True):
            if tuple(None if b in ignored else b for b in old) != new and old != new:
                moved = tuple(sorted({block for block in (*old, *new) if block is not None and old.count(block) != new.count(block)}))
                return Altered(f"the block table of sequence {seq} from {show(old)} to {show(new)}", moved, (seq,))
    return _books_difference(seen, ignored)


def _books_difference(seen: Observed, ignored: frozenset[int]) -> Altered | None:
    before, last = seen.before, seen.last
    if before.refcounts is not None and last.refcounts is not None:
        for block in sorted(last.refcounts.keys() - ignored):
            was, now = seen.books.counts_before[block], last.refcounts[block]
            if was != now:
                return Altered(f"the reference count of block {block} from {was} to {now}", (block,))
    for name, was_looked_at, moved in (
        ("free list", before.free, last.free),
        ("matchable set", before.cached, last.cached),
        ("retiring set", before.retiring, last.retiring),
    ):
        if was_looked_at is not None and moved is not None:
            changed = (set(moved.joined) ^ set(moved.left)) - ignored
            if changed:
                block = min(changed)
                return Altered(f"the {name}: block {block} {'joined' if block in moved.joined else 'left'} it", (block,))
    return None
