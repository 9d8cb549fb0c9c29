"""The conductor of a campaign: gives out orders, takes in results, redoes what was lost, and stops at the right time.

    plan = Plan(...)
    conductor = Conductor(plan, crew, store)
    conductor.run(on_progress)
    conductor.broken()  # what fails now; `conductor.totals` and `conductor.incidents` say the rest

An order is written down before a worker has it, and crossed out once its record is kept. So whatever is killed, the conductor included, every batch ends up with exactly one
record: a batch without one is done again, and a record that comes twice is one record.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from kvproof.fuzz.campaigns.causes import Cause, causes
from kvproof.fuzz.campaigns.crew import Crew
from kvproof.fuzz.campaigns.faults import HarnessBroken
from kvproof.fuzz.campaigns.findings import distinct, finding_of, identity
from kvproof.fuzz.campaigns.orders import Failed, Lost, Order, Result
from kvproof.fuzz.campaigns.records import Record, Totals
from kvproof.fuzz.campaigns.store import Store
from kvproof.fuzz.mutants import parents_of
from kvproof.fuzz.programs import Program
from kvproof.fuzz.verdicts import Finding

Mode = Literal["gate", "batch", "replay"]

BATCH_SECONDS: Final = 2.0
"""How long an order should take: the longer it is, the fewer messages a conductor has to take, and the more is done again when a worker is lost."""

BATCH_SECONDS_PER_WORKER: Final = 0.02
"""With many workers an order takes longer: so many seconds for each of them. That keeps the rate of messages below 50 a second whatever their number; see docs/campaigns.md."""

FIRST_BATCH: Final = 40
"""Programs of an order as long as nobody knows how fast the target is."""

MOST_BATCH: Final = 5000
"""Programs of an order at most."""

MACHINE_EVERY: Final = 12
"""One order of so many goes to the Hypothesis machine."""

EXAMPLES: Final = 12
"""Kept examples that such an order brings along: Hypothesis spends a tenth of a batch on them, and may choose."""

MOST_EXAMPLES: Final = 200
"""Of more, as many as are too many are dropped: each batch adds some two dozen that nothing in that batch surpassed."""

REPLAYED_AT_ONCE: Final = 50
"""Kept programs of one order that replays them."""

SHRINK_AGAIN_SHARE: Final = 0.1
"""Share of the workers' time that is spent on making what stands for a cause shorter. What is still long does not show that it is another failure with something besides."""

NO_BATCH: Final = -1
"""The number of an order that leaves no record."""

CANARY_PROGRAMS: Final = 200
"""The canary breaks its law within a handful; if so many are not enough, something is wrong with the harness."""

SYNC_SECONDS: Final = 10.0
"""How often the corpus is read again, for what other campaigns have put there."""

FINISH_SECONDS: Final = 15.0
"""How long orders that are out may take after the end. What is not done by then stays written down, and is done when the campaign is resumed."""

TICK_SECONDS: Final = 0.25

MOST_ATTEMPTS: Final = 3
"""An order is given up after so many workers were lost with it: the second time each program has a process of its own, so a loss is no longer that of a program. A batch of the
Hypothesis machine is done again as it was: if the target kills its process, it does so each time."""

MOST_LOSSES_WITHOUT_BLAME: Final = 20
"""How often an order may be lost with machines that went away."""


class Plan(msgspec.Struct, frozen=True):
    """What a campaign is to do.

    `campaign`: its name, the same when it is resumed. `seconds`: of search in this run. `programs`: stop after so many instead, in batches of `batch` (for runs that can be
    repeated exactly). `stop_at_first`: end with the first failure that is not waived; otherwise distinct ones are collected.
    """

    campaign: str
    seed: int
    mode: Mode
    seconds: float
    batch: int | None = None
    programs: int | None = None
    stop_at_first: bool = False
    kernels: bool = False
    waived: frozenset[str] = frozenset()


class Progress(msgspec.Struct):
    """How far a campaign has come."""

    seconds: float
    plan: Plan
    workers: int
    caught: int
    """How often the canary was caught: once by each worker, before it does anything else."""
    totals: Totals
    programs_here: int
    """Programs of this run; the totals count those before a resumption too."""
    corpus: int
    causes: list[Cause]
    """Of everything that is kept."""
    incidents: list[str]


