"""The entry point for Atheris: what it says where it cannot begin, what it raises for a broken law, and a short run of libFuzzer."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys

import pytest
from toys import Leaky, Toy

from kvproof import atheris_entry
from kvproof.fuzz.programs import read_program


def test_a_broken_law_ends_the_run_and_leaves_a_shrunk_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = atheris_entry.EntryPoint(Leaky, "toys:Leaky")
    with pytest.raises(atheris_entry.Found, match=r"\(\d operations, in "):
        all(entry(random.Random(seed).randbytes(300)) is None for seed in range(40))
    [path] = (tmp_path / ".kvproof/failures").glob("*-atheris.json")
    assert len(read_program(path).ops) <= 8


def test_a_sound_cache_raises_nothing():
    entry = atheris_entry.EntryPoint(Toy, "toys:Toy")
    for seed in range(10):
        entry(random.Random(seed).randbytes(100))


def test_without_atheris_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert atheris_entry.main(["production"]) == 2
    assert "pip install 'kvproof[atheris]'" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="Atheris is not installed; pip install 'kvproof[atheris]'")
def test_libfuzzer_finds_the_canary(tmp_path):
    command = [sys.executable, "-m", "kvproof.atheris_entry", "bug:canary", "-max_total_time=60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode not in (0, 2)
    assert "Found: " in done.stdout + done.stderr
    assert list((tmp_path / ".kvproof/failures").glob("*-atheris.json"))
