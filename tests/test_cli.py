"""The command line: exit statuses, files, and one clear sentence for every error."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from kvproof import adapter_template, schemas
from kvproof.cli import main
from kvproof.fuzz.programs import BadFile, PoolConfig, Program, read_program, write_program
from kvproof.fuzz.reports.lawbook import laws_markdown
from kvproof.fuzz.verdicts import Finding, LawVerdict, Report
from kvproof.models.laws import CACHE_LAWS, LAWS
from kvproof.models.ops import Admit, Append, Commit, Extend, Match, Namespace, Release
from kvproof.models.spec import Violation
from kvproof.skeleton import skeleton

ROOT = Path(__file__).parent.parent

TARGETS = """
from kvproof import Refused
from kvproof.adapter_template import Adapter
from kvproof.impl.production.adapter import SynchronousAdapter


class Leaky(Adapter):
    def release(self, seq, reason):
        self.cache.tables.pop(seq, None)
        super().release(seq, reason)


class Blind(SynchronousAdapter):
    def admit(self, seq, prompt, namespace):
        self.cache.admit(seq, prompt, {})


class Flaky(SynchronousAdapter):
    built = 0

    def __init__(self, **pool):
        super().__init__(**pool)
        Flaky.built += 1

    def admit(self, seq, prompt, namespace):
        self.cache.admit(seq, prompt, {} if Flaky.built % 2 else {"tenant": namespace.tenant})


class Crashing(Adapter):
    def append(self, seq, tokens):
        raise KeyError(seq)


class Hanging(Adapter):
    def append(self, seq, tokens):
        while True:
            pass


class Unbuildable(Adapter):
    def __init__(self, **pool):
        raise ValueError("no pool")


class Unclaimed(Adapter):
    @classmethod
    def capabilities(cls):
        return None


class Refusing(SynchronousAdapter):
    def truncate(self, seq, length):
        raise Refused
"""

SIXTY = ("--programs", "60", "--budget", "60", "--seed", "1", "-n", "1")
BLIND_OPS = (Admit(0, (0,), Namespace(tenant="a")), Extend(0, 1), Commit(0), Admit(1, (0, 0)), Match(1))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("GITHUB_ACTIONS", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "caches_of_cli.py").write_text(TARGETS)
    yield tmp_path
    sys.modules.pop("caches_of_cli", None)


@pytest.fixture
def kvproof(capsys):
    """Run the command line; what it gives is (status, stdout, stderr)."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def one_sentence(err):
    assert re.fullmatch(r"kvproof: [^\n]+[.?]\n", err), err
    assert "Traceback" not in err
    return err


def failure(path="failing.json", ops=BLIND_OPS, target="caches_of_cli:Blind", law="hit-same-namespace", **more):
    violation = Violation(law, 4, "as recorded") if law else None
    program = Program(1, target, PoolConfig(2, 1), ops, violation=violation, **more)
    write_program(Path(path), program)
    return path


# -- check --------------------------------------------------------------------------------------------------------------------------------


def test_a_check_that_tried_nothing_proves_nothing(kvproof, tmp_path):
    status, out, err = kvproof("check", "production-sync", "--budget", "0.000001", "-n", "1", "--json", tmp_path / "r.json")

    assert (status, "keeps" in out) == (2, False)
    assert one_sentence(err).endswith("so nothing is known of production-sync; give a larger --budget.\n")
    assert not (tmp_path / "r.json").exists()


def test_check_of_a_cache_that_holds(kvproof, place):
    status, out, err = kvproof("check", "production-sync", *SIXTY)

    assert (status, err) == (0, "")
    assert "- own-content: held" in out
    assert "with 60 programs" in out
    assert "the seed is 1." in out
    assert not (place / ".kvproof").exists()


def test_check_says_first_what_is_judged(kvproof):
    out = kvproof("check", "caches_of_cli:Leaky", *SIXTY)[1]

    assert out.splitlines()[0] == "kvproof check caches_of_cli:Leaky: budget 60 s, at most 60 programs, 1 worker, seed 1"
    assert "Without a TARGET, production is judged" in " ".join(kvproof("check", "--help")[1].split())


