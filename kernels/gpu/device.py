"""The suite's cases on a device: an adapter whose tensors are moved there, between guards, and back.

    OnGPU = on_device(PagedTriton, "cuda")
    check_kernels(OnGPU)

The suite builds its cases and judges them on the CPU, pools included. The wrapper copies every storage to the device with GUARD_BYTES of a
pattern on both sides, calls the kernels there, and copies the pool back. A guard that changed is an error of the call: nobody may write
there. The pattern is a NaN in every floating type, so that what is read there shows in the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.machine import MachineError

GUARD_BYTES = 1 << 16
"""On each side of a storage: larger than any block of the suite's cases, so that a block id off by one lands in it."""

GUARD = 0xFF
"""Bytes of all ones are NaN in float32, float16, bfloat16 and e4m3, and -1 as an integer."""

_RUN = JITFunction.run
"""Triton's own way to launch, which the IR machine replaces while it is installed."""


class GuardBroken(RuntimeError):
    """Bytes outside every tensor were written."""


class DeviceLostError(MachineError):
    """After an illegal address every later call of the process fails, whatever it is given: a check ends, without looking for smaller cases."""


class Guarded:
    """Storages on the device, each between guards; `tensor` gives the copy of a CPU tensor, views into one storage staying so."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        """The same elements, strides and offset on the device."""
        storage = source.untyped_storage()
        if storage.data_ptr() not in self._held:
            host = torch.empty(0, dtype=torch.uint8).set_(storage)
            buffer = torch.full((2 * GUARD_BYTES + len(host),), GUARD, dtype=torch.uint8, device=self.device)
            buffer[GUARD_BYTES : GUARD_BYTES + len(host)] = host.to(self.device)
            self._held[storage.data_ptr()] = (host, buffer)
        host, buffer = self._held[storage.data_ptr()]
        size = len(host) // source.element_size() * source.element_size()
        typed = buffer[GUARD_BYTES : GUARD_BYTES + size].view(source.dtype)
        # A view of a view counts offsets from the storage, which begins with the guard.
        first = GUARD_BYTES // source.element_size()
        return typed.as_strided(source.size(), source.stride(), first + source.storage_offset())

    def check(self) -> None:
        """Raise GuardBroken if a guard changed."""
        for host, buffer in self._held.values():
            if bool((buffer[:GUARD_BYTES] != GUARD).any()) or bool((buffer[GUARD_BYTES + len(host) :] != GUARD).any()):
                raise GuardBroken(f"the {GUARD_BYTES} bytes before or behind a tensor of {len(host)} bytes were written")

    def bring_back(self) -> None:
        """Copy every storage back to the CPU tensors that it came from."""
        for host, buffer in self._held.values():
            host.copy_(buffer[GUARD_BYTES : GUARD_BYTES + len(host)].cpu())


def on_device(kernels: type[PagedKernels], device: str, claims: KernelCapabilities | None = None) -> type[PagedKernels]:
    """`kernels` with their tensors on `device`; `claims` instead of their own capabilities."""

    class OnDevice(PagedKernels):
        @classmethod
        def capabilities(cls) -> KernelCapabilities:
            return claims or kernels.capabilities()

        def store(self, pool: KVPool, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
            _call(kernels, "store", device, pool, key, value, slots)

        def attend(self, pool: KVPool, *args: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401
            return _call(kernels, "attend", device, pool, *args, **options).cpu()  # type: ignore[no-any-return]

        def copy_blocks(self, pool: KVPool, pairs: torch.Tensor) -> None:
            _call(kernels, "copy_blocks", device, pool, pairs)

        def gather(self, pool: KVPool, slots: torch.Tensor) -> list[torch.Tensor]:
            return [rows.cpu() for rows in _call(kernels, "gather", device, pool, slots)]

        def scatter(self, pool: KVPool, rows: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
            _call(kernels, "scatter", device, pool, rows, slots)

        def move(self, source: KVPool, target: KVPool, source_slots: torch.Tensor, target_slots: torch.Tensor) -> None:
            _call(kernels, "move", device, source, target, source_slots, target_slots)

        def store_low_bits(self, pool: LowBitPool, *args: torch.Tensor) -> torch.Tensor:
            return _call(kernels, "store_low_bits", device, pool, *args).cpu()  # type: ignore[no-any-return]

        def attend_low_bits(self, pool: LowBitPool, *args: torch.Tensor, **options: Any) -> torch.Tensor:  # noqa: ANN401
            return _call(kernels, "attend_low_bits", device, pool, *args, **options).cpu()  # type: ignore[no-any-return]

        def copy_low_bits(self, pool: LowBitPool, pairs: torch.Tensor, rings: torch.Tensor) -> None:
            _call(kernels, "copy_low_bits", device, pool, pairs, rings)

    OnDevice.__name__ = OnDevice.__qualname__ = kernels.__name__
    return OnDevice


def _call(kernels: type[PagedKernels], method: str, device: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
    guarded = Guarded(device)

    def moved(value: Any) -> Any:  # noqa: ANN401 - tensors, pools of them, and what is neither
        if isinstance(value, KVPool | LowBitPool):
            return dataclasses.replace(value, **{field.name: moved(getattr(value, field.name)) for field in dataclasses.fields(value)})
        if isinstance(value, list | tuple):
            return [moved(part) for part in value]
        return guarded.tensor(value) if isinstance(value, torch.Tensor) else value

    try:
        with _really_launched(device):
            result = getattr(kernels(), method)(*map(moved, args), **{name: moved(value) for name, value in options.items()})
    except Exception as error:
        if lost(device):
            raise DeviceLostError(f"{method}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
        raise
    guarded.check()
    guarded.bring_back()
    return result


def lost(device: str) -> bool:
    """Whether nothing can be asked of the device any more."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
    except Exception:  # noqa: BLE001 - whatever it says
        return True
    return False


@contextlib.contextmanager
def _really_launched(device: str) -> Iterator[None]:
    """Launch on the device although the suite has the IR machine installed."""
    if device == "cpu":
        yield
        return
    redirected, JITFunction.run = JITFunction.run, _RUN
    try:
        yield
        torch.cuda.synchronize()
    finally:
        JITFunction.run = redirected
