"""How every program ends: device work finishes, everyone lets go, and one fresh sequence takes the whole pool."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from typing import Final

from kvproof.models.layouts import blocks_for
from kvproof.models.ops import Admit, BeginStep, EndStep, Extend, Namespace, Op, Release, ReleaseReason
from kvproof.models.spec import Spec

FINAL_REASONS: Final[tuple[ReleaseReason, ...]] = ("finish", "cancel", "error")
"""The reasons after which a sequence is gone."""

DRAIN_TOKEN: Final = 90_210
"""The token of the last prompt. No generator makes it otherwise, so that prefix of the pool is never a hit and every block must come from
the free list.
"""


def drain(rng: random.Random, spec: Spec, next_seq: int) -> Many[Op]:
    """The operations that drain the cache beside `spec`; `next_seq` is a sequence number that was never used.

    They put `no-leak` to the test: the last extend asks for every usable block, and a cache that lost one cannot grant it.
    """
    ops: list[Op] = [EndStep() for _ in spec.steps]
    if spec.transfers:
        ops += [BeginStep(), EndStep()]
    gone = list(spec.live)
    rng.shuffle(gone)
    ops += [Release(seq, rng.choice(FINAL_REASONS)) for seq in gone]
    tokens = whole_pool_tokens(spec)
    if tokens:
        ops += [Admit(next_seq, (DRAIN_TOKEN,) * tokens, Namespace()), Extend(next_seq, tokens)]
    return ops


def whole_pool_tokens(spec: Spec) -> int:
    """The longest sequence, in tokens, that the usable blocks of the pool can hold in all groups at once."""
    tokens = spec.usable // len(spec.block_sizes) * min(spec.block_sizes)
    while sum(blocks_for(tokens + 1, size) for size in spec.block_sizes) <= spec.usable:
        tokens += 1
    return tokens
