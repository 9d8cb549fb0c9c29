"""Memory: sparse pools, ownership, uninitialised bytes, bounded grids, launch wrappers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kvproof.kernels.machine import Machine, Watch, installed, sparse_tensor


@triton.jit
def gather_rows(pool, table, out, stride, N: tl.constexpr):
    row = tl.load(table + tl.program_id(0)).to(tl.int64)
    lane = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + lane, tl.load(pool + row * stride + lane))


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + (2.0 if EVEN else 1.0), mask=at < n)


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


@triton.jit
def rows_of(descriptor, out, N: tl.constexpr):
    at = tl.program_id(0) * 2
    values = descriptor.load([at, 0])
    tl.store(out + (at + tl.arange(0, 2))[:, None] * N + tl.arange(0, N)[None, :], values)


def test_tensor_descriptors_from_the_host() -> None:
    x, out = torch.randn(3, 32), torch.zeros(4, 32)
    with installed() as machine:
        rows_of[(2,)](TensorDescriptor.from_tensor(x, [2, 32]), out, N=32)
    assert torch.equal(out[:3], x)
    assert out[3].tolist() == [0.0] * 32
    assert machine.violations == []


def test_a_pool_of_two_to_the_forty_bytes() -> None:
    pool = sparse_tensor((2**32, 64), torch.float32)
    pool[2**32 - 1] = 7.0
    out = torch.zeros(2, 64)
    table = torch.tensor([0, 2**32 - 1])
    with installed() as machine:
        gather_rows[(2,)](pool, table, out, 64, N=64)
    assert out[:, 0].tolist() == [0.0, 7.0]
    assert machine.violations == []


def test_larger_than_that_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        sparse_tensor((2**33, 64), torch.float32)


def test_a_program_may_read_what_its_row_owns_and_nothing_else() -> None:
    pool, table, out = torch.ones(4, 64), torch.tensor([[2], [3]], dtype=torch.int32), torch.zeros(2, 64)
    machine = Machine()
    slots = np.repeat(np.arange(4, dtype=np.int32), 64)
    readable = np.array([[False, False, True, False], [True, False, False, False]])
    owners = [f"slot {slot}" for slot in range(4)]
    machine.memory.adopt(pool, "pool").watch = Watch(4, slots, readable, np.zeros(4, bool), owners)
    machine.memory.adopt(table, "table").watch = Watch(4, row_of=np.arange(2, dtype=np.int32))
    with machine.installed():
        gather_rows[(2,)](pool, table, out, 64, N=64)
    (found,) = machine.violations
    assert (found.kind, found.program, found.tensor, found.index, found.owner) == ("unowned-read", (1, 0, 0), "pool", (3, 0), "slot 3")


def test_reading_before_writing_is_seen() -> None:
    x, machine = torch.empty(64), Machine()
    machine.memory.declare_uninitialised(x)
    with machine.installed():
        add_one[(1,)](x, 64, BLOCK=64)
        assert {found.kind for found in machine.violations} == {"uninitialised-read"}
        machine.violations_found.clear()
        add_one[(1,)](x, 64, BLOCK=64)
    assert machine.violations == []


def test_tuned_kernels_run_their_first_configuration() -> None:
    x = torch.zeros(64)
    with installed():
        tuned[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, 64)
    assert x.tolist() == [2.0] * 64


def test_launches_go_back_to_triton_afterwards() -> None:
    before = triton.runtime.jit.JITFunction.run
    with installed():
        assert triton.runtime.jit.JITFunction.run is not before
    assert triton.runtime.jit.JITFunction.run is before


def test_a_large_grid_needs_little_memory() -> None:
    """A million programs of 64 lanes: at once they would take gigabytes of intermediate values."""
    code = (
        "import resource, torch\n"
        "from kvproof.kernels.machine import installed\n"
        "from kvproof.kernels.plain.kernels import copy_kernel\n"
        "pool = torch.ones(2, 1024, 1024)\n"
        "pairs = torch.tensor([[0, 1]])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with installed() as machine:\n"
        "    copy_kernel[(1, 1024, 1024)](pool[:, :, :, None].expand(2, 1024, 1024, 1), pairs, 2**20, 1024, 1, LAST=1, PADDED=1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 200_000, result.stdout


def test_importing_the_package_needs_no_torch() -> None:
    code = "import sys, kvproof.kernels; assert not {'torch', 'triton', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_a_view_with_gaps_are_told_from_rows_that_reach_into_one() -> None:
    both = torch.arange(4 * 2 * 32 * 64, dtype=torch.float32).view(4, 2, 32, 64)
    for stride, kinds in ((both.stride(0), set()), (both.stride(0) + 32, {"out-of-bounds"})):
        out = torch.zeros(2, 2048)
        with installed() as machine:
            gather_rows[(2,)](both[:, 0], torch.tensor([0, 2]), out, stride, N=2048)
        assert {found.kind for found in machine.violations} == kinds
        if not kinds:
            assert torch.equal(out, both[[0, 2], 0].reshape(2, 2048))
