"""What a check found, as text, as JUnit XML, as annotations, as a test file."""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.github import github_annotations
from kvproof.fuzz.reports.junit import junit
from kvproof.fuzz.reports.source import pytest_source
from kvproof.fuzz.reports.step_table import steps_table
from kvproof.fuzz.reports.steps import replay
from kvproof.fuzz.reports.terminal import Exhibit, show_exhibit, show_program, show_report, untested_claims, verdict_line
from kvproof.fuzz.verdicts import Finding, LawVerdict, Report
from kvproof.fuzz.waivers import Waiver
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.laws import BY_NAME, CACHE_LAWS
from kvproof.models.ops import (
    OP_TYPES,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Namespace,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import run
from kvproof.targets import find_target

EVERY_OP = {
    Admit(0, (5,) * 6, Namespace(tenant="a b")): "admit 0 tenant='a b': 5 x6",
    Admit(1, (0, 1)): "admit 1: 0 1",
    Match(0): "match 0",
    Extend(0, 3, (7,)): "extend 0 by 3, drafts 7",
    Commit(0, 1): "commit 0, 1 accepted",
    Append(0, (1, 2)): "append 0: 1 2",
    Truncate(0, 2): "truncate 0 to 2",
    Fork(0, 2): "fork 0 to 2",
    Release(0, "cancel"): "release 0 (cancel)",
    BeginStep(): "begin step",
    EndStep(): "end step 0",
    Evict((1, 2)): "evict 1 2",
    Reset(): "reset",
    SwapOut(0): "swap out 0",
    SwapIn(0): "swap in 0",
}


class ForgetsNamespaces(SynchronousAdapter):
    def admit(self, seq, prompt, namespace):
        self.cache.admit(seq, prompt, {})


class Crashes(SynchronousAdapter):
    def append(self, seq, tokens):
        raise KeyError(seq)


OPS = (Admit(0, (0,), Namespace(tenant="a")), Extend(0, 1), Commit(0), Admit(1, (0, 0)), Match(1))
REASON = "match found 1 tokens: 100%,\nnot\x00 for <this> namespace"
PROGRAM = Program(1, "tests.test_reports:ForgetsNamespaces", PoolConfig(2, 1), OPS, "1:2", Violation("hit-same-namespace", 4, REASON))


def report(**laws):
    verdicts = {law.name: LawVerdict("held", 7) for law in CACHE_LAWS}
    verdicts |= {name.replace("_", "-"): LawVerdict(verdict) for name, verdict in laws.items()}
    findings = [Finding("hit-same-namespace", REASON, PROGRAM, len(OPS))] if {"broken", "waived"} & set(laws.values()) else []
    verdict = "broken" if "broken" in laws.values() else "held"
    return Report(1, "mine", verdict, verdicts, findings, 12, 3456, 1.25, 9)


def shown(draw, *, width=80, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, markup=False, highlight=False)
    draw(console)
    return console.file.getvalue()


# -- wording ------------------------------------------------------------------------------------------------------------------------------


def test_every_operation_is_worded():
    assert {type(op) for op in EVERY_OP} == set(OP_TYPES)
    assert {op: wording.operation(op) for op in EVERY_OP} == EVERY_OP


@pytest.mark.parametrize(
    ("op", "outcome", "words"),
    [
        (Match(0), Hit(3), "hit 3"),
        (Extend(0, 1), Grant(((0, 1, 2),), (4,), 5), "adopted 5, copied 1 to 2, zeroed 4"),
        (Extend(0, 1), Grant(), ""),
        (Extend(0, 1), OutOfBlocksSeen(), "out of blocks"),
        (Fork(0, 1), RefusedSeen("not now"), "refused: not now"),
        (Fork(0, 1), RefusedSeen(), "refused"),
        (Release(0), Raised("KeyError: 0"), "raised KeyError: 0"),
        (Reset(), True, "done"),
        (Reset(), False, "could not"),
        (Evict((1,)), 1, "dropped 1"),
        (BeginStep(), 17, ""),
        (Append(0, (1,)), None, ""),
    ],
)
def test_every_answer_is_worded(op, outcome, words):
    assert wording.answer(op, outcome) == words


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("own", ["own-content"]),
        ("OWN_content", ["own-content"]),
        ("spurious", ["no-spurious-exhaustion"]),
        ("no-leek", ["no-leak"]),
        ("copy", ["copy-before-write", "copy-batch-sound", "copy-is-complete"]),
        ("", []),
        ("qqqq", []),
    ],
)
def test_closest(name, meant):
    assert wording.closest(name, BY_NAME) == meant


