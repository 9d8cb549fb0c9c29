"""What the arithmetic of blocks and bytes promises, for every length there is and a few block sizes.

A product or quotient of two unknowns is more than a solver can finish, so block sizes are fixed: the smallest, an odd one, and those that engines use.
"""

from __future__ import annotations

from kvproof.models.capacity import Attention, Latent, blocks_in, pool_bytes, pool_ledger, round_up
from kvproof.models.layouts import blocks_for, last_block_length, physical_slot, tail_waste, tail_waste_bound, window_blocks, window_low


def blocks_of_one_cover_and_no_fewer_do(tokens: int) -> bool:
    """Blocks of 1: `blocks_for` blocks have room for the tokens, and one block fewer has not.

    pre: tokens >= 0
    post: _
    """
    blocks = blocks_for(tokens, 1)
    return tokens <= 1 * blocks < tokens + 1


def waste_in_blocks_of_one_is_less_than_a_block(tokens: int) -> bool:
    """Blocks of 1: the tail wastes 0 to 0 tokens.

    pre: tokens >= 0
    post: _
    """
    return 0 <= tail_waste(tokens, 1) < 1


def last_block_of_one_holds_what_the_others_do_not(tokens: int) -> bool:
    """Blocks of 1: the whole blocks and the last one hold all tokens, and the last one is not empty.

    pre: tokens >= 1
    post: _
    """
    last = last_block_length(tokens, 1)
    return 1 <= last <= 1 and (1 * (blocks_for(tokens, 1) - 1) + last) == tokens


def one_token_more_takes_at_most_one_block_of_one(tokens: int) -> bool:
    """Blocks of 1: one more token takes one more block exactly where the last was full.

    pre: tokens >= 0
    post: _
    """
    grown = blocks_for(tokens + 1, 1) - blocks_for(tokens, 1)
    return grown == (1 if tokens % 1 == 0 else 0)


def blocks_of_two_cover_and_no_fewer_do(tokens: int) -> bool:
    """Blocks of 2: `blocks_for` blocks have room for the tokens, and one block fewer has not.

    pre: tokens >= 0
    post: _
    """
    blocks = blocks_for(tokens, 2)
    return tokens <= 2 * blocks < tokens + 2


def waste_in_blocks_of_two_is_less_than_a_block(tokens: int) -> bool:
    """Blocks of 2: the tail wastes 0 to 1 tokens.

    pre: tokens >= 0
    post: _
    """
    return 0 <= tail_waste(tokens, 2) < 2


def last_block_of_two_holds_what_the_others_do_not(tokens: int) -> bool:
    """Blocks of 2: the whole blocks and the last one hold all tokens, and the last one is not empty.

    pre: tokens >= 1
    post: _
    """
    last = last_block_length(tokens, 2)
    return 1 <= last <= 2 and (2 * (blocks_for(tokens, 2) - 1) + last) == tokens


def one_token_more_takes_at_most_one_block_of_two(tokens: int) -> bool:
    """Blocks of 2: one more token takes one more block exactly where the last was full.

    pre: tokens >= 0
    post: _
    """
    grown = blocks_for(tokens + 1, 2) - blocks_for(tokens, 2)
    return grown == (1 if tokens % 2 == 0 else 0)


def blocks_of_three_cover_and_no_fewer_do(tokens: int) -> bool:
    """Blocks of 3: `blocks_for` blocks have room for the tokens, and one block fewer has not.

    pre: tokens >= 0
    post: _
    """
    blocks = blocks_for(tokens, 3)
    return tokens <= 3 * blocks < tokens + 3


def waste_in_blocks_of_three_is_less_than_a_block(tokens: int) -> bool:
    """Blocks of 3: the tail wastes 0 to 2 tokens.

    pre: tokens >= 0
    post: _
    """
    return 0 <= tail_waste(tokens, 3) < 3


def last_block_of_three_holds_what_the_others_do_not(tokens: int) -> bool:
    """Blocks of 3: the whole blocks and the last one hold all tokens, and the last one is not empty.

    pre: tokens >= 1
    post: _
    """
    last = last_block_length(tokens, 3)
    return 1 <= last <= 3 and (3 * (blocks_for(tokens, 3) - 1) + last) == tokens


def one_token_more_takes_at_most_one_block_of_three(tokens: int) -> bool:
    """Blocks of 3: one more token takes one more block exactly where the last was full.

    pre: tokens >= 0
    post: _
    """
    grown = blocks_for(tokens + 1, 3) - blocks_for(tokens, 3)
    return grown == (1 if tokens % 3 == 0 else 0)


def blocks_of_sixteen_cover_and_no_fewer_do(tokens: int) -> bool:
    """Blocks of 16: `blocks_for` blocks have room for the tokens, and one block fewer has not.

    pre: tokens >= 0
    post: _
    """
    blocks = blocks_for(tokens, 16)
    return tokens <= 16 * blocks < tokens + 16


