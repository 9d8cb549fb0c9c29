"""The kernel laws. Each judge looks at calls of one case and says why its law is broken; None says that it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from kvproof.kernels import reference
from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.laws.calls import Call, call
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.scenes import FP8_SCALE, Scene, build
from kvproof.kernels.machine import Violation
from kvproof.kernels.machine.limits import CALL_SECONDS

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
    "quantised-within-bound": "The stored value differs from the original by no more than its scheme allows, element by element.",
}


class Judgement:
    """The calls of one case, made when a law asks for them."""

    def __init__(
        self, kernels: type[PagedKernels], capabilities: KernelCapabilities, case: Case, call_seconds: float = CALL_SECONDS
    ) -> None:
        self.kernels, self.capabilities, self.case, self.call_seconds = kernels, capabilities, case, call_seconds
        self.before = build(case)
        self.scene = build(case)
        self._base: Call | None = None

    @property
    def base(self) -> Call:
        """The watched call of the case as it is."""
        if self._base is None:
            self._base = self.call(self.scene)
        return self._base

    def again(self, *, garbage: str | None = None, rename: int = 0, only: int | None = None) -> Call:
        """The same case with something changed that may not matter."""
        return self.call(build(self.case, garbage=garbage, rename=rename, only=only), watched=False)

    def call(self, scene: Scene, *, watched: bool = True) -> Call:
        """The kernels on a scene, within the time that a call has."""
        return call(self.kernels, scene, watched=watched, seconds=self.call_seconds)


Judge = Callable[[Judgement], str | None]


@dataclasses.dataclass(frozen=True)
class Law:
    """`applies` says whether a case touches the law, `judge` why it is broken (None: it is not)."""

    name: str
    applies: Callable[[Judgement], bool]
    judge: Judge
    needs_machine: bool = False


def _violation(found: list[Violation], kinds: set[str]) -> str | None:
    for violation in found:
        if violation.kind in kinds:
            return str(violation)
    return None


def _is_attend(judgement: Judgement) -> bool:
    return judgement.case.operation == "attend"


def _first(bad: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(part) for part in bad.nonzero()[0])


def paged_equals_contiguous(judgement: Judgement) -> str | None:
    """Attention against the reference; a store of an unquantised pool must keep every bit."""
    found = judgement.base
    if found.error:
        return found.failure
    if judgement.case.operation == "store":
        return _stored_exactly(judgement)
    scene = judgement.before
    expected = reference.attend(
        scene.pool,
        scene.query,
        scene.tables,
        scene.seq_lens,
        **scene.options,
        tf32=found.tf32,
        narrow="narrow-accumulation" in judgement.capabilities.features,
    )
    assert found.output is not None
    if found.output.dtype != scene.query.dtype:
        return f"attend returned {found.output.dtype} for a query of {scene.query.dtype}"
    error = (found.output.double() - expected.output).abs()
    bad = ~(error <= expected.bound)
    if judgement.case.query_lens is None:
        # Rows of empty sequences are the business of padding-inert.
        bad &= (scene.seq_lens > 0).view(-1, 1, 1)
    if not bad.any():
        return None
    at = _first(bad)
    precision = " (tf32 dots)" if found.tf32 else ""
    got, want = float(found.output[at]), float(expected.output[at])
    return f"output[{', '.join(map(str, at))}] is {got:.9g}, it must be {want:.9g} within {float(expected.bound[at]):.3g}{precision}"


def _stored_exactly(judgement: Judgement) -> str | None:
    scene = judgement.scene
    for name, tensor, source in (("key", scene.pool.key, scene.key), ("value", scene.pool.value, scene.value)):
        for row, slot in enumerate(scene.slots.tolist()):
            if slot >= 0:
                held = scene.pool.slot_view(tensor)[slot // judgement.case.block_size, slot % judgement.case.block_size]
                if not torch.equal(held, source[row]):
                    at = _first(held != source[row])
                    got, want = float(held[at]), float(source[row][at])
                    return f"{name} of token {row} in slot {slot}, head {at[0]}, element {at[1]}: {got:.9g} instead of {want:.9g}"
    return None


def reads_only_owned(judgement: Judgement) -> str | None:
    """What the machine saw."""
    return _violation(judgement.base.violations, {"unowned-read", "uninitialised-read", "read-write-conflict"})


def in_bounds(judgement: Judgement) -> str | None:
    """What the machine saw."""
    return _violation(judgement.base.violations, {"out-of-bounds", "misaligned", "unknown-address"})


def writes_only_granted(judgement: Judgement) -> str | None:
    """What the machine saw, and a comparison of the whole pool, which also sees what plain torch wrote."""
    seen = _violation(judgement.base.violations, {"ungranted-write", "write-conflict"})
    return seen or _changed_elsewhere(judgement.before, judgement.scene)


def _tensors(pool: KVPool) -> list[tuple[str, torch.Tensor]]:
    """Everything of a pool that has slots, as `[blocks, block_size, kv_heads, ...]`."""
    named = [("key", pool.slot_view(pool.key)), ("value", pool.slot_view(pool.value))]
    named += [
        (name, scale)
        for name, scale in (("key_scale", pool.key_scale), ("value_scale", pool.value_scale))
        if scale is not None and scale.dim() > 1
    ]
    return named


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def _changed_elsewhere(before: Scene, after: Scene) -> str | None:
    granted = torch.zeros(after.pool.blocks * after.case.block_size, dtype=torch.bool)
    granted[after.granted] = True
    granted = granted.view(after.pool.blocks, after.case.block_size)
    for (name, old), (_, new) in zip(_tensors(before.pool), _tensors(after.pool), strict=True):
        changed = (_bits(old) != _bits(new)).flatten(2).any(-1) & ~granted
        if changed.any():
            block, offset = _first(changed)
            return f"{after.case.operation} changed {name} of block {block}, offset {offset}, which it was not granted"
    if after.pool.key.untyped_storage().nbytes() > after.pool.key.numel() * after.pool.key.element_size():
        return _changed_gaps(before.pool, after.pool)
    return None


def _changed_gaps(before: KVPool, after: KVPool) -> str | None:
    """Padding between the rows of interleaved pools belongs to nobody."""
    kinds = [torch.empty(0, dtype=pool.key.dtype).set_(pool.key.untyped_storage()).view(-1) for pool in (before, after)]
    changed = _bits(kinds[0]) != _bits(kinds[1])
    for tensor in (after.key, after.value):
        changed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).fill_(False)
    return (
        f"element {int(changed.nonzero()[0])} of the pool's storage changed, which lies between the rows of the tensors"
        if changed.any()
        else None
    )


def garbage_independent(judgement: Judgement) -> str | None:
    """Zeros instead of garbage."""
    return _same_output(
        judgement, judgement.again(garbage="zero"), f"with {judgement.case.garbage} in slots that nobody owns", "with zeros there"
    )


def rename_invariant(judgement: Judgement) -> str | None:
    """Other physical blocks for the same sequences."""
    return _same_output(judgement, judgement.again(rename=1), "with the case's blocks", "with the same content in other blocks")


def _same_output(judgement: Judgement, other: Call, this: str, that: str) -> str | None:
    first, second = judgement.base, other
    if first.error or second.error:
        return None if first.error == second.error else f"{this}: {first.error or 'no error'}; {that}: {second.error or 'no error'}"
    if judgement.case.operation == "store":
        return None
    assert first.output is not None
    assert second.output is not None
    different = _bits(first.output) != _bits(second.output)
    if not different.any():
        return None
    at = _first(different)
    return f"output[{', '.join(map(str, at))}] is {float(first.output[at]):.9g} {this} and {float(second.output[at]):.9g} {that}"


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
        alone = judgement.again(only=seq)
        if alone.error or alone.output is None:
            return f"sequence {seq} alone: {alone.error}"
        different = _bits(alone.output) != _bits(found.output[starts[seq] : starts[seq + 1]])
        if different.any():
            row, *rest = _first(different)
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
            at = _first(~(found.output[row] == 0))
            return f"sequence {row} has no tokens, yet output[{row}, {', '.join(map(str, at))}] is {float(found.output[row][at])}, not 0"
    return None


def _padding_writes_nothing(judgement: Judgement) -> str | None:
    empty = dataclasses.replace(judgement.case, lens=(0,) * len(judgement.case.lens))
    before, scene = build(empty), build(empty)
    found = judgement.call(scene)
    if found.error:
        return found.failure
    seen = _violation(found.violations, {"ungranted-write", "out-of-bounds"})
    return f"a store of padding alone: {seen}" if seen else _changed_elsewhere(before, scene)


def copy_is_complete(judgement: Judgement) -> str | None:
    """Bit by bit, destination against what the source was; and nothing else changed."""
    if judgement.base.error:
        return judgement.base.failure
    for (name, old), (_, new) in zip(_tensors(judgement.before.pool), _tensors(judgement.scene.pool), strict=True):
        for source, target in judgement.scene.pairs.tolist():
            different = _bits(old[source]) != _bits(new[target])
            if different.any():
                return f"{name} of block {target} differs from block {source}, first at {_first(different)} of the block"
    return _changed_elsewhere(judgement.before, judgement.scene)


def quantised_within_bound(judgement: Judgement) -> str | None:
    """fp8: half an ulp of e4m3 after the scale, saturated. int8: half a step of the row's largest magnitude / 127."""
    scene = judgement.scene
    if judgement.base.error:
        return judgement.base.failure
    for is_key, name, source in ((True, "key", scene.key), (False, "value", scene.value)):
        stored = reference.dequantised(scene.pool, key=is_key)
        for row, slot in enumerate(scene.slots.tolist()):
            if slot < 0:
                continue
            held, wanted = stored[slot // judgement.case.block_size, slot % judgement.case.block_size], source[row].double()
            bad = ~((held - wanted).abs() <= _scheme_bound(judgement.case, wanted, FP8_SCALE * (1 if is_key else 2)))
            if bad.any():
                at = _first(bad)
                return f"{name} of token {row}, head {at[0]}, element {at[1]}: {float(wanted[at]):.6g} was stored as {float(held[at]):.6g}"
    return None


def _scheme_bound(case: Case, wanted: torch.Tensor, scale: float) -> torch.Tensor:
    if case.quantisation == "int8":
        return wanted.abs().amax(-1, keepdim=True) / 127 * 0.5 * (1 + 1e-4) + 1e-30
    # e4m3: 4 bits of significand, smallest step 2^-9; beyond 448 it saturates. A tenth of a percent for the division by the scale.
    return torch.maximum(wanted.abs() / 16, torch.full_like(wanted, scale * 2.0**-10)) * (1 + 1e-3) + (wanted.abs() - 448 * scale).clamp(
        min=0
    )


LAWS = (
    Law(
        "paged-equals-contiguous",
        lambda j: _is_attend(j) or (j.case.operation == "store" and not j.case.quantisation),
        paged_equals_contiguous,
    ),
    Law("reads-only-owned", lambda _: True, reads_only_owned, needs_machine=True),
    Law("writes-only-granted", lambda _: True, writes_only_granted),
    Law("in-bounds", lambda _: True, in_bounds, needs_machine=True),
    Law("garbage-independent", _is_attend, garbage_independent),
    Law("rename-invariant", _is_attend, rename_invariant),
    Law("batch-invariant", lambda j: _is_attend(j) and j.capabilities.batch_invariant and len(j.case.lens) > 1, batch_invariant),
    Law("padding-inert", _has_padding, padding_inert),
    Law("copy-is-complete", lambda j: j.case.operation == "copy", copy_is_complete),
    Law("quantised-within-bound", lambda j: j.case.operation == "store" and bool(j.case.quantisation), quantised_within_bound),
)
"""The laws that cases judge; `no-address-overflow` is judged once for each kernel, see `overflow`."""
