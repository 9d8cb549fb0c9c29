"""Launches: `kernel[grid](...)` runs here while a machine is installed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kvproof.kernels.machine import ops_arith, ops_extern, ops_flow, ops_memory, ops_reduce, ops_shape
from kvproof.kernels.machine.build import CompiledFunction, Frame, compile_program
from kvproof.kernels.machine.errors import EndlessLoopError, MachineError
from kvproof.kernels.machine.ir import Function, Op, element_bytes
from kvproof.kernels.machine.lower import Constants, lower
from kvproof.kernels.machine.memory import Memory
from kvproof.kernels.machine.numerics import Array, container
from kvproof.kernels.machine.traffic import Traffic
from kvproof.kernels.machine.values import Value, dense
from kvproof.kernels.machine.violations import Violation, Violations

_HANDLERS = (ops_arith, ops_extern, ops_flow, ops_memory, ops_reduce, ops_shape)
"""Importing these registers the operations."""

CHUNK_ELEMENTS = 1 << 18
"""Elements of the largest tile times programs that run together: arrays of about a megabyte, which a core's cache holds."""

MAX_GRID = 1 << 31

_lock = threading.RLock()


@dataclasses.dataclass
class Run:
    """What the programs of one launch share."""

    kernel_name: str
    grid: tuple[int, int, int]
    traffic: Traffic
    machine: Machine

    @property
    def printed(self) -> list[tuple[str, tuple[Array, ...]]]:
        """Where device prints go."""
        return self.machine.printed

    def absolute(self, root: int, value: Value) -> Array:
        """Byte addresses of a pointer into an argument."""
        view = self.traffic.views[root]
        return view.base + dense(value) * view.itemsize

    def check_trips(self, trips: int, limit: int, op: Op) -> None:
        """Refuse a loop that cannot be meant."""
        if trips > limit:
            raise EndlessLoopError(f"a loop of {self.kernel_name!r} at {op.location} asks for {trips} trips, more than {limit}")

    def assertion(self, op: Op, message: str, holds: Array, frame: Frame) -> None:
        """Record a device assertion that failed."""
        if self.machine.violations_found.wants("assertion", self.kernel_name, op.location):
            first = np.unravel_index(int(np.argmin(holds)), holds.shape)
            program = self.traffic.coordinates(int(frame.ids[int(first[0])]))
            lane = tuple(int(part) for part in first[1:])
            self.machine.violations_found.kept.append(
                Violation("assertion", self.kernel_name, op.location, "", program, lane, detail=message)
            )


