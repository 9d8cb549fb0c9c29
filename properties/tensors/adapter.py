"""The production cache and the paged kernels under the suite: after every step, the attention of every sequence against its own history.

    run(program.ops, AttentionAdapter, num_blocks=8, block_size=4)

An extend's rows go to the slots of its table, copies and swaps move whole blocks, and each step attends for the tokens of its passes and for the
last token of every other sequence on the device. The expected output is the float64 reference over the contiguous history, the error that is
lawful the bound derived there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import ClassVar

import torch
from torch import Tensor

from kvproof.impl.engine.adapter import EngineAdapter, Wanted
from kvproof.impl.engine.config import ModelConfig
from kvproof.impl.engine.engine import Engine
from kvproof.kernels.reference import Expected
from kvproof.models.ops import ReleaseReason
from kvproof.models.outcomes import Differs, Grant
from kvproof.properties.tensors.engine import RowEngine
from kvproof.properties.tensors.rows import Rows, expected, rows_of


@dataclass(frozen=True)
class Look(Wanted):
    """One query at the last computed token, in windows as the next token will have them."""


class AttentionAdapter(EngineAdapter):
    """GQA in two layers, plain storage. Subclasses change the class variables."""

    config: ClassVar[ModelConfig] = ModelConfig()
    engine_class: ClassVar[type[Engine]] = RowEngine

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self._away: set[int] = set()
        """Sequences with a pass that is not committed, and those on the host."""

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """From here to the commit nobody looks at the sequence but its pass."""
        grant = super().extend(seq, count, drafts)
        self._away.add(seq)
        return grant

    def commit(self, seq: int, accepted: int) -> None:
        """Its tokens are there to be looked at."""
        super().commit(seq, accepted)
        self._away.discard(seq)

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """Nothing is left to look at; after a final release the history is gone."""
        super().release(seq, reason)
        self._away.discard(seq)
        if reason != "preempt":
            self.histories.pop(seq, None)

    def swap_out(self, seq: int) -> bool:
        """Out of sight."""
        gone = super().swap_out(seq)
        if gone:
            self._away.add(seq)
        return gone

    def swap_in(self, seq: int) -> bool:
        """Back."""
        back = super().swap_in(seq)
        if back:
            self._away.discard(seq)
        return back

    def begin_step(self) -> int:
        """Launches, and has everyone looked at who is idle on the device."""
        assert isinstance(self.engine, RowEngine)
        idle = {seq: history for seq, history in self.histories.items() if history.computed and seq not in self._away}
        self.engine.looks = [(seq, tuple(history.tokens[: history.computed])) for seq, history in idle.items()]
        step = super().begin_step()
        for seq, history in idle.items():
            self._launched[step][seq] = self._look(seq, tuple(history.tokens[: history.computed]), history.adapter)
        return step

    def _look(self, seq: int, tokens: tuple[int, ...], adapter: str) -> Wanted:  # noqa: ARG002 -- a quantised history is known by its sequence
        return Look(tokens, len(tokens) - 1, adapter)

    def _judge(self, seq: int, wanted: Wanted, logits: Tensor) -> None:
        for layer in range(self.config.layers):
            window = self.config.windows[layer % len(self.config.windows)]
            if isinstance(wanted, Look) and window:
                window = max(1, window - 1)
            rows = self._as_read(rows_of(self.config, layer, wanted.tokens, 0, wanted.adapter), wanted)
            compare(seq, wanted, layer, logits[:, layer], expected(self.config, rows, wanted.start, window))

    def _as_read(self, rows: Rows, wanted: Wanted) -> Rows:  # noqa: ARG002 -- of a quantised history it says how much is quantised
        """What a history reads as, where the reference does not know the storage."""
        return rows


def compare(seq: int, wanted: Wanted, layer: int, found: Tensor, expected: Expected) -> None:
    """Raises Differs for the first position that is further off than its bound."""
    if found.shape != expected.output.shape:
        raise Differs(f"the pass of sequence {seq} attended for {len(found)} tokens; {len(expected.output)} tokens were to be computed")
    errors = (found.double() - expected.output).abs()
    wrong = ~(errors <= expected.bound)
    if wrong.any():
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        worst = (errors / expected.bound)[row].nan_to_num(torch.inf).argmax()
        error, bound = float(errors[row].flatten()[worst]), float(expected.bound[row].flatten()[worst])
        what = "a look" if isinstance(wanted, Look) else f"the pass over positions {wanted.start} to {len(wanted.tokens) - 1}"
        off = (
            "is NaN, as if a slot had been read that was never written"
            if isnan(error)
            else f"is off by {error:.2g} from that over its history, where {bound:.2g} is lawful"
        )
        raise Differs(f"sequence {seq}, position {wanted.start + row}, layer {layer}: the attention of {what} {off}")
