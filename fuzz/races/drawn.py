"""Scenarios drawn at random: up to three sequences in different states, and two or three threads that go on from there.

    random_scenario("0:17", capabilities)      # the same for the same seed

One thread, the *device thread*, launches passes and completes them: only so can a thread know in which step its pass was launched, and complete steps in order. The others commit what the setup has
launched and completed. What the contract allows by then is settled when the thread comes to it (`lawful`): a call is left out where an extend found no room, say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from kvproof.fuzz.races.scenarios import OTHER, PROMPT, Scenario
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    CAPABILITY_OF,
    Admit,
    AnyOp,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)

MOST_CALLS: Final = {2: 4, 3: 3}
"""Calls of one thread: all orders of two threads of four calls are 70, of three threads of three calls 1680."""

STATES: Final = ("admitted", "gone", "computed", "finished", "flying", "extended")
"""What becomes of a sequence in the setup, in the order in which the setup makes them: passes that are still to be launched come after the last launch."""


def random_scenario(seed: str, capabilities: Capabilities) -> Scenario:
    """A scenario drawn by `seed` for a cache with these capabilities."""
    rng = random.Random(seed)
    threads = rng.choice((2, 2, 3))
    num_blocks = min(rng.randint(3, 6) + len(capabilities.groups) - 1 + len(capabilities.null_blocks), capabilities.max_blocks)
    block_size = 2 if 2 in capabilities.block_sizes else min(capabilities.block_sizes)
    device = rng.randrange(threads)
    states = [rng.choice(_states(capabilities, device=thread == device)) for thread in range(threads)]
    setup: list[AnyOp] = []
    for thread in sorted(range(threads), key=lambda thread: STATES.index(states[thread])):
        setup += _reached(rng, states[thread], thread, threads, _begun(setup), capabilities)
    numbers = [thread + threads * (state == "gone") for thread, state in enumerate(states)]
    programs = [_going_on(rng, seq, state) for seq, state in zip(numbers, states, strict=True)]
    strangers = _strangers(rng, numbers, num_blocks, capabilities)
    if capabilities.steps:
        programs = [
            _with_device(calls, _begun(setup), state) if thread == device else _without_device(calls, numbers[thread], state)
            for thread, (calls, state) in enumerate(zip(programs, states, strict=True))
        ]
    for thread, calls in enumerate(programs):
        if rng.random() < 0.6:
            calls.insert(rng.randint(0, len(calls)), rng.choice([*strangers, BeginStep] if thread == device else strangers)())
    cut = tuple(tuple([op for op in calls if _claimed(op, capabilities)][: MOST_CALLS[threads]]) for calls in programs)
    return Scenario(f"random:{seed}", "Drawn at random.", tuple(setup), cut, num_blocks=num_blocks, block_size=block_size)


def _states(capabilities: Capabilities, *, device: bool) -> list[str]:
    """The states that a sequence of the device thread, or of another, may be in."""
    impossible = {
        "gone": not capabilities.prefix,
        "finished": not capabilities.steps,
        "flying": not (capabilities.steps and device),
    }
    return [state for state in STATES if not impossible.get(state, False)]


def _begun(setup: list[AnyOp]) -> int:
    return sum(isinstance(op, BeginStep) for op in setup)


def _reached(rng: random.Random, state: str, seq: int, threads: int, begun: int, capabilities: Capabilities) -> list[AnyOp]:
    """How the setup, which has begun so many steps, brings a sequence into this state. One that is gone is followed by another with the same prompt."""
    prompt = rng.choice((PROMPT, PROMPT, OTHER, PROMPT[:3]))
    ops: list[AnyOp] = [Admit(seq, prompt)]
    if state == "admitted":
        return ops
    ops.append(Extend(seq, rng.randint(2, len(prompt))))
    if state != "extended" and capabilities.steps:
        ops += [BeginStep()] if state == "flying" else [BeginStep(), EndStep(begun)]
    if state in ("computed", "gone"):
        ops.append(Commit(seq))
    if state == "gone":
        ops += [Release(seq), Admit(seq + threads, prompt)]
    return ops


def _going_on(rng: random.Random, seq: int, state: str) -> list[AnyOp]:
    """What a thread does with its sequence, but for launches."""
    if state in ("admitted", "gone"):
        return rng.choice([[Match(seq), Extend(seq, rng.randint(1, 5)), Release(seq)], [Extend(seq, rng.randint(1, 5)), Commit(seq)]])
    again: list[AnyOp] = [Release(seq, "preempt"), Extend(seq, 2), Commit(seq)]
    if state != "computed":
        return rng.choice([[Commit(seq), Append(seq, (rng.choice((0, 1)),)), Extend(seq, 2)], again])
    choices: list[list[AnyOp]] = [
        [Append(seq, (1,)), Extend(seq, 1), Commit(seq)],
        [Append(seq, (0,)), Fork(seq, seq + 10), Extend(seq + 10, 1)],
        [Truncate(seq, 1), Append(seq, (0,)), Extend(seq, 1)],
        [SwapOut(seq), SwapIn(seq)],
        again,
    ]
    return rng.choice(choices)


def _with_device(calls: list[AnyOp], begun: int, state: str) -> list[AnyOp]:
    """The calls of the device thread, with a launch and its completion before each commit that needs one."""
    made: list[AnyOp] = [EndStep(begun - 1)] if state == "flying" else []
    launched = state in ("flying", "finished")
    for op in calls:
        if isinstance(op, Commit) and not launched:
            made += [BeginStep(), EndStep(begun)]
            begun += 1
        launched = launched and not isinstance(op, Commit | Release)
        made.append(op)
    return made


def _without_device(calls: list[AnyOp], seq: int, state: str) -> list[AnyOp]:
    """The calls of another thread, up to a commit whose launch it would know nothing of."""
    made: list[AnyOp] = []
    launched = state == "finished"
    for op in calls:
        if isinstance(op, Commit) and not launched:
            break
        launched = launched and not isinstance(op, Commit | Release)
        made.append(op)
    return made or [Release(seq, "preempt"), Extend(seq, 2)]


def _strangers(rng: random.Random, numbers: list[int], num_blocks: int, capabilities: Capabilities) -> list[Callable[[], AnyOp]]:
    """What any thread may do at any time."""
    blocks = [block for block in range(num_blocks) if block not in capabilities.null_blocks]
    return [
        lambda: Release(rng.choice(numbers), "cancel"),
        Reset,
        lambda: Evict(tuple(rng.sample(blocks, min(2, len(blocks))))),
    ]


def _claimed(op: AnyOp, capabilities: Capabilities) -> bool:
    need = CAPABILITY_OF.get(type(op))
    return need is None or bool(getattr(capabilities, need))
