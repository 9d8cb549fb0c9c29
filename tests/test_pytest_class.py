"""`kvproof.cache_tests`, and the options of the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toys import Toy

from kvproof import cache_tests
from kvproof.cache import Asked, _shown, target_name
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program, read_program
from kvproof.fuzz.verdicts import Finding
from kvproof.models.laws import BY_NAME, CACHE_LAWS
from kvproof.models.ops import Admit
from kvproof.properties.lockstep import run

pytest_plugins = ["pytester"]

BUDGET = "--kv-budget=1"
"""The toys are small: this tries a hundred programs and more."""

SKIPPED = sum(bool(law.needs) for law in CACHE_LAWS)
"""A cache without claims need not keep the laws that need one."""


@pytest.fixture
def project(pytester):
    """A directory with the toys in it."""
    pytester.makepyfile(toys=Path(__file__).with_name("toys.py").read_text())
    return pytester


def write_tests(project, toy, arguments=""):
    project.makepyfile(test_it=f"from kvproof import cache_tests\nfrom toys import {toy}\n\nTestToy = cache_tests({toy}{arguments})\n")


def test_each_law_is_an_item(project):
    write_tests(project, "Silent")
    result = project.runpytest("-v", "-rs", BUDGET)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == len(CACHE_LAWS)
    result.stdout.fnmatch_lines_random(
        [
            "test_it.py::TestToy::test_law?no-leak? PASSED*",
            "*fenced-reuse is not applicable: it needs steps, which the adapter does not claim",
            "*eviction-follows-policy is not applicable: it needs the policy lru, which the adapter does not claim",
            "kvproof toys:Silent: * programs, * operations in * s, seed 0",
        ]
    )
    assert result.parseoutcomes()["skipped"] == SKIPPED


@pytest.mark.parametrize(("toy", "law"), [("Leaky", "no-leak"), ("DoubleFree", "no-aliasing")])
def test_a_broken_law_fails_with_its_program(project, toy, law):
    write_tests(project, toy)
    result = project.runpytest(BUDGET)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [f"{law} is broken: {BY_NAME[law].sentence[:40]}*", "*The shortest program found has * operations:", "*ops = ?"]
    )
    result.stdout.fnmatch_lines([f"Failure file: .kvproof/failures/{law}-*.json"])


def test_the_failure_file_shows_the_failure(project):
    write_tests(project, "DoubleFree")
    project.runpytest(BUDGET, "-k", "no-aliasing").assert_outcomes(failed=1, deselected=len(CACHE_LAWS) - 1)
    (file,) = project.path.glob(".kvproof/failures/*.json")
    program = read_program(file)
    sys.path.insert(0, str(project.path))
    from toys import DoubleFree

    again = run(program.ops, DoubleFree, num_blocks=program.config.num_blocks, block_size=program.config.block_size)
    assert again.violation == program.violation


def test_a_law_that_was_not_exercised_is_skipped_with_that_reason(project):
    write_tests(project, "Refusing")
    result = project.runpytest("-rs", BUDGET)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*truncate-exact was not exercised: no program put it to the test; give a larger --kv-budget"])


def test_an_adapter_at_fault_is_an_error_in_one_sentence(project):
    write_tests(project, "Faulty")
    result = project.runpytest(BUDGET)
    result.assert_outcomes(errors=len(CACHE_LAWS))
    result.stdout.fnmatch_lines(["extend(0, *) returned NoneType None; it must return kvproof.Grant."])


def test_a_waived_law_is_expected_to_fail(project):
    project.makefile(".toml", **{"kvproof-waivers": waiver("no-aliasing", "toys:DoubleFree")})
    write_tests(project, "DoubleFree")
    result = project.runpytest("-rx", BUDGET, "-k", "no-aliasing")
    result.assert_outcomes(xfailed=1, deselected=len(CACHE_LAWS) - 1)
    result.stdout.fnmatch_lines(["*no-aliasing is broken and waived: known (https://example.org/1)*"])


def test_a_stale_waiver_fails(project):
    project.makefile(".toml", mine=waiver("no-leak", "toys:Silent"))
    write_tests(project, "Silent", ", waivers='mine.toml'")
    result = project.runpytest(BUDGET, "-k", "no-leak")
    result.assert_outcomes(failed=1, deselected=len(CACHE_LAWS) - 1)
    result.stdout.fnmatch_lines(["*The waiver of no-leak for toys:Silent is stale, because the law held: remove it*"])


def test_a_waiver_file_that_cannot_be_read_is_an_error(project):
    write_tests(project, "Silent", ", waivers='missing.toml'")
    result = project.runpytest(BUDGET, "-k", "no-leak")
    result.assert_outcomes(errors=1, deselected=len(CACHE_LAWS) - 1)
    result.stdout.fnmatch_lines(["*missing.toml cannot be read: No such file or directory."])


def waiver(law, target):
    return f'[[waiver]]\nlaw = "{law}"\ntarget = "{target}"\nreason = "known"\nreference = "https://example.org/1"\n'


@pytest.mark.parametrize("distribution", ["load", "loadgroup"])
def test_workers_share_one_check(project, distribution):
    write_tests(project, "Silent")
    result = project.runpytest_subprocess("-n2", f"--dist={distribution}", BUDGET)
    result.assert_outcomes(passed=len(CACHE_LAWS) - SKIPPED, skipped=SKIPPED)
    assert result.stdout.str().count("kvproof toys:Silent: ") == 1


def test_workers_share_an_error(project):
    write_tests(project, "Faulty")
    project.runpytest_subprocess("-n2", BUDGET).assert_outcomes(errors=len(CACHE_LAWS))


def test_the_class_needs_neither_the_plugin_nor_workers(project):
    write_tests(project, "Silent", ", budget=1, name='my cache'")
    result = project.runpytest_subprocess("-p", "no:kvproof", "-p", "no:xdist", "--strict-markers", "-m", "kvproof_law", "-k", "no-leak")
    result.assert_outcomes(passed=1, deselected=len(CACHE_LAWS) - 1)


def test_a_target_needs_no_test_file(project):
    project.makepyfile(test_other="def test_not_asked_for():\n    assert False\n")
    result = project.runpytest_subprocess("--kv-target=toys:Silent", "--kv-seed=7", BUDGET, "-v")
    result.assert_outcomes(passed=len(CACHE_LAWS) - SKIPPED, skipped=SKIPPED)
    result.stdout.fnmatch_lines(["toys:Silent::no-leak PASSED*", "kvproof toys:Silent: *, seed 7"])


def test_a_target_and_a_test_file_run_together(project):
    project.makepyfile(test_other="def test_asked_for():\n    pass\n")
    result = project.runpytest_subprocess("--kv-target=toys.py:Silent", BUDGET, "-k", "no-leak or asked_for", "test_other.py")
    result.assert_outcomes(passed=2, deselected=len(CACHE_LAWS) - 1)


def test_a_target_works_with_workers(project):
    result = project.runpytest_subprocess("--kv-target=toys:DoubleFree", "-n2", BUDGET, "-k", "no-aliasing or no-leak")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["no-aliasing is broken: *", "FAILED toys:DoubleFree::no-aliasing*"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--kv-target=toys:Missing", "*--kv-target: *Missing*"),
        ("--kv-target=nowhere", "*--kv-target: There is no target 'nowhere'*"),
        ("--kv-budget=soon", "*--kv-budget: 'soon' is no budget; give quick, ci, nightly or a number of seconds above 0."),
        ("--kv-budget=0", "*--kv-budget: '0' is no budget*"),
        ("--kv-seed=-1", "*--kv-seed: -1 is negative; give a number of 0 or more."),
    ],
)
def test_bad_options_are_usage_errors(project, option, message):
    result = project.runpytest_subprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"adapter": Toy(num_blocks=1, block_size=1)}, TypeError, "needs the adapter class, .* without building it"),
        ({"adapter": Toy, "seed": -1}, ValueError, "seed is -1; give a number of 0 or more"),
        ({"adapter": Toy, "budget": "soon"}, ValueError, "'soon' is no budget; give quick, ci, nightly or a number"),
        ({"adapter": Toy, "budget": -3}, ValueError, "-3 is no budget"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        cache_tests(**arguments)


def test_a_class_in_a_file_of_tests_is_named_by_its_path(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)

    class Local(Toy):
        pass

    assert target_name(Toy) == "toys:Toy"
    assert target_name(Local).startswith("test_pytest_class.py:")


def test_the_plugin_costs_runs_without_it_nothing(project):
    heavy = "[name for name in ('hypothesis', 'rich', 'kvproof.models.spec', 'kvproof.cache') if name in sys.modules]"
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys, kvproof.plugin; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"
    project.makepyfile(test_other="def test_something():\n    pass\n")
    result = project.runpytest("-v")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("kvproof *:*")


def test_a_program_that_is_too_long_to_read_is_not_shown_and_says_how_to_go_on():
    ops = tuple(Admit(seq, (1,)) for seq in range(80))
    program = Program(FORMAT, "toys:Toy", PoolConfig(4, 2), ops, unfinished=True)
    told = _shown(Asked(Toy, "toys:Toy"), Finding("no-leak", "it is so", program, len(ops)))
    assert told[0] == "The shortest program found has 80 operations, too many to show here."
    assert told[1].startswith("The time to shrink it ran out")
    assert len(told) == 2
