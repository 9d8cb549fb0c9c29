"""How broken laws are told: the exception, the law that fits, and the words. What several checks share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvproof.models.evidence import Evidence
from kvproof.models.memory import Lost
from kvproof.models.ops import Op, sequences_of
from kvproof.models.state import Sequence, Table

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


class Broken(Exception):
    """A law does not hold. What it accuses is given by the fields of `Evidence`."""

    def __init__(
        self,
        law: str,
        reason: str,
        *,
        blocks: Iterable[int] = (),
        sequences: Iterable[int] = (),
        positions: Iterable[int] = (),
        slots: Iterable[tuple[int, int]] = (),
        steps: Iterable[int] = (),
        group: int | None = None,
    ) -> None:
        super().__init__(f"{law}: {reason}")
        self.law = law
        self.reason = reason
        self.evidence = Evidence(
            tuple(dict.fromkeys(blocks)),
            tuple(dict.fromkeys(sequences)),
            tuple(dict.fromkeys(positions)),
            tuple(slots),
            tuple(sorted(set(steps))),
            group,
        )


class Why(NamedTuple):
    """A law, the reason why it is broken, and what that reason speaks of."""

    law: str
    words: str
    blocks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()

    def at(self, position: int) -> Why:
        """The same, said of one position."""
        return self._replace(words=f"at position {position} {self.words}", positions=(position,))


FORGOTTEN_BREAKS = {"evicted": "eviction-forgets", "reset": "reset-forgets"}
"""The law that a hit on a block breaks that was made unmatchable, by how it was."""

LOST_BREAKS = {
    "reused": "eviction-forgets",
    "evicted": "eviction-forgets",
    "reset": "reset-forgets",
    "rejected": "rejection-forgets",
    "abandoned": "published-is-committed",
    "overwritten": "exclusive-write",
    "zeroed": "initialised-read",
}
"""The law that a hit on a lost content breaks, by what became of it."""


def changed_sequences(spec: Spec, op: Op) -> Collection[Sequence]:
    """The live sequences that the operation is about, and those whose tables it changed."""
    live = spec.live
    if spec.thorough:
        return live.values()
    about = sequences_of(op)
    return [live[seq] for seq in ({*spec.seen.was, *about} if spec.seen.was else about) if seq in live]


def in_group(spec: Spec, group: int) -> str:
    """Which group of layers, in words, where there are several."""
    return f" (group {group})" if len(spec.block_sizes) > 1 else ""


def counted(number: int, noun: str = "token") -> str:
    """A number of tokens, or of something else, in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_positions(positions: range) -> str:
    """Positions that follow each other, in words."""
    return f"position {positions.start}" if len(positions) == 1 else f"the positions {positions.start} to {positions.stop - 1}"


def show_holders(listed: Collection[tuple[int, int, int]]) -> str:
    """Who lists a block, in words, out of its table entries (sequence, group, index)."""
    seqs = sorted({seq for seq, _, _ in listed})
    if not seqs:
        return "nobody lists it"
    times = "" if len(listed) == len(seqs) else f" {len(listed)} times" if len(seqs) == 1 else f", {len(listed)} times in all"
    if len(seqs) == 1:
        return f"sequence {seqs[0]} lists it{times}"
    return f"sequences {', '.join(map(str, seqs[:-1]))} and {seqs[-1]} list it{times}"


def show(table: Table) -> str:
    """A block table, in words; `-` for a skipped block."""
    return "[" + ", ".join("-" if block is None else str(block) for block in table) + "]"


def show_tokens(tokens: tuple[int, ...]) -> str:
    """Tokens, in words, cut in the middle where they are many."""
    return str(list(tokens)) if len(tokens) <= 16 else f"[{', '.join(map(str, tokens[:6]))}, ..., {', '.join(map(str, tokens[-6:]))}]"


def show_namespace(namespace: object) -> str:
    """A namespace, in words."""
    fields = [f"{name}={getattr(namespace, name)!r}" for name in namespace.__struct_fields__ if getattr(namespace, name) is not None]  # type: ignore[attr-defined]
    return f"the namespace ({', '.join(fields)})" if fields else "the empty namespace"


def show_lost(lost: Lost) -> str:
    """How a content was lost, in words."""
    told = {
        "reused": "it was handed out again",
        "evicted": "it was evicted",
        "reset": "the cache was reset",
        "rejected": "the draft was rejected",
        "abandoned": "the pass that would have written it was abandoned before its launch",
        "overwritten": "another pass wrote over it",
        "zeroed": "it was cleared",
    }
    return f"{told[lost.how]} in step {lost.step}"
