"""Spend a budget on a target and answer every law.

Each worker runs the programs of seeds (`runs` says how one is drawn), and now and then a batch from the Hypothesis machine; program i of seed s is the same whoever
runs it. When a law breaks, its program is shrunk at once, and the search goes on for a moment: other programs often shrink to something shorter, or break a law nearer to
the cause.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Literal

import msgspec

from kvproof.fuzz.processes import end_with_work_or_parent, forking, how_it_ended, process_context
from kvproof.fuzz.programs import FORMAT, Program
from kvproof.fuzz.reports.wording import left_out
from kvproof.fuzz.runs import Found, Search, Tally, hypothesis_batch, run_seed
from kvproof.fuzz.shrink import HANG_SHRINK_OP_SECONDS, hangs_again, shrink, shrink_fault, shrink_hang
from kvproof.fuzz.verdicts import Finding, Report, computed_nothing, law_verdicts
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.models.laws import BY_NAME, LAWS
from kvproof.properties.lockstep import ONLY_ONCE, OP_SECONDS, show_life_to, told_hang

BUDGETS: Final[dict[str, float]] = {"quick": 10.0, "ci": 30.0, "nightly": 600.0}
"""Seconds of search for each named budget."""

GRACE_SECONDS: Final = 3.0
"""How long the search goes on after the first broken law, for shorter programs and for laws nearer to the cause."""

LONG_GRACE_SECONDS: Final = 10.0
"""The same while the shortest program for a law is too long to be shown: an ordinary one may come that shrinks where a long one does not."""

WORKER_SHRINK_SECONDS: Final = 1.5
"""A first shrink in the worker, so that the programs of different workers can be compared by length."""

FINAL_SHRINK_SECONDS: Final = 8.0
"""The last shrink of the shortest program of each law, all laws together."""

HYPOTHESIS_SHARE: Final = 0.12
"""Share of its time that each worker gives to the Hypothesis machine. It is several times slower than the swarm, but its bundles lean elsewhere."""

SHRINKS_PER_LAW: Final = 6
"""How many programs that break the same law a worker shrinks."""

HANGS_PER_WORKER: Final = 2
"""After a hang the search goes on, since a broken law may lie behind it; but each further one costs the time limit of an operation."""

REPORT_SECONDS: Final = 0.25
"""How often a worker reports its progress."""


class Progress(msgspec.Struct):
    """How far a check has come."""

    programs: int
    operations: int
    seconds: float
    budget_seconds: float
    exercised: dict[str, int]
    phase: Literal["swarm", "hypothesis", "shrinking"] = "swarm"


class Crash(msgspec.Struct):
    """kvproof itself failed in a worker."""

    traceback: str


class Done(msgspec.Struct):
    """The last message of a worker: there is nothing more to tell."""


def check(
    target: type,
    *,
    name: str,
    seconds: float,
    seed: int,
    workers: int = 1,
    apart: bool = False,
    op_seconds: float = OP_SECONDS,
    programs: int | None = None,
    waived: frozenset[str] = frozenset(),
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Judge `target` within `seconds` on `workers` processes. Never raises for what the target does: see `Report.verdict` and `Report.error`.

    A single worker works in this process, which a target may end, unless it is to work `apart`. `programs` limits the number of swarm programs, for runs that must be the same each time. A broken law in `waived` does not end the search.
    """
    start = time.monotonic()
    try:
        capabilities = read_capabilities(target)
    except AdapterFault as fault:
        return Report(FORMAT, name, "error", {}, [], 0, 0, time.monotonic() - start, seed, error=str(fault))
    search = Search(target, name, capabilities, seed, workers, start + seconds, op_seconds, programs, waived)
    gathering = Gathering(search, start, seconds, on_progress)
    if workers > 1 or apart:
        _run_processes(search, gathering)
    else:
        for message in work_of(search, 0, gathering.stop_at):
            gathering.take(message)
    if not gathering.shortest:
        gathering.tell("swarm", now=True)  # a run that is over before the first report is told too
    return gathering.report()


# -- one worker -----------------------------------------------------------------------------------------------------------------------------------


