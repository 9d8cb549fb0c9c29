"""What the machine's memory is told of a scene: whose slots a pool holds, and which row of which table is whose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from kvproof.kernels.contract import KVPool
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.machine.memory import Memory, Storage, Watch

TELLING_ENTRIES = 4
"""A shorter list of blocks may equal a list of anything by chance, and so may one that counts from 0."""


class Tabled(Protocol):
    """A scene with a block table, and the lists that adapters may make of it, each with the sequence of every entry."""

    case: Case
    tables: torch.Tensor

    @property
    def lists(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """See `Scene.lists`."""


def watch_pool(
    memory: Memory, pool: KVPool, readable: Sequence[set[int]], granted: Sequence[int], owners: Sequence[str], prefix: str = ""
) -> None:
    """Tell the machine's memory whose slots a pool holds."""
    count = pool.blocks * pool.block_size
    rights = torch.zeros(len(readable), count, dtype=torch.bool)
    for row, slots in enumerate(readable):
        rights[row, sorted(slots)] = True
    writable = torch.zeros(count, dtype=torch.bool)
    writable[list(granted)] = True
    numbers = torch.arange(count, dtype=torch.int32).view(pool.blocks, pool.block_size, 1, 1)
    for name in ("key", "value", "key_scale", "value_scale"):
        tensor = getattr(pool, name)
        if tensor is None or tensor.dim() == 1:
            continue
        held = memory.adopt(tensor, prefix + name)
        if held.watch is None:
            held.watch = Watch(tensor.element_size(), no_slots(tensor), rights.numpy(), writable.numpy(), owners)
        target = slots_like(held, tensor)
        if tensor.dim() == 3:
            target.copy_(numbers.squeeze(-1).expand(tensor.shape))
        else:
            pool.slot_view(target).copy_(numbers.expand(pool.slot_view(tensor).shape))


def no_slots(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - an array
    """For each element of the tensor's storage that it is no slot's."""
    return torch.full((tensor.untyped_storage().nbytes() // tensor.element_size(),), -1, dtype=torch.int32).numpy()


def slots_like(held: Storage, tensor: torch.Tensor) -> torch.Tensor:
    """The slot numbers of a watched storage, in the shape of a tensor in it."""
    assert held.watch is not None
    assert held.watch.slot_of is not None
    return torch.from_numpy(held.watch.slot_of).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def watch_copies(scene: Tabled, memory: Memory, arguments: Iterable[object]) -> None:
    """Adapters may hand their kernels another form of the block table: converted, wider, or as one list of blocks or slots for the batch.
    An integer tensor with the values of one is taken for it. Stores and copies are given no table, so there a likeness is chance.
    """
    if scene.case.operation != "attend":
        return
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.int32, torch.int64) and tensor.numel():
            held = memory.adopt(tensor)
            rows = _rows_of(scene, tensor) if held.watch is None else None
            if rows is not None:
                watch_rows(held, tensor, rows)


def _rows_of(scene: Tabled, tensor: torch.Tensor) -> torch.Tensor | None:
    """For each element the sequence whose table entry it is, -1 for none; None where the tensor is no form of the table."""
    tables = scene.tables
    if tensor.dim() == 2 and len(tensor) == len(tables) and tensor.shape[1] >= tables.shape[1]:
        return row_numbers(tensor) if torch.equal(tensor[:, : tables.shape[1]].long(), tables.long()) else None
    if tensor.dim() == 1:
        for values, rows in scene.lists:
            telling = len(values) >= TELLING_ENTRIES and not torch.equal(values, torch.arange(len(values)))
            if telling and len(tensor) >= len(values) and torch.equal(tensor[: len(values)].long(), values):
                return torch.nn.functional.pad(rows, (0, len(tensor) - len(values)), value=-1)
    return None


def sequence_numbers(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """For each element of the joined parts the part that it is from."""
    return torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))


def row_numbers(table: torch.Tensor) -> torch.Tensor:
    """For each element of a table the row that it is in."""
    return torch.arange(len(table)).unsqueeze(1).expand(table.shape)


def watch_rows(held: Storage, tensor: torch.Tensor, rows: torch.Tensor) -> None:
    """A program that reads an element of a table serves the sequence of its row."""
    row_of = torch.full((held.data.size // tensor.element_size(),), -1, dtype=torch.int32)
    row_of.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(rows)
    held.watch = Watch(tensor.element_size(), row_of=row_of.numpy())
