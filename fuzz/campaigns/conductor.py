"""The conductor of a campaign: gives out orders, takes in results, redoes what was lost, and stops at the right time.

    plan = Plan(...)
    conductor = Conductor(plan, crew, store)
    conductor.run(on_progress)
    conductor.failures.broken()  # what fails now; `conductor.totals` and `conductor.incidents` say the rest

An order is written down before a worker has it, and crossed out once its record is kept. So whatever is killed, the conductor included, every batch ends up with exactly one
record: a batch without one is done again, and a record that comes twice is one record.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from kvproof.fuzz.campaigns.causes import Cause
from kvproof.fuzz.campaigns.corpus import Corpus
from kvproof.fuzz.campaigns.crew import Crew
from kvproof.fuzz.campaigns.failures import Failures
from kvproof.fuzz.campaigns.faults import BadStore, HarnessBroken
from kvproof.fuzz.campaigns.findings import batch_of, finding_of, given_up, identity
from kvproof.fuzz.campaigns.orders import NO_BATCH, Failed, Lost, Order, Result
from kvproof.fuzz.campaigns.records import Record, Totals
from kvproof.fuzz.campaigns.store import Store
from kvproof.fuzz.mutants import parents_of
from kvproof.fuzz.programs import Program

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

REPLAYED_AT_ONCE: Final = 50
"""Kept programs of one order that replays them."""

SHRINK_AGAIN_SHARE: Final = 0.1
"""Share of the workers' time that is spent on making what stands for a cause shorter. What is still long does not show that it is another failure with something besides."""

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
        self.corpus = Corpus(store, self.rng, self.totals.situations)
        self.failures = Failures(store)
        self.shrunk_again: set[str] = set()
        """The identities of what was given more time in this run."""
        self.shrinking = 0.0
        """Seconds of it."""
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
        self._next = 1 + max((batch for _, batch in self.records if batch >= 0), default=-1)
        self._batch = plan.batch or FIRST_BATCH
        self._start = time.monotonic()
        self._synced = self._start
        self._stopping = False
        self._prepare()

    # -- running -------------------------------------------------------------------------------------------------------------------------------

    def run(self, on_progress: Callable[[Progress], None] = lambda _: None) -> None:
        """Until the plan is done. Raises BadStore, HarnessBroken, and RuntimeError where kvproof itself failed in a worker."""
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
                        if answer.unwritable:
                            raise BadStore(answer.unwritable)
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
            len(self.corpus.programs),
            self.failures.all_causes(),
            self.incidents,
        )

    @property
    def decided(self) -> bool:
        """Whether there is a verdict: a law is broken, or something was tried and no kept failure is left that was not run again."""
        return bool(self._accused()) or (self.totals.programs > 0 and not self.owed)

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
        return [key for key, finding in self.failures.broken().items() if finding.law not in self.plan.waived]

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
        failures = [finding.program for finding in self.failures.found.values() if isinstance(finding.program, Program)]
        kept = failures + (self.corpus.programs if self.plan.mode != "batch" else [])
        for first in range(0, len(kept), REPLAYED_AT_ONCE):
            programs = tuple(kept[first : first + REPLAYED_AT_ONCE])
            order = Order(-2 - first, "replay", f"{self.plan.seed}:replay-{first}", len(programs), programs)
            if first < len(failures) or self.plan.mode == "replay":
                self.owed.add(order.number)
            yield order
        for index, finding in enumerate(self.failures.found.values()):
            if (batch := batch_of(finding)) is not None:
                order = msgspec.structs.replace(batch, number=-2 - len(kept) - index)
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
        for cause in reversed(self.failures.causes()):
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
            examples = self.rng.sample(sorted(self.corpus.examples), min(EXAMPLES, len(self.corpus.examples)))
            return Order(number, "machine", seed, 1, examples=tuple(examples))
        parents = parents_of(self.rng, self.corpus.programs)
        size = self._batch
        if self.plan.programs is not None:
            size = min(size, self.plan.programs - number * self._batch)
        return Order(number, "swarm", seed, size, parents)

    def _send(self, worker: int, order: Order) -> None:
        if order.kind != "shrink":
            self.store.open_order(order)
        self.out[worker] = order
        fresh = tuple(self.corpus.situations[self.told.get(worker, 0) :])
        self.told[worker] = len(self.corpus.situations)
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
                self.shrunk_again.add(identity(shorter))
                self.failures.replace(self.failures.found[identity(finding_of(order.parents[0]))], shorter)
            return
        self.corpus.take(result)
        for finding in result.findings:
            self.failures.keep(finding)
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
        self.failures.keep(given_up(told, lost.seed or order.seed))
        self._close(order, Record(self.plan.campaign, order.number, order.seed, order.attempt, lost=lost.how, failures={"": 1}))

    def _close(self, order: Order, record: Record) -> None:
        """The batch is over. This comes last: one with a record is not done again, so what it found has to be kept by then."""
        self._keep_record(record)
        self.store.close_order(order)
        self.owed.discard(order.number)

    def _forget(self, worker: int) -> None:
        self.proven.discard(worker)
        self.told.pop(worker, None)

    def _keep_record(self, record: Record) -> None:
        batch = (record.campaign, record.batch)
        if batch in self.records:
            return
        self.store.keep_record(record)
        self.records[batch] = record
        self.totals.add(record)
        self.programs_here += record.programs

    def _sync(self) -> None:
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._synced = time.monotonic()
            self.corpus.sync()