def work_of(
    search: Search, worker: int, stop_at: Callable[[], float], starts: Callable[[int], None] = lambda _: None
) -> Iterator[Tally | Found]:
    """The programs of one worker, until `stop_at()`; yields what it has done and what it found. `starts` is told each program before it runs."""
    tally, told = Tally(), time.monotonic()
    started, machine_seconds, batch = told, 0.0, 0
    shrunk: Counter[str] = Counter()
    hangs = 0
    index = worker
    while time.monotonic() < min(search.deadline, stop_at()) and (search.programs is None or index < search.programs):
        now = time.monotonic()
        if now - started > 1 and machine_seconds < HYPOTHESIS_SHARE * (now - started) and search.programs is None:
            found = hypothesis_batch(search, f"{search.seed}:{worker}:{batch}", tally)
            batch += 1
            machine_seconds += time.monotonic() - now
        else:
            starts(index)
            found = run_seed(search, f"{search.seed}:{index}", tally)
            index += search.workers
        if found is not None:
            yield found
            key = found.program.violation.law if found.program.violation else found.kind
            if found.kind == "violation" and shrunk[key] < SHRINKS_PER_LAW:
                shrunk[key] += 1
                short = shrink(found.program, search.target, seconds=WORKER_SHRINK_SECONDS, op_seconds=search.op_seconds)
                yield Found(found.kind, short, shrunk=True)
            elif found.kind == "hang":
                hangs += 1
                if hangs == HANGS_PER_WORKER:
                    break
        if time.monotonic() - told > REPORT_SECONDS:
            yield tally
            tally, told = Tally(), time.monotonic()
    yield tally


# -- all workers ------------------------------------------------------------------------------------------------------------------------------------


class Gathering:
    """What came from the workers, and when they should stop."""

    def __init__(self, search: Search, start: float, seconds: float, on_progress: Callable[[Progress], None] | None) -> None:
        self.search = search
        self.start = start
        self.seconds = seconds
        self.total = Tally()
        self.shortest: dict[str, Program] = {}
        """The shortest program found for each broken law."""
        self.fault: Found | None = None
        self.died = ""
        self._on_progress = on_progress
        self._told = 0.0
        self._stop = float("inf")

    def stop_at(self) -> float:
        """The time, on the monotonic clock, at which the search ends early."""
        return self._stop

    def take(self, message: Tally | Found) -> None:
        """Count one message of a worker."""
        if isinstance(message, Found):
            self._take_found(message)
        else:
            self.total.programs += message.programs
            self.total.operations += message.operations
            self.total.exercised.update(message.exercised)
            self.total.refusals.update(message.refusals)
        self.tell("swarm" if not self.shortest else "shrinking")

    def tell(self, phase: Literal["swarm", "hypothesis", "shrinking"], *, now: bool = False) -> None:
        """Report progress, a few times a second."""
        elapsed = time.monotonic() - self.start
        if self._on_progress is not None and (now or elapsed - self._told > REPORT_SECONDS):
            self._told = elapsed
            self._on_progress(
                Progress(
                    self.total.programs,
                    self.total.operations,
                    elapsed,
                    self.seconds,
                    {law: times for law, times in self.total.exercised.items() if law in BY_NAME},
                    phase,
                )
            )

    def _take_found(self, found: Found) -> None:
        if found.kind != "violation":
            if self.fault is None or len(found.program.ops) < len(self.fault.program.ops):
                self.fault = found
            self._end_soon(GRACE_SECONDS)
            return
        violation = found.program.violation
        assert violation is not None
        best = self.shortest.get(violation.law)
        if best is None or len(found.program.ops) < len(best.ops):
            self.shortest[violation.law] = best = found.program
        if violation.law not in self.search.waived:
            grace = LONG_GRACE_SECONDS if left_out(len(best.ops)) else GRACE_SECONDS
            self._end_soon(min(grace, self.seconds / 3))

    def _end_soon(self, seconds: float) -> None:
        self._stop = min(self._stop, time.monotonic() + seconds)

    def report(self) -> Report:
        """Shrink what was found a last time, and answer every law."""
        findings = self._findings()
        broken = {finding.law for finding in findings}
        verdicts = law_verdicts(self.search.capabilities, self.total.exercised, broken, set(self.search.waived))
        error, program = ("", None) if broken - self.search.waived else self._error()
        error = error or ("" if broken else computed_nothing(self.total.programs, self.total.exercised, self.total.refusals))
        return Report(
            FORMAT,
            self.search.name,
            "broken" if broken - self.search.waived else ("error" if error else "held"),
            verdicts,
            findings,
            self.total.programs,
            self.total.operations,
            time.monotonic() - self.start,
            self.search.seed,
            error=error,
            refusals=dict(self.total.refusals),
            error_program=program,
        )

    def _findings(self) -> list[Finding]:
        by_law: dict[str, Program] = {}
        for program in self.shortest.values():
            self.tell("shrinking", now=True)
            short = shrink(
                program, self.search.target, seconds=FINAL_SHRINK_SECONDS / len(self.shortest), op_seconds=self.search.op_seconds
            )
            assert short.violation is not None
            best = by_law.get(short.violation.law)
            if best is None or len(short.ops) < len(best.ops):
                by_law[short.violation.law] = short
        order = {law.name: rank for rank, law in enumerate(LAWS)}
        findings = [
            Finding(law, program.violation.reason if program.violation else "", program, len(program.ops))
            for law, program in by_law.items()
        ]
        return sorted(findings, key=lambda finding: (finding.law in self.search.waived, finding.steps, order[finding.law]))

    def _error(self) -> tuple[str, Program | None]:
        if self.fault is None:
            return self.died, None
        program, search = self.fault.program, self.search
        if self.fault.kind == "fault":
            program = shrink_fault(program, search.target, op_seconds=search.op_seconds)
            return program.fault, program
        if not hangs_again(program, search.target, op_seconds=search.op_seconds):
            once = msgspec.structs.replace(program, fault=program.fault + ONLY_ONCE)
            return told_hang(once.ops, once.fault), once
        best = shrink_hang(program, search.target, seconds=FINAL_SHRINK_SECONDS, op_seconds=HANG_SHRINK_OP_SECONDS)
        return told_hang(best.ops, program.fault), best


