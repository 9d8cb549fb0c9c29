"""The kernel laws. Each judge looks at calls of one case and says why its law is broken; None says that it is not."""

from __future__ import annotations

import dataclasses

import torch

from kvproof.kernels import reference
from kvproof.kernels.contract import MOVES
from kvproof.kernels.laws import lowbit_judges as low_bits
from kvproof.kernels.laws.calls import Call
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.judgement import Judgement, Law, outside, violation
from kvproof.kernels.laws.move_judges import relayout_is_bijection
from kvproof.kernels.laws.pools import bits_of, changed_elsewhere, changed_inputs, first, tensors
from kvproof.kernels.laws.scenes import FP8_SCALE, LARGEST, Scene
from kvproof.kernels.laws.staging import stage

__all__ = ["LAWS", "SENTENCES", "Judgement", "Law"]

SENTENCES = {
    "paged-equals-contiguous": "Attention over the paged pool equals attention over the contiguous sequence in float64, "
    "within the bound of its storage and accumulation types.",
    "reads-only-owned": "Each program reads only committed slots of the sequences it serves.",
    "writes-only-granted": "Each program writes only slots it was granted; a slot of -1 writes nothing.",
    "in-bounds": "No access leaves its tensor.",
    "no-address-overflow": "No address computation wraps at the largest pool the capabilities declare.",
    "garbage-independent": "Changing any slot that no live sequence owns, to NaN included, changes no output bit.",
    "rename-invariant": "Renaming physical blocks changes no output bit.",
    "batch-invariant": "A sequence's output does not depend on which other sequences share the batch, within the claimed exactness.",
    "padding-inert": "Padded lanes (captured graphs, empty sequences) write nothing and yield no NaN.",
    "copy-is-complete": "A block copy moves keys, values and scales of every layer and nothing else.",
    "relayout-is-bijection": "Converting between layouts or shard counts moves every (layer, head, position) element exactly once, scales included.",
    "quantised-within-bound": "The stored value differs from the original by no more than its scheme allows, element by element.",
}


def _is_attend(judgement: Judgement) -> bool:
    return judgement.case.operation == "attend"


def paged_equals_contiguous(judgement: Judgement) -> str | None:
    """Attention against the reference; a store of an unquantised pool must keep every bit."""
    found = judgement.base
    if found.error:
        return found.failure
    if judgement.case.operation == "store":
        return _stored_exactly(judgement)
    scene, _ = judgement.scenes
    expected = reference.attend(
        scene.pool,
        scene.query,
        scene.tables,
        scene.seq_lens,
        **scene.options,
        tf32=found.tf32,
        narrow="narrow-accumulation" in judgement.capabilities.features,
    )
    return outside(judgement, expected)