def waste_in_blocks_of_sixteen_is_less_than_a_block(tokens: int) -> bool:
    """Blocks of 16: the tail wastes 0 to 15 tokens.

    pre: tokens >= 0
    post: _
    """
    return 0 <= tail_waste(tokens, 16) < 16


def last_block_of_sixteen_holds_what_the_others_do_not(tokens: int) -> bool:
    """Blocks of 16: the whole blocks and the last one hold all tokens, and the last one is not empty.

    pre: tokens >= 1
    post: _
    """
    last = last_block_length(tokens, 16)
    return 1 <= last <= 16 and (16 * (blocks_for(tokens, 16) - 1) + last) == tokens


def one_token_more_takes_at_most_one_block_of_sixteen(tokens: int) -> bool:
    """Blocks of 16: one more token takes one more block exactly where the last was full.

    pre: tokens >= 0
    post: _
    """
    grown = blocks_for(tokens + 1, 16) - blocks_for(tokens, 16)
    return grown == (1 if tokens % 16 == 0 else 0)


def two_tails_of_two_waste_no_more_than_the_bound(one: int, two: int) -> bool:
    """Blocks of 2: two sequences waste at most 2 * 1 tokens in their tails.

    pre: one >= 0
    pre: two >= 0
    post: _
    """
    return tail_waste(one, 2) + tail_waste(two, 2) <= tail_waste_bound(2, 2)


def a_slot_of_two_lies_in_its_block(first: int, second: int, position: int) -> bool:
    """Blocks of 2: the slot of a position lies in the block that the table lists there, at the offset of the position.

    pre: first >= 0
    pre: second >= 0
    pre: 0 <= position < 4
    post: _
    """
    slot = physical_slot((first, second), position, 2)
    return slot // 2 == (first if position < 2 else second) and slot % 2 == position % 2


def two_positions_never_share_a_slot_of_two(first: int, second: int, one: int, two: int) -> bool:
    """Blocks of 2: in a table without a repeated block two positions have two slots.

    pre: first >= 0
    pre: second >= 0
    pre: first != second
    pre: 0 <= one < 4
    pre: 0 <= two < 4
    pre: one != two
    post: _
    """
    return physical_slot((first, second), one, 2) != physical_slot((first, second), two, 2)


def two_tails_of_sixteen_waste_no_more_than_the_bound(one: int, two: int) -> bool:
    """Blocks of 16: two sequences waste at most 2 * 15 tokens in their tails.

    pre: one >= 0
    pre: two >= 0
    post: _
    """
    return tail_waste(one, 16) + tail_waste(two, 16) <= tail_waste_bound(2, 16)


def a_slot_of_sixteen_lies_in_its_block(first: int, second: int, position: int) -> bool:
    """Blocks of 16: the slot of a position lies in the block that the table lists there, at the offset of the position.

    pre: first >= 0
    pre: second >= 0
    pre: 0 <= position < 32
    post: _
    """
    slot = physical_slot((first, second), position, 16)
    return slot // 16 == (first if position < 16 else second) and slot % 16 == position % 16


def two_positions_never_share_a_slot_of_sixteen(first: int, second: int, one: int, two: int) -> bool:
    """Blocks of 16: in a table without a repeated block two positions have two slots.

    pre: first >= 0
    pre: second >= 0
    pre: first != second
    pre: 0 <= one < 32
    pre: 0 <= two < 32
    pre: one != two
    post: _
    """
    return physical_slot((first, second), one, 16) != physical_slot((first, second), two, 16)


def a_window_begins_at_or_before_its_token(computed: int, window: int) -> bool:
    """The lowest position that a token reads is neither negative nor past the token itself.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return 0 <= window_low(computed, window) <= computed


def a_window_holds_its_width_or_everything(computed: int, window: int) -> bool:
    """A token reads as many positions as its window is wide, itself included, or all there are.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return computed - window_low(computed, window) + 1 == min(window, computed + 1)


def a_window_never_moves_back(computed: int, window: int) -> bool:
    """What has left the window of one token never comes back into that of the next.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return 0 <= window_low(computed + 1, window) - window_low(computed, window) <= 1


def a_wider_window_reads_no_less(computed: int, window: int) -> bool:
    """A window that is one token wider begins at the same position or one before.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return window_low(computed, window + 1) <= window_low(computed, window)


def without_a_window_everything_is_read(computed: int) -> bool:
    """No window: the lowest position is 0.

    pre: computed >= 0
    post: _
    """
    return window_low(computed, None) == 0


