"""The laws of a cache, each as one short check on what was seen. `Spec` calls them; a check that fails raises `Broken` with the law's name.

Where several laws could be named, the check names the one that a reader can act on: the operation that broke it, not the symptom that followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.memory import EMPTY, Lost
from kvproof.models.ops import Evict, Extend, Fork, Match, Namespace, Op, Release, SwapIn, Truncate, op_name
from kvproof.models.outcomes import Grant
from kvproof.models.state import Books, Evicted, Pass, Seen, Sequence, Table

if TYPE_CHECKING:
    from kvproof.models.spec import Outcome, Spec


class Broken(Exception):
    """A law does not hold."""

    def __init__(self, law: str, reason: str) -> None:
        super().__init__(f"{law}: {reason}")
        self.law = law
        self.reason = reason


def everything(spec: Spec, op: Op, before: Seen) -> None:
    """The laws that hold after every operation."""
    no_aliasing(spec)
    contents(spec, op, before)
    books(spec, op)
    if "tight" in spec.capabilities.policy:
        tail_waste(spec)
    if spec.seen.matchable_by_events is not None and spec.seen.books.cached is not None:
        events(spec)
    if spec.evicted:
        eviction_order(spec, before)


# -- content: what each live sequence reads ---------------------------------------------------------------------------------------------------


def contents(spec: Spec, op: Op, before: Seen) -> None:
    """Every readable position of every live sequence shows its own ghost; only what changed is looked at again."""
    touched = spec.memory.touched
    subjects = _subjects(op)
    for seq, sequence in spec.live.items():
        tables = spec.tables(sequence)
        if sequence.computed == 0 and sequence.out is None and not sequence.swapped:
            holds_nothing(sequence, tables, op)
        elif not sequence.swapped and (
            seq in subjects or tables != before.tables.get(seq) or any(block in touched for table in tables for block in table)
        ):
            for group, table in enumerate(tables):
                group_contents(spec, op, before, sequence, group, table)


def holds_nothing(sequence: Sequence, tables: tuple[Table, ...], op: Op) -> None:
    """A sequence that has computed nothing and has no pass out holds no block."""
    for table in tables:
        if table:
            law = "release-once" if isinstance(op, Release) else "committed-is-covered"
            raise Broken(law, f"sequence {sequence.seq} holds nothing, yet its block table is {_show(table)} after {op_name(op)}")


def group_contents(spec: Spec, op: Op, before: Seen, sequence: Sequence, group: int, table: Table) -> None:
    """Each position that the next token of `sequence` reads is in the table, was written, and is the sequence's own."""
    slots = spec.memory.slots
    for position in spec.readable(sequence, group):
        slot = spec.slot(group, table, position)
        if slot is None:
            raise Broken(_law_for_missing(spec, op, sequence, group), _missing(spec, sequence, group, table, position))
        if slots[slot] != spec.content(sequence, group, position):
            law = _law_for_wrong(spec, op, before, sequence, group, position, slots[slot])
            raise Broken(law, _wrong(spec, op, sequence, group, position, slot))
    if sequence.computed:
        spec.exercised["committed-is-covered"] += 1
        spec.exercised["initialised-read"] += 1
        spec.exercised["own-content"] += 1
        if spec.windows[group] is not None and spec.readable(sequence, group).start > 0:
            spec.exercised["window-keeps-what-it-needs"] += 1


def room(spec: Spec, sequence: Sequence, out: Pass) -> None:
    """The table has a block for every position that the pass writes.

    A windowed group may leave out positions that no token after the pass can read, all drafts rejected.
    """
    for group, table in enumerate(spec.tables(sequence)):
        needed_from = max(out.start, window_low(out.known_end, spec.windows[group]))
        for position in range(needed_from, out.end):
            if spec.slot(group, table, position) is None:
                skipped = spec.windows[group] is not None and position // spec.block_sizes[group] < len(table)
                raise Broken(
                    "window-keeps-what-it-needs" if skipped else "committed-is-covered",
                    f"extend granted sequence {sequence.seq} the positions {out.start} to {out.end - 1}, but its table {_show(table)} "
                    f"has no block for position {position}{_in_group(spec, group)}",
                )


