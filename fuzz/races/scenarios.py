"""What threads do to a cache at the same time: a state to start from, and a few operations for each thread.

Every sequence has a home thread, which alone extends, commits, forks, truncates or preempts it: a cache cannot order two threads that compute the same sequence. Any
thread may release it for good, which is how a cancelled request looks. `EndStep(k)` ends the k-th step of those that the setup and then the thread itself began. A call
that the contract forbids by the time its thread comes to it is left out (`lawful`).
"""

from __future__ import annotations

import msgspec

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
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


class Scenario(msgspec.Struct, frozen=True):
    """`needs`: the capabilities without which it says nothing. `any_order`: completions come in another order than the launches."""

    name: str
    story: str
    setup: tuple[AnyOp, ...]
    threads: tuple[tuple[AnyOp, ...], ...]
    needs: tuple[str, ...] = ()
    num_blocks: int = 4
    block_size: int = 2
    any_order: bool = False

    def fits(self, capabilities: Capabilities) -> bool:
        """Whether a cache with these capabilities can be asked for it."""
        claimed = all(getattr(capabilities, need) for need in self.needs)
        return claimed and self.num_blocks <= capabilities.max_blocks and self.block_size in capabilities.block_sizes


PROMPT = (0, 1, 0, 1, 1)
OTHER = (1, 1, 0, 0, 1)


def _computed(seq: int, steps: bool, prompt: tuple[int, ...] = PROMPT, step: int = 0) -> tuple[AnyOp, ...]:
    """A sequence that has computed its prompt; `step` counts the steps before."""
    device: tuple[AnyOp, ...] = (BeginStep(), EndStep(step)) if steps else ()
    return (Admit(seq, prompt), Extend(seq, len(prompt)), *device, Commit(seq))


def catalogue(capabilities: Capabilities, *, any_order: bool = False) -> list[Scenario]:
    """The built-in scenarios that a cache with these capabilities can be asked for. `any_order`: also those whose completions come in
    another order than the launches, which the contract does not ask of a cache.
    """
    made = _pool()
    for about in (_adoptions, _publications, _forks, _siblings, _truncations, _swaps, _decodes):
        made += about(capabilities.steps)
    if capabilities.steps:
        made += [*_completions(), *_launches()]
    groups, nulls = len(capabilities.groups), len(capabilities.null_blocks)
    made = [msgspec.structs.replace(scenario, num_blocks=scenario.num_blocks * groups + nulls) for scenario in made]
    return [scenario for scenario in made if scenario.fits(capabilities) and (any_order or not scenario.any_order)]


def _pool() -> list[Scenario]:
    """The pool runs short, or its blocks change hands."""
    admits = (Admit(0, PROMPT), Admit(1, OTHER))
    return [
        Scenario(
            "two-first-extends",
            "Two requests start at once; the pool has room for both.",
            admits,
            ((Extend(0, 3),), (Extend(1, 3),)),
        ),
        Scenario(
            "last-blocks",
            "Two requests want the last blocks; one gets them.",
            admits,
            ((Extend(0, 5),), (Extend(1, 5),)),
        ),
        Scenario(
            "release-twice",
            "A request is finished by one thread and cancelled by another.",
            (*admits, Extend(0, 5)),
            ((Release(0, "finish"),), (Release(0, "cancel"),)),
        ),
        Scenario(
            "abort-before-launch",
            "A request is cancelled while the engine starts another in its blocks.",
            (*admits, Extend(0, 5)),
            ((Release(0, "cancel"),), (Extend(1, 5), Release(1, "finish"))),
        ),
        Scenario(
            "first-extend-against-abort",
            "A request is cancelled while it is given its first blocks.",
            admits,
            ((Extend(0, 5),), (Release(0, "cancel"), Extend(1, 4))),
        ),
        Scenario(
            "preempt-against-extend",
            "The scheduler preempts one request while another grows.",
            (*admits, Extend(0, 4)),
            ((Release(0, "preempt"), Extend(0, 2)), (Extend(1, 5),)),
        ),
        Scenario(
            "preempt-against-abort",
            "The scheduler preempts a request while its client cancels it.",
            (*admits, Extend(0, 4)),
            ((Release(0, "preempt"),), (Release(0, "cancel"),)),
        ),
    ]


def _adoptions(steps: bool) -> list[Scenario]:
    """A cached prefix is adopted."""
    reader = (*_computed(0, steps), Release(0), Admit(1, PROMPT), Admit(2, OTHER))
    again: tuple[AnyOp, ...] = (Match(1), Extend(1, 5))
    return [
        Scenario(
            "two-readers",
            "Two requests adopt the same cached prefix.",
            (*reader, Admit(3, PROMPT)),
            (again, (Extend(3, 5),)),
            needs=("prefix",),
            num_blocks=6,
        ),
        Scenario(
            "adopt-against-eviction",
            "One request adopts cached blocks while another needs them for itself.",
            reader,
            (again, (Extend(2, 5), Release(2))),
            needs=("prefix",),
        ),
        Scenario(
            "adopt-against-abort",
            "A request is cancelled while it adopts a cached prefix.",
            reader,
            (again, (Release(1, "cancel"), Extend(2, 2))),
            needs=("prefix",),
        ),
        Scenario(
            "reset-against-match",
            "The weights change while a request looks for a prefix.",
            reader,
            ((Reset(),), again),
            needs=("prefix", "reset"),
        ),
        Scenario(
            "evict-against-match",
            "An operator evicts blocks while a request adopts them.",
            reader,
            ((Evict((0, 1, 2, 3)),), again),
            needs=("prefix", "evict"),
        ),
    ]


