"""The laws of a cache, each as one short check on what was seen. `Spec` calls them; a check that fails raises `Broken` with the law's name.

Where several laws could be named, the check names the one that a reader can act on: the operation that broke it, not the symptom that followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvproof.models.checks.bookkeeping import books
from kvproof.models.checks.content import contents, room
from kvproof.models.checks.forgetting import events, eviction, eviction_order, proven_order, reset
from kvproof.models.checks.naming import Broken, changed_sequences
from kvproof.models.checks.ownership import (
    copy_batch,
    dead,
    dead_release,
    exclusive_write,
    failure_changes_nothing,
    handed_out,
    mirror,
    no_aliasing,
    no_spurious_exhaustion,
    repeated_release,
    tail_waste,
    whole_pool_again,
)
from kvproof.models.checks.prefix import adoption, hit, steady_hit
from kvproof.models.ops import Admit, Append, BeginStep, EndStep, Evict, Match, Op, Reset

if TYPE_CHECKING:
    from kvproof.models.spec import Spec

__all__ = [
    "Broken",
    "adoption",
    "books",
    "contents",
    "copy_batch",
    "dead",
    "dead_release",
    "events",
    "everything",
    "eviction",
    "eviction_order",
    "exclusive_write",
    "failure_changes_nothing",
    "handed_out",
    "hit",
    "mirror",
    "no_aliasing",
    "no_spurious_exhaustion",
    "proven_order",
    "repeated_release",
    "reset",
    "room",
    "steady_hit",
    "tail_waste",
    "whole_pool_again",
]


_NEEDS_AS_BEFORE: Final = frozenset({Admit, Append, Match, BeginStep, EndStep, Evict, Reset})
"""Operations that change nothing of which blocks a sequence should hold: as long as no table moves, they hold what they held."""


def everything(spec: Spec, op: Op) -> None:
    """The laws that hold after every operation. Each is asked only if the agenda holds something for it to look at."""
    agenda, seen, ask = spec.agenda, spec.seen, spec.ask
    if spec.memory.touched:
        agenda.touched(spec)
    if spec.thorough:
        agenda.everything(spec)
    changed = () if type(op) in _NEEDS_AS_BEFORE and not seen.was and not spec.thorough else changed_sequences(spec, op)
    if agenda.shared or seen.orphaned:
        ask(no_aliasing)
    if changed or agenda.entries:
        ask(contents, op, changed)
    if agenda.books:
        if agenda.has_books_to_check() or seen.books.free_count is not None:
            ask(books, op)
        if (agenda.told or agenda.mistold) and seen.last.events is not None and seen.books.cached is not None:
            ask(events)
    if spec.tight and changed:
        ask(tail_waste, changed)
    if spec.evicted:
        ask(eviction_order)
