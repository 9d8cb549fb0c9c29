"""One call of an adapter: on the machine, watched, with everything that could be left uninitialised filled with NaN."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from kvproof.kernels.contract import PagedKernels
from kvproof.kernels.laws.staging import AnyScene
from kvproof.kernels.laws.watching import watch_copies
from kvproof.kernels.machine import Machine, MachineError, Violation
from kvproof.kernels.machine.errors import EndlessLoopError
from kvproof.kernels.machine.limits import CALL_SECONDS, CallStopped, call_limit
from kvproof.kernels.machine.lower import Constants, Lowered

_TF32_DOT = re.compile(r"tt\.dot .*inputPrecision = tf32.* : tensor<[\dx]*f32> \*")
_KERNEL = re.compile(r"def (\w+)\(")
MAX_RECORDED_LAUNCHES = 64


@dataclasses.dataclass
class Launch:
    """A kernel launch as the solver needs it."""

    program: Any
    bound: dict[str, Any]
    constants: Constants
    grid: tuple[int, int, int]


@dataclasses.dataclass
class Call:
    """What a call did. `output` is that of attention, `returned` of everything else; `error` is what the adapter raised; `stopped` says that it
    ran too long.
    """

    scene: AnyScene
    output: torch.Tensor | None = None
    returned: Any = None
    violations: list[Violation] = dataclasses.field(default_factory=list)
    launches: list[Launch] = dataclasses.field(default_factory=list)
    launch_count: int = 0
    tf32: bool = False
    error: str = ""
    stopped: bool = False

    @property
    def failure(self) -> str | None:
        """Why there is no result, in words; None where there is one."""
        how = "did not return:" if self.stopped else "raised"
        return f"{self.scene.case.operation} {how} {self.error}" if self.error else None


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """`torch.empty` and its kin give NaN (or the largest integer) instead of whatever lay there."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switch: Any = torch.utils.deterministic
    fill = switch.fill_uninitialized_memory
    # The public switch sets the same flag but imports torch's compiler first, which takes five seconds.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    switch.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
        switch.fill_uninitialized_memory = fill


def call(
    kernels: type[PagedKernels], scene: AnyScene, *, watched: bool = True, record: bool = False, seconds: float = CALL_SECONDS
) -> Call:
    """Run the scene's operation, for at most `seconds`. MachineError passes through: it says that the machine, not the kernel, is at its
    end.
    """
    result = Call(scene)
    machine = Machine(order_seed=scene.case.seed)

    def listen(lowered: Lowered, bound: dict[str, Any], grid: tuple[int, int, int]) -> None:
        if watched:
            watch_copies(scene, machine.memory, bound.values())
        result.tf32 |= bool(_TF32_DOT.search(lowered.ttir))
        if record and len(result.launches) < MAX_RECORDED_LAUNCHES:
            result.launches.append(Launch(lowered.program, dict(bound), lowered.constants, grid))

    machine.on_launch.append(listen)
    if watched:
        scene.watch(machine.memory)
    with machine.installed(), poisoned(), torch.no_grad():
        try:
            with call_limit(seconds):
                found = scene.invoke(kernels())
                if scene.case.operation == "attend":
                    result.output = _checked(found, scene)
                else:
                    result.returned = found
        except (CallStopped, EndlessLoopError) as stopped:
            result.stopped, result.error = True, str(stopped)
        except MachineError:
            raise
        except Exception as error:  # noqa: BLE001 - anything an adapter raises is an outcome to judge
            result.error = f"{type(error).__name__}: {_in_words(error)}"
    result.violations, result.launch_count = list(machine.violations), machine.launches
    asserted = next((seen for seen in result.violations if seen.kind == "assertion"), None)
    if asserted is not None and not result.error:
        result.error = f"a failed {asserted}"
    return result


def _in_words(error: Exception) -> str:
    """The message in a line. A compilation error has its place in the first line, then the kernel's source, and its reason in the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kernel = next((found for line in lines[1:] if (found := _KERNEL.match(line))), None)
    if kernel is not None and lines[0].startswith("at "):
        lines[0] = f"{lines[0].rstrip(':')} of kernel {kernel.group(1)!r}"
    return " ... ".join(dict.fromkeys(lines[:1] + lines[-1:]))


def _checked(output: Any, scene: AnyScene) -> torch.Tensor:  # noqa: ANN401 - whatever the adapter returned
    if not isinstance(output, torch.Tensor) or output.shape != scene.output_shape:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(f"attention must return a tensor of shape {scene.output_shape}, it returned {shape}")
    return output
