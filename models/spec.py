"""The acceptor: says whether any correct cache could have answered as this one did.

It never predicts which physical block a cache picks. It takes an operation, what the cache answered, and what its block tables and books show afterwards, and goes through it once:

    enabled       `preconditions`  may the operation come now?
    apply         `observed`       what did it change, of all that is seen?
    judge         `meanings`       what does it mean for tokens, ghosts, passes and holders, and was that allowed?
                  `checks`         do the laws that always hold still hold, wherever something moved (`agenda`)?

Usage:

    spec = Spec(capabilities, num_blocks=8, block_size=2)
    if spec.enabled(op):
        violation = spec.apply(op, outcome, seen)   # None: some correct cache could have done that

Every law is asked only of what an operation changed, so an operation on a large pool costs what it moves, and memory is bounded by what is live.
`Spec(..., thorough=True)` asks every law of everything after every operation; a test holds the two against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from kvproof.models import checks, holders, uses
from kvproof.models.agenda import Agenda
from kvproof.models.aside import Aside
from kvproof.models.capabilities import Capabilities
from kvproof.models.checks import Broken
from kvproof.models.evidence import NO_EVIDENCE, Evidence
from kvproof.models.meanings import MEANING
from kvproof.models.observed import Change
from kvproof.models.ops import Extend, Match, Op, Release
from kvproof.models.outcomes import Died, Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.preconditions import ENABLED
from kvproof.models.remembered import Remembered
from kvproof.models.state import Seen

LOOKS_AT_TREE: Final = 16
"""How many operations pass between two looks at how many prefixes there are."""

MOST_ASKED: Final = 64
"""How often a check is made again after one operation: one that is broken in more places has its rest judged with the next operation."""


class Violation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broken law: which one, at which step of the program (0-based), why in prose, and what is accused in numbers."""

    law: str
    step: int
    reason: str
    evidence: Evidence = NO_EVIDENCE


class FastCounter(Counter[str]):
    """A counter that is counted up as fast as a dict: a Counter pays for a `del` of its own at every `+=`."""

    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__  # type: ignore[assignment]


class Spec(Remembered):
    """The state that a correct cache must be in, up to its free choices, and the laws that judge each operation."""

    def __init__(
        self, capabilities: Capabilities, *, num_blocks: int, block_size: int, thorough: bool = False, concurrent: bool = False
    ) -> None:
        """`concurrent`: several threads drive the cache, so completions may come in any order and any number of steps may be open."""
        super().__init__(capabilities, num_blocks=num_blocks, block_size=block_size)
        self.thorough = thorough
        self.concurrent = concurrent
        self.agenda = Agenda(self.universe, books=capabilities.snapshot)
        self.exercised: Counter[str] = FastCounter()
        """Law -> how often it was really put to the test."""
        self.idle_release = False
        """Whether this operation is a release of what was released before."""
        self.aside: Aside | None = None
        """Where the spec goes on after broken laws: what they accuse."""
        self.partial = False
        """Whether anything was set aside."""

    def enabled(self, op: Op) -> bool:
        """Whether the precondition of `op` holds now. Operations that are not enabled are skipped."""
        return ENABLED[type(op)](self, op)

    # -- what the cache did -------------------------------------------------------------------------------------------------------------------

    def apply(self, op: Op, outcome: Outcome, seen: Seen) -> Violation | None:
        """Judge one enabled operation by a full observation. After a violation the spec must not be used again, unless it goes on."""
        return self.judge(op, outcome, self.seen.difference(seen))

    def judge(self, op: Op, outcome: Outcome, change: Change) -> Violation | None:
        """Judge one enabled operation by what was seen to change. After a violation the spec must not be used again, unless it goes on."""
        self._begin(change)
        try:
            if outcome is not None and _failed(op, outcome):
                self._nothing_happened(op, outcome)
            else:
                self._it_happened(op, outcome)
            if self.seen.unlisted:
                holders.note_drops(self, op)
            if self.awaited:
                holders.note_returns(self, change)
            checks.everything(self, op)
        except Broken as broken:
            return self._violation(broken)
        first = self.aside.found[0] if self.aside is not None and self.aside.found else None
        violation = None if first is None else self._violation(first)
        self.step += 1
        if self.step % LOOKS_AT_TREE == 0:
            self.forget_prefixes()
        return violation

    def _begin(self, change: Change) -> None:
        """Take in what was seen, and begin with nothing moved, nothing evicted and nothing to look at but that."""
        self.memory.step = self.step
        self.memory.touched.clear()
        if self.evicted:
            self.past_evictions.extend(self.evicted)
            self.evicted.clear()
        self.idle_release = False
        if self.aside is not None:
            self.aside.begin()
        self.seen.take(change)
        self.agenda.begin(self.seen)

    def _it_happened(self, op: Op, outcome: Outcome) -> None:
        kind = type(op)
        MEANING[kind](self, op, outcome)
        if self.hits and kind is not Match and not self.idle_release:
            self.hits.clear()

    def _nothing_happened(self, op: Op, outcome: Outcome) -> None:
        """The operation failed: nothing may have changed, and there must have been a reason."""
        self.ask(checks.failure_changes_nothing, op)
        if self.lru and isinstance(op, Extend):
            # It may have looked up what it would have adopted, and a cache may take that for a use.
            uses.seen_content(self, self.live[op.seq], len(self.live[op.seq].path))
        if isinstance(op, Extend) and isinstance(outcome, OutOfBlocksSeen | Died) and not self.memory.blurred:
            raised = "OutOfBlocks" if isinstance(outcome, OutOfBlocksSeen) else outcome.error
            self.ask(checks.no_spurious_exhaustion, op, raised)
        if isinstance(outcome, Died):
            self.ask(checks.dead, op)

    def _violation(self, broken: Broken) -> Violation:
        return Violation(broken.law, self.step, broken.reason, broken.evidence)

    # -- asking the laws ----------------------------------------------------------------------------------------------------------------------

    def ask(self, check: Callable[..., None], *what: object) -> None:
        """Put the operation to the check of a law. A spec that goes on asks again, of what is left when the accused are set aside."""
        if self.aside is None:
            check(self, *what)
            return
        for _ in range(MOST_ASKED):
            try:
                check(self, *what)
            except Broken as broken:
                if self.aside.take(broken):
                    continue
            return

    def go_on(self) -> None:
        """Do not end at a broken law: set aside what it accuses, and judge the rest. Must be said before the first operation."""
        self.aside = Aside(self)

    def left_out(self, seq: int) -> bool:
        """Whether this sequence was set aside, so that no law is asked of it."""
        return self.aside is not None and seq in self.aside.sequences

    def stop_judging(self, blocks: set[int]) -> None:
        """Ask no law of these blocks any more."""
        self.partial = True
        self.judged = self.judged - blocks
        self.usable -= len(blocks)
        self.agenda.leave_out(blocks)


def _failed(op: Op, outcome: Outcome) -> bool:
    """Whether the cache says that nothing has changed. What a repeated release raises is judged by the release itself."""
    kind = type(outcome)
    if kind is Raised or kind is Died:
        return type(op) is not Release
    return outcome is False or kind is OutOfBlocksSeen or kind is RefusedSeen