def test_joined():
    assert [wording.joined(["a", "b", "c"][:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


# -- steps --------------------------------------------------------------------------------------------------------------------------------


def test_replay_of_a_violation():
    again = replay(PROGRAM, ForgetsNamespaces)

    assert [row.op for row in again.rows] == list(OPS)
    assert again.violation.law == "hit-same-namespace"
    assert again.violation.step == again.rows[-1].number == 4
    assert [(h.seq, h.computed, h.known) for h in again.rows[-1].holders] == [(0, 1, 1), (1, 0, 2)]
    assert again.rows[-1].answer == "hit 1"


IDLE = (Admit(0, (0, 0)),)
OUT = (*IDLE, Extend(0, 1))
HALF = (*OUT, Commit(0))
DONE = (*HALF, Extend(0, 1), Commit(0))


@pytest.mark.parametrize(
    ("before", "op", "reason", "adapter"),
    [
        (IDLE, Admit(0, (1,)), "0 already known", SynchronousAdapter),
        (IDLE, Admit(1, ()), "empty prompt", SynchronousAdapter),
        (IDLE, Commit(3), "unknown sequence 3", SynchronousAdapter),
        (IDLE, Release(3), "unknown sequence 3", SynchronousAdapter),
        (IDLE, Commit(0), "no pass out", SynchronousAdapter),
        (OUT, Extend(0, 1), "0 has a pass out", SynchronousAdapter),
        (OUT, SwapIn(0), "not swapped out", SynchronousAdapter),
        (OUT, Commit(0, 1), "0 drafts, 1 accepted", SynchronousAdapter),
        (DONE, Extend(0, 1), "nothing to compute", SynchronousAdapter),
        (HALF, Extend(0, 0), "count below 1", SynchronousAdapter),
        ((), BeginStep(), "steps not claimed", SynchronousAdapter),
        (IDLE, Extend(0, 1, (5,)), "drafts on a first extend", SynchronousAdapter),
        (IDLE, Append(0, ()), "no tokens given", SynchronousAdapter),
        (DONE, Match(0), "tokens computed already", SynchronousAdapter),
        (DONE, Truncate(0, 3), "only 2 computed", SynchronousAdapter),
        (DONE, Truncate(0, 0), "length below 1", SynchronousAdapter),
        (IDLE, Fork(0, 0), "0 already known", SynchronousAdapter),
        ((), Evict((99,)), "no such block", SynchronousAdapter),
        (IDLE, SwapOut(0), "nothing computed yet", SynchronousAdapter),
        ((*DONE, SwapOut(0)), Append(0, (1,)), "0 is swapped out", SynchronousAdapter),
        ((*DONE, Release(0)), Append(0, (1,)), "0 was released", SynchronousAdapter),
        (OUT, Commit(0), "pass not launched", ProductionAdapter),
        ((*OUT, BeginStep()), Commit(0), "its step has not ended", ProductionAdapter),
        ((), EndStep(), "no step open", ProductionAdapter),
        ((BeginStep(), BeginStep()), EndStep(1), "not the oldest step", ProductionAdapter),
        ((BeginStep(),) * 3, BeginStep(), "3 steps open already", ProductionAdapter),
    ],
)
def test_a_skipped_operation_has_a_row_and_a_reason(before, op, reason, adapter):
    again = replay(Program(1, "x", PoolConfig(4, 1), (*before, op)), adapter)

    assert again.ok
    assert [row.number for row in again.rows] == [*range(len(before)), None]
    assert again.rows[-1].op == op
    assert again.rows[-1].answer == f"skipped: {reason}"


def test_every_operation_that_can_be_skipped_has_a_reason():
    again = replay(Program(1, "x", PoolConfig(4, 1), tuple(EVERY_OP)[2:]), SynchronousAdapter)

    assert {row.answer for row in again.rows if row.number is None} >= {"skipped: unknown sequence 0", "skipped: steps not claimed"}
    assert "skipped" not in {row.answer for row in again.rows}


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_steps_table_with_skipped_operations(width):
    program = msgspec.structs.replace(PROGRAM, ops=(Commit(3), *OPS[:3], Release(7), *OPS[3:], Commit(0)))

    lines = shown(lambda console: steps_table(console, replay(program, ForgetsNamespaces)), width=width).splitlines()

    assert max(map(len, lines)) <= width
    assert [line.split()[1] for line in lines if line.startswith(">")] == ["4"]
    assert sum("skipped:" in line for line in lines) == 2
    if width == 120:
        assert lines[1].split() == ["-", "commit", "3", "skipped:", "unknown", "sequence", "3"]


class KeepsNoBooks(SynchronousAdapter):
    @classmethod
    def capabilities(cls):
        return msgspec.structs.replace(super().capabilities(), snapshot=False)


def test_steps_table_of_a_cache_without_books():
    program = Program(1, "x", PoolConfig(3, 1), OPS[:3])

    without = shown(lambda console: steps_table(console, replay(program, KeepsNoBooks)))
    with_books = shown(lambda console: steps_table(console, replay(program, SynchronousAdapter)))

    assert "1 ? ?" in without
    assert "  blocks: in how many tables, ? unknown\n" in without
    assert "1 . ." in with_books
    assert "  blocks: reference count, . free, c free but matchable, r retiring\n" in with_books


def test_replay_of_a_fault():
    program = Program(1, "x", PoolConfig(2, 1), (Admit(0, (0,)), Commit(0), Append(0, (1,))))

    again = replay(program, Crashes)

    assert again.fault.startswith("append(0, (1,)) raised KeyError: 0")
    assert again.rows[-1].answer == "no answer"
    assert again.skipped == 1


def test_replay_of_what_cannot_be_built():
    class Unbuildable(ProductionAdapter):
        def __init__(self, **pool):
            raise ValueError("no pool")

    again = replay(PROGRAM, Unbuildable)

    assert again.rows == []
    assert "no pool" in again.trouble


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_steps_table_marks_the_violation(width):
    lines = shown(lambda console: steps_table(console, replay(PROGRAM, ForgetsNamespaces)), width=width).splitlines()

    assert [line.split()[1] for line in lines if line.startswith(">")] == ["4"]
    assert max(map(len, lines)) <= width
    assert any("hit 1" in line for line in lines)


def test_steps_table_leaves_out_what_has_no_room():
    wide, narrow = (shown(lambda c: steps_table(c, replay(PROGRAM, ForgetsNamespaces)), width=width) for width in (100, 60))

    assert "free list" in wide
    assert "free list" not in narrow
    assert "0 1/1: 0" in narrow


def test_steps_table_of_a_large_pool():
    ops = (Admit(0, (0,) * 60), Extend(0, 60), Admit(1, (1,)), Extend(1, 1))
    program = Program(1, "x", PoolConfig(64, 1), ops)

    text = shown(lambda console: steps_table(console, replay(program, SynchronousAdapter)), width=100)

    assert "reference counts" in text
    assert "60:1" in text


def test_steps_table_of_two_groups():
    program = Program(1, "x", PoolConfig(8, 2), (Admit(0, (0, 1, 2)), Extend(0, 3)))

    assert " | " in shown(lambda console: steps_table(console, replay(program, HybridAdapter)))


LONG = msgspec.structs.replace(
    PROGRAM, ops=(*(Admit(seq, (seq % 3,)) for seq in range(2, 82)), *OPS), violation=Violation("hit-same-namespace", 84, REASON)
)


def long_one(tmp_path, *, unfinished):
    program = msgspec.structs.replace(LONG, unfinished=unfinished)
    source = pytest_source(program, ForgetsNamespaces)
    return Exhibit(program, replay(program, ForgetsNamespaces), source, "hit-same-namespace", REASON, tmp_path / "long.json")


def test_of_a_long_program_only_the_end_is_shown_and_where_the_whole_is(tmp_path):
    exhibit = long_one(tmp_path, unfinished=False)

    text = shown(lambda console: show_exhibit(console, exhibit), width=200)

    assert "The shortest program found has 85 operations" in text
    assert f"The first 65 rows are left out here; `kvproof replay {exhibit.path}` tells every step" in text
    assert "admit 66" not in text
    assert "admit 67" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith(">")] == ["84"]
    assert "def test_" not in text
    assert "ran out" not in text


def test_a_program_whose_shrinking_ran_out_of_time_says_what_goes_on(tmp_path):
    exhibit = long_one(tmp_path, unfinished=True)

    text = shown(lambda console: show_exhibit(console, exhibit), width=200)

    assert "The shortest program found so far has 85 operations" in text
    assert "The time to shrink it ran out" in text
    assert f"\n    kvproof shrink {exhibit.path}\n" in text
    assert b'"unfinished":true' in msgspec.json.encode(exhibit.program)


def test_replay_shows_every_step():
    again = replay(LONG, ForgetsNamespaces)

    text = shown(lambda console: show_program(console, again, LONG, title="It"), width=200)

    assert "left out" not in text
    assert "admit 2: " in text


# -- source -------------------------------------------------------------------------------------------------------------------------------


def test_source_shows_the_violation():
    scope = {}
    source = pytest_source(PROGRAM, ForgetsNamespaces).replace("from tests.test_reports import ForgetsNamespaces\n", "")

    exec(source, {"ForgetsNamespaces": ForgetsNamespaces}, scope)

    with pytest.raises(AssertionError, match="hit-same-namespace"):
        exec(f"{source}\ntest_hit_same_namespace()", {"ForgetsNamespaces": ForgetsNamespaces})
    assert "test_hit_same_namespace" in scope


@pytest.mark.parametrize("tokens", [tuple(range(1000, 1060)), (5,) * 60, (1,)])
def test_source_makes_the_same_operations(tokens):
    ops = (*EVERY_OP, Admit(9, tokens, Namespace(tenant='it\'s, "here"', model="x" * 50)))
    program = Program(1, "production", PoolConfig(64, 2), ops)
    source = pytest_source(program, ProductionAdapter)
    scope = {}

    exec(
        source[: source.index("    result")].replace("ops = [", "global ops\n    ops = [") + "\ntest_the_adapter_keeps_the_contract()",
        scope,
    )

    assert tuple(scope["ops"]) == ops
    assert max(len(line) for line in source.splitlines() if "Namespace(" not in line) <= 88


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("production", "from kvproof.impl.production.adapter import ProductionAdapter"),
        ("mypkg.kv:Adapter", "from mypkg.kv import Adapter"),
        ("sub/../kv.py:Adapter", "Adapter = find_target('kv.py:Adapter')"),
        ("/elsewhere/kv.py:Adapter", "Adapter = find_target('/elsewhere/kv.py:Adapter')"),
        ("bug:leak", "Adapter = find_target('bug:leak')"),
        ("mypkg.kv:Outer.Adapter", "from mypkg.kv import Outer"),
        ("mypkg.kv:Outer.Adapter", "    result = run(ops, Outer.Adapter, num_blocks=2, block_size=1)"),
    ],
)
def test_source_finds_the_target(name, line):
    program = Program(1, name, PoolConfig(2, 1), OPS)

    assert line in pytest_source(program, ProductionAdapter).splitlines()


