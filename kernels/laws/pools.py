"""Pools compared bit by bit: which slots changed, and whether anything else did."""

from __future__ import annotations

import torch

from kvproof.kernels.contract import KVPool
from kvproof.kernels.laws.scenes import Scene
from kvproof.kernels.laws.staging import AnyScene

READ_ONLY = ("slots", "pairs", "target_slots", "seq_lens", "query_lens", "sinks", "rings", "before", "quantised", "ring_pairs", "tables")
"""Arguments that other layers, and what comes after the call, are given as well. Queries and new rows are the call's own."""


def first(bad: torch.Tensor) -> tuple[int, ...]:
    """Where the first of them is."""
    return tuple(int(part) for part in bad.nonzero()[0])


def tensors(pool: KVPool) -> list[tuple[str, torch.Tensor]]:
    """Everything of a pool that has slots, as `[blocks, block_size, kv_heads, ...]`."""
    named = [("key", pool.slot_view(pool.key)), ("value", pool.slot_view(pool.value))]
    named += [
        (name, scale)
        for name, scale in (("key_scale", pool.key_scale), ("value_scale", pool.value_scale))
        if scale is not None and scale.dim() > 1
    ]
    return named


def own_tensors(pool: KVPool) -> list[tuple[str, torch.Tensor]]:
    """As `tensors`, a latent and its scale once."""
    return [(name, tensor) for name, tensor in tensors(pool) if not name.startswith("value") or pool.latent_size is None]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same width, NaN being equal to itself there."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def changed_elsewhere(before: Scene, after: Scene) -> str | None:
    """What changed that the call was not granted, in words."""
    granted = torch.zeros(after.pool.blocks * after.case.block_size, dtype=torch.bool)
    granted[after.granted] = True
    granted = granted.view(after.pool.blocks, after.case.block_size)
    found = changed_slots(before.pool, after.pool, granted)
    if found:
        return f"{after.case.operation} changed {found}, which it was not granted"
    return changed_gaps(before.pool, after.pool)


def changed_inputs(before: AnyScene, after: AnyScene) -> str | None:
    """Which argument the call wrote to, in words."""
    for name in READ_ONLY:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old is None or new is None or old.shape != new.shape:
            continue
        changed = bits_of(old) != bits_of(new)
        if name == "tables":
            blocks = -(-before.seq_lens.long() // before.case.block_size)
            changed &= torch.arange(old.shape[1]) < blocks[:, None]  # what lies past them is arbitrary
        if changed.any():
            called = "block_tables" if name == "tables" else name
            return f"{after.case.operation} changed its argument {called}[{', '.join(map(str, first(changed)))}], which it may only read"
    return None


def changed_slots(before: KVPool, after: KVPool, granted: torch.Tensor) -> str | None:
    """The first slot outside `granted` `[blocks, block_size]` whose content changed."""
    for (name, old), (_, new) in zip(tensors(before), tensors(after), strict=True):
        changed = (bits_of(old) != bits_of(new)).flatten(2).any(-1) & ~granted
        if changed.any():
            block, offset = first(changed)
            return f"{name} of block {block}, offset {offset}"
    return None


def changed_gaps(before: KVPool, after: KVPool) -> str | None:
    """Padding between the rows of interleaved pools, and the heads beside a view of some, belong to nobody."""
    for name, old, new in _storages(before, after):
        changed = bits_of(old) != bits_of(new)
        for _, tensor in tensors(after):
            if tensor.untyped_storage().data_ptr() == new.untyped_storage().data_ptr():
                changed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).fill_(False)
        if changed.any():
            return f"element {int(changed.nonzero()[0])} of the storage of {name} changed, which lies between the rows of the tensors"
    return None


def _storages(before: KVPool, after: KVPool) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each storage that is larger than the tensors of a pool in it, as a flat tensor, before and after."""
    found: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
    for (name, old), (_, new) in zip(tensors(before), tensors(after), strict=True):
        if new.untyped_storage().nbytes() > new.numel() * new.element_size():
            flat = [torch.empty(0, dtype=part.dtype).set_(part.untyped_storage()).view(-1) for part in (old, new)]
            found.setdefault(new.untyped_storage().data_ptr(), (name, flat[0], flat[1]))
    return list(found.values())
