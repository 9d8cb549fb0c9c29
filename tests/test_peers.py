"""The benchmark beside the peers: every row runs on our cache, and what was measured is told as it is."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def show(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from beside import show

    yield show
    for name in [name for name in sys.modules if name.split(".")[0] == "beside"]:
        del sys.modules[name]


def peers(*arguments):
    return subprocess.run([sys.executable, str(BENCHMARKS / "peers.py"), *arguments], capture_output=True, text=True, check=False)


def test_every_row_runs_on_our_cache(tmp_path):
    told = tmp_path / "rates.json"
    ran = peers("--peers", "", "--rounds", "2", "--seconds", "0.001", "--json", str(told))
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(told.read_text())["rows"]
    assert len(rows) == len({row["work"] for row in rows}) == 12
    assert all(len(row["rates"]["production"]) == 2 and min(row["rates"]["production"]) > 0 for row in rows)


def test_a_peer_that_nobody_knows(tmp_path):
    ran = peers("--peers", "no-such-engine==1.0", "--rows", "prefix hit", "--json", str(tmp_path / "rates.json"))
    assert ran.returncode == 2
    assert ran.stderr.strip().endswith(
        "There is no player for no-such-engine==1.0; --peers takes releases of nano-vllm-fork, nano-vllm-npu, sglang, transformers, vllm."
    )
    assert not list(tmp_path.iterdir())


def test_a_ratio_is_taken_within_its_round(show):
    row = show.Measured("decode", "tokens/s", {"production": [8.0, 20.0, 30.0], "slow==1": [1.0, 2.0, 3.0], "fast==2": [4.0, 4.0, 10.0]})
    assert row.ratios("slow==1") == [8.0, 10.0, 10.0]
    assert row.ratios("fast==2") == [2.0, 3.0, 5.0]
    assert row.fastest == "fast==2"


def test_the_spread_leaves_out_an_eighth_on_either_side(show):
    assert show.spread([1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert show.spread([float(ratio) for ratio in range(16)]) == (2.0, 13.0)


def test_who_did_not_run_a_row_has_no_ratio(show):
    measured = [
        show.Measured("decode", "tokens/s", {"production": [8.0], "slow==1": [1.0]}),
        show.Measured("windows", "tokens/s", {"production": [8.0]}),
    ]
    made = show.table(measured, ("production", "slow==1"))
    assert [list(column.cells) for column in made.columns] == [
        ["decode", "windows"],
        ["8 tokens/s", "8 tokens/s"],
        ["8.0", "-"],
        ["8.0", "-"],
        ["8.0 to 8.0", "-"],
    ]


def test_the_picture_has_a_bar_for_every_ratio(show, tmp_path):
    pytest.importorskip("matplotlib")
    measured = [
        show.Measured("decode", "tokens/s", {"production": [8.0, 9.0], "slow==1": [1.0, 1.0], "fast==2": [4.0, 4.0]}),
        show.Measured("windows", "tokens/s", {"production": [30.0, 30.0], "slow==1": [10.0, 10.0]}),
    ]
    file = tmp_path / "speed.svg"
    show.drawn(measured, file)
    texts = ["".join(element.itertext()) for element in ET.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("8.5", "2.1", "3.0")] == ["8.5", "2.1", "3.0"]
    assert {"decode", "windows", "slow 1", "fast 2"} <= set(texts)
