"""The compile check: it compiles for devices that are not here, and what fails, spills or does not fit is at fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from click.testing import CliRunner

from kvproof.kernels import paged
from kvproof.kernels.paged import compiled
from kvproof.kernels.paged.shapes import CASES
from kvproof.kernels.paged.sizes import Target

PAGE = Path(__file__).parents[2] / "docs" / "compiled-kernels.md"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("device", compiled.DEVICES)
def test_a_kernel_is_compiled_for_every_kind_of_device(device: str) -> None:
    (row,) = compiled.compile_case(device, "store int8", CASES["store int8"])
    assert row.fault == ""
    assert row.kernel == "store_kernel"
    assert row.spilled == 0
    assert 0 < row.registers < 128


REPRESENTATIVE = (
    "decode bf16 128 gqa 4",
    "prefill bf16 128 gqa 4",
    "decode mla 16 heads",
    "prefill mla 16 heads",
    "decode low bits 4",
    "copy gather scatter",
    "store int8",
)
"""One case for each kernel, at the shapes of a model in use; the nightly run compiles the whole table for every kind of device."""


@pytest.mark.parametrize("device", ["sm_90", "gfx942"])
def test_every_kernel_compiles_without_a_spill(device: str) -> None:
    rows = [row for case in REPRESENTATIVE for row in compiled.compile_case(device, case, CASES[case])]
    assert [row for row in rows if row.fault] == []
    assert {row.kernel for row in rows} == KERNELS


KERNELS = {
    name
    for path in Path(paged.__file__).parent.glob("*.py")
    for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
}
"""All that there are: a new one has to be given a case."""


@triton.jit
def refused(x):
    tl.static_assert(False, "not for any device")


@triton.jit
def crowded(x, y, N: tl.constexpr, M: tl.constexpr):
    rows, lanes = tl.arange(0, N), tl.arange(0, M)
    first = tl.load(x + rows[:, None] * M + lanes[None, :])
    total = first
    for at in range(8):
        total = total * tl.load(y + at) + first * tl.sum(total, 1)[:, None]
    tl.store(x + rows[:, None] * M + lanes[None, :], total)


@triton.jit
def wide(x, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at[:, None] * N + at[None, :])
    tl.store(x + at[:, None] * N + at[None, :], tl.dot(a, tl.dot(a, tl.trans(a)).to(tl.float16)).to(tl.float16))


def one(kernel: Any, *args: Any, **options: Any) -> compiled.Compiled:
    def make(target: Target) -> None:
        kernel[(1,)](*args, **options)

    return compiled.compile_case("gfx942", "a case", make)[0]


def test_what_does_not_compile_is_at_fault() -> None:
    assert "not for any device" in one(refused, torch.zeros(16)).fault


def test_spills_are_at_fault() -> None:
    row = one(crowded, torch.zeros(1 << 15), torch.zeros(8), N=64, M=512, num_warps=1)
    assert row.spilled > 0
    assert row.fault == f"spills {row.spilled} bytes"


def test_too_much_shared_memory_is_at_fault() -> None:
    row = one(wide, torch.zeros(1 << 16, dtype=torch.float16), N=256, num_warps=8)
    assert row.shared > 64 << 10
    assert "bytes of shared memory" in row.fault or "spills" in row.fault


def test_the_command_writes_its_table_and_says_what_it_did(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = CliRunner().invoke(compiled.main, ["--target", "sm_90", "--case", "store", "--case", "bf16", "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    assert "1 kernels compiled for 1 kinds of device, 0 at fault" in done.output
    assert "| store bf16 | `store_kernel` | 4 |" in page.read_text()
    refused = CliRunner().invoke(compiled.main, ["--case", "nothing"])
    assert refused.exit_code == 2
    assert "No case has nothing in its name; the cases are decode bf16 128 gqa 4," in refused.output


def test_the_page_has_every_case_and_every_device_and_no_fault() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for device in compiled.DEVICES:
        section = text.split(f"## {device}\n")[1].split("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| case")]
        assert {line.split(" | ")[0].removeprefix("| ") for line in lines} == set(CASES)
        assert all(line.endswith("| ok |") for line in lines)


@pytest.mark.nightly
def test_the_page_is_what_the_compilers_make_today() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"with Triton {triton.__version__} " not in text:
        pytest.skip("the page was made with another release of Triton")
    rows = [row for device in compiled.DEVICES for name, make in CASES.items() for row in compiled.compile_case(device, name, make)]
    assert compiled.markdown(rows, triton.__version__) == text
