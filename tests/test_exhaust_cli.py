"""`kvproof exhaust` as a user types it."""

from __future__ import annotations

import pytest

from kvproof.cli import main

LITTLE = ("--scope", "tiny", "--without", "swapout", "--without", "append", "--without", "fork", "--without", "evict")


def test_it_says_in_words_what_was_exhausted(capfd, tmp_path):
    picture = tmp_path / "states.svg"
    assert main(["exhaust", "production-sync", *LITTLE, "--picture", str(picture)]) == 0
    out = capfd.readouterr().out
    assert "Exhausted: every such program, however long, ends in one of" in out
    assert "left out: append, evict, fork and swapout" in out
    assert picture.read_text().startswith("<svg")


def test_it_says_how_far_it_came_and_goes_on(capfd, tmp_path):
    state = str(tmp_path / "state.kvx")
    assert main(["exhaust", "production-sync", *LITTLE, "--depth", "2", "--state", state]) == 0
    assert "Not exhausted: every such program of up to 2 operations was tried" in capfd.readouterr().out
    assert main(["exhaust", "production-sync", *LITTLE, "--state", state]) == 0
    assert "Exhausted" in capfd.readouterr().out


def test_a_broken_law_is_told_and_kept(capfd, tmp_path):
    assert main(["exhaust", "bug:canary", "--scope", "small", "--failures", str(tmp_path)]) == 1
    assert "no-aliasing is broken" in capfd.readouterr().out
    [file] = tmp_path.glob("no-aliasing-*.json")
    assert main(["replay", str(file)]) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("production", "--without", "nonsense"), "There is no operation 'nonsense'"),
        (("kvproof.targets:BadTarget",), "is no cache"),
        (("production", "--block-size", "5"), "takes no pool of"),
    ],
)
def test_a_request_that_cannot_be_met_gets_one_sentence(capfd, arguments, sentence):
    assert main(["exhaust", *arguments]) == 2
    assert sentence in capfd.readouterr().err
