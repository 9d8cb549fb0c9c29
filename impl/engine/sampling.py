"""What a server makes of logits: which drafts stand, which token comes next, which beams go on; and where drafts come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Drafter: TypeAlias = Callable[[Sequence[int], int], Sequence[int]]
"""(known tokens, how many at most) -> the tokens that may follow."""


def lookup(tokens: Sequence[int], most: int) -> Sequence[int]:
    """Drafts from the sequence itself: what followed the last earlier occurrence of its last token (Saxena, "Prompt Lookup Decoding", 2023)."""
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            return tokens[at + 1 : at + 1 + most]
    return ()


def accepted(rows: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts the model would have chosen itself. `rows`: its choice after the last known token and after each draft."""
    count = 0
    while count < len(drafts) and drafts[count] == rows[count]:
        count += 1
    return count


@dataclass(frozen=True)
class Continuation:
    """Beam `parent` goes on with `token` and has this `score`, the sum of its log-probabilities."""

    parent: int
    token: int
    score: float


def best_continuations(scores: Sequence[float], logits: Sequence[Tensor], beams: int) -> list[Continuation]:
    """The best `beams` continuations of beams with these scores, best first. `logits`: those of each beam's next token, `[vocabulary]`."""
    found = []
    for parent, (score, row) in enumerate(zip(scores, logits, strict=True)):
        top = row.log_softmax(-1).topk(min(beams, len(row)))
        found += [Continuation(parent, int(token), score + float(value)) for value, token in zip(top.values, top.indices, strict=True)]
    return sorted(found, key=lambda continuation: -continuation.score)[:beams]
