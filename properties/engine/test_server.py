"""The server's answers are the contiguous model's, and what it schedules is a program that keeps every law."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.shrink import shrink
from kvproof.impl.engine.adapter import EngineAdapter, model_of
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.sampling import accepted, lookup
from kvproof.impl.engine.server import Limits, Request, RequestTooLarge, Server
from kvproof.impl.engine.variants import VARIANTS
from kvproof.impl.production.errors import TokenOutOfRange
from kvproof.models.ops import Admit, Extend, Fork, Release, SwapIn
from kvproof.properties.engine.bugs import BUGS as ENGINE_BUGS
from kvproof.properties.engine.server_bugs import BUGS
from kvproof.properties.engine.traffic import Arrival, Traffic, half_right, judge, serve, traffics
from kvproof.properties.lockstep import SERVED, run

QUIET = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def hold(traffic: Traffic, variant: type[EngineAdapter] = EngineAdapter) -> None:
    served = serve(traffic)
    judge(traffic, served)
    result = run(served.ops, variant, num_blocks=traffic.num_blocks, block_size=traffic.block_size)
    assert result.ok, result.violation or result.fault
    assert result.ran == list(served.ops)


@settings(QUIET, max_examples=12, phases=(Phase.generate, Phase.shrink))
@given(traffics())
def test_whatever_the_traffic_answers_are_the_models_and_schedules_lawful(traffic: Traffic) -> None:
    hold(traffic)


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_whatever_the_traffic_for_long(variant: type[EngineAdapter]) -> None:
    @settings(QUIET, max_examples=300, derandomize=False)
    @given(traffics(variant.config))
    def whatever(traffic: Traffic) -> None:
        hold(traffic, variant)

    whatever()


CROWD = Traffic(
    (
        Arrival(0, Request((5, 6, 6, 5, 6, 5, 5, 6), new_tokens=12, drafts=3)),
        Arrival(1, Request((5, 6, 6, 5, 6, 6), new_tokens=8, beams=3, namespace={"adapter": "a"})),
        Arrival(2, Request((5, 6, 6, 5, 6, 5), new_tokens=14, drafts=2)),
        Arrival(3, Request((6, 6), new_tokens=14), cancelled=9),
    ),
    Limits(batch_tokens=12, chunk_tokens=5, steps_in_flight=2, preemption="swap"),
    num_blocks=7,
    block_size=4,
)
"""More than the pool can hold at once, with everything that a server does."""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_a_crowd_is_served_by_every_kind_of_model(variant: type[EngineAdapter]) -> None:
    blocks = 7 * len(variant.config.windows)
    hold(Traffic(CROWD.arrivals, CROWD.limits, blocks, 4, variant.config), variant)


def test_the_crowd_needs_drafts_that_fail_forks_preemption_and_swaps() -> None:
    crowd = serve(CROWD)
    ops = crowd.ops
    assert crowd.most_open == CROWD.limits.steps_in_flight
    assert any(isinstance(op, SwapIn) for op in ops)
    assert any(isinstance(op, Fork) for op in ops)
    assert any(isinstance(op, Extend) and op.drafts for op in ops)
    recomputing = serve(Traffic(CROWD.arrivals, Limits(batch_tokens=12, chunk_tokens=5), 7, 4)).ops
    assert any(isinstance(op, Release) and op.reason == "preempt" for op in recomputing)


def test_whoever_came_last_makes_room_and_the_first_is_never_preempted() -> None:
    arrivals = tuple(Arrival(0, Request((place, 1, 2, 3), new_tokens=12)) for place in range(3))
    traffic = Traffic(arrivals, num_blocks=5, block_size=4)
    served = serve(traffic)
    judge(traffic, served)
    preempted = [op.seq for op in served.ops if isinstance(op, Release) and op.reason == "preempt"]
    assert preempted[0] == 2
    assert 0 not in preempted


def test_beams_on_the_host_go_on_under_their_adapter() -> None:
    """The twin of a beam that is away is admitted anew."""
    traffic = Traffic(
        (Arrival(0, Request((5, 6, 6, 5, 6, 6), new_tokens=8, beams=3, namespace={"adapter": "a"})),),
        Limits(sequences=1, preemption="swap"),
        num_blocks=4,
        block_size=4,
    )
    served = serve(traffic)
    judge(traffic, served)
    assert sum(isinstance(op, Admit) for op in served.ops) > 1


def test_a_schedule_of_the_server_shows_what_a_faulty_engine_does() -> None:
    """Where sequences of one history are in one batch, which random programs of caches seldom have."""
    faulty = ENGINE_BUGS["a-batch-takes-the-first-table"]
    result = run(serve(CROWD).ops, faulty, num_blocks=CROWD.num_blocks, block_size=CROWD.block_size)
    assert result.violation is not None
    assert result.violation.law == SERVED


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "most"), [("a-batch-takes-the-first-table", 10), ("positions-count-a-rejected-draft", 14)])
def test_a_schedule_of_the_server_is_shrunk_like_any_other_program(name: str, most: int) -> None:
    """From some 250 operations; it takes about ten seconds of a free core."""
    program = Program(FORMAT, name, PoolConfig(CROWD.num_blocks, CROWD.block_size), serve(CROWD).ops)
    short = shrink(program, ENGINE_BUGS[name], seconds=120)
    assert short.violation is not None
    assert short.violation.law == SERVED
    assert len(short.ops) <= most


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_of_the_server_gives_other_answers(name: str) -> None:
    server, traffic = BUGS[name]
    judge(traffic, serve(traffic))
    with pytest.raises(AssertionError):
        judge(traffic, serve(traffic, server))


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUGS)
def test_random_traffic_finds_a_seeded_bug_of_the_server_and_is_shrunk(name: str) -> None:
    server, _ = BUGS[name]

    def wrong(traffic: Traffic) -> bool:
        try:
            judge(traffic, serve(traffic, server))
        except AssertionError:
            return True
        return False

    found = find(traffics(), wrong, settings=settings(QUIET, max_examples=300))
    assert len(found.arrivals) == 1


def test_a_request_that_cannot_fit_is_refused_at_once() -> None:
    model, _ = model_of(ModelConfig())
    server = Server(Engine(model, num_blocks=2, block_size=4))
    with pytest.raises(RequestTooLarge, match="needs 3 blocks and the pool has 2"):
        server.submit(Request((1, 2, 3), new_tokens=7))
    assert server.run() == {}


def test_a_request_that_just_fits_is_served() -> None:
    """The last token is sampled and never computed."""
    hold(Traffic((Arrival(0, Request((1, 2, 3), new_tokens=6, drafts=2)),), num_blocks=2, block_size=4))


def test_a_window_needs_no_room_for_what_it_has_passed() -> None:
    config, limits = ModelConfig(windows=(5,)), Limits(chunk_tokens=3)
    hold(
        Traffic((Arrival(0, Request(tuple(range(20)), new_tokens=30, drafts=2)),), limits, num_blocks=3, block_size=4, config=config),
        type("Windowed", (EngineAdapter,), {"config": config}),
    )


def test_what_asks_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one token at least"):
        Request((1,), new_tokens=0)
    with pytest.raises(ValueError, match="one token of one sequence at least"):
        Limits(batch_tokens=0)
    with pytest.raises(ValueError, match="choose one of recompute, swap"):
        Limits(preemption="discard")  # type: ignore[arg-type]


def test_a_prompt_that_the_cache_refuses_leaves_the_server_as_it_was() -> None:
    server = Server(Engine(model_of(ModelConfig())[0], num_blocks=2, block_size=4))
    with pytest.raises(TokenOutOfRange):
        server.submit(Request((2**64,), new_tokens=1))
    number = server.submit(Request((1,), new_tokens=1))
    assert server.run().keys() == {number}


def test_a_drafter_that_proposes_too_much_changes_no_answer() -> None:
    model, oracle = model_of(ModelConfig())
    server = Server(Engine(model, num_blocks=8, block_size=4), drafter=lambda tokens, most: half_right(oracle)(tokens, most + 4))
    number = server.submit(Request((1, 2), new_tokens=5, drafts=1))
    [answer] = server.run()[number]
    assert len(answer.tokens) == 5


def test_drafts_are_looked_up_in_the_text_and_stand_up_to_the_first_wrong_one() -> None:
    assert lookup((5, 6, 7, 8, 6), 2) == (7, 8)
    assert lookup((5, 6, 7), 2) == ()
    assert accepted((7, 8, 9), (7, 8)) == 2
    assert accepted((7, 8, 9), (7, 9)) == 1
    assert accepted((7,), ()) == 0