# -- ownership ------------------------------------------------------------------------------------------------------------------------------------


def no_aliasing(spec: Spec) -> None:
    """Sequences list one block only at the same place and where their committed tokens in it agree."""
    holders: set[int] = set()
    for block, entries in spec.owners.items():
        holders.add(entries[0][0])
        for other in entries[1:]:
            holders.add(other[0])
            _may_share(spec, block, entries[0], other)
    if len(holders) > 1:
        spec.exercised["no-aliasing"] += 1


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


def handed_out(spec: Spec, sequence: Sequence, group: int, index: int, block: int, before: Seen) -> None:
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
            spec.exercised["fenced-reuse"] += any(d.work_touches for d in spec.deferrals)
    matchable = block in (before.books.cached or ()) or block in spec.memory.proven
    if matchable and "lru" in spec.capabilities.policy and block not in _listed(before):
        spec.evicted.append(
            Evicted(
                block,
                spec.step,
                spec.used_at.get(block, 0),
                spec.seen_at.get(block, 0),
                spec.settled_at.get(block, 0),
                spec.let_go.get(block),
            )
        )


def exclusive_write(spec: Spec, sequence: Sequence, out: Pass, grant: Grant) -> None:
    """The pass writes only in blocks that its sequence alone holds."""
    targets = {target for _, _, target in grant.copies}
    path = sequence.path[out.start : out.known_end] + out.path
    for group, table in enumerate(spec.tables(sequence)):
        for offset, node in enumerate(path):
            position = out.start + offset
            slot = spec.slot(group, table, position)
            if slot is None:
                continue
            block = spec.memory.block_of(slot)
            others = [other for other, _, _ in spec.owners[block] if other != sequence.seq]
            if not others:
                continue
            same = spec.memory.slots[slot] == node * len(spec.block_sizes) + group and block not in targets
            if not ("rewrites" in spec.capabilities.policy and same):
                raise Broken(
                    "exclusive-write",
                    f"the pass of sequence {sequence.seq} writes position {position} into block {block}{_in_group(spec, group)}, "
                    f"which sequence {others[0]} holds too",
                )
    if len(spec.live) > 1:
        spec.exercised["exclusive-write"] += 1


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


def repeated_release(spec: Spec, op: Release, outcome: Outcome, before: Seen) -> None:
    """Releasing again changes nothing."""
    if outcome is not None:
        raise Broken(
            "release-once", f"sequence {op.seq} holds nothing any more, and releasing it again raised {getattr(outcome, 'error', outcome)}"
        )
    change = _difference(before, spec.seen, frozenset())
    if change:
        raise Broken("release-once", f"sequence {op.seq} holds nothing any more, yet releasing it again changed {change}")
    spec.exercised["release-once"] += 1


def failure_changes_nothing(spec: Spec, op: Op, before: Seen) -> None:
    """An operation that failed left everything as it was; blocks already out of a window may be freed."""
    change = _difference(before, spec.seen, _left_the_window(spec, before))
    if change:
        if any(spec.windows):
            contents(spec, op, before)  # a block that left a window too early is that law's affair
        raise Broken("failure-changes-nothing", f"{op_name(op)} failed, yet it changed {change}")
    spec.exercised["failure-changes-nothing"] += 1


def no_spurious_exhaustion(spec: Spec, op: Extend) -> None:
    """OutOfBlocks is true: a sequence that is alone fits if the pool could hold it; `exact` caches use every free or evictable block."""
    sequence = spec.live[op.seq]
    alone = _holders(spec) <= {op.seq} and not spec.passes and not spec.steps
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
    kept_back = set(spec.owners) | set(spec.pins())
    if "exact" in spec.capabilities.policy and need - have <= spec.usable - len(kept_back):
        raise Broken(
            "no-spurious-exhaustion",
            f"sequence {op.seq} needs at most {need - have} more blocks and {spec.usable - len(kept_back)} are free or evictable, yet extend raised OutOfBlocks",
        )
    spec.exercised["no-spurious-exhaustion"] += 1