def test_source_without_operations():
    compile(pytest_source(Program(1, "production", PoolConfig(2, 1), ()), ProductionAdapter), "x", "exec")


def test_result_ok_is_what_the_source_asks():
    assert run(OPS, SynchronousAdapter, num_blocks=2, block_size=1).ok


# -- terminal -----------------------------------------------------------------------------------------------------------------------------


def exhibit():
    again = replay(PROGRAM, ForgetsNamespaces)
    return Exhibit(PROGRAM, again, pytest_source(PROGRAM, ForgetsNamespaces), "hit-same-namespace", "the reason", None)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_report_of_a_broken_law(width):
    text = shown(lambda console: show_report(console, report(hit_same_namespace="broken"), [exhibit()], waivers={}, stale={}), width=width)

    assert "hit-same-namespace is broken" in text
    assert "A match never crosses a difference" in text
    assert "The reason: The reason." in text
    assert "def test_hit_same_namespace():" in text
    assert "mine breaks 1 law: hit-same-namespace." in " ".join(text.split())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (1, "1 more program that breaks it is in failures/law-1.json."),
        (5, "5 more programs that break it are in failures: law-1.json, law-2.json, law-3.json and 2 more."),
    ],
)
def test_report_of_a_campaign_shows_one_program_of_each_law(more, told):
    exhibits = [msgspec.structs.replace(exhibit(), path=Path(f"failures/law-{number}.json")) for number in range(more + 1)]

    text = shown(lambda console: show_report(console, report(hit_same_namespace="broken"), exhibits, waivers={}, stale={}), terminal=False)

    assert text.count("hit-same-namespace is broken") == text.count("def test_") == 1
    assert "kvproof replay failures/law-0.json" in text
    assert told in text


