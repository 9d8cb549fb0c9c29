"""What compilers make of the paged kernels on devices that are not here: registers, spills and shared memory, without a GPU.

    python -m kvproof.kernels.paged.compiled                                   # a table in the terminal
    python -m kvproof.kernels.paged.compiled --markdown docs/compiled-kernels.md
    python -m kvproof.kernels.paged.compiled --target sm_90 --case decode

Every launch of every case in `shapes` is recorded instead of run, specialised as Triton specialises it, and compiled to machine code. Exit
status 1 if one fails to compile, spills registers to memory, or takes more shared memory than the device has; 2 if the request is at fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import triton
from rich.console import Console
from rich.progress import track
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kvproof.kernels.paged.compiling import compile_for
from kvproof.kernels.paged.shapes import CASES, Shape
from kvproof.kernels.paged.sizes import Target


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device: how Triton calls it, what `sizes` knows of it, and the shared memory that one program can have there."""

    triton: GPUTarget
    target: Target
    shared_bytes: int


DEVICES = {
    "sm_80": Device(GPUTarget("cuda", 80, 32), Target("cuda", False, False), 163 << 10),
    "sm_90": Device(GPUTarget("cuda", 90, 32), Target("cuda", True), 227 << 10),
    "sm_100": Device(GPUTarget("cuda", 100, 32), Target("cuda", True), 227 << 10),
    "gfx942": Device(GPUTarget("hip", "gfx942", 64), Target("hip", False, False), 64 << 10),
    "gfx950": Device(GPUTarget("hip", "gfx950", 64), Target("hip", True, False), 160 << 10),
}
"""A100, H100 and H200, B200, MI300, MI350."""


PAGE_NOTE = (
    "Registers and scratch are for each thread (lane), shared memory is for each program. A kernel that fails to compile, spills, or takes more "
    "shared memory than the device has makes the command fail. Cases are those of `kernels/paged/shapes.py`."
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One kernel of one case on one device. `spilled` is bytes of scratch memory for each thread, `shared` bytes for each program; `fault` says
    what is wrong, if anything.
    """

    device: str
    case: str
    kernel: str
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    warps: int = 0
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch that was recorded instead of run."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Collect the launches of the block instead of running them."""
    launches: list[Launch] = []
    run = JITFunction.run

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ANN401, ARG001 - Triton's own signature
        launches.append(Launch(self, args, options))

    JITFunction.run = record
    try:
        yield launches
    finally:
        JITFunction.run = run


def compile_launch(launch: Launch, name: str, case: str) -> Compiled:
    """Compile for the device called `name`. What the compiler refuses is a fault, not an exception."""
    device = DEVICES[name]
    place = Compiled(name, case, launch.kernel.__name__)
    try:
        done = compile_for(device.triton, launch.kernel, launch.args, launch.options)
    except Exception as error:  # noqa: BLE001 - a compiler fails in many ways, and each is a row of the table
        return dataclasses.replace(place, fault=f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    read = _read_cubin if device.triton.backend == "cuda" else _read_amdgcn
    registers, spilled = read(done)
    shared, limit = int(done.metadata.shared), device.shared_bytes
    fault = f"spills {spilled} bytes" if spilled else f"takes {shared} of {limit} bytes of shared memory" if shared > limit else ""
    return dataclasses.replace(place, registers=registers, spilled=spilled, shared=shared, warps=int(done.metadata.num_warps), fault=fault)


def _read_cubin(done: Any) -> tuple[int, int]:  # noqa: ANN401 - Triton's compiled kernel
    """Registers and bytes of local memory for each thread, as the bundled cuobjdump reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - Triton's own tool
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"]


def _read_amdgcn(done: Any) -> tuple[int, int]:  # noqa: ANN401 - Triton's compiled kernel
    """Vector registers and bytes of scratch for each lane, from the metadata of the assembly. Scalar registers that are kept in lanes of vector
    registers cost no memory and do not count.
    """
    text = done.asm["amdgcn"]
    numbers = {name: int(value) for name, value in re.findall(r"\.(vgpr_count|agpr_count|private_segment_fixed_size):\s+(\d+)", text)}
    return numbers["vgpr_count"], numbers["private_segment_fixed_size"]


def compile_case(name: str, case: str, make: Callable[[Target], None]) -> list[Compiled]:
    """Each different launch of a case on one device."""
    with recorded() as launches:
        make(DEVICES[name].target)
    found = [compile_launch(launch, name, case) for launch in launches]
    return list(dict.fromkeys(found))


def markdown(rows: Sequence[Compiled], version: str) -> str:
    """The page: a table for each device."""
    lines = [
        "# What compilers make of the paged kernels",
        "",
        f"Made by `python -m kvproof.kernels.paged.compiled --markdown docs/compiled-kernels.md` with Triton {version} on a machine without a GPU.",
        "",
        PAGE_NOTE,
    ]
    for device in dict.fromkeys(row.device for row in rows):
        limit = DEVICES[device].shared_bytes
        lines += ["", f"## {device}", "", f"{limit} bytes of shared memory.", ""]
        lines += ["| case | kernel | warps | registers | scratch bytes | shared bytes | |", "|---|---|--:|--:|--:|--:|---|"]
        lines += [
            f"| {row.case} | `{row.kernel}` | {row.warps} | {row.registers} | {row.spilled} | {row.shared} | {row.fault or 'ok'} |"
            for row in rows
            if row.device == device
        ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(list(DEVICES)), help="Only this kind of device; may be given again.")
@click.option("--case", "words", multiple=True, help="Only cases whose name has this word; may be given again.")
@click.option("--markdown", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables to this file.")
def main(targets: tuple[str, ...], words: tuple[str, ...], page: Path | None) -> None:
    """Compile every paged kernel for devices that are not here, and show registers, spills and shared memory."""
    cases: dict[str, Shape] = {name: make for name, make in CASES.items() if all(word in name for word in words)}
    if not cases:
        raise click.UsageError(f"No case has {' and '.join(words)} in its name; the cases are {', '.join(CASES)}.")
    console = Console(stderr=True)
    todo = [(device, name, make) for device in (targets or DEVICES) for name, make in cases.items()]
    rows: list[Compiled] = []
    for device, name, make in track(todo, "compiling", console=console, disable=not console.is_terminal):
        rows += compile_case(device, name, make)
    text = markdown(rows, str(triton.__version__))
    if page is not None:
        page.write_text(text, encoding="utf-8")
    for row in rows:
        if page is None or row.fault:
            click.echo(
                f"{row.device:<7} {row.case:<34} {row.kernel:<16} {row.warps:>2} warps {row.registers:>4} registers {row.spilled:>5} spilled "
                f"{row.shared:>7} shared  {row.fault}"
            )
    faults = [row for row in rows if row.fault]
    click.echo(f"{len(rows)} kernels compiled for {len({row.device for row in rows})} kinds of device, {len(faults)} at fault")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
