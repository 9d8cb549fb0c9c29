"""From a case to tensors, and what of them belongs to whom."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from kvproof.kernels.contract import KVPool
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.machine.memory import Memory, Storage, Watch

GARBAGE = {"zero": 0.0, "nan": float("nan"), "inf": float("inf"), "huge": 3e4}
"""`huge` still fits half precision, so that it stays a number in every type."""

FP8_SCALE = 0.25
"""A power of two: the scale itself adds no rounding, so the scheme's own bound is all that counts."""

TELLING_ENTRIES = 4
"""A shorter list of blocks may equal a list of anything by chance, and so may one that counts from 0."""

SINK_SPREAD = 3.0
"""Sinks beside scores of about one: some heads give them nearly all weight, some nearly none."""


@dataclasses.dataclass
class Scene:
    """A case made real.

    `owners[slot]`: (sequence, position) pairs that live there. `granted`: slots that the call may write, `sources`: slots that a copy may
    read.
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
    owners: dict[int, list[tuple[int, int]]]
    scale: float

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `attend` and of the reference, only those that the case has: an adapter need not know the others."""
        case = self.case
        options = {"query_lens": self.query_lens, "window": case.window, "sinks": self.sinks, "soft_cap": case.soft_cap}
        return {"scale": self.scale} | {name: value for name, value in options.items() if value is not None}

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
        return [(torch.cat(parts), _sequence_numbers(parts)) for parts in (slots, blocks, prefixes)]

    @property
    def granted(self) -> list[int]:
        """Slots that this call may write."""
        if self.case.operation == "store":
            return [slot for slot in self.slots.tolist() if slot >= 0]
        if self.case.operation == "copy":
            return self._slots_of(self.pairs[:, 1].tolist())
        return []

    @property
    def readable(self) -> list[set[int]]:
        """For each sequence the slots that it has committed; for store and copy one set for everyone."""
        if self.case.operation == "store":
            return [set(self.granted)]
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


def build(case: Case, *, garbage: str | None = None, rename: int = 0, only: int | None = None) -> Scene:
    """The tensors of a case. `garbage` overrides the case's, `rename` gives other physical blocks, `only` leaves one sequence."""
    layout, blocks = _place(case, rename)
    pool = _pool(case, blocks)
    owners = _fill(case, pool, layout, garbage or case.garbage)
    tables = _tables(case, layout, blocks)
    seqs = range(len(case.lens)) if only is None else [only]
    generator = torch.Generator().manual_seed(case.seed + 1)
    heads = case.kv_heads * case.ratio
    counts = case.query_lens or (1,) * len(case.lens)
    queries = [_normal(generator, (count, heads, case.key_size), case) * (6.0 if case.peaked else 1.0) for count in counts]
    store = _store_inputs(case, layout)
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
        owners,
        case.key_size**-0.5 * (0.8125 if case.seed % 2 else 1.0),
    )


def _dtype(case: Case) -> torch.dtype:
    return getattr(torch, case.dtype)  # type: ignore[no-any-return]


def _normal(generator: torch.Generator, shape: tuple[int, ...], case: Case) -> torch.Tensor:
    """Normal values that the input type holds exactly."""
    return torch.randn(shape, generator=generator).to(_dtype(case)).float()


