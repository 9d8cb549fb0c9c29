"""Order between programs: what atomics release and acquire, and what a kernel promises to the compiler."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kvproof.kernels.machine import Machine, installed
from kvproof.kernels.machine import memory as memory_module

PARTS = 8
SEEDS = range(6)


@triton.jit
def merge_last(x, parts, count, out, N: tl.constexpr, PARTS: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr, FAULT: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    lane, all_parts = tl.arange(0, N), tl.arange(0, PARTS)
    if FAULT == "counter set in the kernel":  # noqa: SIM102 - Triton evaluates both sides of an `and`
        if part == 0:
            tl.store(count + row, 0)
    if FAULT != "counted first":
        tl.store(parts + row * PARTS + part, tl.sum(tl.load(x + (row * PARTS + part) * N + lane)))
    before = tl.atomic_add(count + row, 1, sem=SEM, scope=SCOPE)
    if FAULT == "counted first":
        tl.store(parts + row * PARTS + part, tl.sum(tl.load(x + (row * PARTS + part) * N + lane)))
    if FAULT == "count read again":
        before = tl.load(count + row) - 1
    is_last = part == PARTS - 1 if FAULT == "last by number" else before == PARTS - 1
    if is_last:
        tl.store(out + row, tl.sum(tl.load(parts + row * PARTS + all_parts)))
        tl.store(parts + row * PARTS + all_parts, tl.zeros((PARTS,), tl.float32))
        tl.store(count + row, 0)


def run_merge(
    *, sem: str = "acq_rel", scope: str = "gpu", fault: str = "", order_seed: int | None = None, chunk: int = 1 << 18
) -> set[str]:
    x, parts, count, out = torch.randn(3, PARTS, 16), torch.zeros(3, PARTS), torch.zeros(3, dtype=torch.int32), torch.zeros(3)
    with installed(order_seed=order_seed, chunk_elements=chunk) as machine:
        merge_last[(3, PARTS)](x, parts, count, out, N=16, PARTS=PARTS, SEM=sem, SCOPE=scope, FAULT=fault)
    if not machine.violations:
        assert torch.allclose(out, x.sum((1, 2)), atol=1e-5)
        assert not count.any()
    return {found.kind for found in machine.violations}


@pytest.mark.parametrize("chunk", [1 << 18, 64])
@pytest.mark.parametrize("order_seed", [None, *SEEDS])
def test_the_last_to_arrive_may_merge_the_parts_of_all(order_seed: int | None, chunk: int) -> None:
    """Together, and in chunks of four programs, in the order of their numbers and in others."""
    assert run_merge(order_seed=order_seed, chunk=chunk) == set()


@pytest.mark.parametrize(("sem", "scope"), [("relaxed", "gpu"), ("release", "gpu"), ("acquire", "gpu"), ("acq_rel", "cta")])
def test_an_atomic_that_orders_nothing_is_not_enough(sem: str, scope: str) -> None:
    assert "read-write-conflict" in run_merge(sem=sem, scope=scope)


@pytest.mark.parametrize("fault", ["counted first", "last by number", "count read again", "counter set in the kernel"])
def test_a_merge_that_does_not_wait_for_all_is_seen_in_some_order(fault: str) -> None:
    found = set.union(*(run_merge(fault=fault, order_seed=seed) for seed in SEEDS))
    assert found & {"read-write-conflict", "write-conflict"}


@triton.jit
def hand_on(value, first, second, out, SECOND_SEM: tl.constexpr):
    """Program 0 writes, 1 waits for it and tells 2, which reads what 0 wrote. In step, nobody has to wait."""
    program = tl.program_id(0)
    if program == 0:
        tl.store(value, 7.0)
        tl.atomic_xchg(first, 1, sem="release")
    if program == 1:  # noqa: SIM102 - Triton evaluates both sides of an `and`
        if tl.atomic_add(first, 0, sem="acquire") == 1:
            tl.atomic_xchg(second, 1, sem=SECOND_SEM)
    if program == 2:  # noqa: SIM102 - Triton evaluates both sides of an `and`
        if tl.atomic_cas(second, 1, 2, sem="acquire") == 1:
            tl.store(out, tl.load(value))


@pytest.mark.parametrize(("second", "expected"), [("acq_rel", set()), ("relaxed", {"read-write-conflict"})])
def test_what_was_acquired_is_released_with_the_rest(second: str, expected: set[str]) -> None:
    value, out = torch.zeros(1), torch.zeros(1)
    first, other = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with installed() as machine:
        hand_on[(3,)](value, first, other, out, SECOND_SEM=second)
    assert {found.kind for found in machine.violations} == expected


@triton.jit
def take_numbers(count, out):
    tl.store(out + tl.program_id(0), tl.atomic_add(count, 1))


def test_programs_arrive_in_any_order() -> None:
    orders = set()
    for seed in (None, 0, 1, 1):
        out = torch.zeros(6, dtype=torch.int32)
        with installed(order_seed=seed):
            take_numbers[(6,)](torch.zeros(1, dtype=torch.int32), out)
        assert sorted(out.tolist()) == list(range(6))
        orders.add(tuple(out.tolist()))
    assert tuple(range(6)) in orders
    assert len(orders) == 3


@triton.jit
def promising(x, n, out, N: tl.constexpr):
    tl.assume(n > 0)
    start = tl.multiple_of(n * 2, 16)
    lane = tl.max_contiguous(tl.multiple_of((start + tl.arange(0, N)) % n, N), N)
    tl.store(out + lane, tl.load(x + lane))


@pytest.mark.parametrize(
    ("n", "broken"), [(8, []), (24, []), (12, ["tl.multiple_of promises multiples of 16"]), (-8, ["tl.assume does not hold"])]
)
def test_promises_to_the_compiler_are_held_to(n: int, broken: list[str]) -> None:
    """Those about tiles are not: kernels make them where a mask or a modulo makes them harmless."""
    x, out = torch.zeros(64), torch.zeros(64)
    with installed() as machine:
        promising[(1,)](x, n, out, N=4)
    assert [found.detail for found in machine.violations if found.kind == "assertion"] == broken


@triton.jit
def with_tuples(strides, sizes, x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    at = tl.program_id(0) * strides[0] + lane * strides[1][0]
    tl.store(out + at, tl.load(x + at, mask=lane < sizes[0], other=0.0) * strides[1][1])


@pytest.mark.parametrize("inner", [1, 2])
def test_ones_within_tuples_are_constants(inner: int) -> None:
    x, out = torch.randn(2, 32), torch.zeros(2, 32)
    with installed() as machine:
        with_tuples[(2,)]((32, (inner, 3)), (16, None), x, out, N=16)
    assert torch.equal(out[:, ::inner][:, :16], 3 * x[:, ::inner][:, :16])
    assert machine.violations == []


@triton.jit
def wild(address, out, N: tl.constexpr):
    pointer = (tl.load(address) + tl.program_id(0) * 4096).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, N), tl.load(pointer + tl.arange(0, N)))


def test_a_tile_of_wild_addresses_takes_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches, living = [], memory_module._living
    monkeypatch.setattr(memory_module, "_living", lambda: searches.append(1) or living())
    machine = Machine()
    with machine.installed():
        wild[(64,)](torch.tensor([4096]), torch.zeros(64), N=64)
    assert {found.kind for found in machine.violations} == {"unknown-address"}
    assert machine.violations_found.total == 1
    assert len(searches) == 2
