"""The examples run, and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.cli import main
from kvproof.models.laws import CACHE_LAWS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def place(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


def check(target, tmp_path):
    return main(["check", target, "--seed", "1", "-n", "1", "--programs", "60", "--budget", "9", "--failures", str(tmp_path)])


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_the_minimal_adapter_holds(tmp_path):
    assert check("examples/minimal_adapter.py:Adapter", tmp_path) == 0


def test_the_double_free_is_found(tmp_path, capsys):
    assert check("examples/double_free.py:DoubleFree", tmp_path) == 1
    assert "no-aliasing" in capsys.readouterr().out.rpartition("breaks")[2]


def test_the_failure_file_shows_it(capsys):
    assert main(["replay", "examples/double_free.json"]) == 1
    assert "no-aliasing breaks again at step 3: Sequence 0 lists block 0 twice." in capsys.readouterr().out


def test_replay_as_a_library():
    ran = python("examples/replay_a_failure.py", "examples/double_free.json")

    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-3:] == [
        "3  Extend(seq=0, count=3)       block tables: {0: [0, 0]}",
        "recorded: no-aliasing",
        "now:      no-aliasing",
    ]


def test_a_batch_is_served_as_the_page_shows():
    pytest.importorskip("torch")
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    shown = page.partition("$ python examples/serve_a_batch.py\n")[2].partition("```")[0]
    ran = python("examples/serve_a_batch.py")

    assert ran.stderr == ""
    assert [line.rstrip() for line in ran.stdout.splitlines()] == shown.splitlines()


def test_the_scheduler_does_what_the_page_shows():
    page = (ROOT / "docs/production-cache.md").read_text(encoding="utf-8")
    shown = page.partition("$ python examples/scheduler.py\n")[2].partition("```")[0]
    ran = python("examples/scheduler.py")

    assert ran.stderr == ""
    assert ran.stdout == shown


@pytest.mark.parametrize("num_blocks", range(5, 24))
def test_the_scheduler_serves_whatever_fits_the_pool(num_blocks, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import scheduler

    from kvproof.impl.production import PagedCache

    cache = PagedCache(num_blocks, 4)
    served = scheduler.Scheduler(cache, chunk_tokens=5)
    for seq in range(6):
        served.submit(seq, [1, 2, 3, 4, seq, 6, 7][: 3 + seq], new_tokens=1 + 2 * seq, tenant="ab"[seq % 2])
    finished = {}
    while served.waiting or served.running:
        finished.update(served.step())
    assert {seq: len(tokens) for seq, tokens in finished.items()} == {seq: min(7, 3 + seq) + 1 + 2 * seq for seq in range(6)}
    assert cache.stats().used_blocks == 0


def test_one_line_in_pytest(tmp_path):
    ran = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "it"), "--kv-budget", "1", "examples/test_my_cache.py"
    )

    assert ran.returncode == 0, ran.stdout
    counts = re.findall(r"(\d+) (?:passed|skipped)", ran.stdout.splitlines()[-1])
    assert sum(map(int, counts)) == len(CACHE_LAWS)
