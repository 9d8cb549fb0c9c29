"""Calls on a pool of the largest declared size, which exists only where it is touched.

A small scene is moved into a giant pool: same content, block ids spread from the first to the very last block and around every power of two
at which a 32-bit offset of elements or bytes would wrap. Results must be those of the small pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from kvproof.kernels import reference
from kvproof.kernels.contract import KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.laws.calls import Call, Launch, call
from kvproof.kernels.laws.cases import Case, families
from kvproof.kernels.laws.scenes import Scene, build
from kvproof.kernels.machine.limits import CALL_SECONDS
from kvproof.kernels.machine.memory import sparse_tensor

HEADROOM_BYTES = 4 << 30
"""Memory that an attend may take beside the pool: enough for any sensible scratch space, too little for a copy of the pool."""

MAX_BLOCK_ID = 2**31 - 1
"""Block tables are int32."""


@dataclasses.dataclass(frozen=True)
class GiantFailure:
    """What went wrong on the giant pool, and with which blocks."""

    reason: str
    case: str


def giant_cases(capabilities: KernelCapabilities) -> Iterator[Case]:
    """One case for each operation and layout, of the smallest element and the smallest head: the most elements and the most slots."""
    dtype = min(capabilities.dtypes, key=lambda name: getattr(torch, name).itemsize)
    size, ratio = max(capabilities.block_sizes), max(capabilities.gqa_ratios)
    lens = (1,) * 16
    for family in families(capabilities):
        head, rope = min(family.sizes)
        for quantisation, layout, kind in itertools.product(family.quantisations, capabilities.layouts, family.kinds):
            if quantisation == "int8" and layout == "HND" and "NHD" in capabilities.layouts:
                continue  # see `allowed`
            case = Case("attend", dtype, quantisation, layout, size, head, 1, ratio, lens, rope=rope, spare=0, garbage="zero", tail="zero")
            if kind == "prefill":
                yield dataclasses.replace(case, query_lens=lens)
            elif kind == "decode":
                yield case
            else:
                yield dataclasses.replace(case, operation=kind)  # type: ignore[arg-type]


def block_ids(case: Case, pool_bytes: int, itemsize: int, count: int, first: Sequence[int] = ()) -> list[int]:
    """`count` distinct ids, spread: those of `first`, the last ones, those around the wraps of 31, 32 and 33 bits of elements and bytes,
    the first ones.
    """
    per_block = case.block_size * case.kv_heads * case.key_size
    blocks = min(pool_bytes // (per_block * itemsize), MAX_BLOCK_ID)
    wanted = [*first, blocks - 1]
    for power in (31, 32, 33):
        for unit in (per_block, per_block * itemsize, case.block_size):
            wanted += [2**power // unit, 2**power // unit - 1]
    wanted += [blocks // 2 + 1, blocks - 2, *range(2 * count)]
    inside = [block for block in dict.fromkeys(wanted) if 0 <= block < blocks]
    chosen = sorted(inside[:count])
    # Sources of copies are the first half, destinations the second: both must reach far.
    return chosen[::2] + chosen[1::2]


def move(scene: Scene, ids: list[int], blocks: int) -> Scene:
    """The scene with its blocks at the given places of a pool of `blocks` blocks."""
    at, pool = torch.tensor(ids), scene.pool
    key = _spread(pool.key, at, blocks)
    value = key[..., : pool.latent_size] if pool.latent_size else _spread(pool.value, at, blocks)
    scales = [scale if scale is None or scale.dim() == 1 else _spread(scale, at, blocks) for scale in (pool.key_scale, pool.value_scale)]
    size = scene.case.block_size
    slots = torch.where(scene.slots < 0, scene.slots, at[scene.slots.clamp(min=0) // size] * size + scene.slots % size)
    tables = at[scene.tables.long()].to(torch.int32)
    return dataclasses.replace(
        scene, pool=KVPool(key, value, size, pool.layout, *scales), tables=tables, slots=slots, pairs=at[scene.pairs], owners={}
    )


def _spread(tensor: torch.Tensor, at: torch.Tensor, blocks: int) -> torch.Tensor:
    giant = sparse_tensor((blocks, *tensor.shape[1:]), tensor.dtype)
    for place, block in zip(at.tolist(), tensor, strict=True):
        giant[place].copy_(block)
    return giant


@dataclasses.dataclass(frozen=True)
class GiantRun:
    """A call on the giant pool: what failed, if anything, the launches that were made, and why it was stopped if it did not return."""

    failure: GiantFailure | None
    launches: tuple[Launch, ...] = ()
    stopped: str = ""


def run_giant(
    kernels: type[PagedKernels],
    capabilities: KernelCapabilities,
    case: Case,
    blocks: Sequence[int] = (),
    call_seconds: float = CALL_SECONDS,
) -> GiantRun:
    """Run one case on the giant pool, with the given blocks among those used. MemoryError where the system has no such address space."""
    small = build(case)
    itemsize, count = small.pool.key.element_size(), small.pool.blocks
    per_block = case.block_size * case.kv_heads * case.key_size
    total = min(capabilities.max_pool_bytes // (per_block * itemsize), MAX_BLOCK_ID)
    ids = block_ids(case, capabilities.max_pool_bytes, itemsize, count, [block for block in blocks if 0 <= block < total])
    if len(ids) < count:
        return GiantRun(None)
    giant = move(small, ids, total)
    with _headroom(case):
        found = call(kernels, giant, watched=False, record=True, seconds=call_seconds)
    if found.stopped:
        return GiantRun(None, tuple(found.launches), found.failure or "")
    narrow = "narrow-accumulation" in capabilities.features
    reason = _judge(small, giant, found, narrow=narrow)
    if reason:
        same = build(case)
        again = call(kernels, same, watched=False, seconds=call_seconds)
        if _judge(small, same, again, narrow=narrow):
            reason = None  # it fails in a small pool as well: other laws say so, and no address has to do with it
    where = f"{case} in a pool of {total} blocks, {capabilities.max_pool_bytes} bytes, at blocks {ids}"
    return GiantRun(GiantFailure(reason, where) if reason else None, tuple(found.launches))


def _judge(small: Scene, giant: Scene, found: Call, *, narrow: bool) -> str | None:
    case = small.case
    if found.error:
        return found.failure
    if found.violations:
        return str(found.violations[0])
    if case.operation == "attend":
        expected = reference.attend(
            small.pool,
            small.query,
            small.tables,
            small.seq_lens,
            **small.options,
            tf32=found.tf32,
            narrow=narrow,
        )
        assert found.output is not None
        bad = ~((found.output.double() - expected.output).abs() <= expected.bound)
        if bad.any():
            row = int(bad.flatten(1).any(1).nonzero()[0])
            return f"the row whose block is {int(giant.tables[row, 0])} read other elements: its output is wrong"
        return None
    return _judge_writes(case, small, giant)


def _judge_writes(case: Case, small: Scene, giant: Scene) -> str | None:
    for name, tensor, source in (
        ("key", giant.pool.slot_view(giant.pool.key), small.key),
        ("value", giant.pool.slot_view(giant.pool.value), small.value),
    ):
        if case.operation == "copy":
            for origin, target in giant.pairs.tolist():
                if not torch.equal(tensor[origin].view(torch.uint8), tensor[target].view(torch.uint8)):
                    return f"{name} of block {target} is not what block {origin} holds"
            continue
        for row, slot in enumerate(giant.slots.tolist()):
            if slot >= 0:
                held = tensor[slot // case.block_size, slot % case.block_size]
                if bool((source[row] != 0).any()) and not bool((held.float() != 0).any()):
                    return f"{name} of token {row} was not written to slot {slot} (block {slot // case.block_size})"
    return None


@contextlib.contextmanager
def _headroom(case: Case) -> Iterator[None]:
    """Refuse memory for a whole copy of the pool, which would otherwise take the machine down. Stores need shadows as large as the pool."""
    if case.operation != "attend":
        yield
        return
    import resource

    with open("/proc/self/statm") as source:  # noqa: PTH123 - a file of the kernel
        used = int(source.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