def _publications(steps: bool) -> list[Scenario]:
    """What was computed is published."""
    device: tuple[AnyOp, ...] = (BeginStep(), EndStep(0)) if steps else ()
    flying: tuple[AnyOp, ...] = (Admit(0, PROMPT), Extend(0, 5), *device)
    return [
        Scenario(
            "commit-against-match",
            "A prefix is published while another request looks for it.",
            (*flying, Admit(1, PROMPT)),
            ((Commit(0),), (Match(1), Extend(1, 2))),
            needs=("prefix",),
        ),
        Scenario(
            "reset-against-commit",
            "The weights change while a request publishes what it computed.",
            (*flying, Admit(1, PROMPT)),
            ((Reset(), Match(1)), (Commit(0),)),
            needs=("prefix", "reset"),
        ),
        Scenario(
            "evict-against-commit",
            "An operator evicts blocks while a request publishes them.",
            (*flying, Admit(1, PROMPT)),
            ((Commit(0),), (Evict((0, 1, 2, 3)), Match(1))),
            needs=("prefix", "evict"),
        ),
        Scenario(
            "commit-against-abort-and-reuse",
            "A request publishes what it computed while it is cancelled and its blocks are given to another.",
            (*flying, Admit(1, OTHER), Admit(2, PROMPT)),
            ((Commit(0), Match(2)), (Release(0, "cancel"), Extend(1, 5))),
            num_blocks=3,
        ),
        Scenario(
            "two-publishers",
            "Two requests with one prompt publish it at the same time.",
            (Admit(0, PROMPT), Admit(1, PROMPT), Extend(0, 5), Extend(1, 5), *device, Admit(2, PROMPT)),
            ((Commit(0), Release(0)), (Commit(1), Match(2))),
            needs=("prefix",),
            num_blocks=6,
        ),
    ]


def _forks(steps: bool) -> list[Scenario]:
    """A beam becomes two."""
    two = (*_computed(0, steps), Append(0, (1,)), Admit(1, OTHER))
    return [
        Scenario(
            "fork-against-release",
            "A beam is forked while its request is cancelled.",
            two,
            ((Fork(0, 2), Release(2)), (Release(0, "cancel"),)),
            needs=("fork",),
        ),
        Scenario(
            "fork-against-extend",
            "A beam is forked while another request takes blocks.",
            two,
            ((Fork(0, 2), Extend(2, 1)), (Extend(1, 2),)),
            needs=("fork",),
            num_blocks=6,
        ),
        Scenario(
            "crossing-forks",
            "Two requests are forked at once, each into a number that a hash may file with the other's.",
            (*_computed(0, steps), *_computed(1, steps, OTHER, step=1)),
            ((Fork(1, 16),), (Fork(0, 17),)),
            needs=("fork",),
            num_blocks=8,
        ),
    ]


def _siblings(steps: bool) -> list[Scenario]:
    """Two beams over the same blocks."""
    siblings = (*_computed(0, steps), Fork(0, 2))
    return [
        Scenario(
            "siblings-released",
            "Two beams over the same blocks end at the same time.",
            siblings,
            ((Release(0, "finish"),), (Release(2, "cancel"),)),
            needs=("fork",),
        ),
        Scenario(
            "siblings-write",
            "Two beams write into the tail that they share.",
            (*siblings, Append(0, (1,)), Append(2, (0,))),
            ((Extend(0, 1),), (Extend(2, 1),)),
            needs=("fork",),
            num_blocks=6,
        ),
        Scenario(
            "siblings-write-the-last-block",
            "The same, and there is one block for a copy.",
            (*siblings, Append(0, (1,)), Append(2, (0,))),
            ((Extend(0, 1),), (Extend(2, 1),)),
            needs=("fork",),
        ),
        Scenario(
            "copy-against-extend",
            "A beam copies the tail that it shares into the last block, which another request wants too.",
            (*siblings, Append(0, (1,)), Admit(1, OTHER)),
            ((Extend(0, 1),), (Extend(1, 2),)),
            needs=("fork",),
        ),
        Scenario(
            "truncate-against-sibling",
            "A beam rolls back while the other one ends.",
            siblings,
            ((Truncate(0, 2),), (Release(2, "cancel"),)),
            needs=("fork", "truncate"),
        ),
    ]


