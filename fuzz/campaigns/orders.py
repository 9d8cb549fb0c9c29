"""What a worker is asked to do, and what it answers. An order with its parents fixes every program of it, so another worker can do it again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kvproof.fuzz.campaigns.records import Record
from kvproof.fuzz.programs import Program
from kvproof.fuzz.verdicts import Finding

OrderKind = Literal["swarm", "machine", "replay", "shrink", "kernels", "canary"]

NO_BATCH: Final = -1
"""The number of an order that leaves no record."""


class Job(msgspec.Struct, frozen=True):
    """What all orders of a campaign have in common.

    `op_seconds`: time limit of one operation. `kernels`: whether the target is kernels, judged by cases. `devices`: whether each worker has an accelerator to itself.
    """

    target: str
    op_seconds: float
    kernels: bool = False
    devices: bool = False


class Order(msgspec.Struct, frozen=True):
    """One batch of programs.

    `number`: of the batch, unique in its campaign. `seed`: program i is that of `seed:i`. `parents`: kept programs that new ones may be made of; for `replay` those to run, for `shrink` the one to make shorter.
    `examples`: kept Hypothesis examples, for `machine`. `known`: situations that need not be told again. `attempt`: above 1 after a worker was lost with this order; each program then runs in a process of its own.
    """

    number: int
    kind: OrderKind
    seed: str
    programs: int
    parents: tuple[Program, ...] = ()
    examples: tuple[bytes, ...] = ()
    known: tuple[str, ...] = ()
    attempt: int = 1


class Kept(msgspec.Struct, frozen=True):
    """A program, and the situations that it reached and that its worker did not know."""

    program: Program
    situations: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What came of one order.

    `kept`: programs that reached something new. `findings`: what was found, shrunk; a law of "" is a fault of the target. `examples`: those that Hypothesis keeps, `surpassed`: those
    of the order that it keeps no longer. `sticky`: the device is lost to this process.
    """

    record: Record
    kept: tuple[Kept, ...] = ()
    findings: tuple[Finding, ...] = ()
    examples: tuple[bytes, ...] = ()
    surpassed: tuple[bytes, ...] = ()
    sticky: bool = False


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A worker is gone, with its order. `blame`: whether the target may have done it; a machine that went away did not. `seed`: the program that was running, where it is known."""

    how: str
    blame: bool = True
    seed: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """kvproof itself failed in a worker: no verdict can be trusted. `unwritable`: what to tell instead, where the worker could not write what the campaign keeps."""

    traceback: str
    unwritable: str = ""


Answer = Result | Lost | Failed