def test_report_of_a_fault_judges_nothing():
    broken = Report(1, "mine", "error", report().laws, [], 8999, 0, 3.0, 1, error="It fell.")
    program = Program(1, "mine", PoolConfig(1, 2), ())

    text = shown(
        lambda console: show_report(
            console, broken, [], waivers={}, stale={}, error=Exhibit(program, replay(program, SynchronousAdapter), "")
        )
    )

    assert " ".join(text.split()) == (
        "It happens before any operation, where a cache is built with 1 block of 2 tokens. mine could not be judged."
    )


def test_report_for_a_log_is_plain_lines():
    laws = {"no_leak": "not-exercised", "mirror_follows": "not-applicable", "own_content": "broken"}

    text = shown(lambda console: show_report(console, report(**laws), [], waivers={}, stale={}), terminal=False)

    assert "- no-aliasing: held (exercised 7 times)\n" in text
    assert "- no-leak: not exercised\n" in text
    assert "- mirror-follows: not applicable (needs mirror)\n" in text
    assert "- own-content: BROKEN\n" in text


def test_report_of_a_waived_law():
    waiver = Waiver("hit-same-namespace", "mine", "One tenant only", "#3")

    text = shown(
        lambda console: show_report(
            console, report(hit_same_namespace="waived"), [exhibit()], waivers={"hit-same-namespace": waiver}, stale={}
        )
    )

    assert "hit-same-namespace is broken and waived: One tenant only (#3)" in text
    assert "def test_" not in text
    assert "1 law is broken and waived (hit-same-namespace)" in " ".join(text.split())


