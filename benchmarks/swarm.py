"""The swarm generator against the Hypothesis machine on the production cache, side by side in one run, every law checked after every operation.

    python benchmarks/swarm.py [--seconds 5] [--rounds 3] [--target production]

Both run in turns on one core, so that whatever else the machine does falls on both. Rows: the machine as a campaign runs it (no shrinking, no database), the machine as pytest
runs it, the swarm, and the swarm guided by the situations that were reached. `operations/s` are operations of programs for each second of processor time, the median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from collections.abc import Callable

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvproof.fuzz.mutants import parents_of
from kvproof.fuzz.programs import Program
from kvproof.fuzz.runs import Search, Tally, run_program, run_seed
from kvproof.impl.checker import read_capabilities
from kvproof.models.ops import Op
from kvproof.properties.machine import cache_machine
from kvproof.properties.machine_runs import run_machine
from kvproof.properties.situations import names, nothing_reached
from kvproof.targets import find_target

Rate = Callable[[float, int], float]
"""Operations for each second of processor time, over about so many seconds, with the programs of a seed."""


def machine_rate(target: type) -> Rate:
    """The machine as campaigns run it."""

    def rate(seconds: float, seed: int) -> float:
        begun, operations, batch = time.process_time(), 0, 0
        while time.process_time() - begun < seconds:
            operations += run_machine(target, seed=seed * 1000 + batch, examples=60, steps=40)[1]
            batch += 1
        return operations / (time.process_time() - begun)

    return rate


def pytest_rate(target: type) -> Rate:
    """The machine as its TestCase runs it, by the settings of Hypothesis, but without a database so that runs do not depend on each other."""
    done = [0]

    class Counting(cache_machine(target)):  # type: ignore[misc]
        def do(self, op: Op) -> bool:
            done[0] += 1
            return bool(super().do(op))

    def rate(seconds: float, seed: int) -> float:
        del seed
        begun, done[0] = time.process_time(), 0
        while time.process_time() - begun < seconds:
            with contextlib.suppress(SystemExit):
                run_state_machine_as_test(Counting, settings=settings(database=None, deadline=None, max_examples=50))
        return done[0] / (time.process_time() - begun)

    return rate


def swarm_rate(search: Search) -> Rate:
    """The swarm."""

    def rate(seconds: float, seed: int) -> float:
        tally, begun = Tally(), time.process_time()
        while time.process_time() - begun < seconds:
            run_seed(search, f"{seed}:{tally.programs}", tally)
        return tally.operations / (time.process_time() - begun)

    return rate


def guided_rate(search: Search) -> Rate:
    """The swarm with a corpus, as a campaign runs it."""

    def rate(seconds: float, seed: int) -> float:
        tally, begun, rng = Tally(), time.process_time(), random.Random(seed)
        known, corpus = nothing_reached(), list[Program]()
        while time.process_time() - begun < seconds:
            ran = run_program(search, f"{seed}:{tally.programs}", tally, parents=parents_of(rng, corpus), known=known)
            if any(mask & ~old for mask, old in zip(ran.reached, known, strict=True)):
                known = [mask | old for mask, old in zip(ran.reached, known, strict=True)]
                corpus.append(ran.beginning)
        return tally.operations / (time.process_time() - begun)

    return rate


def situations(search: Search, operations: int, seed: int, *, guided: bool) -> int:
    """How many situations so many operations reach."""
    tally, rng, known, corpus = Tally(), random.Random(seed), nothing_reached(), list[Program]()
    while tally.operations < operations:
        parents = parents_of(rng, corpus) if guided else ()
        ran = run_program(search, f"{seed}:{tally.programs}", tally, parents=parents, known=known)
        if any(mask & ~old for mask, old in zip(ran.reached, known, strict=True)):
            known = [mask | old for mask, old in zip(ran.reached, known, strict=True)]
            corpus.append(ran.beginning)
    return len(names(known))


def main() -> None:
    """Print a line for each generator, and how far guidance gets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time of one run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each generator, in turns")
    parser.add_argument("--target", default="production")
    parser.add_argument("--operations", type=int, default=20_000, help="operations for the comparison of situations; 0 leaves it out")
    options = parser.parse_args()
    target = find_target(options.target)
    search = Search(target, options.target, read_capabilities(target), 0, 1, float("inf"), 10.0, None, frozenset())
    generators = {
        "Hypothesis machine, as a campaign runs it": machine_rate(target),
        "Hypothesis machine, as pytest runs it": pytest_rate(target),
        "swarm": swarm_rate(search),
        "swarm, guided and watched": guided_rate(search),
    }
    rates: dict[str, list[float]] = {name: [] for name in generators}
    for seed in range(options.rounds):
        for name, rate in generators.items():
            rates[name].append(rate(options.seconds, seed))
    slowest = statistics.median(rates["Hypothesis machine, as a campaign runs it"])
    print(f"{'generator':<44} {'operations/s':>12} {'ratio':>6}")
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name:<44} {median:>12,.0f} {median / slowest:>6.1f}")
    for guided in (False, True) if options.operations else ():
        reached = [situations(search, options.operations, seed, guided=guided) for seed in range(options.rounds)]
        print(f"situations in {options.operations:,} operations, {'guided' if guided else 'unguided'}: {sorted(reached)}")


if __name__ == "__main__":
    main()
