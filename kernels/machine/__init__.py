"""The IR machine: runs any `@triton.jit` kernel on CPU tensors, all programs of a grid at once, and sees every access.

    from kvproof.kernels.machine import installed

    with installed() as machine:
        kernel[grid](x, y, n, BLOCK=128)      # unmodified launches, autotuned ones included
    for violation in machine.violations:
        print(violation)

Triton compiles the kernel to its first-level IR, which needs no device; `parse` reads it, `build` turns it into steps on arrays (`ops_*`),
`traffic` serves and judges loads and stores against `memory`. Read `values` first: it is the idea that everything else rests on.
"""

from kvproof.kernels.machine.errors import MachineError, RunawayError, UnsupportedOperationError
from kvproof.kernels.machine.launch import Machine, installed
from kvproof.kernels.machine.memory import Memory, Watch, sparse_tensor
from kvproof.kernels.machine.violations import Violation

__all__ = [
    "Machine",
    "MachineError",
    "Memory",
    "RunawayError",
    "UnsupportedOperationError",
    "Violation",
    "Watch",
    "installed",
    "sparse_tensor",
]
