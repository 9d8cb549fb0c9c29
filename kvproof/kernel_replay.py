"""`kvproof replay FILE` where FILE is about kernels: judge its case again and say how that compares with what the file records."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kvproof.fuzz import kernels_check
from kvproof.fuzz.kernel_failures import KernelFailure, judge_again
from kvproof.fuzz.programs import local
from kvproof.fuzz.reports import terminal, wording
from kvproof.fuzz.verdicts import BROKEN, HELD
from kvproof.targets import BadTarget, find_target


def replay_case(console: Console, file: Path, failure: KernelFailure, target: str | None) -> int:
    """Judge the case of `failure` on `target`, or on the target that it names, and return the exit status. Raises BadTarget and BadFile."""
    from kvproof.kernels.machine import MachineError

    if kernels_check.missing():
        raise BadTarget(kernels_check.missing())
    name = target or failure.target
    kernels = find_target(name)
    if not kernels_check.is_kernels(kernels):
        raise BadTarget(f"{file} holds a case of kernels, and {local(name)} is no class of kernels; name one that has store and attend.")
    terminal.say(console, f"The case in {file}, on {local(name)}", "bold")
    terminal.verbatim(console, f"    {failure.case}")
    try:
        broken = judge_again(failure, kernels)
    except MachineError as error:
        raise BadTarget(f"{local(name)} could not be judged: {wording.sentence(str(error))}") from error
    if not broken:
        terminal.say(console, f"No law breaks: the violation of {failure.law} is gone on {local(name)}.", "bold green")
        return HELD
    for law, reason in sorted(broken.items(), key=lambda item: item[0] != failure.law):
        verb = "breaks again" if law == failure.law else "breaks"
        terminal.say(console, f"{law} {verb}: {wording.sentence(reason)}", "bold red")
    return BROKEN