def _place(case: Case, rename: int) -> tuple[list[list[int]], int]:
    """Physical blocks of each sequence, and how many the pool has."""
    size = case.block_size
    needed = [-(-length // size) for length in case.lens]
    shared = (
        min(case.lens[0] // size, needed[1]) if case.shared and len(case.lens) > 1 and case.lens[1] >= (case.lens[0] // size) * size else 0
    )
    total = sum(needed) - shared + case.spare
    total *= 2 if case.operation == "copy" else 1
    order = list(range(total))
    if case.permuted or rename:
        generator = torch.Generator().manual_seed(case.seed + 7919 * rename)
        order = torch.randperm(total, generator=generator).tolist()
    layout: list[list[int]] = []
    taken = 0
    for seq, count in enumerate(needed):
        head = layout[0][:shared] if seq == 1 else []
        fresh = count - len(head)
        layout.append([*head, *order[taken : taken + fresh]])
        taken += fresh
    return layout, total


def _pool(case: Case, blocks: int) -> KVPool:
    """An empty pool; interleaved keys and values are views into one tensor, block by block, as engines keep them."""
    size, heads, head = case.block_size, case.kv_heads, case.key_size
    shape = (blocks, size, heads, head) if case.layout == "NHD" else (blocks, heads, size, head)
    kind = {"": _dtype(case), "fp8": torch.float8_e4m3fn, "int8": torch.int8}[case.quantisation]
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
    elif case.quantisation == "int8":
        scales = [torch.ones(blocks, size, heads), torch.ones(blocks, size, heads)]
    return KVPool(key, value, size, case.layout, *scales)


def _fill(case: Case, pool: KVPool, layout: list[list[int]], garbage: str) -> dict[int, list[tuple[int, int]]]:
    """Garbage everywhere, then each sequence's tokens; a store case keeps garbage, since nothing is committed yet."""
    key, value = pool.slot_view(pool.key), pool.slot_view(pool.value)
    _spoil(pool, GARBAGE[garbage])
    owners: dict[int, list[tuple[int, int]]] = {}
    if case.operation == "store":
        return owners
    for seq, table in enumerate(layout):
        at = torch.arange(case.lens[seq])
        block, offset = torch.tensor(table, dtype=torch.int64)[at // case.block_size], at % case.block_size
        slots = (block * case.block_size + offset).tolist()
        fresh = torch.tensor([slot not in owners for slot in slots], dtype=torch.bool)
        keys, values = _tokens(case, seq)
        for tensor, scale, rows in ((key, pool.key_scale, keys), (value, pool.value_scale, values)):
            _write(tensor, scale, rows[: len(at)][fresh], block[fresh], offset[fresh])
        for position, slot in enumerate(slots):
            owners.setdefault(slot, []).append((seq, position))
    return owners


def _spoil(pool: KVPool, number: float) -> None:
    if pool.key.dtype == torch.int8:
        # Integers have no NaN: the garbage is in the scales.
        pool.key.fill_(77), pool.value.fill_(-77)
        for scale in (pool.key_scale, pool.value_scale):
            assert scale is not None
            scale.fill_(number)
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
    if tensor.dtype == torch.int8:
        assert scale is not None
        scale[block, offset] = rows.abs().amax(-1) / 127
        tensor[block, offset] = (rows / scale[block, offset].unsqueeze(-1)).round().to(torch.int8)
    else:
        tensor[block, offset] = (rows if scale is None else rows / scale).to(tensor.dtype)


def _strided(tensor: torch.Tensor, case: Case) -> torch.Tensor:
    """Rows of a fused projection, as engines pass them, where the case is an interleaved one."""
    return torch.cat([tensor, tensor[:, :1]], 1)[:, :-1] if case.interleaved else tensor


def _tables(case: Case, layout: list[list[int]], blocks: int) -> torch.Tensor:
    # With wild tails a table is wider than needed, otherwise it ends where the longest sequence does: what lies behind it is out of bounds.
    width = max(1, *(len(table) for table in layout)) + (2 if case.tail == "wild" else 0)
    generator = torch.Generator().manual_seed(case.seed + 3)
    if case.tail == "zero":
        tables = torch.zeros(len(layout), width, dtype=torch.int32)
    else:
        tables = torch.randint(0, blocks, (len(layout), width), generator=generator).to(torch.int32)
    if case.tail == "wild":
        tables[:, ::2] = -1
        tables[:, 1::2] = 2**31 - 1
    for seq, table in enumerate(layout):
        tables[seq, : len(table)] = torch.tensor(table, dtype=torch.int32)
    return tables


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
    key, value = (_strided(_normal(generator, shape, case).to(_dtype(case)), case) for _ in range(2))
    if case.rope:
        value = key[..., : case.head_size]
    return key, value, torch.tensor(slots, dtype=torch.int64)[order]


def _pairs(case: Case, layout: list[list[int]]) -> torch.Tensor:
    """Each owned block to one that nobody holds."""
    owned = sorted({block for table in layout for block in table}) if case.operation == "copy" else []
    size = 2 * (len(owned) + case.spare)
    free = [block for block in range(size) if block not in owned]
    return torch.tensor(list(zip(owned, free, strict=False)), dtype=torch.int64).reshape(-1, 2)


def watch(scene: Scene, memory: Memory) -> None:
    """Tell the machine's memory whose slots the pool holds and which row of the table is whose."""
    case, pool = scene.case, scene.pool
    count = pool.blocks * case.block_size
    readable = torch.zeros(len(scene.readable), count, dtype=torch.bool)
    for row, slots in enumerate(scene.readable):
        readable[row, sorted(slots)] = True
    writable = torch.zeros(count, dtype=torch.bool)
    writable[scene.granted] = True
    owners = [_owner(scene, slot) for slot in range(count)]
    numbers = torch.arange(count, dtype=torch.int32).view(pool.blocks, case.block_size, 1, 1)
    seen: dict[int, Watch] = {}
    for name, tensor in (("key", pool.key), ("value", pool.value), ("key_scale", pool.key_scale), ("value_scale", pool.value_scale)):
        if tensor is None or tensor.dim() == 1:
            continue
        held = memory.adopt(tensor, name)
        if id(held) not in seen:
            grain = tensor.element_size()
            slot_of = torch.full((tensor.untyped_storage().nbytes() // grain,), -1, dtype=torch.int32)
            seen[id(held)] = held.watch = Watch(grain, slot_of.numpy(), readable.numpy(), writable.numpy(), owners)
        found = seen[id(held)].slot_of
        assert found is not None
        target = torch.from_numpy(found).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if tensor.dim() == 3:
            target.copy_(numbers.squeeze(-1).expand(tensor.shape))
        else:
            pool.slot_view(target).copy_(numbers.expand(pool.slot_view(tensor).shape))
    if case.operation == "attend":
        _watch_rows(memory.adopt(scene.tables, "block_tables"), scene.tables, _row_numbers(scene.tables))


def watch_copies(scene: Scene, memory: Memory, arguments: Iterable[object]) -> None:
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
                _watch_rows(held, tensor, rows)


def _rows_of(scene: Scene, tensor: torch.Tensor) -> torch.Tensor | None:
    """For each element the sequence whose table entry it is, -1 for none; None where the tensor is no form of the table."""
    tables = scene.tables
    if tensor.dim() == 2 and len(tensor) == len(tables) and tensor.shape[1] >= tables.shape[1]:
        return _row_numbers(tensor) if torch.equal(tensor[:, : tables.shape[1]].long(), tables.long()) else None
    if tensor.dim() == 1:
        for values, rows in scene.lists:
            telling = len(values) >= TELLING_ENTRIES and not torch.equal(values, torch.arange(len(values)))
            if telling and len(tensor) >= len(values) and torch.equal(tensor[: len(values)].long(), values):
                return torch.nn.functional.pad(rows, (0, len(tensor) - len(values)), value=-1)
    return None


def _sequence_numbers(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))


def _row_numbers(table: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(table)).unsqueeze(1).expand(table.shape)


def _watch_rows(held: Storage, tensor: torch.Tensor, rows: torch.Tensor) -> None:
    row_of = torch.full((held.data.size // tensor.element_size(),), -1, dtype=torch.int32)
    row_of.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(rows)
    held.watch = Watch(tensor.element_size(), row_of=row_of.numpy())


def _owner(scene: Scene, slot: int) -> str:
    place = f"block {slot // scene.case.block_size}, offset {slot % scene.case.block_size}"
    holders = scene.owners.get(slot)
    if not holders:
        return f"{place}: no sequence's"
    return f"{place}: " + ", ".join(f"sequence {seq} position {position}" for seq, position in holders)