def whole_pool_again(spec: Spec, sequence: Sequence) -> None:
    """Count an extend that was given (nearly) the whole pool: the pool holds that much, and nothing leaked."""
    alone = _holders(spec) <= {sequence.seq}
    if alone and len(spec.owners) > spec.usable - len(spec.block_sizes):
        spec.exercised["no-spurious-exhaustion"] += 1
        spec.exercised["no-leak"] += spec.any_drop


def _holders(spec: Spec) -> set[int]:
    """The sequences that list any block."""
    return {entry[0] for entries in spec.owners.values() for entry in entries}


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
        worker = spec.seen.worker_tables.get(out.seq)
        if worker is None:
            continue
        for group, (theirs, ours) in enumerate(zip(worker, spec.seen.tables[out.seq], strict=True)):
            if theirs != ours:
                raise Broken(
                    "mirror-follows",
                    f"the step begins with {_show(theirs)} as the device's table of sequence {out.seq}{_in_group(spec, group)}, but the manager's is {_show(ours)}",
                )
        spec.exercised["mirror-follows"] += 1


def tail_waste(spec: Spec) -> None:
    """A tight cache allocates no block beyond what extends asked for."""
    for sequence in spec.live.values():
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
    for group, table in enumerate(spec.tables(sequence)):
        for position in range(window_low(grant.adopted, spec.windows[group]), grant.adopted):
            slot = spec.slot(group, table, position)
            if slot is None:
                law = "committed-is-covered" if spec.windows[group] is None else "window-keeps-what-it-needs"
                raise Broken(law, f"extend adopted {grant.adopted} tokens, but {_missing(spec, sequence, group, table, position)}")
            block = spec.memory.block_of(slot)
            source = source_of.get((group, block), block)
            _adopted_slot(spec, sequence, group, position, source, copied=source != block)


def _adopted_slot(spec: Spec, sequence: Sequence, group: int, position: int, block: int, *, copied: bool) -> None:
    memory = spec.memory
    slot = block * memory.stride + position % spec.block_sizes[group]
    found, expected = memory.slots[slot], spec.content(sequence, group, position)
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
    for other in spec.tree.namespaces():
        if other != sequence.namespace:
            twin = spec.tree.find(other, (sequence.known[0],))
            exercised["hit-same-namespace"] += twin is not None and any(True for _ in memory.where(twin * len(spec.block_sizes)))
    lost = memory.lost.get(first)
    if lost is not None and not memory.where(first):
        exercised[_LOST[lost.how]] += 1
    for slot in memory.where(first):
        how = memory.forgotten.get(memory.block_of(slot))
        if how is not None:
            exercised[_FORGOTTEN[how]] += 1


def eviction(spec: Spec, op: Evict, before: Seen) -> None:
    """Eviction makes blocks unmatchable and takes none from its holders."""
    for seq, tables in before.tables.items():
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
    replayed, cached = spec.seen.matchable_by_events, spec.seen.books.cached
    assert replayed is not None
    assert cached is not None
    if replayed != cached:
        extra, missing = sorted(replayed - cached), sorted(cached - replayed)
        detail = (
            f"they leave block {extra[0]} matchable, which it is not" if extra else f"they do not say that block {missing[0]} is matchable"
        )
        raise Broken("events-replay-index", f"replaying the events gives {sorted(replayed)}, the cache matches {sorted(cached)}: {detail}")
    spec.exercised["events-replay-index"] += bool(cached)


def eviction_order(spec: Spec, before: Seen) -> None:
    """Least recently used first, deeper blocks first, judged by the books, and only where every notion of recency agrees."""
    free, cached, still = before.books.free, before.books.cached, spec.seen.books.cached
    if free is None or cached is None or still is None:
        return
    evicted = {out.block for out in spec.evicted}
    for kept in free:
        if kept in cached and kept in still and kept not in evicted and kept not in spec.owners:
            for out in spec.evicted:
                spec.exercised["eviction-follows-policy"] += 1
                _evicted_in_turn(spec, out, kept)


def proven_order(spec: Spec, kept: int) -> None:
    """The same without books: a hit has just shown that `kept`, which nobody holds, is still matchable."""
    let_go = spec.let_go.get(kept)
    for out in spec.past_evictions:
        if let_go is not None and let_go[0] < out.step:
            spec.exercised["eviction-follows-policy"] += 1
            _evicted_in_turn(spec, out, kept)


