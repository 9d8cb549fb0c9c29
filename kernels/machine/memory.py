"""Every tensor behind every pointer: where it lies, what its elements are, which slots of a pool belong to whom.

A `Storage` is a torch storage, a `View` the elements of one tensor in it. A pool may be declared larger than the machine's memory:
`sparse_tensor` gives a tensor of up to 2^40 bytes whose pages exist only where they were touched.
"""

from __future__ import annotations

import bisect
import dataclasses
import gc
import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kvproof.kernels.machine.ir import element_bytes
from kvproof.kernels.machine.numerics import Array, storage

MAX_SPARSE_BYTES = 2**40
"""Largest sparse tensor. Address space is 2^47 bytes; the shadow of writers takes another four bytes for each element."""

MAX_VALID_MAP_ELEMENTS = 2**26
"""Above this the elements of a strided view are told apart by division, below by a table: one gather is ten times cheaper."""


def sparse_bytes(count: int) -> Array:
    """Zero bytes that take memory only where they are touched. Raises MemoryError where the system refuses the address space."""
    try:
        pages = _pages(count)
    except OSError:
        gc.collect()  # giant tensors of calls that are over may still be garbage, and 2^47 bytes are 30 of them
        try:
            pages = _pages(count)
        except OSError as error:
            raise MemoryError(f"the system does not lend {count} bytes of address space: {error}") from error
    return np.frombuffer(pages, np.uint8)


def _pages(count: int) -> mmap.mmap:
    return mmap.mmap(-1, max(1, count), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))


