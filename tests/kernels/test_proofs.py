"""Address proofs: proved where right, a counterexample with its values where wrong, and a reason where neither."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl

pytest.importorskip("z3")

from kvproof.kernels.contract import KernelCapabilities
from kvproof.kernels.laws import overflow
from kvproof.kernels.laws.calls import Launch
from kvproof.kernels.machine import installed, sparse_tensor
from kvproof.kernels.machine.launch import flatten
from kvproof.kernels.plain.triton_kernels import PlainTriton
from kvproof.kernels.proofs import prove
from kvproof.kernels.proofs.prove import Proof, prove_launch


@triton.jit
def narrow_rows(pool, table, out, stride, N: tl.constexpr):
    row = tl.load(table + tl.program_id(0))
    lane = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + lane, tl.load(pool + row * stride + lane))


@triton.jit
def wide_rows(pool, table, out, stride, N: tl.constexpr):
    row = tl.load(table + tl.program_id(0)).to(tl.int64)
    lane = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + lane, tl.load(pool + row * stride + lane))


@triton.jit
def strided_loop(x, out, n, N: tl.constexpr):
    lane = tl.arange(0, N)
    pointer = x + lane
    total = tl.zeros((N,), tl.float32)
    for at in range(0, n, N):
        total += tl.load(pointer, mask=at + lane < n, other=0.0)
        pointer += N
    tl.store(out + lane, total)


@triton.jit
def loop_without_a_mask(x, out, n, N: tl.constexpr):
    lane = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for at in range(0, n, N):
        total += tl.load(x + at + lane)
    tl.store(out + lane, total)


@triton.jit
def searched(x, out, n, N: tl.constexpr):
    at = 0
    while tl.load(x + at) < n:
        at = at * 2 + 1
    tl.store(out + at, 1.0)


@triton.jit
def binary_search(starts, x, out, seqs, N: tl.constexpr):
    """Which sequence a program belongs to, as kernels over ragged batches look it up."""
    left, right = 0, seqs
    while left < right:
        middle = (left + right) // 2
        if tl.load(starts + middle) <= tl.program_id(0):
            left = middle + 1
        else:
            right = middle
    tl.store(out + left, tl.load(x + tl.load(starts + left)))


@triton.jit
def split_rows(x, out, splits, length, N: tl.constexpr):
    """A share of a row, whose size is a quotient of two numbers that are not known when the kernel is compiled."""
    share = length // tl.load(splits)
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.load(x + lane, mask=lane < share))


def _prove(kernel, grid, args, **constants) -> list[Proof]:
    found = []
    with installed() as machine:
        machine.on_launch.append(lambda lowered, bound, shape: found.append((lowered.program, flatten(bound, lowered.constants), shape)))
        kernel[grid](*args, **constants)
    return prove_launch(*found[0])


def _pool_arguments(rows: list[int]) -> tuple[torch.Tensor, ...]:
    return sparse_tensor((2**26, 64), torch.float32), torch.tensor(rows, dtype=torch.int32), torch.zeros(len(rows), 64)


def test_wide_addresses_are_proved() -> None:
    proofs = _prove(wide_rows, (2,), (*_pool_arguments([0, 2**26 - 1]), 64), N=64)
    assert [proof.outcome for proof in proofs] == ["proved"] * 3


def test_a_wrap_is_found_with_the_values_that_show_it() -> None:
    proofs = _prove(narrow_rows, (2,), (*_pool_arguments([0, 2**26 - 1]), 64), N=64)
    (wrong,) = [proof for proof in proofs if proof.outcome == "counterexample"]
    assert "arith.muli" in wrong.reason
    assert "32 bits do not hold" in wrong.reason
    assert dict(wrong.model)["table"] * 64 >= 2**31


def test_the_machine_sees_the_same_wrap() -> None:
    with installed() as machine:
        narrow_rows[(2,)](*_pool_arguments([0, 2**25]), 64, N=64)
    assert [found.kind for found in machine.violations] == ["out-of-bounds"]
    assert machine.violations[0].program == (1, 0, 0)


def test_loops_are_proved_by_induction() -> None:
    proofs = _prove(strided_loop, (1,), (torch.ones(1000), torch.zeros(64), 1000), N=64)
    assert [proof.outcome for proof in proofs] == ["proved", "proved"]


def test_a_loop_that_runs_past_the_end_is_found() -> None:
    proofs = _prove(loop_without_a_mask, (1,), (torch.ones(1000), torch.zeros(64), 1000), N=64)
    assert [proof.outcome for proof in proofs] == ["counterexample", "proved"]
    assert "of a tensor of 1000" in proofs[0].reason


def test_what_a_search_decides_is_unknown_and_says_why() -> None:
    proofs = _prove(searched, (1,), (torch.arange(64), torch.zeros(64), 10), N=64)
    assert {proof.outcome for proof in proofs} == {"unknown"}
    assert "scf.while" in proofs[-1].reason


def test_a_binary_search_stays_where_it_started() -> None:
    starts = torch.tensor([0, 3, 5, 9], dtype=torch.int32)
    found = _prove(binary_search, (9,), (starts, torch.zeros(10), torch.zeros(4), 3), N=16)
    assert {proof.outcome for proof in found} == {"proved"}, found


def test_a_binary_search_that_starts_too_far_is_not_proved() -> None:
    starts = torch.tensor([0, 3, 5, 9], dtype=torch.int32)
    found = _prove(binary_search, (9,), (starts, torch.zeros(10), torch.zeros(4), 5), N=16)
    assert "unknown" in {proof.outcome for proof in found}


def test_a_quotient_is_no_larger_than_its_dividend() -> None:
    found = _prove(split_rows, (1,), (torch.zeros(12), torch.zeros(16), torch.tensor([1, 4], dtype=torch.int32), 12), N=16)
    assert {proof.outcome for proof in found} == {"proved"}, found
    [load] = [
        proof
        for proof in _prove(split_rows, (1,), (torch.zeros(8), torch.zeros(16), torch.tensor([1, 4], dtype=torch.int32), 12), N=16)
        if proof.outcome != "proved"
    ]
    assert (load.outcome, "not constant" in load.reason) == ("unknown", True)


def test_equal_launches_are_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = prove.prove_launch
    monkeypatch.setattr(prove, "prove_launch", lambda *launch: made.append(launch) or real(*launch))
    launches = []
    with installed() as machine:
        machine.on_launch.append(lambda lowered, bound, shape: launches.append(Launch(lowered.program, bound, lowered.constants, shape)))
        for rows in ([0, 2**26 - 1], [0, 2**26 - 1], [2**26 - 1, 0], [0, 2**25]):
            wide_rows[(2,)](*_pool_arguments(rows), 64, N=64)
    prover = overflow._Prover()
    proofs = prover.prove(tuple(launches))
    assert len(made) == 2, "the last one's rows have another range"
    assert [proof.outcome for proof in proofs] == ["proved"] * 12
    assert prover.prove(tuple(launches)) == proofs
    assert len(made) == 2
    assert prover.seconds_left < overflow.PROOF_SECONDS


def test_what_there_was_no_time_for_is_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "PROOF_SECONDS", -1.0)
    claims = KernelCapabilities(features=frozenset({"decode"}), max_pool_bytes=2**33)
    law = overflow.check_overflow(PlainTriton, claims)
    assert law.verdict == "held"
    assert re.search(r"; 0 of (\d+) accesses proved, \1 unknown, .* because the time for proofs was used up", law.reason), law.reason
