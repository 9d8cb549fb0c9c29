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
import random
from typing import ClassVar, Final

from hypothesis import event, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)
from hypothesis.strategies import SearchStrategy

from kvproof.impl.checker import read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import (
    Admit,
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
from kvproof.models.spec import Violation
from kvproof.models.state import Sequence
from kvproof.properties import choices, strategies
from kvproof.properties.drain import FINAL_REASONS, drain
from kvproof.properties.lockstep import LawBroken, Lockstep
from kvproof.properties.paste import program_source
from kvproof.properties.situations import Watcher, names
from kvproof.properties.strategies import MAX_LIVE, Pool

SAID: Final = 12
"""How many of the last prompts and drafts are remembered, to cut lookalikes from."""

DOUBTS: Final = 4
"""How many suspicions are remembered: older ones are mostly overwritten by then."""

MAX_CHAIN: Final = 3
"""Forks of forks in one rule: with three holders of a tail every off-by-one in its count has shown."""

RETRIES: Final = 1
"""Extends that may find no room in a row. After that only what makes room is tried: most programs would be spent on a full pool."""


class ProgramBroken(LawBroken):
    """The cache broke a law, and this program shows it."""

    def __init__(self, violation: Violation, program: str) -> None:
        super().__init__(violation)
        self.program = program

    def __str__(self) -> str:
        law = BY_NAME[self.violation.law]
        return f"{law.name} is broken at operation {self.violation.step}: {law.sentence}\n\n{self.violation.reason}\n\n{self.program}"


@functools.cache
def _broken_type(law: str) -> type[ProgramBroken]:
    """A type for each law: Hypothesis tells failures apart by type, so shrinking one law does not slip to another."""
    return type(f"LawBroken[{law}]", (ProgramBroken,), {"__module__": __name__})


class CacheMachine(RuleBasedStateMachine):
    """Random programs on the cache of `adapter`, beside the spec."""

    adapter: ClassVar[type]
    """The adapter under test; a subclass sets it."""

    live = Bundle("live")
    """Sequences that were admitted or forked. One that `release` finished leaves; one that was cancelled in flight stays, and what is run
    on it is skipped.
    """
    forked = Bundle("forked")
    """Children of forks, live or not."""
    released = Bundle("released")
    """Sequences that were finally released (or refused to be)."""

    lockstep: Lockstep
    """The driver; it exists once the pool was drawn."""
    watcher: Watcher
    """Notes the situations that this program reaches."""

    def __init__(self) -> None:
        super().__init__()
        target = getattr(type(self), "adapter", None)
        if not isinstance(target, type):
            raise TypeError(f"{type(self).__qualname__} has no adapter; set the class attribute `adapter` to your CacheAdapter subclass.")
        self.target = target
        self.claims: Capabilities = _claims(target)
        self.said: list[Tokens] = []
        """The last prompts and drafts of this program."""
        self.suspicions: list[tuple[Namespace, Tokens]] = []
        """What a cache that keeps rejected drafts or truncated tokens would believe to hold: `suspect` asks for it."""
        self._drafted: dict[int, Tokens] = {}
        """The drafts of the passes that are out."""
        self.spaces: tuple[Namespace, ...] = ()
        """The namespaces of this program, unequal but easily confused."""
        self.alphabet: Tokens = strategies.ALPHABET
        self.seqs = 0
        self.failures = 0
        """Extends that found no room since anything was last let go."""
        self._over = True

    # -- what a subclass may change --------------------------------------------------------------------------------------------------------

    def pools(self) -> SearchStrategy[Pool]:
        """The pool of a program."""
        return strategies.pools(self.claims)

    def prompts(self) -> SearchStrategy[Tokens]:
        """The prompt of a new request."""
        room = self.pool.num_blocks * self.pool.block_size
        most = min(strategies.PROMPT_BLOCKS * self.pool.block_size, room + 1)
        return strategies.prompts(block_size=self.pool.block_size, most=most, said=self.said, alphabet=self.alphabet)

    def namespaces(self) -> SearchStrategy[tuple[Namespace, ...]]:
        """The namespaces that the requests of a program have."""
        return strategies.colliding_namespaces(self.claims.namespace_fields)

    def drafts(self, seq: int) -> SearchStrategy[Tokens]:
        """Draft tokens for a sequence, or tokens to append to it: often what followed the same tokens elsewhere."""
        known = tuple(self.lockstep.spec.live[seq].known)
        likely = next((said[len(known) :] for said in reversed(self.said) if len(said) > len(known) and said[: len(known)] == known), ())
        return strategies.drafts(block_size=self.pool.block_size, likely=likely, alphabet=self.alphabet)

    # -- running operations ----------------------------------------------------------------------------------------------------------------

    def do(self, op: Op) -> bool:
        """Run one operation on cache and spec; False if it was skipped. Raises LawBroken with the program so far, or AdapterFault."""
        try:
            return self._note(op, self.lockstep.do(op))
        except LawBroken as broken:
            self._over = True
            violation = broken.violation
            target = f"{self.target.__module__}:{self.target.__qualname__}"
            program = program_source(self.lockstep.ops, target, num_blocks=self.pool.num_blocks, block_size=self.pool.block_size)
            raise _broken_type(violation.law)(violation, program) from None
        except BaseException:
            self._over = True
            raise

    def _note(self, op: Op, ran: bool) -> bool:
        """Remember what situation this was, and whether the pool seems to be full."""
        if not ran:
            return False
        self.watcher.note(op)
        if isinstance(op, Extend):
            sequence = self.lockstep.spec.live.get(op.seq)
            self.failures = self.failures + 1 if sequence is None or sequence.out is None else 0
            self._drafted[op.seq] = op.drafts
        elif isinstance(op, Commit):
            self._doubt_commit(op.seq, self._drafted.pop(op.seq, ()), op.accepted)
        elif isinstance(op, Release | Truncate | EndStep | SwapOut):
            self.failures = 0
        return True

    def _doubt_commit(self, seq: int, drafts: Tokens, accepted: int) -> None:
        """Remember what a cache that mixes up accepted and rejected drafts would believe."""
        known = tuple(self.lockstep.spec.live[seq].known)
        before = known[: len(known) - accepted]
        for wrong in dict.fromkeys((drafts, drafts[accepted:], drafts[len(drafts) - accepted :])):
            if wrong != drafts[: len(wrong)] or len(wrong) > accepted:
                self._doubt(seq, before + wrong)

    def _doubt(self, seq: int, believed: Tokens) -> None:
        self.suspicions.append((self.lockstep.spec.live[seq].namespace, believed))
        del self.suspicions[:-DOUBTS]

    def new_seq(self) -> int:
        """A sequence number that was never used."""
        self.seqs += 1
        return self.seqs - 1

    def _admit(self, prompt: Tokens, namespace: Namespace) -> int:
        seq = self.new_seq()
        self._say(prompt)
        self.do(Admit(seq, prompt, namespace))
        return seq

    def _say(self, said: Tokens) -> None:
        self.said.append(said)
        del self.said[:-SAID]

    def _run(self, seq: int) -> None:
        """Extend a sequence by all that it knows and commit it, with a step between where the cache has steps."""
        sequence = self.lockstep.spec.live.get(seq)
        if sequence is None or not choices.behind(sequence):
            return
        self.do(Extend(seq, len(sequence.known) - sequence.computed))
        if sequence.out is not None:
            if self.claims.steps:
                self._finish_steps()
            self.do(Commit(seq))

    def _finish_steps(self) -> None:
        """Launch what waits, and end every step."""
        self.do(BeginStep())
        for _ in list(self.lockstep.spec.steps):
            self.do(EndStep())

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

    def teardown(self) -> None:
        """Drain: device work ends, everyone lets go, and the whole pool is allocated again."""
        if self._over:
            return
        self._over = True
        for op in drain(random.Random(len(self.lockstep.ops)), self.lockstep.spec, self.new_seq()):
            self.do(op)
        self.tell_situations()

    def tell_situations(self) -> None:
        """Let Hypothesis count the situations of this program, and look for programs that reach more of them."""
        reached = names(self.watcher.reached)
        for situation in reached:
            event(situation)
        target(float(len(reached)), label="situations")

    @initialize(
        pool=choices.of_machine(lambda machine: machine.pools()),
        spaces=choices.of_machine(lambda machine: machine.namespaces()),
        alphabet=st.sampled_from(strategies.ALPHABETS),
    )
    def start(self, pool: Pool, spaces: tuple[Namespace, ...], alphabet: Tokens) -> None:
        """A fresh cache."""
        self.pool, self.spaces, self.alphabet = pool, spaces, alphabet
        self.lockstep = Lockstep(self.target, num_blocks=pool.num_blocks, block_size=pool.block_size, capabilities=self.claims)
        self.watcher = Watcher(self.lockstep)
        self._over = False

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
def _claims(target: type) -> Capabilities:
    """The capabilities of an adapter, read once. Raises AdapterFault."""
    return read_capabilities(target)


@functools.cache
def cache_machine(adapter: type) -> type[CacheMachine]:
    """The state machine for `adapter`; its `TestCase` is what pytest and unittest run."""
    return type(f"{adapter.__name__}Machine", (CacheMachine,), {"adapter": adapter, "__module__": adapter.__module__})
