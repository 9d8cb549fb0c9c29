"""What the kernel laws have no cases for: moves between slots, and the low-bit scheme. Each judge says what is wrong, or nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kvproof.kernels import reference
from kvproof.kernels.contract import KVPool
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.lowbit_pool import LowBitPool
from kvproof.kernels.paged.lowbit_torch import LowBitTorch, sequence_rows
from kvproof.kernels.paged.torch_path import PagedTorch

KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def judge_moves(kernels: Any) -> str:  # noqa: ANN401 - an adapter of the paged kernels, maybe a faulty one
    """Gather, scatter and move between layouts and block sizes, bit by bit against torch; slots of -1 in between."""
    generator = torch.Generator().manual_seed(5)

    def pool(blocks: int, block: int, layout: str) -> KVPool:
        shape = (blocks, block, 2, 24) if layout == "NHD" else (blocks, 2, block, 24)
        key, value = (torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8) for _ in range(2))
        scales = [torch.rand(blocks, block, 2, generator=generator) for _ in range(2)]
        return KVPool(key, value, block, layout, *scales)

    source, targets = pool(9, 12, "NHD"), [pool(8, 16, "HND")]
    targets.append(_copied(targets[0]))
    slots = torch.randperm(9 * 12, generator=generator)[:90]
    goals = torch.randperm(8 * 16, generator=generator)[:90]
    slots[7], goals[11] = -1, -1
    machine = Machine()
    with machine.installed():
        rows = kernels.gather(source, slots)
        kernels.move(source, targets[0], slots, goals)
        scattered = _copied(source)
        kernels.scatter(scattered, tuple(part.flip(0) for part in rows), slots)
    if machine.violations:
        return str(machine.violations[0])
    wanted_rows = PagedTorch().gather(source, slots)
    if len(rows) != len(wanted_rows) or not all(map(torch.equal, rows, wanted_rows)):
        return "gather reads other rows than torch"
    PagedTorch().move(source, targets[1], slots, goals)
    wanted = _copied(source)
    PagedTorch().scatter(wanted, tuple(part.flip(0) for part in rows), slots)
    if not _equal(targets[0], targets[1]):
        return "move leaves another pool than torch"
    return "" if _equal(scattered, wanted) else "scatter leaves another pool than torch"


def _copied(pool: KVPool) -> KVPool:
    parts = {name: getattr(pool, name).clone() for name in ("key", "value", "key_scale", "value_scale")}
    return dataclasses.replace(pool, **parts)


def _equal(left: KVPool, right: KVPool) -> bool:
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in ("key", "value", "key_scale", "value_scale"))


BLOCKS, HEADS, RINGS = 24, 2, 5


@dataclasses.dataclass
class Batch:
    """Sequences in one low-bit pool, with what was written to each kept contiguous beside it."""

    pool: LowBitPool
    tables: torch.Tensor
    rings: torch.Tensor
    lens: torch.Tensor
    quantised: torch.Tensor
    written: list[torch.Tensor]

    def extend(self, counts: list[int], kernels: Any, seed: int = 0) -> None:  # noqa: ANN401 - anything with `store`
        """Store `counts` new tokens for each sequence."""
        generator = torch.Generator().manual_seed(seed)
        head, dtype = self.pool.head_size, self.pool.ring_key.dtype
        rows = [torch.randn(count, 2, HEADS, head, generator=generator).to(dtype) * (1 + seed % 3) for count in counts]
        self.written = [torch.cat([old, new]) for old, new in zip(self.written, rows, strict=True)]
        new, after = torch.cat(rows), self.lens + torch.tensor(counts, dtype=torch.int32)
        self.quantised = kernels.store(self.pool, new[:, 0], new[:, 1], self.tables, self.rings, self.lens, after, self.quantised)
        self.lens = after

    def reads(self, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a sequence reads as: keys and values `[tokens, kv_heads, head_size]` float32."""
        return sequence_rows(self.pool, self.tables[seq], int(self.rings[seq]), int(self.lens[seq]), int(self.quantised[seq]))

    def bits(self) -> list[torch.Tensor]:
        """Every tensor of the pool as integers."""
        found = [getattr(self.pool, field.name) for field in dataclasses.fields(self.pool)]
        return [tensor.view(KINDS[tensor.element_size()]) for tensor in found if isinstance(tensor, torch.Tensor)]

    def expected(self, query: torch.Tensor, query_lens: torch.Tensor | None, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention in float64 over what the sequences read as, and the reference's bound for keys and values that are rounded once."""
        output, bound = torch.zeros(query.shape, dtype=torch.float64), torch.zeros(query.shape, dtype=torch.float64)
        row = 0
        for seq, length in enumerate(self.lens.tolist()):
            count = 1 if query_lens is None else int(query_lens[seq])
            if length and count:
                blocks = -(-length // 16)
                key, value = (_blocked(part, blocks) for part in self.reads(seq))
                pool = KVPool(key, value, 16, "NHD", torch.ones(1), torch.ones(1))
                table, lens, counts = torch.arange(blocks).unsqueeze(0), torch.tensor([length]), torch.tensor([count])
                found = reference.attend(pool, query[row : row + count], table, lens, scale=scale, query_lens=counts)
                output[row : row + count], bound[row : row + count] = found.output, found.bound
            row += count
        return output, bound


def _blocked(rows: torch.Tensor, blocks: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros(16 * blocks - len(rows), *rows.shape[1:])]).reshape(blocks, 16, *rows.shape[1:])


def batch(seqs: int, *, garbage: float = float("nan"), block_size: int = 32, head: int = 48, **options: Any) -> Batch:  # noqa: ANN401
    """An empty batch; what nobody owns is `garbage`. `options` are those of `LowBitPool.empty`."""
    sizes: dict[str, Any] = {"bits": 4, "group": 16, "channels": 16, "recent": 20, **options}
    pool = LowBitPool.empty(BLOCKS, block_size, HEADS, head, rings=RINGS, **sizes)
    for tensor in (pool.key_scale, pool.key_zero, pool.value_scale, pool.value_zero, pool.ring_key, pool.ring_value):
        tensor.fill_(garbage)
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seqs)).to(torch.int32)
    width, nothing = BLOCKS // seqs, torch.zeros(seqs, dtype=torch.int32)
    rings = torch.tensor([3, 0, 4, 1][:seqs], dtype=torch.int32)
    written = [torch.zeros(0, 2, HEADS, head, dtype=pool.ring_key.dtype) for _ in range(seqs)]
    return Batch(pool, order[: seqs * width].view(seqs, width), rings, nothing, nothing.clone(), written)


