"""An engine without a model: passes store random rows by the slots of their tables and attend, and every step also looks at who is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from kvproof.impl.engine.batch import Batch, Pass
from kvproof.impl.engine.engine import Engine
from kvproof.impl.engine.worker import Logits, Worker
from kvproof.impl.production.records import ExtendGrant, StepPlan
from kvproof.properties.tensors.rows import rows_of


@dataclass(frozen=True)
class RowPass(Pass):
    """A pass that knows the tokens before it: its rows depend on them."""

    prefix: tuple[int, ...] = ()


class RowWorker(Worker):
    """In place of logits: attention outputs `[tokens of the pass, layers, q_heads, size]`."""

    def launch_and_look(self, plan: StepPlan, passes: Sequence[Pass], looks: Sequence[Pass]) -> None:
        """Queue a step, and behind it one query for each sequence in `looks`, at its last computed token."""
        self.mirror.apply(plan)
        batches = [self.batch(part) if part else None for part in (passes, looks)]
        self._queue.append((plan.step, partial(self._run_and_look, plan, *batches)))

    def _run_and_look(self, plan: StepPlan, batch: Batch | None, looks: Batch | None) -> Logits:
        return self.run(plan, batch) | (self.look(looks) if looks is not None else {})

    def forward(self, batch: Batch) -> Logits:
        """Every layer stores its rows, then attends."""
        return batch.split(torch.stack([self._layer(layer, batch, write=True) for layer in range(self.model.config.layers)], 1))

    def look(self, batch: Batch) -> Logits:
        """Attends only. What the next token would no longer see has left the window: the cache may have given it away."""
        windows = self.store.windows
        self.store.windows = tuple(window and max(1, window - 1) for window in windows)
        try:
            return batch.split(torch.stack([self._layer(layer, batch, write=False) for layer in range(self.model.config.layers)], 1))
        finally:
            self.store.windows = windows

    def _layer(self, layer: int, batch: Batch, *, write: bool) -> Tensor:
        config = self.model.config
        parts = [rows_of(config, layer, _tokens(work), work.start, work.adapter) for work in batch.passes]
        if write:
            self.store.write(layer, torch.cat([rows.key for rows in parts]), torch.cat([rows.value for rows in parts]), batch)
        return self.store.attend(layer, torch.cat([rows.query for rows in parts]), batch)


def _tokens(work: Pass) -> tuple[int, ...]:
    assert isinstance(work, RowPass)
    return work.prefix + work.tokens


class RowEngine(Engine):
    """`looks`: what the next step has to look at, (sequence, computed tokens)."""

    worker_class: ClassVar[type[Worker]] = RowWorker

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.looks: list[tuple[int, tuple[int, ...]]] = []

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> ExtendGrant:
        """The pass remembers the tokens before it."""
        grant = super().extend(seq, count, drafts)
        work = self._passes[seq]
        self._passes[seq] = RowPass(seq, work.start, work.tokens, work.adapter, tuple(self.cache.tokens(seq)[: work.start]))
        return grant

    def begin_step(self) -> int:
        """Launches, and looks."""
        plan = self.cache.begin_step()
        looks = [RowPass(seq, len(known) - 1, known[-1:], self._adapters[seq], known[:-1]) for seq, known in self.looks]
        assert isinstance(self.worker, RowWorker)
        self.worker.launch_and_look(plan, [self._passes.pop(seq) for seq in plan.sequences], looks)
        return plan.step
