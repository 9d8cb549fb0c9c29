"""What the state machine is before it has rules: a cache beside the spec, what its program has said so far, how an operation is run, and how a program ends.

The rules are in `machine`, which a third party subclasses.
"""

from __future__ import annotations

import functools
import random
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Final

from hypothesis import event, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize
from hypothesis.strategies import SearchStrategy

from kvproof.impl.checker import read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.laws import BY_NAME
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Namespace, Op, Release, SwapOut, Tokens, Truncate
from kvproof.models.spec import Violation
from kvproof.properties import choices, strategies
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep
from kvproof.properties.paste import program_source
from kvproof.properties.situations import Watcher, names
from kvproof.properties.strategies import Pool

SAID: Final = 12
"""How many of the last prompts and drafts are remembered, to cut lookalikes from."""

DOUBTS: Final = 4
"""How many suspicions are remembered: older ones are mostly overwritten by then."""


class MachineBase(RuleBasedStateMachine):
    """A random program on the cache of `adapter`, beside the spec; it does nothing by itself."""

    adapter: ClassVar[type]
    """The adapter under test; a subclass sets it."""

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

    @initialize(
        pool=choices.of_machine(lambda machine: machine.pools()),
        spaces=choices.of_machine(lambda machine: machine.namespaces()),
        alphabet=st.sampled_from(strategies.ALPHABETS),
    )
    def start(self, pool: Pool, spaces: tuple[Namespace, ...], alphabet: Tokens) -> None:
        """A fresh cache."""
        self.pool, self.spaces, self.alphabet = pool, spaces, alphabet
        with self.target_at_work():
            self.lockstep = Lockstep(self.target, num_blocks=pool.num_blocks, block_size=pool.block_size, capabilities=self.claims)
        self.watcher = Watcher(self.lockstep)
        self._over = False

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
            with self.target_at_work():
                ran = self.lockstep.do(op)
            return self._note(op, ran)
        except LawBroken as broken:
            self._over = True
            violation = broken.violation
            target = f"{self.target.__module__}:{self.target.__qualname__}"
            program = program_source(self.lockstep.ops, target, num_blocks=self.pool.num_blocks, block_size=self.pool.block_size)
            raise _broken_type(violation.law)(violation, program) from None
        except BaseException:
            self._over = True
            raise

    def target_at_work(self) -> AbstractContextManager[None]:
        """Around whatever runs the target, for who wants to know how long that takes."""
        return nullcontext()

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

    # -- the end ---------------------------------------------------------------------------------------------------------------------------

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


@functools.cache
def _claims(target: type) -> Capabilities:
    """The capabilities of an adapter, read once. Raises AdapterFault."""
    return read_capabilities(target)
