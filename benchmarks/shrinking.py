"""A race of shrinkers on the seeded bugs: ours, Hypothesis's own, and plain delta debugging.

    python benchmarks/shrinking.py [--seed 1] [--examples 300] [--only TEXT] [--share 1/3] [--results FILE] [--seconds 60] [--minutes 10] [--again] [--markdown FILE] [--picture FILE]

Hypothesis finds a failing program with the state machine of `kvproof.properties.machine`, and shrinks it. The same first failing program then goes to the other two; where Hypothesis
finds none, they get one of the swarm. Each must
keep the law that the program breaks, and none gets more than `--seconds` for it. `runs` counts the programs that were run to shrink it, to the end: ours and delta debugging run some more only to see that nothing
smaller fails; `reached` counts those until the final length was there. Delta debugging is ddmin (Zeller and Hildebrandt 2002) over the operations.

Each race is a line of the results file. A bug that has one is not raced again, so a run that was stopped, or whose minutes are over, goes on where it was. `--again` races ours anew, on the programs that are kept there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test
from shrinking_report import Finish, Race, drawn, markdown, show

from kvproof.fuzz.bugs import BUGS, SeededBug
from kvproof.fuzz.programs import FORMAT, PoolConfig, Program
from kvproof.fuzz.runs import Search, Tally, run_seed
from kvproof.fuzz.shrink import Shrinker, breaks
from kvproof.fuzz.simpler import Candidate, Ops
from kvproof.impl.checker import read_capabilities
from kvproof.models.ops import Op
from kvproof.properties.lockstep import OP_SECONDS, LawBroken, run
from kvproof.properties.machine import cache_machine

RESULTS = Path(".kvproof/shrinking.jsonl")


class Late(Exception):
    """The time of a shrinker is over."""


class Watch:
    """What Hypothesis ran: the programs that broke the law that was broken first."""

    def __init__(self) -> None:
        self.law = ""
        self.failing: list[Candidate] = []
        self.runs = 0
        """Programs since the first failure."""
        self.reached = 0
        """The same when the shortest failing program was run first."""

    def fails(self, candidate: Candidate) -> None:
        """A program that breaks the law."""
        if not self.failing or len(candidate.ops) < min(len(other.ops) for other in self.failing):
            self.reached = self.runs
        self.failing.append(candidate)


def by_hypothesis(bug: SeededBug, seed: int, examples: int, limit_seconds: float) -> tuple[Watch, float]:
    """Let Hypothesis find and shrink; returns what it ran, and how long it took from the first failure on."""
    watch, first = Watch(), [0.0]

    class Watched(cache_machine(bug.adapter)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            watch.runs += bool(watch.failing)

        def do(self, op: Op) -> bool:
            try:
                return bool(super().do(op))
            except LawBroken as broken:
                law = broken.violation.law
                if not watch.failing:
                    watch.law, first[0] = law, time.monotonic()
                if law == watch.law:
                    lockstep = self.lockstep
                    watch.fails(Candidate(PoolConfig(lockstep.num_blocks, lockstep.block_size), tuple(lockstep.ops)))
                raise

    @seeded(seed)
    def factory() -> Watched:
        return Watched()

    quiet = settings(
        max_examples=examples,
        stateful_step_count=40,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    engine.MAX_SHRINKING_SECONDS = limit_seconds
    with contextlib.suppress(Exception):  # the failure that it shrank, or its complaint about a flaky one: what it ran was watched
        run_state_machine_as_test(factory, settings=quiet)  # type: ignore[arg-type]
    return watch, time.monotonic() - first[0]


def ddmin(ops: Ops, fails: Callable[[Ops], bool]) -> Ops:
    """Plain delta debugging: leave out chunks, then complements of chunks, with ever finer chunks."""
    parts = 2
    while len(ops) >= 2:
        size = -(-len(ops) // parts)
        chunks = [ops[i : i + size] for i in range(0, len(ops), size)]
        smaller = next(_failing(chunks, fails), None)
        if smaller is None:
            if size == 1:
                return ops
            parts = min(len(ops), 2 * parts)
        else:
            ops, kept = smaller
            parts = 2 if kept == 1 else max(2, parts - 1)
    return ops


def _failing(chunks: list[Ops], fails: Callable[[Ops], bool]) -> Iterator[tuple[Ops, int]]:
    yield from ((chunk, 1) for chunk in chunks if fails(chunk))
    for left_out in range(len(chunks)):
        rest = tuple(op for i, chunk in enumerate(chunks) if i != left_out for op in chunk)
        if fails(rest):
            yield rest, len(chunks) - 1


def by_ddmin(bug: SeededBug, start: Candidate, law: str, limit_seconds: float) -> Finish:
    """Shrink by delta debugging; what was skipped at the end does not count."""
    runs, reached, began, shortest = 0, 0, time.monotonic(), len(start.ops)

    def fails(ops: Ops) -> bool:
        nonlocal runs, reached, shortest
        if time.monotonic() - began > limit_seconds:
            raise Late
        runs += 1
        result = run(ops, bug.adapter, num_blocks=start.config.num_blocks, block_size=start.config.block_size)
        if not breaks(result, law):
            return False
        if len(result.ran) < shortest:
            reached, shortest = runs, len(result.ran)
        return True

    with contextlib.suppress(Late):
        ddmin(start.ops, fails)
    return Finish(shortest, runs, time.monotonic() - began, reached)


def by_kvproof(bug: SeededBug, start: Candidate, law: str, limit_seconds: float) -> Finish:
    """Shrink with ours."""
    began = time.monotonic()
    shrinker = Shrinker(bug.adapter, lambda result: breaks(result, law), seconds=limit_seconds)
    short = shrinker.shrink(start)
    return Finish(len(short.ops), shrinker.runs, time.monotonic() - began, shrinker.reached)


def by_swarm(bug: SeededBug, seed: int, seconds: float) -> tuple[str, Candidate] | None:
    """The law and the program of the first failure that the swarm finds, unshrunk."""
    search = Search(bug.adapter, bug.name, read_capabilities(bug.adapter), 1, 1, 0.0, OP_SECONDS, None, frozenset())
    deadline = time.monotonic() + seconds
    for index in itertools.count():
        found = run_seed(search, f"race:{seed}:{index}", Tally())
        if found is not None and found.program.violation is not None:
            return found.program.violation.law, Candidate(found.program.config, found.program.ops)
        if time.monotonic() > deadline:
            return None
    raise AssertionError


def race(bug: SeededBug, seed: int, examples: int, limit_seconds: float) -> Race:
    """All three on one bug; without Hypothesis where it finds no failing program."""
    watch, seconds = by_hypothesis(bug, seed, examples, limit_seconds)
    finishes = {}
    if watch.failing:
        law, start = watch.law, watch.failing[0]
        finishes["hypothesis"] = Finish(min(len(candidate.ops) for candidate in watch.failing), watch.runs, seconds, watch.reached)
    elif (found := by_swarm(bug, seed, limit_seconds)) is not None:
        law, start = found
    else:
        return Race(bug.name)
    finishes["kvproof"] = by_kvproof(bug, start, law, limit_seconds)
    finishes["ddmin"] = by_ddmin(bug, start, law, limit_seconds)
    return Race(bug.name, law, Program(FORMAT, f"bug:{bug.name}", start.config, start.ops), finishes)


def kept_races(results: Path) -> dict[str, Race]:
    """The races that were run already, the last one of each bug."""
    lines = results.read_bytes().splitlines() if results.exists() else []
    races = (msgspec.json.decode(line, type=Race) for line in lines if line.strip())
    return {race.bug: race for race in races}


def keep(results: Path, one: Race) -> None:
    """Add a race to the results."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab") as file:
        file.write(msgspec.json.encode(one) + b"\n")


