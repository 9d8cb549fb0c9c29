"""What kernels may claim beside plain attention: who claims it is judged by it, and a claim that nothing fits is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kvproof.kernels.check import check_kernels, judge_case
from kvproof.kernels.contract import KernelCapabilities, KVPool
from kvproof.kernels.laws.cases import Case
from kvproof.kernels.lowbit import LowBitScheme
from kvproof.kernels.paged.torch_path import PagedTorch
from kvproof.kernels.plain.torch_kernels import PlainTorch


class Gathering(PlainTorch):
    """Somebody's kernels, with a gather of their own."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(layouts=("NHD", "HND"), features=frozenset({"decode", "gather"}))

    def gather(self, pool: KVPool, slots: torch.Tensor) -> Any:
        found = []
        for tensor in (pool.key, pool.value):
            rows = pool.slot_view(tensor)[slots // pool.block_size, slots % pool.block_size]
            found.append(torch.where((slots >= 0).view(-1, 1, 1), rows, 0.0))
        return found


class GatheringPadding(Gathering):
    """A slot of -1 is the last slot of the pool."""

    def gather(self, pool: KVPool, slots: torch.Tensor) -> Any:
        return super().gather(pool, slots.clamp(min=0))


class GatheringKeys(Gathering):
    """Values are left out."""

    def gather(self, pool: KVPool, slots: torch.Tensor) -> Any:
        return super().gather(pool, slots)[:1]


class GatheringNothing(Gathering):
    """Claims what it does not have."""

    gather = PlainTorch.gather


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        (GatheringPadding, "is not zeros"),
        (GatheringKeys, "gather must return 2 tensors (key, value), it returned 1 of them"),
        (GatheringNothing, "GatheringNothing.gather is not implemented"),
    ],
)
def test_a_claimed_move_is_judged(kernels: type[Gathering], reason: str) -> None:
    law = check_kernels(kernels, budget_seconds=2, laws={"relayout-is-bijection"}, shrink_seconds=0.3).law("relayout-is-bijection")
    assert law.verdict == "broken"
    assert reason in law.reason
    case = eval(law.case, {"Case": Case})
    assert "relayout-is-bijection" in judge_case(kernels, case)
    assert judge_case(Gathering, case) == {}


def test_a_right_move_is_held_and_an_unclaimed_one_does_not_apply() -> None:
    assert check_kernels(Gathering, budget_seconds=1).verdict == "held"
    assert check_kernels(PlainTorch, budget_seconds=0.1).law("relayout-is-bijection").verdict == "not-applicable"


class LowBits(PagedTorch):
    """The torch path, at one scheme."""

    @classmethod
    def capabilities(cls) -> KernelCapabilities:
        return KernelCapabilities(
            head_sizes=(32,), block_sizes=(32,), features=frozenset({"low-bits", "copy"}), low_bits=(LowBitScheme(4, 16, 16, 20),)
        )


class CountsTooMany(LowBits):
    """Says that more has left the window than may have."""

    def store_low_bits(self, pool: Any, *arguments: Any) -> Any:
        return super().store_low_bits(pool, *arguments) + pool.group


class HoldsBack(LowBits):
    """Leaves the last group in the ring where the ring has room for it: the other lawful choice."""

    def store_low_bits(self, pool: Any, *arguments: Any) -> Any:
        return super().store_low_bits(dataclasses.replace(pool, recent=pool.recent + 1), *arguments)


class ForgetsRings(LowBits):
    """A fork gets the blocks alone."""

    def copy_low_bits(self, pool: Any, pairs: Any, rings: Any) -> None:
        super().copy_low_bits(pool, pairs, rings[:0])


@pytest.mark.parametrize(
    ("kernels", "law", "reason"),
    [
        (CountsTooMany, "paged-equals-contiguous", "are in blocks, where it must be"),
        (ForgetsRings, "copy-is-complete", "ring_key of ring"),
    ],
)
def test_low_bits_are_judged(kernels: type[LowBits], law: str, reason: str) -> None:
    found = check_kernels(kernels, budget_seconds=2, laws={law}, shrink_seconds=0.3).law(law)
    assert found.verdict == "broken"
    assert reason in found.reason


@pytest.mark.parametrize("kernels", [LowBits, HoldsBack])
def test_kernels_of_low_bits_alone_are_given_nothing_else(kernels: type[LowBits]) -> None:
    report = check_kernels(kernels, budget_seconds=1)
    assert report.verdict == "held", str(report)
    assert report.law("quantised-within-bound").exercised > 0


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (LowBitScheme(3), "2, 4 or 8 bits"),
        (LowBitScheme(4, 32, 32), "fits none of the claimed sizes"),
        (LowBitScheme(scale_dtype="half"), "knows scales of"),
    ],
)
def test_a_scheme_that_nothing_fits_is_named(scheme: LowBitScheme, message: str) -> None:
    class Claims(LowBits):
        @classmethod
        def capabilities(cls) -> KernelCapabilities:
            return KernelCapabilities(head_sizes=(80,), block_sizes=(32,), features=frozenset({"low-bits"}), low_bits=(scheme,))

    report = check_kernels(Claims)
    assert report.verdict == "error"
    assert message in report.error
