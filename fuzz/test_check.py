"""A whole check: held, broken, at fault, hanging, dying; waived laws, counts, progress, and several processes."""

from __future__ import annotations

import functools
import io
import multiprocessing
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from toys import DoubleFree, Faulty, Hanging, Leaky, Refusing, RefusingAll, Silent, Toy
from toys_more import Crashing, Deaf, Dying, Everything, Greedy, Leaving, Slow, Stepping, Swallowing

from kvproof import Capabilities, Refused
from kvproof.fuzz import check as check_module
from kvproof.fuzz import runs
from kvproof.fuzz.check import BUDGETS, Gathering, Progress, check, work_of
from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.fuzz.reports.steps import replay
from kvproof.fuzz.reports.terminal import Exhibit, show_report
from kvproof.fuzz.runs import SERVING_EVERY, SERVING_LENGTH, Found, Search, Tally, is_long, run_seed
from kvproof.fuzz.verdicts import Report, law_verdicts
from kvproof.impl.checker import read_capabilities
from kvproof.models.laws import CACHE_LAWS
from kvproof.models.ops import Admit, Commit, Extend
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import run


class NeverCommitting(Toy):
    """Makes room, and never computes anything."""

    def commit(self, seq, accepted):
        raise Refused("never")


def checked(target, **how) -> Report:
    return check(target, **({"name": "toys:toy", "seconds": 60, "seed": 1, "programs": 40} | how))


@functools.cache
def usual(target) -> Report:
    """The report of 40 programs on one process, made once."""
    return checked(target)


def counts(report):
    return report.verdict, report.programs, report.operations, report.laws, report.refusals, [finding.law for finding in report.violations]


# -- verdicts -------------------------------------------------------------------------------------------------------------------------------------


def test_a_correct_cache_holds():
    report = usual(Toy)
    assert (report.verdict, report.exit_status, report.error) == ("held", 0, "")
    assert (report.violations, report.error_program) == ([], None)
    assert (report.target, report.seed, report.programs) == ("toys:toy", 1, 40)
    assert report.operations > 40 * 5
    assert report.seconds > 0


def test_every_law_of_a_cache_is_answered_and_counts_how_often_it_was_put_to_the_test():
    laws = usual(Toy).laws
    assert list(laws) == [law.name for law in CACHE_LAWS]
    assert laws["own-content"].verdict == "held"
    assert laws["own-content"].exercised > 100
    assert laws["no-leak"].exercised > 20
    assert (laws["hit-is-true-prefix"].verdict, laws["hit-is-true-prefix"].exercised) == ("not-applicable", 0)
    assert usual(Refusing).laws["truncate-exact"].verdict == "not-exercised"


@pytest.mark.parametrize(("target", "why"), [(RefusingAll, "extend"), (NeverCommitting, "commit")])
def test_a_cache_that_never_computes_a_token_is_not_called_good(target, why):
    report = checked(target)
    assert (report.verdict, report.exit_status) == ("error", 2)
    assert report.error.startswith(f"No pass was ever committed in 40 programs (refused: {why} ")


def test_a_run_too_short_to_commit_anything_is_no_fault():
    assert checked(RefusingAll, programs=19).exit_status == 0
    assert checked(RefusingAll, programs=20).exit_status == 2


def test_a_broken_law_outweighs_that_nothing_was_computed():
    class Giving(RefusingAll):
        def admit(self, seq, prompt, namespace):
            super().admit(seq, prompt, namespace)
            self.rows[seq] = [0]

    assert checked(Giving).verdict == "broken"


def test_what_is_put_to_the_test_grows_with_what_is_claimed():
    held = {name for name, law in checked(Everything, programs=60).laws.items() if law.verdict == "held"}
    assert {
        "truncate-exact",
        "swap-round-trip",
        "fork-shares-then-diverges",
        "copy-batch-sound",
        "mirror-follows",
        "rejection-forgets",
    } <= held
    assert {"fenced-reuse"} <= {name for name, law in checked(Stepping, programs=60).laws.items() if law.verdict == "held"}


def test_a_broken_law_comes_with_its_shortest_program():
    report = usual(Leaky)
    assert (report.verdict, report.exit_status, report.error) == ("broken", 1, "")
    [finding] = [finding for finding in report.violations if finding.law == "no-leak"]
    assert report.laws["no-leak"].verdict == "broken"
    assert finding.steps == len(finding.program.ops) <= 5
    assert finding.reason == finding.program.violation.reason
    config = finding.program.config
    again = run(finding.program.ops, Leaky, num_blocks=config.num_blocks, block_size=config.block_size)
    assert again.violation == finding.program.violation


