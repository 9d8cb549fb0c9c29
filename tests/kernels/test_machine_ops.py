"""Every operation against Triton's own interpreter, to the last bit, or against torch where the interpreter is wrong or silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvproof.kernels.machine import MachineError, UnsupportedOperationError, installed
from kvproof.kernels.machine.interpreter import InterpreterError

from . import op_kernels

PATH = Path(op_kernels.__file__)
PROGRAMS, N = 5, 512


def _inputs(name: str) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    if name in op_kernels.INTEGERS:
        x = rng.integers(-(2**31), 2**31, PROGRAMS * N).astype(np.int32)
        y = rng.integers(-1000, 1000, PROGRAMS * N).astype(np.int32)
    else:
        x, y = (2 * rng.standard_normal((2, PROGRAMS * N))).astype(np.float32)
    return [x, y, np.zeros_like(x)]


@pytest.mark.parametrize("name", [name for name in (*op_kernels.INTEGERS, *op_kernels.FLOATS) if name not in ("narrow", "dots")])
def test_equals_the_interpreter_bit_for_bit(name: str, interpreter: Any) -> None:
    arrays = _inputs(name)
    try:
        _, expected = interpreter.run(PATH, name, (PROGRAMS,), arrays, {"N": N})
    except InterpreterError as error:
        pytest.skip(f"the interpreter of this Triton release refuses the kernel: {error}")
    actual = [torch.from_numpy(array.copy()) for array in arrays]
    with installed() as machine:
        getattr(op_kernels, name)[(PROGRAMS,)](*actual, N=N)
    assert machine.violations == []
    for want, got in zip(expected, actual, strict=True):
        assert want.tobytes() == got.numpy().tobytes()


def test_dots_equal_the_interpreter_within_float32(interpreter: Any) -> None:
    """The interpreter adds products in float32, in an order that depends on a row's place in the tile."""
    x, y, out = _inputs("dots")
    _, (_, _, expected) = interpreter.run(PATH, "dots", (PROGRAMS,), [x, y, out], {"N": N})
    actual = [torch.from_numpy(array.copy()) for array in (x, y, out)]
    with installed():
        op_kernels.dots[(PROGRAMS,)](*actual, N=N)
    np.testing.assert_allclose(actual[2].numpy(), expected, rtol=1e-5, atol=1e-2)


def test_a_row_of_a_dot_does_not_depend_on_its_place() -> None:
    x, y, turned, straight = torch.randn(16, 32), torch.randn(16, 32), torch.zeros(16, 16), torch.zeros(16, 16)
    with installed():
        op_kernels.bfloat16_dot[(1,)](x, y, straight, N=512)
        op_kernels.bfloat16_dot[(1,)](x.flip(0).contiguous(), y, turned, N=512)
    assert torch.equal(straight, turned.flip(0))


def test_narrow_floats_round_like_torch() -> None:
    """The interpreter truncates to bfloat16, where the IR rounds to nearest even."""
    x, y = torch.randn(2, PROGRAMS * N) * 3
    out = torch.zeros(PROGRAMS * N)
    with installed():
        op_kernels.narrow[(PROGRAMS,)](x, y, out, N=N)
    half = x.half() * y.half() + 0.5
    wide = x.bfloat16().float() + y.bfloat16().float()
    fp8 = x.to(torch.float8_e5m2).float() + y.to(torch.float8_e4m3fn).float()
    assert torch.equal(out, half.float() + wide + fp8 + half.view(torch.int16).float() * 1e-6)


def test_elements_that_are_mapped_take_their_own_branch() -> None:
    x, y, out = torch.randn(PROGRAMS * 64), torch.randn(PROGRAMS * 64), torch.zeros(PROGRAMS * 64)
    with installed():
        op_kernels.mapped[(PROGRAMS,)](x, y, out, N=64)
    assert torch.equal(out, torch.where(x > y, x * 2, y - x))


def test_bfloat16_dot_is_exact_in_its_operands() -> None:
    x, y, out = torch.randn(16, 32), torch.randn(16, 32), torch.zeros(16, 16)
    with installed():
        op_kernels.bfloat16_dot[(1,)](x, y, out, N=512)
    torch.testing.assert_close(out, x.bfloat16().float() @ y.bfloat16().float().T)


def test_tf32_dot_loses_thirteen_bits() -> None:
    x, y, out = torch.randn(16, 32), torch.randn(16, 32), torch.zeros(16, 16)
    with installed():
        op_kernels.tf32_dot[(1,)](x, y, out, N=512)
    error = (out - (x.double() @ y.double().T)).abs().max()
    assert 1e-5 < error < 1e-1


def test_device_library() -> None:
    x, y, out = torch.randn(512), torch.randn(512), torch.zeros(512)
    with installed():
        op_kernels.library[(1,)](x, y, out, N=512)
    torch.testing.assert_close(out, torch.tanh(x) + y.abs() ** 1.5 + torch.expm1(x) + torch.erf(y) + 2 * x + 1)


