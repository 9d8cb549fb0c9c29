"""Traffic for the server: requests, limits and a pool as data, drawn by Hypothesis, served, and judged.

    traffic = traffics().example()
    served = serve(traffic)                 # answers, and the operations that the scheduler chose
    judge(traffic, served)                  # raises AssertionError

What the scheduler did is a program like any other: run on `EngineAdapter`, it is judged logit by logit and law by law, and a failure is shrunk,
replayed and kept as a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from kvproof.impl.engine.adapter import model_of
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.contiguous import Contiguous
from kvproof.impl.engine.engine import Engine, adapter_of
from kvproof.impl.engine.sampling import best_continuations
from kvproof.impl.engine.server import Answer, Limits, Request, Server
from kvproof.impl.engine.worker import Logits
from kvproof.impl.production.records import ExtendGrant
from kvproof.models.ops import Admit, AnyOp, Append, BeginStep, Commit, EndStep, Extend, Fork, Namespace, Release, SwapIn, SwapOut

MOST_STEPS: Final = 2000
"""A server that has not finished its traffic after so many steps never will: the largest traffic takes about 200."""


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step `at`, and is cancelled before step `cancelled`, if that is a step."""

    at: int
    request: Request
    cancelled: int | None = None


@dataclass(frozen=True)
class Traffic:
    """Who asks when for what, and what the engine has for them."""

    arrivals: tuple[Arrival, ...]
    limits: Limits = field(default_factory=Limits)
    num_blocks: int = 12
    block_size: int = 4
    config: ModelConfig = field(default_factory=ModelConfig)


@dataclass(frozen=True)
class Served:
    """`answers` by the place of their request in the traffic; `ops`: what the scheduler did. `steps`: for each, the tokens of its passes, and
    `most_open`: how many of them were in flight at once.
    """

    answers: dict[int, list[Answer]]
    ops: tuple[AnyOp, ...]
    steps: tuple[tuple[int, ...], ...]
    most_open: int


class Recorded(Engine):
    """An engine that writes down what is asked of it."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- those of an engine
        super().__init__(*args, **options)
        self.ops: list[AnyOp] = []
        self.steps: list[tuple[int, ...]] = []
        self.open = self.most_open = 0

    def admit(self, seq: int, prompt: Sequence[int], namespace: Mapping[str, str | None] | None = None) -> None:
        """Admit."""
        self.ops.append(Admit(seq, tuple(prompt), Namespace(**(namespace or {}))))
        super().admit(seq, prompt, namespace)

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """Extend, whether there is room or not."""
        self.ops.append(Extend(seq, count, tuple(drafts)))
        return super().extend(seq, count, drafts)

    def commit(self, seq: int, accepted: int = 0) -> None:
        """Commit."""
        self.ops.append(Commit(seq, accepted))
        super().commit(seq, accepted)

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Append."""
        self.ops.append(Append(seq, tuple(tokens)))
        super().append(seq, tokens)

    def fork(self, parent: int, child: int) -> None:
        """Fork."""
        self.ops.append(Fork(parent, child))
        super().fork(parent, child)

    def release(self, seq: int) -> None:
        """Release."""
        self.ops.append(Release(seq))
        super().release(seq)

    def preempt(self, seq: int) -> None:
        """Release, to be extended again."""
        self.ops.append(Release(seq, "preempt"))
        super().preempt(seq)

    def begin_step(self) -> int:
        """BeginStep."""
        self.ops.append(BeginStep())
        self.steps.append(tuple(len(work.tokens) for work in self._passes.values()))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return super().begin_step()

    def end_step(self, step: int) -> Logits:
        """EndStep of the oldest: a server waits for no other."""
        self.ops.append(EndStep())
        self.open -= 1
        return super().end_step(step)

    def swap_out(self, seq: int) -> bool:
        """SwapOut."""
        self.ops.append(SwapOut(seq))
        return super().swap_out(seq)

    def swap_in(self, seq: int) -> bool:
        """SwapIn."""
        self.ops.append(SwapIn(seq))
        return super().swap_in(seq)


def serve(traffic: Traffic, server_class: type[Server] = Server) -> Served:
    """Serve all of it. Raises AssertionError where the server does not come to an end."""
    model, oracle = model_of(traffic.config)
    engine = Recorded(model, num_blocks=traffic.num_blocks, block_size=traffic.block_size, host_blocks=traffic.num_blocks)
    server = server_class(engine, traffic.limits, drafter=half_right(oracle))
    numbers: dict[int, int] = {}
    last = max(max(arrival.at, arrival.cancelled or 0) for arrival in traffic.arrivals)
    for step in range(MOST_STEPS):
        for place, arrival in enumerate(traffic.arrivals):
            if arrival.at == step:
                numbers[place] = server.submit(arrival.request)
            if arrival.cancelled == step and place in numbers:
                server.cancel(numbers[place])
        if not server.step() and step >= last:
            answers = {place: server.answers[number] for place, number in numbers.items() if number in server.answers}
            assert not engine.cache.books().refcounts, "blocks are held by nobody"
            assert not engine._adapters, "the engine remembers who is gone"
            return Served(answers, tuple(engine.ops), tuple(engine.steps), engine.most_open)
    raise AssertionError(f"the server has not finished after {MOST_STEPS} steps")