def test_each_broken_law_is_found_once_and_the_shortest_comes_first(monkeypatch):
    monkeypatch.setattr(check_module, "GRACE_SECONDS", 60.0)

    class Twice(DoubleFree):
        def release(self, seq, reason):
            if reason == "cancel":
                self.rows[seq] = self.rows[seq][:-1]
            super().release(seq, reason)

    report = checked(Twice, programs=60)
    laws = [finding.law for finding in report.violations]
    assert len(laws) == len(set(laws))
    assert {"no-aliasing", "no-leak"} <= set(laws)
    assert [finding.steps for finding in report.violations] == sorted(finding.steps for finding in report.violations)


def test_a_fault_of_the_adapter_is_an_error_with_the_program_that_shows_it():
    report = usual(Faulty)
    assert (report.verdict, report.exit_status, report.violations) == ("error", 2, [])
    assert report.error == "extend(0, 1, ()) returned NoneType None; it must return kvproof.Grant."
    assert len(report.error_program.ops) == 2


@pytest.mark.parametrize("target", [type("Bare", (), {}), type("Wrong", (Toy,), {"capabilities": classmethod(lambda cls: {})})])
def test_capabilities_that_cannot_be_read_are_an_error_at_once(target):
    report = checked(target)
    assert (report.verdict, report.programs, report.laws) == ("error", 0, {})
    assert "capabilities" in report.error


def test_a_cache_that_cannot_be_built_is_an_error():
    class Picky(Toy):
        def __init__(self, *, num_blocks, block_size):
            raise ValueError("no")

    report = checked(Picky)
    assert report.verdict == "error"
    assert "raised ValueError: no" in report.error


@pytest.mark.parametrize("target", [Hanging, Swallowing])
def test_a_hang_is_an_error_that_names_the_call(target, monkeypatch):
    monkeypatch.setattr(check_module, "HANG_SHRINK_OP_SECONDS", 0.05)
    monkeypatch.setattr(check_module, "FINAL_SHRINK_SECONDS", 2.0)
    start = time.monotonic()
    report = checked(target, op_seconds=0.2)
    assert (report.verdict, report.exit_status) == ("error", 2)
    assert report.error.startswith("commit(")
    assert "hung: one operation ran for more than 0.2 s." in report.error
    assert isinstance(report.error_program.ops[-1], Commit)
    assert time.monotonic() - start < 20


def test_a_look_that_hangs_is_named_with_the_operation_before_it(monkeypatch):
    class Stuck(Toy):
        def block_table(self, seq, group=0):
            while len(self.rows[seq]) == 2:
                time.sleep(0.01)
            return self.rows[seq]

    monkeypatch.setattr(check_module, "HANG_SHRINK_OP_SECONDS", 0.05)
    monkeypatch.setattr(check_module, "FINAL_SHRINK_SECONDS", 2.0)
    report = checked(Stuck, op_seconds=0.2)
    assert report.error.startswith("block_table hung after extend(")
    assert report.error.endswith("): it ran for more than 0.2 s.")
    assert isinstance(report.error_program.ops[-1], Extend)
    assert replay(report.error_program, Stuck, op_seconds=0.2).trouble == report.error


def test_a_hang_that_does_not_come_again_is_told_as_one_and_shows_no_program():
    slept = []

    class Stalled(Toy):
        def commit(self, seq, accepted):
            super().commit(seq, accepted)
            if not slept:
                slept.append(seq)
                time.sleep(0.5)

    report = checked(Stalled, op_seconds=0.2)
    assert report.verdict == "error"
    assert report.error.startswith("commit(")
    assert ") hung: one operation ran for more than 0.2 s, but not when the same program was run again: " in report.error
    program = report.error_program
    console = Console(file=io.StringIO(), width=80)
    show_report(console, report, [], waivers={}, stale={}, error=Exhibit(program, replay(program, Stalled), "", path=Path("it.json")))
    assert "kvproof replay it.json" in console.file.getvalue()
    assert "operations" not in console.file.getvalue()


def test_a_broken_law_outweighs_a_fault():
    class Both(Leaky):
        def append(self, seq, tokens):
            super().append(seq, tokens)
            return len(tokens)

    report = checked(Both, programs=200)
    assert report.verdict == "broken"
    assert report.error == ""


