"""Failures put together by what seems to be their cause, so that a reader opens a handful of files and not dozens.

    for cause in causes(findings):
        cause.first, cause.variants       # the shortest program, and the others

One fault shows in many shapes: the parent of a fork lets go first, or its child does; with a request more, or a block more. What tells faults apart is *what it takes*: the
kinds of operation beside those that every program has, the fields of namespaces, and drafts. A failure goes with another one if both break one law at one kind of operation, and
it takes all that the other one takes: whatever it takes besides, the fault does without. It may still be a fault of its own, so it is kept as it is, and once the other one is
mended it stands for itself.

What the causes are depends on the set of findings alone, not on the order in which they came or on who found them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.campaigns.findings import by_size, identity, takes
from kvproof.fuzz.verdicts import Finding
from kvproof.models.ops import Op, op_name

_ASKS_FOR_A_HIT: Final = {"match": "extend"}
"""What `match` promises, `extend` adopts: a wrong hit shows at either."""


class Cause(msgspec.Struct, frozen=True):
    """Failures that seem to have one cause, the shortest first. `name`: the law, where it breaks, and what it takes: `no-aliasing at extend: fork, release`."""

    name: str
    first: Finding
    variants: tuple[Finding, ...] = ()

    @property
    def members(self) -> tuple[Finding, ...]:
        """All of them."""
        return self.first, *self.variants


def cause_name(finding: Finding) -> str:
    """The name of the cause that `finding` would stand for. Two failures of one shape have one name."""
    broken, at, kinds = _sign(finding)
    return broken + (f" at {at}" if at else "") + (f": {', '.join(sorted(kinds))}" if kinds else "")


def causes(findings: Iterable[Finding]) -> list[Cause]:
    """The findings by cause, those with the shortest programs first."""
    ranked = sorted(findings, key=_rank)
    signs = dict.fromkeys(map(_sign, ranked))
    least = [sign for sign in signs if not any(other != sign and _goes_with(sign, other) for other in signs)]
    found: dict[_Sign, list[Finding]] = {}
    for finding in ranked:
        home = next(sign for sign in least if _goes_with(_sign(finding), sign))
        found.setdefault(home, []).append(finding)
    return [Cause(cause_name(first), first, tuple(variants)) for first, *variants in found.values()]


_Sign: TypeAlias = tuple[str, str, frozenset[str]]
"""What is broken, at which kind of operation, and what it takes."""


def _sign(finding: Finding) -> _Sign:
    program = finding.program
    if not finding.law or isinstance(program, str):  # faults and cases are told apart by what they are
        return identity(finding), "", frozenset()
    return finding.law, _breaks_at(program.ops), takes(program.ops)


def _goes_with(one: _Sign, other: _Sign) -> bool:
    return one[:2] == other[:2] and one[2] >= other[2]


def _breaks_at(ops: tuple[Op, ...]) -> str:
    """The kind of the last operation: a shrunk program ends where it breaks the law."""
    last = op_name(ops[-1]) if ops else ""
    return _ASKS_FOR_A_HIT.get(last, last)


def _rank(finding: Finding) -> tuple[int, int, str]:
    kinds = 0 if isinstance(finding.program, str) else len(takes(finding.program.ops))
    steps, text = by_size(finding)
    return steps, kinds, text
