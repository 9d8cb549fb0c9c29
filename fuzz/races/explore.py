"""Run one scenario under many schedules, and judge every history.

    outcome = explore(scenario, Adapter, mode="dpor", seconds=30)

Modes:
* `dpor`: every order of the threads' accesses that can make a difference, by dynamic partial-order reduction (the library `frontrun`). Where that ends by itself,
  the scenario is exhausted, as far as the library sees accesses; `doors` shows it in which order threads come to a lock.
* `random`: random schedules of one to four switches, each after a random number of lines, bytecodes, stores or uses of locks, so that a thread can be held up in any one place for as long
  as another needs (Burckhardt et al. 2010, "A randomized scheduler with probabilistic guarantees of finding bugs"). Needs no library; see `baton`.
* `stress`: real threads that start together and are switched as often as the interpreter can; the one that uses a free-threaded interpreter.

`dpor` and `random` own the threads' locks: `explore` replaces `threading.Lock` and its kin while it runs, which is enough for locks that the target makes when it is built.
A lock that is made earlier, or whose class the target imported by name, stays a real one: a thread that is held up inside it holds up all others, and they are reported as
stuck. Call `baton.install` or `doors.install` before the target is imported there; `kvproof race` does so, in a process of its own.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from kvproof.fuzz.races import baton, conditions, doors
from kvproof.fuzz.races.baton import Baton, Grain, Plan, Stuck
from kvproof.fuzz.races.history import History, Run
from kvproof.fuzz.races.lawful import check_homes
from kvproof.fuzz.races.linear import SetupBroken, Verdict, linearise
from kvproof.fuzz.races.scenarios import Scenario
from kvproof.impl import production
from kvproof.impl.checker import AdapterFault, Hung, read_capabilities
from kvproof.properties.lockstep import time_limit

Mode: TypeAlias = Literal["dpor", "random", "stress"]
Kind: TypeAlias = Literal["held", "race", "stuck", "setup", "fault", "inconclusive"]

RUN_SECONDS: Final = 10.0
"""How long one run may take before its threads count as stuck. A run takes milliseconds, under the scheduler a second."""

GRAINS: Final[tuple[Grain, ...]] = ("line", "opcode", "store", "lock")
"""Few points are enough for an update that is lost: its thread stops between the read and the store."""

PREEMPTIONS: Final = (1, 2, None)
"""How often `dpor` may take the turn from a thread that could go on, in one search after another (Musuvathi and Qadeer 2007); None is as often as it likes."""

MOST_SWITCHES: Final = 4
"""Switches of a random schedule. Races known from practice need one or two (Lu et al. 2008, "Learning from mistakes")."""

SWITCH_SECONDS: Final = 1e-6
"""How often a stressed interpreter switches threads; its default is 5 milliseconds, longer than a whole run."""


_OWNED: Final[dict[Mode, Callable[[], AbstractContextManager[None]]]] = {
    "dpor": doors.installed,
    "random": baton.installed,
    "stress": nullcontext,
}
"""Who owns the locks that are made during a search."""


class Outcome(msgspec.Struct):
    """What came of one scenario.

    `kind`: `held`, `race` (a history that no order explains, or without one, for the `reason`, an answer that breaks the protocol under this schedule only), `stuck` (threads that wait for each other, or for ever), `setup` (a law breaks before any thread is
    at work), `fault` (the adapter breaks the protocol), `inconclusive` (the search could not go on). `schedules` were run, `histories` of them differed, and of
    these `by_their_end` were judged by their end alone. `exhausted`: `dpor` found no further schedule that differs in an access that it sees.
    """

    scenario: Scenario
    mode: Mode
    kind: Kind
    schedules: int = 0
    histories: int = 0
    by_their_end: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    history: History | None = None
    verdict: Verdict | None = None
    reason: str = ""
    seed: int | None = None


def explore(scenario: Scenario, target: type, *, mode: Mode, seconds: float, seed: int = 0) -> Outcome:
    """Search the schedules of `scenario` for at most `seconds`.

    Raises ImportError where `frontrun` is needed and missing, and ValueError for a scenario in which two threads work on one sequence.
    """
    start = time.monotonic()
    check_homes(scenario)
    judge = Judge(scenario, target)
    outcome = Outcome(scenario, mode, "held", seed=seed)
    try:
        with _OWNED[mode]():
            with _threads_started() as started, _by_itself():
                judge.judge(_one_after_another(judge))
            if started and mode != "stress":
                raise OutOfReach(
                    f"the cache starts a thread of its own ({started[0]}), which this mode cannot schedule; use the mode stress"
                )
            search = {"dpor": _by_dpor, "random": _at_random, "stress": _under_stress}[mode]
            search(judge, outcome, start + seconds, seed)
    except SetupBroken as broken:
        outcome.kind, outcome.reason = "setup", str(broken)
    except AdapterFault as fault:
        outcome.kind, outcome.reason = "fault", str(fault)
    except (Stuck, Hung) as stuck:
        outcome.kind, outcome.reason = "setup", str(stuck)
    except OutOfReach as beyond:
        outcome.kind, outcome.reason = "inconclusive", str(beyond)
    if judge.broken is not None:
        outcome.kind, (outcome.history, outcome.verdict) = "race", judge.broken
    elif judge.fault:
        outcome.kind, outcome.reason = "fault", judge.fault
    elif judge.stuck:
        outcome.kind, outcome.reason = "stuck", judge.stuck
    elif judge.torn:
        outcome.kind, outcome.reason = "race", judge.torn
    outcome.schedules, outcome.histories, outcome.by_their_end = judge.runs, len(judge.known), judge.by_their_end
    outcome.seconds = time.monotonic() - start
    return outcome


@contextmanager
def _by_itself() -> Iterator[None]:
    """While no thread but this one is at work: what never comes to an end now raises Stuck or Hung."""
    with baton.alone(), time_limit(RUN_SECONDS):
        yield


class OutOfReach(Exception):
    """The schedules of this cache are not the scheduler's alone."""


