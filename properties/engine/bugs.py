"""Seeded bugs of the engine: one thing, each, that its glue gets wrong on top of a cache and kernels that are right.

`BUGS` names them. No law but `served-equals-contiguous` can see one: tables, grants and books are all in order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from kvproof.impl.engine.adapter import EngineAdapter
from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.store import Store
from kvproof.impl.engine.worker import Logits, Worker
from kvproof.impl.production.records import HostCopies, StepPlan
from kvproof.kernels.contract import KVPool

PLAIN: Final = ModelConfig()
INT8: Final = ModelConfig(storage="int8")
HYBRID: Final = ModelConfig(windows=(None, 5))

BUGS: Final[dict[str, type[EngineAdapter]]] = {}
"""The faulty engine under the suite, by what it does wrong."""

Part = TypeVar("Part", bound=type)


def bug(name: str, config: ModelConfig = PLAIN) -> Callable[[Part], Part]:
    """Enter an engine with this faulty part: a store, a worker, or the whole engine."""

    def enter(part: Part) -> Part:
        seam = "store_class" if issubclass(part, Store) else "worker_class"
        engine = part if issubclass(part, Engine) else type(f"{part.__name__}Engine", (Engine,), {seam: part})
        BUGS[name] = type(part.__name__, (EngineAdapter,), {"engine_class": engine, "config": config, "__doc__": part.__doc__})
        return part

    return enter


# -- copies -----------------------------------------------------------------------------------------------------------------------------------


@bug("copies-are-forgotten")
class ForgetsCopies(Worker):
    """The plan's copies never run."""

    def run(self, plan: StepPlan, batch: Batch | None) -> Logits:
        """The pass alone."""
        return super().run(dataclasses.replace(plan, copies=()), batch)


@bug("copies-run-after-the-pass")
class CopiesLate(Worker):
    """The copies of a step run behind its pass, and overwrite what it wrote."""

    def run(self, plan: StepPlan, batch: Batch | None) -> Logits:
        """The pass first."""
        logits = self.forward(batch) if batch is not None else {}
        self.store.copy(plan.copies)
        return logits


@bug("copies-run-at-launch")
class CopiesEarly(Worker):
    """The copies of a step do not wait for what was queued before it, such as a swap that has yet to read the block they write."""

    def launch(self, plan: StepPlan, passes: Sequence[Pass]) -> None:
        """At once."""
        self.store.copy(plan.copies)
        super().launch(dataclasses.replace(plan, copies=()), passes)


@bug("one-layer-is-copied")
class CopiesOneLayer(Store):
    """Copies move the blocks of the first layer only."""

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """The first of the pools."""
        dataclasses.replace(self, pools=self.pools[:1]).copy(copies) if len(self.pools) > 1 else super().copy(copies)


@bug("copies-leave-the-scales", INT8)
class CopiesWithoutScales(Store):
    """Copies move the numbers of a quantised block and not what they are multiplied by."""

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Bare pools."""
        Store(self.kernels, bare(self.pools), self.host, self.windows, self.scale).copy(copies)


# -- swaps ------------------------------------------------------------------------------------------------------------------------------------


@bug("swaps-leave-the-scales", INT8)
class SwapsWithoutScales(Store):
    """What goes to the host are the numbers of a quantised block and not what they are multiplied by."""

    def swap_out(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """Bare pools on both sides."""
        Store(self.kernels, bare(self.pools), bare(self.host), self.windows, self.scale).swap_out(blocks)

    def swap_in(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """Bare pools on both sides."""
        Store(self.kernels, bare(self.pools), bare(self.host), self.windows, self.scale).swap_in(blocks)


@bug("swaps-run-beside-the-queue")
class SwapsEarly(Worker):
    """Copies to the host do not wait for the passes that were queued before them."""

    def swap_in(self, copies: HostCopies) -> None:
        """At once: what is queued may still write over the blocks, or read what was in them."""
        self.store.swap_in(copies.blocks)


@bug("swaps-run-when-there-is-time")
class SwapsLate(Worker):
    """A copy to the host is put off until the sequence comes back; its blocks were free from the start."""

    def swap_out(self, copies: HostCopies) -> None:
        """Remembered."""
        self.__dict__.setdefault("waiting", {})[copies.seq] = copies

    def swap_in(self, copies: HostCopies) -> None:
        """Out and in again."""
        super().swap_out(self.__dict__["waiting"].pop(copies.seq))
        super().swap_in(copies)


@bug("a-partial-block-is-not-swapped")
class SwapsWholeBlocks(Store):
    """The last block of a sequence stays behind."""

    def swap_out(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """All but one."""
        super().swap_out(blocks[:-1])


# -- positions and lengths --------------------------------------------------------------------------------------------------------------------


@bug("positions-count-a-rejected-draft")
class CountsRejected(Engine):
    """After a rejection the device goes on one position too far; slots and tables are right."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- those of an engine
        super().__init__(*args, **options)
        self._ahead: Counter[int] = Counter()
        self._drafts: dict[int, int] = {}
        self.worker.batch = self._batch  # type: ignore[method-assign]

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Any:  # noqa: ANN401 -- the grant
        """Remembers how many drafts there are."""
        grant = super().extend(seq, count, drafts)
        self._drafts[seq] = len(drafts)
        return grant

    def commit(self, seq: int, accepted: int = 0) -> None:
        """Takes a rejected draft for an accepted one."""
        super().commit(seq, accepted)
        self._ahead[seq] += accepted < self._drafts[seq]

    def _batch(self, passes: Sequence[Pass]) -> Batch:
        batch = Worker.batch(self.worker, passes)
        ahead = [torch.full((len(work.tokens),), self._ahead[work.seq]) for work in passes]
        return dataclasses.replace(batch, positions=batch.positions + torch.cat(ahead))


