"""Continuous batching on the engine: every step takes what fits of every request, in the order of arrival.

    server = Server(Engine(model, num_blocks=64, block_size=16, host_blocks=64), Limits(batch_tokens=32))
    first = server.submit(Request((5, 6, 7), new_tokens=20, drafts=3))
    second = server.submit(Request((5, 6, 8), new_tokens=20, beams=4))
    answers = server.run()                     # {first: [Answer], second: [Answer, Answer, Answer, Answer]}

A prompt is computed in chunks where a step has no room for all of it. Where the pool has no room, the newest sequences make it: their blocks go to
the host, or are given up and computed again. Drafts are verified by the pass that computes them. Beams are forks. Several steps may be in
flight; a sequence is in one of them at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.sampling import Drafter, accepted, best_continuations, lookup
from kvproof.impl.production.errors import OutOfBlocks

Preemption: TypeAlias = Literal["recompute", "swap"]
"""What becomes of the blocks of a sequence that makes room: they are given up and computed again, or go to the host."""


class RequestTooLarge(ValueError):
    """The pool cannot hold one sequence of a request, however empty it is."""


@dataclass(frozen=True)
class Request:
    """`new_tokens` to generate, greedily with up to `drafts` drafts in each pass, or by a search with so many `beams`."""

    prompt: tuple[int, ...]
    new_tokens: int = 16
    drafts: int = 0
    beams: int = 1
    namespace: Mapping[str, str | None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a request that asks for nothing."""
        if not self.prompt or self.new_tokens < 1 or self.beams < 1 or self.drafts < 0:
            raise ValueError(
                f"a request has a prompt, asks for one token at least and has one beam at least, without negative drafts; got {self}"
            )


@dataclass(frozen=True)
class Limits:
    """Of a step: `batch_tokens` and `sequences`; `chunk_tokens` of one sequence. `steps_in_flight`: how many steps the device may be behind."""

    batch_tokens: int = 64
    sequences: int = 16
    chunk_tokens: int = 32
    steps_in_flight: int = 1
    preemption: Preemption = "recompute"

    def __post_init__(self) -> None:
        """Raises ValueError where no step could compute anything."""
        if min(self.batch_tokens, self.sequences, self.chunk_tokens, self.steps_in_flight) < 1:
            raise ValueError(f"a step takes one token of one sequence at least, and one step at least is in flight; got {self}")
        if self.preemption not in get_args(Preemption):
            raise ValueError(f"a preemption by {self.preemption!r}; choose one of {', '.join(get_args(Preemption))}")


@dataclass(frozen=True)
class Answer:
    """The generated tokens, and for a beam the sum of their log-probabilities."""

    tokens: tuple[int, ...]
    score: float = 0.0


