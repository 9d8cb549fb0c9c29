"""Seeded bugs of the server: its schedule is a lawful program, and its answers are not the model's."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from kvproof.impl.engine.server import Branch, Limits, Request, Server
from kvproof.properties.engine.traffic import Arrival, Traffic


class SamplesEveryChunk(Server):
    """The logits at the end of every chunk of a prompt are taken for those of the next token."""

    def _commit(self, branch: Branch, rows: Tensor) -> None:
        super()._commit(branch, rows)
        if branch.next is None:
            branch.next = rows[-1]


class SamplesBehindTheDrafts(Server):
    """The next token is chosen from the last row of a pass, also where drafts before it were rejected."""

    def _commit(self, branch: Branch, rows: Tensor) -> None:
        super()._commit(branch, rows)
        if branch.next is not None:
            branch.next = rows[-1]


class ForksLate(Server):
    """A beam goes on before its twins are made, so that they know its token beside their own."""

    def _inherit(self, branch: Branch, heirs: list[tuple[int, float]]) -> None:
        super()._inherit(branch, heirs[:1])
        for token, score in heirs[1:]:
            twin = self._fork(branch)
            twin.tokens.append(token)
            self.engine.append(twin.seq, (token,))
            twin.score = score


class ForgetsScores(Server):
    """Beams are compared by their last tokens alone."""

    def _inherit(self, branch: Branch, heirs: list[tuple[int, float]]) -> None:
        super()._inherit(branch, [(token, 0.0) for token, _ in heirs])


CHUNKS: Final = Traffic((Arrival(0, Request((3, 9, 1, 40, 5), new_tokens=4)),), Limits(chunk_tokens=3))
DRAFTS: Final = Traffic((Arrival(0, Request((3, 9, 1, 40, 5), new_tokens=8, drafts=3)),))
BEAMS: Final = Traffic((Arrival(0, Request((3, 9, 1, 40, 5), new_tokens=6, beams=3)),))

BUGS: Final[dict[str, tuple[type[Server], Traffic]]] = {
    "every-chunk-is-sampled": (SamplesEveryChunk, CHUNKS),
    "the-row-behind-the-drafts-is-sampled": (SamplesBehindTheDrafts, DRAFTS),
    "beams-are-forked-late": (ForksLate, BEAMS),
    "beams-forget-their-scores": (ForgetsScores, BEAMS),
}
"""By what it does wrong, with traffic that shows it."""
