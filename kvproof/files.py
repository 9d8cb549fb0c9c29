"""What a command is given as FILE: a program, a failure, a trace or a report, and the target that it is to run on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from kvproof.console import Unusable
from kvproof.fuzz.programs import FORMAT, Program, check_pool, local, portable, read_program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.traces.header import is_trace
from kvproof.fuzz.traces.program import program_of
from kvproof.fuzz.verdicts import Report
from kvproof.impl.checker import read_capabilities
from kvproof.targets import BadTarget, find_target


def load(file: Path, target: str | None) -> tuple[Program, type, str]:
    """The program with the target that it is to run on, its adapter and its title. Raises where the adapter cannot take such a program."""
    program, title = program_in(file)
    config = program.config
    check_pool(file, config)  # that of a report too
    if target is not None:
        program = msgspec.structs.replace(program, target=portable(target))
    elif (place := program.target.rpartition(":")[0]).endswith(".py") and not Path(place).is_file():
        raise Unusable(
            f"{file} names the target {program.target}, a file that does not exist here; add where it is: kvproof replay {file} path/to/file.py:Class."
        )
    adapter = _target_of(program, file) if target is None else find_target(program.target)
    claimed = read_capabilities(adapter)
    recorded = is_trace(file)  # on a pool that the cache has had, whatever it lets the suite ask for
    if not recorded and (config.num_blocks > claimed.max_blocks or config.block_size not in claimed.block_sizes):
        sizes = wording.joined([str(size) for size in claimed.block_sizes], "or")
        raise Unusable(
            f"{file} needs a pool of {config.num_blocks} blocks of {config.block_size} tokens, but {local(program.target)} claims at most "
            f"{claimed.max_blocks} blocks of {sizes} tokens; run it on a target that takes such a pool."
        )
    return program, adapter, title


def _target_of(program: Program, file: Path) -> type:
    """The target that a file names. Raises BadTarget: a trace may name what is no class that can be run here."""
    try:
        return find_target(program.target)
    except BadTarget as error:
        if not is_trace(file):
            raise
        raise BadTarget(
            f"The trace {file} calls its cache {program.target!r}, which cannot be run here ({str(error).rstrip('.')}); name the adapter to run it on, as in "
            f"`kvproof replay {file} path/to/file.py:Class`, or look at the trace as it was recorded with `kvproof open {file}`."
        ) from error


def keep_input(file: Path, *places: Path | None) -> None:
    """Raises Unusable where an output of a command is the file that it reads: what was recorded may not be had again."""
    if any(place is not None and place.exists() and place.samefile(file) for place in places if file.exists()):
        raise Unusable(f"{file} is what is read, so nothing can be written there; name another place for the output.")


def program_in(file: Path) -> tuple[Program, str]:
    """The program that a program or failure file or a trace holds, or the first one of a report, and how it is called."""
    if is_trace(file):
        return program_of(file), f"The program of the trace {file}"
    report = report_in(file)
    if report is None:
        return read_program(file), f"The program in {file}"
    if report.violations:
        first, count = report.violations[0], len(report.violations)
        assert isinstance(first.program, Program), "reports on kernels are replayed elsewhere"
        which = f"the first of its {count} violations" if count > 1 else "its violation"
        return first.program, f"{file} is a report; the program of {which} ({first.law})"
    if report.error_program is not None:
        return report.error_program, f"{file} is a report; the program of its fault"
    raise Unusable(f"{file} is a report without any violation, so it has no program; name a failure file.")


def report_in(file: Path) -> Report | None:
    """The report that `check --json` wrote to `file`; None where it is no report of this format, whatever else it is."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        report = msgspec.json.decode(file.read_bytes(), type=Report)
        return report if report.kvproof == FORMAT else None
    return None
