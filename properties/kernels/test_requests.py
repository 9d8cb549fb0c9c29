"""What the paged kernels cannot do is refused in one sentence, by both paths and before anything is written; pairs of blocks may be views."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kvproof.kernels.contract import KVPool
from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.torch_path import PagedTorch

BOTH = pytest.mark.parametrize("kernels", [PagedTriton, PagedTorch])


def pool(dtype: torch.dtype = torch.float32, heads: int = 2, head: int = 16) -> KVPool:
    return KVPool(*(torch.zeros(3, 4, heads, head, dtype=dtype) for _ in range(2)), 4)


def attend(kernels: type[Any], held: KVPool, **changed: Any) -> torch.Tensor:
    asked: dict[str, Any] = {
        "query": torch.zeros(2, 4, held.head_size),
        "tables": torch.zeros(2, 2, dtype=torch.int32),
        "seq_lens": torch.tensor([1, 0], dtype=torch.int32),
        "scale": 0.25,
    }
    asked |= changed
    with Machine().installed():
        return kernels().attend(held, asked.pop("query"), asked.pop("tables"), asked.pop("seq_lens"), **asked)


@BOTH
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"query": torch.zeros(2, 3, 16)}, "3 query heads do not share 2 key heads"),
        ({"query": torch.zeros(2, 4, 24)}, r"Queries are \[rows, query heads, 16\]"),
        ({"query": torch.zeros(2, 4, 16, dtype=torch.float64)}, "in float32, float16 or bfloat16, got torch.float64"),
        ({"query": torch.zeros(2, 4, 32)[..., ::2]}, "The last dimension of queries is contiguous"),
        ({"query": torch.zeros(3, 4, 16)}, "There are 3 query rows of a decode for 2 sequences"),
        ({"query_lens": torch.ones(3, dtype=torch.int32)}, "There are 3 query lengths for 2 sequences"),
        (
            {
                "tables": torch.zeros(0, 2, dtype=torch.int32),
                "seq_lens": torch.zeros(0, dtype=torch.int32),
                "query_lens": torch.zeros(0, dtype=torch.int32),
            },
            "There is no sequence for 2 query rows",
        ),
        ({"tables": torch.zeros(3, 2, dtype=torch.int32)}, r"Block tables are \[seqs, blocks\]"),
        ({"tables": torch.zeros(2, 4, dtype=torch.int32)[:, ::2]}, "The last dimension of block tables is contiguous"),
        ({"window": 0}, "A window holds at least the token itself, got 0"),
        ({"soft_cap": 0.0}, "A soft cap is above 0, got 0.0"),
        ({"sinks": torch.zeros(2)}, r"Sinks are one number for each query head, \[4\], got \[2\]"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(kernels: type[Any], changed: dict[str, Any], sentence: str) -> None:
    assert attend(kernels, pool()).shape == (2, 4, 16)
    with pytest.raises(ValueError, match=sentence):
        attend(kernels, pool(), **changed)


BYTES = pool(torch.int8)
SCALES = torch.ones(3, 4, 2)


LAYOUTS = [
    (dataclasses.replace(pool(), layout="nhd"), "A pool's layout is one of NHD, HND, got 'nhd'"),
    (dataclasses.replace(pool(), value=torch.zeros(3, 4, 2, 8)), "Keys of 16 elements and values of 8 are a pool of latents"),
    (dataclasses.replace(pool(heads=1), value=torch.zeros(3, 4, 1, 8)), "of the keys in the same memory"),
    (pool(heads=0), "at least one token, head and element"),
    (dataclasses.replace(pool(), block_size=8), "The pool says blocks of 8 tokens"),
    (dataclasses.replace(pool(), layout="HND"), "in layout HND have blocks of 2"),
    (dataclasses.replace(pool(), value=torch.zeros(3, 4, 1, 16)), "the first three alike"),
]
NUMBERS = [
    (pool(torch.float8_e5m2), "int8 or float8_e4m3fn, got torch.float8_e5m2"),
    (BYTES, "has scales of keys and of values, got 0 of 2"),
    (dataclasses.replace(pool(), key_scale=SCALES, value_scale=SCALES), "float32 has no scales"),
    (dataclasses.replace(BYTES, key_scale=SCALES, value_scale=torch.ones(1)), "for keys and for values alike"),
    (dataclasses.replace(BYTES, key_scale=SCALES.half(), value_scale=SCALES.half()), "Scales are float32"),
]


@BOTH
@pytest.mark.parametrize(("held", "sentence"), [*LAYOUTS, *NUMBERS])
def test_a_pool_that_does_not_fit_itself_is_refused(kernels: type[Any], held: KVPool, sentence: str) -> None:
    rows = torch.zeros(1, 2, 16)
    with pytest.raises(ValueError, match=sentence):
        attend(kernels, held)
    with pytest.raises(ValueError, match=sentence):
        kernels().store(held, rows, rows, torch.zeros(1, dtype=torch.int64))


@BOTH
@pytest.mark.parametrize(("held", "sentence"), LAYOUTS)
def test_a_pool_that_does_not_lie_as_it_says_is_not_even_copied(kernels: type[Any], held: KVPool, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        kernels().copy_blocks(held, torch.zeros(1, 2, dtype=torch.int64))


@BOTH
def test_copies_take_numbers_of_any_type(kernels: type[Any]) -> None:
    held = pool(torch.float8_e5m2)
    held.key.view(torch.uint8)[0] = 7
    with Machine().installed():
        kernels().copy_blocks(held, torch.tensor([[0, 2]]))
    assert torch.equal(held.key[2].view(torch.uint8), held.key[0].view(torch.uint8))


@BOTH
def test_rows_and_pairs_that_do_not_fit_are_refused(kernels: type[Any]) -> None:
    rows, slots = torch.zeros(2, 2, 16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"New values are \[tokens, key heads, elements\], here \[2, 2, 16\], got \[2, 1, 16\]"):
        kernels().store(pool(), rows, rows[:, :1], slots)
    with pytest.raises(ValueError, match=r"Slots are integers \[tokens\]"):
        kernels().store(pool(), rows, rows, slots.view(1, 2))
    with pytest.raises(ValueError, match="Pairs of blocks are integers"):
        kernels().copy_blocks(pool(), torch.zeros(2, dtype=torch.int64))


@BOTH
def test_moves_that_do_not_fit_are_refused(kernels: type[Any]) -> None:
    slots = torch.arange(2)
    scaled = dataclasses.replace(pool(torch.int8), key_scale=SCALES.clone(), value_scale=SCALES.clone())
    for source, target in (
        (pool(), pool(heads=1)),
        (pool(), pool(head=24)),
        (pool(), pool(torch.bfloat16)),
        (scaled, pool()),
        (pool(), scaled),
    ):
        with pytest.raises(ValueError, match="Rows move between equal types, heads and elements"):
            kernels().move(source, target, slots, slots)
    with pytest.raises(ValueError, match="a source and a target slot, got 2 and 1"):
        kernels().move(pool(), pool(), slots, slots[:1])
    with pytest.raises(ValueError, match="There are 1 rows for 2 slots"):
        kernels().scatter(pool(), [torch.zeros(1, 2, 16)] * 2, slots)
    with pytest.raises(ValueError, match="Rows move between"):
        kernels().scatter(scaled, [torch.zeros(2, 2, 16, dtype=torch.int8)] * 2, slots)
    with pytest.raises(ValueError, match="Slots are integers"):
        kernels().gather(pool(), slots.float())


def test_what_only_the_torch_path_takes_is_refused_by_the_kernels() -> None:
    wide, many = pool(head=257), pool(heads=1)
    assert attend(PagedTorch, wide).shape == (2, 4, 257)
    with pytest.raises(ValueError, match=r"up to 256 elements .* PagedTorch takes any"):
        attend(PagedTriton, wide)
    with pytest.raises(ValueError, match="up to 128 query heads for a key head"):
        attend(PagedTriton, many, query=torch.zeros(2, 129, 16))
    lens = torch.zeros(65_536, dtype=torch.int32)
    with pytest.raises(ValueError, match="up to 65535 sequences"):
        attend(PagedTriton, pool(), query=torch.zeros(65_536, 4, 16), tables=lens.view(-1, 1), seq_lens=lens)
    view = torch.ones(3, 2, 4, 2)[:, 0]
    with pytest.raises(ValueError, match="The kernels take scales that are contiguous"):
        attend(PagedTriton, dataclasses.replace(BYTES, key_scale=view, value_scale=view))


@BOTH
def test_low_bits_that_do_not_fit_are_refused(kernels: type[Any]) -> None:
    held = LowBitPool.empty(4, 32, 2, 64, rings=2)
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="3 query heads do not share 2 key heads"):
        kernels().attend_low_bits(held, torch.zeros(1, 3, 64).half(), one.view(1, 1), one, one, one, scale=1.0)
    with pytest.raises(ValueError, match="New keys are"):
        kernels().store_low_bits(held, torch.zeros(1, 2, 32), torch.zeros(1, 2, 64), one.view(1, 1), one, one, one + 1, one)


def test_low_bits_whose_keys_and_values_lie_differently_are_refused() -> None:
    held = LowBitPool.empty(4, 32, 2, 64, rings=2)
    apart = dataclasses.replace(held, value_zero=torch.zeros(4, 64, 2, 2).half()[:, :32])
    one, rows = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 2, 64).half()
    with pytest.raises(ValueError, match="value_scale and value_zero have the same strides"):
        PagedTriton().store_low_bits(apart, rows, rows, one.view(1, 1), one, one, one + 1, one)


@BOTH
def test_pairs_of_blocks_may_be_columns_of_a_wider_table(kernels: type[Any]) -> None:
    held = KVPool(torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16), 4)
    wanted = held.key.clone()
    wanted[3], wanted[5] = wanted[0], wanted[1]
    pairs = torch.tensor([[0, 3, 4], [1, 5, 4]])[:, :2]
    with Machine().installed():
        kernels().copy_blocks(held, pairs)
    assert torch.equal(held.key, wanted)
