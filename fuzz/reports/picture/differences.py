"""Where the model and the cache part, after the operation that broke a law: what the model knows, beside what the cache shows.

    for difference in differences(spec, op, outcome, accusation, aside): ...

The first one is the one to look at: what the violation speaks of comes before everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from kvproof.fuzz.reports.picture.film import NOTHING_ASIDE, SetAside
from kvproof.fuzz.reports.wording import counted, joined, numbers
from kvproof.models.laws import BY_NAME
from kvproof.models.memory import EMPTY
from kvproof.models.ops import Op
from kvproof.models.outcomes import Grant, Hit, Outcome
from kvproof.models.spec import Spec, Violation
from kvproof.models.state import Sequence

MOST_DIFFERENCES: Final = 40
"""One wrong block can make hundreds of positions wrong; nobody reads more than the first few."""

MOST_TOKENS: Final = 12
"""How many tokens of a prefix are shown, counted from its end."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing of which the model and the cache say different things."""

    where: str
    model: str
    cache: str
    seq: int | None = None
    group: int | None = None
    position: int | None = None
    block: int | None = None


class Accusation(msgspec.Struct, frozen=True):
    """A broken law as a picture tells it. `row`: the row of the film that shows it, skipped operations counted.

    The rest is the violation's evidence: `slots` are (block, offset in tokens), `began` the rows of earlier steps in which it began.
    """

    law: str
    sentence: str
    reason: str
    step: int
    row: int
    blocks: list[int]
    sequences: list[int]
    positions: list[int]
    slots: list[tuple[int, int]]
    began: list[int]
    differences: list[Difference] = []
    """Where model and cache part at this row, what the reason speaks of first."""


def accusation(violation: Violation, row: int, numbers: list[int | None]) -> Accusation:
    """The violation with its law's sentence and its evidence. `numbers`: the step of each row, None for one that was skipped."""
    law = BY_NAME.get(violation.law)
    accused = violation.evidence
    began = [numbers.index(step) for step in accused.steps if step < violation.step and step in numbers]
    return Accusation(
        violation.law,
        law.sentence if law else "",
        violation.reason,
        violation.step,
        row,
        list(accused.blocks),
        list(accused.sequences),
        list(accused.positions),
        list(accused.slots),
        began,
    )


def differences(spec: Spec, op: Op, outcome: Outcome, accused: Accusation, aside: SetAside = NOTHING_ASIDE) -> list[Difference]:
    """What model and cache disagree about, what the violation speaks of first. At most MOST_DIFFERENCES. `aside`: blocks and sequences that earlier faults explain."""
    blocks, sequences = aside
    new = (
        difference for difference in _all(spec, op, outcome, accused) if difference.block not in blocks and difference.seq not in sequences
    )
    found = list(islice(new, MOST_DIFFERENCES))
    return sorted(found, key=lambda difference: -_weight(difference, accused))


def _all(spec: Spec, op: Op, outcome: Outcome, accused: Accusation) -> Iterator[Difference]:
    yield from _answer(spec, op, outcome)
    yield from _contents(spec)
    yield from _counts(spec)
    yield from _lists(spec)
    yield from _accused_blocks(spec, accused)


def _weight(difference: Difference, accused: Accusation) -> int:
    """How much of what the violation names a difference is about."""
    return (
        2 * (difference.block in accused.blocks)
        + (difference.seq in accused.sequences)
        + 2 * (difference.position is not None and difference.position in accused.positions)
    )


# -- one kind of difference each -----------------------------------------------------------------------------------------------------------


def _answer(spec: Spec, op: Op, outcome: Outcome) -> Iterator[Difference]:
    """A hit that promises more than the pool holds of this prompt."""
    seq = getattr(op, "seq", None)
    sequence = spec.live.get(seq) if isinstance(seq, int) else None
    promised = outcome.tokens if isinstance(outcome, Hit) else outcome.adopted if isinstance(outcome, Grant) else 0
    if sequence is None or not promised:
        return
    held = _held_prefix(spec, sequence)
    most = min(held, len(sequence.known) - 1)
    if promised > most:
        model = f"at most {most}: the pool holds {held} of its {len(sequence.known)} tokens, and one must be left to compute"
        yield Difference(f"hit of sequence {seq}", model, f"promises {counted(promised, 'token')}", seq=seq)


