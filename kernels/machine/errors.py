"""Errors of the machine itself, apart from what it finds in kernels."""

from __future__ import annotations

from kvproof.kernels.machine.ir import Location


class MachineError(RuntimeError):
    """A kernel cannot be executed. The message names the operation, the kernel and the line."""


class UnsupportedOperationError(MachineError):
    """The kernel uses an operation that the machine does not implement."""

    def __init__(self, operation: str, kernel: str, location: Location, reason: str = "") -> None:
        detail = f" ({reason})" if reason else ""
        super().__init__(f"the machine does not implement {operation}{detail}, used by kernel {kernel!r} at {location}")
        self.operation, self.kernel, self.location = operation, kernel, location


class RunawayError(MachineError):
    """A loop waits for another program, which never runs beside it here."""


class EndlessLoopError(MachineError):
    """A loop that waits for nobody makes more trips than any can be meant to."""
