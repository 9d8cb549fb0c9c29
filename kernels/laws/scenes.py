"""From a case to tensors, and what of them belongs to whom."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch

from kvproof.kernels.contract import KVPool, PagedKernels
from kvproof.kernels.laws.cases import ZERO_ROWS_EVERY, Case
from kvproof.kernels.laws.placing import first_block, place, tables_of
from kvproof.kernels.laws.watching import row_numbers, sequence_numbers, watch_pool, watch_rows
from kvproof.kernels.machine.memory import Memory

GARBAGE = {"zero": 0.0, "nan": float("nan"), "inf": float("inf"), "huge": 3e4}
"""`huge` still fits half precision, so that it stays a number in every type."""

FP8_SCALE = 0.25
"""A power of two: the scale itself adds no rounding, so the scheme's own bound is all that counts."""

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The number that the largest magnitude of a row is stored as, where each slot and head has a scale."""

SINK_SPREAD = 3.0
"""Sinks beside scores of about one: some heads give them nearly all weight, some nearly none."""


@dataclasses.dataclass
class Scene:
    """A case made real.

    `owners[slot]`: (sequence, position) pairs that live there. `granted`: slots that the call may write, `sources`: slots that a copy may
    read. `rows`: what a scatter writes; `target`, `target_slots`: where a move goes.
    """

    case: Case
    pool: KVPool
    tables: torch.Tensor
    seq_lens: torch.Tensor
    query_lens: torch.Tensor | None
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    slots: torch.Tensor
    pairs: torch.Tensor
    sinks: torch.Tensor | None
    rows: tuple[torch.Tensor, ...]
    target: KVPool | None
    target_slots: torch.Tensor
    owners: dict[int, list[tuple[int, int]]]
    scale: float

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `attend` and of the reference, only those that the case has: an adapter need not know the others."""
        return self.case.attention_options(self.scale, self.query_lens, self.sinks)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What attention must return."""
        return (*self.query.shape[:-1], self.pool.value.shape[-1])

    @functools.cached_property
    def lists(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What a list for the whole batch may hold: the blocks of all sequences, their slots, the slots before this call's queries. Each with
        the sequence of every entry.
        """
        if self.case.operation != "attend":
            return []
        size, lens = self.case.block_size, self.seq_lens.long()
        before = lens - (torch.ones_like(lens) if self.query_lens is None else self.query_lens)
        slots = [
            table[(at := torch.arange(count)) // size].long() * size + at % size for table, count in zip(self.tables, lens, strict=True)
        ]
        blocks = [table[: -(-count // size)].long() for table, count in zip(self.tables, lens.tolist(), strict=True)]
        prefixes = [part[: max(0, count)] for part, count in zip(slots, before.tolist(), strict=True)]
        return [(torch.cat(parts), sequence_numbers(parts)) for parts in (slots, blocks, prefixes)]

    @property
    def granted(self) -> list[int]:
        """Slots that this call may write."""
        if self.case.operation in ("store", "scatter"):
            return [slot for slot in self.slots.tolist() if slot >= 0]
        if self.case.operation == "copy":
            return self._slots_of(self.pairs[:, 1].tolist())
        return []

    @property
    def moved(self) -> list[tuple[int, int]]:
        """Source and target slots of a move that are both real."""
        pairs = zip(self.slots.tolist(), self.target_slots.tolist(), strict=True)
        return [(source, target) for source, target in pairs if source >= 0 and target >= 0]

    @property
    def readable(self) -> list[set[int]]:
        """For each sequence the slots that it has committed; for everything but attention one set for everyone."""
        if self.case.operation in ("store", "scatter"):
            return [set(self.granted)]
        if self.case.operation in ("gather", "move"):
            return [{slot for slot in self.slots.tolist() if slot >= 0}]
        if self.case.operation == "copy":
            return [set(self._slots_of(self.pairs[:, 0].tolist()))]
        sets: list[set[int]] = [set() for _ in self.case.lens]
        for slot, holders in self.owners.items():
            for seq, _ in holders:
                sets[seq].add(slot)
        return sets

    def _slots_of(self, blocks: Sequence[int]) -> list[int]:
        size = self.case.block_size
        return [block * size + offset for block in blocks for offset in range(size)]

    def invoke(self, kernels: PagedKernels) -> Any:  # noqa: ANN401 - whatever the adapter returns
        """The call that the scene is about."""
        match self.case.operation:
            case "store":
                return kernels.store(self.pool, self.key, self.value, self.slots)
            case "copy":
                return kernels.copy_blocks(self.pool, self.pairs)
            case "gather":
                return kernels.gather(self.pool, self.slots)
            case "scatter":
                return kernels.scatter(self.pool, self.rows, self.slots)
            case "move":
                assert self.target is not None
                return kernels.move(self.pool, self.target, self.slots, self.target_slots)
            case "attend":
                return kernels.attend(self.pool, self.query, self.tables, self.seq_lens, **self.options)

    def watch(self, memory: Memory) -> None:
        """Tell the machine's memory whose slots the pools hold and which row of the table is whose."""
        owners = [_owner(self, slot) for slot in range(self.pool.blocks * self.case.block_size)]
        watch_pool(memory, self.pool, self.readable, self.granted, owners)
        if self.target is not None:
            goals = [target for _, target in self.moved]
            size = self.target.block_size
            places = [f"block {slot // size}, offset {slot % size} of the target" for slot in range(self.target.blocks * size)]
            watch_pool(memory, self.target, [set(goals)], goals, places, "target_")
        if self.case.operation == "attend":
            watch_rows(memory.adopt(self.tables, "block_tables"), self.tables, row_numbers(self.tables))


def build(case: Case, *, garbage: str | None = None, rename: int = 0, only: int | None = None) -> Scene:
    """The tensors of a case. `garbage` overrides the case's, `rename` gives other physical blocks, `only` leaves one sequence."""
    layout, blocks = place(case, rename)
    pool = _pool(case, blocks)
    owners = _fill(case, pool, layout, garbage or case.garbage)
    tables = tables_of(case, layout, blocks)
    seqs = range(len(case.lens)) if only is None else [only]
    generator = torch.Generator().manual_seed(case.seed + 1)
    heads = case.kv_heads * case.ratio
    counts = case.query_lens or (1,) * len(case.lens)
    queries = [_normal(generator, (count, heads, case.key_size), case) * case.peak(seq) for seq, count in enumerate(counts)]
    store = _store_inputs(case, layout)
    target, target_slots = _move_target(case, len(store[2]))
    return Scene(
        case,
        pool,
        tables[list(seqs)].clone(),
        torch.tensor([case.lens[seq] for seq in seqs], dtype=torch.int32),
        None if case.query_lens is None else torch.tensor([case.query_lens[seq] for seq in seqs], dtype=torch.int32),
        _strided(torch.cat([queries[seq] for seq in seqs]).to(_dtype(case)), case),
        *store,
        _pairs(case, layout),
        torch.randn(heads, generator=torch.Generator().manual_seed(case.seed + 11)) * SINK_SPREAD if case.sinks else None,
        _rows(case, pool, len(store[2])),
        target,
        target_slots,
        owners,
        case.key_size**-0.5 * (0.8125 if case.seed % 2 else 1.0),
    )


def _dtype(case: Case) -> torch.dtype:
    return getattr(torch, case.dtype)  # type: ignore[no-any-return]


def _normal(generator: torch.Generator, shape: tuple[int, ...], case: Case) -> torch.Tensor:
    """Normal values that the input type holds exactly."""
    return torch.randn(shape, generator=generator).to(_dtype(case)).float()


def _pool(case: Case, blocks: int) -> KVPool:
    """An empty pool; interleaved keys and values are views into one tensor, block by block, as engines keep them."""
    size, heads, head = case.block_size, case.kv_heads, case.key_size
    shape = (blocks, size, heads, head) if case.layout == "NHD" else (blocks, heads, size, head)
    e4m3 = torch.float8_e4m3fn
    kind = {"": _dtype(case), "fp8": e4m3, "fp8-token": e4m3, "int8": torch.int8}[case.quantisation]
    if case.interleaved:
        both = torch.zeros((blocks, 2, *shape[1:]), dtype=torch.float32).to(kind)
        key, value = both[:, 0], both[:, 1]
    else:
        key, value = torch.zeros(shape, dtype=torch.float32).to(kind), torch.zeros(shape, dtype=torch.float32).to(kind)
    if case.rope:
        value = key[..., : case.head_size]
    scales: list[torch.Tensor | None] = [None, None]
    if case.quantisation == "fp8":
        scales = [torch.full((1,), FP8_SCALE), torch.full((1,), 2 * FP8_SCALE)]
    elif case.quantisation:
        scales = [torch.ones(blocks, size, heads), torch.ones(blocks, size, heads)]
    if case.rope:
        scales[1] = scales[0]
    return KVPool(key, value, size, case.layout, *scales)


def _fill(case: Case, pool: KVPool, layout: list[list[int]], garbage: str) -> dict[int, list[tuple[int, int]]]:
    """Garbage everywhere, then each sequence's tokens; a store case keeps garbage, since nothing is committed yet."""
    key, value = pool.slot_view(pool.key), pool.slot_view(pool.value)
    _spoil(pool, GARBAGE[garbage])
    owners: dict[int, list[tuple[int, int]]] = {}
    if case.operation in ("store", "scatter"):
        return owners
    for seq, table in enumerate(layout):
        at = torch.arange(first_block(case, seq) * case.block_size, case.lens[seq])
        block, offset = torch.tensor(table, dtype=torch.int64)[at // case.block_size], at % case.block_size
        slots = (block * case.block_size + offset).tolist()
        fresh = torch.tensor([slot not in owners for slot in slots], dtype=torch.bool)
        keys, values = _tokens(case, seq)
        # A latent is written with its key: on its own its row would have another scale.
        parts = ((key, pool.key_scale, keys), (value, pool.value_scale, values))
        for tensor, scale, rows in parts[: 1 if case.rope else 2]:
            _write(tensor, scale, rows[at][fresh], block[fresh], offset[fresh])
        for position, slot in zip(at.tolist(), slots, strict=True):
            owners.setdefault(slot, []).append((seq, position))
    return owners


def _spoil(pool: KVPool, number: float) -> None:
    for scale in (pool.key_scale, pool.value_scale):
        if scale is not None and scale.dim() > 1:
            scale.fill_(number)
    if pool.key.dtype == torch.int8:
        # Integers have no NaN: the garbage is in the scales.
        pool.key.fill_(77), pool.value.fill_(-77)
        return
    fp8 = pool.key.dtype == torch.float8_e4m3fn
    for tensor in (pool.key, pool.value):
        # fp8 has no infinity and no 30,000: its NaN and its largest number stand in.
        tensor.copy_(
            torch.full(tensor.shape, min(number, 448.0) if fp8 and number != float("inf") else float("nan") if fp8 else number).to(
                tensor.dtype
            )
        )


def _tokens(case: Case, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a sequence, `[tokens, kv_heads, elements]`, the same first tokens however long it is. Values lie around one: a
    narrow accumulator then loses bits that a zero mean would hide.
    """
    count = -(-case.lens[seq] // 256) * 256
    rows = _token_rows(case.seed * 1000003 + seq, (count, 2, case.kv_heads, case.key_size), case.dtype)
    if case.rope:
        return rows[:, 1], rows[:, 1, :, : case.head_size]
    if case.cancelling:
        half, rows = case.lens[seq] // 2, rows.clone()
        rows[half : 2 * half, 0] = rows[:half, 0]
        rows[half : 2 * half, 1] = -rows[:half, 1]
    return rows[:, 0], rows[:, 1]


@functools.lru_cache(maxsize=64)
def _token_rows(seed: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    rows[:, 1] += 1.0
    return rows.to(getattr(torch, dtype)).float()


def _write(tensor: torch.Tensor, scale: torch.Tensor | None, rows: torch.Tensor, block: torch.Tensor, offset: torch.Tensor) -> None:
    """Store rows as a correct store would."""
    if scale is not None and scale.dim() > 1:
        scale[block, offset] = rows.abs().amax(-1) / LARGEST[tensor.dtype]
        rows = rows / scale[block, offset].unsqueeze(-1)
    elif scale is not None:
        rows = rows / scale
    tensor[block, offset] = (rows.round() if tensor.dtype == torch.int8 else rows).to(tensor.dtype)


def _strided(tensor: torch.Tensor, case: Case) -> torch.Tensor:
    """Rows of a fused projection, as engines pass them, where the case is an interleaved one."""
    return torch.cat([tensor, tensor[:, :1]], 1)[:, :-1] if case.interleaved else tensor


def _store_inputs(case: Case, layout: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and slots: every token of every sequence, in random order, with a padding row for each sequence of length 0 and one at
    the end.
    """
    slots = []
    for seq, table in enumerate(layout):
        slots += [table[at // case.block_size] * case.block_size + at % case.block_size for at in range(case.lens[seq])] or [-1]
    slots.append(-1)
    generator = torch.Generator().manual_seed(case.seed + 5)
    order = torch.randperm(len(slots), generator=generator) if case.permuted else torch.arange(len(slots))
    shape = (len(slots), case.kv_heads, case.key_size)
    rows = [_normal(generator, shape, case).to(_dtype(case)) for _ in range(2)]
    if case.quantisation:
        for first_zero, part in enumerate(rows, 1):
            part[first_zero::ZERO_ROWS_EVERY, 0] = 0.0
    key, value = (_strided(part, case) for part in rows)
    if case.rope:
        value = key[..., : case.head_size]
    return key, value, torch.tensor(slots, dtype=torch.int64)[order]


def _rows(case: Case, pool: KVPool, count: int) -> tuple[torch.Tensor, ...]:
    """What a scatter writes: stored numbers, and the scales that belong to them."""
    if case.operation != "scatter":
        return ()
    generator = torch.Generator().manual_seed(case.seed + 13)
    shape = (count, case.kv_heads, case.key_size)
    kind, parts = pool.key.dtype, 1 if case.rope else 2
    rows = [(torch.randn(shape, generator=generator) * 20).round().to(kind) for _ in range(parts)]
    if pool.key_scale is not None and pool.key_scale.dim() > 1:
        rows += [torch.rand(*shape[:2], 1, generator=generator) for _ in range(parts)]
    return tuple(rows)


def _move_target(case: Case, count: int) -> tuple[KVPool | None, torch.Tensor]:
    """The pool that a move of `count` rows goes to, full of garbage, and the slots there, some of them -1. With further heads it is a view of a
    wider pool, the last heads of it.
    """
    if case.operation != "move" or case.target is None:
        return None, torch.zeros(0, dtype=torch.int64)
    layout, size, others = case.target
    blocks = -(-count // size) + case.spare
    wide = _pool(dataclasses.replace(case, layout=layout, block_size=size, kv_heads=case.kv_heads + others), blocks)
    _spoil(wide, GARBAGE[case.garbage])
    order = torch.randperm(blocks * size, generator=torch.Generator().manual_seed(case.seed + 17))[:count]
    order[1::7] = -1
    if not others:
        return wide, order
    key, value = (part.narrow(2 if layout == "NHD" else 1, others, case.kv_heads) for part in (wide.key, wide.value))
    scales = [scale if scale is None or scale.dim() == 1 else scale[..., others:] for scale in (wide.key_scale, wide.value_scale)]
    return KVPool(key, value, size, layout, *scales), order


def _pairs(case: Case, layout: list[list[int]]) -> torch.Tensor:
    """Each owned block to one that nobody holds."""
    owned = sorted({block for table in layout for block in table}) if case.operation == "copy" else []
    size = 2 * (len(owned) + case.spare)
    free = [block for block in range(size) if block not in owned]
    return torch.tensor(list(zip(owned, free, strict=False)), dtype=torch.int64).reshape(-1, 2)


def _owner(scene: Scene, slot: int) -> str:
    place = f"block {slot // scene.case.block_size}, offset {slot % scene.case.block_size}"
    holders = scene.owners.get(slot)
    if not holders:
        return f"{place}: no sequence's"
    return f"{place}: " + ", ".join(f"sequence {seq} position {position}" for seq, position in holders)
