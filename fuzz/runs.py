"""One program on a target, and what came of it. Every search is made of these: `check` spends a budget on them, a campaign runs them for hours on many machines.

The seed of a program says which generator draws it: the swarm, from the seed alone or out of kept programs (`mutants`), or, one time in a hundred, a scheduler that serves
requests and draws a long one (`serving`). Either is drained at its end. So a check, a campaign, a cluster and a replay of a seed all run the same program. The Hypothesis
machine makes batches.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal

import msgspec
from hypothesis.database import ExampleDatabase

from kvproof.fuzz.mutants import mutant
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.serving import Serving, serving_pool
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import AdapterFault, Hung
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Op
from kvproof.models.spec import Spec
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep, time_limit
from kvproof.properties.machine_runs import run_machine
from kvproof.properties.situations import Reached, Watcher, nothing_reached

MACHINE_SECONDS: Final = 2.0
"""Length of one batch of the Hypothesis machine; its first program is always the trivial one, so very short batches waste it."""

MACHINE_PROGRAMS: Final = 60
"""The most programs of one such batch."""

MACHINE_STEPS: Final = 40
"""The most rules of one of its programs."""

SERVING_LENGTH: Final = 400
"""Operations of a long program: enough to fill a pool several times over."""

SERVING_EVERY: Final = 100
"""One seed in so many is that of a long program: about a tenth of the operations."""

Kind = Literal["violation", "fault", "hang"]


class Found(msgspec.Struct):
    """A program that shows something, and whether it was shrunk already."""

    kind: Kind
    program: Program
    shrunk: bool = False


class Tally(msgspec.Struct):
    """What a worker has done since it last reported."""

    programs: int = 0
    operations: int = 0
    exercised: Counter[str] = msgspec.field(default_factory=Counter)
    refusals: Counter[str] = msgspec.field(default_factory=Counter)


class Search(msgspec.Struct):
    """What is searched, and within which limits."""

    target: type
    name: str
    capabilities: Capabilities
    seed: int
    workers: int
    deadline: float
    op_seconds: float
    programs: int | None
    waived: frozenset[str]


class Ran(msgspec.Struct):
    """One program that ran: its operations, the situations that it reached, what it showed, and after how many operations it reached the last situation that was new."""

    program: Program
    found: Found | None
    reached: Reached
    frontier: int = 0

    @property
    def beginning(self) -> Program:
        """The program up to there: what comes after it reached nothing new."""
        return msgspec.structs.replace(self.program, ops=self.program.ops[: self.frontier])


Driver = Callable[..., Lockstep]
"""Builds the lockstep driver of a program: `Lockstep`, or a class of its own that also notes what is about to run."""

Draw = Callable[[Spec], Iterable[Op]]
"""Draws the operations of a program, each from the spec as it stands once the one before has run."""


def run_seed(search: Search, seed: str, tally: Tally) -> Found | None:
    """Run the program of `seed`, and count it."""
    return run_program(search, seed, tally, watch=False).found


def run_program(
    search: Search,
    seed: str,
    tally: Tally,
    *,
    parents: Sequence[Program] = (),
    watch: bool = True,
    known: Reached | None = None,
    driver: Driver = Lockstep,
    choices: random.Random | None = None,
) -> Ran:
    """Run the program of `seed`, and count it. With `parents` it may be made out of one or two of them; the same seed and parents give the same program.

    `known`: situations that are not new. `choices` makes the choices of the swarm instead of a generator seeded with `seed`.
    """
    if choices is None and is_long(seed):
        pool, draw = _served(search.capabilities, random.Random(seed))
    else:
        pool, draw = _swarmed(search.capabilities, choices or random.Random(seed), parents)
    return _run(search, _program(search, seed, pool), tally, draw, driver=driver, watch=watch, known=known)


def is_long(seed: str) -> bool:
    """Whether the program of `seed` is a long one. It is a property of the seed, so that a seed says all that is needed to run its program again."""
    return zlib.crc32(seed.encode()) % SERVING_EVERY == 0


def _served(capabilities: Capabilities, rng: random.Random) -> tuple[PoolConfig, Draw]:
    pool = serving_pool(rng, capabilities)

    def drawn(spec: Spec) -> Iterator[Op]:
        serving = Serving(rng, capabilities, num_blocks=pool.num_blocks, block_size=pool.block_size)
        yield from islice(serving.ops(spec), SERVING_LENGTH)
        yield from drain(rng, spec, serving.next_seq)

    return pool, drawn


def _swarmed(capabilities: Capabilities, rng: random.Random, parents: Sequence[Program]) -> tuple[PoolConfig, Draw]:
    made = mutant(rng, parents) if parents else None
    config = Config(rng, capabilities) if made is None else made.config
    pool = PoolConfig(config.num_blocks, config.block_size)

    def drawn(spec: Spec) -> Iterator[Op]:
        swarm = Swarm(rng, capabilities, num_blocks=pool.num_blocks, block_size=pool.block_size)
        if made is not None:
            swarm.go_on(made.ops, made.more)
            yield from made.ops
        yield from swarm.ops(spec)
        yield from drain(rng, spec, swarm.next_seq)

    return pool, drawn


def run_kept(search: Search, program: Program, tally: Tally, *, driver: Driver = Lockstep) -> Ran:
    """Run a kept program as it stands, and count it."""
    ran = _run(search, program, tally, lambda _: program.ops, driver=driver)
    return ran if ran.found else msgspec.structs.replace(ran, program=program)


def _run(
    search: Search,
    program: Program,
    tally: Tally,
    draw: Draw,
    *,
    driver: Driver = Lockstep,
    watch: bool = True,
    known: Reached | None = None,
) -> Ran:
    """Run what `draw` makes of the spec as it stands, one operation after the other, on the pool of `program`."""
    pool = program.config
    lockstep: Lockstep | None = None
    watcher: Watcher | None = None
    kind: Kind | None = None
    shown: dict[str, object] = {}
    try:
        with time_limit(search.op_seconds):
            lockstep = driver(search.target, num_blocks=pool.num_blocks, block_size=pool.block_size, capabilities=search.capabilities)
            watcher = Watcher(lockstep, known) if watch else None
            for op in draw(lockstep.spec):
                if lockstep.do(op) and watcher is not None:
                    watcher.note(op)
    except LawBroken as broken:
        kind, shown = "violation", {"violation": broken.violation}
    except AdapterFault as fault:
        kind, shown = "fault", {"fault": str(fault)}
    except Hung as hung:
        kind, shown = "hang", {"fault": str(hung)}
    finally:
        tally.programs += 1
        if lockstep is not None:
            tally.operations += len(lockstep.ops)
            tally.exercised.update(lockstep.spec.exercised)
            tally.refusals.update(lockstep.refusals)
    ran = msgspec.structs.replace(
        program, **{"ops": tuple(lockstep.ops) if lockstep else program.ops, "violation": None, "fault": "", **shown}
    )
    found = None if kind is None else Found(kind, ran)
    return Ran(ran, found, watcher.reached if watcher else nothing_reached(), watcher.frontier if watcher else 0)


def hypothesis_batch(search: Search, seed: str, tally: Tally, database: ExampleDatabase | None = None) -> Found | None:
    """A few programs of the Hypothesis machine, the first of them from `database`."""
    number = random.Random(seed).getrandbits(32)
    deadline = min(search.deadline, time.monotonic() + MACHINE_SECONDS)
    programs, operations, exercised, found = run_machine(
        search.target,
        seed=number,
        examples=MACHINE_PROGRAMS,
        steps=MACHINE_STEPS,
        deadline=deadline,
        op_seconds=search.op_seconds,
        database=database,
    )
    tally.programs += programs
    tally.operations += operations
    tally.exercised.update(exercised)
    if found is None:
        return None
    kind: Kind = "violation" if found.violation else ("hang" if found.hang else "fault")
    pool = PoolConfig(found.num_blocks, found.block_size)
    seed = f"hypothesis:{number}"
    return Found(kind, _program(search, seed, pool, found.ops, violation=found.violation, fault=found.fault or found.hang))


def _program(search: Search, seed: str, pool: PoolConfig, ops: Sequence[Op] = (), **shown: object) -> Program:
    return Program(FORMAT, search.name, pool, tuple(ops), seed, **shown)  # type: ignore[arg-type]
