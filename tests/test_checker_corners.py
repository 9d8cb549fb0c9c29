"""Limits of the checker of the protocol that mutants showed to be untested: the least values that it must still take."""

from __future__ import annotations

import msgspec

from kvproof.impl.checker import Checked, read_capabilities
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.capabilities import Group


def claiming(**claims):
    class Adapter(ProductionAdapter):
        @classmethod
        def capabilities(cls):
            return msgspec.structs.replace(super().capabilities(), **claims)

    return Adapter


def test_a_pool_may_have_no_usable_block():
    target = claiming(capacity=lambda num_blocks: num_blocks - 2)
    Checked(target, read_capabilities(target), num_blocks=2, block_size=2)


def test_a_window_and_a_block_may_be_of_one_token():
    groups = (Group(block_size=1), Group(kind="sliding_window", window=1, block_size=1))
    assert read_capabilities(claiming(groups=groups)).groups == groups