def test_verdict_lines():
    assert verdict_line(report())[0] == f"mine keeps {len(CACHE_LAWS)} laws."
    assert verdict_line(report(), stale=True)[0].endswith("but a waiver is stale.")
    assert verdict_line(report(no_leak="not-exercised"))[0].endswith("1 law was not exercised.")
    assert verdict_line(Report(1, "mine", "error", {}, [], 0, 0, 0.0, 1))[0] == "mine could not be judged."


def test_claims_that_refusals_kept_from_the_test():
    refused = report(truncate_exact="not-exercised")
    refused.refusals.update(truncate=3, fork=2)

    assert untested_claims(refused) == [("truncate", "truncate-exact")]


# -- JUnit and GitHub ---------------------------------------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_law():
    laws = {"hit_same_namespace": "broken", "no_leak": "not-exercised", "mirror_follows": "not-applicable", "own_content": "waived"}
    waivers = {"own-content": Waiver("own-content", "mine", "Known", "#3")}

    suites = ET.fromstring(junit(report(**laws), {"hit-same-namespace": "def test(): ..."}, waivers, {}))

    cases = {case.get("name"): case for case in suites.iter("testcase")}
    assert list(cases) == [law.name for law in CACHE_LAWS]
    assert suites.tag == "testsuites"
    assert {name: suites.get(name) for name in ("failures", "errors", "skipped")} == {"failures": "1", "errors": "0", "skipped": "3"}
    assert "100%" in cases["hit-same-namespace"].find("failure").get("message")
    assert cases["hit-same-namespace"].find("failure").text == "def test(): ..."
    assert "larger budget" in cases["no-leak"].find("skipped").get("message")
    assert "needs mirror" in cases["mirror-follows"].find("skipped").get("message")
    assert "Known (#3)" in cases["own-content"].find("skipped").get("message")
    assert len(cases["no-aliasing"]) == 0


