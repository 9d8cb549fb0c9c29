"""The commands about traces: exit statuses, files, and one clear sentence for every error."""

import contextlib
import itertools
import json
import random
import re
import xml.etree.ElementTree as ET

import pytest

import kvproof
from kvproof.cli import main
from kvproof.fuzz.bugs import BUGS
from kvproof.impl.production.adapter import SynchronousAdapter
from kvproof.models.laws import CACHE_LAWS


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def serve(adapter, path, **options):
    """A short serving workload, recorded."""
    rng, numbers, known = random.Random(3), itertools.count(), {}
    pool = {"num_blocks": 24, "block_size": 4}
    with kvproof.record(adapter(**pool), path, **pool, **options) as cache:
        for _ in range(40):
            while len(known) < 3:
                seq = next(numbers)
                known[seq] = (1, 2, 3, 4, 5, *(rng.randrange(100) for _ in range(rng.randrange(1, 5))))
                cache.admit(seq, known[seq])
                cache.match(seq)
                cache.extend(seq, len(known[seq]))
                cache.commit(seq)
            for seq in list(known):
                cache.append(seq, (rng.randrange(100),))
                cache.extend(seq, 1)
                cache.commit(seq)
                if rng.random() < 0.1:
                    cache.release(seq, "finish")
                    del known[seq]
    return path


@pytest.fixture
def clean(tmp_path):
    return serve(SynchronousAdapter, tmp_path / "clean.jsonl", target="production-sync")


@pytest.fixture
def broken(tmp_path):
    """A trace of the canary: it gives a block twice to the first sequence that needs two."""
    path = tmp_path / "broken.jsonl"
    with kvproof.record(BUGS["canary"].adapter(num_blocks=8, block_size=2), path, num_blocks=8, block_size=2, target="bug:canary") as cache:
        for seq in range(3):
            cache.admit(seq, (1, 2, 3, 4))
            cache.extend(seq, 4)
            cache.commit(seq)
            with contextlib.suppress(Exception):  # the canary's books are broken by then; the recorder hands its own complaint on
                cache.release(seq, "finish")
    return path


def test_a_clean_trace_ends_with_0(run, clean):
    status, out, err = run("audit", clean)
    assert (status, err) == (0, "")
    assert "- own-content: proved" in out
    assert "- mirror-follows: cannot be told, because the recorded cache does not claim mirror" in out
    assert "breaks no law" in out
    assert "hit rate" in out


def test_a_broken_trace_ends_with_1_and_says_where(run, broken):
    status, out, _ = run("audit", broken)
    assert status == 1
    assert "no-aliasing is broken by operation 1, on line 3" in out
    assert "The reason: Sequence 0 lists block" in out


def test_the_report_as_json_and_junit(run, clean, broken, tmp_path):
    assert run("audit", clean, "--json", "report.json", "--junit", "report.xml")[0] == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["kvproof"], report["verdict"], report["violations"]) == (1, "proved", [])
    assert report["laws"].keys() == {law.name for law in CACHE_LAWS}
    assert report["laws"]["swap-round-trip"] == {"verdict": "unknown", "because": "nothing that happened in it put this law to the test"}
    suite = ET.parse(tmp_path / "report.xml").getroot()
    assert (suite.get("failures"), suite.get("tests")) == ("0", str(len(CACHE_LAWS)))
    assert run("audit", broken, "--json", "-", "--junit", "report.xml")[0] == 1
    failures = ET.parse(tmp_path / "report.xml").getroot().iter("failure")
    assert [failure.get("type") for failure in failures] == ["no-aliasing"]


def test_json_on_stdout_is_nothing_but_json(run, broken):
    _, out, err = run("audit", broken, "--json", "-")
    assert json.loads(out)["violations"][0]["line"] == 3
    assert "no-aliasing is broken" in err


def test_a_damaged_line_ends_with_2_and_is_named(run, clean):
    lines = clean.read_bytes().splitlines(keepends=True)
    clean.write_bytes(b"".join([*lines[:50], *lines[51:]]))
    status, _, err = run("audit", clean)
    assert status == 2
    assert err.count("\n") == 1
    assert "line 51 holds operation 50, where operation 49 should be; add --tolerant to audit the rest" in err
    status, out, _ = run("audit", clean, "--tolerant")
    assert status == 0
    assert "could not be judged" in out


@pytest.mark.parametrize("command", ["audit", "stats", "export"])
def test_what_is_no_trace_ends_with_2(run, command, tmp_path):
    for name, text in (
        ("empty.jsonl", ""),
        ("program.json", '{"kvproof": 1, "target": "x", "config": {}, "ops": []}'),
        ("other", "poem\n"),
    ):
        (tmp_path / name).write_text(text)
        status, out, err = run(command, name)
        assert (status, out) == (2, "")
        assert err.startswith("kvproof: ")
        assert err.count("\n") == 1
    assert "cannot be read: No such file" in run(command, "missing")[2]
    assert "cannot be read: Is a directory" in run(command, ".")[2] or "is a directory" in run(command, ".")[2]


