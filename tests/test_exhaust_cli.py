"""`kvproof exhaust` as a user types it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from kvproof.cli import main
from kvproof.fuzz.exhaust.scope import SCOPES
from kvproof.fuzz.exhaust.search import Search
from kvproof.impl.production.adapter import SynchronousAdapter

LITTLE = ("--scope", "tiny", "--without", "swapout", "--without", "append", "--without", "fork", "--without", "evict")


def test_it_says_in_words_what_was_exhausted(capfd, tmp_path):
    picture = tmp_path / "states.svg"
    assert main(["exhaust", "production-sync", *LITTLE, "--picture", str(picture)]) == 0
    out = capfd.readouterr().out
    assert "Exhausted: every such program, however long, ends in one of" in out
    assert "left out: append, evict, fork and swapout" in out
    assert out.endswith("broke none of them.\n"), "the last line is the verdict, as elsewhere"
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


def test_an_operation_that_does_not_return_is_a_fault(capfd, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom kvproof.impl.production.adapter import SynchronousAdapter\n\n"
        "class Slow(SynchronousAdapter):\n    def extend(self, *given):\n        time.sleep(60)\n"
    )
    assert main(["exhaust", f"{tmp_path}/slow.py:Slow", "--scope", "tiny", "--op-seconds", "0.2", "--failures", str(tmp_path)]) == 2
    assert "ran for more than 0.2 s" in capfd.readouterr().out


UNDERIVED = """
from toys import Toy

class Cache:
    def __init__(self, *, num_blocks, block_size):
        self.toy = Toy(num_blocks=num_blocks, block_size=block_size)

    capabilities = Toy.capabilities
"""


@pytest.mark.parametrize(
    "command", [("exhaust", "--scope", "tiny"), ("race", "--mode", "random", "--seconds", "2", "--scenario", "last-blocks")]
)
def test_a_cache_need_not_derive_from_the_adapter(capfd, tmp_path, monkeypatch, command):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    methods = ("admit", "extend", "commit", "append", "release", "block_table", "snapshot")
    delegates = [f"    def {name}(self, *given):\n        return self.toy.{name}(*given)\n" for name in methods]
    (tmp_path / "underived.py").write_text("\n".join([UNDERIVED, *delegates]))
    assert main(
        [command[0], f"{tmp_path}/underived.py:Cache", *command[1:], *(["--failures", str(tmp_path)] if command[0] == "exhaust" else [])]
    ) in (0, 1)
    assert "is no cache" not in capfd.readouterr().err


def test_a_scope_in_which_nothing_is_computed_says_nothing_of_the_cache(capfd, tmp_path):
    toys = f"{Path(__file__).with_name('toys.py')}:RefusingAll"
    assert main(["exhaust", toys, "--scope", "tiny"]) == 2
    assert "No pass was committed in any program of this scope, and a cache that computes nothing keeps every law" in capfd.readouterr().err
    assert main(["exhaust", toys, "--scope", "tiny", "--without", "commit"]) == 0


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_it_after_the_state_at_work_and_what_was_done_is_kept(number, tmp_path, monkeypatch, capfd):
    expand = Search._expand

    def interrupted(search, state):
        expand(search, state)
        if state == 20:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Search, "_expand", interrupted)
    path = tmp_path / "state.kvx"
    before = signal.getsignal(number)
    assert main(["exhaust", "production-sync", *LITTLE, "--seconds", "600", "--state", str(path)]) == 0
    assert "Not exhausted" in capfd.readouterr().out
    assert signal.getsignal(number) is before
    scope = msgspec.structs.replace(SCOPES["tiny"], without=frozenset({"append", "evict", "fork", "swapout"}))
    assert Search.load(path, SynchronousAdapter, "production-sync", scope).done == 21


def test_a_search_that_is_killed_has_been_kept_on_the_way(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    path = tmp_path / "state.kvx"
    save = Search.save
    monkeypatch.setattr("kvproof.exhaust_cli.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("kvproof.fuzz.exhaust.search.REPORT_SECONDS", 0.0)

    def killed(search, place):
        save(search, place)
        if search.done > 10:
            raise Killed

    monkeypatch.setattr(Search, "save", killed)
    with pytest.raises(Killed):
        main(["exhaust", "production-sync", *LITTLE, "--state", str(path)])
    monkeypatch.setattr(Search, "save", save)
    assert main(["exhaust", "production-sync", *LITTLE, "--state", str(path)]) == 0
