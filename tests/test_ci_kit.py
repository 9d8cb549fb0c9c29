"""The CI kit: SARIF, the text of an issue, and workflows whose commands are commands of this release."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from toys import Faulty, Leaky

from kvproof.cli import cli, main
from kvproof.fuzz.check import check
from kvproof.fuzz.reports.issue import issue
from kvproof.fuzz.reports.sarif import FAULT, sarif
from kvproof.fuzz.verdicts import Finding
from kvproof.models.laws import LAWS
from kvproof.models.ops import Admit

ROOT = Path(__file__).parent.parent
FILES = [*sorted((ROOT / "examples/ci").glob("*.yml")), ROOT / "docs/ci.md"]
COMMAND = re.compile(r"^\s*(?:- )?(?:run: )?(kvproof fuzz .*)$", re.MULTILINE)


def report_on(target):
    return check(target, name=f"toys:{target.__name__}", seconds=60, seed=1, programs=40)


def test_sarif_has_a_rule_for_each_law_and_a_result_for_each_finding():
    report = report_on(Leaky)
    data = json.loads(sarif(report, Leaky))
    assert data["version"] == "2.1.0"
    [run] = data["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == sorted({finding.law for finding in report.violations})
    assert len(run["results"]) == len(report.violations)
    for result, finding in zip(run["results"], report.violations, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding.law
        assert result["level"] == "error"
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].endswith("toys.py")
        source = Path(__file__).with_name("toys.py").read_text().splitlines()
        assert source[place["region"]["startLine"] - 1].startswith("class Leaky")
        assert "admit 0: " in result["message"]["text"]


def test_sarif_of_a_waived_law_is_a_note_and_of_a_fault_an_error():
    waived = check(Leaky, name="toys:Leaky", seconds=60, seed=1, programs=40, waived=frozenset({"no-leak"}))
    levels = {result["ruleId"]: result["level"] for result in json.loads(sarif(waived, Leaky))["runs"][0]["results"]}
    assert levels["no-leak"] == "note"
    [result] = json.loads(sarif(report_on(Faulty), Faulty))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == (FAULT, "error")
    assert "must return kvproof.Grant" in result["message"]["text"]


def test_an_issue_has_a_title_the_law_the_steps_and_a_test():
    findings = report_on(Leaky).violations
    title, blank, *body = issue(findings, "toys:Leaky", Leaky, seed=7, programs=40).splitlines()
    assert title == f"kvproof: toys:Leaky breaks {' and '.join(sorted({finding.law for finding in findings}))}"
    assert blank == ""
    text = "\n".join(body)
    assert "seed 7" in text
    assert "0. `admit 0: " in text
    code = text.partition("```python\n")[2].partition("```")[0]
    compile(code, "issue", "exec")


def test_the_title_of_an_issue_tells_laws_and_faults_apart():
    broken, fault = report_on(Leaky).violations[0], Finding("", "commit(0, 0) hung.", "seed 1", 1)
    titles = [issue(found, "toys:Toy", Leaky, seed=7, programs=40).splitlines()[0] for found in ([broken], [fault], [broken, fault])]
    law = f"kvproof: toys:Toy breaks {broken.law}"
    assert titles == [law, "kvproof: toys:Toy is at fault", f"{law}; it is at fault"]


def test_an_issue_tells_of_each_law_the_shortest_failure_and_counts_the_others():
    found = report_on(Leaky).violations[0]
    longer = msgspec.structs.replace(found, reason="the longer one", steps=found.steps + 1)
    text = issue([longer, longer, found], "toys:Leaky", Leaky, seed=7, programs=40)
    assert text.count(f"## {found.law}") == text.count("```python") == 1
    assert "found 3 new failures" in text
    assert "The failure files have 2 more failures of this law, each with another cause." in text
    assert re.search(rf"It is in the failure file `{found.law}-[0-9a-f]{{8}}\.json`", text)
    assert "the longer one" not in text.lower()


def test_an_issue_and_an_alert_tell_the_end_of_a_long_program_and_that_the_time_to_shrink_it_ran_out():
    found = report_on(Leaky).violations[0]
    ops = (*(Admit(seq, (1,)) for seq in range(100, 180)), *found.program.ops)
    program = msgspec.structs.replace(found.program, ops=ops, unfinished=True)
    long = msgspec.structs.replace(found, program=program, steps=len(ops))
    missing = len(ops) - 20
    text = issue([long], "toys:Leaky", Leaky, seed=7, programs=40)
    assert f"the first {missing} of them left out here:\n\n{missing}. `admit {100 + missing}" in text
    assert "```python" not in text
    assert "The time to shrink it ran out, so there may well be a shorter one; `kvproof shrink FILE` goes on." in text
    [result] = json.loads(sarif(msgspec.structs.replace(report_on(Leaky), violations=[long]), Leaky))["runs"][0]["results"]
    assert f": {missing} operations that are left out here; admit {100 + missing}: 1; " in result["message"]["text"]


def test_an_issue_does_not_speak_of_a_waived_law(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    waiver = '[[waiver]]\nlaw = "pool-conserved"\ntarget = "bug:trimmed-blocks-are-lost"\nreason = "known"\nreference = "#1"\n'
    (tmp_path / "waivers.toml").write_text(waiver)
    arguments = ["fuzz", "bug:trimmed-blocks-are-lost", "--programs", "60", "-n", "1", "--seed", "1", "--issue", "issue.md"]
    assert main([*arguments, "--directory", "one"]) == 1
    assert (tmp_path / "issue.md").read_text().count("\n## ") == 1
    (tmp_path / "issue.md").unlink()
    assert main([*arguments, "--directory", "two", "--waivers", "waivers.toml"]) == 0
    assert not (tmp_path / "issue.md").exists()


def test_an_issue_fits_into_what_github_takes():
    case = "Case('attend', tokens=(" + "0, " * 10_000 + "))"
    findings = [Finding(law.name, "it is so.", case, 1) for law in LAWS]
    title, _, body = issue(findings, "toys:Leaky", Leaky, seed=7, programs=40).partition("\n")
    told = [law.name for law in LAWS if f"## {law.name}\n" in body]
    assert len(title) <= 256
    assert title.endswith(f"and {len(LAWS) - 3} more laws")
    assert len(told) == 1
    assert len(body) <= 65_536
    assert all(law.name in body for law in LAWS), "what has no room is named"


def test_a_campaign_writes_an_issue_only_for_what_is_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["fuzz", "bug:canary", "--batch", "20", "-n", "1", "--seed", "1", "--sarif", "found.sarif"]
    assert main([*arguments, "--programs", "20", "--issue", "issue.md"]) == 1
    assert (tmp_path / "issue.md").read_text().startswith("kvproof: bug:canary ")
    assert json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert main(["fuzz", "production-sync", "--programs", "10", "-n", "1", "--issue", "none.md"]) == 0
    assert not (tmp_path / "none.md").exists()
    assert main(["fuzz", "bug:canary", "-n", "1", "--mode", "replay", "--issue", "again.md"]) == 1
    assert not (tmp_path / "again.md").exists()


def commands():
    return [(path.name, command.partition(" #")[0].partition(" ||")[0]) for path in FILES for command in COMMAND.findall(path.read_text())]


def test_the_workflows_have_commands():
    assert {name for name, _ in commands()} == {path.name for path in FILES}


@pytest.mark.parametrize(("file", "command"), commands())
def test_a_command_of_a_workflow_is_one_of_this_release(file, command):
    fuzz = cli.commands["fuzz"]
    context = fuzz.make_context("fuzz", shlex.split(command)[2:], resilient_parsing=False)
    assert context.params["target"].startswith("mypkg.")