def test_a_stream_of_events_is_recognised(run, tmp_path):
    (tmp_path / "events.jsonl").write_text(
        '[0.5, [["BlockStored", [1], null, [5, 6], 2, null], ["BlockStored", [1], null, [5, 7], 2, null]]]\n'
    )
    status, out, _ = run("audit", "events.jsonl")
    assert status == 1
    assert "hit-is-true-prefix is broken" in out
    assert "- no-leak: cannot be told" in out


def test_numbers_for_an_operator(run, clean, tmp_path):
    status, out, _ = run("stats", clean, "--bytes-per-token", 1024, "--json", "figures.json")
    assert status == 0
    for told in (
        "effective over allocated",
        "tail waste in bytes",
        "external fragmentation",
        "hit rate",
        "evictions",
        "p99",
        "held blocks",
    ):
        assert told in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["operations"]["extend"] == figures["operations"]["commit"]
    assert 0 < figures["efficiency"] <= 1
    assert figures["adopted_tokens"] <= figures["prompt_tokens"]
    assert figures["durations"]["extend"]["p50"] <= figures["durations"]["extend"]["most"]


def test_numbers_where_a_table_has_no_room(run, clean, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    status, out, _ = run("stats", clean)
    assert status == 0
    assert re.search(r"^- hit rate: [\d.]+%, \d+ of \d+ prompt tokens were adopted$", out, re.MULTILINE)


def test_a_plot(run, clean, tmp_path):
    pytest.importorskip("matplotlib")
    assert run("stats", clean, "--plot", "plot.svg")[0] == 0
    assert "held blocks" in (tmp_path / "plot.svg").read_text()


def test_a_plot_of_a_kind_that_nobody_asked_for_is_one_sentence(run, clean, tmp_path):
    status, _, err = run("stats", clean, "--plot", "plot.xyz")
    assert (status, err) == (2, "kvproof: plot.xyz cannot be drawn; name a file that ends in .svg, .png or .pdf.\n")
    assert not (tmp_path / "plot.xyz").exists()


def test_a_trace_without_operations_is_no_proof(run, clean, tmp_path):
    header = clean.read_text().partition("\n")[0]
    (tmp_path / "idle.jsonl").write_text(f"{header}\n")
    for command in (("audit",), ("audit", "--tolerant"), ("stats",)):
        status, _, err = run(*command, tmp_path / "idle.jsonl")
        assert (status, err.count("\n")) == (2, 1)
        assert "holds no operation that can be judged" in err


def test_a_plot_without_matplotlib_names_what_to_install(run, clean, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    status, _, err = run("stats", clean, "--plot", "plot.svg")
    assert status == 2
    assert "pip install 'kvproof[plots]'" in err


@pytest.mark.parametrize("kind", ["perfetto", "itf"])
def test_exports(run, clean, kind, tmp_path):
    status, out, _ = run("export", clean, "--to", kind, "--first", 10, "--count", 20)
    assert (status, out) == (0, f"Wrote 20 operations to {tmp_path / f'clean.{kind}.json'}.\n")
    json.loads((tmp_path / f"clean.{kind}.json").read_text())


def test_a_trace_is_shrunk_and_replayed(run, broken, tmp_path):
    status, out, _ = run("shrink", broken, "--seconds", 5)
    assert status == 1
    assert "had 2 operations; the shortest program found has 2 operations" in out
    assert (tmp_path / "broken.shrunk.json").exists()
    status, out, _ = run("replay", broken)
    assert status == 1
    assert "no-aliasing breaks again at step 1" in out


def test_a_program_is_run_and_recorded(run, broken, tmp_path):
    assert run("shrink", broken, "--seconds", 5)[0] == 1
    status, out, _ = run("record", "broken.shrunk.json")
    assert (status, out.splitlines()[0]) == (1, "Wrote 2 operations to broken.shrunk.jsonl.")
    status, out, _ = run("audit", "broken.shrunk.jsonl")
    assert (status, "no-aliasing is broken by operation 1, on line 3" in out) == (1, True)
    status, out, _ = run("record", "broken.shrunk.json", "production-sync", "-o", "sound.jsonl")
    assert (status, out) == (0, "Wrote 2 operations to sound.jsonl.\n")
    assert run("stats", "sound.jsonl")[0] == 0
    assert run("record", "missing.json")[0] == 2


def test_what_is_no_program_is_not_recorded(run, clean, tmp_path):
    status, _, err = run("record", clean)
    assert (status, err) == (2, f"kvproof: {clean} is a trace already; judge it with `kvproof audit {clean}`.\n")
    (tmp_path / "pool.json").write_text(
        '{"kvproof": 1, "target": "production-sync", "config": {"num_blocks": 0, "block_size": 1}, "ops": []}'
    )
    status, _, err = run("record", "pool.json")
    assert (status, err) == (2, "kvproof: pool.json is damaged: its pool has 0 blocks of 1 tokens, and both must be 1 or more.\n")
    assert not list(tmp_path.glob("pool.jsonl"))


def test_a_clean_trace_is_replayed_on_another_target(run, clean):
    status, out, _ = run("replay", clean, "production-sync")
    assert status == 0
    assert "No law breaks" in out
