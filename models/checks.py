"""The laws of a cache, each as one short check on what was seen. `Spec` calls them; a check that fails raises `Broken` with the law's name.

Where several laws could be named, the check names the one that a reader can act on: the operation that broke it, not the symptom that followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.memory import EMPTY, Lost
from kvproof.models.observed import Entry, Observed
from kvproof.models.ops import Evict, Extend, Fork, Match, Namespace, Op, Release, SwapIn, Truncate, op_name
from kvproof.models.outcomes import Grant
from kvproof.models.state import Evicted, Pass, Sequence, Table

if TYPE_CHECKING:
    from kvproof.models.spec import Outcome, Spec


class Broken(Exception):
    """A law does not hold."""

    def __init__(self, law: str, reason: str) -> None:
        super().__init__(f"{law}: {reason}")
        self.law = law
        self.reason = reason


def everything(spec: Spec, op: Op) -> None:
    """The laws that hold after every operation."""
    spec.agenda.touched(spec)
    if spec.thorough:
        spec.agenda.everything(spec)
    no_aliasing(spec)
    contents(spec, op)
    books(spec, op)
    if "tight" in spec.capabilities.policy:
        tail_waste(spec, op)
    if spec.seen.last.events is not None and spec.seen.books.cached is not None:
        events(spec)
    if "lru" in spec.capabilities.policy:
        eviction_order(spec)


# -- content: what each live sequence reads ---------------------------------------------------------------------------------------------------


def contents(spec: Spec, op: Op) -> None:
    """Every readable position of every live sequence shows its own ghost; only what changed is looked at again."""
    for seq in _changed_sequences(spec, op):
        sequence = spec.live.get(seq)
        if sequence is not None and sequence.computed == 0 and sequence.out is None and not sequence.swapped:
            holds_nothing(sequence, spec.tables(sequence), op)
    last = None
    for sequence, group, index in _readers(spec):
        entry_contents(spec, op, sequence, group, index)
        if (sequence.seq, group) != last:
            last = sequence.seq, group
            _count_reading(spec, sequence, group)


def _readers(spec: Spec) -> list[tuple[Sequence, int, int]]:
    """The table entries that have to be read again, in the order of sequences, groups and positions."""
    live = spec.live
    if not spec.agenda.entries:
        return []
    found = [(live[seq], group, index) for seq, group, index in spec.agenda.entries if seq in live]
    found = [reader for reader in found if reader[0].computed and not reader[0].swapped]
    if len(found) > 1:
        found.sort(key=lambda reader: (reader[0].born, reader[1], reader[2]))
    return found


def holds_nothing(sequence: Sequence, tables: tuple[Table, ...], op: Op) -> None:
    """A sequence that has computed nothing and has no pass out holds no block."""
    for table in tables:
        if table:
            law = "release-once" if isinstance(op, Release) else "committed-is-covered"
            raise Broken(law, f"sequence {sequence.seq} holds nothing, yet its block table is {_show(table)} after {op_name(op)}")


def entry_contents(spec: Spec, op: Op, sequence: Sequence, group: int, index: int) -> None:
    """The positions in one table entry that the next token of `sequence` reads are in the table, were written, and are the sequence's own."""
    size = spec.block_sizes[group]
    low = max(index * size, window_low(sequence.computed, spec.windows[group]))
    high = min((index + 1) * size, sequence.computed)
    if low >= high:
        return
    table = spec.tables(sequence)[group]
    block = table[index] if index < len(table) else None
    if block is None:
        raise Broken(_law_for_missing(spec, op, sequence, group), _missing(spec, sequence, group, table, low))
    wanted = _contents(spec, sequence, group, low, high)
    if spec.memory.holds(block, wanted, low - index * size) or spec.memory.learn(block, wanted, low - index * size):
        return
    first = block * spec.memory.stride + low - index * size
    offset = next(i for i, content in enumerate(wanted) if spec.memory.slots[first + i] != content)
    law = _law_for_wrong(spec, op, sequence, group, low + offset, spec.memory.slots[first + offset])
    raise Broken(law, _wrong(spec, op, sequence, group, low + offset, first + offset))


def _contents(spec: Spec, sequence: Sequence, group: int, low: int, high: int) -> list[int]:
    """The ghosts that the positions `low` to `high` - 1 must show."""
    groups = len(spec.block_sizes)
    nodes = sequence.path[low:high]
    return nodes if groups == 1 else [node * groups + group for node in nodes]


def _count_reading(spec: Spec, sequence: Sequence, group: int) -> None:
    for law in ("committed-is-covered", "initialised-read", "own-content"):
        spec.exercised[law] += 1
    if spec.windows[group] is not None and spec.readable(sequence, group).start > 0:
        spec.exercised["window-keeps-what-it-needs"] += 1


