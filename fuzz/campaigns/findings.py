"""Which failures are the same: those that break one law by programs of one shape.

A shape is a shrunk program without its numbers: the operations in order, sequences renamed by their first appearance, and which fields its namespaces have. Two programs that
differ in tokens or in the size of the pool have one shape; a double free at a preemption and one at a cancellation have two. Which shapes seem to have one cause is for `causes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kvproof.fuzz.campaigns.orders import NO_BATCH, Order
from kvproof.fuzz.programs import Program
from kvproof.fuzz.shrink import kind_of_fault
from kvproof.fuzz.verdicts import Finding
from kvproof.models.ops import NAMESPACE_FIELDS, Admit, Append, Commit, Extend, Match, Op, Release, op_name, sequences_of


def finding_of(program: Program) -> Finding:
    """A program that breaks a law, or shows a fault, as a finding. The law of a fault is ""."""
    violation = program.violation
    return Finding(violation.law if violation else "", violation.reason if violation else program.fault, program, len(program.ops))


_SEED: Final = "seed "
"""How a finding begins that has no program: what its workers were lost with."""


def given_up(reason: str, seed: str) -> Finding:
    """A batch that no worker survived, as a finding. `seed`: of the batch, or of the program that ran last."""
    return Finding("", reason, f"{_SEED}{seed}", 1)


def batch_of(finding: Finding) -> Order | None:
    """The batch to run again for a finding that has no program; None for every other one. What it was made of beside its seed is not kept."""
    if not isinstance(finding.program, str) or not finding.program.startswith(_SEED):
        return None
    seed = finding.program.removeprefix(_SEED)
    if seed.count(":") == 2:  # of a program: it comes last
        seed, _, index = seed.rpartition(":")
        return Order(NO_BATCH, "swarm", seed, int(index) + 1)
    return Order(NO_BATCH, "machine", seed, 1)


def shape(ops: Iterable[Op]) -> str:
    """The operations without their numbers: `admit 0, extend 0, fork 0 1, release 1 cancel`."""
    names: dict[int, int] = {}
    words = []
    for op in ops:
        who = [str(names.setdefault(seq, len(names))) for seq in sequences_of(op)]
        words.append(" ".join([op_name(op), *who, *([op.reason] if isinstance(op, Release) else sorted(_asks(op)))]))
    return ", ".join(words)


def takes(ops: Iterable[Op]) -> frozenset[str]:
    """What a program takes to fail, beside requests and passes, which every program has: `{"fork", "cancel", "tenant"}`."""
    kinds: set[str] = set()
    for op in ops:
        kinds |= _asks(op)
        if isinstance(op, Release):
            kinds.add("release" if op.reason == "finish" else op.reason)
        elif not isinstance(op, Admit | Append | Commit | Extend | Match):
            kinds.add(op_name(op))
    return frozenset(kinds)


def _asks(op: Op) -> set[str]:
    """What an operation asks for beyond its kind: a field of its namespace, drafts, or that drafts are accepted. A shrunk program asks for nothing in vain."""
    if isinstance(op, Admit):
        return {field for field in NAMESPACE_FIELDS if getattr(op.namespace, field) is not None}
    if isinstance(op, Extend) and op.drafts:
        return {"drafts"}
    return {"accept"} if isinstance(op, Commit) and op.accepted else set()


def identity(finding: Finding) -> str:
    """What two findings have in common if they are the same: law and shape; of faults, the complaint without its numbers."""
    if isinstance(finding.program, str):  # a case of kernels: its first word is what is done, the rest are sizes
        return f"{finding.law}: {re.split(r'[^a-z_]', finding.program.partition('(')[2].strip(chr(39)))[0]}"
    if not finding.law:
        return f"fault: {kind_of_fault(finding.reason)}"
    return f"{finding.law}: {shape(finding.program.ops)}"


def distinct(findings: Iterable[Finding]) -> dict[str, Finding]:
    """One finding for each identity, the one with the fewest operations; of equally long ones the one that comes first in the alphabet, so that the order does not matter."""
    found: dict[str, Finding] = {}
    for finding in findings:
        key = identity(finding)
        if key not in found or by_size(finding) < by_size(found[key]):
            found[key] = finding
    return found


def by_size(finding: Finding) -> tuple[int, str]:
    """A total order: the shorter program first, and of equally long ones the first in the alphabet."""
    return finding.steps, str(finding.program)
