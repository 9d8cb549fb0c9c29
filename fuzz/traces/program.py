"""Between traces and programs: the operations of a trace up to its first broken law, and the trace of a program that is run."""

from __future__ import annotations

from pathlib import Path

from kvproof.fuzz.auditor import Auditor
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.traces.format import BOOK_FIELDS, BadTrace, Looks
from kvproof.fuzz.traces.read import Reader, Trouble
from kvproof.fuzz.traces.record import header_for
from kvproof.fuzz.traces.write import TraceWriter
from kvproof.impl.checker import read_capabilities
from kvproof.models.ops import AnyOp
from kvproof.properties.lockstep import Result, run


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
            violation = auditor.breach.violation
            break
    return Program(FORMAT, reader.header.target, reader.header.config, tuple(ops), violation=violation)


def write_run(program: Program, target: type, path: Path) -> Result:
    """Run `program` on a fresh cache beside the spec, and write what was seen as a trace; it ends where a law breaks. Raises OSError."""
    config = program.config
    capabilities = read_capabilities(target)
    result = run(
        program.ops, target, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities, keep_trace=True
    )
    steps = result.trace or []
    sees: dict[str, Looks] = {"tables": "always"}
    sees.update((name, "always") for name in BOOK_FIELDS if any(getattr(step.seen.books, name) is not None for step in steps))
    if capabilities.mirror:
        sees["worker_tables"] = "sometimes"
    if capabilities.events:
        sees["events"] = "sometimes"
    with TraceWriter(path, header_for(program.target, capabilities, config, sees, source="check")) as writer:
        for step in steps:
            writer.step(step.op, step.outcome, step.seen)
    return result
