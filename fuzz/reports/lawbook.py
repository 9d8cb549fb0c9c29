"""The laws, told to a reader: as a table, one by one, and as the page `docs/laws.md`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.fuzz import kernels_check
from kvproof.fuzz.reports import wording
from kvproof.models.laws import BY_NAME, KERNEL_LAWS, LAWS, Law

_INTRODUCTION: Final = """\
# The laws

A law is one promise of a paged KV cache, in one sentence. Violations, seeded bugs, the command line and this page all use its name.

*Needs* says which capability, policy or kind of group makes a law apply; a law without needs applies to every cache. A law whose
needs are not claimed is reported as not applicable, never as held. *Bugs* lists the real bugs that broke the law in engines in use.

This page is made by `kvproof laws --markdown`.
"""

_KERNEL_NOTE: Final = "These laws judge kernels rather than caches.\n"


def sections() -> Iterator[tuple[str, list[Law]]]:
    """Every section with its laws, in the order of the list."""
    for section, laws in groupby(LAWS, key=lambda law: law.section):
        yield section, list(laws)


def laws_markdown() -> str:
    """The page `docs/laws.md`."""
    parts = [_INTRODUCTION]
    for section, laws in sections():
        rows = [f"| `{law.name}` | {_cell(law.sentence)} | {_cell(wording.needs(law))} | {' '.join(law.bugs)} |" for law in laws]
        note = [_KERNEL_NOTE] if laws[0].judges_kernels else []
        parts.append("\n".join([f"## {section}\n", *note, "| law | sentence | needs | bugs |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def show_laws(console: Console, *, narrow: bool) -> None:
    """Every law by section: a table, or lines that begin with `- ` where there is no room for one."""
    if narrow:
        for section, laws in sections():
            console.print(Text(section, style="bold"))
            for law in laws:
                console.print(Text(f"- {law.name}: {law.sentence}{_needed(law)}"), soft_wrap=not console.is_terminal)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("law", no_wrap=True)
    table.add_column("sentence", ratio=1)
    table.add_column("needs", style="dim", max_width=14)
    for section, laws in sections():
        table.add_row(Text(section, style="bold underline"))
        for law in laws:
            table.add_row(Text(f"  {law.name}", style="cyan"), Text(law.sentence), Text(wording.needs(law)))
    console.print(table)


def show_law(console: Console, law: Law) -> None:
    """One law with all that is known of it."""
    console.print(Text(law.name, style="bold cyan"), Text(f"({law.section})", style="dim"))
    _line(console, law.sentence)
    _line(console, _applies(law))
    if law.bugs:
        _line(console, f"Real bugs that broke it: {wording.joined(law.bugs)}.")
    kind = "kernel-bug" if law in KERNEL_LAWS else "bug"
    seeded = seeded_bugs(law.name)
    if seeded:
        _line(console, f"Seeded bugs that break it: {wording.joined(seeded)}; `kvproof check {kind}:{seeded[0]}` shows one.")


_HOW_FAR: Final = {
    "writes-only-granted": "It applies to all kernels: pools are compared before and after, and the machine sees every write of Triton kernels.",
    "no-address-overflow": "It applies where Triton kernels are launched: they run in pools of the largest size, and with z3-solver their addresses are proved.",
}
"""Laws of kernels that are judged in more than one way."""


def _applies(law: Law) -> str:
    if law.name in _HOW_FAR:
        return _HOW_FAR[law.name]
    if "machine" in law.needs:
        return "It applies where Triton kernels are launched: the machine that runs them sees every access."
    needed = wording.needs(law)
    if needed:
        return f"It applies to a target that claims {needed}."
    return f"It applies to {'all kernels' if law.judges_kernels else 'every cache'}."


def seeded_bugs(law: str) -> list[str]:
    """The seeded bugs that break `law`; none where this installation has no registry of them."""
    if importlib.util.find_spec("kvproof.fuzz.bugs") is None:
        return []
    bugs = importlib.import_module("kvproof.fuzz.bugs").BUGS
    if BY_NAME[law] in KERNEL_LAWS:
        return [name for name, broken in kernels_check.seeded().items() if broken == law]
    return [name for name, bug in bugs.items() if law in _laws_of(bug)]


def _laws_of(bug: object) -> tuple[str, ...]:
    laws = getattr(bug, "laws", getattr(bug, "law", ()))
    return (laws,) if isinstance(laws, str) else tuple(laws)


def _needed(law: Law) -> str:
    return f" (needs {wording.needs(law)})" if law.needs else ""


def _line(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2)) if console.is_terminal else Text(f"  {text}"), soft_wrap=not console.is_terminal)
