"""The files and outputs that the documentation shows are real: they are written, run in order in an empty directory, and compared.

A fenced block of code whose first line is a comment with a file's name is that file (`, continued`: more of it). A block marked `console` holds commands
after `$ ` and what they print; a line `...` there stands for any lines. Counts, seconds, seeds and file digests differ from run to run and are not compared.
A program that is shown is run again by itself: its steps and its reason must be exactly those that are shown with it.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import kvproof.models.ops as operations
from kvproof.fuzz.programs import PoolConfig, Program, write_program

ROOT = Path(__file__).resolve().parent.parent

PROGRAMS = {"3": 120, "quick": 400}
"""How many programs stand for each budget that is shown: the same ones each time, whatever else the machine does."""

COMMANDS = {"kvproof": "import sys; from kvproof.cli import main; sys.exit(main())"}

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# ([\w./-]+\.\w+)(, continued)?\n")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
VARYING = re.compile(r"exercised [\d,]+ times?|with [\d,]+ programs?|\([\d,]+ operations?\)|in [\d.]+ ?s\b|seed is \d+|-[0-9a-f]{8}\.json")
OPS = re.compile(
    r"^    ops = (\[\n.*?^    \])\n    result = run\(ops, Adapter, num_blocks=(\d+), block_size=(\d+)\)", re.MULTILINE | re.DOTALL
)


NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/audit.md", pytest.param("docs/engine.md", marks=NEEDS_TORCH)])
def test_the_page_is_true(page, tmp_path):
    untrue = []
    for language, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "console":
            for command, expected in COMMAND.findall(text):
                try:
                    run_command(command, expected, tmp_path)
                except AssertionError as error:
                    untrue.append(str(error))
        elif named := FILE.match(text):
            write_file(tmp_path / named[1], text, more=bool(named[2]))
    assert not untrue, "\n\n".join(untrue)


def test_excerpts_are_the_code():
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("docs/adding-a-law.md", "docs/engine.md", "docs/production-cache.md")]
    shown = [(named[1], text.partition("\n")[2]) for page in pages for _, text in FENCE.findall(page) if (named := FILE.match(text))]
    shown = [(name, excerpt) for name, excerpt in shown if "/" in name]  # the others are files of the reader

    assert shown
    assert [name for name, excerpt in shown if excerpt not in (ROOT / name).read_text(encoding="utf-8")] == []


def test_links_lead_somewhere():
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    prose = {page: FENCE.sub("", page.read_text(encoding="utf-8")) for page in pages}  # in code, `kernel[grid](x)` is a call
    links = [(page, link) for page, text in prose.items() for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text)]

    assert links
    assert [(page.name, link) for page, link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_links_to_a_heading_lead_to_one():
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    links = [
        (page, *found)
        for page in pages
        for found in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    ]

    assert links
    assert [
        (page.name, link, heading) for page, link, heading in links if heading not in headings(page.parent / link if link else page)
    ] == []


def headings(page: Path) -> set[str]:
    """The headings of a page, as a link spells them."""
    written = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in written}


def write_file(path: Path, text: str, *, more: bool) -> None:
    """Write the block as a file, or append it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert path.exists() or not more, f"{path.name} is continued before it begins"
    path.write_text((path.read_text() + "\n\n" if more else "") + text.partition("\n")[2])


def run_command(command: str, expected: str, place: Path) -> None:
    """Run one command and compare what it prints with what is shown."""
    program, *arguments = command.split()
    if program == "python":
        call = [sys.executable, *arguments, "--basetemp", str(place / "pytest"), "-p", "no:cacheprovider"]
    else:
        call = [sys.executable, "-c", COMMANDS[program], *arguments]
        if program == "kvproof" and arguments[0] == "check":
            call += ["--seed", "1", "-n", "1", "--programs", str(PROGRAMS[arguments[-1]]), "--budget", "30"]
    ran = subprocess.run(call, cwd=place, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    told = f"$ {command}\n{ran.stdout}{ran.stderr}"

    assert ran.returncode == (any(sign in expected for sign in ("BROKEN", "The reason: ", "is stale"))), told
    shown_program = OPS.search(expected)
    if shown_program is None:
        compare(expected, ran.stdout, told)
        return
    # The search may settle on another program of the same length: what is shown of the program is checked by running that one.
    verdict = expected.rstrip("\n").rpartition("\n")[2]
    assert re.search(f"^{re.escape(verdict)}$" if verdict != "..." else r" breaks \d laws?: ", ran.stdout, re.MULTILINE), told
    again = replay(shown_program, command.split()[2], place)
    steps = re.search(r"^  step .*?\n(?=  sequences:|\.\.\.)", expected, re.MULTILINE | re.DOTALL)
    assert steps, f"{command}: the steps of the program are not shown"
    assert normal(steps[0]) in normal(again), again
    reason = re.search(r"^  The reason: (.*)$", expected, re.MULTILINE)
    assert reason, f"{command}: the reason is not shown"
    assert re.sub(r"^.*? at step \d+: ", "", again.rstrip("\n").rpartition("\n")[2]) == reason[1], again


def replay(shown: re.Match[str], target: str, place: Path) -> str:
    """What `kvproof replay` prints of a program that is shown."""
    ops = tuple(eval(shown[1], vars(operations)))
    program = Program(1, target, PoolConfig(int(shown[2]), int(shown[3])), ops)
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    write_program(place / "shown.json", program)
    call = [sys.executable, "-c", COMMANDS["kvproof"], "replay", "shown.json"]
    return subprocess.run(call, cwd=place, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout


def compare(expected: str, printed: str, told: str) -> None:
    """Whether `printed` is what is shown, with `...` for any lines."""
    lines = iter(normal(printed).split("\n"))
    skipping = False
    for line in normal(expected).split("\n"):
        if line == "...":
            skipping = True
        else:
            assert found(line, lines, skipping=skipping), f"missing: {line!r}\n{told}"
            skipping = False


def found(line: str, lines: Iterator[str], *, skipping: bool) -> bool:
    """Whether `line` comes next in `lines`, or anywhere below if lines may be skipped."""
    return any(line == other for other in lines) if skipping else next(lines, None) == line


def normal(text: str) -> str:
    """Without what differs from run to run, and without blanks at line ends."""
    text = re.sub(
        r"(?<= laws: )(.*)(?=\.$)", lambda laws: " ".join(sorted(re.findall(r"[a-z]+(?:-[a-z]+)+", laws[0]))), text, flags=re.MULTILINE
    )
    return "\n".join(line.rstrip() for line in VARYING.sub("~", text).strip("\n").split("\n"))