def test_check_of_a_broken_cache(kvproof, place):
    status, out, err = kvproof("check", "caches_of_cli:Leaky", *SIXTY)

    assert (status, err) == (1, "")
    path = Path(re.search(r"kvproof replay (\S+)", out)[1])
    assert path.parent == Path(".kvproof/failures")
    assert read_program(path).violation.law in out
    assert re.search(r"^caches_of_cli:Leaky breaks \d laws?: .*\.$", out, re.MULTILINE)
    assert kvproof("replay", path)[0] == 1


def test_the_printed_test_stands_alone(kvproof, place):
    _, out, _ = kvproof("check", "caches_of_cli:Blind", *SIXTY)
    (place / "test_pasted.py").write_text(re.search(r"^from [\s\S]+?assert [^\n]+\n", out, re.MULTILINE)[0])

    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_pasted.py"], capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert "hit-same-namespace" in ran.stdout


@pytest.mark.parametrize(("target", "words"), [("Crashing", "raised KeyError: "), ("Hanging", " hung: ")])
def test_check_of_a_faulty_adapter(kvproof, target, words):
    status, out, err = kvproof("check", f"caches_of_cli:{target}", *SIXTY, "--op-seconds", "0.5")

    assert status == 2
    assert words in one_sentence(err)
    assert f"caches_of_cli:{target} could not be judged." in out
    assert "own-content" not in out
    assert "was tried with" not in out
    assert "The shortest program found for this fault has 2 operations" in out
    path = re.search(r"kvproof replay (\S+)", out)[1]
    status, _, err = kvproof("replay", path, "--op-seconds", "0.5")
    assert status == 2
    one_sentence(err)


def test_check_of_a_cache_that_cannot_be_built(kvproof):
    status, out, err = kvproof("check", "caches_of_cli:Unbuildable", *SIXTY)

    assert status == 2
    assert "raised ValueError: no pool" in one_sentence(err)
    assert "It happens before any operation, where a cache is built with " in out
    assert "was tried with" not in out


def test_check_of_an_adapter_without_capabilities(kvproof):
    status, out, err = kvproof("check", "caches_of_cli:Unclaimed", *SIXTY)

    assert status == 2
    assert "capabilities() returned" in one_sentence(err)
    assert "- own-content" not in out


def test_check_tells_what_refusals_kept_from_the_test(kvproof):
    status, out, _ = kvproof("check", "caches_of_cli:Refusing", *SIXTY)

    assert status == 0
    assert re.search(r"It refused truncate \d+ times\.", out)
    assert "It claims truncate, but nothing that it did not refuse put truncate-exact to the test." in out


def test_json_file(kvproof, place):
    kvproof("check", "caches_of_cli:Leaky", *SIXTY, "--json", "sub/report.json")

    content = json.loads((place / "sub/report.json").read_text())
    assert msgspec.convert(content, Report).verdict == "broken"
    assert list(content["laws"]) == [law.name for law in CACHE_LAWS]
    assert set(content["violations"][0]) == {"law", "reason", "program", "steps"}
    assert {"kvproof", "target", "programs", "operations", "seconds", "seed"} <= set(content)


