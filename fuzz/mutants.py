"""New programs out of kept ones: a campaign goes on from what reached something new instead of starting from nothing each time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from kvproof.fuzz.edits import renamed
from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.fuzz.shake import shaken
from kvproof.fuzz.simpler import Candidate
from kvproof.models.ops import Op, sequences_of

MUTANT_SHARE: Final = 0.4
"""Share of programs that are made out of kept ones, where there are any. The rest starts from nothing, since kept programs lead back to where they were found."""

MOST_MUTANT_OPS: Final = 120
"""A mutant takes at most so many operations from its parents: programs that only grow would slow the campaign down."""

MORE: Final = (0, 4, 8, 16, 30)
"""How many operations the generator may add at the end."""


PARENTS: Final = 8
"""Kept programs to choose from for one batch. More makes orders of a campaign long: they are written down, and sent."""

NEWEST: Final = 32
"""Half of them are among so many that were kept last: what is found late is rare, and few programs lead there."""


class Mutant(msgspec.Struct, frozen=True):
    """What to run first, on which pool, and how many operations the generator adds."""

    config: PoolConfig
    ops: tuple[Op, ...]
    more: int


def parents_of(rng: random.Random, corpus: Sequence[Program]) -> tuple[Program, ...]:
    """Some programs of `corpus`, which is in the order in which they were kept, to make new ones of. A longer one than a mutant may take over would lose what it was kept for."""
    able = [program for program in corpus if len(program.ops) <= MOST_MUTANT_OPS]
    if len(able) <= PARENTS:
        return tuple(able)
    return (*rng.sample(able[-NEWEST:], PARENTS // 2), *rng.sample(able, PARENTS // 2))


def mutant(rng: random.Random, parents: Sequence[Program]) -> Mutant | None:
    """A program made out of one or two of `parents`, or None where it is to be drawn from nothing."""
    if not parents or rng.random() >= MUTANT_SHARE:
        return None
    parent = rng.choice(parents)
    ops: tuple[Op, ...] = parent.ops[:MOST_MUTANT_OPS]
    habit = rng.random()
    if habit < 0.6:  # on from where it reached something new
        more = rng.choice(MORE[1:])
    elif habit < 0.85:
        ops, more = shaken(Candidate(parent.config, ops), rng).ops, rng.choice(MORE)
    else:
        ops, more = _interleaved(rng, ops, rng.choice(parents).ops), rng.choice(MORE)
    return Mutant(parent.config, ops[:MOST_MUTANT_OPS], more)


def _interleaved(rng: random.Random, one: Sequence[Op], two: Sequence[Op]) -> tuple[Op, ...]:
    """Two programs at once on one pool, each in its own order; the second uses other sequences."""
    above = 1 + max((seq for op in one for seq in sequences_of(op)), default=-1)
    others = [renamed(op, lambda seq: seq + above) for op in two]
    turns = [0] * len(one) + [1] * len(others)
    rng.shuffle(turns)
    sources = iter(one), iter(others)
    return tuple(next(sources[turn]) for turn in turns)