class Conductor:
    """One run of a campaign."""

    def __init__(self, plan: Plan, crew: Crew, store: Store) -> None:
        self.plan = plan
        self.crew = crew
        self.store = store
        self.rng = random.Random(f"{plan.seed}:{time.time_ns()}")
        """Chooses parents only: what an order holds is written down with it."""
        self.records = store.records()
        self.totals = Totals()
        for record in self.records.values():
            self.totals.add(record)
        self.corpus: list[Program] = store.corpus()
        self.examples: set[bytes] = set(store.examples())
        """What Hypothesis keeps."""
        self.findings: dict[str, Finding] = distinct(store.findings())
        self.new: list[str] = []
        """The identities of what this run found and nobody had found before."""
        self.seen_again: set[str] = set()
        """Those of kept findings that failed again in this run."""
        self.surpassed: list[Finding] = []
        """What was kept until this run found a shorter program of the same shape."""
        self.shrunk_again: set[str] = set()
        """The identities of what was given more time in this run."""
        self.shrinking = 0.0
        """Seconds of it."""
        self._causes: list[Cause] | None = None
        """Of `findings`, once somebody has asked."""
        self.incidents: list[str] = []
        """Lost workers and machines."""
        self.programs_here = 0
        self.waiting: deque[Order] = deque()
        self.out: dict[int, Order] = {}
        """worker -> its order."""
        self.owed: set[int] = set()
        """The orders that run kept failures again, and in a replay all of them: before these are done nothing can be said to hold."""
        self.losses: Counter[int] = Counter()
        self.proven: set[int] = set()
        self.caught = 0
        """How often the canary was caught in this run."""
        self.told: dict[int, int] = {}
        """worker -> how many of the known situations it was told."""
        self.known: list[str] = list(self.totals.situations)
        self._known = set(self.known)
        self._next = 1 + max((batch for _, batch in self.records if batch >= 0), default=-1)
        self._batch = plan.batch or FIRST_BATCH
        self._start = time.monotonic()
        self._synced = self._start
        self._stopping = False
        self._prepare()

    # -- running -------------------------------------------------------------------------------------------------------------------------------

    def run(self, on_progress: Callable[[Progress], None] = lambda _: None) -> None:
        """Until the plan is done. Raises HarnessBroken, and RuntimeError where kvproof itself failed in a worker."""
        self._start = self._synced = time.monotonic()
        while not self._over():
            self._give()
            for worker, answer in self.crew.wait(TICK_SECONDS):
                order = self.out.pop(worker)
                match answer:
                    case Result():
                        self._take(worker, order, answer)
                    case Lost():
                        self._mourn(worker, order, answer)
                    case Failed():
                        raise RuntimeError(f"kvproof failed in a worker:\n{answer.traceback}")
            self._sync()
            on_progress(self.progress())

    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(
            time.monotonic() - self._start,
            self.plan,
            self.crew.size,
            self.caught,
            self.totals,
            self.programs_here,
            len(self.corpus),
            self._all_causes(),
            self.incidents,
        )

    def broken(self) -> dict[str, Finding]:
        """What fails now: what this run found, and what was kept and failed again."""
        return {key: finding for key, finding in self.findings.items() if key in self.new or key in self.seen_again}

    @property
    def decided(self) -> bool:
        """Whether there is a verdict: a law is broken, or something was tried and no kept failure is left that was not run again."""
        return bool(self._accused()) or (self.totals.programs > 0 and not self.owed)

    def causes(self) -> list[Cause]:
        """What fails now, by cause."""
        return causes(self.broken().values())

    def fresh_causes(self) -> list[Cause]:
        """Those that nobody had met before this run: a further shape of a known cause is no news."""
        new = set(self.new)
        return [cause for cause in self.causes() if all(identity(member) in new for member in cause.members)]

    def _all_causes(self) -> list[Cause]:
        if self._causes is None:
            self._causes = causes(self.findings.values())
        return self._causes

    def _over(self) -> bool:
        if not self.caught:
            return False
        late = time.monotonic() - self._start
        self._stopping = self._stopping or late > self.plan.seconds or (self.plan.stop_at_first and bool(self._accused()))
        if self._stopping:
            if self.plan.stop_at_first and (self._accused() or not self.owed):
                return True
            return not (self.out or self.owed) or late > self.plan.seconds + FINISH_SECONDS
        return not self.out and not self.waiting and self._drawn_all()

    def _accused(self) -> list[str]:
        return [key for key, finding in self.broken().items() if finding.law not in self.plan.waived]

    def _drawn_all(self) -> bool:
        if self.plan.mode == "replay":
            return True
        return self.plan.programs is not None and self._next * self._batch >= self.plan.programs

    # -- orders --------------------------------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """What has to be done first: what was out when the campaign was killed, the failures that were kept, and in other modes than batch the corpus too."""
        latest: dict[int, Order] = {}
        for order in self.store.open_orders():
            past = latest.get(order.number)
            if order.number < 0 or (self.plan.campaign, order.number) in self.records:
                past = order
            else:
                latest[order.number] = order
            if past is not None:
                self.store.close_order(past)
        self.waiting.extend(self._replays())
        self.waiting.extend(latest.values())
        self._next = max([self._next, *(number + 1 for number in latest)])
        done = {batch for campaign, batch in self.records if campaign == self.plan.campaign}
        # A batch with neither a record nor an order: what was written of it can no longer be read.
        self.waiting.extend(self._draw(number) for number in range(self._next) if number not in done and number not in latest)

    def _replays(self) -> Iterator[Order]:
        """What was kept, the failures first. The numbers are below 0, so that the batches that are drawn have the same numbers whatever was replayed before."""
        failures = [finding.program for finding in self.findings.values() if isinstance(finding.program, Program)]
        kept = failures + (self.corpus if self.plan.mode != "batch" else [])
        for first in range(0, len(kept), REPLAYED_AT_ONCE):
            programs = tuple(kept[first : first + REPLAYED_AT_ONCE])
            order = Order(-2 - first, "replay", f"{self.plan.seed}:replay-{first}", len(programs), programs)
            if first < len(failures) or self.plan.mode == "replay":
                self.owed.add(order.number)
            yield order

    def _give(self) -> None:
        self._ask_for_shorter()
        for worker in self.crew.free():
            if self._stopping and self.caught and not self._owed_first():
                return
            if worker not in self.proven:
                self.out[worker] = Order(NO_BATCH, "canary", "canary:0", CANARY_PROGRAMS)
                self.crew.give(worker, self.out[worker])
                continue
            if not self.waiting and not self._drawn_all():
                self.waiting.append(self._draw(self._next))
                self._next += 1
            if self.waiting:
                self._send(worker, self.waiting.popleft())

    def _owed_first(self) -> bool:
        """Put an order that is owed before all that waits; whether there is one."""
        owed = next((order for order in self.waiting if order.number in self.owed), None)
        if owed is not None:
            self.waiting.remove(owed)
            self.waiting.appendleft(owed)
        return owed is not None

    def _ask_for_shorter(self) -> None:
        """Ask for a shorter program for one cause, the one with the longest, while there is time for that. It is no batch: one that is lost is not done again."""
        plan, budget = self.plan, SHRINK_AGAIN_SHARE * self.crew.size * (time.monotonic() - self._start)
        busy = any(order.kind == "shrink" for order in (*self.waiting, *self.out.values()))
        if plan.mode != "batch" or plan.stop_at_first or self._stopping or busy or self.shrinking >= budget:
            return
        for cause in reversed(self.causes()):
            key, program = identity(cause.first), cause.first.program
            if cause.first.law and isinstance(program, Program) and key not in self.shrunk_again:
                self.shrunk_again.add(key)
                self.waiting.appendleft(Order(NO_BATCH, "shrink", f"{plan.seed}:shrink", 1, (program,)))
                return

    def _draw(self, number: int) -> Order:
        seed = f"{self.plan.seed}:{number}"
        if self.plan.kernels:
            return Order(number, "kernels", seed, 1)
        if self.plan.programs is None and number % MACHINE_EVERY == MACHINE_EVERY - 1:
            examples = self.rng.sample(sorted(self.examples), min(EXAMPLES, len(self.examples)))
            return Order(number, "machine", seed, 1, examples=tuple(examples))
        parents = parents_of(self.rng, self.corpus)
        size = self._batch
        if self.plan.programs is not None:
            size = min(size, self.plan.programs - number * self._batch)
        return Order(number, "swarm", seed, size, parents)

    def _send(self, worker: int, order: Order) -> None:
        if order.kind != "shrink":
            self.store.open_order(order)
        self.out[worker] = order
        fresh = tuple(self.known[self.told.get(worker, 0) :])
        self.told[worker] = len(self.known)
        self.crew.give(worker, msgspec.structs.replace(order, known=fresh))

    # -- answers -------------------------------------------------------------------------------------------------------------------------------

    def _take(self, worker: int, order: Order, result: Result) -> None:
        if order.kind == "canary":
            if not any(finding.law for finding in result.findings):
                raise HarnessBroken(
                    "The canary, a cache with a seeded bug, broke no law: this campaign could not have found anything. "
                    "Reinstall kvproof, and report this if it stays."
                )
            self.proven.add(worker)
            self.caught += 1
            return
        if order.kind == "shrink":
            self.shrinking += result.record.seconds
            for shorter in result.findings:
                self._replace(self.findings[identity(finding_of(order.parents[0]))], shorter)
            return
        for kept in result.kept:
            if not self._known.issuperset(kept.situations):  # another worker may have been first
                self._keep_program(kept.program)
                self._know(kept.situations)
        self._know(result.record.situations)
        for finding in result.findings:
            self._keep_finding(finding)
        self._keep_examples(result)
        self._close(order, result.record)
        if self.plan.batch is None and order.kind == "swarm" and order.attempt == 1 and result.record.programs:
            rate = result.record.programs / max(result.record.seconds, 1e-3)
            wanted = rate * max(BATCH_SECONDS, BATCH_SECONDS_PER_WORKER * self.crew.size)
            self._batch = max(1, min(MOST_BATCH, int((self._batch + wanted) / 2)))
        if result.sticky:
            self.incidents.append(f"A device keeps an error after batch {order.number}; its process was replaced")
            self._forget(worker)
            self.crew.replace(worker)

    def _mourn(self, worker: int, order: Order, lost: Lost) -> None:
        """A worker is gone. What it did is done again, carefully if the target may have killed it."""
        self._forget(worker)
        if order.kind == "canary":
            self.incidents.append(f"{lost.how}, before it had done anything")
            if lost.blame:
                raise HarnessBroken(
                    f"{lost.how}, while it ran the canary, which never touches the target: this machine cannot run the campaign."
                )
            return
        if order.kind == "shrink":
            self.incidents.append(f"{lost.how}, while a failure was made shorter")
            return
        self.incidents.append(f"{lost.how}; batch {order.number} is done again")
        self.losses[order.number] += 1
        if not lost.blame and self.losses[order.number] <= MOST_LOSSES_WITHOUT_BLAME:
            again = order
        elif lost.blame and order.attempt < MOST_ATTEMPTS and order.kind != "kernels":
            again = msgspec.structs.replace(order, attempt=order.attempt + 1)
        else:
            self._give_up(order, lost)
            return
        if again is not order:  # written down before the old one is crossed out, so that a batch is never without an order
            self.store.open_order(again)
            self.store.close_order(order)
        self.waiting.appendleft(again)

    def _give_up(self, order: Order, lost: Lost) -> None:
        told = f"{lost.how}; the target ends or blocks its process."
        self._keep_finding(Finding("", told, f"seed {lost.seed or order.seed}", 1))
        self._close(order, Record(self.plan.campaign, order.number, order.seed, order.attempt, lost=lost.how, failures={"": 1}))

    def _close(self, order: Order, record: Record) -> None:
        """The batch is over. This comes last: one with a record is not done again, so what it found has to be kept by then."""
        self._keep_record(record)
        self.store.close_order(order)
        self.owed.discard(order.number)

    def _forget(self, worker: int) -> None:
        self.proven.discard(worker)
        self.told.pop(worker, None)

    # -- what is kept --------------------------------------------------------------------------------------------------------------------------

    def _keep_record(self, record: Record) -> None:
        batch = (record.campaign, record.batch)
        if batch in self.records:
            return
        self.store.keep_record(record)
        self.records[batch] = record
        self.totals.add(record)
        self.programs_here += record.programs

    def _keep_program(self, program: Program) -> None:
        self.store.keep(program)
        self.corpus.append(program)

    def _keep_examples(self, result: Result) -> None:
        fresh = set(result.examples) - self.examples
        self.examples = (self.examples | fresh) - set(result.surpassed)
        surplus = self.rng.sample(sorted(self.examples), max(0, len(self.examples) - MOST_EXAMPLES))
        self.examples.difference_update(surplus)
        for example in fresh & self.examples:
            self.store.keep_example(example)
        for example in {*result.surpassed, *surplus} - fresh:
            self.store.drop_example(example)

    def _know(self, situations: Iterable[str]) -> None:
        self.known += [situation for situation in situations if situation not in self._known]
        self._known.update(situations)

    def _keep_finding(self, finding: Finding) -> None:
        key = identity(finding)
        before = self.findings.get(key)
        if before is None:
            self.new.append(key)
        elif key not in self.new:
            self.seen_again.add(key)
        best = distinct([finding] if before is None else [before, finding])[key]
        if best is not before:
            self.store.keep_finding(best)
            if before is not None:
                self.store.drop_finding(before)
                self.surpassed.append(before)
            self.findings[key] = best
            self._causes = None

    def _replace(self, finding: Finding, shorter: Finding) -> None:
        """`shorter` is the same failure, shrunk further. It is kept before the longer one is dropped."""
        key, old = identity(shorter), identity(finding)
        self.shrunk_again.add(key)
        met = key in self.findings
        self._keep_finding(shorter)
        if key == old or shorter.law != finding.law:  # a leak that was made shorter may break another law: both are told
            return
        if not met and old in self.seen_again:  # no news either
            self.new.remove(key)
            self.seen_again.add(key)
        self.store.drop_finding(finding)
        self.surpassed.append(finding)
        del self.findings[old]
        self._causes = None

    def _sync(self) -> None:
        """Take in what other campaigns on this target have put into the store."""
        if time.monotonic() - self._synced < SYNC_SECONDS:
            return
        self._synced = time.monotonic()
        mine: set[Program] = set(self.corpus)
        self.corpus += [program for program in self.store.corpus() if program not in mine]
        self.examples = set(self.store.examples())
