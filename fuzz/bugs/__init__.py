"""Seeded bugs: faulty variants of the production cache, which the suite must catch. The suite itself is under test here.

    kvproof check bug:canary                  # what the report of a broken cache looks like
    python benchmarks/seeded_bugs.py          # all of them: which law, how many operations, how long it took

`BUGS` holds every seeded bug by its name. Each file has those that break one kind of thing: `ownership`, `content`, `prefix`, `namespaces`, `steps`, `windows`,
`policy`, `swap`, `books`, `batches`. `NOT_SEEDED` says which bugs of the bug list no cache adapter can show, and why.
"""

from __future__ import annotations

from typing import Final

from kvproof.fuzz.bugs import batches, books, content, namespaces, ownership, policy, prefix, steps, swap, windows
from kvproof.fuzz.bugs.registry import BUGS, LONG, SHORT, SeededBug, seeded

_KERNEL: Final = "a kernel reads or writes the wrong memory; the cache's tables are right"
_LAYOUT: Final = "the bytes inside a block are laid out wrongly; a cache adapter shows blocks, not bytes"

NOT_SEEDED: Final[dict[str, str]] = {
    "B28": "two requests hold blocks and wait for each other's: the scheduler should not have admitted both, and every answer of the cache is right",
    "B32": _KERNEL,
    "B34": _KERNEL,
    "B35": _KERNEL,
    "B37": _KERNEL,
    "B38": _KERNEL,
    "B40": _LAYOUT,
    "B41": "two workers disagree about a layout: a transfer",
    "B58": "a prefill worker aborts and the decode worker is not told: a transfer",
    "B59": _KERNEL,
    "B76": _LAYOUT,
    "B89": _KERNEL,
}
"""Entries of the bug list that no cache adapter can show, with the reason."""

__all__ = [
    "BUGS",
    "LONG",
    "NOT_SEEDED",
    "SHORT",
    "SeededBug",
    "batches",
    "books",
    "content",
    "namespaces",
    "ownership",
    "policy",
    "prefix",
    "seeded",
    "steps",
    "swap",
    "windows",
]