@bug("rope-turns-by-the-slot")
class TurnsBySlot(Worker):
    """Keys and queries are turned by where they lie in the pool, not by their position."""

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """Slots for positions."""
        batch = super().batch(passes)
        return dataclasses.replace(batch, positions=batch.groups[0].slots)


@bug("chunks-begin-at-zero")
class ChunksFromZero(Worker):
    """Every pass counts its positions from zero, which is right for the first chunk of a prompt."""

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """Positions within the pass."""
        within = torch.cat([torch.arange(len(work.tokens)) for work in passes])
        return dataclasses.replace(super().batch(passes), positions=within)


@bug("draft-keys-are-kept")
class KeepsDrafts(Worker):
    """The device's length of a sequence never shrinks: after a rejection, queries still see what the drafts left."""

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """The longest that each sequence ever was."""
        batch = super().batch(passes)
        longest = self.__dict__.setdefault("longest", {})
        for work in passes:
            longest[work.seq] = max(work.end, longest.get(work.seq, 0))
        return dataclasses.replace(batch, seq_lens=torch.tensor([longest[work.seq] for work in passes], dtype=torch.int32))


@bug("a-prefix-is-computed-at-the-wrong-place")
class IgnoresAdoption(Engine):
    """The first pass takes its tokens from the start of the prompt, also where the cache has adopted a prefix."""

    def start(self, seq: int) -> int:
        """Zero until something was committed."""
        return super().start(seq) if seq in self.__dict__.setdefault("begun", set()) else 0

    def commit(self, seq: int, accepted: int = 0) -> None:
        """From now on the cache is asked."""
        super().commit(seq, accepted)
        self.__dict__["begun"].add(seq)


@bug("the-window-is-a-token-short", HYBRID)
class ShortWindow(Store):
    """Windowed layers see one token less than the cache keeps for them."""

    def attend(self, layer: int, query: Tensor, batch: Batch) -> Tensor:
        """A smaller window."""
        windows = tuple(window and window - 1 for window in self.windows)
        return Store(self.kernels, self.pools, self.host, windows, self.scale).attend(layer, query, batch)


# -- sequences --------------------------------------------------------------------------------------------------------------------------------


@bug("a-fork-forgets-its-adapter")
class ForkWithoutAdapter(Engine):
    """The child of a fork goes on with the plain model."""

    def fork(self, parent: int, child: int) -> None:
        """No adapter."""
        super().fork(parent, child)
        self._adapters[child] = ""


@bug("a-batch-takes-the-first-table")
class OneTable(Worker):
    """Sequences that were forked from one another are computed by the table of the first: they share their history, after all."""

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """The first table wherever it is as long."""
        batch = super().batch(passes)
        groups = []
        for places in batch.groups:
            alike = (places.tables.shape[1] > 1) & (places.tables[:, :1] == places.tables[:1, :1])
            groups.append(dataclasses.replace(places, tables=torch.where(alike, places.tables[:1], places.tables)))
        return dataclasses.replace(batch, groups=tuple(groups))


def bare(pools: Sequence[KVPool]) -> list[KVPool]:
    """The same pools without their scales."""
    return [dataclasses.replace(pool, key_scale=None, value_scale=None) for pool in pools]
