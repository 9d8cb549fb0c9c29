"""The Hypothesis state machine: random rules over the lockstep driver, which a third party subclasses.

    from kvproof.properties.machine import CacheMachine

    class MyMachine(CacheMachine):
        adapter = MyAdapter

    TestMine = MyMachine.TestCase                  # or, in one line: TestMine = cache_machine(MyAdapter).TestCase

A subclass may override the strategies (`pools`, `prompts`, `namespaces`, `drafts`) and add rules of its own; they run operations with
`self.do(op)` and may draw sequences from the bundles `live`, `forked` and `released`. What is checked: after every operation all laws of
the spec, and at the end of every program that the drained cache can hand out its whole pool again. A broken law raises `LawBroken` with the
whole program so far, which Hypothesis then shrinks.
"""

from __future__ import annotations

import functools
from typing import Final

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, consumes, multiple, precondition, rule

from kvproof.models.ops import (
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Namespace,
    Op,
    Release,
    ReleaseReason,
    Reset,
    SwapIn,
    SwapOut,
    Tokens,
    Truncate,
)
from kvproof.models.preconditions import MAX_OPEN_STEPS
from kvproof.models.state import Sequence
from kvproof.properties import choices
from kvproof.properties.drain import FINAL_REASONS
from kvproof.properties.machine_base import DOUBTS, MachineBase
from kvproof.properties.strategies import MAX_LIVE

MAX_CHAIN: Final = 3
"""Forks of forks in one rule: with three holders of a tail every off-by-one in its count has shown."""

RETRIES: Final = 1
"""Extends that may find no room in a row. After that only what makes room is tried: most programs would be spent on a full pool."""


