"""`kvproof fuzz` on the command line: modes, resumption, failure files, exit status, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from kvproof.cli import main
from kvproof.fuzz.campaigns.records import totals
from kvproof.fuzz.campaigns.store import Store, directory
from kvproof.fuzz.programs import read_program


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fuzz(*arguments):
    return main(["fuzz", *map(str, arguments), "-n", "1"])


def test_a_campaign_on_a_sound_cache_holds_and_goes_on_where_it_stopped(tmp_path, capsys):
    assert fuzz("production-sync", "--programs", 40, "--batch", 20, "--seed", 3) == 0
    out = capsys.readouterr().out
    assert "The campaign has run 40 programs in 2 orders, 40 of them in this run" in out
    assert "the canary was caught once" in out
    assert "situations were reached" in out
    assert fuzz("production-sync", "--programs", 60, "--batch", 20) == 0
    assert "The campaign has run 60 programs in 3 orders, 20 of them in this run" in capsys.readouterr().out
    kept = json.loads((tmp_path / ".kvproof/campaigns/production-sync/situations.json").read_bytes())
    assert len(kept["reached"]) > 100
    assert kept["never"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mode", "replay", "--directory", "elsewhere"), "No program of this target is kept here"),
        (("--minutes", 0.00001), "before any program had ended"),
    ],
)
def test_a_campaign_in_which_no_program_ended_says_nothing_of_the_target(tmp_path, capsys, options, words):
    assert fuzz("production-sync", *options) == 2
    assert words in capsys.readouterr().err


def test_failures_are_kept_replayed_and_stop_a_gate(tmp_path, capsys):
    assert fuzz("bug:canary", "--programs", 20, "--batch", 20, "--seed", 1, "--json", "report.json") == 1
    capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert report["verdict"] == "broken"
    assert (report["programs"], report["seed"]) == (20, 1)
    failures = tmp_path / ".kvproof/campaigns/bug-canary/failures"
    files = [path for path in failures.glob("*.json") if not path.name.startswith("fault-")]
    assert len(files) == len(report["violations"])
    assert len(list(failures.glob("variants/*.json"))) == len(report["variants"])
    [fault] = failures.glob("fault-*.json")
    assert read_program(fault).fault
    assert main(["replay", str(files[0])]) == 1
    assert read_program(files[0]).violation is not None
    assert fuzz("bug:canary", "--mode", "replay") == 1
    assert fuzz("bug:canary", "--mode", "gate") == 1
    assert fuzz("bug:canary", "--mode", "prune") == 1
    assert "still fail" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("production", "--directory", "other"), "holds a campaign on production-sync, not on production"),
        (("production-sync", "--directory", "other", "--seed", "5"), "holds a campaign with seed 3, not 5"),
    ],
)
def test_another_campaign_is_not_mixed_with_the_one_of_a_directory(tmp_path, arguments, complaint, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/campaign.json").write_text('{"kvproof":1,"target":"production-sync","seed":3}')
    assert fuzz(*arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("text", "complaint"), [("{", "is damaged"), ('{"kvproof":9,"target":"production","seed":3}', "format version 9")])
def test_a_damaged_campaign_is_refused(tmp_path, text, complaint, capsys):
    place = tmp_path / ".kvproof/campaigns/production/campaign.json"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert fuzz("production") == 2
    assert complaint in capsys.readouterr().err
    assert place.read_text() == text


def test_a_campaign_that_is_asked_to_end_writes_its_report_and_goes_on_later(tmp_path, capsys):
    command = [sys.executable, "-c", "import sys; from kvproof.cli import main; sys.exit(main(sys.argv[1:]))", "fuzz", "production-sync"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "-n", "1", "--minutes", "5", "--seed", "3", "--json", "report.json"], env=environment, cwd=tmp_path
    )
    records = tmp_path / ".kvproof/campaigns/production-sync/store"
    store = Store(directory(records), target="production-sync", campaign="3")
    until = time.monotonic() + 60
    while not store.records() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 0
    done = totals(store.records())
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert (report["verdict"], report["programs"]) == ("held", done.programs)
    assert fuzz("production-sync", "--minutes", "0.01") == 0
    assert totals(store.records()).programs >= done.programs
