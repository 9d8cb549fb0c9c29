"""The production cache and the paged kernels keep every law together, on real tensors, whatever the storage; each seeded bug breaks one."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from kvproof.fuzz.check import check
from kvproof.impl.engine.config import ModelConfig
from kvproof.kernels.contract import KVPool
from kvproof.kernels.machine import installed
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.kernels.paged.torch_path import PagedTorch
from kvproof.models.ops import Admit, BeginStep, EndStep, Fork, Truncate
from kvproof.properties.engine.on_machine import TritonOnMachine
from kvproof.properties.engine.schedules import COPIED, SWAPPED, TENSORS, served
from kvproof.properties.lockstep import SERVED, run
from kvproof.properties.machine_runs import run_machine
from kvproof.properties.tensors.adapter import AttentionAdapter
from kvproof.properties.tensors.bugs import BUGS
from kvproof.properties.tensors.lowbit import LowBitAdapter

PROGRAMS = 10
"""Random programs for each storage; the nightly run tries thousands."""


class Latents(AttentionAdapter):
    config = ModelConfig(latent=16)


class Int8Latents(AttentionAdapter):
    config = ModelConfig(latent=16, storage="int8")


class Windows(AttentionAdapter):
    config = ModelConfig(windows=(None, 5), layers=2, kv_heads=1)
    layout = "HND"


class Int8(AttentionAdapter):
    config = ModelConfig(storage="int8", kv_heads=4)


class Fp8(AttentionAdapter):
    config = ModelConfig(storage="fp8")


STORAGES = (AttentionAdapter, Latents, Int8Latents, Windows, Int8, Fp8, LowBitAdapter)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda storage: storage.__name__)
def test_after_every_step_every_sequence_attends_to_its_own_history(storage: type[AttentionAdapter]) -> None:
    report = check(storage, name="attention", seconds=60, seed=1, programs=PROGRAMS)
    assert report.verdict == "held", report.violations or report.error
    assert report.laws[SERVED].exercised >= PROGRAMS


@pytest.mark.nightly
@pytest.mark.parametrize("storage", STORAGES, ids=lambda storage: storage.__name__)
def test_after_every_step_every_sequence_attends_to_its_own_history_for_long(storage: type[AttentionAdapter]) -> None:
    report = check(storage, name="attention", seconds=300, seed=random.SystemRandom().getrandbits(32))
    assert report.verdict == "held", report.violations or report.error


def test_the_state_machine_drives_cache_and_kernels() -> None:
    deadline = time.monotonic() + 60
    programs, _, exercised, found = run_machine(AttentionAdapter, seed=3, examples=8, steps=30, deadline=deadline, op_seconds=10.0)
    assert found is None, found
    assert programs >= 8
    assert exercised[SERVED] > 0


class LowBitOnMachine(LowBitTriton):
    """The Triton kernels of the low-bit scheme, on the IR machine."""

    def store(self, *arguments: Any) -> torch.Tensor:
        with installed() as machine:
            done = super().store(*arguments)
        assert not machine.violations, machine.violations
        return done

    def attend(self, *arguments: Any, **options: Any) -> torch.Tensor:
        with installed() as machine:
            out = super().attend(*arguments, **options)
        assert not machine.violations, machine.violations
        return out

    def copy_blocks(self, *arguments: Any) -> None:
        with installed() as machine:
            super().copy_blocks(*arguments)
        assert not machine.violations, machine.violations

    def copy_rings(self, *arguments: Any) -> None:
        with installed() as machine:
            super().copy_rings(*arguments)
        assert not machine.violations, machine.violations


@pytest.mark.parametrize(
    ("storage", "kernels", "schedules"),
    [
        (AttentionAdapter, TritonOnMachine, (COPIED, SWAPPED)),
        (Int8, TritonOnMachine, (COPIED, SWAPPED)),
        (Int8Latents, TritonOnMachine, (COPIED, SWAPPED)),
        (LowBitAdapter, LowBitOnMachine, (TENSORS["low-bit-copies-leave-the-scales"], TENSORS["a-rejection-takes-the-count-back"])),
    ],
    ids=["plain", "int8", "int8-latent", "low-bit"],
)
def test_the_triton_kernels_do_so_too(storage: type[AttentionAdapter], kernels: type, schedules: Any) -> None:
    adapter = type(storage.__name__, (storage,), {"kernels": kernels})
    for blocks, size, ops in schedules:
        result = run(ops, adapter, num_blocks=blocks, block_size=size)
        assert result.ok, result.violation or result.fault
        assert len(result.ran) == len(ops)


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_seen(name: str) -> None:
    blocks, size, ops = TENSORS[name]
    faulty = BUGS[name]
    result = run(ops, faulty, num_blocks=blocks, block_size=size)
    assert result.violation is not None, result.fault
    assert result.violation.law == SERVED
    base = LowBitAdapter if issubclass(faulty, LowBitAdapter) else AttentionAdapter
    assert run(ops, type("Sound", (base,), {"config": faulty.config}), num_blocks=blocks, block_size=size).ok


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUGS)
def test_random_programs_see_a_seeded_bug(name: str) -> None:
    report = check(BUGS[name], name=name, seconds=300, seed=1, programs=1000)
    assert [finding.law for finding in report.violations] == [SERVED], report.error


def test_an_idle_sequence_is_looked_at_in_every_step() -> None:
    """A fork that nobody has extended yet shows what it shares as soon as a step runs."""
    ops = (Admit(0, (0,)), *served(0, 1), Fork(0, 1), BeginStep(), EndStep())
    result = run(ops, BUGS["a-fork-leaves-the-window"], num_blocks=1, block_size=16)
    assert result.violation is not None
    assert "sequence 1, position 0, layer 0: the attention of a look is NaN" in result.violation.reason


@pytest.mark.parametrize("kernels", [PagedTorch, TritonOnMachine])
@pytest.mark.parametrize("query_lens", [None, torch.tensor([3], dtype=torch.int32)], ids=["decode", "prefill"])
def test_a_block_that_a_window_has_passed_may_hold_anything(kernels: Any, query_lens: Any) -> None:
    """The cache has given it away: what its next holder left there, NaN included, must not be seen."""
    rows = 1 if query_lens is None else 3
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.randn(4, 4, 1, 8, generator=generator) for _ in range(2))
    query, tables, lens = torch.randn(rows, 2, 8, generator=generator), torch.tensor([[3, 1, 2]], dtype=torch.int32), torch.tensor([12])
    found = []
    for garbage in (0.0, float("nan")):
        key[3], value[3] = garbage, garbage
        pool = KVPool(key.clone(), value.clone(), 4)
        found.append(kernels().attend(pool, query, tables, lens.to(torch.int32), scale=1.0, query_lens=query_lens, window=5))
    assert torch.equal(*found)


def test_low_bit_storage_refuses_what_it_cannot_take_back() -> None:
    adapter = LowBitAdapter(num_blocks=4, block_size=16)
    assert not adapter.capabilities().prefix
    ops = (*TENSORS["a-rejection-takes-the-count-back"][2], Truncate(0, 3))
    result = run(ops, LowBitAdapter, num_blocks=4, block_size=16)
    assert result.ok, result.violation or result.fault
    assert result.refusals["truncate"] == 1