def test_junit_of_an_error_claims_no_law_as_held():
    broken = Report(
        1, "mine", "error", {"no-leak": LawVerdict("held", 1), "no-aliasing": LawVerdict("held", 9)}, [], 0, 0, 0.0, 1, error="It fell."
    )
    cases = ET.fromstring(junit(broken, {}, {}, {})).iter("testcase")
    judged = {case.get("name"): [child.tag for child in case] for case in cases}
    assert judged == {"no-leak": ["skipped"], "no-aliasing": ["skipped"], "target": ["error"]}


def test_junit_of_an_error_and_of_a_stale_waiver():
    broken = Report(1, "mine", "error", {"no-leak": LawVerdict("held", 1)}, [], 0, 0, 0.0, 1, error="It fell.")

    suites = ET.fromstring(junit(broken, {}, {}, {"no-leak": "Remove it."}))

    assert suites.find(".//error").get("message") == "It fell."
    assert suites.find(".//failure").get("message") == "Remove it."


def test_github_annotations_are_escaped():
    lines = github_annotations(report(hit_same_namespace="broken"), {"a:b,c": "stale"}, int)

    assert lines == [
        "::error title=hit-same-namespace::match found 1 tokens: 100%25,%0Anot\x00 for <this> namespace",
        "::error title=a%3Ab%2Cc::stale",
    ]


def test_github_is_silent_about_waived_laws():
    assert github_annotations(report(hit_same_namespace="waived"), {}, int) == []
    assert github_annotations(Report(1, "m", "error", {}, [], 0, 0, 0.0, 1, error="It fell."), {}, int) == ["::error title=m::It fell."]


@pytest.mark.parametrize("root", ["", "elsewhere"])
def test_github_shows_a_broken_law_at_the_class(tmp_path, monkeypatch, root):
    """Paths are those of the checkout, also where kvproof runs in a folder of it."""
    (tmp_path / "kv, cache.py").write_text("import os\n\nclass Adapter:\n    pass\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / root)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    [line] = github_annotations(report(hit_same_namespace="broken"), {}, find_target(f"{tmp_path}/kv, cache.py:Adapter"))
    assert line.startswith("::error title=hit-same-namespace,file=kv%2C cache.py,line=3::match found")
