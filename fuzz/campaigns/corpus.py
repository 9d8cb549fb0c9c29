"""What guides the search: the programs that reached something new, the examples that Hypothesis keeps, and the situations that were reached."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from kvproof.fuzz.campaigns.orders import Result
from kvproof.fuzz.campaigns.store import Store
from kvproof.fuzz.programs import Program

MOST_EXAMPLES: Final = 200
"""Of more, as many as are too many are dropped: each batch adds some two dozen that nothing in that batch surpassed."""


class Corpus:
    """What is kept for new programs to start from, in step with the store. `rng` chooses which examples are too many."""

    def __init__(self, store: Store, rng: random.Random, situations: Iterable[str]) -> None:
        self._store = store
        self._rng = rng
        self.programs: list[Program] = store.corpus()
        self.examples: set[bytes] = set(store.examples())
        """What Hypothesis keeps."""
        self.situations: list[str] = list(situations)
        """The known ones, in the order in which they were reached."""
        self._known = set(self.situations)

    def take(self, result: Result) -> None:
        """Keep what came of an order."""
        for kept in result.kept:
            if not self._known.issuperset(kept.situations):  # another worker may have been first
                self._store.keep(kept.program)
                self.programs.append(kept.program)
                self._know(kept.situations)
        self._know(result.record.situations)
        self._keep_examples(result)

    def sync(self) -> None:
        """Take in what other campaigns on this target have put into the store."""
        mine: set[Program] = set(self.programs)
        self.programs += [program for program in self._store.corpus() if program not in mine]
        self.examples = set(self._store.examples())

    def _keep_examples(self, result: Result) -> None:
        fresh = set(result.examples) - self.examples
        self.examples = (self.examples | fresh) - set(result.surpassed)
        surplus = self._rng.sample(sorted(self.examples), max(0, len(self.examples) - MOST_EXAMPLES))
        self.examples.difference_update(surplus)
        for example in fresh & self.examples:
            self._store.keep_example(example)
        for example in {*result.surpassed, *surplus} - fresh:
            self._store.drop_example(example)

    def _know(self, situations: Iterable[str]) -> None:
        self.situations += [situation for situation in situations if situation not in self._known]
        self._known.update(situations)