class Machine:
    """Runs Triton kernels on CPU tensors and records what they may not do.

    `strict` raises `MachineError` at the end of the first launch with a violation; otherwise they collect in `violations`. `chunk_elements`
    bounds memory: programs of a grid run together while the largest tile times their number stays below it. Programs run in the order of their
    numbers, or shuffled by `order_seed`: on a device any may come first, which shows where they meet in atomics.
    """

    def __init__(self, *, strict: bool = False, chunk_elements: int = CHUNK_ELEMENTS, order_seed: int | None = None) -> None:
        self.strict, self.chunk_elements, self.order_seed = strict, chunk_elements, order_seed
        self.memory = Memory()
        self.violations_found = Violations()
        self.printed: list[tuple[str, tuple[Array, ...]]] = []
        self.launches = 0
        self.on_launch: list[Callable[[Any, dict[str, Any], tuple[int, int, int]], None]] = []

    @property
    def violations(self) -> list[Violation]:
        """Violations so far, at most a few for each kind and line."""
        return self.violations_found.kept

    @contextlib.contextmanager
    def installed(self) -> Iterator[Machine]:
        """Redirect every Triton launch in the process to this machine. One machine at a time; a nested one takes over until it leaves."""
        with _lock:
            run, tune, threads = JITFunction.run, Autotuner.run, torch.get_num_threads()
            JITFunction.run = _redirect(self)
            Autotuner.run = _first_config
            # Tiles are too small to share between threads: on two busy cores one thread was three times faster.
            torch.set_num_threads(1)
            try:
                yield self
            finally:
                JITFunction.run, Autotuner.run = run, tune
                torch.set_num_threads(threads)
                self.memory.release_unwatched()

    def launch(self, function: JITFunction[Any], grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run one kernel over its grid."""
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        lowered = lower(function, args, kwargs)
        shape = _grid(grid(lowered.bound) if callable(grid) else grid)
        for listener in self.on_launch:
            listener(lowered, lowered.bound, shape)
        self.launches += 1
        before = self.violations_found.total
        values = flatten(lowered.bound, lowered.constants)
        try:
            self.execute(_compiled(lowered.program), values, shape)
        finally:
            # Keeping a tensor would keep its memory; the next launch adopts what it is given.
            self.memory.release_unwatched()
        if self.strict and self.violations_found.total > before:
            raise MachineError("\n".join(str(found) for found in self.violations))

    def execute(self, compiled: CompiledFunction, values: Sequence[Any], grid: tuple[int, int, int]) -> None:
        """Run a compiled kernel with flattened arguments."""
        function = compiled.function
        if len(values) != len(function.arguments):
            raise MachineError(f"kernel {function.name!r} takes {len(function.arguments)} runtime arguments, got {len(values)}")
        views, arguments = {}, []
        for position, (name, number, value) in enumerate(zip(function.names, function.arguments, values, strict=True)):
            kind = function.types[number]
            if kind.is_pointer:
                views[position] = self.memory.view(value, kind.pointee or "i8", name)
                arguments.append(np.zeros(1, np.int64))
            else:
                arguments.append(_scalar(value, kind.elem))
        traffic = Traffic(self.memory, views, compiled.stored_roots, grid, function.name, self.violations_found)
        run = Run(function.name, grid, traffic, self)
        count, chunk = math.prod(grid), max(1, self.chunk_elements // _largest_tile(function))
        order = np.arange(count) if self.order_seed is None else np.random.default_rng(self.order_seed).permutation(count)
        with np.errstate(all="ignore"):
            for start in range(0, count, chunk):
                ops_flow.run_function(compiled, arguments, Frame(order[start : start + chunk], run))


def _redirect(machine: Machine) -> Any:
    def run(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            machine.launch(self, grid, args, kwargs)

    return run


def _first_config(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
    """Autotuning measures a device that is not there: run the first configuration that the tuner's own pruning keeps."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
    config = next(iter(configs))
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
    result = self.fn.run(*args, **kwargs, **config.all_kwargs())
    self.nargs = None
    return result


def _grid(grid: Any) -> tuple[int, int, int]:
    sizes = [int(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))]
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0 or math.prod(sizes) > MAX_GRID:
        raise MachineError(f"a grid has one to three sizes and at most {MAX_GRID} programs, got {grid!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def flatten(bound: dict[str, Any], constants: Constants) -> list[Any]:
    """Launch arguments in the order of the compiled function: tuples and descriptors become their parts, constants and ones vanish."""
    flat: list[Any] = []
    for place, value in enumerate(bound.values()):
        _flatten_value(value, (place,), constants, flat)
    return flat


def _flatten_value(value: Any, path: tuple[int, ...], constants: Constants, flat: list[Any]) -> None:
    if path in constants:
        return
    if isinstance(value, (tuple, list)):
        for place, part in enumerate(value):
            _flatten_value(part, (*path, place), constants, flat)
    elif type(value).__name__ == "TensorDescriptor":
        # Triton passes the sizes twice: once inside the lowered descriptor, once as arguments of their own.
        sizes = [*value.shape, *value.strides]
        flat.extend([value.base, *sizes, *_descriptor_flags(value), *sizes])
    else:
        flat.append(value)


def _descriptor_flags(value: Any) -> list[Any]:
    flags = [getattr(value, "padding", "zero") == "nan"]
    if hasattr(value, "round_f32_to_tf32"):
        flags.append(bool(value.round_f32_to_tf32))
    return flags


def _scalar(value: Any, elem: str) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.item()
    kind = container(elem)
    if kind.kind == "i":
        bits = 8 * kind.itemsize
        value = int(value) & ((1 << bits) - 1)
        value = value - (1 << bits) if value >> (bits - 1) else value
    return np.array([value], kind)


_compiled_programs: dict[int, tuple[Any, CompiledFunction]] = {}


def _compiled(program: Any) -> CompiledFunction:
    if id(program) not in _compiled_programs:
        _compiled_programs[id(program)] = (program, compile_program(program))
    return _compiled_programs[id(program)][1]


def _largest_tile(function: Function) -> int:
    return max((math.prod(kind.shape) for kind in function.types), default=1)


@contextlib.contextmanager
def installed(**options: Any) -> Iterator[Machine]:
    """Install a fresh machine; `options` are those of `Machine`."""
    with Machine(**options).installed() as machine:
        yield machine


__all__ = ["Machine", "Run", "element_bytes", "installed"]