def sparse_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A zero tensor of up to 2^40 bytes. It is an ordinary CPU tensor; copying it whole would make it real."""
    count = math.prod(shape) * dtype.itemsize
    if count > MAX_SPARSE_BYTES:
        raise ValueError(f"a sparse tensor has at most {MAX_SPARSE_BYTES} bytes, {count} were asked for")
    return torch.from_numpy(sparse_bytes(count)).view(dtype).view(tuple(shape))


@dataclasses.dataclass
class Watch:
    """Whose slots a pool's storage holds.

    `slot_of` gives the slot of each element (`grain` bytes) of the storage, -1 outside the pool. `readable[s, slot]` says which sequences
    may read a slot, `writable[slot]` whether this launch was granted it, `owners[slot]` is prose for reports. For a block table, `row_of`
    gives the row of each element instead: a program that reads row r serves sequence r.
    """

    grain: int
    slot_of: Array | None = None
    readable: Array | None = None
    writable: Array | None = None
    owners: Sequence[str] = ()
    row_of: Array | None = None


@dataclasses.dataclass
class Storage:
    """A stretch of memory: `base` is its address, `data` its bytes. `initialised` marks bytes that hold a value, None means all of them."""

    base: int
    data: Array
    keep: Any
    watch: Watch | None = None
    initialised: Array | None = None


@dataclasses.dataclass
class View:
    """The elements a pointer argument may touch: `flat[i]` is element i after its address; strides are in elements."""

    storage: Storage
    name: str
    elem: str
    offset_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        self.itemsize = element_bytes(self.elem)
        self.base = self.storage.base + self.offset_bytes
        count = math.prod(self.shape)
        self.span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) if count else 0
        self.is_dense = self.span == count
        stop = self.offset_bytes + self.span * self.itemsize
        self.flat = self.storage.data[self.offset_bytes : stop].view(storage(self.elem))
        self._windows: dict[tuple[int, str], Array] = {}
        self._valid: Array | None = None

    def elements(self, elem: str) -> Array:
        """The elements as bits of another type of the same width, where a kernel casts the pointer."""
        return self.flat if elem == self.elem else self.flat.view(storage(elem))

    def windows(self, size: int, elem: str) -> Array:
        """`windows(n, elem)[i]` are the n elements from i on."""
        key = (size, elem)
        if key not in self._windows:
            self._windows[key] = np.lib.stride_tricks.sliding_window_view(self.elements(elem), size)
        return self._windows[key]

    def allowed(self, index: Array) -> Array:
        """For indices within the span: which are elements of the tensor rather than gaps between them."""
        if self.is_dense:
            return np.ones(index.shape, np.bool_)
        if self.span <= MAX_VALID_MAP_ELEMENTS:
            if self._valid is None:
                self._valid = np.zeros(self.span, np.bool_)
                np.lib.stride_tricks.as_strided(self._valid, self.shape, self.strides)[...] = True
            return np.asarray(self._valid[index])
        inside = np.ones(index.shape, np.bool_)
        rest = index.copy()
        for size, stride in self._ordered():
            inside &= rest // stride < size
            rest %= stride
        return np.asarray(inside & (rest == 0))

    def rows_inside(self, rows: Array, width: int) -> bool:
        """For rows of `width` elements that begin and end within the span: whether all of them lie in the tensor, none in a gap."""
        if self.is_dense:
            return True
        run, outer = 1, self._ordered()
        while outer and outer[-1][1] == run:
            run *= outer.pop()[0]
        rest = rows
        for size, stride in outer:
            if (rest // stride >= size).any():
                return False
            rest = rest % stride
        return bool((rest + width <= run).all())

    def coordinates(self, index: int) -> tuple[int, ...]:
        """The index in each dimension of an element, in or out of bounds: an overflow shows in the outermost dimension."""
        found = dict.fromkeys(range(len(self.shape)), 0)
        dims = sorted((d for d in range(len(self.shape)) if self.strides[d] > 0 and self.shape[d] > 1), key=lambda d: -self.strides[d])
        for dim in dims:
            found[dim], index = divmod(index, self.strides[dim])
        if index and dims:
            found[dims[-1]] += index
        return tuple(found.values()) if dims else (index,)

    def _ordered(self) -> list[tuple[int, int]]:
        pairs = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if size > 1 and stride > 0]
        return sorted(pairs, key=lambda pair: -pair[1])


def _living() -> Iterator[torch.Tensor]:
    """All tensors of the process that lie in plain memory."""
    for found in gc.get_objects():
        if type(found) is torch.Tensor and found.device.type == "cpu" and found.layout == torch.strided:
            yield found


class Memory:
    """All storages that kernels may reach. Tensors passed to a launch are adopted by it; others must be adopted before pointers to them are
    read.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._storages: list[Storage] = []
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}

    def adopt(self, tensor: torch.Tensor, name: str | None = None) -> Storage:
        """The storage of a CPU tensor, known from now on. `name` is how reports call the tensor, instead of the kernel's parameter."""
        if tensor.device.type != "cpu":
            raise ValueError(f"the machine runs on CPU tensors; got one on {tensor.device}")
        if name is not None:
            self._names[tensor.data_ptr(), tuple(tensor.shape)] = name
        raw = tensor.untyped_storage()
        base = raw.data_ptr()
        at = bisect.bisect_left(self._bases, base)
        if at < len(self._bases) and self._bases[at] == base and self._storages[at].data.size == raw.nbytes():
            return self._storages[at]
        data = torch.empty(0, dtype=torch.uint8).set_(raw).numpy() if raw.nbytes() else np.empty(0, np.uint8)
        # The storage keeps the memory alive, so no other tensor can take its address while this entry exists.
        made = Storage(base, data, raw)
        if at < len(self._bases) and self._bases[at] == base:
            self._storages[at] = made
        else:
            self._bases.insert(at, base)
            self._storages.insert(at, made)
        return made

    def view(self, tensor: Any, elem: str, parameter: str) -> View:
        """The elements of a tensor passed as `parameter` with pointee `elem`."""
        base = getattr(tensor, "base", tensor)
        if not isinstance(base, torch.Tensor):
            raise TypeError(f"parameter {parameter!r} is a pointer but was given {type(tensor).__name__}; pass a CPU tensor")
        held = self.adopt(base)
        offset = base.data_ptr() - held.base
        name = self._names.get((base.data_ptr(), tuple(base.shape)), parameter)
        if base.element_size() == element_bytes(elem):
            return View(held, name, elem, offset, tuple(base.shape), tuple(base.stride()))
        count = (held.data.size - offset) // element_bytes(elem)
        return View(held, name, elem, offset, (count,), (1,))

    def find(self, address: int) -> Storage | None:
        """The storage that contains an address; tensors alive in the process are searched when none of the known ones does."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0 and address < self._bases[at] + self._storages[at].data.size:
            return self._storages[at]
        for tensor in _living():
            raw = tensor.untyped_storage()
            if raw.data_ptr() <= address < raw.data_ptr() + raw.nbytes():
                return self.adopt(tensor)
        return None

    def nowhere(self, addresses: Array) -> Array:
        """Which addresses lie in no tensor that is alive in the process, known or not: a wild pointer has a tile of them, and a search takes long."""
        storages = [tensor.untyped_storage() for tensor in _living()]
        spans = {raw.data_ptr(): raw.nbytes() for raw in storages} | {held.base: held.data.size for held in self._storages}
        bases = np.array(sorted(spans), np.int64)
        if not len(bases):
            return np.ones(addresses.shape, np.bool_)
        at = np.searchsorted(bases, addresses, "right") - 1
        sizes = np.array([spans[base] for base in bases.tolist()], np.int64)
        return np.asarray((at < 0) | (addresses - bases[at] >= sizes[at]))

    def release_unwatched(self) -> None:
        """Let go of the storages about which nothing was declared; a launch adopts them again."""
        kept = [held for held in self._storages if held.watch is not None or held.initialised is not None]
        self._storages = kept
        self._bases = [held.base for held in kept]

    def declare_uninitialised(self, tensor: torch.Tensor) -> None:
        """No byte of the tensor's storage holds a value yet; a load before a store is a violation."""
        held = self.adopt(tensor)
        held.initialised = np.zeros(held.data.size, np.bool_)