class CacheMachine(MachineBase):
    """Random programs on the cache of `adapter`, beside the spec."""

    live = Bundle("live")
    """Sequences that were admitted or forked. One that `release` finished leaves; one that was cancelled in flight stays, and what is run
    on it is skipped.
    """
    forked = Bundle("forked")
    """Children of forks, live or not."""
    released = Bundle("released")
    """Sequences that were finally released (or refused to be)."""

    # -- what rules ask first --------------------------------------------------------------------------------------------------------------

    def _crowded(self) -> bool:
        """Whether another sequence is one too many."""
        return len(self.lockstep.spec.live) >= MAX_LIVE

    def _may_launch(self) -> bool:
        """Whether a pass waits for a step, and there may be another one."""
        spec = self.lockstep.spec
        return len(spec.steps) < MAX_OPEN_STEPS and any(not out.launched for out in spec.passes)

    def _full(self) -> bool:
        """Whether the pool seems to be full."""
        return self.failures >= RETRIES

    def _welcome(self) -> bool:
        """Whether another sequence may come and be computed."""
        return not self._crowded() and not self._full()

    def _last(self) -> Op | None:
        return self.lockstep.ops[-1] if self.lockstep.ops else None

    def _matchable(self) -> list[int]:
        """Blocks that may be matchable: those the cache's books call cached, or else those that are held."""
        spec = self.lockstep.spec
        return sorted(spec.seen.books.cached or spec.owners)

    # -- requests --------------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self._crowded())
    @rule(
        target=live,
        prompt=choices.of_machine(lambda machine: machine.prompts()),
        namespace=choices.of_machine(lambda machine: st.sampled_from(machine.spaces)),
    )
    def admit(self, prompt: Tokens, namespace: Namespace) -> int:
        """A request arrives, often a lookalike of an earlier one."""
        return self._admit(prompt, namespace)

    @precondition(lambda self: self._welcome())
    @rule(
        target=live,
        prompt=choices.of_machine(lambda machine: machine.prompts()),
        namespace=choices.of_machine(lambda machine: st.sampled_from(machine.spaces)),
    )
    def serve(self, prompt: Tokens, namespace: Namespace) -> int:
        """A request arrives and its prompt is computed at once."""
        seq = self._admit(prompt, namespace)
        self._run(seq)
        return seq

    @precondition(lambda self: len(self.spaces) > 1 and len(self.said) > 0 and self._welcome())
    @rule(target=live, namespace=choices.of_machine(lambda machine: st.sampled_from(machine.spaces)))
    def same_prompt_elsewhere(self, namespace: Namespace) -> int:
        """Equal content under a namespace that may be unequal."""
        seq = self._admit(self.said[-1], namespace)
        self._run(seq)
        return seq

    @precondition(lambda self: self._welcome() and len(self.lockstep.spec.live) in (1, 2))
    @rule(target=live, beyond=st.integers(-1, 1))
    def exhaust(self, beyond: int) -> int:
        """A prompt that takes all the room that the tables leave, or a token less, or one more: extends fail in the middle."""
        spec = self.lockstep.spec
        groups = len(spec.block_sizes)
        left = max(1, (spec.usable - len(spec.owners)) // groups * min(spec.block_sizes) + beyond)
        seq = self._admit(tuple(self.alphabet[position % len(self.alphabet)] for position in range(left)), self.spaces[0])
        if not self.do(Extend(seq, left)):
            event("the exhausting extend was skipped")
        return seq

    # -- prefix ----------------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.suspicions) > 0 and not self._crowded())
    @choices.claimed("prefix")
    @rule(target=live, which=st.integers(0, DOUBTS - 1), token=st.integers(0, 1))
    def suspect(self, which: int, token: int) -> int:
        """Somebody asks for what was rejected or rolled back, and one token more: it must not be found."""
        namespace, believed = self.suspicions[-1 - which % len(self.suspicions)]
        seq = self._admit((*believed, self.alphabet[token]), namespace)
        self.do(Match(seq))
        return seq

    @choices.when(choices.fresh, "prefix")
    @rule(seq=choices.ready_sequence(choices.fresh))
    def match(self, seq: int) -> None:
        """How much could be reused?"""
        self.do(Match(seq))

    @choices.when(choices.fresh, "prefix")
    @rule(seq=choices.ready_sequence(choices.fresh), last=st.integers(1, 3))
    def match_evict_extend(self, seq: int, last: int) -> None:
        """A match goes stale before it is adopted: blocks are evicted, or a rival takes room, between the two."""
        self.do(Match(seq))
        if not self.do(Evict(tuple(self._matchable()[-last:]))):
            live = self.lockstep.spec.live.values()
            rival = next((one.seq for one in live if one.seq != seq and choices.behind(one)), None)
            if rival is not None:
                self._run(rival)
        self._run(seq)

    @precondition(lambda self: len(self._matchable()) > 0)
    @choices.claimed("evict")
    @rule(blocks=choices.of_machine(lambda machine: st.lists(st.sampled_from(machine._matchable()), min_size=1, max_size=3, unique=True)))
    def evict(self, blocks: list[int]) -> None:
        """Some blocks become unmatchable, held ones included."""
        self.do(Evict(tuple(blocks)))

    @precondition(lambda self: not isinstance(self._last(), Reset | None))
    @choices.claimed("reset")
    @rule()
    def reset(self) -> None:
        """Everything becomes unmatchable, or the cache says that it cannot be."""
        event(f"reset while {'held' if self.lockstep.spec.owners else 'empty'}")
        self.do(Reset())

    # -- passes ----------------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self._full())
    @choices.when(choices.behind)
    @rule(seq=choices.ready_sequence(choices.behind))
    def extend(self, seq: int) -> None:
        """Room for all that is known."""
        sequence = self.lockstep.spec.live[seq]
        self.do(Extend(seq, len(sequence.known) - sequence.computed))

    @precondition(lambda self: not self._full())
    @choices.when(choices.behind)
    @rule(room=choices.room())
    def extend_to_boundary(self, room: tuple[int, int]) -> None:
        """A chunk that ends at a block boundary, or one token beside it."""
        self.do(Extend(*room))

    @precondition(lambda self: not self._full())
    @choices.when(choices.holds, "drafts")
    @rule(drafted=choices.continued(choices.holds, lambda machine, seq: machine.drafts(seq)))
    def speculate(self, drafted: tuple[int, Tokens]) -> None:
        """Room for what is known, a sampled token at least, and for drafts."""
        self._speculate(*drafted)

    @precondition(lambda self: not self._full())
    @choices.when(choices.holds, "drafts")
    @rule(drafted=choices.continued(choices.holds, lambda machine, seq: machine.drafts(seq)), accepted=st.integers(0, 3))
    def speculate_and_verify(self, drafted: tuple[int, Tokens], accepted: int) -> None:
        """A whole round of speculative decoding: none, some or all of the drafts are accepted."""
        sequence = self._speculate(*drafted)
        if sequence.out is not None:
            if self.claims.steps:
                self._finish_steps()
            self.do(Commit(sequence.seq, min(accepted, len(sequence.out.drafts))))

    def _speculate(self, seq: int, drafts: Tokens) -> Sequence:
        sequence = self.lockstep.spec.live[seq]
        if not choices.behind(sequence):
            self.do(Append(seq, drafts[:1]))
            drafts = drafts[1:] or drafts
        self._say((*sequence.known, *drafts))
        self.do(Extend(seq, max(1, len(sequence.known) - sequence.computed), drafts))
        return sequence

    @choices.when(choices.finished)
    @rule(seq=choices.ready_sequence(choices.finished))
    def commit(self, seq: int) -> None:
        """The pass is done, and every draft is rejected."""
        self.do(Commit(seq, 0))

    @choices.when(choices.drafted, "drafts")
    @rule(seq=choices.ready_sequence(choices.drafted))
    def accept_all(self, seq: int) -> None:
        """The pass is done, and every draft is accepted."""
        out = self.lockstep.spec.live[seq].out
        self.do(Commit(seq, len(out.drafts) if out else 0))

    @choices.when(choices.drafted, "drafts")
    @rule(accepted=choices.acceptance())
    def accept(self, accepted: tuple[int, int]) -> None:
        """The pass is done, and some drafts are accepted."""
        self.do(Commit(*accepted))

    @choices.when(choices.idle)
    @rule(added=choices.continued(choices.idle, lambda machine, seq: machine.drafts(seq)))
    def append(self, added: tuple[int, Tokens]) -> None:
        """Tokens become known: sampled, or the next turn of the user."""
        seq, more = added
        self.do(Append(seq, more))
        self._say(tuple(self.lockstep.spec.live[seq].known))

    @precondition(lambda self: not self._full())
    @choices.when(choices.idle)
    @rule(added=choices.continued(choices.idle, lambda machine, seq: machine.drafts(seq)))
    def decode(self, added: tuple[int, Tokens]) -> None:
        """A token becomes known and room is made for it."""
        seq, more = added
        self.do(Append(seq, more[:1]))
        sequence = self.lockstep.spec.live[seq]
        self.do(Extend(seq, len(sequence.known) - sequence.computed))

    @precondition(lambda self: not self._full())
    @choices.when(choices.idle)
    @rule(added=choices.continued(choices.idle, lambda machine, seq: machine.drafts(seq)))
    def turn(self, added: tuple[int, Tokens]) -> None:
        """The next turn of the user, computed at once."""
        seq, more = added
        self.do(Append(seq, more))
        self._say(tuple(self.lockstep.spec.live[seq].known))
        self._run(seq)

    @choices.when(choices.holds, "truncate")
    @rule(cut=choices.cut())
    def truncate(self, cut: tuple[int, int]) -> None:
        """Roll back to a length near a block boundary."""
        seq, length = cut
        self._doubt(seq, tuple(self.lockstep.spec.live[seq].known))
        self.do(Truncate(seq, length))

    @choices.when(choices.holds, "truncate")
    @rule(seq=choices.ready_sequence(choices.holds))
    def truncate_to_each_boundary(self, seq: int) -> None:
        """Roll back block by block, down to the first."""
        size = self.pool.block_size
        for length in range((self.lockstep.spec.live[seq].computed - 1) // size * size, 0, -size):
            self.do(Truncate(seq, length))

    # -- forks -----------------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self._crowded())
    @choices.when(choices.idle, "fork")
    @rule(targets=(live, forked), parent=choices.ready_sequence(choices.idle))
    def fork(self, parent: int) -> int | MultipleResults[int]:
        """A sequence becomes two."""
        return self._fork(parent)

    @precondition(lambda self: not self._crowded())
    @choices.claimed("fork")
    @rule(targets=(live, forked), parent=forked, length=st.integers(1, MAX_CHAIN))
    def fork_chain(self, parent: int, length: int) -> MultipleResults[int]:
        """Forks of forks, so that one tail has many holders."""
        children: list[int] = []
        for _ in range(length):
            child = self.new_seq()
            if not self.do(Fork(parent, child)) or child not in self.lockstep.spec.live:
                break
            children.append(child)
            parent = child
        return multiple(*children)

    def _fork(self, parent: int) -> int | MultipleResults[int]:
        child = self.new_seq()
        self.do(Fork(parent, child))
        return child if child in self.lockstep.spec.live else multiple()

    # -- letting go ------------------------------------------------------------------------------------------------------------------------

    @rule(target=released, seq=consumes(live), reason=st.sampled_from(FINAL_REASONS))
    def release(self, seq: int, reason: ReleaseReason) -> int:
        """A sequence is gone, whatever it was doing."""
        self.do(Release(seq, reason))
        return seq

    @rule(seq=live)
    def preempt(self, seq: int) -> None:
        """A sequence lets go of everything, but stays known."""
        self.do(Release(seq, "preempt"))

    @choices.when(choices.in_flight)
    @rule(seq=choices.ready_sequence(choices.in_flight), reason=st.sampled_from(FINAL_REASONS))
    def release_in_flight(self, seq: int, reason: ReleaseReason) -> None:
        """A sequence is cancelled before its pass is committed."""
        self.do(Release(seq, reason))

    @rule(seq=released, reason=st.sampled_from(("finish", "preempt")))
    def release_again(self, seq: int, reason: ReleaseReason) -> None:
        """A second release changes nothing."""
        self.do(Release(seq, reason))

    # -- device work -----------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.claims.steps and self._may_launch())
    @rule()
    def begin_step(self) -> None:
        """Device work is launched for whatever was extended."""
        self.do(BeginStep())

    @precondition(lambda self: len(self.lockstep.spec.steps) > 0)
    @rule()
    def end_step(self) -> None:
        """The oldest device work has finished."""
        self.do(EndStep())

    @choices.when(choices.in_flight, "steps")
    @rule()
    def finish_steps(self) -> None:
        """All passes are launched, run and are committed."""
        self._finish_steps()
        for seq in [sequence.seq for sequence in self.lockstep.spec.live.values() if choices.finished(sequence)]:
            self.do(Commit(seq))

    # -- the slower tier -------------------------------------------------------------------------------------------------------------------

    @choices.when(choices.holds, "swap")
    @rule(seq=choices.ready_sequence(choices.holds))
    def swap_out(self, seq: int) -> None:
        """A sequence moves to the slower tier."""
        self.do(SwapOut(seq))

    @choices.when(choices.swapped, "swap")
    @rule(seq=choices.ready_sequence(choices.swapped))
    def swap_in(self, seq: int) -> None:
        """A sequence moves back."""
        self.do(SwapIn(seq))


@functools.cache
def cache_machine(adapter: type) -> type[CacheMachine]:
    """The state machine for `adapter`; its `TestCase` is what pytest and unittest run."""
    return type(f"{adapter.__name__}Machine", (CacheMachine,), {"adapter": adapter, "__module__": adapter.__module__})