def a_window_lies_in_as_many_blocks_of_two_as_are_planned(computed: int, window: int) -> bool:
    """Blocks of 2: one token reads at most `window_blocks` blocks.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return blocks_for(computed + 1, 2) - window_low(computed, window) // 2 <= window_blocks(window, 2)


def a_window_lies_in_as_many_blocks_of_sixteen_as_are_planned(computed: int, window: int) -> bool:
    """Blocks of 16: one token reads at most `window_blocks` blocks.

    pre: computed >= 0
    pre: window >= 1
    post: _
    """
    return blocks_for(computed + 1, 16) - window_low(computed, window) // 16 <= window_blocks(window, 16)


def rounding_up_to_1_adds_less_than_that(size_bytes: int) -> bool:
    """Rounded up to 1: a multiple that is not below the size and less than 1 above it.

    pre: size_bytes >= 0
    post: _
    """
    rounded = round_up(size_bytes, 1)
    return rounded % 1 == 0 and 0 <= rounded - size_bytes < 1


def rounding_up_to_256_adds_less_than_that(size_bytes: int) -> bool:
    """Rounded up to 256: a multiple that is not below the size and less than 256 above it.

    pre: size_bytes >= 0
    post: _
    """
    rounded = round_up(size_bytes, 256)
    return rounded % 256 == 0 and 0 <= rounded - size_bytes < 256


def rounding_up_to_4096_adds_less_than_that(size_bytes: int) -> bool:
    """Rounded up to 4096: a multiple that is not below the size and less than 4096 above it.

    pre: size_bytes >= 0
    post: _
    """
    rounded = round_up(size_bytes, 4096)
    return rounded % 4096 == 0 and 0 <= rounded - size_bytes < 4096


def bytes_of_a_token_grow_with_the_layers(layers: int) -> bool:
    """Grouped-query attention, 8 heads of 128 in bf16: 4 KiB for each layer.

    pre: layers >= 1
    post: _
    """
    return Attention(layers=layers, kv_heads=8, head_size=128).token_bytes() == 4096 * layers


def bytes_of_a_token_grow_with_the_heads(kv_heads: int) -> bool:
    """One layer with heads of 64 in fp8: 128 bytes for each head.

    pre: kv_heads >= 1
    post: _
    """
    return Attention(layers=1, kv_heads=kv_heads, head_size=64, element_bits=8).token_bytes() == 128 * kv_heads


def scales_of_a_row_are_two_for_each_head(kv_heads: int) -> bool:
    """One scale of 4 bytes for the key row and one for the value row of each head.

    pre: kv_heads >= 1
    post: _
    """
    return Attention(layers=1, kv_heads=kv_heads, head_size=64, element_bits=8, scale_bytes=4).scales_bytes() == 8 * kv_heads


def a_latent_row_is_1152_bytes_in_each_layer(layers: int) -> bool:
    """Multi-head latent attention in bf16 (DeepSeek-V2): 1152 bytes for each layer.

    pre: layers >= 1
    post: _
    """
    return Latent(layers=layers).token_bytes() == 1152 * layers


def what_fits_a_pool_fits_and_one_block_more_does_not(available_bytes: int) -> bool:
    """Blocks of 16 tokens of 64 bytes: the pool of as many blocks as fit is no larger than what there is, and one block more is.

    pre: available_bytes >= 0
    post: _
    """
    layout = Attention(layers=1, kv_heads=1, head_size=16)
    blocks = blocks_in(layout, available_bytes, 16)
    return pool_bytes(layout, blocks, 16) <= available_bytes < pool_bytes(layout, blocks + 1, 16)


def alignment_only_adds(num_blocks: int) -> bool:
    """Pages that are rounded up to 4096 bytes take no less than pages that are not.

    pre: num_blocks >= 0
    post: _
    """
    layout = Attention(layers=2, kv_heads=1, head_size=80)
    return pool_bytes(layout, num_blocks, 16, alignment=4096) >= pool_bytes(layout, num_blocks, 16)


def the_ledger_adds_up(size_bytes: int, held_blocks: int) -> bool:
    """Blocks of 1024 bytes: blocks, scales, tables, padding and free space add up to the pool, however many blocks are held.

    pre: held_blocks >= 0
    pre: size_bytes >= 1024 * held_blocks
    post: _
    """
    layout = Attention(layers=1, kv_heads=1, head_size=16)
    ledger = pool_ledger(layout, pool_bytes=size_bytes, block_size=16, held_blocks=held_blocks)
    ledger.check()
    return ledger.free_bytes >= 0


def the_ledger_adds_up_with_tables_and_null_blocks(size_bytes: int, null_blocks: int, table_entries: int) -> bool:
    """The same with one held block, some null blocks, and block tables that lie in the pool.

    pre: null_blocks >= 0
    pre: table_entries >= 0
    pre: size_bytes >= 1024 * (null_blocks + 1) + 4 * table_entries
    post: _
    """
    layout = Attention(layers=1, kv_heads=1, head_size=16)
    ledger = pool_ledger(layout, pool_bytes=size_bytes, block_size=16, held_blocks=1, null_blocks=null_blocks, table_entries=table_entries)
    ledger.check()
    return ledger.table_bytes == 4 * table_entries
