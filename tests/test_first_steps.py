"""What a new user gets wrong, or may take for something else, and the sentence that puts it right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kvproof
from kvproof import entry, targets
from kvproof.cli import main
from kvproof.fuzz import kernels_check
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.kernels.contract import KernelCapabilities

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def recorded(tmp_path):
    """A trace of an engine that nothing here can build."""
    path = tmp_path / "trace.jsonl"
    with kvproof.record(SynchronousAdapter(num_blocks=4, block_size=2), path, num_blocks=4, block_size=2, target="my engine") as cache:
        cache.admit(0, (1, 2))
        cache.extend(0, 2)
        cache.commit(0)
        cache.release(0, "finish")
    return path


def complaint(capsys):
    """The one sentence on stderr."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kvproof: ")]
    assert len(lines) == 1
    return lines[0]


# -- files that are something else -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_trace_whose_target_is_no_class_asks_for_one(command, recorded, capsys):
    assert main([command, str(recorded)]) == 2
    told = complaint(capsys)
    assert "The trace" in told
    assert "calls its cache 'my engine', which cannot be run here" in told
    assert "name the adapter to run it on" in told
    assert f"`kvproof open {recorded}`" in told
    assert main([command, str(recorded), "production-sync"]) == 0
    assert command == "shrink" or "The program of the trace" in capsys.readouterr().out


def test_what_is_no_trace_is_called_what_it_is(tmp_path, capsys):
    assert main(["audit", str(ROOT / "examples/double_free.json")]) == 2
    told = complaint(capsys)
    assert "is a program or a failure file, not a trace" in told
    assert "`kvproof record" in told
    assert main(["check", "production-sync", "--programs", "5", "-n", "1", "--json", "report.json"]) == 0
    capsys.readouterr()
    assert main(["audit", "report.json"]) == 2
    assert "is a report, not a trace; see it with `kvproof open report.json`." in complaint(capsys)
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["audit", "empty.jsonl"]) == 2
    assert "is empty" in complaint(capsys)
    (tmp_path / "list.json").write_text("[1]")
    assert main(["audit", "list.json"]) == 2
    assert "no trace header" in complaint(capsys)


def test_a_trace_with_missing_lines_does_not_blame_the_claims_of_the_cache(tmp_path, capsys):
    from kvproof.impl.production.adapter import ProductionAdapter

    path = tmp_path / "trace.jsonl"
    with kvproof.record(ProductionAdapter(num_blocks=8, block_size=2), path, num_blocks=8, block_size=2) as cache:
        for seq in range(3):
            cache.admit(seq, (seq, 1))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[3:]]))
    assert main(["audit", "--tolerant", str(path), "--json", "report.json"]) == 0
    laws = json.loads(Path("report.json").read_bytes())["laws"]
    for law in ("eviction-follows-policy", "tail-waste-bounded"):
        assert laws[law]["because"] == "operations are missing, and this law cannot be told without them"
    assert "does not claim policy" not in capsys.readouterr().out


def test_a_report_without_a_violation_says_so(capsys):
    assert main(["check", "production-sync", "--programs", "5", "-n", "1", "--seed", "1", "--json", "report.json"]) == 0
    capsys.readouterr()
    assert main(["open", "report.json", "--text"]) == 0
    out = capsys.readouterr().out
    assert "No law is broken, so there is no run to draw. production-sync: 5 programs" in out
    assert "own-content" in out


def test_a_step_that_is_not_there_is_not_shown_as_another(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    failure = "examples/double_free.json"
    assert main(["open", failure, "--text", "--step", "99"]) == 2
    assert complaint(capsys).endswith("has no step 99 to show: its steps are 0 to 3.")
    assert main(["open", failure, "--text", "--step", "2"]) == 1


# -- targets -------------------------------------------------------------------------------------------------------------------------------


def test_a_seeded_race_is_a_target_of_every_command(capsys):
    assert main(["check", "race-bug:release-in-two-pieces", "--programs", "5", "-n", "1"]) == 0
    capsys.readouterr()
    assert main(["replay", str(ROOT / "examples/double_free.json"), "race-bug:nonsense"]) == 2
    assert "There is no seeded race 'nonsense'" in complaint(capsys)


def test_the_engine_says_that_it_is_the_engine_that_needs_torch(monkeypatch, capsys):
    def gone(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    find = kernels_check.importlib.util.find_spec
    monkeypatch.setattr(kernels_check.importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    monkeypatch.setattr(targets.importlib, "import_module", gone)
    assert main(["check", "engine"]) == 2
    assert complaint(capsys).startswith(
        "kvproof: The target engine needs torch, which is not installed; run `pip install 'kvproof[kernels]'`"
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("class K:\n    pass", "or kvproof.KernelCapabilities for kernels"),
        ("class K(PagedKernels):\n    pass", "K.capabilities is not implemented"),
        (
            "class K(PagedKernels):\n    @classmethod\n    def capabilities(cls):\n        return KernelCapabilities()",
            "mine.py:K does not define store() and attend(), which kernels need.",
        ),
    ],
)
def test_a_class_without_methods_is_told_what_it_lacks(body, told, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(f"from kvproof import KernelCapabilities, PagedKernels\n{body}\n")
    assert main(["check", "mine.py:K", "--budget", "2", "-n", "1"]) == 2
    said = capsys.readouterr().err
    assert told in said or kernels_check.missing() in said


def test_a_claimed_copy_needs_its_method():
    class Copies(kvproof.PagedKernels):
        @classmethod
        def capabilities(cls):
            return KernelCapabilities(features=frozenset({"copy"}))

        def store(self, *arguments):
            """Nothing."""

        def attend(self, *arguments, **named):
            """Nothing."""

    assert kernels_check._bad_claim(Copies, "Copies") == "Copies does not define copy_blocks(), which the feature copy needs."


# -- the command line itself -----------------------------------------------------------------------------------------------------------------


def test_an_interruption_while_it_loads_is_one_sentence(monkeypatch, capsys):
    class Interrupted(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "kvproof.cli", Interrupted("kvproof.cli"))
    monkeypatch.setattr(entry, "supervised", lambda run: run())  # a fork would go on with the tests
    assert entry.main() == 2
    assert capsys.readouterr().err == "kvproof: The run was interrupted before it could decide anything.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("fuzz", "production-sync", "--programs", "5", "--batch", "5", "-n", "1", "--budget", "quick"),
        ("exhaust", "production-sync", "--scope", "tiny", "--depth", "1", "--budget", "5"),
    ],
)
def test_the_time_of_a_search_may_be_called_a_budget_everywhere(arguments):
    assert main(arguments) == 0


def test_a_check_writes_its_findings_as_sarif():
    assert main(["check", "bug:canary", "--programs", "20", "-n", "1", "--seed", "1", "--sarif", "found.sarif"]) == 1
    [run] = json.loads(Path("found.sarif").read_bytes())["runs"]
    assert "no-aliasing" in {rule["id"] for rule in run["tool"]["driver"]["rules"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name one failure file"),
        (("nowhere.json",), "nowhere.json cannot be read"),
        ((str(ROOT / "pyproject.toml"),), "is not a kvproof program"),
    ],
)
def test_the_example_that_replays_says_what_it_was_given_wrongly(arguments, told):
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples/replay_a_failure.py"), *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_the_command_leaves_in_a_directory_lies_in_one_place(tmp_path):
    arguments = [sys.executable, "-m", "kvproof", "check", "production-sync", "-n", "1", "--budget", "3"]
    environment = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}

    subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, check=True)

    assert {path.name for path in tmp_path.iterdir()} <= {".kvproof"}
