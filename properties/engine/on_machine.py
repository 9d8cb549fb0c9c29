"""The Triton kernels on the IR machine, where there is no GPU: what they read and write is checked as well as what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kvproof.kernels.contract import KVPool
from kvproof.kernels.machine import installed
from kvproof.kernels.paged.adapter import PagedTriton


class TritonOnMachine(PagedTriton):
    """Raises AssertionError for any access that the machine faults."""

    def store(self, pool: KVPool, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """On the machine."""
        with installed() as machine:
            super().store(pool, key, value, slots)
        assert not machine.violations, machine.violations

    def attend(self, pool: KVPool, *args: Any, **options: Any) -> Tensor:  # noqa: ANN401 -- those of the kernels
        """On the machine."""
        with installed() as machine:
            out = super().attend(pool, *args, **options)
        assert not machine.violations, machine.violations
        return out

    def copy_layers(self, pools: Sequence[KVPool], pairs: Tensor) -> None:
        """On the machine."""
        with installed() as machine:
            super().copy_layers(pools, pairs)
        assert not machine.violations, machine.violations

    def move(self, source: KVPool, target: KVPool, source_slots: Tensor, target_slots: Tensor) -> None:
        """On the machine."""
        with installed() as machine:
            super().move(source, target, source_slots, target_slots)
        assert not machine.violations, machine.violations