@contextmanager
def _threads_started() -> Iterator[list[str]]:
    """The names of the threads that are started meanwhile."""
    start, names = threading.Thread.start, []

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]
    try:
        yield names
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


class Judge:
    """Judges each history that differs from all before, by more than its clock."""

    def __init__(self, scenario: Scenario, target: type) -> None:
        self.scenario = scenario
        self.target = target
        self.capabilities = read_capabilities(target)
        self.at_work: set[int] = set()
        """The threads of the systematic search that have not come to their end."""
        self.runs = 0
        self.known: set[bytes] = set()
        self.by_their_end = 0
        self.broken: tuple[History, Verdict] | None = None
        self.fault = ""
        self.stuck = ""
        self.torn = ""
        """What came back and is no answer at all, under some schedule only."""

    def fresh(self) -> Run:
        """A cache in the state that the scenario starts from."""
        return Run(self.scenario, self.target, self.capabilities)

    def holds(self, run: Run) -> bool:
        """Judge a run whose threads are done; whatever the adapter does wrong is kept as the fault."""
        try:
            with _by_itself():
                return self.judge(run.finish())
        except (Stuck, Hung) as stuck:
            self.stuck = f"once all threads were done, {stuck}"
        except AdapterFault as torn:
            self.torn = f"under one schedule, and not with the threads one after another: {torn}"
        except SetupBroken as fault:
            self.fault = str(fault)
        except Exception as error:  # noqa: BLE001 -- the scheduler would swallow it
            self.fault = f"judging a history raised {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return False

    @property
    def done(self) -> bool:
        """Whether something is wrong already."""
        return self.broken is not None or bool(self.fault or self.stuck or self.torn)

    def judge(self, history: History) -> bool:
        """Whether some order explains `history`. Raises SetupBroken."""
        self.runs += 1
        shape = _shape(history)
        if shape in self.known:
            return True
        verdict = linearise(history, self.capabilities)
        self.known.add(shape)
        self.by_their_end += verdict.by_its_end
        if not verdict.good and self.broken is None:
            self.broken = (history, verdict)
        return verdict.good


