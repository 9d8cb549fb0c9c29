"""The engine keeps every law, the end-to-end law included; each seeded bug of it breaks that one, in a few operations."""

from __future__ import annotations

import random

import pytest
import torch

from kvproof.fuzz.check import check
from kvproof.impl.engine.adapter import EngineAdapter, model_of
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.variants import VARIANTS, HybridEngine, Int8Engine, Int8LatentEngine, LatentEngine
from kvproof.impl.production.errors import UnknownStep
from kvproof.models.ops import Admit, Append, BeginStep, Commit, EndStep, Extend, Fork, SwapIn, SwapOut
from kvproof.properties.engine.bugs import BUGS
from kvproof.properties.engine.on_machine import TritonOnMachine
from kvproof.properties.engine.schedules import ENGINE, served
from kvproof.properties.lockstep import SERVED, run

PROGRAMS = 12
"""Random programs for each variant, about two passes each; the nightly run tries thousands."""

MOST_OPERATIONS = 18
"""The longest of the shortest schedules: a pass takes four operations, and a swap that goes wrong needs a second sequence."""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_every_random_schedule_gives_the_logits_of_the_contiguous_model(variant: type[EngineAdapter]) -> None:
    report = check(variant, name="engine", seconds=60, seed=1, programs=PROGRAMS)
    assert report.verdict == "held", report.violations or report.error
    assert report.laws[SERVED].exercised >= PROGRAMS


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_every_random_schedule_gives_the_logits_of_the_contiguous_model_for_long(variant: type[EngineAdapter]) -> None:
    report = check(variant, name="engine", seconds=300, seed=random.SystemRandom().getrandbits(32))
    assert report.verdict == "held", report.violations or report.error


QUICK = (EngineAdapter, HybridEngine, LatentEngine, Int8LatentEngine, Int8Engine)

EVERYTHING = (
    Admit(0, (0, 1, 0, 1, 1)), Extend(0, 3), BeginStep(), EndStep(), Commit(0), Extend(0, 2), BeginStep(), EndStep(), Commit(0),
    Append(0, (1,)), Fork(0, 1), Append(1, (0,)), Extend(0, 1, (1, 0)), Extend(1, 2), BeginStep(), EndStep(), Commit(0, 1), Commit(1),
    SwapOut(0), Admit(2, (0, 1, 0, 1, 0)), Extend(2, 5), BeginStep(), SwapIn(0), Append(0, (1,)), Extend(0, 1), BeginStep(),
    EndStep(), EndStep(), Commit(2), Commit(0),
)  # fmt: skip
"""Chunks, a fork, a rejection, a copy, a swap, a prefix hit and two steps in flight."""


@pytest.mark.parametrize(
    "variant",
    [pytest.param(variant, marks=() if variant in QUICK else pytest.mark.nightly) for variant in VARIANTS],
    ids=lambda variant: variant.__name__,
)
def test_the_triton_kernels_give_them_too_and_touch_nothing_else(variant: type[EngineAdapter]) -> None:
    adapter = type(variant.__name__, (variant,), {"kernels": TritonOnMachine})
    result = run(EVERYTHING, adapter, num_blocks=8 * len(variant.config.windows), block_size=4)
    assert result.ok, result.violation or result.fault
    assert len(result.ran) == len(EVERYTHING)


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_breaks_the_end_to_end_law_in_a_few_operations(name: str) -> None:
    blocks, size, ops = ENGINE[name]
    faulty = BUGS[name]
    result = run(ops, faulty, num_blocks=blocks, block_size=size)
    assert result.violation is not None, result.fault
    assert result.violation.law == SERVED
    assert len(result.ran) <= MOST_OPERATIONS
    sound = type("Sound", (EngineAdapter,), {"config": faulty.config})
    assert run(ops, sound, num_blocks=blocks, block_size=size).ok


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in BUGS if name != "a-batch-takes-the-first-table"])
def test_a_seeded_bug_is_found_and_shrunk_by_the_tools_of_caches(name: str) -> None:
    report = check(BUGS[name], name=name, seconds=300, seed=1, programs=1000)
    assert [finding.law for finding in report.violations] == [SERVED], report.error
    assert report.violations[0].steps <= MOST_OPERATIONS


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_the_two_statements_of_the_model_agree_where_nothing_is_paged(variant: type[EngineAdapter]) -> None:
    """The model's own rows with attention over all of them at once, in one piece: what is left between the two is rounding."""
    config = variant.config
    if config.storage != "plain":
        pytest.skip("without a store nothing is quantised")
    model, oracle = model_of(config)
    tokens = tuple(torch.randint(0, 2**40, (90,), generator=torch.Generator().manual_seed(2)).tolist())

    def attention(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(heads, 1).transpose(0, 1) for part in (key, value))
        apart = torch.arange(90)[:, None] - torch.arange(90)
        window = config.windows[layer % len(config.windows)] or 90
        seen = (apart >= 0) & (apart < window)
        return torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, attn_mask=seen, scale=config.scale
        ).transpose(0, 1)

    logits = model.forward(model.embed(tokens, "a"), torch.arange(90), attention)
    expected = oracle.logits(tokens, "a")
    assert expected.std() > 0.5
    assert (logits - expected).abs().max() < 1e-5


def test_steps_end_in_the_order_of_their_launch() -> None:
    """Any other answer would be lost, or would make the device wait for what it was never given."""
    engine = Engine(model_of(ModelConfig())[0], num_blocks=2, block_size=4)
    with pytest.raises(UnknownStep, match="cannot wait for step 7: no step is open"):
        engine.end_step(7)
    engine.admit(0, (1, 2))
    engine.extend(0, 2)
    first, second = engine.begin_step(), engine.begin_step()
    with pytest.raises(UnknownStep, match=f"step {first} is the oldest open one"):
        engine.end_step(second)
    assert engine.end_step(first).keys() == {0}
    assert engine.end_step(second) == {}


def test_an_engine_keeps_nothing_of_who_is_gone() -> None:
    engine = Engine(model_of(ModelConfig())[0], num_blocks=2, block_size=4)
    for leave in (engine.release, engine.preempt):
        engine.admit(0, (1, 2), {"adapter": "a"})
        engine.extend(0, 2)
        leave(0)
        assert not engine._passes
        engine.release(0)
        assert not engine._adapters


def test_a_number_that_float32_rounds_to_another_level_is_no_fault() -> None:
    """Where a small number of fp8 lies between two levels, the error that counts is that of its row, which has larger ones."""
    deep = type("Deep", (EngineAdapter,), {"config": ModelConfig(layers=6, storage="fp8", seed=5)})
    result = run((Admit(0, (29, 60, 47, 53, 18, 42, 1, 15)), *served(0, 8)), deep, num_blocks=1, block_size=8)
    assert result.ok, result.violation or result.fault


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"kv_heads": 0}, "1 at least"),
        ({"windows": ()}, "one entry in `windows` at least"),
        ({"latent": 16, "rotary": 0}, "1 at least"),
        ({"storage": "int4"}, "choose one of plain, int8, fp8"),
        ({"q_heads": 4, "kv_heads": 3}, "evenly"),
        ({"layers": 3, "windows": (None, 5)}, "equal groups"),
        ({"head_size": 7}, "an even number"),
        ({"latent": 16, "windows": (None, 5)}, "full attention"),
    ],
)
def test_sizes_that_do_not_fit_are_named(sizes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModelConfig(**sizes)  # type: ignore[arg-type]


def test_a_layout_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="choose one of NHD, HND"):
        Engine(model_of(ModelConfig())[0], num_blocks=2, block_size=4, layout="nhd")
