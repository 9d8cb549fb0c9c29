"""When a block counts as used: what its holder may publish again, and what a cache that evicts the least recently used block may take for a use.

Caches stamp blocks at different times, so a use here is the latest one that any notion of recency knows of; only what all agree upon is judged (`checks.eviction_order`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproof.models.state import Sequence

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


def use(spec: Spec, sequence: Sequence, *, certainly: bool = False) -> None:
    """The sequence touches its blocks now; what it holds, or held until now, may be published (again). Recency matters once nobody holds a block: see `let_go`.

    Only at a commit is every notion of recency bound to call that a use: a cache may stamp blocks when work is done, not when it is asked for.
    """
    publish_again(spec, sequence)
    if spec.lru:
        _seen_elsewhere(spec, sequence)
        if certainly:
            sequence.used_at, sequence.used = spec.step, spec.tables(sequence)


def let_go(spec: Spec, block: int, where: tuple[int, int, int, int]) -> None:
    """A table let go of `block`, as (step, sequence, group, index) say: it was used at the last commit of that sequence, if its table listed it then."""
    _, seq, group, _ = where
    sequence = spec.sequences.get(seq)
    if sequence is not None and sequence.used and block in sequence.used[group]:
        spec.recency.use(block, sequence.used_at)
    spec.recency.settle((block,), spec.step)
    if block not in spec.owners:
        spec.recency.drop(block, where)


def seen_content(spec: Spec, sequence: Sequence, tokens: int) -> None:
    """Every block that shows one of the first `tokens` positions may count as used now: a cache may look at, or switch to, an equal block."""
    groups = len(spec.groups)
    for group, size, _ in spec.groups:
        nodes = sequence.path[0:tokens:size]  # whoever shows a position also shows the first one of its block
        _see_contents(spec, nodes if groups == 1 else [node * groups + group for node in nodes])


def publish_again(spec: Spec, sequence: Sequence) -> None:
    """What was made unmatchable may be matchable again where `sequence` holds it, or held it until now."""
    forgotten = spec.memory.forgotten
    if not forgotten:
        return
    for table in (*(spec.seen.tables_before(sequence.seq) or ()), *spec.tables(sequence)):
        for block in forgotten.keys() & set(table):
            del forgotten[block]


def publish_all_again(spec: Spec) -> None:
    """The same for all that is held, or was until now: a cache may publish for every sequence when a step begins or ends."""
    forgotten = spec.memory.forgotten
    if not forgotten:
        return
    for block in forgotten.keys() & spec.owners.keys() | {block for _, block in spec.seen.unlisted if block in forgotten}:
        del forgotten[block]


def _seen_elsewhere(spec: Spec, sequence: Sequence) -> None:
    """Blocks besides its own may show what `sequence` has computed: those that a window has passed, and those that hold the same as another."""
    if len(spec.groups) > 1 or spec.windows[0] is not None:
        seen_content(spec, sequence, sequence.computed)
    elif spec.memory.doubled:
        _see_contents(spec, spec.memory.doubled.intersection(sequence.path[0 : sequence.computed : spec.block_sizes[0]]))


def _see_contents(spec: Spec, contents: Iterable[int]) -> None:
    spec.recency.see(spec.memory.blocks_showing(contents), spec.step)
