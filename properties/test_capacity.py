"""The arithmetic of bytes: known answers, and properties that hold for every layout."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.models.capacity import (
    FP8_DS_MLA,
    Attention,
    Latent,
    Ledger,
    block_bytes,
    block_padding_bytes,
    blocks_in,
    mean_tail_waste_tokens,
    pool_bytes,
    pool_ledger,
    round_up,
    sequence_blocks,
    tail_waste_bytes,
    tokens_per_page,
)
from kvproof.models.layouts import tail_waste_bound

GIB = 2**30

SMALL = st.integers(1, 40)
ATTENTION = st.builds(
    Attention, SMALL, SMALL, SMALL.map(lambda n: n * 16), st.sampled_from((4, 8, 16, 32)), scale_bytes=st.integers(0, 4),
    scale_group=st.sampled_from((None, 16)),
)  # fmt: skip
LATENT = st.builds(Latent, SMALL, SMALL.map(lambda n: n * 8), SMALL.map(lambda n: n * 8), row_scale_bytes=st.integers(0, 32))
LAYOUTS = st.one_of(ATTENTION, LATENT)


@pytest.mark.parametrize(
    ("kv_heads", "expected"),
    [
        pytest.param(32, 2 * GIB, id="multi-head"),
        pytest.param(8, GIB // 2, id="grouped-query"),
        pytest.param(1, GIB // 16, id="multi-query"),
    ],
)
def test_4096_tokens_of_32_layers(kv_heads, expected):
    assert 4096 * Attention(layers=32, kv_heads=kv_heads, head_size=128).token_bytes() == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        pytest.param(Latent(), 1152, id="mla-bf16"),
        pytest.param(FP8_DS_MLA, 656, id="fp8_ds_mla"),
        pytest.param(Attention(1, 8, 128, element_bits=8, scale_bytes=4), 2 * 8 * (128 + 4), id="per-token-head-scales"),
        pytest.param(Attention(1, 8, 128, element_bits=4, scale_bytes=1, scale_group=16), 2 * 8 * (64 + 8), id="nvfp4"),
        pytest.param(Attention(1, 2, 192, value_head_size=128), 2 * (192 + 128) * 2, id="narrow-values"),
        pytest.param(Attention(1, 1, 576, value_head_size=0), 1152, id="keys-only"),
    ],
)
def test_bytes_of_a_token_and_layer(layout, expected):
    assert layout.token_bytes() == expected


def test_pages_are_padded_layer_by_layer():
    layout = Latent(layers=3, latent_size=512, latent_bits=8, rope_size=64, rope_bits=8, row_scale_bytes=8)  # 584 bytes in a row
    assert block_bytes(layout, 64, alignment=576) == 3 * 37440
    assert block_padding_bytes(layout, 64, alignment=576) == 3 * (37440 - 37376)


def test_a_pool_with_a_padding_page_is_what_sglang_allocates():
    size, page, heads, head_size, layers = 4096, 16, 8, 128, 32
    layout = Attention(layers, heads, head_size)
    assert pool_bytes(layout, size // page + 1, page) == (size + page) * heads * head_size * 2 * 2 * layers


def test_tokens_of_a_virtual_page():
    assert tokens_per_page(Attention(1, 8, 128, value_head_size=0), 2 * 2**20) == 1024


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_shards_split_heads_and_then_replicate_them(ranks, heads):
    assert Attention(1, 8, 128).shard(ranks).kv_heads == heads


def test_latents_are_replicated_not_split():
    assert Latent().shard(8) == Latent()


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="8 KV heads cannot be split over, or replicated on, 3 ranks"):
        Attention(1, 8, 128).shard(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(0, 1, 1), "layers is 0; it must be 1 or more"),
        (lambda: Attention(1, 1, 3, element_bits=4), "a row of 3 elements of 4 bits is not a whole number of bytes"),
        (lambda: Attention(1, 1, 24, scale_group=16), "scale_group is 16, which does not divide the 24 elements"),
        (lambda: Latent(latent_size=3, latent_bits=4), "not a whole number of bytes"),
        (lambda: block_bytes(Latent(), 0), "block_size is 0; it must be 1 or more"),
        (lambda: block_bytes(Latent(), 1, alignment=0), "alignment is 0; it must be 1 or more"),
        (lambda: pool_bytes(Latent(), -1, 1), "num_blocks is -1; it must be 0 or more"),
        (
            lambda: pool_ledger(Latent(), pool_bytes=4 * 1152, block_size=1, held_blocks=4, null_blocks=1),
            "4 held and 1 null blocks do not fit",
        ),
        (lambda: pool_ledger(Latent(), pool_bytes=10, block_size=1, held_blocks=0, table_entries=3), "block tables of 12 bytes do not fit"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(LAYOUTS, SMALL, SMALL, st.integers(1, 600))
def test_padding_is_the_difference_and_less_than_one_alignment_for_each_layer(layout, block_size, num_blocks, alignment):
    padded = block_bytes(layout, block_size, alignment=alignment)
    assert padded - block_padding_bytes(layout, block_size, alignment=alignment) == block_size * layout.token_bytes()
    assert 0 <= block_padding_bytes(layout, block_size, alignment=alignment) < layout.layers * alignment
    assert blocks_in(layout, pool_bytes(layout, num_blocks, block_size, alignment=alignment), block_size, alignment=alignment) == num_blocks


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_rounding_up_reaches_the_next_multiple(size, alignment):
    rounded = round_up(size, alignment)
    assert rounded % alignment == 0
    assert size <= rounded < size + alignment


@given(LAYOUTS, st.lists(st.integers(1, 100), max_size=8), SMALL)
def test_tail_waste_is_what_blocks_hold_beyond_tokens(layout, lengths, block_size):
    waste = tail_waste_bytes(layout, lengths, block_size)
    assert waste == sequence_blocks(lengths, block_size) * block_bytes(layout, block_size) - sum(lengths) * layout.token_bytes()
    assert waste <= tail_waste_bound(len(lengths), block_size) * layout.token_bytes()


@given(SMALL, SMALL)
def test_mean_tail_waste_is_the_mean_over_all_tails(sequences, block_size):
    tails = [tail_waste_bytes(Attention(1, 1, 1, element_bits=8, value_head_size=0), [n], block_size) for n in range(1, block_size + 1)]
    assert mean_tail_waste_tokens(sequences, block_size) == sequences * Fraction(sum(tails), block_size)


@given(LAYOUTS, st.data())
def test_every_byte_of_a_pool_is_counted_once(layout, data):
    block_size, num_blocks = data.draw(SMALL), data.draw(st.integers(0, 50))
    alignment, entries = data.draw(st.integers(1, 600)), data.draw(st.integers(0, 100))
    whole = block_bytes(layout, block_size, alignment=alignment)
    held = data.draw(st.integers(0, num_blocks))
    null = data.draw(st.integers(0, num_blocks - held))
    size = num_blocks * whole + 4 * entries + data.draw(st.integers(0, whole - 1))
    ledger = pool_ledger(
        layout, pool_bytes=size, block_size=block_size, held_blocks=held, null_blocks=null, alignment=alignment, table_entries=entries
    )
    ledger.check()
    assert ledger.free_bytes == (num_blocks - held - null) * whole
    assert 0 <= ledger.used <= 1


def test_a_ledger_that_loses_bytes_says_how_many():
    with pytest.raises(ValueError, match=r"adds up to 90 of 100 bytes \(block_bytes 40, .*\); 10 are missing"):
        Ledger(100, 40, 0, 0, 10, 40).check()


def test_a_ledger_that_counts_twice_says_how_many():
    with pytest.raises(ValueError, match=r"adds up to 110 of 100 bytes .*; 10 are counted twice"):
        Ledger(100, 40, 0, 20, 10, 40).check()


def test_a_ledger_with_a_negative_part_is_refused():
    with pytest.raises(ValueError, match="free_bytes is -10; it must be 0 or more"):
        Ledger(100, 110, 0, 0, 0, -10).check()
