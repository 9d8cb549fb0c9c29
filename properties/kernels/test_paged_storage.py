"""Storage of the paged kernels beyond the suite's cases: e4m3 with a scale for each slot and head, e4m3 by its bits, and moves in giant pools."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kvproof.kernels import reference
from kvproof.kernels.check import check_kernels
from kvproof.kernels.contract import KernelCapabilities, KVPool
from kvproof.kernels.machine import Machine, sparse_tensor
from kvproof.kernels.machine.launch import flatten
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.sizes import Target
from kvproof.kernels.paged.torch_path import PagedTorch
from kvproof.kernels.proofs.prove import Proof, prove_launch

BLOCKS, BLOCK, HEADS, HEAD = 6, 12, 2, 40
LENS = torch.tensor([29, 0, 17], dtype=torch.int32)
TABLES = torch.tensor([[5, 0, 3], [2**31 - 1, -1, 7], [1, 4, -5]], dtype=torch.int32)


class ByBits(PagedTriton):
    """As on a device that has no e4m3."""

    def __init__(self) -> None:
        super().__init__(Target("cuda", e4m3=False, shared_operands=False))

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(dtypes=("float16", "bfloat16"), layouts=("NHD", "HND"), features=frozenset({"decode", "prefill", "fp8"}))


def test_e4m3_by_its_bits_keeps_every_law() -> None:
    report = check_kernels(
        ByBits, budget_seconds=4, laws={"paged-equals-contiguous", "quantised-within-bound", "in-bounds", "writes-only-granted"}
    )
    assert report.verdict == "held", str(report)
    assert report.law("quantised-within-bound").exercised > 0


def numbers() -> torch.Tensor:
    """Every e4m3 number, what lies half-way to the next one and just beside that, and numbers that saturate or vanish: `[tokens, 1, 16]`."""
    grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    grid = grid[~grid.isnan()].sort().values
    middle = (grid[1:] + grid[:-1]) / 2
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-1e9, 1e9)]
    found = torch.cat([grid, middle, *beside, torch.tensor([449.0, 464.0, 1e30, -1e30, 1e-30, -0.0, 2.0**-10, 2.0**-9 * 1.5])])
    return torch.nn.functional.pad(found, (0, -len(found) % 16)).view(-1, 1, 16)


@pytest.mark.parametrize("kernels", [PagedTriton, ByBits])
def test_every_number_becomes_the_nearest_e4m3(kernels: type[PagedTriton]) -> None:
    rows = numbers()
    pools = [
        KVPool(*(torch.zeros(len(rows), 1, 1, 16).to(torch.float8_e4m3fn) for _ in range(2)), 1, "NHD", *torch.ones(2, 1).unbind())
        for _ in range(2)
    ]
    with Machine().installed():
        kernels().store(pools[0], rows, -rows, torch.arange(len(rows)))
    PagedTorch().store(pools[1], rows, -rows, torch.arange(len(rows)))
    for ours, theirs in ((pools[0].key, pools[1].key), (pools[0].value, pools[1].value)):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def token_scaled(dtype: torch.dtype, layout: str) -> KVPool:
    shape = (BLOCKS, BLOCK, HEADS, HEAD) if layout == "NHD" else (BLOCKS, HEADS, BLOCK, HEAD)
    key, value = (torch.full(shape, 77.0).to(dtype) for _ in range(2))
    # Nobody's scales are NaN: what reads one shows it.
    return KVPool(key, value, BLOCK, layout, *(torch.full((BLOCKS, BLOCK, HEADS), float("nan")) for _ in range(2)))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        (PagedTriton, torch.float8_e4m3fn),
        (ByBits, torch.float8_e4m3fn),
        (PagedTorch, torch.float8_e4m3fn),
        (PagedTriton, torch.int8),
        (PagedTorch, torch.int8),
    ],
)
def test_a_scale_for_each_slot_and_head_keeps_rows_of_any_size(dtype: torch.dtype, layout: str, kernels: Any) -> None:
    pool = token_scaled(dtype, layout)
    slots = PagedTriton.slots(TABLES.clamp(0, BLOCKS - 1), LENS, BLOCK)
    slots = torch.cat([slots[slots >= 0], torch.tensor([-1])])
    generator = torch.Generator().manual_seed(3)
    # Rows differ by a factor of a million: one scale for the pool would lose most of them.
    size = 10.0 ** torch.randint(-3, 4, (len(slots), HEADS, 1), generator=generator)
    key, value = (torch.randn(len(slots), HEADS, HEAD, generator=generator).to(torch.bfloat16) * size for _ in range(2))
    key, value = key.to(torch.bfloat16), value.to(torch.bfloat16)
    query = torch.randn(3, 4, HEAD, generator=generator).to(torch.bfloat16)
    machine = Machine()
    with machine.installed():
        kernels().store(pool, key, value, slots)
        out = kernels().attend(pool, query, TABLES, LENS, scale=0.01)
        rows = torch.randn(20, 4, HEAD, generator=generator).to(torch.bfloat16)
        counts = torch.tensor([9, 0, 11], dtype=torch.int32)
        appended = kernels().attend(pool, rows, TABLES, LENS, scale=0.01, query_lens=counts)
    assert machine.violations == []
    step = 1 / 127 / 2 if dtype == torch.int8 else 1 / 16
    for is_key, original in ((True, key), (False, value)):
        held = reference.dequantised(pool, key=is_key).reshape(-1, HEADS, HEAD)[slots[:-1]]
        wanted = original[:-1].double()
        largest = wanted.abs().amax(-1, keepdim=True)
        # int8: half a step of the largest. e4m3: half an ulp of the number, and near zero half a step of 2^-9 where the largest is 448.
        bound = largest * step if dtype == torch.int8 else torch.maximum(wanted.abs() * step, largest / 448 * 2.0**-10)
        assert ((held - wanted).abs() <= bound * (1 + 1e-3)).all()
    for got, expected in (
        (out, reference.attend(pool, query, TABLES, LENS, scale=0.01)),
        (appended, reference.attend(pool, rows, TABLES, LENS, scale=0.01, query_lens=counts)),
    ):
        assert ((got.double() - expected.output).abs() <= expected.bound).all()


@pytest.mark.parametrize("kernels", [PagedTriton, ByBits, PagedTorch])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_row_so_small_that_its_scale_vanishes_is_stored_as_zeros(dtype: torch.dtype, kernels: Any) -> None:
    pool = token_scaled(dtype, "NHD")
    rows = torch.zeros(1, HEADS, HEAD)
    rows[0, 0, :3] = torch.tensor([1e-44, -1e-45, 5e-45])
    with Machine().installed():
        kernels().store(pool, rows, rows, torch.tensor([5]))
    assert torch.equal(reference.dequantised(pool, key=True)[0, 5].float(), torch.zeros(HEADS, HEAD))
    assert pool.key_scale is not None
    assert torch.equal(pool.key_scale[0, 5], torch.ones(HEADS))


def test_moves_are_proved_in_a_pool_of_2_to_the_40_bytes() -> None:
    blocks = 2**40 // (16 * 2 * 32 * 2)
    pool = KVPool(*(sparse_tensor((blocks, 16, 2, 32), torch.bfloat16) for _ in range(2)), 16)
    rows = [torch.randn(6, 2, 32).to(torch.bfloat16) for _ in range(2)]
    slots = torch.tensor([16 * blocks - 1, 0, 2**31 + 5, 2**32 - 1, -1, 16 * blocks - 16])
    machine, proofs = Machine(), []
    machine.on_launch.append(lambda lowered, bound, grid: proofs.extend(_prove(lowered, bound, grid)))
    other = KVPool(*(torch.zeros(1, 2, 6, 32, dtype=torch.bfloat16) for _ in range(2)), 6, "HND")
    with machine.installed():
        PagedTriton().scatter(pool, rows, slots)
        back = PagedTriton().gather(pool, slots)
        PagedTriton().move(pool, other, slots, torch.arange(6))
    assert machine.violations == []
    assert [str(proof) for proof in proofs if proof.outcome != "proved"] == []
    assert len(proofs) >= 12
    real = slots >= 0
    assert all(torch.equal(found[real], original[real]) for found, original in zip(back, rows, strict=True))
    assert all(bool((found[~real] == 0).all()) for found in back)
    assert torch.equal(other.key[0].transpose(0, 1)[real], rows[0][real])


def _prove(lowered: Any, bound: dict[str, Any], grid: tuple[int, int, int]) -> list[Proof]:
    return prove_launch(lowered.program, flatten(bound, lowered.constants), grid)


def test_a_prefill_zeroes_the_rows_that_no_query_needs() -> None:
    pool = KVPool(*(torch.randn(BLOCKS, BLOCK, HEADS, HEAD) for _ in range(2)), BLOCK)
    query = torch.randn(60, 4, HEAD)
    query[26:] = float("nan")
    counts = torch.tensor([9, 0, 17], dtype=torch.int32)
    machine = Machine()
    with machine.installed():
        out = PagedTriton().attend(pool, query, TABLES, LENS, scale=0.2, query_lens=counts)
    assert machine.violations == []
    assert bool((out[26:] == 0).all())
    assert torch.allclose(out[:26], PagedTorch().attend(pool, query[:26], TABLES, LENS, scale=0.2, query_lens=counts), atol=1e-5)


@pytest.mark.parametrize("rope", [0, 8], ids=["heads", "latents"])
def test_appends_alone_zero_the_rows_that_no_query_needs(rope: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound on the new tokens there is no prefill that would do so; captured graphs pad with such rows."""
    key, value = (torch.randn(BLOCKS, BLOCK, 1 if rope else HEADS, HEAD) for _ in range(2))
    pool = KVPool(key, key[..., : HEAD - rope] if rope else value, BLOCK)
    counts = torch.tensor([3, 0, 2], dtype=torch.int32)
    query = torch.randn(8, 4, HEAD)
    empty = torch.empty

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)
    with Machine().installed():
        out = PagedTriton().attend(pool, query, TABLES, LENS, scale=0.2, query_lens=counts, max_queries=3)
    assert bool((out[5:] == 0).all())
    assert torch.allclose(out[:5], PagedTorch().attend(pool, query[:5], TABLES, LENS, scale=0.2, query_lens=counts), atol=1e-5)


