"""Passes as tensors: which rows a step computes, at which positions, into which slots, and over which blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

TableOf: TypeAlias = Callable[[int, int], Sequence[int | None]]
"""(sequence, group) -> the block table that the device holds."""

SKIPPED = 0
"""Stands in a table where a window has passed: no query reads it, so any block will do."""


@dataclass(frozen=True)
class Pass:
    """One sequence's part of a step: `tokens` from position `start` on, drafts included, of a request with that `adapter`."""

    seq: int
    start: int
    tokens: tuple[int, ...]
    adapter: str = ""

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Places:
    """Where one group of layers keeps a batch: `tables` `[seqs, max_blocks]` int32, and `slots` `[rows]` int64 of the new tokens."""

    tables: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Batch:
    """`positions` `[rows]`; `query_lens` and `seq_lens` `[seqs]` int32, new tokens and all tokens; `groups`: the places of each."""

    passes: tuple[Pass, ...]
    positions: Tensor
    query_lens: Tensor
    seq_lens: Tensor
    groups: tuple[Places, ...]

    @property
    def decodes(self) -> bool:
        """Whether every sequence computes one token."""
        return self.most_queries == 1

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, known on the host: reading `seq_lens` there would wait for the device."""
        return max(work.end for work in self.passes)

    @property
    def most_queries(self) -> int:
        """The most new tokens of a sequence, known on the host as well."""
        return max(len(work.tokens) for work in self.passes)

    def split(self, rows: Tensor) -> dict[int, Tensor]:
        """The rows of each sequence."""
        parts = torch.split(rows, [len(work.tokens) for work in self.passes])
        return {work.seq: part for work, part in zip(self.passes, parts, strict=True)}


def batch_of(passes: Sequence[Pass], table_of: TableOf, *, groups: int, block_size: int, device: torch.device) -> Batch:
    """The batch of these passes, at least one, put together on the host. Rows go by pass, positions ascending."""
    positions = torch.cat([torch.arange(work.start, work.end) for work in passes])
    query_lens = torch.tensor([len(work.tokens) for work in passes], dtype=torch.int32)
    rows = torch.repeat_interleave(torch.arange(len(passes)), query_lens)
    places = [_places([table_of(work.seq, group) for work in passes], rows, positions, block_size) for group in range(groups)]
    return Batch(
        tuple(passes),
        positions.to(device),
        query_lens.to(device),
        torch.tensor([work.end for work in passes], dtype=torch.int32).to(device),
        tuple(Places(place.tables.to(device), place.slots.to(device)) for place in places),
    )


def _places(tables: Sequence[Sequence[int | None]], rows: Tensor, positions: Tensor, block_size: int) -> Places:
    width = max(map(len, tables))
    padded = [[SKIPPED if block is None else block for block in table] + [SKIPPED] * (width - len(table)) for table in tables]
    table = torch.tensor(padded, dtype=torch.int32)
    return Places(table, table[rows, positions // block_size].long() * block_size + positions % block_size)