def test_refusals_are_reported_and_a_law_that_is_always_refused_was_not_exercised():
    report = usual(Refusing)
    assert report.verdict == "held"
    assert report.refusals["truncate"] > 5
    assert report.laws["truncate-exact"].verdict == "not-exercised"


# -- waivers --------------------------------------------------------------------------------------------------------------------------------------


def test_a_waived_law_does_not_end_the_search_and_does_not_break_the_check():
    report = checked(Greedy, waived=frozenset({"tail-waste-bounded"}), programs=60)
    assert report.programs == 60
    assert report.laws["tail-waste-bounded"].verdict == "waived"
    assert (report.verdict, report.exit_status) == ("held", 0)
    assert [finding.law for finding in report.violations] == ["tail-waste-bounded"]


def test_a_law_that_is_broken_ends_the_search_after_a_moment_and_a_waived_one_does_not(monkeypatch):
    monkeypatch.setattr(check_module, "GRACE_SECONDS", 0.0)
    assert checked(Greedy).programs < 40
    assert checked(Greedy, waived=frozenset({"tail-waste-bounded"})).programs == 40


def test_the_search_for_a_law_that_only_a_long_program_breaks_goes_on_for_longer():
    short = Program(1, "toy", PoolConfig(2, 1), (Admit(0, (0,)), Extend(0, 1)), violation=Violation("own-content", 1, "it is so"))
    long = msgspec.structs.replace(short, ops=(*(Admit(seq, (0,)) for seq in range(1, 101)), *short.ops))
    search = Search(Toy, "toy", read_capabilities(Toy), 1, 1, 0.0, 10.0, None, frozenset())
    gathering = Gathering(search, time.monotonic(), 60, None)
    gathering.take(Found("violation", long))
    assert gathering.stop_at() - time.monotonic() > check_module.GRACE_SECONDS + 1
    gathering.take(Found("violation", short))
    assert gathering.stop_at() - time.monotonic() <= check_module.GRACE_SECONDS


def test_a_waived_law_hides_no_other():
    report = checked(Leaky, waived=frozenset({"tail-waste-bounded"}))
    assert report.verdict == "broken"


def test_a_waived_law_hides_no_fault_of_the_adapter():
    class Both(Greedy):
        def append(self, seq, tokens):
            super().append(seq, tokens)
            return len(tokens)

        def extend(self, seq, count, drafts=()):
            return super().extend(seq, count, drafts) if self.known[seq] > 2 else Toy.extend(self, seq, count, drafts)

    report = checked(Both, waived=frozenset({"tail-waste-bounded"}), programs=100)
    assert report.laws["tail-waste-bounded"].verdict == "waived"
    assert (report.verdict, report.exit_status) == ("error", 2)
    assert "append(" in report.error


def test_of_several_programs_that_break_a_law_the_shortest_is_kept():
    search = Search(Greedy, "toy", read_capabilities(Greedy), 1, 1, 0.0, 10.0, None, frozenset())
    found = [one for index in range(30) if (one := run_seed(search, f"1:{index}", Tally())) is not None]
    for order in (found, found[::-1]):
        gathering = Gathering(search, time.monotonic(), 60, None)
        for one in order:
            gathering.take(one)
        [kept] = gathering.shortest.values()
        assert len(kept.ops) == min(len(one.program.ops) for one in found)
    assert len({len(one.program.ops) for one in found}) > 1


def test_a_waiver_of_a_law_that_holds_changes_nothing():
    assert counts(checked(Toy, waived=frozenset({"no-leak"}))) == counts(usual(Toy))


def test_a_law_that_does_not_apply_is_not_held():
    verdicts = law_verdicts(Capabilities(), {"own-content": 3, "truncate-exact": 9}, {"no-leak", "no-aliasing"}, {"no-aliasing"})
    assert {
        name: (law.verdict, law.exercised) for name, law in verdicts.items() if law.exercised or law.verdict in ("broken", "waived")
    } == {
        "own-content": ("held", 3),
        "no-leak": ("broken", 0),
        "no-aliasing": ("waived", 0),
    }
    assert verdicts["truncate-exact"].verdict == "not-applicable"
    assert verdicts["exclusive-write"].verdict == "not-exercised"


