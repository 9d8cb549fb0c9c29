"""The hunt for all seeded bugs: it goes on where it was stopped, and tries longer what it missed."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def hunts(monkeypatch):
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.first_violation")
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def catch(hunts, **how):
    fields = {"bug": "canary", "generator": "swarm", "law": "no-aliasing", "seconds": 0.1, "programs": 3, "seed": 1, "limit_seconds": 5.0}
    return hunts.Catch(**(fields | how))


def test_a_hunt_is_written_down_and_not_done_again(hunts, tmp_path, monkeypatch, capsys):
    files = ["--results", str(tmp_path / "hunts.jsonl"), "--csv", str(tmp_path / "table.csv"), "--plot", str(tmp_path / "plot.svg")]
    asked = ["--only", "canary", "--generator", "swarm", "--seconds", "20", *files]
    assert hunts.main([*asked, "--minutes", "0"]) == 0
    assert "1 of 1 hunts are left" in capsys.readouterr().out
    assert hunts.main(asked) == 0
    [caught] = hunts.read(tmp_path / "hunts.jsonl", 1).values()
    assert caught == msgspec.structs.replace(
        catch(hunts), law=caught.law, seconds=caught.seconds, programs=caught.programs, limit_seconds=20.0
    )
    assert caught.law

    monkeypatch.setattr(hunts, "hunt", lambda *_: pytest.fail("it was hunted already"))
    assert hunts.main(asked) == 0
    assert "swarm: 1 of 1 seeded bugs" in capsys.readouterr().out
    [row] = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
    assert row["law"] == caught.law
    assert "Seeded bugs broken, of 1" in (tmp_path / "plot.svg").read_text()
    assert hunts.read(tmp_path / "hunts.jsonl", 2) == {}


def test_what_was_missed_is_due_again_only_with_more_time(hunts):
    missed = catch(hunts, law="", seconds=None)
    assert hunts.is_due(None, 5.0)
    assert not hunts.is_due(catch(hunts), 60.0)
    assert not hunts.is_due(missed, 5.0)
    assert hunts.is_due(missed, 6.0)


def test_the_plot_counts_only_what_was_caught(hunts):
    text = hunts.plot([catch(hunts), catch(hunts, bug="other", law="", seconds=None)], 5.0)
    assert "swarm: 1 of 2" in text
