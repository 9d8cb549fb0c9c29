"""Laws on prefixes: hits, and what they adopt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.models.checks.content import expected_ghosts, told_missing
from kvproof.models.checks.forgetting import proven_order
from kvproof.models.checks.naming import (
    FORGOTTEN_BREAKS,
    LOST_BREAKS,
    Broken,
    Why,
    counted,
    show_lost,
    show_namespace,
    show_positions,
    show_tokens,
)
from kvproof.models.layouts import blocks_for, window_low
from kvproof.models.memory import EMPTY
from kvproof.models.ops import Match, Namespace
from kvproof.models.outcomes import Grant
from kvproof.models.state import Sequence

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


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
                if spec.memory.blurred or spec.partial:
                    return  # it may lie where nothing is known; what is adopted of it will be seen
                why = _why_absent(spec, sequence, group, wanted)
                raise Broken(
                    why.law,
                    f"match found {counted(tokens)} for sequence {sequence.seq}, but {why.words}",
                    blocks=why.blocks,
                    sequences=(sequence.seq,),
                    positions=why.positions,
                    steps=why.steps,
                    group=group,
                )
            if spec.lru:
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
    said = spec.hits.setdefault(op.seq, tokens)
    if said != tokens:
        raise Broken(
            "failure-changes-nothing",
            f"match found {counted(said)} for sequence {op.seq} before and {tokens} now, though every operation in between failed or only looked",
            sequences=(op.seq,),
        )


def adoption(spec: Spec, sequence: Sequence, grant: Grant) -> None:
    """The adopted tokens are really in the blocks that the table lists (or in those that are copied there)."""
    _leaves_last_token(sequence, grant.adopted, "extend adopted")
    if spec.capabilities.prefix:
        _note_prefix_situations(spec, sequence, grant.adopted)
    source_of = {(group, target): source for group, source, target in grant.copies}
    tables = spec.tables(sequence)
    for group, size, window in spec.groups:
        table, low = tables[group], window_low(grant.adopted, window)
        for index in range(low // size, blocks_for(grant.adopted, size)):
            block = table[index] if index < len(table) else None
            positions = range(max(low, index * size), min(grant.adopted, (index + 1) * size))
            if block is None:
                law = "committed-is-covered" if window is None else "window-keeps-what-it-needs"
                missing = told_missing(spec, sequence, group, table, positions.start)
                raise Broken(
                    law,
                    f"extend adopted {counted(grant.adopted)}, and {missing}",
                    sequences=(sequence.seq,),
                    positions=(positions.start,),
                    group=group,
                )
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
        and memory.holds(source, expected_ghosts(spec, sequence, group, positions.start, positions.stop), positions.start % size)
        and EMPTY not in memory.slots[first : first + size]
        and memory.drafts.isdisjoint(range(first, first + size))
    )


def _adopted_slot(spec: Spec, sequence: Sequence, group: int, position: int, block: int, *, copied: bool) -> None:
    if block not in spec.judged:
        return
    memory = spec.memory
    slot = block * memory.stride + position % spec.block_sizes[group]
    expected = spec.content(sequence, group, position)
    memory.learn(block, [expected], position % spec.block_sizes[group])
    told = f"extend adopted position {position} of sequence {sequence.seq} in block {block}, but"
    why = _why_not_adoptable(spec, expected, slot, block)
    if why is not None:
        raise Broken(
            why.law,
            f"{told} {why.words}",
            blocks=(block, *why.blocks),
            sequences=(sequence.seq,),
            positions=(position,),
            slots=((block, position % spec.block_sizes[group]),),
            steps=why.steps,
            group=group,
        )
    if not copied:
        _not_open(spec, sequence, block, position, told)


def _why_not_adoptable(spec: Spec, expected: int, slot: int, block: int) -> Why | None:
    """Why what lies in `slot` must not be adopted where `expected` is needed; None if it may be."""
    memory = spec.memory
    if memory.slots[slot] != expected:
        return _why_not(spec, expected, memory.slots[slot], block)
    if slot in memory.drafts:
        return Why("published-is-committed", "what lies there is a draft that was not accepted yet")
    if block in memory.forgotten:
        how = memory.forgotten[block]
        return Why(FORGOTTEN_BREAKS[how], f"that block was made unmatchable ({how})")
    return None


def _not_open(spec: Spec, sequence: Sequence, block: int, position: int, told: str) -> None:
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
                f"{told} sequence {seq} has filled only {counted(filled - end + spec.block_sizes[group])} of that block",
                blocks=(block,),
                sequences=(sequence.seq, seq),
                positions=(position,),
                group=group,
            )


def _leaves_last_token(sequence: Sequence, tokens: int, told: str) -> None:
    if tokens >= len(sequence.known):
        raise Broken(
            "hit-leaves-last-token",
            f"{told} {counted(tokens)} for sequence {sequence.seq}, which knows {len(sequence.known)}: none is left to compute",
            sequences=(sequence.seq,),
            positions=(len(sequence.known) - 1,),
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


def _why_absent(spec: Spec, sequence: Sequence, group: int, wanted: range) -> Why:
    """Which law a hit on the positions `wanted`, which no block offers, breaks."""
    memory = spec.memory
    last = spec.content(sequence, group, wanted[-1])
    if last not in memory.lost and not memory.where(last) and not _known_elsewhere(spec, sequence, wanted[-1]):
        # Nobody ever had these tokens, however many of the first ones somebody had.
        why = _why_not(spec, last, EMPTY)
        begun = _begun(spec, sequence, group, wanted) if why.law == "hit-is-true-prefix" else 0
        if begun:
            return Why(
                "published-is-committed",
                f"only {begun} of these tokens {'was' if begun == 1 else 'were'} ever computed",
                positions=(begun,),
            )
        return why.at(_first_unknown(spec, sequence, group, wanted) if why.law == "hit-is-true-prefix" else wanted[-1])
    for position in wanted:
        content = spec.content(sequence, group, position)
        slots = list(memory.where(content))
        if not slots:
            why = _why_not(spec, content, EMPTY)
            if position > wanted.start and why.law == "hit-is-true-prefix":
                told = f"only the first {counted(position)} of it {'was' if position == 1 else 'were'} ever computed"
                return Why("published-is-committed", told, positions=(position,))
            return why.at(position)
        blocks = tuple(map(memory.block_of, slots))
        if all(slot in memory.drafts for slot in slots):
            return Why("published-is-committed", f"position {position} is a draft that was not accepted yet", blocks, positions=(position,))
        forgotten = [memory.forgotten[block] for block in blocks if block in memory.forgotten]
        if len(forgotten) == len(slots):
            told = f"the block that holds position {position} was made unmatchable ({forgotten[0]})"
            return Why(FORGOTTEN_BREAKS[forgotten[0]], told, blocks, positions=(position,))
    told = f"no single block holds {show_positions(wanted)}"
    return Why("published-is-committed", told, positions=(wanted.start, wanted.stop - 1))


def _why_not(spec: Spec, expected: int, found: int, block: int | None = None) -> Why:
    """Which law is broken where `found` lies in a slot (of `block`) that should show `expected`, and why, in prose."""
    groups = len(spec.block_sizes)
    tree = spec.tree
    node = expected // groups
    tokens, namespace = tree.tokens(node), tree.namespace(node)
    lost = spec.memory.lost.get(expected)
    if lost is not None and lost.block == block:
        return Why(LOST_BREAKS[lost.how], f"the content it needs was there until {show_lost(lost)}", steps=(lost.step,))
    if found and tree.tokens(found // groups) == tokens and tree.namespace(found // groups) != namespace:
        return Why(
            "hit-same-namespace",
            f"what lies there belongs to {show_namespace(tree.namespace(found // groups))}, not to {show_namespace(namespace)}",
        )
    twin = _twin(spec, expected) if block is None else None
    if twin is not None:
        return Why("hit-same-namespace", f"these tokens were computed for {show_namespace(twin)}, not for {show_namespace(namespace)}")
    if lost is not None:
        told = f"the content it needs was in block {lost.block} until {show_lost(lost)}"
        return Why(LOST_BREAKS[lost.how], told, (lost.block,), (lost.step,))
    if not found:
        twin = _twin(spec, expected)
        if twin is not None:
            return Why(
                "hit-same-namespace",
                f"these tokens were computed only for {show_namespace(twin)}, not for {show_namespace(namespace)}",
            )
        if block is not None:
            return Why("initialised-read", "nothing that a sequence computed lies there")
        if expected % groups == 0 or groups == 1:
            return Why("hit-is-true-prefix", "no sequence ever computed this prefix")
        return Why("initialised-read", "no sequence ever computed this prefix in that group")
    return Why(
        "hit-is-true-prefix",
        f"what lies there is position {len(tree.tokens(found // groups)) - 1} of the tokens {show_tokens(tree.tokens(found // groups))}",
    )


def _first_unknown(spec: Spec, sequence: Sequence, group: int, wanted: range) -> int:
    """The first position up to which nobody ever computed these tokens; nobody did up to the last one."""
    memory = spec.memory
    for position in wanted[:-1]:
        content = spec.content(sequence, group, position)
        if content not in memory.lost and not memory.where(content):
            return position
    return wanted[-1]


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
        if twin is not None and spec.memory.where(twin * len(spec.block_sizes) + group):
            return other
    return None


def _note_prefix_situations(spec: Spec, sequence: Sequence, tokens: int) -> None:
    """Count which prefix laws this look-up really put to the test."""
    memory, exercised, groups = spec.memory, spec.exercised, len(spec.block_sizes)
    if tokens:
        exercised["hit-is-true-prefix"] += 1
        exercised["published-is-committed"] += 1
    if memory.where(sequence.path[-1] * groups):
        exercised["hit-leaves-last-token"] += 1
    node = sequence.path[0]
    for other in spec.tree.begun(sequence.known[0]):
        if other != node and memory.where(other * groups):
            exercised["hit-same-namespace"] += 1
            break
    slots = memory.where(node * groups)
    lost = memory.lost.get(node * groups)
    if lost is not None and not slots:
        exercised[LOST_BREAKS[lost.how]] += 1
    if memory.forgotten:
        for slot in slots:
            how = memory.forgotten.get(memory.block_of(slot))
            if how is not None:
                exercised[FORGOTTEN_BREAKS[how]] += 1
