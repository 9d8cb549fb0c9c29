"""What could be simpler than a program. Each pass proposes candidates, the boldest first.

A pass knows nothing of the failure; the shrinker runs what it proposes and keeps what still fails. Operations that a candidate makes impossible are skipped by the
driver and so fall out by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, permutations
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.edits import (
    grown,
    in_namespace,
    renamed,
    retoken,
    scaled,
    smaller,
    tokens_of,
    weight_of,
    with_field_moved,
    with_tokens,
    without_field,
)
from kvproof.fuzz.programs import PoolConfig
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    NO_NAMESPACE,
    Admit,
    Append,
    Commit,
    Evict,
    Extend,
    Fork,
    Namespace,
    Op,
    Release,
    SwapOut,
    Truncate,
    sequences_of,
)

Ops: TypeAlias = tuple[Op, ...]
Size: TypeAlias = tuple[int, int, int, int, int]


MOST_PAIRED: Final = 24
"""Of programs of at most so many operations, all pairs are tried."""


class Candidate(msgspec.Struct, frozen=True):
    """A pool and the operations to run on it."""

    config: PoolConfig
    ops: Ops

    @property
    def size(self) -> Size:
        """What makes one program simpler than another: smaller, field by field."""
        tokens = [token for op in self.ops for token in tokens_of(op)]
        spaces = len({op.namespace for op in self.ops if isinstance(op, Admit)} - {NO_NAMESPACE})
        weight = sum(tokens) + sum(map(weight_of, self.ops))
        return len(self.ops), len(tokens), spaces, self.config.num_blocks + self.config.block_size, weight


Pass: TypeAlias = Callable[[Candidate, Capabilities], Iterator[Candidate]]


def recent(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Only the sequences that were active last, with all that they ever did: one, two, four, ... of them.

    It goes from the short to the long, so what it costs is measured by what the failure needs and not by the length of the program.
    """
    last: dict[int, int] = {}
    parents = {op.child: op.parent for op in best.ops if isinstance(op, Fork)}
    for i, op in enumerate(best.ops):
        last.update(dict.fromkeys(sequences_of(op), i))
    order = sorted(last, key=last.__getitem__, reverse=True)
    for exponent in range(len(order).bit_length()):
        keep = set(order[: 1 << exponent])
        for seq in order:
            while seq in keep and seq in parents:
                seq = parents[seq]
                keep.add(seq)
        first = next(i for i, op in enumerate(best.ops) if keep.intersection(sequences_of(op)))
        yield _with(best, tuple(op for op in best.ops[first:] if keep.issuperset(sequences_of(op))))