def _contents(spec: Spec) -> Iterator[Difference]:
    """Positions that do not show their own ghost."""
    for seq, sequence in spec.live.items():
        if sequence.swapped:
            continue
        for group, table in enumerate(spec.tables(sequence)):
            for position in spec.readable(sequence, group):
                slot = spec.slot(group, table, position)
                if slot is not None and spec.memory.slots[slot] == spec.content(sequence, group, position):
                    continue
                where = f"sequence {seq}, position {position}" + (f", group {group}" if len(spec.block_sizes) > 1 else "")
                block = None if slot is None else spec.memory.block_of(slot)
                shown = "no block in the table" if slot is None else f"{_slot(spec, slot)} shows {_content(spec, spec.memory.slots[slot])}"
                model = f"shows {_content(spec, spec.content(sequence, group, position))}"
                yield Difference(where, model, shown, seq=seq, group=group, position=position, block=block)


def _counts(spec: Spec) -> Iterator[Difference]:
    """Reference counts that no holder explains."""
    counts = spec.seen.books.refcounts
    if counts is None:
        return
    for block in sorted(spec.universe):
        count, listed = counts.get(block, 0), len(spec.owners.get(block, ()))
        pins = spec.pins(block)
        if not listed <= count <= listed + pins:
            most = f" to {listed + pins}" if pins else ""
            yield Difference(_name(spec, block), f"{listed}{most} holders ({_holders(spec, block)})", f"counts {count}", block=block)


def _lists(spec: Spec) -> Iterator[Difference]:
    """Blocks that are in two lists, or in none."""
    books = spec.seen.books
    free = set(books.free or ())
    retiring: set[int] = set(books.retiring or ())
    held = spec.owners.keys() | spec.fenced().keys()
    for block in sorted(free & held):
        holders = _holders(spec, block) if block in spec.owners else "device work that has not ended"
        yield Difference(_name(spec, block), f"held by {holders}", "on the free list", block=block)
    for block in sorted(free & retiring):
        yield Difference(_name(spec, block), "free or retiring", "both free and retiring", block=block)
    if books.free is not None:
        for block in sorted(spec.universe - free - held - retiring - spec.pinned()):
            yield Difference(_name(spec, block), "held by nobody, so free", "neither free nor held nor retiring", block=block)
    for block in sorted(books.cached or ()):
        if not spec.memory.slots[block * spec.memory.stride]:
            yield Difference(_name(spec, block), "holds nothing that could be matched", "counts as matchable", block=block)


def _accused_blocks(spec: Spec, accused: Accusation) -> Iterator[Difference]:
    """What the blocks hold that the violation names, where nothing else tells the two apart."""
    stride = spec.memory.stride
    for block in accused.blocks:
        if block in spec.universe:
            contents = [_content(spec, content) for content in spec.memory.slots[block * stride : (block + 1) * stride] if content]
            model = f"holds {contents[-1]}" if contents else "holds nothing"
            yield Difference(_name(spec, block), model, f"listed by {_holders(spec, block)}", block=block)


def _held_prefix(spec: Spec, sequence: Sequence) -> int:
    """How many leading tokens of a prompt lie in the pool, in every full group."""
    full = [group for group, window in enumerate(spec.windows) if window is None]
    for position in range(len(sequence.known)):
        if not all(spec.memory.where(spec.content(sequence, group, position)) for group in full):
            return position
    return len(sequence.known)


# -- words ---------------------------------------------------------------------------------------------------------------------------------


def _name(spec: Spec, block: int) -> str:
    generation = spec.memory.generations[block]
    return f"block b{block}" + (f"#{generation}" if generation else "")


def _slot(spec: Spec, slot: int) -> str:
    return f"{_name(spec, spec.memory.block_of(slot))} offset {slot % spec.memory.stride}"


def _holders(spec: Spec, block: int) -> str:
    times = Counter(seq for seq, _, _ in spec.owners.get(block, ()))
    return joined([f"sequence {seq}" + (" twice" if times[seq] > 1 else "") for seq in sorted(times)]) or "nobody"


def _content(spec: Spec, content: int) -> str:
    """The prefix that a content stands for, its end: `... 6 7`."""
    if content == EMPTY:
        return "nothing that was written"
    tokens = spec.tree.tokens(content // len(spec.block_sizes))
    return f"the prefix {'... ' if len(tokens) > MOST_TOKENS else ''}{numbers(tokens[-MOST_TOKENS:])}"