def test_json_on_stdout_is_nothing_but_json(kvproof, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    status, out, err = kvproof("check", "caches_of_cli:Leaky", *SIXTY, "--json", "-")

    assert status == 1
    assert json.loads(out)["verdict"] == "broken"
    assert "::error title=" in err


def test_junit_file(kvproof, place):
    kvproof("check", "caches_of_cli:Leaky", *SIXTY, "--junit", "report.xml")

    assert int(ET.parse(place / "report.xml").getroot().get("failures")) >= 1


def test_annotations(kvproof, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    assert re.search(
        r"^::error title=[a-z-]+,file=caches_of_cli.py,line=\d+::", kvproof("check", "caches_of_cli:Leaky", *SIXTY)[1], re.MULTILINE
    )
    assert "::error" not in kvproof("check", "production-sync", *SIXTY)[1]


def test_files_that_cannot_be_written(kvproof):
    status, out, err = kvproof("check", "production-sync", *SIXTY, "--junit", "caches_of_cli.py/report.xml")

    assert status == 2
    assert "caches_of_cli.py/report.xml cannot be written" in one_sentence(err)
    assert "production-sync keeps" in out


def test_a_broken_law_outweighs_a_file_that_cannot_be_written(kvproof):
    Path("taken").mkdir()
    (Path("taken") / "failures").write_text("")

    status, _, err = kvproof("check", "caches_of_cli:Leaky", *SIXTY, "--failures", "taken/failures/sub")

    assert status == 1
    assert "cannot be written" in err


@pytest.mark.parametrize("budget", ["soon", "0", "-3", "nan", "inf"])
def test_budgets_that_are_none(kvproof, budget):
    status, _, err = kvproof("check", "--budget", budget)

    assert status == 2
    assert "quick, ci, nightly or a number of seconds above 0" in one_sentence(err)


@pytest.mark.parametrize(("budget", "seconds"), [("quick", 10.0), ("ci", 30.0), ("nightly", 600.0), ("2.5", 2.5), (None, 30.0)])
def test_budgets(kvproof, monkeypatch, budget, seconds):
    asked = {}

    def check(target, **options):
        asked.update(options)
        return Report(1, options["name"], "held", {}, [], 1, 1, 0.0, options["seed"])

    monkeypatch.setattr("kvproof.fuzz.check.check", check)

    status, out, _ = kvproof("check", *(["--budget", budget] if budget else []))

    first, last = out.splitlines()
    told = {10.0: "budget quick (10 s)", 30.0: "budget ci (30 s)", 600.0: "budget nightly (600 s)", 2.5: "budget 2.5 s"}[seconds]
    assert re.fullmatch(rf"kvproof check production: the built-in production cache, {re.escape(told)}, \d+ workers?, seed \d+", first)
    assert (status, last) == (0, "production keeps 0 laws.")
    assert asked["seconds"] == seconds
    assert asked["name"] == "production"
    assert asked["workers"] >= 1
    assert asked["waived"] == frozenset()


# -- waivers ------------------------------------------------------------------------------------------------------------------------------


def waivers(law, target):
    return f'[[waiver]]\nlaw = "{law}"\ntarget = "{target}"\nreason = "Known."\nreference = "#7"\n'


def test_a_waived_law_does_not_fail_the_run(kvproof, place, monkeypatch):
    (place / "kvproof-waivers.toml").write_text(waivers("hit-same-namespace", "caches_of_cli:Blind"))

    def check(target, *, name, seed, waived, **_):
        laws = {law.name: LawVerdict("waived" if law.name in waived else "held", 1) for law in CACHE_LAWS}
        found = Finding("hit-same-namespace", "as recorded", read_program(Path(failure())), 5)
        return Report(1, name, "held", laws, [found], 1, 5, 0.1, seed)

    monkeypatch.setattr("kvproof.fuzz.check.check", check)

    status, out, _ = kvproof("check", "caches_of_cli:Blind", "--json", "report.json")

    assert status == 0
    assert "hit-same-namespace is broken and waived: Known. (#7)" in out
    assert json.loads((place / "report.json").read_text())["laws"]["hit-same-namespace"]["verdict"] == "waived"


def test_a_stale_waiver_fails_the_run(kvproof, place):
    (place / "w.toml").write_text(waivers("own-content", "production-sync"))

    status, out, _ = kvproof("check", "production-sync", *SIXTY, "--waivers", "w.toml", "--json", "r.json", "--junit", "r.xml")

    assert status == 1
    assert "The waiver of own-content for production-sync is stale, because the law held: remove it (#7)." in out
    assert json.loads((place / "r.json").read_text())["verdict"] == "broken"
    assert ET.parse(place / "r.xml").getroot().get("failures") == "1"


def test_a_waiver_for_another_target_is_left_alone(kvproof, place):
    (place / "kvproof-waivers.toml").write_text(waivers("own-content", "production"))

    assert kvproof("check", "production-sync", *SIXTY)[0] == 0


def test_a_bad_waiver_file(kvproof, place):
    (place / "kvproof-waivers.toml").write_text(waivers("own-contents", "production"))

    status, _, err = kvproof("check")

    assert status == 2
    assert "did you mean own-content?" in one_sentence(err)


# -- replay and shrink --------------------------------------------------------------------------------------------------------------------


def test_replay_of_a_violation(kvproof):
    status, out, _ = kvproof("replay", failure())

    assert status == 1
    assert "hit-same-namespace breaks again at step 4: " in out
    assert re.search(r"^> +4 +match 1 +hit 1", out, re.MULTILINE)


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_program_without_operations_says_nothing(kvproof, place, command):
    (place / "empty.json").write_text('{"kvproof": 1, "target": "production", "config": {"num_blocks": 4, "block_size": 1}, "ops": []}')

    assert kvproof(command, "empty.json") == (
        2,
        "",
        "kvproof: empty.json holds a program without operations, so running it says nothing of production; give it some.\n",
    )


@pytest.mark.parametrize(
    "arguments", [("check", "production", "--failures", ""), ("fuzz", "production", "--directory", ""), ("replay", "")], ids=" ".join
)
def test_an_empty_name_is_no_place(kvproof, place, arguments):
    status, out, err = kvproof(*arguments)

    assert (status, out) == (2, "")
    assert "the name is empty, and it must be that of a file or a directory" in err
    assert [path.name for path in place.iterdir()] == ["caches_of_cli.py"]


def test_replay_on_another_target(kvproof):
    status, out, _ = kvproof("replay", failure(), "production-sync")

    assert status == 0
    assert "No law breaks: the violation of hit-same-namespace is gone on production-sync." in out


def test_replay_of_another_law(kvproof):
    status, out, _ = kvproof("replay", failure(law="own-content"))

    assert status == 1
    assert "hit-same-namespace breaks at step 4, where the file records own-content: " in out


def test_replay_of_a_fault_that_is_gone(kvproof):
    status, out, _ = kvproof("replay", failure(law="", fault="append raised", target="production-sync"))

    assert status == 0
    assert "the fault that the file records is gone on production-sync." in out


def test_replay_tells_what_was_skipped(kvproof):
    status, out, _ = kvproof("replay", failure(law="", ops=(Commit(3), *BLIND_OPS[:2]), target="production-sync"))

    assert status == 0
    assert "1 operation was skipped, because the precondition did not hold: the rows without a step number." in out
    assert re.search(r"^ +- +commit 3 +skipped: unknown sequence 3", out, re.MULTILINE)
    assert out.endswith("No law breaks.\n")


def test_a_report_is_replayed_by_its_first_violation(kvproof):
    kvproof("check", "caches_of_cli.py:Leaky", *SIXTY, "--json", "report.json")
    first = msgspec.json.decode(Path("report.json").read_bytes(), type=Report).violations[0]

    status, out, _ = kvproof("replay", "report.json")

    assert status == 1
    assert "report.json is a report; the program of " in out
    assert f"({first.law}) has {first.steps} operations" in out
    assert f"{first.law} breaks again at step " in out


def test_a_report_without_violations_has_nothing_to_replay(kvproof, place):
    (place / "report.json").write_bytes(msgspec.json.encode(Report(1, "mine", "held", {}, [], 1, 1, 0.1, 1)))

    status, _, err = kvproof("replay", "report.json")

    assert status == 2
    assert "report.json is a report without any violation" in one_sentence(err)


def test_reading_a_report_as_a_program_says_so(place):
    (place / "report.json").write_bytes(msgspec.json.encode(Report(1, "mine", "held", {}, [], 1, 1, 0.1, 1)))

    with pytest.raises(BadFile, match=r"report.json is a report, not a program; name a failure file"):
        read_program(Path("report.json"))


def test_failures_of_a_file_are_run_from_anywhere(kvproof, place, monkeypatch):
    (place / "elsewhere").mkdir()
    out = kvproof("check", "caches_of_cli.py:Leaky", *SIXTY)[1]
    path = place / re.search(r"kvproof replay (\S+)", out)[1]
    assert read_program(path).target == f"{place.resolve()}/caches_of_cli.py:Leaky"
    assert "Adapter = find_target('caches_of_cli.py:Leaky')" in out, "a test of a repository, which others check out elsewhere"
    assert "step by step, on caches_of_cli.py:Leaky:" in out

    monkeypatch.chdir(place / "elsewhere")

    assert kvproof("replay", path)[0] == 1


def test_replay_of_a_file_that_is_not_here(kvproof):
    status, _, err = kvproof("replay", failure(target="/gone/caches.py:Blind"))

    assert status == 2
    assert "add where it is: kvproof replay failing.json path/to/file.py:Class." in one_sentence(err)
    assert kvproof("replay", "failing.json", "caches_of_cli.py:Blind")[0] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a kvproof program"),
        ('{"kvproof": 0}', "has format version 0"),
        ('{"kvproof": 1, "target": "production"}', "is damaged"),
        ('{"kvproof": 1, "target": "production", "config": {"num_blocks": 0, "block_size": 1}, "ops": []}', "both must be 1 or more"),
        ('{"kvproof": 1, "target": "production", "config": {"num_blocks": 9999, "block_size": 1}, "ops": []}', "claims at most 64 blocks"),
        ('{"kvproof": 1, "target": "gone_kv:A", "config": {"num_blocks": 1, "block_size": 1}, "ops": []}', "There is no module 'gone_kv'"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_files_that_cannot_be_run(kvproof, place, command, content, words):
    (place / "f.json").write_text(content)

    status, _, err = kvproof(command, "f.json")

    assert status == 2
    assert words in one_sentence(err)


def test_shrink(kvproof):
    padding = (Admit(7, (1, 2)), Extend(7, 2), Commit(7), Append(7, (3,)), Release(7))

    status, out, _ = kvproof("shrink", failure(ops=padding + BLIND_OPS), "--seconds", "20")

    short = read_program(Path("failing.shrunk.json"))
    assert status == 1
    assert len(short.ops) <= len(BLIND_OPS)
    assert short.violation.law == "hit-same-namespace"
    assert f"failing.json had 10 operations; the shortest program found has {len(short.ops)} operations" in out
    assert "kvproof replay failing.shrunk.json" in out


def test_shrink_writes_a_test_that_stands_alone(kvproof, place):
    kvproof("shrink", failure(ops=BLIND_OPS), "--seconds", "20")

    test = place / "failing_shrunk_test.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "hit-same-namespace" in ran.stdout


def test_shrink_tells_a_flaky_failure(kvproof, place):
    status, out, _ = kvproof("shrink", failure(target="caches_of_cli:Flaky"), "--seconds", "20", "-n", "1")

    assert status == 1
    assert "This failure is flaky: the program breaks hit-same-namespace in 5 of 10 runs" in out
    assert read_program(place / "failing.shrunk.json").violation.law == "hit-same-namespace"


def test_shrink_where_nothing_breaks(kvproof, place):
    status, out, _ = kvproof("shrink", failure(), "production-sync", "-o", "short.json")

    assert status == 0
    assert "is gone on production-sync." in out
    assert not (place / "short.json").exists()


# -- laws, schema, new --------------------------------------------------------------------------------------------------------------------


def test_laws(kvproof):
    status, out, _ = kvproof("laws")

    assert status == 0
    assert [law.name for law in LAWS if f"- {law.name}: {law.sentence}" not in out] == []


def test_laws_as_a_table(kvproof, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")

    out = kvproof("laws")[1]

    assert [law.name for law in LAWS if law.name not in out] == []


def test_one_law(kvproof):
    status, out, _ = kvproof("laws", "refcount-equals-holders")

    assert status == 0
    assert "It applies to a target that claims snapshot." in out
    assert "B01, B17" in out


def test_an_unknown_law(kvproof):
    status, _, err = kvproof("laws", "no-leek")

    assert status == 2
    assert "did you mean no-leak?" in one_sentence(err)
    assert "did you mean own-content?" in one_sentence(kvproof("laws", "own")[2])


def test_the_page_of_laws_is_current(kvproof):
    page = (ROOT / "docs/laws.md").read_text()

    assert page == laws_markdown(), "run: kvproof laws --markdown > docs/laws.md"
    assert kvproof("laws", "--markdown")[1] == page


@pytest.mark.parametrize("kind", schemas.KINDS)
def test_the_schemas_are_current(kvproof, kind):
    file = (ROOT / "docs/schemas" / f"{kind}.json").read_text()

    assert file == schemas.schema_text(kind).decode(), f"run: kvproof schema {kind} > docs/schemas/{kind}.json"
    assert kvproof("schema", kind)[1] == file


def test_all_schemas_at_once(kvproof):
    assert list(json.loads(kvproof("schema")[1])) == list(schemas.KINDS)


def test_new_writes_an_adapter_that_passes(kvproof, place):
    (place / "sub").mkdir()
    status, out, _ = kvproof("new", "sub/mine_of_cli.py")

    assert status == 0
    assert (place / "sub/mine_of_cli.py").read_text() == skeleton() == Path(adapter_template.__file__).read_text()
    command = re.search(r"kvproof check (\S+)", out)[1]
    assert kvproof("check", command, *SIXTY)[0] == 0


@pytest.mark.parametrize(("name", "words"), [("caches_of_cli.py", "is there already"), ("notes.txt", "does not end in .py")])
def test_new_never_overwrites(kvproof, place, name, words):
    status, _, err = kvproof("new", name)

    assert status == 2
    assert words in one_sentence(err)
    assert (place / "caches_of_cli.py").read_text() == TARGETS


# -- the whole ----------------------------------------------------------------------------------------------------------------------------


def test_version(kvproof):
    assert re.fullmatch(r"kvproof \d+\.\d+\.\d+\n", kvproof("--version")[1])


@pytest.mark.parametrize("arguments", [["chek"], ["check", "--frobnicate"], ["check", "a", "b"], ["replay"], ["schema", "poem"]])
def test_wrong_arguments(kvproof, arguments):
    status, _, err = kvproof(*arguments)

    assert status == 2
    assert "--help`." in one_sentence(err)


def test_what_click_asks_or_says_of_a_command_stays_whole(kvproof):
    assert kvproof("foo")[2] == "kvproof: No such command 'foo'. Did you mean 'zoo'? See `kvproof --help`.\n"
    assert kvproof("check", "--json")[2] == "kvproof: Option '--json' requires an argument. See `kvproof check --help`.\n"


def test_no_command(kvproof):
    status, out, err = kvproof()

    assert (status, out) == (2, "")
    assert "check" in err


def test_an_interrupt_decides_nothing(kvproof, monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.check.check", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))

    status, _, err = kvproof("check")

    assert status == 2
    assert "interrupted" in one_sentence(err.lstrip("\n"))  # the line after ^C on a terminal


def test_an_error_of_kvproof_itself_is_not_a_broken_law(kvproof, monkeypatch):
    monkeypatch.setattr("kvproof.fuzz.check.check", lambda *_, **__: 1 / 0)

    status, _, err = kvproof("check")

    assert status == 2
    assert "ZeroDivisionError" in err
    assert err.endswith("please report this with the lines above.\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [("engines", 0), ("exhaust production --depth 1", 0), ("race production --mode random --scenario release-twice --seconds 1", 0)],
)
def test_the_exit_status_stays_where_nobody_reads(place, arguments, status):
    command = (
        f"{sys.executable} -c 'import sys; from kvproof.cli import main; sys.exit(main())' {arguments} | true; echo ${{PIPESTATUS[0]}}"
    )

    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == (f"{status}\n", "")


def test_a_reader_that_goes_away(place):
    command = f"{sys.executable} -c 'import sys; from kvproof.cli import main; sys.exit(main())' laws --markdown | head -c 10"

    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == ("# The laws", "")


def test_the_package_can_be_run_as_a_module():
    ran = subprocess.run([sys.executable, "-m", "kvproof", "laws"], capture_output=True, text=True, check=True)
    assert "no-aliasing" in ran.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["laws", "schema", "check bug:canary --programs 20 -n 1"])
def test_a_full_disk_behind_stdout_is_one_sentence(command):
    ran = subprocess.run(["bash", "-c", f"{sys.executable} -m kvproof {command} >/dev/full"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "kvproof: What was to be printed cannot be written (No space left on device); make room, or send it elsewhere.\n"


def test_a_stdout_that_was_closed_loses_no_verdict(place):
    command = f"{sys.executable} -m kvproof replay {failure(target='caches_of_cli.py:Blind')} >&-"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_the_package_loads_nothing_that_is_not_asked_for():
    source = "import sys, kvproof; assert 'msgspec' not in sys.modules; assert kvproof.CacheAdapter.__module__ == 'kvproof.impl.adapter'"
    subprocess.run([sys.executable, "-c", source], check=True)