# -- the same again ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [Toy, Everything, Leaky])
def test_a_seed_and_a_number_of_programs_give_the_same_report_again(target, monkeypatch):
    monkeypatch.setattr(check_module, "GRACE_SECONDS", 60.0)
    one, two = checked(target, programs=25), checked(target, programs=25)
    assert counts(one) == counts(two)
    assert [finding.program.ops for finding in one.violations] == [finding.program.ops for finding in two.violations]


def test_another_seed_tries_other_programs():
    assert counts(usual(Toy)) != counts(checked(Toy, seed=2))


def test_a_program_of_a_seed_is_the_same_whoever_runs_it():
    search = Search(Leaky, "toy", read_capabilities(Leaky), 1, 1, 0.0, 10.0, None, frozenset())
    for index in range(10):
        found = [run_seed(search, f"1:{index}", Tally()) for _ in range(2)]
        assert found[0] == found[1]
        if found[0] is not None:
            assert found[0].program.seed == f"1:{index}"


def test_two_processes_try_the_same_programs_as_one():
    assert counts(checked(Toy, workers=2)) == counts(usual(Toy))
    assert checked(Toy, workers=3, programs=2).programs == 2


def test_the_programs_of_a_worker_are_every_so_manieth():
    search = Search(Toy, "toy", read_capabilities(Toy), 1, 3, time.monotonic() + 60, 10.0, 10, frozenset())
    done = [sum(tally.programs for tally in work_of(search, worker, lambda: float("inf"))) for worker in range(3)]
    assert done == [4, 3, 3]


def test_no_program_is_started_after_the_deadline_or_once_the_search_is_to_stop():
    search = Search(Toy, "toy", read_capabilities(Toy), 1, 1, time.monotonic() - 1, 10.0, None, frozenset())
    assert sum(tally.programs for tally in work_of(search, 0, lambda: float("inf"))) == 0
    search.deadline = time.monotonic() + 60
    assert sum(tally.programs for tally in work_of(search, 0, lambda: 0.0)) == 0


def test_the_budget_is_kept():
    start = time.monotonic()
    report = checked(Silent, seconds=1.0, programs=None)
    assert report.verdict == "held"
    assert report.programs > 10
    assert 0.9 < time.monotonic() - start < 5


def test_the_named_budgets_grow():
    assert list(BUDGETS) == ["quick", "ci", "nightly"]
    assert list(BUDGETS.values()) == sorted(BUDGETS.values())


# -- progress -----------------------------------------------------------------------------------------------------------------------------------------


def test_progress_is_told_while_the_check_runs(monkeypatch):
    monkeypatch.setattr(check_module, "REPORT_SECONDS", 0.0)
    told: list[Progress] = []
    report = checked(Toy, on_progress=told.append)
    assert len(told) > 5
    assert [progress.programs for progress in told] == sorted(progress.programs for progress in told)
    assert (told[-1].programs, told[-1].operations) == (report.programs, report.operations)
    assert told[-1].exercised["own-content"] == report.laws["own-content"].exercised
    assert {progress.phase for progress in told} == {"swarm"}
    assert {progress.budget_seconds for progress in told} == {60}
    assert all(0 <= progress.seconds <= report.seconds for progress in told)


def test_progress_tells_when_it_shrinks():
    told: list[Progress] = []
    checked(Leaky, on_progress=told.append)
    assert told[-1].phase == "shrinking"


def test_progress_is_told_of_several_processes():
    told: list[Progress] = []
    checked(Toy, workers=2, programs=120, on_progress=told.append)
    assert told


# -- processes ------------------------------------------------------------------------------------------------------------------------------------------


def test_several_processes_find_and_shrink_a_broken_law():
    report = checked(Leaky, workers=2)
    assert report.verdict == "broken"
    assert min(finding.steps for finding in report.violations) <= 5


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("target", "how"), [(Dying, "exit code 7"), (Leaving, "exit code 0"), (Crashing, "signal SIGKILL")], ids=["seven", "zero", "signal"]
)
def test_a_worker_that_dies_is_an_error_of_the_target_whatever_its_exit_code(target, how, workers):
    report = checked(target, workers=workers, apart=True)
    assert (report.verdict, report.exit_status) == ("error", 2)
    assert report.error.startswith(f"A worker process died with {how} in or soon after program 1:")
    assert report.error.endswith(
        f"; the target crashed it. `kvproof fuzz {report.target} --budget 30` finds the operation and keeps the program."
    )


