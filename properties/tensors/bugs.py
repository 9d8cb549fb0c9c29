"""Seeded bugs of how blocks, scales and recent windows are carried: what only real tensors show.

`BUGS` names them. Tables, grants and books are all in order; no law but `served-equals-contiguous` can see one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import torch
from torch import Tensor

from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.store import Store
from kvproof.impl.engine.worker import Logits
from kvproof.impl.production.records import StepPlan
from kvproof.kernels.lowbit import LowBitPool
from kvproof.properties.tensors.adapter import AttentionAdapter
from kvproof.properties.tensors.engine import RowEngine, RowWorker
from kvproof.properties.tensors.lowbit import LowBitAdapter, LowBitEngine, LowBitStore, LowBitWorker, quantised_of

BUGS: Final[dict[str, type[AttentionAdapter]]] = {}
"""The faulty cache with its kernels under the suite, by what it does wrong."""

Part = TypeVar("Part", bound=type)


def bug(name: str, storage: str = "plain") -> Callable[[Part], Part]:
    """Enter an adapter with this faulty store or worker."""

    def enter(part: Part) -> Part:
        base, adapter = (LowBitEngine, LowBitAdapter) if storage == "low-bit" else (RowEngine, AttentionAdapter)
        seam = "store_class" if issubclass(part, Store) else "worker_class"
        engine = type(f"{part.__name__}Engine", (base,), {seam: part})
        config = ModelConfig(storage="int8") if storage == "int8" else ModelConfig()
        BUGS[name] = type(part.__name__, (adapter,), {"engine_class": engine, "config": config, "__doc__": part.__doc__})
        return part

    return enter


@bug("copies-are-forgotten")
class ForgetsCopies(RowWorker):
    """The plan's copies never run."""

    def run(self, plan: StepPlan, batch: Batch | None) -> Logits:
        """The pass alone."""
        return super().run(replace(plan, copies=()), batch)


@bug("copies-leave-the-first-slot")
class ShortCopies(Store):
    """The first slot of a block stays behind."""

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """All slots but one."""
        pairs = torch.tensor([pair[1:] for pair in copies], dtype=torch.int64).reshape(-1, 2)
        for pool in self.pools:
            for tensor in (pool.key, pool.value):
                tensor[pairs[:, 1], 1:] = tensor[pairs[:, 0], 1:]


@bug("copies-leave-the-scales", "int8")
class CopiesWithoutScales(Store):
    """Copies move the numbers of a quantised block and not what they are multiplied by."""

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Keys and values."""
        pairs = torch.tensor([pair[1:] for pair in copies], dtype=torch.int64).reshape(-1, 2)
        for pool in self.pools:
            for tensor in (pool.key, pool.value):
                tensor[pairs[:, 1]] = tensor[pairs[:, 0]]


@bug("low-bit-copies-leave-the-scales", "low-bit")
class LowBitCopiesWithoutScales(LowBitStore):
    """Copies move the bytes of a low-bit block, without scales and zeros."""

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Bytes."""
        pairs = torch.tensor([pair[1:] for pair in copies], dtype=torch.int64).reshape(-1, 2)
        for layer in range(len(self.pools)):
            for tensor in self.tensors(self.pools[layer])[:2]:
                tensor[pairs[:, 1]] = tensor[pairs[:, 0]]


@bug("low-bit-swaps-leave-the-zeros", "low-bit")
class SwapsWithoutZeros(LowBitStore):
    """What comes back from the host has its scales and not its zeros."""

    @staticmethod
    def tensors(pool: object) -> list[Tensor]:
        """No zeros."""
        assert isinstance(pool, LowBitPool)
        return [pool.key, pool.value, pool.key_scale, pool.value_scale]


@bug("a-fork-leaves-the-window", "low-bit")
class ForkWithoutWindow(LowBitWorker):
    """The child gets a ring, and nothing is in it."""

    def fork(self, parent: int, child: int) -> None:
        """Without the copy."""
        super().fork(parent, child)
        if parent in self.rings:
            self._queue.pop()


@bug("a-fork-counts-from-zero", "low-bit")
class ForkCountsFromZero(LowBitWorker):
    """The child does not know that its first tokens are quantised."""

    def fork(self, parent: int, child: int) -> None:
        """With a count of zero."""
        super().fork(parent, child)
        self.quantised[child] = 0


@bug("a-swap-leaves-the-window", "low-bit")
class SwapWithoutWindow(LowBitWorker):
    """The ring that a sequence comes back to is not filled."""

    def _restore(self, seq: int, ring: int) -> None:  # noqa: ARG002 -- of what it overrides
        self._saved.pop(seq)


@bug("a-rejection-takes-the-count-back", "low-bit")
class CountsByLength(LowBitWorker):
    """How much is quantised is taken from the length, which a rejection makes shorter; what has left the window does not come back."""

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """By length."""
        self.quantised.update({work.seq: quantised_of(work.start) for work in passes})
        return super().batch(passes)
