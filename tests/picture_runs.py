"""Runs to draw: what a small engine asks of a cache while it serves requests, for as long as wanted, and a cache that breaks late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.fuzz.reports.picture.document import GroupShape, Picture, Tree
from kvproof.fuzz.reports.picture.film import FREE, HELD, Frame, SequenceChange
from kvproof.fuzz.reports.picture.sources import film_program
from kvproof.fuzz.traces.record import record
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.ops import Admit, AnyOp, Append, BeginStep, Commit, EndStep, Extend, Fork, Match, Namespace, Release, op_name
from kvproof.targets import find_target

SYSTEM_PROMPT = tuple(range(100, 124))
"""Most requests begin with it, so that blocks are shared."""

MOST_RUNNING = 5


COPY_NOT_ISSUED = Program(
    1,
    "bug:copy-is-not-issued",
    PoolConfig(2, 2),
    (Admit(0, (0, 0)), Extend(0, 1), Commit(0), Fork(0, 1), Extend(1, 1), Extend(1, 1)),
)
"""Its last operation is never reached."""


def film(program: Program, adapter: type | None = None, name: str = "run") -> Picture:
    return film_program(program, adapter or find_target(program.target), name=name)


def serving_program(operations: int, *, seed: int = 0, num_blocks: int = 48, block_size: int = 4, target: str = "production") -> Program:
    """A program of about `operations` operations, all of which are enabled whatever blocks the cache picks."""
    ops: list[AnyOp] = []
    for op in _serve(random.Random(seed)):
        ops.append(op)
        if len(ops) >= operations and isinstance(op, EndStep):
            break
    return Program(1, target, PoolConfig(num_blocks, block_size), tuple(ops))


def _serve(rng: random.Random) -> Iterator[AnyOp]:
    """Engine steps without end: new requests, one token for each running one, those that are done let go."""
    running: dict[int, int] = {}
    fresh = 0
    while True:
        extended = []
        if len(running) < MOST_RUNNING and rng.random() < 0.6:
            cut = rng.choice((0, 8, 16, 24))
            prompt = SYSTEM_PROMPT[:cut] + tuple(rng.randrange(10) for _ in range(rng.randint(3, 12)))
            yield Admit(fresh, prompt, Namespace(tenant=rng.choice("ab")) if rng.random() < 0.2 else Namespace())
            yield Match(fresh)
            yield Extend(fresh, len(prompt))
            running[fresh] = rng.randint(2, 14)
            extended.append(fresh)
            fresh += 1
        for seq in running:
            if seq not in extended:
                yield Append(seq, (rng.randrange(10),))
                yield Extend(seq, 1)
                extended.append(seq)
        yield BeginStep()
        yield EndStep()
        for seq in extended:
            yield Commit(seq)
            running[seq] -= 1
            if running[seq] <= 0:
                del running[seq]
                yield Release(seq, rng.choice(("finish", "finish", "cancel")))


class BreaksLate(ProductionAdapter):
    """The production cache, until after `extends_before` extends one table ends with a block that another sequence holds."""

    extends_before = 40

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self._extends = 0
        self._last = -1
        self._ends: dict[int, int] = {}

    def extend(self, seq, count, drafts=()):
        self._extends += 1
        self._last = seq
        return super().extend(seq, count, drafts)

    def release(self, seq, reason):
        self._ends.pop(seq, None)
        super().release(seq, reason)

    def block_table(self, seq, group=0):
        table = list(super().block_table(seq, group))
        if table:
            self._ends[seq] = table[-1]
        if self._extends > self.extends_before and seq == self._last and table:
            table[-1] = next((end for other, end in self._ends.items() if other != seq and end not in table), table[-1])
        return table


def recorded(program: Program, adapter: type, path: Path) -> Path:
    """The trace of a program that ran on a recorded cache, without the suite."""
    config = program.config
    cache = record(adapter(**msgspec.structs.asdict(config)), path, **msgspec.structs.asdict(config))
    steps: list[int] = []
    for op in program.ops:
        match op:
            case BeginStep():
                steps.append(cache.begin_step())
            case EndStep():
                cache.end_step(steps.pop(0))
            case _:
                getattr(cache, op_name(op))(*msgspec.structs.astuple(op))
    cache.close()
    return path


def faulty_trace(path: Path) -> Path:
    """A trace of the production cache in which a freed block gets lost, and later a match covers the whole prompt."""
    recorded(serving_program(500, num_blocks=96), ProductionAdapter, path)
    lines = path.read_bytes().splitlines(keepends=True)

    def plant(start, change):
        for number in range(start, len(lines)):
            changed = change(msgspec.json.decode(lines[number]))
            if changed is not None:
                lines[number] = msgspec.json.encode(changed) + b"\n"
                return
        raise AssertionError("nothing to change")

    def lose(line):
        joined = line.get("free", {}).get("joined")
        return line | {"free": {"joined": [[joined[0][0], joined[0][1][1:]], *joined[1:]]}} if joined else None

    plant(200, lose)
    plant(300, lambda line: line | {"out": {"answer": "hit", "tokens": 99}} if line["op"]["op"] == "match" else None)
    path.write_bytes(b"".join(lines))
    return path


def long_picture(rows: int, *, num_blocks: int = 64, block_size: int = 16) -> Picture:
    """A picture of a run that never ran: sequences of one token after another, so that 100,000 operations are there in a second or two.

    Each sequence takes a block for its prompt, then another, and lets go of both; eight of them take turns.
    """
    frames, kinds, texts = [], [], []
    free = list(range(num_blocks))
    generations = [0] * num_blocks
    held: dict[int, list[int]] = {}
    fresh = 0
    while len(frames) < rows:
        if len(held) == 8:
            seq = min(held)
            blocks = held.pop(seq)
            frame = Frame(x=[seq], f=[[len(free), 0, *blocks]], b=[n for b in blocks for n in (b, FREE, 0, generations[b], seq)])
            free += blocks
            kind, text = 1, f"release {seq} (finish)"
        else:
            seq = fresh if len(frames) % 2 == 0 else fresh - 1
            fresh += len(frames) % 2 == 0
            block = free.pop(0)
            generations[block] += 1
            kept = len(held.setdefault(seq, []))
            held[seq].append(block)
            known = (kept + 1) * block_size
            change = SequenceChange(seq, known, known, known + 1, 0, None, ((kept, block),))
            slots = [block * block_size, kept * block_size + 2, block_size]
            frame = Frame(s=[change], f=[[0, 1]], b=[block, HELD, 1, generations[block], seq], m=slots)
            kind, text = 0, f"extend {seq} by {block_size}"
        frames.append(frame)
        kinds.append(kind)
        texts.append(text)
    return Picture(
        "long",
        "nothing",
        num_blocks,
        block_size,
        [GroupShape("full", block_size, None)],
        [],
        ["refcounts", "free"],
        ["extend", "release"],
        kinds,
        texts,
        [""] * rows,
        list(range(rows)),
        frames,
        Tree([0, 0, *[1] * (64 * block_size)], [-1, -1, *(n % 100 for n in range(64 * block_size))], {1: ""}),
    )