def _shape(history: History) -> bytes:
    """The history with nothing of its clock but which call ended before which began."""
    calls = [call for calls in history.threads for call in calls]
    before = [[one.ended < two.began for two in calls] for one in calls]
    plain = [msgspec.structs.replace(call, began=0, ended=0) for call in calls]
    drain = [(look.call.answer, sorted(look.seen.tables.items()), _books(look.seen.books)) for look in history.drain]
    return repr((plain, before, drain)).encode()


def _books(books: Any) -> tuple[Any, ...]:  # noqa: ANN401 -- whatever a snapshot holds
    return tuple(sorted(value) if isinstance(value, frozenset) else value for value in msgspec.structs.astuple(books))


def _one_after_another(judge: Judge) -> History:
    """The threads one after another: what breaks here has nothing to do with threads."""
    run = judge.fresh()
    for thread in range(len(judge.scenario.threads)):
        run.thread(thread)
    return run.finish()


# -- under a scheduler ----------------------------------------------------------------------------------------------------------------------------


def _by_dpor(judge: Judge, outcome: Outcome, deadline: float, seed: int) -> None:  # noqa: ARG001 -- nothing in it is random
    """With few preemptions first: most races need one, and all schedules with one are a small part of all schedules."""
    from frontrun._tracing import set_active_trace_filter

    set_active_trace_filter(_traced_by_dpor(judge.target))
    try:
        outcome.exhausted = all(_within(judge, outcome, bound, deadline) for bound in PREEMPTIONS)
    finally:
        set_active_trace_filter(None)


_UNENDED: Final = (
    f"under one schedule the threads were still at work after {RUN_SECONDS:g} s: one goes on for ever, or waits for what is not the scheduler's, such as a lock that is not made "
    "by `threading`; the modes random and stress may tell more"
)


def _within(judge: Judge, outcome: Outcome, bound: int | None, deadline: float) -> bool:
    """Search the schedules with at most `bound` preemptions; whether all of them were good."""
    import frontrun

    found = frontrun.explore(
        setup=judge.fresh,
        workers=_programs(judge),
        invariant=judge.holds,
        preemption_bound=bound,
        detect_io=False,
        reproduce_on_failure=0,
        timeout_per_run=RUN_SECONDS,
        deadlock_timeout=RUN_SECONDS,
        total_timeout=max(0.1, deadline - time.monotonic()),
    )
    outcome.reason = found.explanation or ""
    if found.property_holds is not True and not judge.done:
        waiting = "deadlock" in (found.failure_kind or "") or outcome.reason.startswith("Deadlock")
        outcome.kind = "stuck" if waiting else "inconclusive"
        if conditions.forsaken(judge.at_work):
            outcome.kind, outcome.reason = "stuck", "threads wait for locks or notifications that nobody is left to give"
        elif "timed out" in (found.inconclusive_reason or ""):
            outcome.reason = _UNENDED
        outcome.reason = outcome.reason or found.inconclusive_reason or ""
    return found.property_holds is True and time.monotonic() < deadline


def _traced_by_dpor(target: type) -> Any:  # noqa: ANN401 -- a filter of the library
    from frontrun._tracing import TraceFilter

    class Filter(TraceFilter):  # type: ignore[misc]  # the library has no types
        """What the search sees: the same files as random schedules, and the doors of locks."""

        def should_trace_file(self, filename: str) -> bool:
            return filename == doors.__file__ or traced(filename)

    traced = traced_files(target)
    return Filter()


def _at_random(judge: Judge, outcome: Outcome, deadline: float, seed: int) -> None:
    rng = random.Random(seed)
    traced = traced_files(judge.target)
    lengths = {grain: _run_by_plan(judge, traced, grain, [])[1] for grain in GRAINS}
    while time.monotonic() < deadline and not judge.done:
        grain = rng.choice(GRAINS)
        try:
            run, _ = _run_by_plan(judge, traced, grain, _plan(rng, lengths[grain]))
        except Stuck as stuck:
            outcome.kind, outcome.reason = "stuck", str(stuck)
            return
        judge.holds(run)