def _evicted_in_turn(spec: Spec, out: Evicted, kept: int) -> None:
    kept_at = spec.seen_at.get(kept, 0)
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
    a, b = out.let_go, spec.let_go.get(kept)
    if a is None or b is None or a[:3] != b[:3] or a[3] >= b[3]:
        return False
    return out.seen_at <= out.settled_at and spec.seen_at.get(kept, 0) <= spec.settled_at.get(kept, 0)


# -- books ------------------------------------------------------------------------------------------------------------------------------------------


def books(spec: Spec, op: Op) -> None:
    """The cache's own books agree with what its tables show."""
    seen = spec.seen.books
    pins = spec.pins()
    for field in BOOKS:
        spec.exercised[f"books:{field}"] += getattr(seen, field) is not None
    if seen.refcounts is not None:
        refcounts(spec, seen.refcounts, pins)
    if seen.free is not None:
        free_list(spec, op, seen.free)
        if seen.free_count is not None and seen.free_count != len(seen.free):
            raise Broken(
                "pool-conserved",
                f"the cache counts {seen.free_count} free blocks after {op_name(op)}, but its free list has {len(seen.free)}",
            )
        partition(spec, op, seen, pins)
    if seen.cached is not None:
        matchable_blocks(spec, seen.cached)


def refcounts(spec: Spec, counts: dict[int, int], pins: Counter[int]) -> None:
    """Each count lies between the table entries that list the block and those plus the device work that may pin it."""
    spec.exercised["refcount-equals-holders"] += bool(spec.owners)
    if counts == {block: len(entries) for block, entries in spec.owners.items()}:
        return
    for block in sorted(spec.universe):
        count, listed = counts.get(block, 0), len(spec.owners.get(block, ()))
        if count < 0:
            raise Broken("release-once", f"the reference count of block {block} is {count}")
        if not listed <= count <= listed + pins[block]:
            holders = ", ".join(f"sequence {seq}" for seq, _, _ in spec.owners.get(block, ())) or "nobody"
            pinned = f" and device work may pin it {pins[block]} times" if pins[block] else ""
            raise Broken("refcount-equals-holders", f"the reference count of block {block} is {count}, but {holders} lists it{pinned}")


def free_list(spec: Spec, op: Op, free: tuple[int, ...]) -> None:
    """A free block is listed once, by nobody else, and no device work touches it."""
    law = "release-once" if isinstance(op, Release) else "pool-conserved"
    seen: set[int] = set()
    fenced = spec.fenced()
    listed = set(free)
    if len(listed) == len(free) and listed <= spec.universe and listed.isdisjoint(spec.owners) and listed.isdisjoint(fenced):
        seen = listed
        free = ()
    for block in free:
        if block in seen:
            raise Broken(law, f"block {block} is on the free list twice")
        seen.add(block)
        if block not in spec.universe:
            raise Broken("pool-conserved", f"block {block} is a null block, yet it is on the free list")
        if block in spec.owners:
            raise Broken("pool-conserved", f"block {block} is on the free list, but sequence {spec.owners[block][0][0]} lists it")
        if block in fenced:
            raise Broken(
                "fenced-reuse",
                f"block {block} is on the free list, but the pass of sequence {fenced[block].seq} in an open step still touches it",
            )
    if spec.capabilities.steps:
        spec.exercised["fenced-reuse"] += bool(fenced.keys() - spec.owners.keys())
        waiting = {block: out for out in spec.passes if not out.launched for block in out.copied}
        for block in seen & waiting.keys():
            raise Broken(
                "copy-batch-sound",
                f"block {block} is on the free list, but a copy for sequence {waiting[block].seq} that uses it has not run yet",
            )


