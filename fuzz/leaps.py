"""Long programs made short at a stroke, before they are cut operation by operation.

A program of thousands of operations often fails because of how full the pool is and who holds what. Whatever is cut out of its middle changes both, so plain cutting gets nowhere.
Two leaps keep what matters:

* `in_smaller_pools`: the few sequences that were active last, on a pool that is small enough for them to fill it.
* `restarts`: what everybody knows and has computed at some point of the program, brought about in one pass each, and then the rest of the program as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from typing import Final

from kvproof.fuzz.edits import scaled
from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.simpler import Candidate, Ops, recent
from kvproof.impl.checker import AdapterFault, Hung
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Op, Release, SwapOut
from kvproof.models.spec import Spec
from kvproof.models.state import Pass, Sequence
from kvproof.properties.lockstep import LawBroken, Lockstep, time_limit

LEAP_OPERATIONS: Final = 40
LEAP_BLOCKS: Final = 16
"""Programs of more operations, or on pools of more blocks, are worth a leap."""

SMALL_POOLS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Blocks of the pools that a leap tries."""

MOST_OPERATIONS: Final = 4000
"""A program of more is not tried on every small pool: each run would take seconds."""

HEAD_START: Final = 50
"""So many small pools are tried before the first restart."""

REMEMBERED: Final = (0, 4, 16)
"""How many of the sequences that went last a restart brings back and lets go again: what they left may still be matchable."""


def worth_a_leap(program: Candidate) -> bool:
    """Whether `program` is too long, or runs on too large a pool, to be cut little by little."""
    return len(program.ops) > LEAP_OPERATIONS or program.config.num_blocks > LEAP_BLOCKS


def leaps(best: Candidate, target: type, capabilities: Capabilities, op_seconds: float) -> Iterator[Candidate]:
    """The candidates of both leaps in turns, since which one takes long depends on the program. A restart needs a whole run first, so it begins later."""
    small = in_smaller_pools(best, capabilities)
    yield from islice(small, HEAD_START)
    for pair in zip_longest(small, restarts(best, target, capabilities, op_seconds)):
        yield from (candidate for candidate in pair if candidate is not None)


def in_smaller_pools(best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
    """Only the sequences that were active last, on small pools, of the same and of smaller blocks."""
    size = best.config.block_size
    sizes = [size, *sorted(other for other in set(capabilities.block_sizes) if other < size)]
    for fewer in recent(best, capabilities):
        if len(fewer.ops) > MOST_OPERATIONS:
            return
        for blocks in SMALL_POOLS:
            if blocks < best.config.num_blocks:
                for other in sizes:
                    ops = fewer.ops if other == size else tuple(scaled(op, size, other) for op in fewer.ops)
                    yield Candidate(PoolConfig(blocks, other), ops)


def restarts(best: Candidate, target: type, capabilities: Capabilities, op_seconds: float) -> Iterator[Candidate]:
    """The program from some operation on, its past told in one pass for each sequence. Late beginnings come first."""
    length, pool = len(best.ops), best.config
    marks = {length - (1 << exponent) for exponent in range(length.bit_length())}
    pasts: dict[int, list[Ops]] = {}
    try:
        with time_limit(op_seconds):
            lockstep = Lockstep(target, num_blocks=pool.num_blocks, block_size=pool.block_size, capabilities=capabilities)
            for i, op in enumerate(best.ops):
                if i in marks:
                    pasts[i] = [tuple(past(lockstep.spec, gone)) for gone in REMEMBERED]
                lockstep.do(op)
    except (LawBroken, AdapterFault, Hung):
        pass  # the last operation: nothing begins after it
    for i in sorted(pasts, reverse=True):
        for told in pasts[i]:
            if len(told) < i:
                yield Candidate(pool, told + best.ops[i:])


def past(spec: Spec, remembered: int) -> Iterator[Op]:
    """Operations that lead to what `spec` knows: every sequence computed in one pass, those that went last first, and the passes that are out."""
    for sequence in list(spec.gone)[-remembered:] if remembered else ():
        yield from _computed(spec, sequence, len(sequence.known))
        yield Release(sequence.seq)
    for sequence in spec.live.values():
        yield from _computed(spec, sequence, sequence.computed)
        if sequence.swapped:
            yield SwapOut(sequence.seq)
    yield from _launched([out for out in spec.passes if out.finished])
    if spec.steps:
        yield EndStep()
    for step in spec.steps:
        yield from _launched(step)
    yield from (_extend(out) for out in spec.passes if not out.launched)


def _computed(spec: Spec, sequence: Sequence, computed: int) -> Iterator[Op]:
    yield Admit(sequence.seq, tuple(sequence.known), sequence.namespace)
    if computed:
        yield Extend(sequence.seq, computed)
        if spec.capabilities.steps:
            yield BeginStep()
            yield EndStep()
        yield Commit(sequence.seq)


def _launched(passes: Iterable[Pass]) -> Iterator[Op]:
    extends = [_extend(out) for out in passes]
    yield from extends
    if extends:
        yield BeginStep()


def _extend(out: Pass) -> Op:
    return Extend(out.seq, out.count, tuple(out.drafts))
