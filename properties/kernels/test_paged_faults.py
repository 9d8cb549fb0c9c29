"""Every seeded fault of the paged kernels breaks the law that it names, and the same kernels without it keep them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.kernels.check import check_kernels
from kvproof.kernels.laws.judges import SENTENCES
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.properties.kernels.paged_faults import PAGED_FAULTS, Small, build_paged


class Right(Small, PagedTriton):
    """No fault, the same claims."""


@pytest.mark.parametrize("name", PAGED_FAULTS)
def test_a_seeded_fault_of_the_paged_kernels_breaks_its_law(name: str, tmp_path: Path) -> None:
    fault = PAGED_FAULTS[name]
    report = check_kernels(build_paged(name, tmp_path), budget_seconds=20, laws={fault.law}, shrink_seconds=0.2)
    assert report.law(fault.law).verdict == "broken", str(report)


def test_without_a_fault_small_shapes_keep_every_law() -> None:
    # Addresses are proved where the same kernels are judged at their own shapes.
    report = check_kernels(Right, budget_seconds=4, laws=set(SENTENCES) - {"no-address-overflow"})
    assert report.verdict == "held", str(report)
