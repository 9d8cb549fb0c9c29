"""What a step of the engine launches on a device: grids that fit its batch, and nothing that waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from kvproof.impl.engine.adapter import EngineAdapter, model_of
from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.variants import VARIANTS, HybridEngine, LatentEngine
from kvproof.kernels.contract import KVPool
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.plan import PrefillPlan

PREFILL, APPEND, DECODE = "prefill_kernel", "append_kernel", "decode_kernel"


class ShortSplits(PagedTriton):
    """Splits of one tile of these small heads, so that lengths show in grids."""

    split_tokens = 128


def engine(variant: type[EngineAdapter] = EngineAdapter, kernels: PagedTriton | None = None) -> Engine:
    """Blocks of 16; sequence 0 has a table for 300 tokens, most of which are not computed yet."""
    model, _ = model_of(variant.config)
    made = Engine(
        model, num_blocks=64 * len(variant.config.windows), block_size=16, kernels=kernels or ShortSplits(), layout=variant.layout
    )
    for seq, tokens in ((0, 300), (1, 40), (2, 5)):
        made.admit(seq, range(tokens))
    return made


def launched(counts: dict[int, int]) -> list[tuple[str, tuple[int, int, int]]]:
    """Kernels and grids of the attention of one step that computes `counts` new tokens of each sequence, of sequence 0 from position 128 on."""
    found: list[tuple[str, tuple[int, int, int]]] = []
    made, machine = engine(), Machine()
    for seq in counts:
        made.extend(seq, 300)  # the table is as wide as the whole prompt, whatever the pass computes
    machine.on_launch.append(lambda lowered, bound, grid: found.append((lowered.program.kernel.name, grid)))
    passes = [Pass(seq, 0 if seq else 128, tuple(range(count))) for seq, count in counts.items()]
    with machine.installed():
        made.worker.mirror.apply(made.cache.begin_step())
        made.worker.forward(made.worker.batch(passes))
    assert machine.violations == []
    return [(name, grid) for name, grid in found if name in (PREFILL, APPEND, DECODE)]


def test_a_batch_of_appends_launches_no_prefill_and_no_split_beyond_its_longest_sequence() -> None:
    # In each of two layers 131 tokens: two splits of 128, though the table has room for three.
    assert launched({0: 3}) == [(APPEND, (2, 2, 1))] * 2


def test_a_decode_launches_no_split_beyond_its_longest_sequence() -> None:
    assert launched({0: 1}) == [(DECODE, (2, 2, 1))] * 2


def test_a_batch_with_a_prefill_launches_both() -> None:
    assert [name for name, _ in launched({0: 20})] == [APPEND, PREFILL] * 2


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_the_longest_sequence_and_the_longest_pass_decide_wherever_they_stand(order: tuple[int, int]) -> None:
    assert launched({seq: {0: 3, 2: 1}[seq] for seq in order}) == [(APPEND, (2, 2, 2))] * 2
    assert [name for name, _ in launched({seq: {0: 20, 2: 1}[seq] for seq in order})] == [APPEND, PREFILL] * 2


class CountsPlans(PagedTriton):
    """Counts the plans of prefills."""

    def __init__(self) -> None:
        super().__init__()
        self.plans = 0

    def prefill_plan(self, pool: KVPool, query: torch.Tensor, query_lens: torch.Tensor) -> PrefillPlan:
        """One more."""
        self.plans += 1
        return super().prefill_plan(pool, query, query_lens)


@pytest.mark.parametrize("variant", [EngineAdapter, HybridEngine, LatentEngine], ids=lambda variant: variant.__name__)
def test_the_layers_of_a_step_share_a_plan_and_steps_do_not(variant: type[EngineAdapter], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = CountsPlans()
    made = engine(variant, kernels)
    made.extend(0, 40)
    made.worker.mirror.apply(made.cache.begin_step())
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    assert made.config.layers > 1
    for tokens, plans in ((1, 0), (30, 1), (30, 2)):
        made.worker.forward(made.worker.batch([Pass(0, 2, tuple(range(tokens)))]))
        assert kernels.plans == plans


class Waits(TorchDispatchMode):
    """Refuses what would read a result on the host."""

    refused = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "repeat_interleave")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in self.refused or masks:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def test_a_mask_and_a_number_are_seen_as_waiting() -> None:
    for wait in (lambda: torch.ones(1).item(), lambda: torch.ones(2)[torch.ones(2) > 0], lambda: torch.ones(2).nonzero()):
        with pytest.raises(AssertionError, match="waits for the device"), Waits():
            wait()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize("counts", [{0: 1, 1: 1}, {0: 3, 1: 1}, {0: 30, 1: 2}], ids=["decode", "append", "prefill"])
def test_a_forward_pass_waits_for_the_device_nowhere(
    variant: type[EngineAdapter], counts: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(variant)
    for seq in counts:
        made.extend(seq, 40)
    made.worker.mirror.apply(made.cache.begin_step())
    batch: Batch = made.worker.batch([Pass(seq, 2, tuple(range(count))) for seq, count in counts.items()])
    # What is prepared for a launch is all that could wait.
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    with Waits():
        made.worker.forward(batch)