def _run_by_plan(judge: Judge, traced: Callable[[str], bool], grain: Grain, plan: Plan) -> tuple[Run, list[int]]:
    """One run, and how many points each thread passed in it."""
    run = judge.fresh()
    scheduler = Baton([partial(run.thread, thread) for thread in range(len(judge.scenario.threads))], traced, grain)
    scheduler.run(plan)
    return run, scheduler.points


def _plan(rng: random.Random, lengths: list[int]) -> Plan:
    """Which thread runs how far: a switch comes at any point of a thread with the same probability, or when the thread is done."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    plan = []
    for switch in range(rng.randint(1, MOST_SWITCHES)):
        thread = order[switch % len(order)]
        whole = switch > 0 and rng.random() < 0.5
        plan.append((thread, sys.maxsize if whole else rng.randint(1, max(1, lengths[thread]))))
    if len(order) > 2:  # of two threads that go on while the third is held up, one may first have to wait for the other
        rng.shuffle(order)
        plan += [(thread, sys.maxsize) for thread in (*order, *order)]
    return plan


def traced_files(target: type) -> Callable[[str], bool]:
    """Which files have points to switch at: the module of the target, what it imports from installed packages, and all that is neither installed, Python's nor kvproof's own."""
    module = sys.modules[target.__module__]
    own = str(module.__file__)
    wanted = tuple(map(_folder, _imported(module)))
    tools = tuple(
        _folder(found) for name, found in sys.modules.items() if name.startswith("kvproof") and name.count(".") < 2 and _folder(found)
    )
    python = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep)
    known: dict[str, bool] = {}

    def decide(file: str) -> bool:
        if file == own or file.startswith(_folder(production)):
            return True
        if file.startswith(tools):
            return False
        installed = "site-packages" in file or "dist-packages" in file
        return file.startswith(wanted) or not (installed or file.startswith(("<", *python)))

    def traced(file: str) -> bool:
        found = known.get(file)
        if found is None:
            found = known[file] = decide(file)
        return found

    return traced


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    """The top packages of what the adapter's module names, kvproof and Python left out: there the cache may lie, with its adapter elsewhere."""
    names = {module.__name__}
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        names.add(name if isinstance(name, str) else module.__name__)
    for top in sorted({name.partition(".")[0] for name in names} - {"kvproof", *sys.stdlib_module_names}):
        if top in sys.modules and _folder(sys.modules[top]):
            yield sys.modules[top]


def _folder(module: ModuleType) -> str:
    """Where the files of a package lie; the file itself of a module that is no package."""
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    return str(Path(file).parent) + os.sep if hasattr(module, "__path__") else file


def _programs(judge: Judge) -> list[Callable[[Run], None]]:
    return [_program(judge, thread) for thread in range(len(judge.scenario.threads))]


def _program(judge: Judge, thread: int) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        me = threading.get_ident()
        judge.at_work.add(me)
        try:
            run.thread(thread)
        finally:
            judge.at_work.discard(me)

    return work


# -- real threads ---------------------------------------------------------------------------------------------------------------------------------


def _under_stress(judge: Judge, outcome: Outcome, deadline: float, seed: int) -> None:  # noqa: ARG001 -- the machine is what is random
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        while time.monotonic() < deadline and not judge.done:
            run = judge.fresh()
            if not _together(run, len(judge.scenario.threads)):
                outcome.kind, outcome.reason = "stuck", f"threads were still at work after {RUN_SECONDS:g} s"
                return
            judge.holds(run)
    finally:
        sys.setswitchinterval(switch)


def _together(run: Run, count: int) -> bool:
    """Run all threads at once; whether they came to an end."""
    start = threading.Barrier(count)

    def work(thread: int) -> None:
        start.wait()
        run.thread(thread)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RUN_SECONDS)
    return not any(thread.is_alive() for thread in threads)
