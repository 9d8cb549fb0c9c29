"""A program changed a little at random: how the shrinker leaves a local minimum.

Passes only ever take away, so they stop where two changes are needed at once: an operation must move before another can go. A walk over programs that fail in the same way and
are no longer finds such places; whatever gets simpler on it is handed back to the passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.edits import renamed, tokens_of, with_tokens
from kvproof.fuzz.simpler import Candidate
from kvproof.models.ops import (
    Admit,
    Append,
    Commit,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
    sequences_of,
)

Ops: TypeAlias = list[Op]

MOST_CHANGES: Final = 3
"""How many changes one step of the walk makes at most."""


def shaken(candidate: Candidate, rng: random.Random) -> Candidate:
    """`candidate` after one to three random changes."""
    ops = list(candidate.ops)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        if ops:
            rng.choice(CHANGES)(ops, rng)
    return Candidate(candidate.config, tuple(ops))


def _drop(ops: Ops, rng: random.Random) -> None:
    del ops[rng.randrange(len(ops))]


def _move(ops: Ops, rng: random.Random) -> None:
    op = ops.pop(rng.randrange(len(ops)))
    ops.insert(rng.randint(0, len(ops)), op)


def _other_sequence(ops: Ops, rng: random.Random) -> None:
    """Let another sequence do it."""
    everyone = sorted({seq for op in ops for seq in sequences_of(op)})
    if everyone:
        i, seq = rng.randrange(len(ops)), rng.choice(everyone)
        if not isinstance(ops[i], Admit | Fork):
            ops[i] = renamed(ops[i], lambda _: seq)


def _other_tokens(ops: Ops, rng: random.Random) -> None:
    """One token more, one token less, or another token."""
    i = rng.randrange(len(ops))
    if isinstance(ops[i], Admit | Append | Extend):
        tokens = list(tokens_of(ops[i]))
        change = rng.randrange(3)
        if change == 0:
            tokens.append(rng.randrange(2))
        elif tokens:
            where = rng.randrange(len(tokens))
            tokens[where : where + 1] = [] if change == 1 else [1 - min(tokens[where], 1)]
        if tokens or isinstance(ops[i], Extend):
            ops[i] = with_tokens(ops[i], tuple(tokens))


def _other_number(ops: Ops, rng: random.Random) -> None:
    """A count, a length or a number of accepted drafts, one up or down."""
    i, by = rng.randrange(len(ops)), rng.choice((-1, 1))
    op = ops[i]
    if isinstance(op, Extend):
        ops[i] = msgspec.structs.replace(op, count=max(1, op.count + by))
    elif isinstance(op, Truncate):
        ops[i] = Truncate(op.seq, max(1, op.length + by))
    elif isinstance(op, Commit):
        ops[i] = Commit(op.seq, max(0, op.accepted + by))


def _other_kind(ops: Ops, rng: random.Random) -> None:
    """Something else that the same sequence, or the cache, could do there."""
    i = rng.randrange(len(ops))
    op = ops[i]
    if isinstance(op, Fork):
        parent = next((o for o in ops[:i] if isinstance(o, Admit) and o.seq == op.parent), None)
        if parent is not None:
            ops[i] = msgspec.structs.replace(parent, seq=op.child)
    elif isinstance(op, Match | Release | Truncate | SwapOut | SwapIn):
        ops[i] = rng.choice(
            (Release(op.seq), Release(op.seq, "preempt"), Match(op.seq), Extend(op.seq, 1), Truncate(op.seq, 1), SwapOut(op.seq))
        )
    elif isinstance(op, Evict):
        ops[i] = Reset()


CHANGES: Final[tuple[Callable[[Ops, random.Random], None], ...]] = (
    _drop,
    _drop,
    _move,
    _other_sequence,
    _other_tokens,
    _other_number,
    _other_kind,
)
"""Drops twice: only they make a program shorter."""
