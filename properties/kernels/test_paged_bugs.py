"""Every seeded bug of the paged kernels breaks the law that it names, and the same kernels without it keep them all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvproof.kernels.check import check_kernels
from kvproof.kernels.laws.judges import SENTENCES
from kvproof.kernels.paged.adapter import PagedTriton
from kvproof.properties.kernels.paged_bugs import ALL_BUGS, Small, SmallLowBits, build_paged

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
    "an append over latents is not causal",
    "the scores of latents are not scaled",
    "copies of latents leave scales behind",
    "moves leave scales behind",
    "moves take source blocks for target blocks",
    "the scheme forgets its zero",
    "the ring is overwritten before its group is quantised",
    "copies leave the ring of values behind",
    "low-bit windows are cut to whole groups",
    "low-bit windows are not cut in the ring",
    "low bits forget their sinks",
    "low bits forget their soft cap",
    "low-bit blocks are taken for NHD",
    "a prefill reads blocks that its window has passed",
    "an append is not causal among its tokens",
    "appends go by the batch and not by the sequence",
    "shards of heads are written from the first head on",
}
"""One or two for each feature; the others take a minute more and run at night."""


def names(bugs: Iterable[str]) -> list[Any]:
    """Parameters, the slow ones marked."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in bugs]


class Right(Small, PagedTriton):
    """No bug, the same claims."""


class RightLowBits(SmallLowBits, PagedTriton):
    """No bug of the low-bit scheme."""


@pytest.mark.parametrize("name", names(ALL_BUGS))
def test_a_seeded_bug_of_the_paged_kernels_breaks_its_law(name: str, tmp_path: Path) -> None:
    bug = ALL_BUGS[name]
    # The first broken case ends it, for one of them the 69th; how many a busy machine runs in so many seconds says nothing of the suite.
    report = check_kernels(build_paged(name, tmp_path), budget_seconds=120, laws={bug.law}, shrink_seconds=0.2)
    assert report.law(bug.law).verdict == "broken", str(report)


def test_quick_bugs_are_bugs() -> None:
    assert set(ALL_BUGS) >= QUICK


@pytest.mark.parametrize("kernels", [Right, RightLowBits])
def test_without_a_fault_small_shapes_keep_every_law(kernels: type[PagedTriton]) -> None:
    # Addresses are proved where the same kernels are judged at their own shapes.
    report = check_kernels(kernels, budget_seconds=4, laws=set(SENTENCES) - {"no-address-overflow"})
    assert report.verdict == "held", str(report)
