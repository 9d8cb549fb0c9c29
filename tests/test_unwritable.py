"""Every command that writes a file says in one sentence where it cannot, and ends with status 2."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import kvproof
from kvproof import zoo_cli
from kvproof.cli import main
from kvproof.console import Output
from kvproof.fuzz.campaigns.causes import causes
from kvproof.fuzz.programs import BadFile, PoolConfig, Program, write_program
from kvproof.fuzz.traces.program import write_run
from kvproof.fuzz.verdicts import Finding
from kvproof.fuzz.zoo.case import Verdict
from kvproof.fuzz_cli import _keep_failures
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.models.ops import Admit, Commit, Extend, Truncate
from kvproof.targets import find_target

PLACE = "taken/out"
"""A place below a file."""

EXHAUST = ("exhaust", "production-sync", "--scope", "tiny", "--depth", "1")
CHECK = ("check", "production-sync", "--programs", "20", "-n", "1", "--seed", "1")
FUZZ = ("fuzz", "production-sync", "--programs", "5", "--batch", "5", "--seed", "1", "-n", "1")

COMMANDS = [
    (*EXHAUST, "--state", PLACE),
    (*EXHAUST, "--picture", PLACE),
    ("zoo", "--markdown", PLACE),
    (*CHECK, "--json", PLACE),
    (*CHECK, "--junit", PLACE),
    (*CHECK, "--sarif", PLACE),
    (*CHECK, "--html", PLACE),
    (*FUZZ, "--directory", PLACE),
    (*FUZZ, "--json", PLACE),
    (*FUZZ, "--sarif", PLACE),
    ("replay", "program.json", "--html", PLACE),
    ("open", "program.json", "--html", PLACE),
    ("record", "program.json", "--output", PLACE),
    ("audit", "trace.jsonl", "--json", PLACE),
    ("audit", "trace.jsonl", "--junit", PLACE),
    ("audit", "trace.jsonl", "--html", PLACE),
    ("stats", "trace.jsonl", "--json", PLACE),
    ("export", "trace.jsonl", "--output", PLACE),
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo_cli, "judge_all", lambda *_, **__: iter(()))
    Path("taken").write_text("")
    write_program(Path("program.json"), Program(1, "production-sync", PoolConfig(4, 2), (Admit(0, (1, 2)), Extend(0, 2))))
    with kvproof.record(SynchronousAdapter(num_blocks=4, block_size=2), Path("trace.jsonl"), num_blocks=4, block_size=2) as cache:
        cache.admit(0, (1, 2))
        cache.release(0, "finish")
    lost = Program(1, "bug:trimmed-blocks-are-lost", PoolConfig(2, 1), (Admit(0, (0, 0)), Extend(0, 2), Commit(0), Truncate(0, 1)))
    write_program(Path("broken.json"), lost)
    write_run(lost, find_target(lost.target), Path("broken.jsonl"))


def complaints(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("kvproof: ")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: f"{arguments[0]} {arguments[-2]}")
def test_an_output_that_cannot_be_written_is_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    [told] = complaints(capsys)
    assert told.startswith(f"kvproof: {PLACE}")
    assert "cannot be written (" in told
    assert told.endswith(f"; name another place with {arguments[-2]}.")


def test_what_was_exhausted_is_told_before_its_file_fails(capsys):
    assert main([*EXHAUST, "--state", PLACE]) == 2
    assert "every such program of up to 1 operation was tried" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("exhaust", "bug:canary", "--scope", "small", "--state", PLACE, "--failures", PLACE), "no-aliasing is broken: "),
        (("fuzz", "bug:canary", *FUZZ[2:], "--json", PLACE, "--issue", PLACE), "fuzz breaks bug:canary"),
        (("audit", "broken.jsonl", "--json", PLACE, "--junit", PLACE), "pool-conserved is broken by operation 3"),
        (("shrink", "broken.json", "--seconds", "1", "-n", "1", "--output", PLACE, "--test", PLACE), "the shortest program found has"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_broken_law_is_told_and_outweighs_files_that_cannot_be_written(arguments, verdict, capsys):
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert verdict in out or "no-aliasing is broken" in out
    assert err.count("cannot be written (") == 2


def test_a_zoo_with_trouble_is_told_and_outweighs_its_page(monkeypatch, capsys):
    case = zoo_cli.CASES[0]
    outcome = zoo_cli.Outcome(case, Verdict({}, 7, 1.0), None)
    monkeypatch.setattr(zoo_cli, "judge_all", lambda *_, **__: iter((outcome,)))
    assert main(["zoo", case.name, "--markdown", PLACE]) == 1
    out, err = capsys.readouterr()
    assert "no law broke in 7 programs" in out
    assert "cannot be written (" in err


def test_an_adapter_that_cannot_be_written_is_one_sentence(capsys):
    assert main(["new", "taken/adapter.py"]) == 2
    assert complaints(capsys) == ["kvproof: There is no directory taken to write adapter.py to; create it, or name another place."]


def test_the_situations_of_a_campaign_that_cannot_be_written_are_one_sentence(tmp_path, capsys):
    (tmp_path / "books/situations.json/taken").mkdir(parents=True)
    assert main([*FUZZ, "--directory", "books"]) == 2
    [told] = complaints(capsys)
    assert told.startswith("kvproof: books/situations.json cannot be written (")


def test_a_program_that_ends_its_process_and_cannot_be_kept_is_one_sentence():
    program = Program(1, "production-sync", PoolConfig(4, 2), (Admit(0, (1, 2)),), fault="The process died with exit code 7 in admit(0).")
    failures = SimpleNamespace(causes=lambda: causes([Finding("", program.fault, program, 1)]), surpassed=[])
    conductor = SimpleNamespace(failures=failures)
    with pytest.raises(BadFile, match=r"taken cannot be written \(.*\); name another place with --directory\.$"):
        _keep_failures(Output(), Path("taken"), conductor)


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("program.json", ("replay", "--html")),
        ("broken.json", ("shrink", "--output")),
        ("broken.json", ("shrink", "--test")),
        ("program.json", ("record", "--output")),
        ("program.json", ("open", "--html")),
        ("trace.jsonl", ("audit", "--json")),
        ("trace.jsonl", ("audit", "--junit")),
        ("trace.jsonl", ("audit", "--html")),
        ("trace.jsonl", ("stats", "--plot")),
        ("trace.jsonl", ("export", "--output")),
    ],
)
def test_what_is_read_is_never_written_over(file, arguments, capsys):
    command, option = arguments
    before = Path(file).read_bytes()
    assert main([command, file, option, f"./{file}"]) == 2
    assert complaints(capsys) == [f"kvproof: {file} is what is read, so nothing can be written there; name another place for the output."]
    assert Path(file).read_bytes() == before
