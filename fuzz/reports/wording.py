"""How operations, answers and numbers are worded, the same in every report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from kvproof.models.laws import Law
from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    Admit,
    Append,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Namespace,
    Op,
    Release,
    Truncate,
    op_name,
)
from kvproof.models.outcomes import Grant, Hit, Outcome, OutOfBlocksSeen, Raised, RefusedSeen

_SPOKEN = {"beginstep": "begin step", "endstep": "end step", "swapout": "swap out", "swapin": "swap in"}


def spoken(name: str) -> str:
    """The name of an operation as words: `swapout` is `swap out`."""
    return _SPOKEN.get(name, name)


def operation(op: Op) -> str:
    """An operation in a few words: `extend 0 by 2, drafts 5 6`."""
    match op:
        case Admit():
            return f"admit {op.seq}{namespace(op.namespace)}: {numbers(op.prompt)}"
        case Append():
            return f"append {op.seq}: {numbers(op.tokens)}"
        case Extend():
            return f"extend {op.seq} by {op.count}" + (f", drafts {numbers(op.drafts)}" if op.drafts else "")
        case Commit():
            return f"commit {op.seq}" + (f", {op.accepted} accepted" if op.accepted else "")
        case Truncate():
            return f"truncate {op.seq} to {op.length}"
        case Fork():
            return f"fork {op.parent} to {op.child}"
        case Release():
            return f"release {op.seq} ({op.reason})"
        case EndStep():
            return f"end step {op.step}"
        case Evict():
            return f"evict {numbers(op.blocks)}"
    seq = getattr(op, "seq", None)
    return spoken(op_name(op)) + ("" if seq is None else f" {seq}")


def namespace(space: Namespace) -> str:
    """The fields of a namespace that are set, with a blank before each: ` tenant=a`."""
    return "".join(f" {field}={value!r}" for field in NAMESPACE_FIELDS if (value := getattr(space, field)) is not None)


def answer(op: Op, outcome: Outcome) -> str:
    """What an operation answered, empty where the answer says nothing."""
    match outcome:
        case Hit():
            return f"hit {outcome.tokens}"
        case Grant():
            return _grant(outcome)
        case OutOfBlocksSeen():
            return "out of blocks"
        case RefusedSeen():
            return f"refused: {outcome.reason}" if outcome.reason else "refused"
        case Raised():
            return f"raised {outcome.error}"
        case bool():
            return "done" if outcome else "could not"
        case int() if isinstance(op, Evict):
            return f"dropped {outcome}"
    return ""


def _grant(grant: Grant) -> str:
    parts = [f"adopted {grant.adopted}"] if grant.adopted else []
    parts += [f"copied {source} to {target}" for _, source, target in grant.copies]
    if grant.zeroed:
        parts.append(f"zeroed {numbers(grant.zeroed)}")
    return ", ".join(parts)


MOST_STEPS: Final = 60
"""A program of more operations is shown by its last ones: a shrunk one is nearly always shorter, and nobody reads hundreds."""

LAST_STEPS: Final = 20
"""How many of them."""


GOES_ON: Final = "The time to shrink it ran out, so there may well be a shorter one; `kvproof shrink FILE` goes on"
"""What is said of a program that is unfinished."""


def left_out(steps: int) -> int:
    """How many of the first of so many steps are not shown, where a program stands among other things."""
    return steps - LAST_STEPS if steps > MOST_STEPS else 0


def numbers(values: Iterable[int]) -> str:
    """Numbers with blanks between them; more than four equal ones in a row are counted: `5 x64`."""
    parts = []
    for value, run in groupby(values):
        length = sum(1 for _ in run)
        parts += [f"{value} x{length}"] if length > 4 else [str(value)] * length
    return " ".join(parts)


def counted(count: int, noun: str) -> str:
    """`1 program`, `1,234 programs`."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 'sh')) else 's'}"


def joined(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), words[-1]) if part) if words else ""


def closest(name: str, names: Iterable[str], *, most: int = 3) -> list[str]:
    """The names that `name` may have meant: those that begin with it, else those that hold it, else the one that looks most like it."""
    every, wanted = list(names), name.strip().lower().replace("_", "-")
    if not wanted:
        return []
    begin = [known for known in every if known.startswith(wanted)]
    hold = [known for known in every if wanted in known]
    return (begin or hold or difflib.get_close_matches(wanted, every, n=1))[:most]


def sentence(text: str) -> str:
    """`text` as a sentence: with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def needs(law: Law) -> str:
    """What a law needs, in words: `fork or prefix`, `policy lru`; empty if it applies always."""
    return joined([need.replace("policy:", "policy ").replace("_", " ") for need in law.needs], last="or")
