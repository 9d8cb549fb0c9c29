"""A case of the low-bit scheme made real: sequences in blocks and rings, and what of them belongs to whom.

Slots of the machine are those of the blocks, and behind them the places of the rings. A scale and a zero of keys belong to a whole group: they
have the slot of its first token. Sequences in a batch take distinct rings, out of more than there are sequences.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kvproof.kernels import lowbit_reference
from kvproof.kernels.contract import PagedKernels
from kvproof.kernels.laws.cases import ZERO_ROWS_EVERY, Case
from kvproof.kernels.laws.placing import first_block, place, tables_of
from kvproof.kernels.laws.watching import no_slots, row_numbers, slots_like, watch_rows
from kvproof.kernels.lowbit import PAGED, RINGS, LowBitPool, LowBitScheme
from kvproof.kernels.machine.memory import Memory, Watch

SPARE_RINGS = 2
"""Rings that nobody has, between the others."""


@dataclasses.dataclass
class LowBitScene:
    """A case made real. `before`, `after` `[seqs]`: lengths around a store; `seq_lens` those of an attention. `quantised`: how many tokens of each
    sequence are in blocks when the call begins. `written`: all keys and values of each sequence, `[tokens, 2, kv_heads, head_size]`.
    """

    case: Case
    pool: LowBitPool
    tables: torch.Tensor
    rings: torch.Tensor
    seq_lens: torch.Tensor
    before: torch.Tensor
    quantised: torch.Tensor
    query_lens: torch.Tensor | None
    query: torch.Tensor
    pairs: torch.Tensor
    ring_pairs: torch.Tensor
    sinks: torch.Tensor | None
    written: list[torch.Tensor]
    scale: float

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of attention, only those that the case has."""
        return self.case.attention_options(self.scale, self.query_lens, self.sinks)

    @property
    def lists(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """No list of slots says where tokens in rings are."""
        return []

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What attention must return."""
        return tuple(self.query.shape)

    def new_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that a store is given."""
        spans = zip(self.written, self.before.tolist(), strict=True)
        rows = torch.cat([rows[start:] for rows, start in spans])
        return rows[:, 0], rows[:, 1]

    def invoke(self, kernels: PagedKernels) -> Any:  # noqa: ANN401 - whatever the adapter returns
        """The call that the scene is about."""
        if self.case.operation == "store":
            return kernels.store_low_bits(self.pool, *self.new_rows(), self.tables, self.rings, self.before, self.seq_lens, self.quantised)
        if self.case.operation == "copy":
            return kernels.copy_low_bits(self.pool, self.pairs, self.ring_pairs)
        return kernels.attend_low_bits(self.pool, self.query, self.tables, self.rings, self.seq_lens, self.quantised, **self.options)

    def lawful(self, seq: int) -> set[int]:
        """How many tokens of a sequence may be in blocks after a store."""
        return lawful_counts(self.pool, int(self.quantised[seq]), int(self.before[seq]), int(self.seq_lens[seq]))

    def _ring_slot(self, ring: int, place: int) -> int:
        return self.pool.blocks * self.pool.block_size + ring * self.pool.ring + place

    def _block_slots(self, seq: int, start: int, stop: int) -> list[int]:
        size, table = self.pool.block_size, self.tables[seq].tolist()
        return [table[at // size] * size + at % size for at in range(start, stop)]

    @property
    def granted(self) -> list[int]:
        """Slots that this call may write: in blocks the groups that leave the ring, of the ring everything; the targets of a copy."""
        found: list[int] = []
        if self.case.operation == "store":
            for seq, (old, new) in enumerate(zip(self.before.tolist(), self.seq_lens.tolist(), strict=True)):
                if new > old:
                    found += self._block_slots(seq, int(self.quantised[seq]), max(self.lawful(seq)))
                    found += [self._ring_slot(int(self.rings[seq]), place) for place in range(self.pool.ring)]
        elif self.case.operation == "copy":
            found = self._copied(1)
        return found

    def _copied(self, side: int) -> list[int]:
        size = self.pool.block_size
        blocks = [block * size + offset for block in self.pairs[:, side].tolist() for offset in range(size)]
        return blocks + [self._ring_slot(ring, place) for ring in self.ring_pairs[:, side].tolist() for place in range(self.pool.ring)]

    @property
    def readable(self) -> list[set[int]]:
        """For each sequence the slots that it may read; for a copy one set for everyone."""
        if self.case.operation == "copy":
            return [set(self._copied(0))]
        found = []
        ends = self.before if self.case.operation == "store" else self.seq_lens
        for seq, end in enumerate(ends.tolist()):
            done, first = int(self.quantised[seq]), first_held(self.case, seq)
            recent = {self._ring_slot(int(self.rings[seq]), at % self.pool.ring) for at in range(min(done, end), end)}
            found.append(recent | set(self._block_slots(seq, first, min(done, end))))
        # What a store writes it may read again, in whatever program.
        return [set.union(*found, set(self.granted))] if self.case.operation == "store" else found

    def watch(self, memory: Memory) -> None:
        """Tell the machine's memory whose slots the pool holds and which row of a table is whose."""
        count = self.pool.blocks * self.pool.block_size + self.pool.slot_view(self.pool.ring_key).shape[0] * self.pool.ring
        readable, writable = torch.zeros(len(self.readable), count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
        for row, slots in enumerate(self.readable):
            readable[row, sorted(slots)] = True
        writable[self.granted] = True
        owners = [self._owner(slot) for slot in range(count)]
        for name in (*PAGED, *RINGS):
            tensor = getattr(self.pool, name)
            held = memory.adopt(tensor, name)
            held.watch = Watch(tensor.element_size(), no_slots(tensor), readable.numpy(), writable.numpy(), owners)
            self.pool.slot_view(slots_like(held, tensor)).copy_(self._numbers(name).expand(self.pool.slot_view(tensor).shape))
        if self.case.operation == "attend":
            watch_rows(memory.adopt(self.tables, "block_tables"), self.tables, row_numbers(self.tables))
            watch_rows(memory.adopt(self.rings, "rings"), self.rings, torch.arange(len(self.rings)))

    def _numbers(self, name: str) -> torch.Tensor:
        """The slot of each row of a tensor, `[rows, slots, 1, 1]`."""
        blocks, size = self.pool.blocks, self.pool.block_size
        if name in RINGS:
            rings = self.pool.slot_view(self.pool.ring_key).shape[0]
            found = blocks * size + torch.arange(rings * self.pool.ring, dtype=torch.int32).view(rings, self.pool.ring)
        else:
            found = torch.arange(blocks * size, dtype=torch.int32).view(blocks, size)
            found = found[:, :: self.pool.group] if name in ("key_scale", "key_zero") else found
        return found.unsqueeze(-1).unsqueeze(-1)

    def _owner(self, slot: int) -> str:
        size, inside = self.pool.block_size, self.pool.blocks * self.pool.block_size
        if slot >= inside:
            ring, at = divmod(slot - inside, self.pool.ring)
            holders = [seq for seq, held in enumerate(self.rings.tolist()) if held == ring]
            return f"ring {ring}, place {at}: " + (f"sequence {holders[0]}'s" if holders else "no sequence's")
        holders = [seq for seq, table in enumerate(self._held()) if slot // size in table]
        return f"block {slot // size}, offset {slot % size}: " + (f"sequence {holders[0]}'s" if holders else "no sequence's")

    def _held(self) -> list[list[int]]:
        return [
            table[: -(-length // self.pool.block_size)] for table, length in zip(self.tables.tolist(), self.seq_lens.tolist(), strict=True)
        ]


def lawful_counts(pool: LowBitPool, quantised: int, before: int, after: int) -> set[int]:
    """How many tokens may be in blocks after a pass: whole groups, the last `recent` in the ring, and the ring large enough for the others."""
    if after <= before:
        return {quantised}
    most = max(quantised, (after - pool.recent) // pool.group * pool.group)
    return {count for count in (most, most - pool.group) if count >= quantised and after - count <= pool.ring}


def first_held(case: Case, seq: int) -> int:
    """The first position that a sequence still holds in blocks: a ring is never given away."""
    return first_block(case, seq) * case.block_size


def build_low_bits(case: Case, *, garbage: float, rename: int = 0, only: int | None = None) -> LowBitScene:
    """The tensors of a case. `garbage` lies where nobody owns anything, `rename` gives other blocks and rings, `only` leaves one sequence."""
    assert case.low_bits is not None
    scheme, dtype = LowBitScheme(*case.low_bits), getattr(torch, case.dtype)
    layout, blocks = place(case, rename)
    generator = torch.Generator().manual_seed(case.seed + 23 * rename)
    rings = torch.randperm(2 * len(case.lens) + SPARE_RINGS, generator=generator)
    pool = _pool(case, scheme, blocks, len(rings), garbage)
    lens = torch.tensor(case.lens, dtype=torch.int32)
    before = _before(case)
    held = before if case.operation == "store" else list(case.lens)
    quantised = [_quantised(case, pool, length) for length in held]
    written = [_tokens(case, seq, dtype) for seq in range(len(case.lens))]
    for seq, table in enumerate(layout):
        rows = written[seq][: held[seq]]
        start = first_held(case, seq)
        lowbit_reference.fill(pool, rows[:, 0], rows[:, 1], table, int(rings[seq]), quantised[seq], first=start)
    seqs = list(range(len(case.lens))) if only is None else [only]
    counts = case.query_lens or (1,) * len(case.lens)
    heads = case.kv_heads * case.ratio
    generator = torch.Generator().manual_seed(case.seed + 1)
    queries = [torch.randn(count, heads, case.head_size, generator=generator) * case.peak(seq) for seq, count in enumerate(counts)]
    free = rings[len(case.lens) :].tolist()
    return LowBitScene(
        case,
        pool,
        tables_of(case, layout, blocks)[seqs].clone(),
        rings[seqs].to(torch.int32),
        lens[seqs],
        torch.tensor(before, dtype=torch.int32)[seqs],
        torch.tensor(quantised, dtype=torch.int32)[seqs],
        None if case.query_lens is None else torch.tensor([case.query_lens[seq] for seq in seqs], dtype=torch.int32),
        torch.cat([queries[seq] for seq in seqs]).to(dtype),
        _pairs(case, layout, blocks),
        torch.tensor(list(zip(rings[: len(case.lens)].tolist(), free, strict=False)), dtype=torch.int64).reshape(-1, 2),
        torch.randn(heads, generator=torch.Generator().manual_seed(case.seed + 11)) * 3.0 if case.sinks else None,
        [written[seq] for seq in seqs],
        case.head_size**-0.5 * (0.8125 if case.seed % 2 else 1.0),
    )


def _pool(case: Case, scheme: LowBitScheme, blocks: int, rings: int, garbage: float) -> LowBitPool:
    """Full of garbage: integers have no NaN, so theirs is in scales and zeros."""
    pool = LowBitPool.empty(
        blocks, case.block_size, case.kv_heads, case.head_size, rings=rings, bits=scheme.bits, group=scheme.group, channels=scheme.channels,
        recent=scheme.recent, layout=case.layout, dtype=getattr(torch, case.dtype), scale_dtype=getattr(torch, scheme.scale_dtype),
    )  # fmt: skip
    for name in (*PAGED, *RINGS):
        tensor = getattr(pool, name)
        tensor.fill_(0xA7 if tensor.dtype == torch.uint8 else garbage)
    return pool


def _before(case: Case) -> list[int]:
    """How many tokens were there before a store: none, some, or all of them, in which case the sequence is a padded lane."""
    generator = torch.Generator().manual_seed(case.seed + 29)
    found = []
    for seq, length in enumerate(case.lens):
        some = int(torch.randint(0, length + 1, (1,), generator=generator))
        found.append((0, some, max(0, length - 1), length)[(seq + case.seed) % 4])
    return found


def _quantised(case: Case, pool: LowBitPool, length: int) -> int:
    """What a correct engine may have in blocks; where there is a choice, every other case has the last group in the ring."""
    counts = lawful_counts(pool, 0, 0, length)
    return min(counts) if case.seed % 2 else max(counts)


def _tokens(case: Case, seq: int, dtype: torch.dtype) -> torch.Tensor:
    """Keys and values of a sequence, the same first tokens however long it is; channels of keys differ in size, as those of models do, and the
    last is zero throughout, as are some values: there a group has no range to divide by.
    """
    generator = torch.Generator().manual_seed(case.seed * 1000003 + seq)
    rows = torch.randn(-(-case.lens[seq] // 256) * 256, 2, case.kv_heads, case.head_size, generator=generator)
    rows[:, 0] *= 1.0 + torch.arange(case.head_size) % 4
    rows[:, 1] += 1.0
    rows[:, 0, :, -1] = 0.0
    rows[1::ZERO_ROWS_EVERY, 1, 0] = 0.0
    return rows[: case.lens[seq]].to(dtype)


def _pairs(case: Case, layout: list[list[int]], blocks: int) -> torch.Tensor:
    """Each owned block to one that nobody holds."""
    owned = sorted({block for table in layout for block in table}) if case.operation == "copy" else []
    free = [block for block in range(blocks) if block not in owned]
    return torch.tensor(list(zip(owned, free, strict=False)), dtype=torch.int64).reshape(-1, 2)
