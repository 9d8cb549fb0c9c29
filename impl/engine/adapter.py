"""The engine under the suite: every law of caches is asked of its cache, and every logit is compared with the contiguous model's.

    kvproof check engine

A program's operations are the schedule: chunks, drafts and how many of them are accepted, forks, preemptions, swaps, several open steps. So a
schedule that gives wrong logits is shrunk, replayed and kept like any other failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isnan
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.contiguous import Contiguous
from kvproof.impl.engine.engine import Engine, adapter_of
from kvproof.impl.engine.model import Transformer
from kvproof.impl.engine.store import Kernels
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.errors import OutOfBlocks as PoolExhausted
from kvproof.impl.production.errors import WindowPassed
from kvproof.kernels.paged.torch_path import PagedTorch
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.ops import NAMESPACE_FIELDS, Namespace, ReleaseReason
from kvproof.models.outcomes import Differs, Grant, OutOfBlocks, Refused


@dataclass
class History:
    """What the adapter itself knows of a sequence, in tokens: `computed` as the answers of the cache imply it, `end` of the pass that is out."""

    tokens: list[int]
    adapter: str
    computed: int = 0
    end: int = 0
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """The logits that a pass must give: those of the last tokens, from `start` on, of a sequence of `tokens`."""

    tokens: tuple[int, ...]
    start: int
    adapter: str


class EngineAdapter(ProductionAdapter):
    """GQA, full attention, plain storage, kernels in plain torch. Subclasses change the four class variables."""

    config: ClassVar[ModelConfig] = ModelConfig()
    engine_class: ClassVar[type[Engine]] = Engine
    kernels: ClassVar[type[Kernels]] = PagedTorch
    layout: ClassVar[str] = "NHD"

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.engine = self.build(num_blocks, block_size)
        self.cache = self.engine.cache
        self.mirror = self.engine.worker.mirror
        self.histories: dict[int, History] = {}
        self._waiting: dict[int, Wanted] = {}
        """By sequence, what no step has launched yet."""
        self._launched: dict[int, dict[int, Wanted]] = {}
        """By step and sequence."""

    def build(self, num_blocks: int, block_size: int) -> Engine:
        """A fresh engine."""
        model, self.oracle = model_of(self.config)
        return self.engine_class(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            host_blocks=num_blocks,
            kernels=self.kernels(),
            layout=self.layout,
            events=True,
        )

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the production cache, and tensors."""
        groups = tuple(Group() if window is None else Group("sliding_window", window=window) for window in cls.config.windows)
        return msgspec.structs.replace(super().capabilities(), groups=groups, tensors=True)

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request is known; it holds nothing yet."""
        fields = {field: getattr(namespace, field) for field in NAMESPACE_FIELDS}
        self.engine.admit(seq, prompt, fields)
        self.histories[seq] = History(list(prompt), adapter_of(fields))

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room for a pass; raises OutOfBlocks."""
        try:
            grant = self.engine.extend(seq, count, drafts)
        except PoolExhausted as error:
            raise OutOfBlocks(str(error)) from error
        history = self.histories[seq]
        if grant.adopted:
            history.computed = grant.adopted
        history.end = min(history.computed + count, len(history.tokens))
        history.drafts = tuple(drafts)
        self._waiting[seq] = Wanted((*history.tokens[: history.end], *drafts), history.computed, history.adapter)
        return Grant(copies=grant.copies, adopted=grant.adopted)

    def commit(self, seq: int, accepted: int) -> None:
        """The pass is done."""
        self.engine.commit(seq, accepted)
        history = self.histories[seq]
        history.tokens += history.drafts[:accepted]
        history.computed = history.end + accepted

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known."""
        self.engine.append(seq, tokens)
        self.histories[seq].tokens += tokens

    def truncate(self, seq: int, length: int) -> None:
        """Roll back; refused where a window has passed what would be needed."""
        try:
            self.engine.truncate(seq, length)
        except WindowPassed as error:
            raise Refused(str(error)) from error
        history = self.histories[seq]
        del history.tokens[length:]
        history.computed = length

    def fork(self, parent: int, child: int) -> Grant:
        """Shares all blocks, copies none."""
        self.engine.fork(parent, child)
        self.histories[child] = replace(self.histories[parent], tokens=self.histories[parent].tokens[:])
        return Grant()

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """Lets go of everything; a pass that no step has launched never runs."""
        if reason == "preempt":
            self.engine.preempt(seq)
        else:
            self.engine.release(seq)
        self._waiting.pop(seq, None)
        if seq in self.histories:
            self.histories[seq].computed = 0

    def begin_step(self) -> int:
        """Launches."""
        step = self.engine.begin_step()
        self._launched[step], self._waiting = self._waiting, {}
        return step

    def end_step(self, step: int) -> None:
        """The device work of that step has finished; raises Differs."""
        logits = self.engine.end_step(step)
        for seq, wanted in self._launched.pop(step).items():
            self._judge(seq, wanted, logits[seq])

    def _judge(self, seq: int, wanted: Wanted, logits: Tensor) -> None:
        expected = self.oracle.logits(wanted.tokens, wanted.adapter)[wanted.start :]
        if logits.shape != expected.shape:
            raise Differs(f"the pass of sequence {seq} gave logits of {len(logits)} tokens; {len(expected)} tokens were to be computed")
        tolerance = self.oracle.tolerance(wanted.tokens, wanted.adapter)
        errors = (logits.double().cpu() - expected).abs().amax(-1)
        for row, error in enumerate(errors.tolist()):
            if not error <= tolerance:
                position = wanted.start + row
                wrong = (
                    "are NaN, as if a slot had been read that was never written"
                    if isnan(error)
                    else f"differ by {error:.2g} from those of the contiguous model, where {tolerance:.2g} is lawful"
                )
                raise Differs(
                    f"sequence {seq}, position {position} (token {wanted.tokens[position]}): the logits of its pass over positions {wanted.start}"
                    f" to {len(wanted.tokens) - 1} {wrong}"
                )

    def swap_out(self, seq: int) -> bool:
        """Moves a sequence to the host tier."""
        return self.engine.swap_out(seq)

    def swap_in(self, seq: int) -> bool:
        """Moves a sequence back."""
        return self.engine.swap_in(seq)


@cache
def model_of(config: ModelConfig) -> tuple[Transformer, Contiguous]:
    """Built once: the suite builds thousands of engines. On tensors as small as these a second thread waits more than it works."""
    torch.set_num_threads(1)
    model = Transformer(config)
    return model, Contiguous(model)
