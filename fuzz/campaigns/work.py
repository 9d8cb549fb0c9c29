"""A worker doing one order after the other. It knows nothing of other workers; what it has to be told comes with the order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from kvproof.fuzz.campaigns import devices
from kvproof.fuzz.campaigns.apart import program_apart, seed_apart, shrink_apart
from kvproof.fuzz.campaigns.examples import Relay
from kvproof.fuzz.campaigns.findings import finding_of
from kvproof.fuzz.campaigns.orders import Job, Kept, Order, Result
from kvproof.fuzz.campaigns.records import Record
from kvproof.fuzz.programs import Program
from kvproof.fuzz.runs import Found, Ran, Search, Tally, hypothesis_batch, run_kept, run_program
from kvproof.fuzz.shrink import HANG_SHRINK_OP_SECONDS, hangs_again, shrink, shrink_fault, shrink_hang
from kvproof.fuzz.verdicts import Finding
from kvproof.impl.checker import read_capabilities
from kvproof.properties.lockstep import ONLY_ONCE
from kvproof.properties.situations import masks, names, nothing_reached

SHRINK_SECONDS: Final = 1.5
"""Time to shrink one failure when it is found. Most reach their minimum within it."""

SHRINK_AGAIN_SECONDS: Final = 10.0
"""The same for one that stands for a cause, and that the conductor wants shorter."""

SHRINKS_PER_LAW: Final = 12
"""How many programs that break one law a worker shrinks whatever it costs."""

SHRINK_SHARE: Final = 0.1
"""Share of its time that a worker spends on further ones. A second fault behind the same law may be rare, so the search for it never ends; yet a cache that breaks a law in
every program would do nothing but shrink."""

HANGS_PER_ORDER: Final = 2
"""After so many hangs an order ends: each costs the time limit of an operation."""

Find = Callable[[str], type]
"""From the name of a target to its class."""


class Worker:
    """Does orders. `starts` is told the seed of every program before it runs."""

    def __init__(self, job: Job, find: Find, campaign: str, starts: Callable[[str], None]) -> None:
        self.job = job
        self.find = find
        self.campaign = campaign
        self.starts = starts
        self.known = nothing_reached()
        self.shrunk: Counter[str] = Counter()
        """How many programs that break a law were shrunk."""
        self.begun = time.monotonic()
        self.shrinking = 0.0
        """Seconds of it."""
        self.targets: dict[str, Search] = {}

    def do(self, order: Order) -> Result:
        """Run the programs of `order`."""
        begun = time.monotonic()
        if self.job.kernels:
            name = devices.KERNELS_CANARY if order.kind == "canary" else self.job.target
            return devices.judge(self.find(name), name, self.campaign, order)
        doing = _Doing(self, self._search(devices.CANARY if order.kind == "canary" else self.job.target), order)
        doing.run()
        return doing.result(time.monotonic() - begun)

    def may_shrink(self) -> bool:
        """Whether there is time for more than the first few programs of each law."""
        return self.shrinking < SHRINK_SHARE * (time.monotonic() - self.begun)

    def _search(self, name: str) -> Search:
        if name not in self.targets:
            target = self.find(name)
            self.targets[name] = Search(target, name, read_capabilities(target), 0, 1, float("inf"), self.job.op_seconds, None, frozenset())
        return self.targets[name]


class _Doing:
    """One order under way."""

    def __init__(self, worker: Worker, search: Search, order: Order) -> None:
        self.worker = worker
        self.search = search
        self.order = order
        self.tally = Tally()
        self.failures: Counter[str] = Counter()
        self.hangs = 0
        self.kept: list[Kept] = []
        self.findings: list[Finding] = []
        self.relay = Relay(order.examples)
        self.fresh: list[str] = []
        """Situations that were not known before."""
        self._know(masks(order.known))

    def run(self) -> None:
        """All programs of the order, or as many as it takes until it is not worth going on."""
        if self.order.kind == "shrink":
            target, op_seconds = self.search.target, self.search.op_seconds
            shrunk = (shrink(program, target, seconds=SHRINK_AGAIN_SECONDS, op_seconds=op_seconds) for program in self.order.parents)
            self.findings = [finding_of(program) for program in shrunk]
            return
        if self.order.kind == "machine":
            self.worker.starts(self.order.seed)
            found = hypothesis_batch(self.search, self.order.seed, self.tally, self.relay)
            if found is not None:
                self._found(found)
            return
        for ran in self._programs():
            self._note(ran)
            if self.hangs >= HANGS_PER_ORDER or (self.order.kind == "canary" and self.findings and self.findings[-1].law):
                return

    def _programs(self) -> Iterator[Ran]:
        order, careful = self.order, self.order.attempt > 1
        for index in range(len(order.parents) if order.kind == "replay" else order.programs):
            seed = f"{order.seed}:{index}"
            self.worker.starts(seed)
            if order.kind == "replay":
                program = order.parents[index]
                yield self._carefully(program, seed) if careful else run_kept(self.search, program, self.tally)
            else:
                yield (
                    self._carefully(None, seed)
                    if careful
                    else run_program(self.search, seed, self.tally, parents=order.parents, known=self.worker.known)
                )

    def _carefully(self, program: Program | None, seed: str) -> Ran:
        """One program in a process of its own: what ends that process is found."""
        apart = program_apart(self.search, program) if program else seed_apart(self.search, seed, self.order.parents)
        for field in ("programs", "operations"):
            setattr(self.tally, field, getattr(self.tally, field) + getattr(apart.tally, field))
        self.tally.exercised.update(apart.tally.exercised)
        self.tally.refusals.update(apart.tally.refusals)
        if apart.ran is not None:
            return apart.ran
        program = apart.program if self.failures[""] else shrink_apart(self.search, apart.program)  # only the first is told
        return Ran(program, Found("fault", program, shrunk=True), nothing_reached())

    def _note(self, ran: Ran) -> None:
        fresh = [mask & ~known for mask, known in zip(ran.reached, self.worker.known, strict=True)]
        if any(fresh):
            self._know(fresh)
            situations = names(fresh)
            self.fresh += situations
            if ran.found is None and self.order.kind == "swarm":
                self.kept.append(Kept(ran.beginning, tuple(situations)))
        if ran.found is not None:
            self._found(ran.found)

    def _know(self, reached: Sequence[int]) -> None:
        self.worker.known = [known | mask for known, mask in zip(self.worker.known, reached, strict=True)]

    def _found(self, found: Found) -> None:
        law = found.program.violation.law if found.program.violation else ""
        self.failures[law] += 1
        self.hangs += found.kind == "hang"
        if self.order.kind in ("canary", "replay"):
            self.findings.append(finding_of(found.program))
        elif self.failures[law] == 1 and (self.worker.shrunk[law] < SHRINKS_PER_LAW or self.worker.may_shrink()):
            self.worker.shrunk[law] += 1
            begun = time.monotonic()
            self.findings.append(finding_of(found.program if found.shrunk else self._shrunk(found)))
            self.worker.shrinking += time.monotonic() - begun

    def _shrunk(self, found: Found) -> Program:
        target, op_seconds = self.search.target, self.search.op_seconds
        if found.kind == "violation":
            return shrink(found.program, target, seconds=SHRINK_SECONDS, op_seconds=op_seconds)
        if found.kind == "fault":
            return shrink_fault(found.program, target, seconds=SHRINK_SECONDS, op_seconds=op_seconds)
        if not hangs_again(found.program, target, op_seconds=op_seconds):
            return msgspec.structs.replace(found.program, fault=found.program.fault + ONLY_ONCE)
        return shrink_hang(found.program, target, seconds=2 * SHRINK_SECONDS, op_seconds=min(op_seconds, HANG_SHRINK_OP_SECONDS))

    def result(self, seconds: float) -> Result:
        """What came of it."""
        order, tally = self.order, self.tally
        record = Record(
            self.worker.campaign,
            order.number,
            order.seed,
            order.attempt,
            tally.programs,
            tally.operations,
            seconds,
            dict(tally.exercised),
            dict(tally.refusals),
            tuple(self.fresh),
            dict(self.failures),
        )
        return Result(record, tuple(self.kept), tuple(self.findings), self.relay.kept, self.relay.dropped)
