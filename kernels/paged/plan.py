"""Which tile of a prefill belongs to which sequence: torch on the device, without waiting for it; one plan serves all layers of a step."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class PrefillPlan:
    """`tile_seq` `[tiles]` int32: the sequence of each tile, -1 for tiles that are not needed. `tile_first` `[tiles]` int32: the tile's first
    query token, counted in its sequence; for a tile that is not needed, the row behind the last query from which it zeroes. `query_starts`
    `[seqs]` int32: the first row of each sequence. `tokens`: query tokens of one tile. Sequences of up to `short` query tokens have no tile: they
    are appended to.
    """

    tile_seq: torch.Tensor
    tile_first: torch.Tensor
    query_starts: torch.Tensor
    tokens: int
    short: int = 0


def plan_prefill(query_lens: torch.Tensor, rows: int, tokens: int, short: int = 0) -> PrefillPlan:
    """Tiles of `tokens` query tokens for query lengths `[seqs]` and `rows` rows in all; the last tiles of a sequence, which see most, first.

    There are rows // tokens + seqs + 1 tiles, the most that any lengths with that sum can need, so the grid does not depend on the lengths.
    """
    count = query_lens.long()
    tiles = torch.div(count + tokens - 1, tokens, rounding_mode="floor")
    tiles = torch.where(count > short, tiles, 0)
    ends, query_ends = torch.cumsum(tiles, 0), torch.cumsum(count, 0)
    number = torch.arange(rows // tokens + len(count) + 1, device=count.device).flip(0)
    seq = torch.searchsorted(ends, number, right=True)
    real = seq < len(count)
    within = seq.clamp(max=len(count) - 1)
    first = torch.where(real, number - (ends - tiles)[within], number - ends[-1]) * tokens
    first += torch.where(real, 0, query_ends[-1])
    return PrefillPlan(
        torch.where(real, seq, -1).to(torch.int32), first.to(torch.int32), (query_ends - count).to(torch.int32), tokens, short
    )