def test_a_worker_apart_runs_the_same_programs():
    assert counts(checked(Toy, apart=True)) == counts(usual(Toy))


def test_the_program_that_killed_a_worker_is_named(monkeypatch):
    monkeypatch.setattr(check_module, "REPORT_SECONDS", 0.0)
    told = checked(Dying, workers=2).error
    seed = told.partition("in or soon after program ")[2].partition(";")[0]
    assert seed.partition(":")[0] == "1"
    assert run_in_process(seed) == 7


def run_in_process(seed):
    """The exit code of a process that runs the program of `seed`."""
    search = Search(Dying, "toy", read_capabilities(Dying), 1, 1, 0.0, 10.0, None, frozenset())
    process = multiprocessing.get_context("fork").Process(target=run_seed, args=(search, seed, Tally()))
    process.start()
    process.join()
    return process.exitcode


def test_a_worker_that_blocks_its_alarm_is_an_error_of_the_target(monkeypatch):
    monkeypatch.setattr(check_module, "WORKER_SHRINK_SECONDS", -9.0)  # the patience is ten seconds and more
    start = time.monotonic()
    report = checked(Deaf, workers=2, op_seconds=0.2)
    assert report.verdict == "error"
    assert "A worker process gave no sign of life" in report.error
    assert "the target blocks it." in report.error
    assert time.monotonic() - start < 15


def test_a_worker_with_a_long_program_of_a_slow_cache_is_not_stalled(monkeypatch):
    monkeypatch.setattr(check_module, "WORKER_SHRINK_SECONDS", -9.8)  # a patience of 0.8 s
    index = next(index for index in range(999) if is_long(f"1:{index}") and not index % 2)
    monkeypatch.setattr(check_module, "work_of", lambda search, *_: iter([long_alone(search, f"1:{index}")]))
    report = checked(Slow, workers=2, op_seconds=0.2)
    assert report.seconds > 2
    assert (report.verdict, report.error, report.programs) == ("held", "", 2)


def long_alone(search, seed):
    tally = Tally()
    assert run_seed(search, seed, tally) is None
    assert tally.operations > SERVING_LENGTH / 2
    return tally


def test_one_seed_in_a_hundred_is_that_of_a_long_program():
    seeds = [f"{seed}:{index}" for seed in range(3) for index in range(100 * SERVING_EVERY)]
    assert 270 < sum(map(is_long, seeds)) < 330


def test_no_process_is_left_behind():
    for target in (Toy, Leaky, Dying, Leaving):
        checked(target, workers=2)
    assert nobody_is_left()


def nobody_is_left():
    """Whether every process of ours has ended; a killed one takes a moment."""
    until = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.01)
    return not multiprocessing.active_children()


def test_a_failure_of_kvproof_itself_is_raised_and_not_blamed_on_the_target(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(runs, "drain", broken)
    with pytest.raises(ZeroDivisionError):
        checked(Toy)
    with pytest.raises(RuntimeError, match=r"(?s)kvproof failed in a worker:.*ZeroDivisionError: ours"):
        checked(Toy, workers=2)
    assert nobody_is_left()


def test_a_failure_of_kvproof_in_one_worker_ends_the_others(monkeypatch):
    def work_of(search, worker, stop_at):
        if worker == 0:
            raise ZeroDivisionError("ours")
        time.sleep(60)
        yield Tally()

    monkeypatch.setattr(check_module, "work_of", work_of)
    with pytest.raises(RuntimeError, match="kvproof failed in a worker"):
        checked(Toy, workers=2)
    assert nobody_is_left()


# -- as data ----------------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "status"), [("held", 0), ("broken", 1), ("error", 2)])
def test_the_exit_status_follows_the_verdict(verdict, status):
    assert Report(1, "t", verdict, {}, [], 0, 0, 0.0, 1).exit_status == status


def test_a_report_is_json_with_the_keys_of_the_contract():
    report = usual(Leaky)
    data = msgspec.json.decode(msgspec.json.encode(report))
    assert {"kvproof", "target", "verdict", "laws", "violations", "programs", "operations", "seconds", "seed"} <= set(data)
    assert data["kvproof"] == 1
    assert set(data["violations"][0]) == {"law", "reason", "program", "steps"}
    assert data["laws"]["own-content"] == {"verdict": "held", "exercised": report.laws["own-content"].exercised}
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert isinstance(report.violations[0].program.ops[0], Admit)
