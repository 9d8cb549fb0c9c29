"""How fast recordings are written and judged: a serving workload on a small allocator, recorded as an engine records, and audited.

    python benchmarks/audit.py [--operations 300000] [--blocks 4096] [--live 128] [--recorded 20000]

`--recorded` operations of the production cache are recorded by `kvproof.record`, with full books and events, and audited too: a pool of 512 blocks, 16 sequences at once, prompts that
share prefixes. Recording them takes far longer than judging them, since each look at the books walks the pool. Times are processor seconds of one core, so that other work on the machine does not count; memory is the most that the process ever held.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from kvproof import Capabilities, Recorder, record
from kvproof.fuzz.audit import audit
from kvproof.fuzz.traces.read import Reader
from kvproof.fuzz.traces.record import RecordingAdapter
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.outcomes import OutOfBlocks

BLOCK_TOKENS = 16


class Engine:
    """Prompts of up to 300 tokens, a hundred decode steps each, continuous batching, one device step at a time."""

    def __init__(self, recorder: Recorder, blocks: int, live: int) -> None:
        self.rng = random.Random(1)
        self.recorder = recorder
        self.free = list(range(blocks))
        self.live = live
        self.tables: dict[int, list[int]] = {}
        self.known: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.operations = 0
        self.recording_seconds = 0.0
        self.next = 0

    def call(self, method: str, *arguments: object) -> None:
        """Record one operation, and count what it took."""
        begun = time.process_time()
        getattr(self.recorder, method)(*arguments)
        self.recording_seconds += time.process_time() - begun
        self.operations += 1

    def step(self) -> None:
        """Admit what there is room for, and run one pass of every sequence."""
        computed = {seq: self.known[seq] - 1 for seq in self.tables}
        while len(self.tables) < self.live:
            seq, prompt = self.next, [self.rng.randrange(50_000) for _ in range(self.rng.randrange(1, 300))]
            self.next += 1
            self.call("admit", seq, prompt)
            self.tables[seq], self.known[seq], self.left[seq], computed[seq] = [], len(prompt), self.rng.randrange(20, 200), 0
        running = []
        for seq, table in self.tables.items():
            more = -(-self.known[seq] // BLOCK_TOKENS) - len(table)
            if more <= len(self.free):
                new = [self.free.pop() for _ in range(more)]
                table += new
                self.call("extend", seq, self.known[seq] - computed[seq], new)
                running.append(seq)
        self.call("begin_step")
        self.call("end_step")
        for seq in running:
            self.call("commit", seq)
            self.call("append", seq, (self.rng.randrange(50_000),))
            self.known[seq] += 1
            self.left[seq] -= 1
            if not self.left[seq]:
                self.call("release", seq)
                self.free += self.tables.pop(seq)


class Server:
    """Drives the production cache, recorded, as a server would: one device step at a time, preemption where the pool is full."""

    def __init__(self, cache: RecordingAdapter, live: int) -> None:
        self.rng = random.Random(2)
        self.cache = cache
        self.live = live
        self.known: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.prompts: list[tuple[int, ...]] = [()]
        self.next = 0

    def step(self) -> int:
        """Admit up to the limit, and run one pass of every sequence; returns how many passes that were."""
        while len(self.known) < self.live:
            self._admit()
        running = [seq for seq in self.known if self._extend(seq)]
        self.cache.end_step(self.cache.begin_step())
        for seq in running:
            self._commit(seq)
        if not running:
            self._preempt()
        return len(running)

    def _admit(self) -> None:
        rng, seq = self.rng, self.next
        self.next += 1
        base = rng.choice(self.prompts)
        prompt = (*base[: rng.randrange(len(base) + 1)], *[rng.randrange(50_000) for _ in range(rng.randrange(1, 200))])
        self.prompts = [*self.prompts[-30:], prompt]
        self.cache.admit(seq, prompt)
        self.known[seq], self.computed[seq], self.left[seq] = len(prompt), 0, rng.randrange(20, 200)

    def _extend(self, seq: int) -> bool:
        try:
            self.cache.extend(seq, self.known[seq] - self.computed[seq])
        except OutOfBlocks:
            return False
        self.computed[seq] = self.known[seq]
        return True

    def _commit(self, seq: int) -> None:
        self.cache.commit(seq)
        self.left[seq] -= 1
        if self.left[seq]:
            self.cache.append(seq, (self.rng.randrange(50_000),))
            self.known[seq] += 1
        else:
            self.cache.release(seq, "finish")
            del self.known[seq]

    def _preempt(self) -> None:
        seq = self.rng.choice(list(self.known))
        self.cache.release(seq, "preempt")
        self.computed[seq] = 0


def record_production(path: Path, operations: int) -> None:
    """Record about so many operations of the production cache, with its books."""
    with record(ProductionAdapter(num_blocks=512, block_size=BLOCK_TOKENS), path) as cache:
        server = Server(cache, 16)
        while operations > 0:
            operations -= 3 * server.step() + 2  # extend, commit and append, and the step


def report(path: Path, operations: int) -> None:
    """Read and audit a trace, and print what each took."""
    begun = time.process_time()
    for _ in Reader(path):
        pass
    print(f"read: {(time.process_time() - begun) / operations * 1e6:.1f} µs an operation")
    begun = time.process_time()
    found = audit(path)
    spent = time.process_time() - begun
    print(f"audited: {found.verdict}, {spent / operations * 1e6:.1f} µs an operation, {operations / spent:,.0f} a second")


def main() -> None:
    """Record, read and audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=300_000)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--live", type=int, default=128)
    parser.add_argument("--recorded", type=int, default=20_000, help="operations with full books; 0 leaves them out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.jsonl"
        with Recorder(path, num_blocks=options.blocks, block_size=BLOCK_TOKENS, capabilities=Capabilities(steps=True)) as recorder:
            engine = Engine(recorder, options.blocks, options.live)
            while engine.operations < options.operations:
                engine.step()
        clock = _cost_of_the_clock()
        print(f"{engine.operations:,} operations, {path.stat().st_size / 1e6:.1f} MB")
        print(f"recorded: {engine.recording_seconds / engine.operations * 1e6 - clock:.2f} µs an operation")
        report(path, engine.operations)
        if options.recorded:
            whole = Path(place) / "whole.jsonl"
            record_production(whole, options.recorded)
            operations = sum(1 for _ in Reader(whole))
            print(f"{operations:,} operations with full books, {whole.stat().st_size / 1e6:.1f} MB")
            report(whole, operations)
        print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


def _cost_of_the_clock() -> float:
    """Microseconds that measuring one call adds."""
    begun = time.process_time()
    for _ in range(100_000):
        time.process_time()
    return (time.process_time() - begun) * 10


if __name__ == "__main__":
    main()