class ShortSplits(PagedTriton):
    """Splits of two tiles of these heads."""

    split_tokens = 32


@pytest.mark.parametrize("counts", [None, torch.tensor([2], dtype=torch.int32)], ids=["decode", "append"])
def test_a_window_that_begins_within_a_tile_is_walked_to_its_end(counts: torch.Tensor | None) -> None:
    """A window of 32 from position 68 on lies in tokens 64 to 99, which is more than one split of 32."""
    pool = KVPool(*(torch.randn(7, 16, 1, 128) for _ in range(2)), 16)
    tables, lens = torch.arange(7, dtype=torch.int32).view(1, 7), torch.tensor([100], dtype=torch.int32)
    query = torch.randn(1 if counts is None else 2, 1, 128)
    with Machine().installed():
        out = ShortSplits().attend(pool, query, tables, lens, scale=0.1, query_lens=counts, window=32)
    assert torch.allclose(out, PagedTorch().attend(pool, query, tables, lens, scale=0.1, query_lens=counts, window=32), atol=1e-5)


@pytest.mark.parametrize("rope", [0, 8], ids=["heads", "latents"])
@pytest.mark.parametrize("new", [None, 8, 9], ids=["decode", "append", "prefill"])
def test_a_bound_that_is_just_met_leaves_nothing_out(rope: int, new: int | None) -> None:
    """33 tokens are one more than a split (this small one), and 9 new ones one more than an append takes."""
    key, value = (torch.randn(BLOCKS, BLOCK, 1 if rope else HEADS, HEAD) for _ in range(2))
    pool = KVPool(key, key[..., : HEAD - rope] if rope else value, BLOCK)
    lens, counts = torch.tensor([33], dtype=torch.int32), None if new is None else torch.tensor([new], dtype=torch.int32)
    query, tables = torch.randn(new or 1, 4, HEAD), torch.tensor([[5, 0, 3]], dtype=torch.int32)
    with Machine().installed():
        out = ShortSplits().attend(pool, query, tables, lens, scale=0.2, query_lens=counts, max_tokens=33, max_queries=new)
    assert torch.allclose(out, PagedTorch().attend(pool, query, tables, lens, scale=0.2, query_lens=counts), atol=1e-5)