def _stored_exactly(judgement: Judgement) -> str | None:
    _, scene = judgement.scenes
    for name, tensor, source in (("key", scene.pool.key, scene.key), ("value", scene.pool.value, scene.value)):
        for row, slot in enumerate(scene.slots.tolist()):
            if slot >= 0:
                held = scene.pool.slot_view(tensor)[slot // judgement.case.block_size, slot % judgement.case.block_size]
                if not torch.equal(held, source[row]):
                    at = first(held != source[row])
                    got, want = float(held[at]), float(source[row][at])
                    return f"{name} of token {row} in slot {slot}, head {at[0]}, element {at[1]}: {got:.9g} instead of {want:.9g}"
    return None


def reads_only_owned(judgement: Judgement) -> str | None:
    """What the machine saw."""
    return violation(judgement.base.violations, {"unowned-read", "uninitialised-read", "read-write-conflict"})


def in_bounds(judgement: Judgement) -> str | None:
    """What the machine saw."""
    return violation(judgement.base.violations, {"out-of-bounds", "misaligned", "unknown-address"})


def writes_only_granted(judgement: Judgement) -> str | None:
    """What the machine saw, and a comparison of arguments and the whole pool, which also sees what plain torch wrote."""
    seen = violation(judgement.base.violations, {"ungranted-write", "write-conflict"})
    return seen or changed_inputs(*judgement.scenes) or changed_elsewhere(*judgement.scenes)


def garbage_independent(judgement: Judgement) -> str | None:
    """Zeros instead of garbage."""
    return _same_output(
        judgement, judgement.again(garbage="zero"), f"with {judgement.case.garbage} in slots that nobody owns", "with zeros there"
    )


def rename_invariant(judgement: Judgement) -> str | None:
    """Other physical blocks for the same sequences."""
    return _same_output(judgement, judgement.again(rename=1), "with the case's blocks", "with the same content in other blocks")


def _same_output(judgement: Judgement, other: Call, this: str, that: str) -> str | None:
    here, there = judgement.base, other
    if here.error or there.error:
        return None if here.error == there.error else f"{this}: {here.error or 'no error'}; {that}: {there.error or 'no error'}"
    if judgement.case.operation == "store":
        return None
    assert here.output is not None
    assert there.output is not None
    different = bits_of(here.output) != bits_of(there.output)
    if not different.any():
        return None
    at = first(different)
    return f"output[{', '.join(map(str, at))}] is {float(here.output[at]):.9g} {this} and {float(there.output[at]):.9g} {that}"


def batch_invariant(judgement: Judgement) -> str | None:
    """The first, the last and the longest sequence alone."""
    found = judgement.base
    if found.error or found.output is None:
        return None
    starts = [0]
    for count in judgement.case.query_lens or (1,) * len(judgement.case.lens):
        starts.append(starts[-1] + count)
    lens = judgement.case.lens
    for seq in sorted({0, len(lens) - 1, lens.index(max(lens))}):
        if starts[seq] == starts[seq + 1]:
            continue  # an empty sequence of a prefill has no rows
        alone = judgement.again(only=seq)
        if alone.error or alone.output is None:
            return f"sequence {seq} alone: {alone.error}"
        different = bits_of(alone.output) != bits_of(found.output[starts[seq] : starts[seq + 1]])
        if different.any():
            row, *rest = first(different)
            at, both = (row, *rest), (starts[seq] + row, *rest)
            apart, together = float(alone.output[at]), float(found.output[both])
            return f"row {row} of sequence {seq} alone gives {apart:.9g}, in the batch {together:.9g} at {rest}"
    return None


def _has_padding(judgement: Judgement) -> bool:
    case = judgement.case
    return case.operation == "store" or (case.operation == "attend" and case.query_lens is None and 0 in case.lens)


def padding_inert(judgement: Judgement) -> str | None:
    """Rows of empty sequences give zeros; a store of nothing but padding changes nothing."""
    if judgement.case.operation == "store":
        return _padding_writes_nothing(judgement)
    found = judgement.base
    if found.error or found.output is None:
        return found.failure
    for row, length in enumerate(judgement.case.lens):
        if length == 0 and not (found.output[row] == 0).all():
            at = first(~(found.output[row] == 0))
            return f"sequence {row} has no tokens, yet output[{row}, {', '.join(map(str, at))}] is {float(found.output[row][at])}, not 0"
    return None


def _padding_writes_nothing(judgement: Judgement) -> str | None:
    empty = dataclasses.replace(judgement.case, lens=(0,) * len(judgement.case.lens))
    before, scene = stage(empty), stage(empty)
    found = judgement.call(scene)
    if found.error:
        return found.failure
    assert isinstance(before, Scene)
    assert isinstance(scene, Scene)
    seen = violation(found.violations, {"ungranted-write", "out-of-bounds"})
    return f"a store of padding alone: {seen}" if seen else changed_elsewhere(before, scene)


def copy_is_complete(judgement: Judgement) -> str | None:
    """Bit by bit, destination against what the source was; and nothing else changed."""
    if judgement.base.error:
        return judgement.base.failure
    before, after = judgement.scenes
    for (name, old), (_, new) in zip(tensors(before.pool), tensors(after.pool), strict=True):
        for source, target in after.pairs.tolist():
            different = bits_of(old[source]) != bits_of(new[target])
            if different.any():
                return f"{name} of block {target} differs from block {source}, first at {first(different)} of the block"
    return changed_elsewhere(before, after)


def quantised_within_bound(judgement: Judgement) -> str | None:
    """fp8: half an ulp of e4m3 after the scale, saturated. int8: half a step of the row's largest magnitude / 127. fp8-token: as fp8, with the
    row's largest magnitude / 448 for a scale.
    """
    _, scene = judgement.scenes
    if judgement.base.error:
        return judgement.base.failure
    # A latent is a part of its key, whose row has one scale.
    parts = ((True, "key", scene.key), (False, "value", scene.value))
    for is_key, name, source in parts[: 1 if judgement.case.rope else 2]:
        stored = reference.dequantised(scene.pool, key=is_key)
        for row, slot in enumerate(scene.slots.tolist()):
            if slot < 0:
                continue
            held, wanted = stored[slot // judgement.case.block_size, slot % judgement.case.block_size], source[row].double()
            bad = ~((held - wanted).abs() <= _scheme_bound(judgement.case, wanted, FP8_SCALE * (1 if is_key else 2)))
            if bad.any():
                at = first(bad)
                return f"{name} of token {row}, head {at[0]}, element {at[1]}: {float(wanted[at]):.6g} was stored as {float(held[at]):.6g}"
    return None


def _scheme_bound(case: Case, wanted: torch.Tensor, scale: float) -> torch.Tensor:
    if case.quantisation == "int8":
        return wanted.abs().amax(-1, keepdim=True) / 127 * 0.5 * (1 + 1e-4) + 1e-30
    if case.quantisation == "fp8-token":
        smallest = wanted.abs().amax(-1, keepdim=True) / LARGEST[torch.float8_e4m3fn] * 2.0**-10
        return torch.maximum(wanted.abs() / 16, smallest.expand_as(wanted)) * (1 + 1e-3) + 1e-30
    # e4m3: 4 bits of significand, smallest step 2^-9; beyond 448 it saturates. A tenth of a percent for the division by the scale.
    return torch.maximum(wanted.abs() / 16, torch.full_like(wanted, scale * 2.0**-10)) * (1 + 1e-3) + (wanted.abs() - 448 * scale).clamp(
        min=0
    )


def _is_move(judgement: Judgement) -> bool:
    return judgement.case.operation in MOVES


LAWS = (
    Law("relayout-is-bijection", _is_move, relayout_is_bijection),
    Law(
        "paged-equals-contiguous",
        lambda j: _is_attend(j) or (j.case.operation == "store" and (not j.case.quantisation or j.case.low_bits is not None)),
        paged_equals_contiguous,
        low_bits=low_bits.paged_equals_contiguous,
    ),
    Law("reads-only-owned", lambda _: True, reads_only_owned, needs_machine=True),
    Law("writes-only-granted", lambda _: True, writes_only_granted, low_bits=low_bits.writes_only_granted),
    Law("in-bounds", lambda _: True, in_bounds, needs_machine=True),
    Law("garbage-independent", _is_attend, garbage_independent),
    Law("rename-invariant", _is_attend, rename_invariant),
    Law("batch-invariant", lambda j: _is_attend(j) and j.capabilities.batch_invariant and len(j.case.lens) > 1, batch_invariant),
    Law("padding-inert", _has_padding, padding_inert, low_bits=low_bits.padding_inert),
    Law("copy-is-complete", lambda j: j.case.operation == "copy", copy_is_complete, low_bits=low_bits.copy_is_complete),
    Law(
        "quantised-within-bound",
        lambda j: j.case.operation == "store" and bool(j.case.quantisation or j.case.low_bits),
        quantised_within_bound,
        low_bits=low_bits.quantised_within_bound,
    ),
)
"""The laws that cases judge; `no-address-overflow` is judged once for each kernel, see `overflow`."""