def again(race: Race, limit_seconds: float) -> Race:
    """The same race with ours run anew."""
    assert race.start is not None
    finishes = race.finishes | {
        "kvproof": by_kvproof(BUGS[race.bug], Candidate(race.start.config, race.start.ops), race.law, limit_seconds)
    }
    return msgspec.structs.replace(race, finishes=finishes)


def share_of(text: str) -> list[str]:
    """`2/3`: the second of three shares of the bugs."""
    part, parts = map(int, text.split("/"))
    return list(BUGS)[part - 1 :: parts]


def main() -> None:
    """Races every seeded bug and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=300, help="programs that Hypothesis may try until it has a failing one")
    parser.add_argument("--only", metavar="TEXT", default="", help="only bugs whose name contains this text")
    parser.add_argument("--share", metavar="N/M", type=share_of, default="1/1", help="one of M shares of the bugs")
    parser.add_argument("--results", type=Path, metavar="FILE", default=RESULTS, help=f"where races are kept [{RESULTS}]")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most that each shrinker gets for one program [60]")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no race after that")
    parser.add_argument("--again", action="store_true", help="race ours anew on the programs that are kept")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw who came how far, as SVG (extra `plots`)")
    arguments = parser.parse_args()
    kept, deadline = kept_races(arguments.results), time.monotonic() + 60 * arguments.minutes
    names = [name for name in arguments.share if arguments.only in name]
    for name in names:
        if time.monotonic() > deadline:
            break
        if name not in kept:
            kept[name] = race(BUGS[name], arguments.seed, arguments.examples, arguments.seconds)
        elif arguments.again and kept[name].start is not None:
            kept[name] = again(kept[name], arguments.seconds)
        else:
            continue
        keep(arguments.results, kept[name])
    raced = [kept[name] for name in names if name in kept and kept[name].start is not None]
    show(raced)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(raced))
    if arguments.picture:
        drawn(raced, arguments.picture)
    missed = [name for name in names if name in kept and kept[name].start is None]
    if missed:
        print(f"No failing program was found for: {', '.join(missed)}.")
    if any(name not in kept for name in names):
        print("Not all were raced; the same command goes on.")


if __name__ == "__main__":
    main()