# -- processes ----------------------------------------------------------------------------------------------------------------------------------------


class Worker(msgspec.Struct):
    """A process that does the work of one worker."""

    process: Any
    number: int
    heard: float
    """When it last sent anything, on the monotonic clock. In the middle of a long program it only gives signs of life."""
    done: bool = False
    """Whether it has told all that it found. A process that ends before is dead, whatever its exit code: a target may end it with 0."""


def _run_processes(search: Search, gathering: Gathering) -> None:
    """Do the work of each worker in a process of its own. A process that dies or stalls is a fault of the target."""
    context: Any = process_context()
    stop = context.Value("d", float("inf"))
    starts = context.Array("q", search.workers)
    beats = context.Array("d", search.workers, lock=False)
    running: dict[Connection, Worker] = {}
    with forking():
        for number in range(search.workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(search, number, stop, starts, beats, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = Worker(process, number, time.monotonic())
    try:
        while running:
            _receive(search, gathering, running, starts, beats)
            stop.value = gathering.stop_at()
    finally:
        for worker in running.values():
            worker.process.kill()


def _receive(search: Search, gathering: Gathering, running: dict[Connection, Worker], starts: Any, beats: Any) -> None:  # noqa: ANN401 -- shared arrays
    for ready in wait(list(running), timeout=REPORT_SECONDS):
        assert isinstance(ready, Connection)
        worker = running[ready]
        try:
            message = ready.recv()
        except EOFError:
            worker.process.join()
            if worker.process.exitcode or not worker.done:
                what = f"died with {how_it_ended(worker.process.exitcode)}"
                gathering.died = (
                    f"A worker process {what} in or soon after program {search.seed}:{starts[worker.number]}; the target crashed it. "
                    f"`kvproof fuzz {search.name} --budget 30` finds the operation and keeps the program."
                )
            del running[ready]
            continue
        if isinstance(message, Crash):
            raise RuntimeError(f"kvproof failed in a worker:\n{message.traceback}")
        if isinstance(message, Done):
            worker.done = True
        else:
            gathering.take(message)
        worker.heard = time.monotonic()
    patience = 3 * search.op_seconds + WORKER_SHRINK_SECONDS + 10
    for connection, worker in list(running.items()):
        if time.monotonic() - max(worker.heard, beats[worker.number]) > patience:
            worker.process.kill()
            del running[connection]
            what = f"gave no sign of life for {patience:.0f} s"
            gathering.died = (
                f"A worker process {what} in or soon after program {search.seed}:{starts[worker.number]}; the target blocks it."
            )
    gathering.tell("swarm")


def _work(search: Search, number: int, stop: Any, starts: Any, beats: Any, connection: Connection) -> None:  # noqa: ANN401 -- shared values of multiprocessing
    def note(index: int) -> None:
        starts[number] = index

    def alive() -> None:
        beats[number] = time.monotonic()

    end_with_work_or_parent()
    show_life_to(alive)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            for message in work_of(search, number, lambda: stop.value, note):
                connection.send(message)
            connection.send(Done())
        except Exception:  # noqa: BLE001 -- told to the parent, which raises it
            connection.send(Crash(traceback.format_exc()))
    connection.close()
