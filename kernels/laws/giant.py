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
from kvproof.kernels.contract import MOVES, KernelCapabilities, KVPool, PagedKernels
from kvproof.kernels.laws.calls import Call, Launch, call
from kvproof.kernels.laws.cases import Case, Family, allowed, families
from kvproof.kernels.laws.lowbit_giant import judge_low_bits, move_low_bits, spread
from kvproof.kernels.laws.lowbit_scenes import LowBitScene
from kvproof.kernels.laws.pools import bits_of, own_tensors
from kvproof.kernels.laws.scenes import Scene
from kvproof.kernels.laws.staging import AnyScene, stage
from kvproof.kernels.machine.limits import CALL_SECONDS

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
    ratio = max(capabilities.gqa_ratios)
    lens = (1,) * 16
    for family in _judged(capabilities):
        head, rope = min(family.sizes)
        size = max(family.blocks or capabilities.block_sizes)
        for quantisation, layout, kind in itertools.product(family.quantisations, capabilities.layouts, family.kinds):
            if kind in MOVES and quantisation not in (family.quantisations[0], family.quantisations[-1]):
                continue  # moves carry scales or not; of which type the numbers are is nothing to an address
            case = Case("attend", dtype, quantisation, layout, size, head, 1, ratio, lens, rope=rope, spare=0, garbage="zero", tail="zero")
            if family.low_bits[0]:
                case = _with_groups(case, family.low_bits[0])
            if case != allowed(case, capabilities):
                continue
            if kind == "prefill":
                yield dataclasses.replace(case, query_lens=(1,) * len(case.lens))
            elif kind == "decode":
                yield case
            else:
                target = (layout, size, 0) if kind == "move" else None
                yield dataclasses.replace(case, operation=kind, target=target)  # type: ignore[arg-type]


def _judged(capabilities: KernelCapabilities) -> Iterator[Family]:
    """Every family, but each low-bit scheme only with its smallest block and head, of which there are most."""
    found = families(capabilities)
    yield from (family for family in found if not family.blocks)
    for scheme in dict.fromkeys(family.low_bits for family in found if family.blocks):
        yield min((family for family in found if family.low_bits == scheme), key=lambda family: (family.blocks, family.sizes))


def _with_groups(case: Case, scheme: tuple[int, int, int, int, str]) -> Case:
    """One sequence with tokens in several blocks and in its ring, stored from the first on: of several, the solver would have to know that the
    rows of a pass are those of one sequence after the other.
    """
    return dataclasses.replace(case, low_bits=scheme, lens=(scheme[3] + 4 * max(scheme[1], case.block_size),))


def block_ids(case: Case, per_block: int, blocks: int, itemsize: int, count: int, first: Sequence[int] = ()) -> list[int]:
    """`count` distinct ids, spread: those of `first`, the last ones, those around the wraps of 31, 32 and 33 bits of elements and bytes,
    the first ones. A block has `per_block` elements of a key, the pool `blocks`.
    """
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
    everywhere, pool = torch.tensor(ids), scene.pool
    at = everywhere[: pool.blocks]
    size = scene.case.block_size
    tables = at[scene.tables.long()].to(torch.int32)
    found = dataclasses.replace(
        scene,
        pool=_spread_pool(pool, at, blocks),
        tables=tables,
        slots=_at(scene.slots, at, size),
        pairs=at[scene.pairs],
        owners={},
    )
    if scene.target is None:
        return found
    goal = scene.target
    # The last of the ids for the first of the target's blocks: both sides of a move reach far.
    there = everywhere.flip(0)[: goal.blocks]
    target = _spread_pool(goal, there, blocks)
    return dataclasses.replace(found, target=target, target_slots=_at(scene.target_slots, there, size))


def _spread_pool(pool: KVPool, at: torch.Tensor, blocks: int) -> KVPool:
    key = spread(pool.key, at, blocks)
    value = key[..., : pool.latent_size] if pool.latent_size else spread(pool.value, at, blocks)
    scales = [scale if scale is None or scale.dim() == 1 else spread(scale, at, blocks) for scale in (pool.key_scale, pool.value_scale)]
    if pool.latent_size:
        scales[1] = scales[0]
    return KVPool(key, value, pool.block_size, pool.layout, *scales)


def _at(slots: torch.Tensor, blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Slots in other blocks; -1 stays."""
    return torch.where(slots < 0, slots, blocks[slots.clamp(min=0) // size] * size + slots % size)


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
    small = stage(case)
    itemsize, count = small.pool.key.element_size(), small.pool.blocks
    if isinstance(small, Scene) and small.target is not None:
        count = max(count, small.target.blocks)
    per_block = small.pool.key[0].numel()
    total = min(capabilities.max_pool_bytes // (per_block * itemsize), MAX_BLOCK_ID)
    ids = block_ids(case, per_block, total, itemsize, count, [block for block in blocks if 0 <= block < total])
    if len(ids) < count:
        return GiantRun(None)
    giant = move_low_bits(small, ids, total) if isinstance(small, LowBitScene) else move(small, ids, total)
    with _headroom(case):
        found = call(kernels, giant, watched=False, record=True, seconds=call_seconds)
    if found.stopped:
        return GiantRun(None, tuple(found.launches), found.failure or "")
    narrow = "narrow-accumulation" in capabilities.features
    reason = _judge(small, giant, found, narrow=narrow)
    if reason:
        same = stage(case)
        again = call(kernels, same, watched=False, seconds=call_seconds)
        if _judge(small, same, again, narrow=narrow):
            reason = None  # it fails in a small pool as well: other laws say so, and no address has to do with it
    where = f"{case} in a pool of {total} blocks, {capabilities.max_pool_bytes} bytes, at blocks {ids}"
    return GiantRun(GiantFailure(reason, where) if reason else None, tuple(found.launches))


def _judge(small: AnyScene, giant: AnyScene, found: Call, *, narrow: bool) -> str | None:
    case = small.case
    if found.error:
        return found.failure
    if found.violations:
        return str(found.violations[0])
    if isinstance(small, LowBitScene):
        assert isinstance(giant, LowBitScene)
        return judge_low_bits(small, giant, found, narrow=narrow)
    assert isinstance(giant, Scene)
    if case.operation in MOVES:
        return _judge_moves(small, giant, found)
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


def _judge_moves(small: Scene, giant: Scene, found: Call) -> str | None:
    """Each row is what the same row is in the small pool."""
    for row, (slot, origin) in enumerate(zip(giant.slots.tolist(), small.slots.tolist(), strict=True)):
        if origin < 0:
            continue
        wanted = _slot(small.pool, origin)
        if small.case.operation == "gather":
            got = [rows[row] for rows in found.returned]
        elif small.case.operation == "scatter":
            wanted, got = [rows[row] for rows in small.rows], _slot(giant.pool, slot)
        elif int(giant.target_slots[row]) >= 0:
            assert giant.target is not None
            got = _slot(giant.target, int(giant.target_slots[row]))
        else:
            continue
        if not all(torch.equal(bits_of(one.flatten()), bits_of(other.flatten())) for one, other in zip(wanted, got, strict=True)):
            return f"row {row} of the {small.case.operation}, slot {slot}, is not what it is in a small pool"
    return None


def _slot(pool: KVPool, slot: int) -> list[torch.Tensor]:
    return [tensor[divmod(slot, pool.block_size)] for _, tensor in own_tensors(pool)]


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