def _truncations(steps: bool) -> list[Scenario]:
    """A request rolls back."""
    two = (*_computed(0, steps), Append(0, (1,)), Admit(1, OTHER))
    return [
        Scenario(
            "truncate-against-release",
            "A request rolls back while it is cancelled.",
            two,
            ((Truncate(0, 1),), (Release(0, "cancel"),)),
            needs=("truncate",),
        ),
        Scenario(
            "truncate-against-extend",
            "A request rolls back while another grows into what that frees.",
            two,
            ((Truncate(0, 2),), (Extend(1, 5),)),
            needs=("truncate",),
        ),
    ]


def _swaps(steps: bool) -> list[Scenario]:
    """A request goes to the slower tier and back."""
    two = (*_computed(0, steps), Append(0, (1,)), Admit(1, OTHER))
    return [
        Scenario(
            "swap-against-extend",
            "A request goes to the slower tier and back while another takes blocks.",
            two,
            ((SwapOut(0), SwapIn(0)), (Extend(1, 4),)),
            needs=("swap",),
        ),
        Scenario(
            "swap-in-against-abort",
            "A request is cancelled while it comes back from the slower tier.",
            (*two, SwapOut(0)),
            ((SwapIn(0),), (Release(0, "cancel"), Extend(1, 4))),
            needs=("swap",),
        ),
        Scenario(
            "two-swaps",
            "Two requests go to the slower tier and back.",
            (*_computed(0, steps), *_computed(1, steps, OTHER, step=1)),
            ((SwapOut(0), SwapIn(0)), (SwapOut(1), SwapIn(1))),
            needs=("swap",),
            num_blocks=6,
        ),
    ]


def _decodes(steps: bool) -> list[Scenario]:
    """A request decodes."""
    two = (*_computed(0, steps), Append(0, (1,)), Admit(1, OTHER))
    device: tuple[AnyOp, ...] = (BeginStep(), EndStep(1)) if steps else ()
    return [
        Scenario(
            "decode-against-abort",
            "A request is cancelled while it decodes.",
            two,
            ((Extend(0, 1),), (Release(0, "cancel"), Extend(1, 4))),
        ),
        Scenario(
            "decode-against-prefill",
            "One request decodes while another starts.",
            two,
            ((Extend(0, 1), *device, Commit(0)), (Extend(1, 2), Release(1))),
            num_blocks=5,
        ),
    ]


def _completions() -> list[Scenario]:
    """A step completes."""
    flying = (Admit(0, PROMPT), Extend(0, 5), BeginStep(), Admit(1, OTHER))
    two_steps = (Admit(0, PROMPT), Extend(0, 3), BeginStep(), Admit(1, OTHER), Extend(1, 3), BeginStep())
    return [
        Scenario(
            "abort-against-completion",
            "A request is cancelled while its pass completes.",
            flying,
            ((EndStep(0), Commit(0)), (Release(0, "cancel"),)),
        ),
        Scenario(
            "abort-completion-and-extend",
            "The same, and a third thread is after the blocks.",
            flying,
            ((EndStep(0), Commit(0)), (Release(0, "cancel"),), (Extend(1, 4),)),
        ),
        Scenario(
            "completed-twice",
            "The same completion is delivered by two threads.",
            (*flying, Release(0, "cancel")),
            ((EndStep(0), Extend(1, 5)), (EndStep(0),)),
        ),
        Scenario(
            "completed-in-another-order",
            "The completion of the second step overtakes that of the first.",
            two_steps,
            ((EndStep(1), Commit(1)), (EndStep(0), Commit(0))),
            any_order=True,
        ),
        Scenario(
            "never-completed",
            "A request is cancelled in a step that never completes: its blocks stay out of reach.",
            flying,
            ((Release(0, "cancel"),), (Extend(1, 4),)),
        ),
    ]


def _launches() -> list[Scenario]:
    """A step is launched."""
    return [
        Scenario(
            "two-launches",
            "Two threads launch their passes at once.",
            (Admit(0, PROMPT), Admit(1, OTHER)),
            ((Extend(0, 3), BeginStep()), (Extend(1, 3), BeginStep())),
        ),
        Scenario(
            "two-launches-completed",
            "Two threads launch their passes and see them complete.",
            (Admit(0, PROMPT), Admit(1, OTHER)),
            ((Extend(0, 3), BeginStep(), EndStep(0)), (Extend(1, 3), BeginStep(), EndStep(0))),
            any_order=True,
        ),
        Scenario(
            "fork-against-launch",
            "A beam is forked while the pass of another request is launched.",
            (*_computed(1, True), Admit(0, OTHER), Extend(0, 2)),
            ((Fork(1, 16),), (BeginStep(), EndStep(1), Commit(0))),
            needs=("fork",),
            num_blocks=5,
        ),
        Scenario(
            "launch-against-abort",
            "A request is cancelled while its pass is launched.",
            (Admit(0, PROMPT), Extend(0, 5), Admit(1, OTHER)),
            ((BeginStep(), EndStep(0)), (Release(0, "cancel"), Extend(1, 4))),
        ),
    ]
