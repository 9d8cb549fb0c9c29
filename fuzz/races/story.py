"""A history that no order explains, as text: one column for each thread, time from top to bottom, a bracket from the beginning of each call to its end."""

from __future__ import annotations

import re
from typing import Final

from kvproof.fuzz.races.history import Call, History, Look
from kvproof.fuzz.races.linear import Reason, Verdict
from kvproof.fuzz.reports import wording
from kvproof.models.ops import EndStep
from kvproof.models.outcomes import Grant, Hit, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.state import Tables

LEAST_WIDTH: Final = 24
MOST_WIDTH: Final = 52


def columns(history: History) -> list[str]:
    """The lines of the drawing."""
    cells = [(call.began, "┌ ", asked(call), call) for calls in history.threads for call in calls]
    cells += [(call.ended, "└ ", answered(call), call) for calls in history.threads for call in calls]
    cells.sort(key=lambda cell: (cell[0], cell[1] == "┌ "))
    width = min(MOST_WIDTH, max([LEAST_WIDTH, *(len(text) + 4 for _, _, text, _ in cells)]))
    threads = len(history.threads)
    running: set[int] = set()
    lines = ["".join(f"thread {number}".ljust(width) for number in range(threads)).rstrip()]
    for _, bracket, text, call in cells:
        if bracket == "┌ ":
            running.add(call.thread)
        else:
            running.discard(call.thread)
        line = ""
        for number in range(threads):
            cell = bracket + text if number == call.thread else ("│" if number in running else "")
            line += (cell if len(cell) < width else cell[: width - 2] + "…").ljust(width)
        lines.append(line.rstrip())
    return lines


def story(history: History, verdict: Verdict) -> list[str]:
    """The whole of it: the setup, the columns, the order that came furthest, and what spoke against going on."""
    scenario = history.scenario
    lines = [
        f"{scenario.name}: {scenario.story}",
        f"Pool: {scenario.num_blocks} blocks of {scenario.block_size} tokens. Before the threads begin:",
    ]
    lines += [f"    {_told(look)}" for look in history.setup]
    lines += ["", *(f"    {line}" for line in columns(history)), "", "Then, with all threads done:"]
    lines += [f"    {_told(look)}" for look in history.drain]
    lines += ["", *conclusion(verdict)]
    return lines


def met(explanation: str) -> list[str]:
    """Where the threads met, as the systematic search tells it, with the marks at the doors of locks in words."""
    told = re.sub(
        r"Write-write conflict: threads (\d+) and (\d+) both wrote to AtLock\.arrived\.",
        r"Threads \1 and \2 came to the same lock.",
        explanation,
    )
    told = re.sub(r"(Thread \d+ \| ).*\._door\.arrived = True", r"\1comes to a lock", told)
    return [line for line in told.strip().splitlines() if "AtLock.arrived" not in line]


def conclusion(verdict: Verdict) -> list[str]:
    """Why no order of the calls is one that a correct cache could have answered."""
    if verdict.by_its_end:
        lines = ["Whatever the order of the calls was, a correct cache would not have ended like this:"]
    else:
        lines = ["In no order of these calls could a correct cache have answered like this."]
        if verdict.order:
            lines += ["The order that comes furthest:", *(f"    {_who(call)}: {asked(call)} -> {answered(call)}" for call in verdict.order)]
        lines.append("After that:" if verdict.order else "To begin with:")
    return lines + [f"    {_reason(reason)}" for reason in verdict.reasons]


def asked(call: Call) -> str:
    """What was asked: steps go by the number that the cache gave them."""
    return wording.operation(call.op)


def answered(call: Call) -> str:
    """What came back, in a few words, and the table that the thread saw afterwards."""
    table = f", table {tables(call.tables)}" if call.tables is not None else ""
    match call.answer:
        case OutOfBlocksSeen():
            return "out of blocks"
        case RefusedSeen():
            return f"refused: {call.answer.reason}" if call.answer.reason else "refused"
        case Raised():
            return f"raised {call.answer.error}"
        case Hit():
            return f"{call.answer.tokens} tokens cached"
        case Grant():
            adopted = f"granted, {call.answer.adopted} adopted" if call.answer.adopted else "granted"
            copies = "".join(f", copy {source} to {target}" for _, source, target in call.answer.copies)
            return adopted + copies + table
        case bool():
            return ("done" if call.answer else "could not") + table
        case int():
            return f"{call.answer}"
    return ("ended" if isinstance(call.op, EndStep) else "done") + table


def tables(found: Tables) -> str:
    """Block tables, groups separated by a bar."""
    return " | ".join(" ".join("-" if block is None else str(block) for block in table) or "empty" for table in found)


def _reason(reason: Reason) -> str:
    law = f"{reason.law}: " if reason.law else ""
    return f"{_who(reason.call)}: {asked(reason.call)} -> {answered(reason.call)} cannot be next. {law}{wording.sentence(reason.reason)}"


def _who(call: Call) -> str:
    return f"thread {call.thread}" if call.thread >= 0 else "afterwards"


def _told(look: Look) -> str:
    return f"{asked(look.call)} -> {answered(look.call)}"