def without_two(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Leave out two operations that may lie apart, where the program is short enough to try all pairs."""
    if len(best.ops) <= MOST_PAIRED:
        for i, j in combinations(range(len(best.ops)), 2):
            yield _with(best, best.ops[:i] + best.ops[i + 1 : j] + best.ops[j + 1 :])


def without_sequence(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Leave out everything that one sequence does."""
    config = best.config
    for seq in _all_sequences(best, newest_first=True):
        without = tuple(op for op in best.ops if seq not in sequences_of(op))
        yield _with(best, without)
        # The sequence may only have filled the pool: then a smaller pool does as well.
        held = -(-sum(len(tokens_of(op)) for op in best.ops if _belongs(op, seq)) // config.block_size)
        for fewer in sorted({1, 2, 3, 4, *range(held - 2, held + 2)}, reverse=True):
            if 0 < fewer < config.num_blocks:
                yield Candidate(PoolConfig(config.num_blocks - fewer, config.block_size), without)
        if any(isinstance(op, Evict) for op in without):
            yield _with(best, _evicting_everything(without, config.num_blocks))


def one_for_two(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Let one sequence do what two did: a fork's child its parent's part, or a later request that of an earlier one."""
    for kept, gone in combinations(_all_sequences(best), 2):
        yield _with(
            best,
            tuple(
                renamed(op, lambda seq, kept=kept, gone=gone: kept if seq == gone else seq)  # type: ignore[misc]
                for op in best.ops
                if not _creates(op, gone)
            ),
        )


def in_one_pass(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """A sequence that has come to its tokens by appends, drafts, roll-backs or a fork knows them from the start, and computes them in one pass."""
    for end, known, space, seq in _histories(best.ops):
        passes = _passes(best.ops[:end], seq)
        for extend, commit in {passes[0], passes[-1]} if passes else ():
            yield _with(best, _rewritten(best.ops, seq, end, Admit(seq, known, space), keep={extend, commit}))
        born = next(i for i, op in enumerate(best.ops) if _creates(op, seq))
        if isinstance(best.ops[born], Fork):
            fresh = (Admit(seq, known, space), Extend(seq, len(known)), Commit(seq))
            rest = tuple(op for i, op in enumerate(best.ops[born + 1 :], born + 1) if i >= end or not _belongs(op, seq))
            yield _with(best, best.ops[:born] + fresh + rest)


def by_fork(best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
    """A request that comes later is a fork of an earlier sequence: it need not be admitted and computed."""
    if capabilities.fork:
        for parent, child in permutations(_all_sequences(best), 2):
            began = next((i for i, op in enumerate(best.ops) if isinstance(op, Extend) and op.seq == child), None)
            if began is not None:
                yield _with(
                    best, tuple(op for op in _put(best, began, Fork(parent, child)).ops if not (isinstance(op, Admit) and op.seq == child))
                )


def anew(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Instead of a sequence that is rolled back and then given other tokens, another one begins with what it knows then."""
    new = 1 + max(_all_sequences(best), default=0)
    for end, known, space, seq in _histories(best.ops):
        turned = next((i for i in reversed(range(end)) if _belongs(best.ops[i], seq) and not isinstance(best.ops[i], Append)), end)
        if turned == end or not isinstance(best.ops[turned], Truncate):
            continue
        before = tuple(op for i, op in enumerate(best.ops[:end]) if i < turned or not _belongs(op, seq))
        after = tuple(renamed(op, lambda other, seq=seq: new if other == seq else other) for op in best.ops[end:])  # type: ignore[misc]
        yield _with(best, (*before, Admit(new, known, space), *after))
        yield _with(
            best,
            (
                *before,
                Admit(new, known, space),
                *(Extend(new, len(known), op.drafts) if isinstance(op, Extend) and op.seq == new else op for op in after),
            ),
        )


def merged(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Fold a later append into the prompt, that of the parent for a fork, and later passes of a sequence into its first."""
    ops = best.ops
    for i, op in enumerate(ops):
        if isinstance(op, Append):
            seq = op.seq
            for j in range(i - 1, -1, -1):
                earlier = ops[j]
                if isinstance(earlier, Fork) and earlier.child == seq:
                    seq = earlier.parent
                if isinstance(earlier, Admit | Append) and earlier.seq == seq:
                    longer = with_tokens(earlier, tokens_of(earlier) + op.tokens)
                    yield _with(best, (*ops[:j], longer, *ops[j + 1 : i], *ops[i + 1 :]))
                    more = [grown(o, op.seq, len(op.tokens)) for o in ops[j + 1 : i]]
                    yield _with(best, (*ops[:j], longer, *more, *ops[i + 1 :]))
                    break
        if isinstance(op, Extend):
            for j in range(i - 1, -1, -1):
                earlier = ops[j]
                if isinstance(earlier, Extend) and earlier.seq == op.seq and not earlier.drafts:
                    whole = msgspec.structs.replace(earlier, count=earlier.count + op.count, drafts=op.drafts)
                    yield _with(best, (*ops[:j], whole, *ops[j + 1 : i], *ops[i + 1 :]))
                    break


def simpler_kinds(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """A release instead of a swap or a truncation, and a fork from further up."""
    parents = {op.child: op.parent for op in best.ops if isinstance(op, Fork)}
    for i, op in enumerate(best.ops):
        if isinstance(op, SwapOut | Truncate):
            yield _put(best, i, Release(op.seq, "finish"))
        if isinstance(op, Fork) and op.parent in parents:
            yield _put(best, i, Fork(parents[op.parent], op.child))


def smaller_pool(best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
    """Fewer and smaller blocks."""
    config = best.config
    for blocks in sorted({1, 2, 3, 4, config.num_blocks // 2, config.num_blocks - 1}):
        if 1 <= blocks < config.num_blocks:
            pool = PoolConfig(blocks, config.block_size)
            yield Candidate(pool, best.ops)
            # Another pool hands out other ids, so an eviction by id must first name them all.
            if any(isinstance(op, Evict) for op in best.ops):
                yield Candidate(pool, _evicting_everything(best.ops, blocks))
            # Whoever fills the pool has less to fill.
            for seq in _all_sequences(best):
                fewer = (config.num_blocks - blocks) * config.block_size
                yield Candidate(pool, tuple(_with_less(op, fewer) if _belongs(op, seq) else op for op in best.ops))
    for size in sorted(set(capabilities.block_sizes)):
        if size < config.block_size:
            yield Candidate(PoolConfig(config.num_blocks, size), best.ops)
            yield Candidate(PoolConfig(config.num_blocks, size), tuple(scaled(op, config.block_size, size) for op in best.ops))


def plainer(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """One namespace instead of several, fewer fields, plain reasons, fewer distinct tokens."""
    spaces = _spaces(best)
    for space in sorted(spaces, key=repr):
        yield _map(best, partial(in_namespace, old=space, new=NO_NAMESPACE))
        for field in space.__struct_fields__:
            if getattr(space, field) is not None:
                yield _map(best, partial(in_namespace, old=space, new=msgspec.structs.replace(space, **{field: None})))
    for field in _fields(spaces):
        yield _map(best, partial(without_field, field=field))
    for i, op in enumerate(best.ops):
        if isinstance(op, Release) and op.reason != "finish":
            yield _put(best, i, Release(op.seq, "finish"))
    for new, old in enumerate(sorted({token for op in best.ops for token in tokens_of(op)})):
        for lower in (0, 1, new):
            if lower < old:
                yield _map(best, partial(retoken, old=old, new=lower))


def first_fields(best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
    """Namespaces that differ in the first field that does as well: what is left then is the one that matters, or the first of all."""
    used = _fields(_spaces(best))
    told_apart = [field for field in NAMESPACE_FIELDS if field in capabilities.namespace_fields]
    for field in used:
        for earlier in told_apart:
            if NAMESPACE_FIELDS.index(earlier) < NAMESPACE_FIELDS.index(field) and earlier not in used:
                yield _map(best, partial(with_field_moved, old=field, new=earlier))


def smaller_values(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Shorter prompts, drafts and counts, one operation at a time."""
    for i, op in enumerate(best.ops):
        for less in smaller(op):
            yield _put(best, i, less)


def renumbered(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Sequences numbered in the order in which they appear."""
    order: dict[int, int] = {}
    for op in best.ops:
        for seq in sequences_of(op):
            order.setdefault(seq, len(order))
    yield _map(best, lambda op: renamed(op, order.__getitem__))


PASSES: Final[tuple[Pass, ...]] = (
    without_two,
    without_sequence,
    in_one_pass,
    by_fork,
    anew,
    one_for_two,
    merged,
    simpler_kinds,
    smaller_pool,
    plainer,
    first_fields,
    smaller_values,
    renumbered,
)
"""In this order: what takes away most comes first."""


# -- parts of programs ------------------------------------------------------------------------------------------------------------------------------


def _with(best: Candidate, ops: Ops) -> Candidate:
    return Candidate(best.config, ops)


def _put(best: Candidate, index: int, op: Op) -> Candidate:
    return _with(best, (*best.ops[:index], op, *best.ops[index + 1 :]))


def _map(best: Candidate, change: Callable[[Op], Op]) -> Candidate:
    return _with(best, tuple(change(op) for op in best.ops))


def _spaces(best: Candidate) -> set[Namespace]:
    """The namespaces of a program, the default one left out."""
    return {op.namespace for op in best.ops if isinstance(op, Admit)} - {NO_NAMESPACE}


def _fields(spaces: set[Namespace]) -> list[str]:
    """The fields that some namespace has."""
    return [field for field in NAMESPACE_FIELDS if any(getattr(space, field) is not None for space in spaces)]


def _all_sequences(best: Candidate, *, newest_first: bool = False) -> list[int]:
    return sorted({seq for op in best.ops for seq in sequences_of(op)}, reverse=newest_first)


def _creates(op: Op, seq: int) -> bool:
    return (isinstance(op, Admit) and op.seq == seq) or (isinstance(op, Fork) and op.child == seq)


def _belongs(op: Op, seq: int) -> bool:
    """Whether `seq` itself does this: to be forked from leaves a parent as it is."""
    return _creates(op, seq) or getattr(op, "seq", None) == seq


def _evicting_everything(ops: Ops, blocks: int) -> Ops:
    return tuple(Evict(tuple(range(blocks))) if isinstance(op, Evict) else op for op in ops)


def _with_less(op: Op, tokens: int) -> Op:
    if isinstance(op, Extend):
        return msgspec.structs.replace(op, count=max(1, op.count - tokens))
    return with_tokens(op, op.prompt[: max(1, len(op.prompt) - tokens)]) if isinstance(op, Admit) else op


def _histories(ops: Ops) -> Iterator[tuple[int, tuple[int, ...], Namespace, int]]:
    """Before which operation, what a sequence knows by then, in which namespace, and which sequence: wherever it is about to do something between two passes."""
    known: dict[int, tuple[int, ...]] = {}
    spaces: dict[int, Namespace] = {}
    drafts: dict[int, tuple[int, ...]] = {}
    for i, op in enumerate(ops):
        seq = op.parent if isinstance(op, Fork) else getattr(op, "seq", None)
        if seq in known and not isinstance(op, Commit) and drafts.get(seq) is None:
            yield i, known[seq], spaces[seq], seq
        if isinstance(op, Admit):
            known[op.seq], spaces[op.seq] = op.prompt, op.namespace
        elif isinstance(op, Fork) and op.parent in known:
            known[op.child], spaces[op.child] = known[op.parent], spaces[op.parent]
        elif seq in known:
            _learn(op, seq, known, drafts)


def _learn(op: Op, seq: int, known: dict[int, tuple[int, ...]], drafts: dict[int, tuple[int, ...]]) -> None:
    if isinstance(op, Append):
        known[seq] += op.tokens
    elif isinstance(op, Truncate):
        known[seq] = known[seq][: op.length]
    elif isinstance(op, Extend):
        drafts[seq] = op.drafts
    elif isinstance(op, Commit):
        known[seq] += drafts.pop(seq, ())[: op.accepted]
    elif isinstance(op, Release):
        drafts.pop(seq, None)


def _passes(ops: Ops, seq: int) -> list[tuple[int, int]]:
    """Where the passes of a sequence begin and end."""
    ends = [i for i, op in enumerate(ops) if isinstance(op, Commit) and op.seq == seq]
    begins = [i for i, op in enumerate(ops) if isinstance(op, Extend) and op.seq == seq]
    return [(max(b for b in begins if b < end), end) for end in ends if any(b < end for b in begins)]


def _rewritten(ops: Ops, seq: int, end: int, admit: Admit, keep: set[int]) -> Ops:
    """Before `end`, `seq` is admitted with all that it knows, and has only the one pass whose operations are in `keep`, over all of it."""

    def changed() -> Iterator[Op]:
        for i, op in enumerate(ops):
            if i >= end or not _belongs(op, seq):
                yield op
            elif _creates(op, seq):
                yield admit
            elif i in keep:
                yield Extend(seq, len(admit.prompt)) if isinstance(op, Extend) else Commit(seq)

    return tuple(changed())
