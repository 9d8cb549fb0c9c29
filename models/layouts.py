"""Where a token lies: the arithmetic between positions, logical blocks and physical slots.

Sources: vLLM `v1/worker/block_table.py` (slot mapping), `v1/core/single_type_kv_cache_manager.py` (sliding windows), FlashInfer `page.cuh` (last page length).
"""

from __future__ import annotations

from collections.abc import Sequence


def physical_slot(table: Sequence[int | None], position: int, block_size: int) -> int:
    """The slot of `position`: `table[position // block_size] * block_size + position % block_size`.

    Raises ValueError for a position that is negative, past the table or in a skipped block, for a negative block id, and for a block size below 1.
    """
    _positive(block_size)
    if position < 0:
        raise ValueError(f"position {position} is negative")
    index, offset = divmod(position, block_size)
    if index >= len(table):
        raise ValueError(f"position {position} is past the table, which covers {len(table) * block_size} tokens")
    block = table[index]
    if block is None:
        raise ValueError(f"position {position} lies in logical block {index}, which the table skips")
    if block < 0:
        raise ValueError(f"the table lists the negative block id {block} at index {index}")
    return block * block_size + offset


def blocks_for(tokens: int, block_size: int) -> int:
    """How many blocks `tokens` tokens take: ceil(tokens / block_size). Raises ValueError for negative tokens or a block size below 1."""
    _positive(block_size)
    if tokens < 0:
        raise ValueError(f"a number of tokens cannot be {tokens}")
    return -(-tokens // block_size)


def tail_waste(tokens: int, block_size: int) -> int:
    """The unused tokens in the last block of a sequence of `tokens` tokens: 0 to block_size-1."""
    return blocks_for(tokens, block_size) * block_size - tokens


def tail_waste_bound(sequences: int, block_size: int) -> int:
    """The most tokens of room that `sequences` sequences can waste in their tails: n(q-1) (PagedAttention, section 4.2)."""
    _positive(block_size)
    return sequences * (block_size - 1)


def last_block_length(tokens: int, block_size: int) -> int:
    """How many tokens the last block holds: 1 to block_size, and 0 for an empty sequence (FlashInfer's `kv_last_page_len`)."""
    return 0 if tokens == 0 else block_size - tail_waste(tokens, block_size)


def window_low(computed: int, window: int | None) -> int:
    """The lowest position that the next token, at position `computed`, reads: it sees the positions computed-window+1 to computed.

    `window` None: every position. Raises ValueError for a window below 1.
    """
    if window is None:
        return 0
    if window < 1:
        raise ValueError(f"a window must be at least 1 token, not {window}")
    return max(0, computed - window + 1)


def window_blocks(window: int, block_size: int) -> int:
    """The most blocks that one token can read in a window: it starts anywhere in a block, so ceil((window-1) / block_size) + 1."""
    _positive(block_size)
    return blocks_for(max(window - 1, 0), block_size) + 1


def _positive(block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"a block must hold at least 1 token, not {block_size}")


def pool_shares(num_blocks: int, groups: int) -> list[range]:
    """The ids of each of several groups that have an even share of the pool each; what is over goes to the first groups."""
    share, over = divmod(num_blocks, groups)
    ends = [share * (group + 1) + min(group + 1, over) for group in range(groups)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
