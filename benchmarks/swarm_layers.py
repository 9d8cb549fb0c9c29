"""Where the time of the swarm goes: the same programs run whole, without the generator, without the spec, and by the cache alone.

    python benchmarks/swarm_layers.py [--programs 150] [--rounds 9] [--target production]

All rows take turns on one core with the same recorded programs, so that whatever else the machine does falls on all of them. Microseconds are of processor time for each operation, the
median of the rounds. `of the whole` is what would be left if the rest cost nothing: without a spec and a generator, the swarm could be no faster than what it takes to drive the cache and to read it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import msgspec

from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import Checked, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.spec import Spec
from kvproof.models.state import Books
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import Lockstep, Step
from kvproof.targets import find_target


class Recorded(msgspec.Struct):
    """One program, as it was drawn and run."""

    seed: str
    pool: PoolConfig
    steps: list[Step]


def drawn(seed: str, target: type, capabilities: Capabilities, *, keep_trace: bool = False) -> Lockstep:
    """Draw and run the program of a seed."""
    rng = random.Random(seed)
    config = Config(rng, capabilities)
    pool = {"num_blocks": config.num_blocks, "block_size": config.block_size}
    lockstep = Lockstep(target, capabilities=capabilities, keep_trace=keep_trace, **pool)
    swarm = Swarm(rng, capabilities, **pool)
    for op in swarm.ops(lockstep.spec):
        lockstep.do(op)
    for op in drain(rng, lockstep.spec, swarm.next_seq):
        lockstep.do(op)
    return lockstep


def layers(target: type, capabilities: Capabilities) -> dict[str, Callable[[Recorded], object]]:
    """Each way to run a recorded program again."""

    def whole(program: Recorded) -> None:
        drawn(program.seed, target, capabilities)

    def without_generator(program: Recorded) -> None:
        lockstep = Lockstep(target, capabilities=capabilities, **msgspec.structs.asdict(program.pool))
        for step in program.steps:
            lockstep.do(step.op)

    def spec(program: Recorded) -> None:
        judge = Spec(capabilities, **msgspec.structs.asdict(program.pool))
        for step in program.steps:
            judge.apply(step.op, step.outcome, step.seen)

    def cache(program: Recorded) -> None:
        driven = Checked(target, capabilities, **msgspec.structs.asdict(program.pool))
        for step in program.steps:
            driven.do(step.op)

    def cache_and_reading(program: Recorded) -> None:
        driven = Checked(target, capabilities, **msgspec.structs.asdict(program.pool))
        tables, books = program.steps[0].seen.tables, Books()
        for step in program.steps:
            driven.do(step.op)
            tables, books = driven.all_tables(step.seen.tables, tables), driven.books(books)
            if step.seen.matchable_by_events is not None:
                driven.events()

    return {
        "the swarm, whole": whole,
        "without the generator": without_generator,
        "the spec alone, on what was seen": spec,
        "the cache, driven and read": cache_and_reading,
        "the cache, driven": cache,
    }


def recorded(target: type, capabilities: Capabilities, programs: int) -> list[Recorded]:
    """The programs that all rows run."""
    found = []
    for number in range(programs):
        lockstep = drawn(f"layers:{number}", target, capabilities, keep_trace=True)
        found.append(Recorded(f"layers:{number}", PoolConfig(lockstep.num_blocks, lockstep.block_size), lockstep.trace or []))
    return found


def unmoved(programs: list[Recorded]) -> int:
    """How many operations left every block table and all books as they were."""

    def shown(step: Step) -> object:
        return {seq: tables for seq, tables in step.seen.tables.items() if any(tables)}, step.seen.books

    return sum(shown(one) == shown(two) for program in programs for one, two in pairwise(program.steps))


def main() -> None:
    """Print a line for each way to run them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=9, help="runs of each row, in turns")
    parser.add_argument("--target", default="production")
    options = parser.parse_args()
    target = find_target(options.target)
    capabilities = read_capabilities(target)
    programs = recorded(target, capabilities, options.programs)
    operations = sum(len(program.steps) for program in programs)
    rows = layers(target, capabilities)
    spent: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.rounds):
        for name, run in rows.items():
            begun = time.process_time()
            for program in programs:
                run(program)
            spent[name].append((time.process_time() - begun) / operations * 1e6)
    whole = statistics.median(next(iter(spent.values())))
    print(f"{'what runs':<34} {'microseconds':>12} {'of the whole':>12}")
    for name, times in spent.items():
        median = statistics.median(times)
        print(f"{name:<34} {median:>12.1f} {median / whole:>12.0%}")
    still = unmoved(programs) / operations
    print(f"{operations:,} operations, {operations / len(programs):.0f} a program; {still:.0%} leave all tables and books as they were")


if __name__ == "__main__":
    main()
