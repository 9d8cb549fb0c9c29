"""Which physical blocks the sequences of a case have, and what stands in their block table."""

from __future__ import annotations

import torch

from kvproof.kernels.laws.cases import Case


def place(case: Case, rename: int) -> tuple[list[list[int]], int]:
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


def first_block(case: Case, seq: int) -> int:
    """The first block that a sequence still holds: the window of its first query begins in it. The cache may have given away those before."""
    if not case.freed or case.window is None:
        return 0
    count = 1 if case.query_lens is None else case.query_lens[seq]
    return max(0, case.lens[seq] - count - case.window + 1) // case.block_size


def tables_of(case: Case, layout: list[list[int]], blocks: int) -> torch.Tensor:
    """Block tables `[seqs, max_blocks]` int32, with what the case has behind the end of a sequence."""
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
