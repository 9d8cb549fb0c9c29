"""The judge of gather, scatter and move."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.kernels.laws.judgement import Judgement
from kvproof.kernels.laws.pools import bits_of, changed_elsewhere, changed_gaps, changed_slots, own_tensors
from kvproof.kernels.laws.scenes import Scene


def relayout_is_bijection(judgement: Judgement) -> str | None:
    """Every row once, bit by bit, to where it belongs, scales included; padded slots move nothing; nothing else changes."""
    if judgement.base.error:
        return judgement.base.failure
    before, after = judgement.scenes
    match judgement.case.operation:
        case "gather":
            return _gathered(before, judgement.base.returned)
        case "scatter":
            return _scattered(after) or changed_elsewhere(before, after)
    assert before.target is not None
    assert after.target is not None
    for (name, source), (_, target) in zip(own_tensors(before.pool), own_tensors(after.target), strict=True):
        for origin, goal in after.moved:
            here, there = divmod(origin, before.pool.block_size), divmod(goal, after.target.block_size)
            if not torch.equal(bits_of(source[here]), bits_of(target[there])):
                return f"move: {name} of slot {goal} of the target is not what slot {origin} holds"
    return _target_elsewhere(before, after) or changed_elsewhere(before, after)


def _gathered(scene: Scene, returned: object) -> str | None:
    own = own_tensors(scene.pool)
    if not isinstance(returned, Sequence) or len(returned) != len(own):
        return f"gather must return {len(own)} tensors ({', '.join(name for name, _ in own)}), it returned {_described(returned)}"
    for (name, tensor), rows in zip(own, returned, strict=True):
        wanted = torch.zeros(len(scene.slots), *tensor.shape[2:], dtype=tensor.dtype)
        for row, slot in enumerate(scene.slots.tolist()):
            if slot >= 0:
                wanted[row] = tensor[divmod(slot, scene.pool.block_size)]
        wanted = wanted.unsqueeze(-1) if tensor.dim() == 3 else wanted
        if not isinstance(rows, torch.Tensor) or rows.shape != wanted.shape or rows.dtype != wanted.dtype:
            return f"gather must return {name} as {tuple(wanted.shape)} {wanted.dtype}, it returned {_described(rows)}"
        different = (bits_of(rows) != bits_of(wanted)).flatten(1).any(1)
        if different.any():
            row = int(different.nonzero()[0])
            slot = int(scene.slots[row])
            return (
                f"gather: row {row} of {name} is not what slot {slot} holds" if slot >= 0 else f"gather: row {row} of {name} is not zeros"
            )
    return None


def _described(found: object) -> str:
    if isinstance(found, torch.Tensor):
        return f"{tuple(found.shape)} {found.dtype}"
    return f"{len(found)} of them" if isinstance(found, Sequence) else type(found).__name__


def _scattered(scene: Scene) -> str | None:
    for (name, tensor), rows in zip(own_tensors(scene.pool), scene.rows, strict=True):
        for row, slot in enumerate(scene.slots.tolist()):
            held = tensor[divmod(slot, scene.pool.block_size)] if slot >= 0 else None
            if held is not None and not torch.equal(bits_of(held), bits_of(rows[row].reshape(held.shape))):
                return f"scatter: {name} of slot {slot} is not row {row}"
    return None


def _target_elsewhere(before: Scene, after: Scene) -> str | None:
    assert before.target is not None
    assert after.target is not None
    granted = torch.zeros(after.target.blocks, after.target.block_size, dtype=torch.bool)
    granted.view(-1)[[goal for _, goal in after.moved]] = True
    found = changed_slots(before.target, after.target, granted)
    return f"move changed {found} of the target, which no row goes to" if found else changed_gaps(before.target, after.target)