def room(spec: Spec, sequence: Sequence, out: Pass) -> None:
    """The table has a block for every position that the pass writes.

    A windowed group may leave out positions that no token after the pass can read, all drafts rejected.
    """
    for group, (table, size) in enumerate(zip(spec.tables(sequence), spec.block_sizes, strict=True)):
        needed_from = max(out.start, window_low(out.known_end, spec.windows[group]))
        for index in range(needed_from // size, blocks_for(out.end, size)):
            if index >= len(table) or table[index] is None:
                skipped = spec.windows[group] is not None and index < len(table)
                raise Broken(
                    "window-keeps-what-it-needs" if skipped else "committed-is-covered",
                    f"extend granted sequence {sequence.seq} the positions {out.start} to {out.end - 1}, but its table {_show(table)} "
                    f"has no block for position {max(needed_from, index * size)}{_in_group(spec, group)}",
                )


# -- ownership ------------------------------------------------------------------------------------------------------------------------------------


def no_aliasing(spec: Spec) -> None:
    """Sequences list one block only at the same place and where their committed tokens in it agree."""
    if len(spec.seen.holding) > 1:
        spec.exercised["no-aliasing"] += 1
    if not spec.agenda.shared and not spec.seen.orphaned:
        return
    owners = spec.owners
    suspects: dict[int, set[Entry]] = {}
    for entry in spec.agenda.shared:
        block = _listed_at(spec, entry)
        if block is not None and len(owners[block]) > 1:
            suspects.setdefault(block, set()).add(entry)
    for block in spec.seen.orphaned:
        suspects.setdefault(block, set()).update(owners[block])
    for block in sorted(suspects):
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
        raise Broken("no-aliasing", f"{who} block {block} {place}")
    size = spec.block_sizes[one[1]]
    last = min(a.computed, b.computed, (one[2] + 1) * size) - 1
    if last >= one[2] * size and a.path[last] != b.path[last]:
        raise Broken(
            "no-aliasing",
            f"sequences {a.seq} and {b.seq} both list block {block}, but their {'namespaces' if a.namespace != b.namespace else 'tokens'} "
            f"up to position {last} differ",
        )


def handed_out(spec: Spec, sequence: Sequence, group: int, index: int, block: int) -> None:
    """A block that is handed out belongs to nobody and no device work still touches it."""
    others = [other for other, _, _ in spec.owners[block] if other != sequence.seq]
    place = f"at index {index} of its table{_in_group(spec, group)}"
    if others:
        raise Broken(
            "no-aliasing", f"block {block} still belongs to sequence {others[0]}, yet sequence {sequence.seq} was given it {place}"
        )
    for step in spec.steps:
        for out in step:
            if block in out.blocks:
                raise Broken(
                    "fenced-reuse",
                    f"block {block} is still read or written by the pass of sequence {out.seq} in a step that has not ended, "
                    f"yet sequence {sequence.seq} was given it {place}",
                )
    if spec.capabilities.steps:
        for out in spec.passes:
            if block in out.copied and not out.launched and out.seq != sequence.seq:
                raise Broken(
                    "copy-batch-sound",
                    f"block {block} takes part in a copy for sequence {out.seq} that has not run yet, yet sequence {sequence.seq} was given it {place}",
                )
        if spec.steps:
            spec.exercised["fenced-reuse"] += bool(spec.awaited)
    if "lru" not in spec.capabilities.policy:
        return
    if (spec.seen.was_cached(block) or block in spec.memory.proven) and not spec.seen.was_held(block):
        spec.evicted.append(spec.recency.evicted(block, spec.step))


def exclusive_write(spec: Spec, sequence: Sequence, out: Pass, grant: Grant) -> None:
    """The pass writes only in blocks that its sequence alone holds."""
    targets = {target for _, _, target in grant.copies}
    for group, (table, size) in enumerate(zip(spec.tables(sequence), spec.block_sizes, strict=True)):
        for index in range(out.start // size, min(blocks_for(out.end, size), len(table))):
            block = table[index]
            if block is None or len(spec.owners[block]) == 1:
                continue
            others = [other for other, _, _ in spec.owners[block] if other != sequence.seq]
            positions = range(max(out.start, index * size), min(out.end, (index + 1) * size))
            if others and not (block not in targets and _rewrites(spec, sequence, out, group, positions)):
                position = next(p for p in positions if block in targets or not _rewrites(spec, sequence, out, group, range(p, p + 1)))
                raise Broken(
                    "exclusive-write",
                    f"the pass of sequence {sequence.seq} writes position {position} into block {block}{_in_group(spec, group)}, "
                    f"which sequence {others[0]} holds too",
                )
    if len(spec.live) > 1:
        spec.exercised["exclusive-write"] += 1


def _rewrites(spec: Spec, sequence: Sequence, out: Pass, group: int, positions: range) -> bool:
    """Whether the pass may write these positions into a shared block, since it writes only what is there."""
    if "rewrites" not in spec.capabilities.policy:
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
            raise Broken("copy-batch-sound", f"{op_name(op)} copies to block {target} twice in one grant")
        sources.add((group, source))
        targets.add((group, target))
    both = sorted(sources & targets)
    if both:
        raise Broken(
            "copy-batch-sound", f"block {both[0][1]} is both source and destination in one grant of {op_name(op)}: {list(grant.copies)}"
        )
    if grant.copies:
        spec.exercised["copy-batch-sound"] += 1
        spec.exercised["copy-before-write"] += 1


def repeated_release(spec: Spec, op: Release, outcome: Outcome) -> None:
    """Releasing again changes nothing."""
    if outcome is not None:
        raise Broken(
            "release-once", f"sequence {op.seq} holds nothing any more, and releasing it again raised {getattr(outcome, 'error', outcome)}"
        )
    change = _difference(spec.seen, frozenset())
    if change:
        raise Broken("release-once", f"sequence {op.seq} holds nothing any more, yet releasing it again changed {change}")
    spec.exercised["release-once"] += 1


def failure_changes_nothing(spec: Spec, op: Op) -> None:
    """An operation that failed left everything as it was; blocks already out of a window may be freed."""
    change = _difference(spec.seen, _left_the_window(spec))
    if change:
        if any(spec.windows):
            contents(spec, op)  # a block that left a window too early is that law's affair
        raise Broken("failure-changes-nothing", f"{op_name(op)} failed, yet it changed {change}")
    spec.exercised["failure-changes-nothing"] += 1


def no_spurious_exhaustion(spec: Spec, op: Extend) -> None:
    """OutOfBlocks is true: a sequence that is alone fits if the pool could hold it; `exact` caches use every free or evictable block."""
    sequence = spec.live[op.seq]
    alone = spec.seen.holding.keys() <= {op.seq} and not spec.passes and not spec.steps
    need = _need(spec, sequence, op)
    have = sum(len(table) for table in spec.tables(sequence))
    if alone and need <= spec.usable:
        free = spec.seen.books.free
        if spec.any_drop and (free is None or len(free) + len(spec.owners) < need):
            raise Broken(
                "no-leak",
                f"every other block was released and device work has drained, yet sequence {op.seq}, which needs {need} of {spec.usable} blocks, "
                f"got OutOfBlocks",
            )
        raise Broken(
            "no-spurious-exhaustion", f"sequence {op.seq} is alone and needs {need} of {spec.usable} blocks, yet extend raised OutOfBlocks"
        )
    kept_back = set(spec.owners) | spec.pinned()
    if "exact" in spec.capabilities.policy and need - have <= spec.usable - len(kept_back):
        raise Broken(
            "no-spurious-exhaustion",
            f"sequence {op.seq} needs at most {need - have} more blocks and {spec.usable - len(kept_back)} are free or evictable, yet extend raised OutOfBlocks",
        )
    spec.exercised["no-spurious-exhaustion"] += 1


def whole_pool_again(spec: Spec, sequence: Sequence) -> None:
    """Count an extend that was given (nearly) the whole pool: the pool holds that much, and nothing leaked."""
    alone = spec.seen.holding.keys() <= {sequence.seq}
    if alone and len(spec.owners) > spec.usable - len(spec.block_sizes):
        spec.exercised["no-spurious-exhaustion"] += 1
        spec.exercised["no-leak"] += spec.any_drop


def _need(spec: Spec, sequence: Sequence, op: Extend) -> int:
    """The most blocks that a correct cache could want for the sequence: room for all it knows, and a copy of each block that it may not write in."""
    first = sequence.computed == 0
    tokens = len(sequence.known) + len(op.drafts)
    if "tight" in spec.capabilities.policy and not first:
        tokens = min(tokens, sequence.computed + op.count + len(op.drafts))
    need = 0
    for group, (table, size) in enumerate(zip(spec.tables(sequence), spec.block_sizes, strict=True)):
        need += blocks_for(tokens, size)
        if first:
            need += spec.capabilities.prefix and any(True for _ in spec.memory.where(spec.content(sequence, group, 0)))
            continue
        to_write = table[sequence.computed // size :]
        if not (spec.capabilities.prefix or spec.capabilities.fork):
            continue
        need += sum(block is not None and len(spec.owners[block]) > 1 for block in to_write[1:])
        need += sequence.computed % size != 0 or any(block is not None and len(spec.owners[block]) > 1 for block in to_write[:1])
    return need


def mirror(spec: Spec, launched: Iterable[Pass]) -> None:
    """When a step begins, the device's tables of the sequences in it are the manager's."""
    for out in launched:
        worker = spec.seen.last.worker_tables.get(out.seq)
        if worker is None:
            continue
        for group, (theirs, ours) in enumerate(zip(worker, spec.seen.tables[out.seq], strict=True)):
            if theirs != ours:
                raise Broken(
                    "mirror-follows",
                    f"the step begins with {_show(theirs)} as the device's table of sequence {out.seq}{_in_group(spec, group)}, but the manager's is {_show(ours)}",
                )
        spec.exercised["mirror-follows"] += 1


def tail_waste(spec: Spec, op: Op) -> None:
    """A tight cache allocates no block beyond what extends asked for."""
    for seq in _changed_sequences(spec, op):
        sequence = spec.live.get(seq)
        if sequence is None:
            continue
        for group, table in enumerate(spec.tables(sequence)):
            if table and (len(table) - 1) * spec.block_sizes[group] >= sequence.asked:
                raise Broken(
                    "tail-waste-bounded",
                    f"sequence {sequence.seq} was asked to have room for {sequence.asked} tokens, "
                    f"which take {blocks_for(sequence.asked, spec.block_sizes[group])} blocks, but its table is {_show(table)}{_in_group(spec, group)}",
                )
            spec.exercised["tail-waste-bounded"] += bool(table)


# -- prefix -----------------------------------------------------------------------------------------------------------------------------------------


def hit(spec: Spec, sequence: Sequence, tokens: int) -> None:
    """A match of `tokens` is a prefix of the sequence that is really in the pool, published, and not the whole of it."""
    _leaves_last_token(sequence, tokens, "match found")
    _note_prefix_situations(spec, sequence, tokens)
    for group, size in enumerate(spec.block_sizes):
        if spec.windows[group] is not None:
            continue  # which blocks a windowed group would offer is seen when they are adopted
        for start in range(0, tokens, size):
            wanted = range(start, min(start + size, tokens))
            if not _in_pool(spec, sequence, group, wanted):
                if spec.memory.blurred:
                    return  # it may lie where nothing is known; what is adopted of it will be seen
                law, why = _why_absent(spec, sequence, group, wanted)
                raise Broken(law, f"match found {_counted(tokens)} for sequence {sequence.seq}, but {why}")
            if "lru" in spec.capabilities.policy:
                _prove(spec, sequence, group, wanted)


def _prove(spec: Spec, sequence: Sequence, group: int, wanted: range) -> None:
    """Where only one block could serve a hit, and nobody holds it, it is matchable."""
    content = spec.content(sequence, group, wanted[-1])
    only = {spec.memory.block_of(slot) for slot in spec.memory.where(content)}
    if len(only) == 1 and only.isdisjoint(spec.owners):
        block = only.pop()
        spec.memory.proven.add(block)
        proven_order(spec, block)


def steady_hit(spec: Spec, op: Match, tokens: int) -> None:
    """As long as nothing succeeded that could change it, a match says the same again: what failed in between changed nothing."""
    prompt = spec.live[op.seq].path[-1]
    said = spec.hits.setdefault(prompt, tokens)
    if said != tokens:
        raise Broken(
            "failure-changes-nothing",
            f"match found {said} tokens for the prompt of sequence {op.seq} before and {tokens} now, though every operation in between failed or had nothing to do",
        )


def adoption(spec: Spec, sequence: Sequence, grant: Grant) -> None:
    """The adopted tokens are really in the blocks that the table lists (or in those that are copied there)."""
    _leaves_last_token(sequence, grant.adopted, "extend adopted")
    if spec.capabilities.prefix:
        _note_prefix_situations(spec, sequence, grant.adopted)
    source_of = {(group, target): source for group, source, target in grant.copies}
    for group, (table, size) in enumerate(zip(spec.tables(sequence), spec.block_sizes, strict=True)):
        low = window_low(grant.adopted, spec.windows[group])
        for index in range(low // size, blocks_for(grant.adopted, size)):
            block = table[index] if index < len(table) else None
            positions = range(max(low, index * size), min(grant.adopted, (index + 1) * size))
            if block is None:
                law = "committed-is-covered" if spec.windows[group] is None else "window-keeps-what-it-needs"
                missing = _missing(spec, sequence, group, table, positions.start)
                raise Broken(law, f"extend adopted {grant.adopted} tokens, but {missing}")
            source = source_of.get((group, block), block)
            for position in positions if not _plainly_adopted(spec, sequence, group, positions, source, block) else ():
                _adopted_slot(spec, sequence, group, position, source, copied=source != block)


def _plainly_adopted(spec: Spec, sequence: Sequence, group: int, positions: range, source: int, block: int) -> bool:
    """Whether a whole block shows what is adopted from it: the usual case, found without looking at each position."""
    memory, size = spec.memory, spec.block_sizes[group]
    first = source * memory.stride
    return (
        source == block
        and source not in memory.forgotten
        and memory.holds(source, _contents(spec, sequence, group, positions.start, positions.stop), positions.start % size)
        and EMPTY not in memory.slots[first : first + size]
        and memory.drafts.isdisjoint(range(first, first + size))
    )


def _adopted_slot(spec: Spec, sequence: Sequence, group: int, position: int, block: int, *, copied: bool) -> None:
    memory = spec.memory
    slot = block * memory.stride + position % spec.block_sizes[group]
    expected = spec.content(sequence, group, position)
    memory.learn(block, [expected], position % spec.block_sizes[group])
    found = memory.slots[slot]
    told = f"extend adopted position {position} of sequence {sequence.seq} in block {block}, but"
    if found != expected:
        law, why = _why_not(spec, expected, found, block)
        raise Broken(law, f"{told} {why}")
    if slot in memory.drafts:
        raise Broken("published-is-committed", f"{told} what lies there is a draft that was not accepted yet")
    if block in memory.forgotten:
        raise Broken(_FORGOTTEN[memory.forgotten[block]], f"{told} that block was made unmatchable ({memory.forgotten[block]})")
    if not copied:
        _not_open(spec, block, told)


def _not_open(spec: Spec, block: int, told: str) -> None:
    """A block that its holder has not filled yet is not shared as it stands."""
    for seq, group, index in spec.owners[block]:
        holder = spec.live.get(seq)
        if holder is None or (holder.computed == 0 and holder.out is None):
            continue
        filled = holder.out.known_end if holder.out else holder.computed
        end = (index + 1) * spec.block_sizes[group]
        first_unfilled = block * spec.memory.stride + filled % spec.block_sizes[group]
        whole = spec.memory.slots[first_unfilled] != EMPTY and first_unfilled not in spec.memory.drafts
        if index * spec.block_sizes[group] < filled < end and not whole:
            raise Broken(
                "published-is-committed",
                f"{told} sequence {seq} has filled only {filled - end + spec.block_sizes[group]} tokens of that block",
            )


def _leaves_last_token(sequence: Sequence, tokens: int, told: str) -> None:
    if tokens >= len(sequence.known):
        raise Broken(
            "hit-leaves-last-token",
            f"{told} {_counted(tokens)} for sequence {sequence.seq}, which knows {len(sequence.known)}: none is left to compute",
        )


def _in_pool(spec: Spec, sequence: Sequence, group: int, wanted: range) -> bool:
    """Whether some block shows the wanted positions, published and not forgotten."""
    memory = spec.memory
    contents_ = [spec.content(sequence, group, position) for position in wanted]
    offset = wanted.start % spec.block_sizes[group]
    for slot in memory.where(contents_[-1]):
        block = memory.block_of(slot)
        first = block * memory.stride + offset
        if (
            block not in memory.forgotten
            and memory.holds(block, contents_, offset)
            and memory.drafts.isdisjoint(range(first, first + len(wanted)))
        ):
            return True
    return False


def _why_absent(spec: Spec, sequence: Sequence, group: int, wanted: range) -> tuple[str, str]:
    """Which law a hit on the positions `wanted`, which no block offers, breaks."""
    memory = spec.memory
    last = spec.content(sequence, group, wanted[-1])
    if last not in memory.lost and not any(True for _ in memory.where(last)) and not _known_elsewhere(spec, sequence, wanted[-1]):
        # Nobody ever had these tokens, however many of the first ones somebody had.
        law, why = _why_not(spec, last, EMPTY)
        begun = _begun(spec, sequence, group, wanted) if law == "hit-is-true-prefix" else 0
        return (
            ("published-is-committed", f"only {begun} of these tokens were ever computed")
            if begun
            else (law, f"at position {wanted[-1]} {why}")
        )
    for position in wanted:
        content = spec.content(sequence, group, position)
        slots = list(memory.where(content))
        if not slots:
            law, why = _why_not(spec, content, EMPTY)
            started = position > wanted.start and law == "hit-is-true-prefix"
            return (
                ("published-is-committed", f"only the first {position} tokens of it were ever computed")
                if started
                else (law, f"at position {position} {why}")
            )
        if all(slot in memory.drafts for slot in slots):
            return "published-is-committed", f"position {position} is a draft that was not accepted yet"
        forgotten = [memory.forgotten[block] for block in map(memory.block_of, slots) if block in memory.forgotten]
        if len(forgotten) == len(slots):
            return _FORGOTTEN[forgotten[0]], f"the block that holds position {position} was made unmatchable ({forgotten[0]})"
    return "published-is-committed", f"no single block holds the positions {wanted.start} to {wanted.stop - 1}"


def _why_not(spec: Spec, expected: int, found: int, block: int | None = None) -> tuple[str, str]:
    """Which law is broken where `found` lies in a slot (of `block`) that should show `expected`, and why, in prose."""
    groups = len(spec.block_sizes)
    tree = spec.tree
    node = expected // groups
    tokens, namespace = tree.tokens(node), tree.namespace(node)
    lost = spec.memory.lost.get(expected)
    if lost is not None and lost.block == block:
        return _LOST[lost.how], f"the content it needs was there until {_show_lost(lost)}"
    if found and tree.tokens(found // groups) == tokens and tree.namespace(found // groups) != namespace:
        return (
            "hit-same-namespace",
            f"what lies there belongs to {_show_namespace(tree.namespace(found // groups))}, not to {_show_namespace(namespace)}",
        )
    twin = _twin(spec, expected) if block is None else None
    if twin is not None:
        return "hit-same-namespace", f"these tokens were computed for {_show_namespace(twin)}, not for {_show_namespace(namespace)}"
    if lost is not None:
        return _LOST[lost.how], f"the content it needs was in block {lost.block} until {_show_lost(lost)}"
    if not found:
        twin = _twin(spec, expected)
        if twin is not None:
            return (
                "hit-same-namespace",
                f"these tokens were computed only for {_show_namespace(twin)}, not for {_show_namespace(namespace)}",
            )
        if block is not None:
            return "initialised-read", "nothing that a sequence computed lies there"
        if expected % groups == 0 or groups == 1:
            return "hit-is-true-prefix", "no sequence ever computed this prefix"
        return "initialised-read", "no sequence ever computed this prefix in that group"
    return (
        "hit-is-true-prefix",
        f"what lies there is position {len(tree.tokens(found // groups)) - 1} of the tokens {_show_tokens(tree.tokens(found // groups))}",
    )


def _begun(spec: Spec, sequence: Sequence, group: int, wanted: range) -> int:
    """How many tokens of the prompt lead to a block that is still open, so that a hit on all of `wanted` took it for whole; 0 if none do."""
    memory = spec.memory
    for position in reversed(wanted[:-1]):
        for slot in memory.where(spec.content(sequence, group, position)):
            if memory.slots[slot + 1] == EMPTY or slot + 1 in memory.drafts:
                return position + 1
    return 0


def _known_elsewhere(spec: Spec, sequence: Sequence, position: int) -> bool:
    """Whether another sequence, gone or not, knew the same tokens up to `position`: then a cache may have published what was never computed."""
    node = sequence.path[position]
    return any(other is not sequence and other.path[position : position + 1] == [node] for other in spec.sequences.values())


def _twin(spec: Spec, expected: int) -> Namespace | None:
    """Another namespace for which the pool holds the same tokens."""
    node, group = divmod(expected, len(spec.block_sizes))
    tokens, namespace = spec.tree.tokens(node), spec.tree.namespace(node)
    for other in spec.tree.namespaces():
        twin = spec.tree.find(other, tokens) if other != namespace else None
        if twin is not None and any(True for _ in spec.memory.where(twin * len(spec.block_sizes) + group)):
            return other
    return None


def _note_prefix_situations(spec: Spec, sequence: Sequence, tokens: int) -> None:
    """Count which prefix laws this look-up really put to the test."""
    memory, exercised = spec.memory, spec.exercised
    if tokens:
        exercised["hit-is-true-prefix"] += 1
        exercised["published-is-committed"] += 1
    if any(True for _ in memory.where(spec.content(sequence, 0, len(sequence.known) - 1))):
        exercised["hit-leaves-last-token"] += 1
    first = spec.content(sequence, 0, 0)
    spec.exercised["hit-same-namespace"] += any(
        any(True for _ in memory.where(node * len(spec.block_sizes)))
        for node in spec.tree.begun(sequence.known[0])
        if node != sequence.path[0]
    )
    lost = memory.lost.get(first)
    if lost is not None and not memory.where(first):
        exercised[_LOST[lost.how]] += 1
    for slot in memory.where(first):
        how = memory.forgotten.get(memory.block_of(slot))
        if how is not None:
            exercised[_FORGOTTEN[how]] += 1


def eviction(spec: Spec, op: Evict) -> None:
    """Eviction makes blocks unmatchable and takes none from its holders."""
    for seq, tables in spec.seen.was.items():
        if spec.seen.tables.get(seq) != tables:
            raise Broken("evict-only-unheld", f"evict({list(op.blocks)}) changed the block table of sequence {seq}")
    held = spec.universe.intersection(op.blocks).intersection(spec.owners)
    free = spec.seen.books.free
    if free is not None and held.intersection(free):
        raise Broken(
            "evict-only-unheld",
            f"evict({list(op.blocks)}) put block {min(held.intersection(free))} on the free list, though a sequence holds it",
        )
    spec.exercised["evict-only-unheld"] += bool(held)
    cached = spec.seen.books.cached
    if cached is not None:
        left = spec.universe.intersection(op.blocks).intersection(cached)
        if left:
            raise Broken("eviction-forgets", f"block {min(left)} was evicted, yet the cache still counts it as matchable")
        spec.exercised["eviction-forgets"] += 1


def reset(spec: Spec) -> None:
    """After a successful reset nothing is matchable."""
    cached = spec.seen.books.cached
    if cached:
        raise Broken("reset-forgets", f"reset succeeded, yet the cache still counts block {min(cached)} as matchable")
    spec.exercised["reset-forgets"] += cached is not None


def events(spec: Spec) -> None:
    """Replaying the events gives the matchable set."""
    agenda, replayed, cached = spec.agenda, spec.seen.replayed, spec.seen.books.cached
    assert cached is not None
    for block in agenda.told:
        if (block in replayed) != (block in cached):
            agenda.mistold.add(block)
        else:
            agenda.mistold.discard(block)
    agenda.told.clear()
    if agenda.mistold:
        extra, missing = sorted(agenda.mistold & replayed), sorted(agenda.mistold & cached)
        detail = (
            f"they leave block {extra[0]} matchable, which it is not" if extra else f"they do not say that block {missing[0]} is matchable"
        )
        raise Broken("events-replay-index", f"replaying the events gives {sorted(replayed)}, the cache matches {sorted(cached)}: {detail}")
    spec.exercised["events-replay-index"] += bool(cached)


def eviction_order(spec: Spec) -> None:
    """Least recently used first, deeper blocks first, judged by the books, and only where every notion of recency agrees."""
    seen, books, recency = spec.seen, spec.seen.books, spec.recency
    free, cached = books.free, books.cached
    if free is None or cached is None or not (spec.evicted or spec.agenda.settled):
        return
    recency.idle(spec.agenda.settled)
    for out in spec.evicted:
        older = recency.older(out.used_at, idle=lambda block: block in free and block in cached and block not in spec.owners)
        for kept in [*older, *recency.deeper(out)]:
            if seen.was_free(kept) and seen.was_cached(kept) and kept in cached and kept not in spec.owners:
                spec.exercised["eviction-follows-policy"] += 1
                _evicted_in_turn(spec, out, kept)


def proven_order(spec: Spec, kept: int) -> None:
    """The same without books: a hit has just shown that `kept`, which nobody holds, is still matchable."""
    let_go = spec.recency.let_go.get(kept)
    for out in spec.past_evictions:
        if let_go is not None and let_go[0] < out.step:
            spec.exercised["eviction-follows-policy"] += 1
            _evicted_in_turn(spec, out, kept)


def _evicted_in_turn(spec: Spec, out: Evicted, kept: int) -> None:
    kept_at = spec.recency.seen_at.get(kept, 0)
    if kept_at < out.used_at and not _has_longer(spec, kept):
        raise Broken(
            "eviction-follows-policy",
            f"block {out.block}, used in step {out.used_at}, was evicted in step {out.step} before block {kept}, last used in step {kept_at}",
        )
    if _lies_above(spec, out, kept):
        raise Broken(
            "eviction-follows-policy",
            f"block {out.block} was evicted in step {out.step} before block {kept}, which lies deeper in the same sequence and was let go of with it",
        )


def _has_longer(spec: Spec, block: int) -> bool:
    """Whether the pool holds a continuation of what `block` holds: a cache that evicts leaves first has to keep it."""
    groups, memory = len(spec.block_sizes), spec.memory
    shown = [content for content in memory.slots[block * memory.stride : (block + 1) * memory.stride] if content]
    if not shown:
        return False
    node, group = divmod(shown[-1], groups)
    return any(True for longer in spec.tree.longer(node) for _ in memory.where(longer * groups + group))


def _lies_above(spec: Spec, out: Evicted, kept: int) -> bool:
    """Whether both were let go of by one release, `out` nearer to the start of the sequence, and neither was looked at since."""
    a, b = out.let_go, spec.recency.let_go.get(kept)
    if a is None or b is None or a[:3] != b[:3] or a[3] >= b[3]:
        return False
    return out.seen_at <= out.settled_at and spec.recency.seen_at.get(kept, 0) <= spec.recency.settled_at.get(kept, 0)


# -- books ------------------------------------------------------------------------------------------------------------------------------------------


def books(spec: Spec, op: Op) -> None:
    """The cache's own books agree with what its tables show."""
    if not spec.agenda.books:
        return
    seen = spec.seen.books
    for field, told in BOOKS.items():
        if told not in spec.exercised and getattr(seen, field) is not None:
            spec.exercised[told] = 1
    if seen.refcounts is not None:
        refcounts(spec, seen.refcounts)
    if seen.free is None:
        spec.agenda.places.update(*(out.blocks for out in spec.agenda.launched))
    else:
        free_list(spec, op, seen.free)
        partition(spec, op, seen.free, seen.retiring)
    if seen.cached is not None:
        matchable_blocks(spec, seen.cached)


def refcounts(spec: Spec, counts: dict[int, int]) -> None:
    """Each count lies between the table entries that list the block and those plus the device work that may pin it."""
    agenda = spec.agenda
    spec.exercised["refcount-equals-holders"] += bool(spec.owners)
    blocks = agenda.counts
    if agenda.surplus:
        blocks = blocks.union(agenda.loosened(agenda.surplus))
    for block in sorted(blocks & spec.universe) if blocks else ():
        count, listed = counts.get(block, 0), len(spec.owners.get(block, ()))
        if count == listed:
            agenda.surplus.discard(block)
            continue
        if count < 0:
            raise Broken("release-once", f"the reference count of block {block} is {count}")
        pins = spec.pins(block)
        if not listed <= count <= listed + pins:
            holders = ", ".join(f"sequence {seq}" for seq, _, _ in spec.owners.get(block, ())) or "nobody"
            pinned = f" and device work may pin it {pins} times" if pins else ""
            raise Broken("refcount-equals-holders", f"the reference count of block {block} is {count}, but {holders} lists it{pinned}")
        agenda.surplus.add(block)
    agenda.counts.clear()


def free_list(spec: Spec, op: Op, free: dict[int, int]) -> None:
    """A free block is listed once, by nobody else, and no device work touches it."""
    law = "release-once" if isinstance(op, Release) else "pool-conserved"
    blocks = spec.agenda.places
    if spec.agenda.launched:
        blocks = blocks.union(block for out in spec.agenda.launched for block in out.blocks)
    for block in sorted(block for block in blocks if block in free) if blocks else ():
        if free[block] > 1:
            raise Broken(law, f"block {block} is on the free list twice")
        if block not in spec.universe:
            raise Broken("pool-conserved", f"block {block} is a null block, yet it is on the free list")
        if block in spec.owners:
            holder = next(iter(spec.owners[block]))[0]
            raise Broken("pool-conserved", f"block {block} is on the free list, but sequence {holder} lists it")
        _not_in_use(spec, block)
    if spec.capabilities.steps:
        spec.exercised["fenced-reuse"] += spec.unowned > 0


def _not_in_use(spec: Spec, block: int) -> None:
    """No device work that is launched or waits uses `block`, which is on the free list."""
    fence = spec.fence(block)
    if fence is not None:
        raise Broken(
            "fenced-reuse", f"block {block} is on the free list, but the pass of sequence {fence.seq} in an open step still touches it"
        )
    for out in spec.passes:
        if not out.launched and block in out.copied:
            raise Broken(
                "copy-batch-sound",
                f"block {block} is on the free list, but a copy for sequence {out.seq} that uses it has not run yet",
            )


def partition(spec: Spec, op: Op, free: dict[int, int], retiring: set[int] | None) -> None:
    """Every block is held, free or retiring; only device work may keep one that nobody lists out of the free list."""
    agenda = spec.agenda
    for block in sorted(retiring & agenda.places.union(agenda.loosened(retiring))) if retiring else ():
        if block in free:
            raise Broken("pool-conserved", f"block {block} is both free and retiring")
        if not spec.pins(block):
            raise Broken("pool-conserved", f"block {block} waits for device work, but no device work touches it")
    if agenda.kept_back:
        agenda.places.update(agenda.loosened(agenda.kept_back))
    for block in agenda.places & spec.universe if agenda.places else ():
        here = block not in free and block not in spec.owners
        pinned = here and spec.pins(block) > 0
        (agenda.kept_back.add if pinned else agenda.kept_back.discard)(block)
        (agenda.lost.add if here and not pinned else agenda.lost.discard)(block)
    agenda.places.clear()
    lost, spare = agenda.lost, len(spec.universe) - spec.usable
    if len(lost) > spare:
        law = "no-leak" if not spec.owners and not spec.passes and spec.any_drop else "pool-conserved"
        raise Broken(law, f"block {max(lost)} is neither free nor held nor retiring after {op_name(op)}")
    if len(spec.universe) - len(lost) > spec.usable:
        raise Broken(
            "ledger-adds-up",
            f"the cache claims {spec.usable} usable blocks, but {len(spec.universe) - len(lost)} are free, held or retiring",
        )
    spec.exercised["pool-conserved"] += 1
    spec.exercised["ledger-adds-up"] += 1


def matchable_blocks(spec: Spec, cached: set[int]) -> None:
    """What the books call matchable holds accepted tokens from its first slot on."""
    memory = spec.memory
    matchable = spec.agenda.matchable
    for block in sorted(cached & matchable & spec.universe) if matchable else ():
        how = memory.forgotten.get(block)
        if how is not None:
            raise Broken(
                _FORGOTTEN[how], f"block {block} was made unmatchable ({how}) and not published again, yet the cache counts it as matchable"
            )
        slot = block * memory.stride
        if memory.slots[slot] == EMPTY:
            law, why = _why_empty(spec, block)
            raise Broken(law, f"the cache counts block {block} as matchable, but {why}")
        if slot in memory.drafts:
            raise Broken(
                "published-is-committed",
                f"the cache counts block {block} as matchable, but its first token is a draft that was not accepted yet",
            )
    spec.agenda.matchable.clear()
    if cached:
        spec.exercised["published-is-committed"] += 1


def _why_empty(spec: Spec, block: int) -> tuple[str, str]:
    """Why `block` shows no content: the newest loss recorded in it."""
    losses = [lost for lost in spec.memory.lost.values() if lost.block == block]
    if not losses:
        return "published-is-committed", "no accepted token was ever written there"
    newest = max(losses, key=lambda lost: lost.step)
    return _LOST[newest.how], f"what it held was lost when {_show_lost(newest)}"


# -- shared pieces ------------------------------------------------------------------------------------------------------------------------------------

BOOKS = {field: f"books:{field}" for field in ("refcounts", "free", "cached")}
"""The fields of a snapshot that laws need; which of them were ever kept is noted beside the laws, as `books:free` and so on."""

_FORGOTTEN = {"evicted": "eviction-forgets", "reset": "reset-forgets"}

_LOST = {
    "reused": "eviction-forgets",
    "evicted": "eviction-forgets",
    "reset": "reset-forgets",
    "rejected": "rejection-forgets",
    "abandoned": "published-is-committed",
    "overwritten": "exclusive-write",
    "zeroed": "initialised-read",
}
"""The law that a hit on a lost content breaks, by what became of it."""


def _subjects(op: Op) -> tuple[int, ...]:
    if isinstance(op, Fork):
        return (op.parent, op.child)
    seq = getattr(op, "seq", None)
    return () if seq is None else (seq,)


def _changed_sequences(spec: Spec, op: Op) -> Iterable[int]:
    """The sequences that the operation is about, and those whose tables it changed."""
    if spec.thorough:
        return spec.live
    return {*spec.seen.was, *_subjects(op)} if spec.seen.was else _subjects(op)


def _law_for_missing(spec: Spec, op: Op, sequence: Sequence, group: int) -> str:
    if isinstance(op, Evict):
        return "evict-only-unheld"
    if sequence.seq in _subjects(op):
        special = {Truncate: "truncate-exact", SwapIn: "swap-round-trip"}.get(type(op))
        if special:
            return special
    return "committed-is-covered" if spec.windows[group] is None else "window-keeps-what-it-needs"


def _law_for_wrong(spec: Spec, op: Op, sequence: Sequence, group: int, position: int, found: int) -> str:
    if sequence.seq in _subjects(op):
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


def _left_the_window(spec: Spec) -> frozenset[int]:
    """The blocks that tables dropped because every token in them is out of the window."""
    dropped = set()
    for (seq, group, index), block in spec.seen.unlisted:
        sequence, now = spec.live.get(seq), spec.seen.tables.get(seq)
        if sequence is None or now is None or spec.windows[group] is None:
            continue
        oldest_needed = window_low(sequence.computed, spec.windows[group]) // spec.block_sizes[group]
        if index < oldest_needed and index < len(now[group]) and now[group][index] is None:
            dropped.add(block)
    return frozenset(dropped)


def _difference(seen: Observed, ignored: frozenset[int]) -> str:
    """What the last operation changed, in words; empty if it changed nothing. Blocks in `ignored` may have moved."""
    for seq, tables in seen.was.items():
        now = seen.tables.get(seq)
        if now is None:
            return f"sequence {seq}, which is gone"
        for old, new in zip(tables, now, strict=True):
            if tuple(None if b in ignored else b for b in old) != new and old != new:
                return f"the block table of sequence {seq} from {_show(old)} to {_show(new)}"
    return _books_difference(seen, ignored)


def _books_difference(seen: Observed, ignored: frozenset[int]) -> str:
    before, last = seen.before, seen.last
    if before.refcounts is not None and last.refcounts is not None:
        for block in sorted(last.refcounts.keys() - ignored):
            was, now = seen.books.counts_before[block], last.refcounts[block]
            if was != now:
                return f"the reference count of block {block} from {was} to {now}"
    for name, was_looked_at, moved in (
        ("free list", before.free, last.free),
        ("matchable set", before.cached, last.cached),
        ("retiring set", before.retiring, last.retiring),
    ):
        if was_looked_at is not None and moved is not None:
            changed = (set(moved.joined) ^ set(moved.left)) - ignored
            if changed:
                block = min(changed)
                return f"the {name}: block {block} {'joined' if block in moved.joined else 'left'} it"
    return ""


def _missing(spec: Spec, sequence: Sequence, group: int, table: Table, position: int) -> str:
    return f"sequence {sequence.seq} reads position {position}{_in_group(spec, group)}, but its table {_show(table)} has no block for it"


def _wrong(spec: Spec, op: Op, sequence: Sequence, group: int, position: int, slot: int) -> str:
    memory, groups = spec.memory, len(spec.block_sizes)
    block, offset = memory.block_of(slot), slot % memory.stride
    found = memory.slots[slot]
    told = f"after {op_name(op)}, position {position} of sequence {sequence.seq}{_in_group(spec, group)} lies in block {block}, offset {offset}, where"
    if not found:
        lost = memory.lost.get(spec.content(sequence, group, position))
        return f"{told} nothing of it has been written" + (f"; it was lost from block {lost.block} when {_show_lost(lost)}" if lost else "")
    tokens, namespace = spec.tree.tokens(found // groups), spec.tree.namespace(found // groups)
    whose = "" if namespace == sequence.namespace else f" of {_show_namespace(namespace)}"
    layers = "" if found % groups == group else f" of group {found % groups}"
    return f"{told} position {len(tokens) - 1} of the tokens {_show_tokens(tokens)}{whose}{layers} was written"


def _in_group(spec: Spec, group: int) -> str:
    return f" (group {group})" if len(spec.block_sizes) > 1 else ""


def _counted(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"


def _show(table: Table) -> str:
    return "[" + ", ".join("-" if block is None else str(block) for block in table) + "]"


def _show_tokens(tokens: tuple[int, ...]) -> str:
    return str(list(tokens)) if len(tokens) <= 16 else f"[{', '.join(map(str, tokens[:6]))}, ..., {', '.join(map(str, tokens[-6:]))}]"


def _show_namespace(namespace: object) -> str:
    fields = [f"{name}={getattr(namespace, name)!r}" for name in namespace.__struct_fields__ if getattr(namespace, name) is not None]  # type: ignore[attr-defined]
    return f"the namespace ({', '.join(fields)})" if fields else "the empty namespace"


def _show_lost(lost: Lost) -> str:
    told = {
        "reused": "it was handed out again",
        "evicted": "it was evicted",
        "reset": "the cache was reset",
        "rejected": "the draft was rejected",
        "abandoned": "the pass that would have written it was abandoned before its launch",
        "overwritten": "another pass wrote over it",
        "zeroed": "it was cleared",
    }
    return f"{told[lost.how]} in step {lost.step}"