def half_right(oracle: Contiguous) -> Any:  # noqa: ANN401 -- a Drafter
    """Drafts that the model would choose itself, but for one at a place that depends on the tokens: acceptance of every length occurs."""

    def draft(tokens: Sequence[int], most: int) -> Sequence[int]:
        known, wrong = tuple(tokens), sum(tokens) % (most + 1)
        found: list[int] = []
        for place in range(most):
            best = int(oracle.logits((*known, *found))[-1].argmax())
            found.append(best + 1 if place == wrong else best)
        return found

    return draft


def judge(traffic: Traffic, served: Served) -> None:
    """Every answer is the contiguous model's, and no step is larger than the limits. Raises AssertionError."""
    _, oracle = model_of(traffic.config)
    limits, drafts = traffic.limits, max(arrival.request.drafts for arrival in traffic.arrivals)
    for step in served.steps:
        assert sum(step) <= limits.batch_tokens
        assert len(step) <= limits.sequences
        assert max(step) <= limits.chunk_tokens + drafts
    assert served.most_open <= limits.steps_in_flight
    for place, arrival in enumerate(traffic.arrivals):
        if place not in served.answers:
            assert arrival.cancelled is not None, f"request {place} has no answer"
        elif arrival.request.beams > 1:
            _judge_beams(oracle, arrival.request, served.answers[place])
        else:
            [answer] = served.answers[place]
            _judge_greedy(oracle, arrival.request, answer)


def _judge_greedy(oracle: Contiguous, request: Request, answer: Answer) -> None:
    """Each token is the most likely one, up to what a lawful error may turn round."""
    assert len(answer.tokens) == request.new_tokens
    rows = _rows(oracle, request, answer.tokens)
    tolerance = oracle.tolerance((*request.prompt, *answer.tokens), adapter_of(request.namespace))
    for place, (row, token) in enumerate(zip(rows, answer.tokens, strict=True)):
        behind = float(row.max() - row[token])
        assert behind <= 2 * tolerance, f"token {place} of the answer to {request} is {token}, {behind:.2g} behind {int(row.argmax())}"


def _judge_beams(oracle: Contiguous, request: Request, answers: Sequence[Answer]) -> None:
    """Each score is that of its tokens, no two beams are the same, and no beam of the contiguous search is better."""
    slack = (
        2
        * request.new_tokens
        * max(oracle.tolerance((*request.prompt, *answer.tokens), adapter_of(request.namespace)) for answer in answers)
    )
    assert len({answer.tokens for answer in answers}) == len(answers), f"two beams of {request} are the same"
    for answer in answers:
        rows = _rows(oracle, request, answer.tokens).log_softmax(-1)
        score = sum(float(row[token]) for row, token in zip(rows, answer.tokens, strict=True))
        assert abs(score - answer.score) <= slack, f"a beam of {request} has the score {answer.score:.6f}, its tokens {score:.6f}"
    wanted = [beam[1] for beam in _beam_search(oracle, request)]
    assert len(answers) == len(wanted)
    for answer, score in zip(answers, wanted, strict=True):
        assert answer.score >= score - slack, (
            f"a beam of {request} has the score {answer.score:.6f}, the contiguous search found {score:.6f}"
        )


def _rows(oracle: Contiguous, request: Request, tokens: tuple[int, ...]) -> Any:  # noqa: ANN401 -- a tensor
    """The logits that each token was chosen from."""
    return oracle.logits((*request.prompt, *tokens), adapter_of(request.namespace))[len(request.prompt) - 1 : -1]


def _beam_search(oracle: Contiguous, request: Request) -> list[tuple[tuple[int, ...], float]]:
    beams: list[tuple[tuple[int, ...], float]] = [(request.prompt, 0.0)]
    for _ in range(request.new_tokens):
        logits = [oracle.logits(tokens, adapter_of(request.namespace))[-1] for tokens, _ in beams]
        found = best_continuations([score for _, score in beams], logits, request.beams)
        beams = [((*beams[one.parent][0], one.token), one.score) for one in found]
    return beams


# -- strategies -------------------------------------------------------------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Prompts over few tokens, so that they share prefixes."""
    prompt = tuple(draw(st.lists(st.sampled_from((5, 6)), min_size=1, max_size=14)))
    beams = draw(st.sampled_from((1, 1, 2, 3)))
    new_tokens, drafts = draw(st.integers(1, 8 if beams > 1 else 16)), draw(st.integers(0, 4))
    return Request(prompt, new_tokens, drafts, beams, draw(st.sampled_from((None, None, {"adapter": "a"}))))


@st.composite
def traffics(draw: st.DrawFn, config: ModelConfig | None = None) -> Traffic:
    """A few requests, and a pool that is too small for all of them at once."""
    config = config or ModelConfig()
    arrivals = tuple(
        Arrival(draw(st.integers(0, 12)), draw(requests()), draw(st.sampled_from((None, None, None, 3, 9))))
        for _ in range(draw(st.integers(1, 4)))
    )
    limits = Limits(
        batch_tokens=draw(st.sampled_from((4, 9, 40))),
        sequences=draw(st.sampled_from((2, 16))),
        chunk_tokens=draw(st.sampled_from((3, 8, 40))),
        steps_in_flight=draw(st.integers(1, 3)),
        preemption=draw(st.sampled_from(("recompute", "swap"))),
    )
    block_size = draw(st.sampled_from((1, 2, 4, 5)))
    longest = max(len(arrival.request.prompt) + arrival.request.new_tokens for arrival in arrivals)
    least = -(-(longest - 1) // block_size) * len(config.windows)  # nobody computes the last token
    return Traffic(arrivals, limits, least + draw(st.integers(0, least)), block_size, config)
