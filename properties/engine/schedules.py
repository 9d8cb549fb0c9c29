"""For each seeded bug of the engine and of its storage the shortest schedule that is known to show it: what the shrinker left of a random one."""

from __future__ import annotations

from typing import Final, TypeAlias

from kvproof.models.ops import Admit, Append, BeginStep, Commit, EndStep, Extend, Fork, Namespace, Op, Release, SwapIn, SwapOut

Schedule: TypeAlias = tuple[int, int, tuple[Op, ...]]
"""Blocks of the pool, tokens of a block, operations."""


def served(seq: int, count: int, drafts: tuple[int, ...] = (), accepted: int = 0) -> tuple[Op, ...]:
    """One pass in a step of its own, to its commit."""
    return (Extend(seq, count, drafts), BeginStep(), EndStep(), Commit(seq, accepted))


COPIED: Final[Schedule] = (2, 2, (Admit(0, (0, 0)), *served(0, 1), Fork(0, 1), *served(0, 1)))
"""A fork shares a block that is not full, and its parent goes on in a copy of it."""

SWAPPED: Final[Schedule] = (
    2,
    2,
    (Admit(0, (0,)), *served(0, 1), SwapOut(0), Admit(1, (1, 1)), *served(1, 2), SwapIn(0), Append(0, (0,)), *served(0, 1)),
)
"""Somebody takes the block that a swap made free, and the sequence comes back to another."""

ENGINE: Final[dict[str, Schedule]] = {
    "copies-are-forgotten": COPIED,
    "copies-run-after-the-pass": COPIED,
    "copies-run-at-launch": (
        2,
        2,
        (
            Admit(0, (0, 0)),
            Admit(1, (1, 1)),
            Extend(0, 1),
            *served(1, 1),
            Commit(0),
            Fork(1, 2),
            SwapOut(0),
            Extend(1, 1),
            BeginStep(),
            EndStep(),
            Release(2),
            SwapIn(0),
            *served(0, 1),
        ),
    ),
    "one-layer-is-copied": COPIED,
    "copies-leave-the-scales": COPIED,
    "swaps-leave-the-scales": SWAPPED,
    "swaps-run-beside-the-queue": (1, 2, (Admit(0, (0, 0)), *served(0, 1), SwapOut(0), SwapIn(0), *served(0, 1))),
    "swaps-run-when-there-is-time": SWAPPED,
    "a-partial-block-is-not-swapped": SWAPPED,
    "positions-count-a-rejected-draft": (
        2,
        3,
        (Admit(0, (0, 1, 0)), *served(0, 2), *served(0, 1, drafts=(0,)), Append(0, (0,)), *served(0, 1)),
    ),
    "rope-turns-by-the-slot": (2, 1, (Admit(0, (0,)), *served(0, 1), Release(0), Admit(1, (1, 0)), *served(1, 2))),
    "chunks-begin-at-zero": (1, 2, (Admit(0, (0, 1)), *served(0, 1), *served(0, 1))),
    "draft-keys-are-kept": (1, 4, (Admit(0, (0, 1)), *served(0, 1), *served(0, 1, drafts=(0, 1)), Append(0, (1,)), *served(0, 1))),
    "a-prefix-is-computed-at-the-wrong-place": (2, 1, (Admit(0, (0,)), *served(0, 1), Admit(1, (0, 0)), *served(1, 2))),
    "the-window-is-a-token-short": (4, 3, (Admit(0, (0, 0, 1, 0, 0)), *served(0, 5))),
    "a-fork-forgets-its-adapter": (1, 1, (Admit(0, (0,), Namespace(adapter="a")), Fork(0, 1), *served(1, 1))),
    "a-batch-takes-the-first-table": (
        4,
        2,
        (Admit(0, (0, 0, 0)), *served(0, 3), Fork(0, 1), Append(0, (0,)), Append(1, (1,)), Extend(0, 1), *served(1, 1)),
    ),
}

LONG: Final = tuple(i % 2 for i in range(21))
"""One token more than a group and a window, so that a group is quantised."""

TENSORS: Final[dict[str, Schedule]] = {
    "copies-are-forgotten": COPIED,
    "copies-leave-the-first-slot": COPIED,
    "copies-leave-the-scales": COPIED,
    "low-bit-copies-leave-the-scales": (3, 32, (Admit(0, (*LONG, 0)), *served(0, 21), Fork(0, 1), *served(0, 1))),
    "low-bit-swaps-leave-the-zeros": (
        4,
        16,
        (Admit(0, LONG), *served(0, 21), SwapOut(0), Admit(1, (1,)), *served(1, 1), SwapIn(0), Append(0, (0,)), *served(0, 1)),
    ),
    "a-fork-leaves-the-window": (2, 16, (Admit(0, (0, 0)), *served(0, 1), Fork(0, 1), *served(1, 1))),
    "a-fork-counts-from-zero": (3, 16, (Admit(0, LONG), *served(0, 20), Fork(0, 1), *served(1, 1))),
    "a-swap-leaves-the-window": (2, 16, SWAPPED[2]),
    "a-rejection-takes-the-count-back": (
        2,
        16,
        (Admit(0, LONG[:17]), *served(0, 16), *served(0, 1, drafts=(0, 1, 0, 1)), Append(0, (0,)), *served(0, 1)),
    ),
}