@dataclass
class Branch:
    """One sequence of a request. `computed` tokens are in the cache, a pass that is out goes to `end` and then over `drafts`.

    `next`: the logits of the token that follows all that is known, until it is chosen. `untold`: the last token, where it was chosen while the
    sequence was on the host, and the cache has not heard of it yet.
    """

    seq: int
    request: int
    tokens: list[int]
    computed: int = 0
    end: int = 0
    drafts: tuple[int, ...] = ()
    in_flight: bool = False
    swapped: bool = False
    score: float = 0.0
    next: Tensor | None = None
    untold: tuple[int, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """Smaller is older: who comes first, and who is preempted last."""
        return self.request, self.seq


@dataclass
class Server:
    """`drafter` proposes drafts; whatever it proposes, answers stay the same."""

    engine: Engine
    limits: Limits = field(default_factory=Limits)
    drafter: Drafter = lookup

    def __post_init__(self) -> None:
        """Nothing is known and nothing in flight."""
        self.answers: dict[int, list[Answer]] = {}
        self._requests: dict[int, Request] = {}
        self._branches: dict[int, Branch] = {}
        self._steps: deque[tuple[int, list[Branch]]] = deque()
        self._submitted = 0
        self._sequences = 0

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number. Raises RequestTooLarge, and TokenOutOfRange for a prompt that no cache takes."""
        tokens = len(request.prompt) + request.new_tokens - 1  # Nobody computes the last one.
        blocks = sum(self._most_blocks(request, tokens, window) for window in self.engine.config.windows)
        if blocks > self.engine.num_blocks:
            raise RequestTooLarge(
                f"a request that computes {tokens} tokens needs {blocks} blocks and the pool has {self.engine.num_blocks};"
                " build the engine with more, or ask for fewer tokens"
            )
        self.engine.admit(self._sequences, request.prompt, request.namespace)
        number, self._submitted = self._submitted, self._submitted + 1
        self._requests[number] = request
        self._branch(number, list(request.prompt))
        return number

    def cancel(self, number: int) -> None:
        """Drop a request, whatever it is doing; one that has its answers is not known any more."""
        if self._requests.pop(number, None) is not None:
            for branch in self._of(number):
                self._leave(branch)

    def run(self) -> dict[int, list[Answer]]:
        """Serve until every request has its answers, the best first."""
        while self.step():
            pass
        return self.answers

    def step(self) -> bool:
        """Launch a step with whatever can be computed now, wait for one if there are enough; False when there is nothing left to do."""
        batch = self._schedule()
        if batch:
            self._steps.append((self.engine.begin_step(), batch))
        assert self._steps or not self._branches, "every request fits alone, so one can always go on"
        if self._steps and (not batch or len(self._steps) >= self.limits.steps_in_flight):
            self._finish()
        return bool(self._steps or self._branches)

    def _most_blocks(self, request: Request, tokens: int, window: int | None) -> int:
        """The most blocks of one group that a sequence of the request holds at once: all, or those that its window and one pass reach into."""
        size, limits = self.engine.block_size, self.limits
        most = -(-tokens // size)
        if window is None:
            return most
        reach = window - 1 + min(limits.batch_tokens, limits.chunk_tokens + request.drafts)
        return min(most, (reach + size - 2) // size + 1)

    # What goes into a step.

    def _schedule(self) -> list[Branch]:
        batch: list[Branch] = []
        room = self.limits.batch_tokens
        for branch in sorted(self._branches.values(), key=lambda branch: branch.age):
            if branch.in_flight or branch.next is not None:
                continue  # It waits for its step, or for the other beams of its request.
            if not room or len(batch) == self.limits.sequences or not self._take(branch, room):
                break  # Nobody overtakes: what comes free is for the oldest.
            batch.append(branch)
            room -= branch.end + len(branch.drafts) - branch.computed
        return batch

    def _take(self, branch: Branch, room: int) -> bool:
        """Extend a branch by at most `room` tokens, and make room for that in the pool; False where it must wait."""
        while True:
            if branch.swapped and self.engine.swap_in(branch.seq):
                self._is_back(branch)
            if not branch.swapped and self._extend(branch, room):
                return True
            if not self._preempt_for(branch):
                return False

    def _extend(self, branch: Branch, room: int) -> bool:
        left = len(branch.tokens) - branch.computed
        count = min(left, room, self.limits.chunk_tokens)
        drafts = self._propose(branch, room - count) if branch.computed and count == left else ()
        try:
            grant = self.engine.extend(branch.seq, count, drafts)
        except OutOfBlocks:
            return False
        branch.computed += grant.adopted
        branch.end = min(branch.computed + count, len(branch.tokens))
        branch.drafts, branch.in_flight = drafts, True
        return True

    def _propose(self, branch: Branch, room: int) -> tuple[int, ...]:
        request = self._requests[branch.request]
        left = len(request.prompt) + request.new_tokens - len(branch.tokens)
        most = min(request.drafts, room, left - 1)
        return tuple(self.drafter(branch.tokens, most))[:most] if most > 0 and request.beams == 1 else ()

    def _preempt_for(self, branch: Branch) -> bool:
        """Take the blocks of the newest other sequence that is not in flight; False where the pool may come free by waiting."""
        others = [other for other in self._branches.values() if other is not branch and other.computed and not other.swapped]
        idle = [other for other in others if not other.in_flight]
        if len(idle) < len(others):
            idle = [other for other in idle if other.age > branch.age]  # What is in flight may finish, so nobody older has to go.
        if idle:
            self._preempt(max(idle, key=lambda other: other.age))
        elif not others and branch.swapped:
            self.engine.preempt(branch.seq)
            branch.computed = 0
            self._is_back(branch)
        else:
            return False
        return True

    def _is_back(self, branch: Branch) -> None:
        branch.swapped = False
        if branch.untold:
            self.engine.append(branch.seq, branch.untold)
            branch.untold = ()

    def _preempt(self, branch: Branch) -> None:
        branch.swapped = self.limits.preemption == "swap" and self.engine.swap_out(branch.seq)
        if not branch.swapped:
            self.engine.preempt(branch.seq)
            branch.computed = 0

    # What comes out of one.

    def _finish(self) -> None:
        step, batch = self._steps.popleft()
        logits = self.engine.end_step(step)
        served = [branch for branch in batch if branch.seq in self._branches]
        for branch in served:
            self._commit(branch, logits[branch.seq])
        for number in dict.fromkeys(branch.request for branch in served):
            branches = self._of(number)
            if all(branch.next is not None for branch in branches):
                self._go_on(number, branches)

    def _commit(self, branch: Branch, rows: Tensor) -> None:
        """A pass is done; `rows` are the logits of its tokens."""
        branch.in_flight = False
        count = branch.end - branch.computed
        whole = branch.end == len(branch.tokens)
        stand = accepted(rows[count - 1 :].argmax(-1).tolist(), branch.drafts)
        self.engine.commit(branch.seq, stand)
        branch.tokens += branch.drafts[:stand]
        branch.computed = branch.end + stand
        if whole:
            branch.next = rows[count - 1 + stand]

    def _go_on(self, number: int, branches: list[Branch]) -> None:
        """Choose the next tokens of a request, all of whose branches have their logits."""
        request = self._requests[number]
        logits = [branch.next for branch in branches if branch.next is not None]
        chosen = best_continuations([branch.score for branch in branches], logits, request.beams)
        if len(branches[0].tokens) + 1 == len(request.prompt) + request.new_tokens:
            found = [
                Answer((*branches[one.parent].tokens[len(request.prompt) :], one.token), one.score if request.beams > 1 else 0.0)
                for one in chosen
            ]
            self.answers[number] = found
            self.cancel(number)
            return
        heirs: dict[int, list[tuple[int, float]]] = {}
        for one in chosen:
            heirs.setdefault(one.parent, []).append((one.token, one.score))
        for parent, branch in enumerate(branches):
            if parent in heirs:
                self._inherit(branch, heirs[parent])
            else:
                self._leave(branch)

    def _inherit(self, branch: Branch, heirs: list[tuple[int, float]]) -> None:
        """The first heir is the branch itself, the others are forks: made before it goes on, since they share what it has now."""
        twins = [branch] + [self._fork(branch) for _ in heirs[1:]]
        for twin, (token, score) in zip(twins, heirs, strict=True):
            twin.tokens.append(token)
            if twin.swapped:
                twin.untold = (token,)
            else:
                self.engine.append(twin.seq, (token,))
            twin.score, twin.next = score, None

    # Branches.

    def _fork(self, branch: Branch) -> Branch:
        twin = self._branch(branch.request, branch.tokens[:])
        if branch.swapped:
            self.engine.admit(twin.seq, branch.tokens, self._requests[branch.request].namespace)
        else:
            self.engine.fork(branch.seq, twin.seq)
            twin.computed = branch.computed
        return twin

    def _branch(self, request: int, tokens: list[int]) -> Branch:
        branch = Branch(self._sequences, request, tokens)
        self._sequences += 1
        self._branches[branch.seq] = branch
        return branch

    def _of(self, request: int) -> list[Branch]:
        return [branch for branch in self._branches.values() if branch.request == request]

    def _leave(self, branch: Branch) -> None:
        self.engine.release(branch.seq)
        del self._branches[branch.seq]
