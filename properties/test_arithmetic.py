"""Positions, blocks and slots: known answers, and properties against plain counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.models.layouts import (
    blocks_for,
    last_block_length,
    physical_slot,
    pool_shares,
    tail_waste,
    tail_waste_bound,
    window_blocks,
    window_low,
)

TABLE = [9, 2, 17]
SIZES = st.integers(1, 20)
LENGTHS = st.integers(0, 400)
TOKENS = st.lists(st.integers(0, 2), max_size=12)


@pytest.mark.parametrize(("position", "slot"), [(0, 36), (5, 9), (11, 71)])
def test_slots_of_a_known_table(position, slot):
    assert physical_slot(TABLE, position, 4) == slot


@pytest.mark.parametrize(
    ("table", "position", "block_size", "message"),
    [
        (TABLE, 12, 4, "position 12 is past the table, which covers 12 tokens"),
        ([], 0, 4, "position 0 is past the table"),
        (TABLE, -1, 4, "position -1 is negative"),
        ([9, -2, 17], 5, 4, "negative block id -2 at index 1"),
        ([9, None, 17], 5, 4, "logical block 1, which the table skips"),
        (TABLE, 0, 0, "a block must hold at least 1 token, not 0"),
    ],
)
def test_positions_without_a_slot_are_errors(table, position, block_size, message):
    with pytest.raises(ValueError, match=message):
        physical_slot(table, position, block_size)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True), SIZES)
def test_each_slot_of_a_table_belongs_to_one_position(table, block_size):
    slots = [physical_slot(table, position, block_size) for position in range(len(table) * block_size)]
    assert slots == [block * block_size + offset for block in table for offset in range(block_size)]
    assert len(set(slots)) == len(slots)


@given(LENGTHS, SIZES)
def test_blocks_are_just_enough(tokens, block_size):
    blocks = blocks_for(tokens, block_size)
    assert blocks * block_size >= tokens
    assert blocks == 0 or (blocks - 1) * block_size < tokens


@given(LENGTHS, SIZES)
def test_tokens_and_waste_fill_the_blocks(tokens, block_size):
    assert tokens + tail_waste(tokens, block_size) == blocks_for(tokens, block_size) * block_size
    assert 0 <= tail_waste(tokens, block_size) < block_size


@given(st.lists(LENGTHS, max_size=6), SIZES)
def test_tail_waste_of_sequences_is_bounded(lengths, block_size):
    assert sum(tail_waste(length, block_size) for length in lengths) <= tail_waste_bound(len(lengths), block_size)


@given(st.integers(1, 400), SIZES)
def test_the_last_block_holds_what_whole_blocks_leave(tokens, block_size):
    length = last_block_length(tokens, block_size)
    assert 1 <= length <= block_size
    assert (blocks_for(tokens, block_size) - 1) * block_size + length == tokens


def test_an_empty_sequence_has_no_last_block():
    assert last_block_length(0, 4) == 0


@given(LENGTHS, st.integers(1, 50))
def test_a_window_shows_itself_and_the_tokens_before(computed, window):
    low = window_low(computed, window)
    assert computed - low + 1 == min(window, computed + 1)


@given(LENGTHS)
def test_without_a_window_everything_is_read(computed):
    assert window_low(computed, None) == 0


@given(LENGTHS, st.integers(1, 50), SIZES)
def test_no_token_reads_more_blocks_than_the_window_spans(computed, window, block_size):
    read = {position // block_size for position in range(window_low(computed, window), computed + 1)}
    assert len(read) <= window_blocks(window, block_size)


@given(st.integers(1, 50), SIZES)
def test_some_token_reads_as_many_blocks_as_the_window_spans(window, block_size):
    most = max(
        len({p // block_size for p in range(window_low(computed, window), computed + 1)})
        for computed in range(window, window + 2 * block_size)
    )
    assert most == window_blocks(window, block_size)


def test_a_window_needs_a_token():
    with pytest.raises(ValueError, match="a window must be at least 1 token, not 0"):
        window_low(3, 0)


@pytest.mark.parametrize("function", [blocks_for, tail_waste, tail_waste_bound, window_blocks])
def test_a_block_needs_a_token(function):
    with pytest.raises(ValueError, match="a block must hold at least 1 token, not 0"):
        function(3, 0)


def test_a_number_of_tokens_cannot_be_negative():
    with pytest.raises(ValueError, match="a number of tokens cannot be -1"):
        blocks_for(-1, 4)


@given(blocks=st.integers(0, 40), groups=st.integers(1, 5))
def test_shares_of_a_pool_are_even_and_leave_nothing(blocks, groups):
    shares = pool_shares(blocks, groups)
    assert [block for share in shares for block in share] == list(range(blocks))
    assert [len(share) for share in shares] == sorted((len(share) for share in shares), reverse=True)
    assert len(shares[0]) - len(shares[-1]) <= 1
