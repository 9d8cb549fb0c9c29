"""Every seeded fault of the paged kernels breaks the law that it names, and the same kernels without it keep them all."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvproof.kernels.check import check_kernels
from kvproof.kernels.laws.judges import SENTENCES
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.kernels.paged.lowbit import LowBitTriton
from kvproof.properties.kernels.paged_faults import LOW_BIT_FAULTS, MOVE_FAULTS, PAGED_FAULTS, Small, build_paged, write
from kvproof.properties.kernels.storage_judges import judge_low_bits, judge_moves

QUICK = {
    "tiles multiply block ids in 32 bits",
    "tiles take block sizes for powers of two",
    "tiles look up unseen positions",
    "padded lanes of a head are read",
    "the merge forgets to rescale",
    "a lone sequence is merged with another rounding",
    "a batch without tokens is not merged",
    "a prefill's window is one token wide of it",
    "sinks are forgotten where splits are merged",
    "the soft cap caps the product",
    "query heads are dealt round in a prefill",
    "the diagonal is open",
    "padded slots are stored",
    "e4m3 wraps instead of saturating",
    "int8 is truncated",
    "scales are found without their block",
    "copies leave scales behind",
    "the rotary part of a row is not scored",
    "moves leave scales behind",
    "moves take the source's blocks for the target's",
    "the scheme forgets its zero",
    "the ring is overwritten before its group is quantised",
    "copies leave the ring of values behind",
}
"""One or two for each feature; the others take a minute more and run at night."""


def names(faults: Iterable[str]) -> list[Any]:
    """Parameters, the slow ones marked."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in faults]


class Right(Small, PagedTriton):
    """No fault, the same claims."""


@pytest.mark.parametrize("name", names(PAGED_FAULTS))
def test_a_seeded_fault_of_the_paged_kernels_breaks_its_law(name: str, tmp_path: Path) -> None:
    fault = PAGED_FAULTS[name]
    report = check_kernels(build_paged(name, tmp_path), budget_seconds=20, laws={fault.law}, shrink_seconds=0.2)
    assert report.law(fault.law).verdict == "broken", str(report)


@pytest.mark.parametrize("name", names(MOVE_FAULTS))
def test_a_seeded_fault_of_moves_is_seen(name: str, tmp_path: Path) -> None:
    package = write(name, (MOVE_FAULTS[name],), tmp_path)
    assert judge_moves(importlib.import_module(f"{package}.adapter").PagedTriton()) != ""


@pytest.mark.parametrize("name", names(LOW_BIT_FAULTS))
def test_a_seeded_fault_of_the_low_bit_scheme_is_seen(name: str, tmp_path: Path) -> None:
    package = write(name, (LOW_BIT_FAULTS[name],), tmp_path)
    assert judge_low_bits(importlib.import_module(f"{package}.lowbit").LowBitTriton()) != ""


def test_quick_faults_are_faults() -> None:
    assert {*PAGED_FAULTS, *MOVE_FAULTS, *LOW_BIT_FAULTS} >= QUICK


def test_without_a_fault_moves_and_the_low_bit_scheme_are_right() -> None:
    assert judge_moves(PagedTriton()) == ""
    assert judge_low_bits(LowBitTriton()) == ""


def test_without_a_fault_small_shapes_keep_every_law() -> None:
    # Addresses are proved where the same kernels are judged at their own shapes.
    report = check_kernels(Right, budget_seconds=4, laws=set(SENTENCES) - {"no-address-overflow"})
    assert report.verdict == "held", str(report)
