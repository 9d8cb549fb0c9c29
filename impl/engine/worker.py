"""The device's side: a queue of copies and steps that runs in order, the block tables that it was sent, and the pools that they point into."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kvproof.impl.engine.batch import Batch, Pass, batch_of
from kvproof.impl.engine.model import Transformer
from kvproof.impl.engine.store import Store
from kvproof.impl.production.errors import UnknownStep
from kvproof.impl.production.mirror import WorkerMirror
from kvproof.impl.production.records import HostCopies, StepPlan

Logits = dict[int, Tensor]
"""For each sequence of a step the logits of its rows, `[tokens of the pass, vocabulary]`."""


class Worker:
    """Work is queued by `launch` and the swaps, and done as late as a device may: when `finish` asks for the result of a step.

    What was queued keeps what it was given: tables and slots are those of its launch, whatever the manager does meanwhile.
    """

    def __init__(self, model: Transformer, store: Store) -> None:
        self.model = model
        self.store = store
        self.mirror = WorkerMirror()
        self._queue: deque[tuple[int | None, Callable[[], Logits | None]]] = deque()

    def launch(self, plan: StepPlan, passes: Sequence[Pass]) -> None:
        """Queue a step: first its copies, then one forward pass of all its sequences."""
        self.mirror.apply(plan)
        self._queue.append((plan.step, partial(self.run, plan, self.batch(passes) if passes else None)))

    def swap_out(self, copies: HostCopies) -> None:
        """Queue copies to the host. Later work may overwrite their source: it runs behind them."""
        self._queue.append((None, partial(self.store.swap_out, copies.blocks)))

    def swap_in(self, copies: HostCopies) -> None:
        """Queue copies from the host."""
        self._queue.append((None, partial(self.store.swap_in, copies.blocks)))

    def finish(self, step: int) -> Logits:
        """Do everything that was queued up to the end of `step`, the oldest open one; returns its logits. Raises UnknownStep for any other."""
        oldest = next((number for number, _ in self._queue if number is not None), None)
        if step != oldest:
            what = (
                "no step is open" if oldest is None else f"step {oldest} is the oldest open one, and steps end in the order of their launch"
            )
            raise UnknownStep(f"cannot wait for step {step}: {what}")
        while True:
            number, work = self._queue.popleft()
            result = work()
            if number == step:
                return result or {}

    def batch(self, passes: Sequence[Pass]) -> Batch:
        """The tensors of these passes, by the tables that the device has."""
        groups, block_size = len(self.store.windows), self.store.pools[0].block_size
        return batch_of(passes, self.mirror.table, groups=groups, block_size=block_size, device=self.model.device)

    def run(self, plan: StepPlan, batch: Batch | None) -> Logits:
        """One step, now."""
        self.store.copy(plan.copies)
        return self.forward(batch) if batch is not None else {}

    def forward(self, batch: Batch) -> Logits:
        """In every layer all rows are stored before any is attended to: a row sees what its own step wrote."""

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.store.write(layer, key, value, batch)
            return self.store.attend(layer, query, batch)

        embedded = [self.model.embed(work.tokens, work.adapter) for work in batch.passes]
        return batch.split(self.model.forward(torch.cat(embedded), batch.positions, attention))
