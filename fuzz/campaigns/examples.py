"""Hypothesis examples on their way between the store of a campaign and a worker, which may be on another machine.

    relay = Relay(order.examples)         # what the order brings along
    run_machine(..., database=relay)
    relay.kept, relay.dropped             # what goes back with the result

Hypothesis keeps the examples that are best for their size (its Pareto front, by the number of situations reached), runs some of them first, and drops those that others surpass.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis.database import InMemoryExampleDatabase

FRONT = b".pareto"
"""How the key ends under which Hypothesis keeps its front. Everything else that it keeps is of use to one run only."""


class Relay(InMemoryExampleDatabase):
    """An example database for one batch."""

    def __init__(self, given: Iterable[bytes]) -> None:
        super().__init__()
        self._given = frozenset(given)
        self._front = set(self._given)

    @property
    def kept(self) -> tuple[bytes, ...]:
        """What Hypothesis keeps and was not there before."""
        return tuple(sorted(self._front - self._given))

    @property
    def dropped(self) -> tuple[bytes, ...]:
        """What was there and Hypothesis keeps no longer."""
        return tuple(sorted(self._given - self._front))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The values under a key."""
        return sorted(self._front) if key.endswith(FRONT) else super().fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a value."""
        if key.endswith(FRONT):
            self._front.add(value)
        else:
            super().save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Drop a value."""
        if key.endswith(FRONT):
            self._front.discard(value)
        else:
            super().delete(key, value)