def partition(spec: Spec, op: Op, seen: Books, pins: Counter[int]) -> None:
    """Every block is held, free or retiring; only device work may keep one that nobody lists out of the free list."""
    free, retiring = set(seen.free or ()), seen.retiring or frozenset()
    for block in sorted(retiring):
        if block in free:
            raise Broken("pool-conserved", f"block {block} is both free and retiring")
        if not pins[block] and seen.retiring is not None:
            raise Broken("pool-conserved", f"block {block} waits for device work, but no device work touches it")
    lost = sorted(spec.universe - free - spec.owners.keys() - pins.keys())
    spare = len(spec.universe) - spec.usable
    if len(lost) > spare:
        law = "no-leak" if not spec.owners and not spec.passes and spec.any_drop else "pool-conserved"
        raise Broken(law, f"block {lost[-1]} is neither free nor held nor retiring after {op_name(op)}")
    if len(spec.universe) - len(lost) > spec.usable:
        raise Broken(
            "ledger-adds-up",
            f"the cache claims {spec.usable} usable blocks, but {len(spec.universe) - len(lost)} are free, held or retiring",
        )
    spec.exercised["pool-conserved"] += 1
    spec.exercised["ledger-adds-up"] += 1


def matchable_blocks(spec: Spec, cached: frozenset[int]) -> None:
    """What the books call matchable holds accepted tokens from its first slot on."""
    memory = spec.memory
    for block in cached:
        if block not in spec.universe:
            continue
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

BOOKS = ("refcounts", "free", "cached")
"""The fields of a snapshot that laws need; which of them were kept is counted beside the laws, as `books:free` and so on."""

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


def _law_for_missing(spec: Spec, op: Op, sequence: Sequence, group: int) -> str:
    if isinstance(op, Evict):
        return "evict-only-unheld"
    if sequence.seq in _subjects(op):
        special = {Truncate: "truncate-exact", SwapIn: "swap-round-trip"}.get(type(op))
        if special:
            return special
    return "committed-is-covered" if spec.windows[group] is None else "window-keeps-what-it-needs"


def _law_for_wrong(spec: Spec, op: Op, before: Seen, sequence: Sequence, group: int, position: int, found: int) -> str:
    if sequence.seq in _subjects(op):
        special = {Truncate: "truncate-exact", Fork: "fork-shares-then-diverges", SwapIn: "swap-round-trip"}.get(type(op))
        if special:
            return special
        index = position // spec.block_sizes[group]
        old = before.tables.get(sequence.seq)
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


def _left_the_window(spec: Spec, before: Seen) -> frozenset[int]:
    """The blocks that tables dropped because every token in them is out of the window."""
    dropped = set()
    for seq, tables in before.tables.items():
        sequence, now = spec.live.get(seq), spec.seen.tables.get(seq)
        if sequence is None or now is None:
            continue
        for group, table in enumerate(tables):
            if spec.windows[group] is None:
                continue
            oldest_needed = window_low(sequence.computed, spec.windows[group]) // spec.block_sizes[group]
            for index, block in enumerate(table[:oldest_needed]):
                if block is not None and index < len(now[group]) and now[group][index] is None:
                    dropped.add(block)
    return frozenset(dropped)


def _difference(before: Seen, after: Seen, ignored: frozenset[int]) -> str:
    """What differs between two observations, in words; empty if nothing does. Blocks in `ignored` may have moved."""
    for seq, tables in before.tables.items():
        now = after.tables.get(seq)
        if now is None:
            return f"sequence {seq}, which is gone"
        for old, new in zip(tables, now, strict=True):
            if tuple(None if b in ignored else b for b in old) != new and old != new:
                return f"the block table of sequence {seq} from {_show(old)} to {_show(new)}"
    return _books_difference(before.books, after.books, ignored)


def _books_difference(old: Books, new: Books, ignored: frozenset[int]) -> str:
    if old.refcounts is not None and new.refcounts is not None:
        for block in sorted(old.refcounts.keys() | new.refcounts.keys()):
            if block not in ignored and old.refcounts.get(block, 0) != new.refcounts.get(block, 0):
                return f"the reference count of block {block} from {old.refcounts.get(block, 0)} to {new.refcounts.get(block, 0)}"
    for name, was, now in (
        ("free list", old.free, new.free),
        ("matchable set", old.cached, new.cached),
        ("retiring set", old.retiring, new.retiring),
    ):
        if was is not None and now is not None:
            moved = (set(was) ^ set(now)) - ignored
            if moved:
                block = min(moved)
                return f"the {name}: block {block} {'joined' if block in now else 'left'} it"
    return ""


def _listed(seen: Seen) -> set[int | None]:
    return {block for tables in seen.tables.values() for table in tables for block in table}


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