def test_a_plan_can_be_shared_by_layers() -> None:
    pool = KVPool(*(torch.randn(BLOCKS, BLOCK, HEADS, HEAD) for _ in range(2)), BLOCK)
    query, counts = torch.randn(26, 4, HEAD), torch.tensor([9, 0, 17], dtype=torch.int32)
    kernels = PagedTriton()
    with Machine().installed():
        plan = kernels.prefill_plan(pool, query, counts)
        shared = kernels.attend(pool, query, TABLES, LENS, scale=0.2, query_lens=counts, plan=plan)
        own = kernels.attend(pool, query, TABLES, LENS, scale=0.2, query_lens=counts)
    assert torch.equal(shared, own)
    assert dataclasses.asdict(plan).keys() == {"tile_seq", "tile_first", "query_starts", "tokens", "short"}


def test_a_bound_on_the_lengths_spares_splits_and_changes_no_bit() -> None:
    pool = KVPool(*(torch.randn(BLOCKS, BLOCK, HEADS, HEAD) for _ in range(2)), BLOCK)
    query, wide = torch.randn(3, 4, HEAD), torch.nn.functional.pad(TABLES, (0, 500), value=2**31 - 1)
    outputs, grids = [], []
    for bound in (None, 29, 1024):
        machine = Machine()
        machine.on_launch.append(lambda lowered, bound, grid: grids.append(grid))
        with machine.installed():
            outputs.append(PagedTriton().attend(pool, query, wide, LENS, scale=0.2, max_tokens=bound))
        assert machine.violations == []
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert [grid for grid in grids if grid[2] == 3] == [(HEADS, 6, 3), (HEADS, 1, 3), (HEADS, 1, 3)]
