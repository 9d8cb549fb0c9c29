"""From a recorded trace to a program: the operations up to the first broken law, or all of them."""

from __future__ import annotations

from pathlib import Path

from kvproof.fuzz.audit import Auditor
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.traces.format import BadTrace
from kvproof.fuzz.traces.read import Reader, Trouble
from kvproof.models.ops import AnyOp
from kvproof.models.spec import Violation


def program_of(path: Path) -> Program:
    """The program of a trace, with the violation that its audit finds. Raises BadTrace where lines are missing, doubled or damaged.

    Tokens of a redacted trace are its digests: they are equal where prefixes are, so that the program does the same.
    """
    reader = Reader(path)
    auditor = Auditor(reader.header)
    ops: list[AnyOp] = []
    violation = None
    for item in reader:
        complaint = item.what if isinstance(item, Trouble) else auditor.judge(item)
        if complaint or isinstance(item, Trouble):
            raise BadTrace(f"{path}: {complaint}; a program can only be made of a whole trace.")
        ops.append(item.op)
        if auditor.breach is not None:
            violation = Violation(auditor.breach.law, auditor.breach.operation, auditor.breach.reason)
            break
    return Program(FORMAT, reader.header.target, reader.header.config, tuple(ops), violation=violation)
