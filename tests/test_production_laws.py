"""The production cache under the laws, with groups that none of the built-in adapters has: blocks of unequal sizes, two windows, two full groups."""

from __future__ import annotations

import time

import pytest

from kvproof.fuzz.check import Search, Tally, run_seed
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.capabilities import Group


class UnequalBlocks(ProductionAdapter):
    groups = (Group(block_size=4), Group(kind="sliding_window", block_size=2, window=4))


class TwoWindows(ProductionAdapter):
    groups = (Group(kind="sliding_window", window=5), Group(kind="sliding_window", block_size=2, window=2))


class TwoFullSynchronous(ProductionAdapter):
    groups = (Group(), Group(block_size=3))
    steps = False


PROGRAMS = 100
SECONDS = 120.0
"""More than so many programs take."""


@pytest.mark.parametrize("adapter", [UnequalBlocks, TwoWindows, TwoFullSynchronous])
def test_every_law_holds(adapter):
    search = Search(adapter, adapter.__name__, read_capabilities(adapter), 1, 1, time.monotonic() + SECONDS, SECONDS, None, frozenset())
    tally = Tally()
    for number in range(PROGRAMS):
        assert run_seed(search, f"groups:{number}", tally) is None
