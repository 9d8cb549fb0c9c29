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
from kvproof.models.ops import Append, Match, Op

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


_TOKENS_ONLY: Final = frozenset({Append, Match})
"""Operations that change nothing of a sequence but what it knows: if nothing else has moved either, all laws hold as they did."""


def everything(spec: Spec, op: Op) -> None:
    """The laws that hold after every operation. Each looks at what the agenda holds for it, and so costs nothing where nothing has moved."""
    agenda = spec.agenda
    if type(op) in _TOKENS_ONLY and not spec.thorough and agenda.empty(spec):
        return
    if spec.memory.touched:
        agenda.touched(spec)
    if spec.thorough:
        agenda.everything(spec)
    changed = changed_sequences(spec, op)
    ask = spec.ask
    ask(no_aliasing)
    ask(contents, op, changed)
    if agenda.books:
        ask(books, op)
        if spec.seen.last.events is not None and spec.seen.books.cached is not None:
            ask(events)
    if spec.tight:
        ask(tail_waste, changed)
    if spec.lru and (spec.evicted or agenda.settled):
        ask(eviction_order)
