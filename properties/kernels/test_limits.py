"""Kernels that never end, kernels that wait for each other, and the order in which a run ends."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvproof.kernels.check import Progress, check_kernels
from kvproof.kernels.contract import KVPool
from kvproof.kernels.plain.torch_kernels import PlainTorch
from kvproof.kernels.plain.triton_kernels import PlainTriton

CALL_SECONDS = 0.5


@triton.jit
def endless(x):
    value = tl.load(x)
    while value > 0:
        value = value + 1.0
    tl.store(x, value)


@triton.jit
def huge(x, trips):
    value = 0.0
    for _ in range(trips):
        value += 1.0
    tl.store(x, value)


@triton.jit
def waiting(x):
    while tl.atomic_add(x, 0) == 0:
        pass


class Endless(PlainTriton):
    def attend(self, pool: KVPool, query: torch.Tensor, *args, **options) -> torch.Tensor:
        endless[(4,)](torch.ones(4))
        return super().attend(pool, query, *args, **options)


class Huge(PlainTriton):
    def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
        huge[(1,)](torch.zeros(4), 2**31 - 1)


class Waiting(PlainTriton):
    def attend(self, pool: KVPool, query: torch.Tensor, *args, **options) -> torch.Tensor:
        waiting[(4,)](torch.zeros(4, dtype=torch.int32))
        return super().attend(pool, query, *args, **options)


class Stubborn(PlainTorch):
    def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001 - what an adapter may do
                continue


def test_a_while_loop_that_never_ends_is_stopped_and_named() -> None:
    report = check_kernels(Endless, budget_seconds=5, call_seconds=CALL_SECONDS)
    broken = report.law("paged-equals-contiguous")
    assert broken.verdict == "broken", str(report)
    assert "attend did not return" in broken.reason
    assert "in a while loop of 'endless'" in broken.reason
    assert [law.law for law in report.laws if law.verdict == "broken"] == ["paged-equals-contiguous"]


def test_a_loop_of_too_many_trips_is_not_even_tried() -> None:
    report = check_kernels(Huge, budget_seconds=5, laws={"copy-is-complete"})
    assert "a loop of 'huge' at" in report.law("copy-is-complete").reason
    assert "2147483647 trips" in report.law("copy-is-complete").reason


def test_programs_that_wait_for_each_other_cannot_be_judged() -> None:
    report = check_kernels(Waiting, budget_seconds=5, call_seconds=CALL_SECONDS, laws={"paged-equals-contiguous"})
    assert report.verdict == "error"
    assert "while loop of 'waiting'" in report.error
    assert "waits for another program" in report.error


def test_an_adapter_that_takes_every_exception_is_stopped() -> None:
    report = check_kernels(Stubborn, budget_seconds=5, call_seconds=CALL_SECONDS)
    assert "store did not return: it ran for more than" in report.law("paged-equals-contiguous").reason


def test_a_law_that_was_not_asked_for_does_not_hide_that_a_call_did_not_return() -> None:
    report = check_kernels(Stubborn, budget_seconds=5, call_seconds=CALL_SECONDS, laws={"batch-invariant"})
    assert report.verdict == "error"
    assert "store did not return" in report.error


def test_progress_is_told() -> None:
    told: list[Progress] = []
    check_kernels(PlainTriton, budget_seconds=0.1, on_progress=told.append, laws={"paged-equals-contiguous", "no-address-overflow"})
    assert {progress.phase for progress in told} == {"cases", "addresses"}
    assert [progress.cases for progress in told] == sorted(progress.cases for progress in told)
    assert told[-1].exercised["paged-equals-contiguous"] > 0
