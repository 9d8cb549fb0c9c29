"""The paged kernels keep every law: in Triton on the IR machine, with short splits so that decodes are merged, and in plain torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kvproof.kernels.check import check_kernels, judge_case
from kvproof.kernels.contract import KernelCapabilities, KVPool
from kvproof.kernels.laws import overflow
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.laws.scenes import build
from kvproof.kernels.machine import Machine
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.memory import block_runs, layers_view
from kvproof.kernels.paged.plan import plan_prefill
from kvproof.kernels.paged.torch_path import PagedTorch


class ShortSplits(PagedTriton):
    """Every decode of more than one tile is split and merged; decode alone, which is what differs."""

    split_tokens = 32

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        claimed = super().capabilities()
        return KernelCapabilities(
            dtypes=claimed.dtypes,
            head_sizes=(64, 80),
            gqa_ratios=(1, 4),
            block_sizes=(16, 12, 256),
            layouts=claimed.layouts,
            features=claimed.features - {"prefill", "copy"},
            mla_sizes=((48, 24),),
            max_pool_bytes=claimed.max_pool_bytes,
        )


@pytest.mark.parametrize(("kernels", "seconds"), [(PagedTriton, 8), (ShortSplits, 4)], ids=["whole", "split"])
def test_triton_keeps_every_law_and_all_addresses_are_proved(
    kernels: type[PagedTriton], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "PROOF_SECONDS", 300.0)  # so that a busy machine proves as much as an idle one
    report = check_kernels(kernels, budget_seconds=seconds)
    assert report.verdict == "held", str(report)
    proved = report.law("no-address-overflow").reason
    assert "1099511627776 bytes" in proved
    assert "unknown" not in proved, proved
    assert "did not replay" not in proved, proved


def test_torch_keeps_every_law() -> None:
    report = check_kernels(PagedTorch, budget_seconds=3)
    assert report.verdict == "held", str(report)


LATENTS = Case("attend", dtype="float16", block_size=12, head_size=24, rope=8, ratio=70, lens=(31, 17, 5), permuted=True, tail="wild")
"""More heads than a program has rows: three tiles of heads in float16, five in float32, the last one not full."""


@pytest.mark.parametrize(
    "case",
    [
        LATENTS,
        dataclasses.replace(LATENTS, query_lens=(19, 8, 3), quantisation="int8"),
        dataclasses.replace(LATENTS, query_lens=(31, 1, 5), dtype="float32", layout="HND"),
    ],
    ids=["decode", "append and prefill", "float32"],
)
def test_a_latent_has_more_heads_than_a_program_has_rows(case: Case) -> None:
    assert judge_case(PagedTriton, case) == {}


def test_a_sequence_without_new_tokens_takes_no_part_in_a_prefill() -> None:
    for rope in (0, 8):
        idle = Case("attend", block_size=12, head_size=24, rope=rope, lens=(31, 17, 0), query_lens=(12, 0, 0), permuted=True)
        assert judge_case(PagedTriton, idle) == {}


def test_latents_refuse_what_no_model_with_latents_has() -> None:
    scene = build(dataclasses.replace(LATENTS, ratio=2))
    with pytest.raises(ValueError, match="no window, sinks or soft cap"):
        PagedTriton().attend(scene.pool, scene.query, scene.tables, scene.seq_lens, scale=1.0, window=5)


POOLS = [
    Case("attend", dtype="float16", lens=(37, 0, 5), permuted=True, kv_heads=2, head_size=24),
    Case("attend", dtype="bfloat16", lens=(20, 3), layout="HND", block_size=12, kv_heads=3, head_size=80, interleaved=True),
    Case("attend", quantisation="int8", lens=(9, 30), block_size=1, kv_heads=2, garbage="zero"),
    Case("attend", quantisation="fp8", dtype="float16", lens=(9, 30), layout="HND", block_size=64, garbage="zero"),
]


def clone(pool: KVPool) -> KVPool:
    parts = {name: getattr(pool, name) for name in ("key", "value", "key_scale", "value_scale")}
    return dataclasses.replace(pool, **{name: None if part is None else torch.zeros_like(part) for name, part in parts.items()})


def contents(pool: KVPool) -> list[Any]:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    tensors = [tensor for tensor in (pool.key, pool.value, pool.key_scale, pool.value_scale) if tensor is not None and tensor.dim() > 1]
    return [tensor.contiguous().view(kinds[tensor.element_size()]).tolist() for tensor in tensors]


def on_machine(method: str, *args: Any) -> Any:
    machine = Machine()
    with machine.installed():
        result = getattr(PagedTriton(), method)(*args)
    assert machine.launches > 0
    assert machine.violations == []
    return result


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_gather_and_scatter_move_every_bit_and_agree_with_torch(case: Case) -> None:
    scene = build(case)
    slots = PagedTriton.slots(scene.tables, scene.seq_lens, case.block_size)
    rows = on_machine("gather", scene.pool, slots)
    for ours, theirs in zip(rows, PagedTorch().gather(scene.pool, slots), strict=True):
        assert torch.equal(ours.float(), theirs.float())
    first, second = clone(scene.pool), clone(scene.pool)
    on_machine("scatter", first, rows, slots)
    PagedTorch().scatter(second, rows, slots)
    assert contents(first) == contents(second)
    assert any(slot >= 0 for slot in slots.tolist())


def test_a_move_between_layouts_and_block_sizes_there_and_back_changes_no_bit() -> None:
    scene = build(POOLS[2])
    slots = PagedTriton.slots(scene.tables, scene.seq_lens, 1)
    slots = slots[slots >= 0]
    other = KVPool(
        torch.zeros(8, 2, 8, 64, dtype=torch.int8),
        torch.zeros(8, 2, 8, 64, dtype=torch.int8),
        8,
        "HND",
        torch.zeros(8, 8, 2),
        torch.zeros(8, 8, 2),
    )
    there = torch.randperm(64, generator=torch.Generator().manual_seed(1))[: len(slots)]
    on_machine("move", scene.pool, other, slots, there)
    back = clone(scene.pool)
    on_machine("move", other, back, there, slots)
    for mine, original in zip(PagedTorch().gather(back, slots), PagedTorch().gather(scene.pool, slots), strict=True):
        assert torch.equal(mine, original)


def test_shards_of_heads_come_together_in_one_pool() -> None:
    whole = torch.randn(4, 16, 4, 32)
    pool = KVPool(whole, whole + 1, 16)
    slots = torch.tensor([3, 17, 60, 0])
    joined = KVPool(torch.zeros(4, 16, 4, 32), torch.zeros(4, 16, 4, 32), 16)
    for heads in (slice(0, 2), slice(2, 4)):
        shard = KVPool(torch.zeros(2, 8, 2, 32), torch.zeros(2, 8, 2, 32), 8)
        part = KVPool(pool.key[:, :, heads], pool.value[:, :, heads], 16)
        on_machine("move", part, shard, slots, torch.arange(4))
        on_machine("move", shard, KVPool(joined.key[:, :, heads], joined.value[:, :, heads], 16), torch.arange(4), slots)
    assert torch.equal(PagedTorch().gather(joined, slots)[0], PagedTorch().gather(pool, slots)[0])
    assert int((joined.key != 0).any(-1).any(-1).sum()) == 4


def test_one_launch_copies_the_blocks_of_all_layers() -> None:
    layers = torch.randn(3, 2, 10, 16, 2, 24).to(torch.bfloat16)
    before = layers.clone()
    pools = [KVPool(layer[0], layer[1], 16) for layer in layers]
    pairs = torch.tensor([[0, 9], [4, 1], [3, 7]])
    machine = Machine()
    with machine.installed():
        PagedTriton().copy_layers(pools, pairs)
    assert machine.launches == 2
    assert machine.violations == []
    before[:, :, pairs[:, 1]] = before[:, :, pairs[:, 0]]
    assert torch.equal(layers, before)


def test_layers_of_their_own_are_copied_one_by_one() -> None:
    pools = [KVPool(torch.randn(4, 2, 1, 16), torch.randn(4, 2, 1, 16), 2, "NHD") for _ in range(2)]
    on_machine("copy_layers", pools, torch.tensor([[0, 3]]))
    assert all(torch.equal(pool.key[3], pool.key[0]) and torch.equal(pool.value[3], pool.value[0]) for pool in pools)


def test_blocks_that_do_not_lie_in_one_piece_are_copied_run_by_run() -> None:
    whole = torch.randn(5, 4, 6, 24)
    before, heads = whole.clone(), slice(1, 4)
    on_machine("copy_blocks", KVPool(whole[:, :, heads, :16], whole[:, :, heads, :16], 4), torch.tensor([[1, 3], [0, 4]]))
    before[3, :, heads, :16], before[4, :, heads, :16] = before[1, :, heads, :16], before[0, :, heads, :16]
    assert torch.equal(whole, before)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((16, 2, 64), (128, 64, 1), (0, 0, 1, 2048)),
        ((16, 2, 64), (256, 64, 1), (0, 256, 16, 128)),
        ((16, 2, 64), (300, 70, 1), (300, 70, 2, 64)),
        ((16, 1, 1), (2, 7, 9), (0, 2, 16, 1)),
    ],
)
def test_a_block_is_read_in_runs_as_long_as_its_strides_allow(shape, strides, expected) -> None:
    assert block_runs(shape, strides) == expected


def test_layers_at_unequal_distances_are_no_single_tensor() -> None:
    store = torch.zeros(7, 4)
    assert layers_view([store[0], store[2], store[4]]) is not None
    assert layers_view([store[0], store[2], store[5]]) is None
    assert layers_view([store[0], torch.zeros(4)]) is None


@pytest.mark.parametrize("lens", [(1,), (5, 0, 17, 1), (16, 16), (0, 0), (3,) * 9])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_a_plan_covers_every_row_once_and_zeroes_the_rest(lens: tuple[int, ...], padding: int) -> None:
    tokens, rows = 8, sum(lens) + padding
    plan = plan_prefill(torch.tensor(lens, dtype=torch.int32), rows, tokens)
    covered: list[int] = []
    for seq, first in zip(plan.tile_seq.tolist(), plan.tile_first.tolist(), strict=True):
        start = 0 if seq < 0 else int(plan.query_starts[seq])
        end = rows if seq < 0 else start + lens[seq]
        covered += [row for row in range(start + first, start + first + tokens) if row < end]
    assert sorted(covered) == list(range(rows))


class Wide(PagedTriton):
    """Shapes that nobody tuned for."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        claimed = super().capabilities()
        return KernelCapabilities(
            dtypes=claimed.dtypes,
            head_sizes=(256, 8, 96, 20, 192, 160),
            gqa_ratios=(5, 16, 2, 71, 128, 3),
            block_sizes=(2, 17, 256, 100, 3, 64),
            layouts=claimed.layouts,
            features=claimed.features,
            max_pool_bytes=claimed.max_pool_bytes,
            mla_sizes=((128, 32), (256, 8)),
        )


@pytest.mark.nightly
def test_shapes_that_nobody_tuned_for_keep_every_law() -> None:
    report = check_kernels(Wide, budget_seconds=120, seed=7)
    assert report.verdict == "held", str(report)


@pytest.mark.parametrize("scale", [-3.0, 0.0])
def test_the_largest_product_need_not_be_the_largest_score(scale: float) -> None:
    """Whole tiles, where the largest score is found among products, of keys whose products are far apart: exponents of the wrong side overflow."""
    torch.manual_seed(0)
    pool = KVPool(*(torch.randn(20, 16, 2, 16) * 5 for _ in range(2)), 16)
    tables, lens = torch.randperm(20).to(torch.int32).view(1, 20), torch.tensor([300], dtype=torch.int32)
    for count, query_lens in ((1, None), (70, torch.tensor([70], dtype=torch.int32))):
        query = torch.randn(count, 4, 16) * 5
        with Machine().installed():
            ours = PagedTriton().attend(pool, query, tables, lens, scale=scale, query_lens=query_lens)
        theirs = PagedTorch().attend(pool, query, tables, lens, scale=scale, query_lens=query_lens)
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.01)
