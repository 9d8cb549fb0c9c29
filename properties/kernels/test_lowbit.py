"""The low-bit scheme: what is read differs from what was written by half a step, the window not at all; Triton and torch store the same bits."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from kvproof.kernels.lowbit import LowBitPool
from kvproof.kernels.machine import Machine, sparse_tensor
from kvproof.kernels.machine.launch import flatten
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.kernels.paged.lowbit_torch import LowBitTorch
from kvproof.kernels.proofs.prove import Proof, prove_launch
from kvproof.properties.kernels.lowbit_batch import HEADS, batch


class Short(LowBitTriton):
    """Splits of one group, so that short sequences have many."""

    def __init__(self) -> None:
        super().__init__(split_tokens=16)


def on_machine(kernels: Any, method: str, *args: Any, **options: Any) -> Any:
    machine = Machine()
    with machine.installed():
        result = getattr(kernels, method)(*args, **options)
    assert machine.launches > 0
    assert [str(found) for found in machine.violations] == []
    return result


class OnMachine:
    """Stores on the machine."""

    def store(self, *args: Any) -> Any:
        return on_machine(Short(), "store", *args)


SCHEMES = [
    {"bits": 4},
    {"bits": 2, "head": 64, "channels": 32, "dtype": torch.bfloat16, "scale_dtype": torch.float32},
    {"bits": 8, "head": 80, "block_size": 16, "dtype": torch.float32, "scale_dtype": torch.float32, "recent": 1},
    {"bits": 4, "group": 32, "block_size": 64, "head": 16, "recent": 0},
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_triton_and_torch_store_the_same_bits_pass_after_pass(scheme: dict[str, Any]) -> None:
    ours, theirs = batch(3, **scheme), batch(3, **scheme)
    rng = random.Random(1)
    for turn in range(6):
        counts = [rng.choice([0, 1, 1, 2, 17, 40]) for _ in range(3)]
        ours.extend(counts, OnMachine(), turn) if any(counts) else None
        theirs.extend(counts, LowBitTorch(), turn) if any(counts) else None
        assert ours.quantised.tolist() == theirs.quantised.tolist()
        for mine, other in zip(ours.bits(), theirs.bits(), strict=True):
            assert torch.equal(mine, other)
    assert int(ours.quantised.max()) > 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_read_is_within_half_a_step_and_the_window_is_exact(scheme: dict[str, Any]) -> None:
    held = batch(2, **scheme)
    for turn, counts in enumerate(([70, 3], [1, 1], [1, 30], [40, 5])):
        held.extend(list(counts), LowBitTorch(), turn)
    pool = held.pool
    for seq in range(2):
        length, whole = int(held.lens[seq]), int(held.quantised[seq])
        assert length - whole >= min(length, pool.recent)
        assert length - whole < pool.ring
        key, value = held.reads(seq)
        original = held.written[seq].float()
        assert torch.equal(key[whole:], original[whole:, 0])
        assert torch.equal(value[whole:], original[whole:, 1])
        # Scale and zero are rounded to their own type before a level is chosen, which costs less than a hundredth of the widest group's step.
        precision = float(torch.finfo(pool.key_scale.dtype).eps)
        groups = original[:whole, 0].unflatten(0, (-1, pool.group))
        span = groups.amax(1, keepdim=True) - groups.amin(1, keepdim=True)
        slack = precision * (span + groups.abs().amax(1, keepdim=True)) + 1e-6
        error = (key[:whole].unflatten(0, (-1, pool.group)) - groups).abs()
        assert (error <= span / (2**pool.bits - 1) / 2 + slack).all()
        parts = original[:whole, 1].unflatten(-1, (-1, pool.channels))
        span = parts.amax(-1, keepdim=True) - parts.amin(-1, keepdim=True)
        slack = precision * (span + parts.abs().amax(-1, keepdim=True)) + 1e-6
        error = (value[:whole].unflatten(-1, (-1, pool.channels)) - parts).abs()
        assert (error <= span / (2**pool.bits - 1) / 2 + slack).all()


@pytest.mark.parametrize("kernels", [Short, *(pytest.param(one, marks=pytest.mark.nightly) for one in (LowBitTriton, LowBitTorch))])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_attention_over_quantised_groups_and_window_equals_the_contiguous_one(scheme: dict[str, Any], kernels: Any) -> None:
    held = batch(3, **scheme)
    held.extend([90, 7, 0], LowBitTorch(), 4)
    held.extend([5, 33, 0], LowBitTorch(), 5)
    head, dtype = held.pool.head_size, held.pool.ring_key.dtype
    for query_lens in (None, torch.tensor([5, 33, 0], dtype=torch.int32)):
        rows = 3 if query_lens is None else 40  # two rows more than there are queries, as captured graphs have
        query = torch.randn(rows, 6, head, generator=torch.Generator().manual_seed(9)).to(dtype)
        arguments = (held.pool, query, held.tables, held.rings, held.lens, held.quantised)
        if kernels is LowBitTorch:
            out = LowBitTorch().attend(*arguments, scale=0.2, query_lens=query_lens)
        else:
            out = on_machine(kernels(), "attend", *arguments, scale=0.2, query_lens=query_lens)
        wanted, bound = held.expected(query, query_lens, 0.2)
        assert ((out.double() - wanted).abs() <= bound).all()


def test_what_nobody_owns_changes_no_bit() -> None:
    outputs = []
    for garbage in (float("nan"), 0.0, 3e4):
        held = batch(3, garbage=garbage)
        held.extend([90, 7, 40], LowBitTorch(), 4)
        query = torch.randn(3, 6, held.pool.head_size, generator=torch.Generator().manual_seed(9)).half()
        out = on_machine(Short(), "attend", held.pool, query, held.tables, held.rings, held.lens, held.quantised, scale=0.2)
        outputs.append(out)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_row_does_not_depend_on_its_batch() -> None:
    held = batch(3)
    held.extend([90, 7, 40], LowBitTorch(), 4)
    query = torch.randn(3, 6, held.pool.head_size, generator=torch.Generator().manual_seed(9)).half()
    together = on_machine(Short(), "attend", held.pool, query, held.tables, held.rings, held.lens, held.quantised, scale=0.2)
    for seq in range(3):
        one = slice(seq, seq + 1)
        parts = (query[one], held.tables[one, : 1 + seq + 2], held.rings[one], held.lens[one], held.quantised[one])
        assert torch.equal(on_machine(Short(), "attend", held.pool, *parts, scale=0.2), together[one])


def test_a_copied_sequence_reads_the_same_and_goes_its_own_way() -> None:
    held = batch(2)
    held.extend([50, 0], LowBitTorch(), 1)
    blocks = -(-50 // held.pool.block_size)
    pairs = torch.stack([held.tables[0, :blocks], held.tables[1, :blocks]], 1).long()
    on_machine(LowBitTriton(), "copy_blocks", held.pool, pairs)
    on_machine(LowBitTriton(), "copy_rings", held.pool, torch.tensor([[int(held.rings[0]), int(held.rings[1])]]))
    held.lens[1], held.quantised[1], held.written[1] = held.lens[0], held.quantised[0], held.written[0]
    rows = [held.reads(seq) for seq in range(2)]
    assert torch.equal(rows[0][0], rows[1][0])
    assert torch.equal(rows[0][1], rows[1][1])
    held.extend([0, 30], LowBitTorch(), 2)
    again = held.reads(0)
    assert torch.equal(again[0], rows[0][0])


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="blocks are whole groups"):
        LowBitPool.empty(4, 24, 1, 64, rings=1, group=16)
    with pytest.raises(ValueError, match="2, 4 or 8 bits"):
        LowBitPool.empty(4, 32, 1, 64, rings=1, bits=3)
    with pytest.raises(ValueError, match="divides the head size 80"):
        LowBitPool.empty(4, 32, 1, 80, rings=1, channels=32)


def test_all_addresses_are_proved_in_a_pool_of_2_to_the_40_bytes() -> None:
    small = batch(1, head=32, channels=32, block_size=32)
    blocks = 2**40 // (32 * HEADS * 16)
    pool = dataclasses.replace(
        small.pool,
        **{
            name: sparse_tensor((blocks, *getattr(small.pool, name).shape[1:]), getattr(small.pool, name).dtype)
            for name in ("key", "value", "key_scale", "key_zero", "value_scale", "value_zero")
        },
    )
    tables = torch.tensor([[blocks - 1, 0, 2**31 // 1024, blocks // 2]], dtype=torch.int32)
    row, nothing, length = torch.tensor([4], dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.tensor([120], dtype=torch.int32)
    machine, proofs = Machine(), []
    machine.on_launch.append(lambda lowered, bound, grid: proofs.extend(prove(lowered, bound, grid)))
    rows = torch.randn(120, HEADS, 32).half()
    with machine.installed():
        done = Short().store(pool, rows, rows + 1, tables, row, nothing, length, nothing)
        out = Short().attend(pool, rows[:1].repeat(1, 2, 1), tables, row, length, done, scale=0.2)
        Short().copy_blocks(pool, torch.tensor([[blocks - 1, blocks - 2]]))
    assert machine.violations == []
    assert [str(proof) for proof in proofs if proof.outcome != "proved"] == []
    assert len(proofs) > 30
    assert not out.isnan().any()
    assert torch.equal(pool.key[blocks - 1], pool.key[blocks - 2])
    assert bool((pool.key[blocks - 1] != 0).any())


def prove(lowered: Any, bound: dict[str, Any], grid: tuple[int, int, int]) -> list[Proof]:
    return prove_launch(lowered.program, flatten(bound, lowered.constants), grid)
