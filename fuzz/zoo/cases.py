"""Every case of the zoo. The bugs are those of `docs/bugs.md`, and some that were found by these runs and are not on that list."""

from __future__ import annotations

from typing import Final

from kvproof.fuzz.zoo.case import Case, Pool, Unreached
from kvproof.models.ops import Admit, Append, Commit, Extend, Release, SwapIn, SwapOut

_NAMESPACE: Final = ("hit-same-namespace",)

CASES: Final[tuple[Case, ...]] = (
    Case(
        "B01",
        "references of hit blocks leak when the allocation then fails",
        "vllm-project/vllm#11565",
        "vllm==0.6.6.post1",
        "vllm==0.7.0",
        ("failure-changes-nothing", "refcount-equals-holders"),
        also=_NAMESPACE,
    ),
    Case(
        "B10",
        "a full hit counts one token less than a whole block more",
        "vllm-project/vllm#11186",
        "vllm==0.6.4.post1",
        "vllm==0.6.6.post1",
        ("initialised-read", "hit-is-true-prefix"),
        also=("failure-changes-nothing", "hit-same-namespace"),
    ),
    Case(
        "B16",
        "adapter names and tenants' salts collide in a key",
        "vllm-project/vllm#44701",
        "vllm==0.30.0",
        "vllm==0.31.0",
        _NAMESPACE,
    ),
    Case(
        "B17",
        "one group's allocation takes another group's hit blocks",
        "vllm-project/vllm#33775",
        "vllm[hybrid-offload]==0.23.0",
        "vllm[hybrid-offload]==0.24.0",
        ("no-aliasing", "refcount-equals-holders"),
        program=(
            Admit(0, (1, 2, 3, 4)),
            Extend(0, 4),
            Commit(0),
            Append(0, (5,)),
            SwapOut(0),
            Admit(1, (1, 2, 9)),
            Extend(1, 1),
            Commit(1),
            Release(1),
            Admit(2, (7, 7, 7)),
            Extend(2, 3),
            Commit(2),
            Release(2),
            SwapIn(0),
        ),
        pool=Pool(11, 1),
    ),
    Case(
        "B19",
        "a negative number of blocks inflates the counter of free blocks",
        "vllm-project/vllm#52707",
        "vllm[paused]==0.28.0",
        "vllm[paused]==0.29.0",
        ("pool-conserved",),
        program=(
            Admit(0, (1, 2)),
            Extend(0, 1),
            Commit(0),
            Extend(0, 1, (5, 6)),
            Commit(0, 0),
            Append(0, (3,)),
            SwapOut(0),
            SwapIn(0),
        ),
        pool=Pool(8, 1),
    ),
    Case(
        "media-chain",
        "blocks behind an image are shared between images",
        "found by this run",
        "vllm==0.7.0",
        "vllm==0.8.3",
        _NAMESPACE,
    ),
    Case(
        "media-salt",
        "the identifiers of media and tenants' salts collide in a key",
        "vllm-project/vllm#44701",
        "vllm==0.10.2",
        "vllm==0.31.0",
        _NAMESPACE,
        small=True,
    ),
)

UNREACHED: Final[tuple[Unreached, ...]] = ()
