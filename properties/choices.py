"""What the rules of the state machine choose from: sequences that are ready for something, and numbers for them near block boundaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition
from hypothesis.strategies import DrawFn, SearchStrategy

from kvproof.models.ops import Tokens
from kvproof.models.state import Sequence
from kvproof.properties import strategies

if TYPE_CHECKING:
    from kvproof.properties.machine import CacheMachine

Ready: TypeAlias = Callable[[Sequence], bool]
"""Whether a rule can do something with a sequence."""

T = TypeVar("T")


def idle(sequence: Sequence) -> bool:
    """No pass is out, and it is not swapped out."""
    return sequence.out is None and not sequence.swapped


def fresh(sequence: Sequence) -> bool:
    """Idle, and nothing is computed yet."""
    return idle(sequence) and sequence.computed == 0


def holds(sequence: Sequence) -> bool:
    """Idle, and something is computed."""
    return idle(sequence) and sequence.computed > 0


def behind(sequence: Sequence) -> bool:
    """Idle, and some known token is not computed."""
    return idle(sequence) and sequence.computed < len(sequence.known)


def finished(sequence: Sequence) -> bool:
    """Its pass is out and done, so it can be committed."""
    return sequence.out is not None and sequence.out.finished


def drafted(sequence: Sequence) -> bool:
    """Its pass is done and had drafts."""
    return finished(sequence) and sequence.out is not None and len(sequence.out.drafts) > 0


def in_flight(sequence: Sequence) -> bool:
    """A pass is out."""
    return sequence.out is not None


def swapped(sequence: Sequence) -> bool:
    """It is on the slower tier."""
    return sequence.swapped


def when(ready: Ready, claim: str = "") -> Callable[[T], T]:
    """A precondition: the capability `claim` is claimed, and some live sequence is `ready`."""

    def holds(machine: CacheMachine) -> bool:
        return (not claim or bool(getattr(machine.claims, claim))) and any(map(ready, machine.lockstep.spec.live.values()))

    return precondition(holds)  # type: ignore[return-value]


def claimed(claim: str) -> Callable[[T], T]:
    """A precondition: the capability `claim` is claimed."""
    return precondition(lambda machine: bool(getattr(machine.claims, claim)))  # type: ignore[return-value]


def pick(draw: DrawFn, machine: CacheMachine, ready: Ready) -> Sequence:
    """A live sequence that is ready, the newest first when shrinking."""
    found = [sequence for sequence in machine.lockstep.spec.live.values() if ready(sequence)]
    return found[-1 - draw(st.integers(0, len(found) - 1))] if len(found) > 1 else found[0]


@st.composite
def ready_sequence(draw: DrawFn, ready: Ready) -> int:
    """The number of a live sequence that is ready."""
    return pick(draw, draw(st.runner()), ready).seq


@st.composite
def of_machine(draw: DrawFn, strategy: Callable[[CacheMachine], SearchStrategy[T]]) -> T:
    """What a strategy that the machine itself gives makes."""
    return draw(strategy(draw(st.runner())))


@st.composite
def room(draw: DrawFn) -> tuple[int, int]:
    """A sequence that is behind, and how many tokens to extend it by: to the next block boundary, or one beside it."""
    machine: CacheMachine = draw(st.runner())
    sequence = pick(draw, machine, behind)
    left = len(sequence.known) - sequence.computed
    size = machine.pool.block_size
    boundary = size - sequence.computed % size
    return sequence.seq, max(1, min(left, boundary + draw(st.sampled_from((0, 1, -1, size)))))


@st.composite
def cut(draw: DrawFn) -> tuple[int, int]:
    """A sequence that has computed something, and a length to truncate it to."""
    machine: CacheMachine = draw(st.runner())
    sequence = pick(draw, machine, holds)
    return sequence.seq, draw(strategies.lengths(machine.pool.block_size, sequence.computed))


@st.composite
def acceptance(draw: DrawFn) -> tuple[int, int]:
    """A sequence whose drafts were computed, and how many of them are accepted."""
    machine: CacheMachine = draw(st.runner())
    sequence = pick(draw, machine, drafted)
    assert sequence.out is not None
    return sequence.seq, draw(st.integers(0, len(sequence.out.drafts)))


@st.composite
def continued(draw: DrawFn, ready: Ready, strategy: Callable[[CacheMachine, int], SearchStrategy[Tokens]]) -> tuple[int, Tokens]:
    """A ready sequence, and tokens to follow what it knows."""
    machine: CacheMachine = draw(st.runner())
    seq = pick(draw, machine, ready).seq
    return seq, draw(strategy(machine, seq))