def judge_low_bits(kernels: Any) -> str:  # noqa: ANN401 - the low-bit kernels, maybe faulty ones
    """Passes of several lengths stored as torch stores them, then a decode, an append and a copied sequence against the reference."""
    ours, theirs = batch(3), batch(3)
    machine = Machine()
    for turn, counts in enumerate(([70, 3, 1], [1, 40, 0], [1, 1, 33])):
        with machine.installed():
            ours.extend(counts, kernels, turn)
        theirs.extend(counts, LowBitTorch(), turn)
        if machine.violations:
            return str(machine.violations[0])
        if not torch.equal(ours.quantised, theirs.quantised) or not all(map(torch.equal, ours.bits(), theirs.bits())):
            return f"pass {turn} leaves other bits than torch"
    for query_lens in (None, torch.tensor([5, 33, 2], dtype=torch.int32)):
        query = torch.randn(3 if query_lens is None else 42, 6, 48, generator=torch.Generator().manual_seed(9)).half()
        with machine.installed():
            out = kernels.attend(ours.pool, query, ours.tables, ours.rings, ours.lens, ours.quantised, scale=0.2, query_lens=query_lens)
        wanted, bound = ours.expected(query, query_lens, 0.2)
        if machine.violations:
            return str(machine.violations[0])
        if not bool(((out.double() - wanted).abs() <= bound).all()):
            return "attention leaves its bound"
    return _judge_copies(kernels, ours)


def _judge_copies(kernels: Any, held: Batch) -> str:  # noqa: ANN401
    """Sequence 0 copied over sequence 1."""
    blocks = -(-int(held.lens[0]) // held.pool.block_size)
    with Machine().installed():
        kernels.copy_blocks(held.pool, torch.stack([held.tables[0, :blocks], held.tables[1, :blocks]], 1).long())
        kernels.copy_rings(held.pool, torch.tensor([[int(held.rings[0]), int(held.rings[1])]]))
    held.lens[1], held.quantised[1] = held.lens[0], held.quantised[0]
    original, copied = held.reads(0), held.reads(1)
    return "" if torch.equal(original[0], copied[0]) and torch.equal(original[1], copied[1]) else "a copied sequence reads as another one"
