"""The judges of low-bit pools, where they are not those of other pools."""

from __future__ import annotations

import dataclasses

import torch

from kvproof.kernels import lowbit_reference
from kvproof.kernels.laws.judgement import Judgement, outside, violation
from kvproof.kernels.laws.lowbit_scenes import LowBitScene
from kvproof.kernels.laws.pools import bits_of, changed_inputs, first
from kvproof.kernels.laws.staging import stage
from kvproof.kernels.lowbit import PAGED, RINGS


def _scenes(judgement: Judgement) -> tuple[LowBitScene, LowBitScene]:
    """Before the call and after it."""
    assert isinstance(judgement.before, LowBitScene)
    assert isinstance(judgement.scene, LowBitScene)
    return judgement.before, judgement.scene


def paged_equals_contiguous(judgement: Judgement) -> str | None:
    """Attention against the reference; a store must keep every bit of the recent tokens."""
    if judgement.base.error:
        return judgement.base.failure
    before, after = _scenes(judgement)
    if judgement.case.operation == "store":
        return counts_fault(before, judgement.base.returned) or recent_fault(after, judgement.base.returned)
    options = before.options | {"tf32": judgement.base.tf32, "narrow": "narrow-accumulation" in judgement.capabilities.features}
    expected = lowbit_reference.attend(before.pool, before.query, before.tables, before.rings, before.seq_lens, before.quantised, **options)
    return outside(judgement, expected)


def counts_fault(before: LowBitScene, returned: object) -> str | None:
    """Whether a store returned how many tokens are in blocks, and a lawful number of them."""
    if not isinstance(returned, torch.Tensor) or returned.shape != before.quantised.shape:
        shape = tuple(returned.shape) if isinstance(returned, torch.Tensor) else type(returned).__name__
        return f"store_low_bits must return how many tokens are in blocks, {tuple(before.quantised.shape)}; it returned {shape}"
    for seq, count in enumerate(returned.tolist()):
        if count not in before.lawful(seq):
            wanted = " or ".join(map(str, sorted(before.lawful(seq))))
            return f"store_low_bits says that {count} tokens of sequence {seq} are in blocks, where it must be {wanted}"
    return None


def recent_fault(scene: LowBitScene, counts: torch.Tensor) -> str | None:
    """Whether the rings hold every token that is in no block, bit by bit."""
    pool = scene.pool
    for seq, rows in enumerate(scene.written):
        at = torch.arange(int(counts[seq]), len(rows))
        for name, part in (("ring_key", 0), ("ring_value", 1)):
            held = pool.slot_view(getattr(pool, name))[int(scene.rings[seq]), at % pool.ring]
            different = (bits_of(held) != bits_of(rows[at, part])).flatten(1).any(1)
            if different.any():
                position = int(at[different][0])
                return f"position {position} of sequence {seq} is recent, and {name} does not hold it at place {position % pool.ring}"
    return None


def quantised_within_bound(judgement: Judgement) -> str | None:
    """Half a step of each group, and what rounding of scale and zero costs."""
    if judgement.base.error:
        return judgement.base.failure
    before, after = _scenes(judgement)
    # A wrong count breaks another law, and leaves nothing to compare.
    return None if counts_fault(before, judgement.base.returned) else bound_fault(after, judgement.base.returned)


def bound_fault(scene: LowBitScene, counts: torch.Tensor) -> str | None:
    """The first element of a block that is read as something too far from what was written."""
    pool = scene.pool
    for seq, rows in enumerate(scene.written):
        count = int(counts[seq])
        if not count:
            continue
        found = lowbit_reference.read(pool, scene.tables[seq].tolist(), int(scene.rings[seq]), count, count)
        keys, values = rows[:count, 0].double(), rows[:count, 1].double()
        key_bound = lowbit_reference.step_bound(pool, lowbit_reference.split(keys, 0, pool.group), 1).flatten(0, 1)
        value_bound = lowbit_reference.step_bound(pool, lowbit_reference.split(values, -1, pool.channels), -1).flatten(-2)
        for name, held, wanted, bound in (("key", found.key, keys, key_bound), ("value", found.value, values, value_bound)):
            bad = ~((held - wanted).abs() <= bound)
            if bad.any():
                at = first(bad)
                return (
                    f"{name} of sequence {seq}, position {at[0]}, head {at[1]}, element {at[2]}: {float(wanted[at]):.6g} is read as "
                    f"{float(held[at]):.6g}, where {float(bound[at]):.3g} is lawful"
                )
    return None


def writes_only_granted(judgement: Judgement) -> str | None:
    """What the machine saw, and a comparison of everything."""
    seen = violation(judgement.base.violations, {"ungranted-write", "write-conflict"})
    return seen or changed_inputs(*_scenes(judgement)) or _changed_elsewhere(*_scenes(judgement))


def _changed_elsewhere(before: LowBitScene, after: LowBitScene) -> str | None:
    pool = after.pool
    inside = pool.blocks * pool.block_size
    rings = pool.slot_view(pool.ring_key).shape[0]
    granted = torch.zeros(inside + rings * pool.ring, dtype=torch.bool)
    granted[after.granted] = True
    of_blocks = granted[:inside].view(pool.blocks, pool.block_size)
    of_rings = granted[inside:].view(rings, pool.ring)
    for name in (*PAGED, *RINGS):
        old, new = (bits_of(scene.pool.slot_view(getattr(scene.pool, name))) for scene in (before, after))
        mine = of_rings if name in RINGS else of_blocks[:, :: pool.group] if name in ("key_scale", "key_zero") else of_blocks
        changed = (old != new).flatten(2).any(-1) & ~mine
        if changed.any():
            row, slot = first(changed)
            return f"{after.case.operation} changed {name}[{row}, {slot}], which it was not granted"
    return None


def padding_inert(judgement: Judgement) -> str | None:
    """Rows of empty sequences give zeros; a store for nobody changes nothing."""
    case = judgement.case
    if case.operation == "store":
        empty = dataclasses.replace(case, lens=(0,) * len(case.lens))
        before, scene = stage(empty), stage(empty)
        found = judgement.call(scene)
        assert isinstance(before, LowBitScene)
        assert isinstance(scene, LowBitScene)
        seen = found.failure or violation(found.violations, {"ungranted-write", "out-of-bounds"}) or _changed_elsewhere(before, scene)
        return f"a store of padding alone: {seen}" if seen else None
    found = judgement.base
    if found.error or found.output is None:
        return found.failure
    for row, length in enumerate(case.lens):
        if length == 0 and not (found.output[row] == 0).all():
            return f"sequence {row} has no tokens, yet output[{row}] is not all zeros"
    return None


def copy_is_complete(judgement: Judgement) -> str | None:
    """Blocks with scales and zeros, rings with their recent tokens, bit by bit; and nothing else changed."""
    if judgement.base.error:
        return judgement.base.failure
    before, after = _scenes(judgement)
    return copy_fault(before, after) or _changed_elsewhere(before, after)


def copy_fault(before: LowBitScene, after: LowBitScene) -> str | None:
    """The first block or ring that is not what its source was."""
    for names, pairs in ((PAGED, after.pairs), (RINGS, after.ring_pairs)):
        for name in names:
            old, new = getattr(before.pool, name), getattr(after.pool, name)
            for source, target in pairs.tolist():
                different = bits_of(old[source]) != bits_of(new[target])
                if different.any():
                    what = "block" if names is PAGED else "ring"
                    return f"{name} of {what} {target} differs from {what} {source}, first at {first(different)} of it"
    return None