def test_pointers_read_from_memory() -> None:
    tensors = [torch.randn(64) for _ in range(3)]
    table, out = torch.tensor([tensor.data_ptr() for tensor in tensors]), torch.zeros(3, 64)
    with installed() as machine:
        op_kernels.pointer_table[(3,)](table, out, N=64)
    assert torch.equal(out, torch.stack(tensors))
    assert machine.violations == []


def test_a_pointer_to_nothing_is_a_violation() -> None:
    with installed() as machine:
        op_kernels.pointer_table[(1,)](torch.tensor([64]), torch.zeros(64), N=64)
    assert {found.kind for found in machine.violations} == {"unknown-address"}


def test_an_unknown_operation_is_named_with_its_line() -> None:
    with installed(), pytest.raises(UnsupportedOperationError, match=r"tt.elementwise_inline_asm.*'assembly'.*op_kernels.py:\d+"):
        op_kernels.assembly[(1,)](torch.zeros(64), torch.zeros(64), N=64)


def test_out_of_bounds_names_program_lane_and_element() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    with installed() as machine:
        op_kernels.out_of_bounds[(4,)](x, out, 100, N=32)
    assert torch.equal(x, out)
    (found,) = machine.violations
    assert (found.kind, found.tensor, found.index, found.program, found.lane) == ("out-of-bounds", "out", (100,), (3, 0, 0), (4,))
    assert str(found.location).endswith("op_kernels.py:" + str(found.location.line))
    assert "tl.store" in PATH.read_text().splitlines()[found.location.line - 1]


def test_a_strided_view_ends_where_its_elements_end() -> None:
    whole = torch.zeros(100, 2)
    with installed() as machine:
        op_kernels.out_of_bounds[(1,)](torch.ones(32), whole[:, 0], 32, N=32)
    assert machine.violations
    assert machine.violations[0].kind == "out-of-bounds"


def test_programs_that_write_different_values_to_one_place_conflict() -> None:
    with installed() as machine:
        op_kernels.racing[(2,)](torch.arange(64.0), torch.zeros(32), N=32)
    assert {found.kind for found in machine.violations} == {"write-conflict"}
    with installed() as machine:
        op_kernels.racing[(2,)](torch.ones(64), torch.zeros(32), N=32)
    assert machine.violations == []


def test_a_program_that_reads_what_another_writes_conflicts() -> None:
    with installed() as machine:
        op_kernels.shifting[(3,)](torch.arange(128.0), N=32)
    assert {found.kind for found in machine.violations} == {"read-write-conflict"}


def test_chunks_of_the_grid_give_the_same_result() -> None:
    arrays = [torch.from_numpy(array) for array in _inputs("control")]
    again = [array.clone() for array in arrays]
    with installed():
        op_kernels.control[(PROGRAMS,)](*arrays, N=N)
    with installed(chunk_elements=1):
        op_kernels.control[(PROGRAMS,)](*again, N=N)
    assert torch.equal(arrays[2], again[2])


def test_strict_raises_at_the_launch() -> None:
    with installed(strict=True), pytest.raises(MachineError, match="out-of-bounds"):
        op_kernels.out_of_bounds[(4,)](torch.zeros(100), torch.zeros(100), 100, N=32)


def test_device_assertions_are_checked_and_prints_kept() -> None:
    with installed() as machine:
        op_kernels.asserting[(1,)](torch.arange(32.0), 30.0, N=32)
    (found,) = machine.violations
    assert (found.kind, found.lane, found.detail) == ("assertion", (30,), "too large")
    assert machine.printed[0][1][0].shape == (1, 32)


def test_pointers_may_be_chosen_among_arguments() -> None:
    x, y, out = torch.arange(32.0), torch.arange(100.0, 132.0), torch.zeros(2, 32)
    with installed() as machine:
        op_kernels.choosing[(2,)](x, y, out, N=32)
    mixed = torch.where(torch.arange(32) % 2 == 0, x, y)
    first, second = x.clone(), y.roll(-1)
    first[31] = second[31] = 0
    assert torch.equal(out, torch.stack([first, second]) + mixed)
    assert machine.violations == []


@pytest.mark.parametrize("programs", [3, 8])
def test_a_condition_of_a_program_holds_for_all_its_lanes(programs: int) -> None:
    """With as many programs as lanes one may be taken for the other."""
    x, y, out = torch.arange(8.0), torch.arange(100.0, 108.0), torch.zeros(programs, 8)
    with installed() as machine:
        op_kernels.one_condition[(programs,)](x, y, out, N=8)
    i, p = torch.arange(8), torch.arange(programs)[:, None]
    chosen = torch.where(p % 2 == 0, y, x) * torch.where(p > 2, -1.0, 1.0)
    assert torch.equal(out, torch.where((i > 2) & ((p % 2 == 1) | (i < 4)), chosen, 1.0))
    assert machine.violations == []
