"""The trace format: what is written is read back, recordings survive crashes and rotation, and digests hide tokens but no equality."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import msgspec
import pytest

from kvproof.fuzz.audit import audit
from kvproof.fuzz.programs import PoolConfig
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.fuzz.traces import BadTrace, TraceWriter, read_trace
from kvproof.fuzz.traces.export import export_itf, export_perfetto
from kvproof.fuzz.traces.header import is_trace
from kvproof.fuzz.traces.program import program_of
from kvproof.fuzz.traces.read import Reader, Step
from kvproof.fuzz.traces.record import header_for, record
from kvproof.fuzz.traces.recorder import Recorder
from kvproof.fuzz.traces.redact import Redactor
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Admit, Append, Commit, Extend, Fork, Namespace, Truncate
from kvproof.models.outcomes import OutOfBlocks, Snapshot
from kvproof.properties.lockstep import Lockstep

ALWAYS = dict.fromkeys(("tables", "refcounts", "free", "cached", "retiring"), "always") | {
    "worker_tables": "sometimes",
    "events": "sometimes",
}


def lockstep_run(adapter, seed):
    rng = random.Random(seed)
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities, keep_trace=True)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    for op in swarm.ops(lockstep.spec):
        lockstep.do(op)
    return lockstep


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_what_is_written_is_read_back(adapter, tmp_path):
    for program in range(15):
        lockstep = lockstep_run(adapter, f"round:{program}")
        header = header_for("target", lockstep.capabilities, PoolConfig(lockstep.num_blocks, lockstep.block_size), ALWAYS, source="check")
        path = tmp_path / "trace.jsonl"
        with TraceWriter(path, header) as writer:
            for step in lockstep.trace:
                writer.step(step.op, step.outcome, step.seen)
        read = list(read_trace(path))
        assert [(found.number, found.op) for found, _ in read] == [(n, step.op) for n, step in enumerate(lockstep.trace)]
        for (found, seen), step in zip(read, lockstep.trace, strict=True):
            assert msgspec.json.encode(found.outcome) == msgspec.json.encode(step.outcome)
            assert seen.tables == step.seen.tables
            assert seen.worker_tables == step.seen.worker_tables
            assert (seen.books.refcounts, seen.books.cached) == (step.seen.books.refcounts, step.seen.books.cached)
            assert (set(seen.books.free), seen.books.retiring) == (set(step.seen.books.free), step.seen.books.retiring)
            assert seen.matchable_by_events == step.seen.matchable_by_events


def free_order(path):
    """The ordered free list after each line, by the rules of the format."""
    free: list[int] = []
    for line in path.read_text().splitlines()[1:-1]:
        moved = json.loads(line).get("free", {})
        if "is" in moved:
            free = moved["is"]
        for block in moved.get("left", ()):
            free.remove(block)
        for at, blocks in moved.get("joined", ()):
            free[len(free) if at is None else at : len(free) if at is None else at] = blocks
        yield list(free)


def test_the_order_of_the_free_list_can_be_rebuilt(tmp_path):
    for program in range(15):
        lockstep = lockstep_run(ProductionAdapter, f"order:{program}")
        header = header_for("target", lockstep.capabilities, PoolConfig(lockstep.num_blocks, lockstep.block_size), ALWAYS)
        path = tmp_path / "trace.jsonl"
        with TraceWriter(path, header) as writer:
            for step in lockstep.trace:
                writer.step(step.op, step.outcome, step.seen)
        assert list(free_order(path)) == [list(step.seen.books.free) for step in lockstep.trace]


# -- recording an adapter -------------------------------------------------------------------------------------------------------------------------


def test_a_recording_adapter_answers_as_the_recorded_one(tmp_path):
    plain = ProductionAdapter(num_blocks=2, block_size=2)
    with record(ProductionAdapter(num_blocks=2, block_size=2), tmp_path / "t.jsonl", num_blocks=2, block_size=2) as cache:
        for each in (plain, cache):
            each.admit(0, (1, 2, 3), Namespace())
        assert cache.extend(0, 3) == plain.extend(0, 3)
        assert cache.begin_step() == plain.begin_step()
        cache.end_step(1)
        plain.end_step(1)
        cache.commit(0, 0)
        plain.commit(0, 0)
        assert list(cache.block_table(0)) == list(plain.block_table(0))
        assert cache.snapshot() == plain.snapshot()
        assert cache.take_events() == plain.take_events()
        cache.append(0, (4, 5))
        with pytest.raises(OutOfBlocks):
            cache.extend(0, 2)
    assert audit(tmp_path / "t.jsonl").verdict == "proved"
    assert [step.op.__class__.__name__ for step in Reader(tmp_path / "t.jsonl")][-1] == "Extend"


def test_a_pool_that_is_not_known_is_asked_for(tmp_path):
    class Fixed(SynchronousAdapter):
        def __init__(self):
            super().__init__(num_blocks=4, block_size=2)

    with pytest.raises(ValueError, match="record needs to know num_blocks of the cache: give num_blocks="):
        record(Fixed(), tmp_path / "t.jsonl")
    record(Fixed(), tmp_path / "t.jsonl", num_blocks=4, block_size=2).close()
    assert Reader(tmp_path / "t.jsonl").header.config == PoolConfig(4, 2)


def test_the_pool_is_the_one_that_the_adapter_was_built_with(tmp_path):
    record(SynchronousAdapter(num_blocks=6, block_size=3), tmp_path / "t.jsonl").close()
    assert Reader(tmp_path / "t.jsonl").header.config == PoolConfig(6, 3)


# -- an engine that records by itself -------------------------------------------------------------------------------------------------------------

ENGINE = """
import os, sys
from kvproof import Capabilities, Recorder
recorder = Recorder(sys.argv[1], num_blocks=8, block_size=2, capabilities=Capabilities(), buffer_operations=10, **eval(sys.argv[3]))
for seq in range(int(sys.argv[2])):
    recorder.admit(seq, [seq, 5])
    recorder.extend(seq, 2, [seq % 8])
    recorder.commit(seq)
    recorder.release(seq)
{end}
"""


def engine(path, sequences, end, **options):
    script = ENGINE.format(end=end)
    return subprocess.run(
        [sys.executable, "-c", script, str(path), str(sequences), repr(options)], check=False, capture_output=True, text=True
    )


def test_a_recorder_that_is_left_open_is_closed_when_its_process_ends(tmp_path):
    path = tmp_path / "trace.jsonl"
    assert engine(path, 100, "").returncode == 0
    report = audit(path)
    assert (report.verdict, report.operations, report.notes) == ("proved", 400, [])


def test_a_crash_costs_at_most_the_last_buffer(tmp_path):
    path = tmp_path / "trace.jsonl"
    assert engine(path, 26, "os._exit(3)").returncode == 3
    report = audit(path)
    assert report.verdict == "proved"
    assert 104 - 10 <= report.operations < 104
    assert "has no end line" in report.notes[0]


def test_a_rotated_recording_is_one_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    assert engine(path, 100, "", part_bytes=3000).returncode == 0
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 5
    assert max(part.stat().st_size for part in parts) < 6000
    report = audit(path)
    assert (report.verdict, report.operations, report.notes) == ("proved", 400, [])
    with pytest.raises(BadTrace, match=r"is part 2 of a recording and begins at operation \d+; name its first part"):
        audit(tmp_path / "trace.2.jsonl")
    (tmp_path / "trace.3.jsonl").unlink()
    assert "trace.3.jsonl is missing" in audit(path).notes[0]


def test_an_engine_that_gives_a_block_twice_is_found(tmp_path):
    with Recorder(tmp_path / "t.jsonl", num_blocks=8, block_size=2) as recorder:
        for seq in (0, 1):
            recorder.admit(seq, [seq, 2, 3])
            recorder.extend(seq, 3, [4, 5])
    (breach,) = audit(tmp_path / "t.jsonl").violations
    assert (breach.law, breach.operation) == ("no-aliasing", 3)


def test_books_that_are_looked_at_now_and_then_are_judged(tmp_path):
    for lost in (False, True):
        path = tmp_path / f"{lost}.jsonl"
        with Recorder(path, num_blocks=4, block_size=2, capabilities=Capabilities(snapshot=True)) as recorder:
            recorder.admit(0, [1, 2, 3])
            recorder.look(Snapshot(refcounts={}, free=[0, 1, 2, 3]))
            recorder.extend(0, 3, [2, 0])
            recorder.commit(0)
            recorder.release(0)
            recorder.look(Snapshot(refcounts={}, free=[1, 3, 2] if lost else [1, 3, 2, 0]))
        report = audit(path)
        assert [(breach.law, breach.operation) for breach in report.violations] == ([("no-leak", 3)] if lost else [])


class Counts(SynchronousAdapter):
    """Shows its counter of free blocks too; it is right until `off` says otherwise."""

    off = 0

    def snapshot(self):
        shot = super().snapshot()
        return msgspec.structs.replace(shot, free_count=len(shot.free) + self.off)


def test_the_counter_of_free_blocks_is_recorded_and_judged(tmp_path):
    path = tmp_path / "trace.jsonl"
    pool = {"num_blocks": 8, "block_size": 2}
    with record(Counts(**pool), path, **pool) as cache:
        cache.admit(0, (5, 6, 7))
        cache.extend(0, 3)
        cache.commit(0)
        cache.recorded.off = 1
        cache.append(0, (8,))
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["sees"]["free_count"] == "always"
    assert [json.loads(line).get("free_count") for line in lines[1:-1]] == [8, 6, None, 7]
    assert [seen.books.free_count for _, seen in read_trace(path)] == [8, 6, 6, 7]
    (breach,) = audit(path).violations
    assert (breach.law, breach.operation) == ("pool-conserved", 3)
    assert breach.reason == "the cache counts 7 free blocks after append, but its free list has 6"


def test_a_trace_of_a_later_release_may_carry_fields_that_this_one_does_not_know(small):
    header, first, *rest = small.read_bytes().splitlines(keepends=True)
    told, line = json.loads(header), json.loads(first) | {"tiers": [1, 2]}
    changed = json.dumps(line).encode() + b"\n"
    small.write_bytes(header + changed + b"".join(rest))
    with pytest.raises(BadTrace, match="line 2 is damaged: Object contains unknown field `tiers`"):
        audit(small)
    told["sees"]["tiers"] = "sometimes"
    small.write_bytes(json.dumps(told).encode() + b"\n" + changed + b"".join(rest))
    assert audit(small).verdict == "proved"


def test_memory_of_a_recorder_is_bounded(tmp_path):
    with Recorder(tmp_path / "t.jsonl", num_blocks=8, block_size=2, buffer_operations=50) as recorder:
        for seq in range(500):
            recorder.admit(seq, [1])
            recorder.extend(seq, 1, [3])
            recorder.release(seq, "cancel")
            assert len(recorder._buffer) <= 50
            assert recorder._lengths == [{}]


# -- digests --------------------------------------------------------------------------------------------------------------------------------------


def test_digests_are_equal_exactly_where_prefixes_are():
    redactor = Redactor(b"salt")
    one = redactor.op(Admit(0, (7, 8, 9))).prompt
    two = redactor.op(Admit(1, (7, 8, 5))).prompt
    other = redactor.op(Admit(2, (8, 8, 9))).prompt
    assert one[:2] == two[:2]
    assert len({*one, *two, *other}) == 7
    assert redactor.op(Append(0, (4,))).tokens == Redactor(b"salt").op(Admit(0, (7, 8, 9, 4))).prompt[3:]
    assert Redactor(b"other").op(Admit(0, (7,))).prompt != one[:1]
    assert all(digest < 2**53 for digest in one)


def test_digests_follow_drafts_forks_and_truncations():
    redactor = Redactor(b"salt")
    whole = Redactor(b"salt").op(Admit(0, (1, 2, 3, 4, 5))).prompt
    redactor.op(Admit(0, (1, 2)))
    assert redactor.op(Extend(0, 1, (3, 9))).drafts[0] == whole[2]
    redactor.op(Commit(0, 1))
    assert redactor.op(Append(0, (4,))).tokens == whole[3:4]
    redactor.op(Fork(0, 1))
    assert redactor.op(Append(1, (5,))).tokens == whole[4:]
    redactor.op(Truncate(1, 2))
    assert redactor.op(Append(1, (3,))).tokens == whole[2:3]


def test_a_redacted_trace_shows_neither_tokens_nor_names(tmp_path):
    path = tmp_path / "t.jsonl"
    with record(SynchronousAdapter(num_blocks=8, block_size=2), path, num_blocks=8, block_size=2, redact=True) as cache:
        cache.admit(0, (71717, 81818), Namespace(tenant="the-tenant"))
        cache.append(0, (91919,))
    text = path.read_text()
    assert not any(word in text for word in ("71717", "81818", "91919", "the-tenant"))
    assert Reader(path).header.redacted


# -- headers, programs, exports -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty or begins with an empty line, so it is no trace"),
        ("{}", "is no trace: line 1 has no kind that says so"),
        ('{"kvproof": 0, "kind": "trace"}', "has format version 0, and this kvproof reads version 1"),
        ('{"kvproof": 1, "kind": "trace"}', "line 1 of .* is damaged: Object missing required field"),
        ("\x1f", "is no trace header"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(text, told, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(BadTrace, match=told):
        Reader(path)
    assert is_trace(path) == ("trace" in text)


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.jsonl"
    with record(ProductionAdapter(num_blocks=6, block_size=2), path, num_blocks=6, block_size=2, target="production") as cache:
        cache.admit(0, (1, 2, 3))
        cache.extend(0, 3)
        cache.end_step(cache.begin_step())
        cache.commit(0)
        cache.release(0, "finish")
    return path


def test_a_trace_becomes_the_program_that_was_run(small):
    program = program_of(small)
    assert (program.target, program.config, program.violation) == ("production", PoolConfig(6, 2), None)
    assert [op.__class__.__name__ for op in program.ops] == ["Admit", "Extend", "BeginStep", "EndStep", "Commit", "Release"]


def test_perfetto_gets_a_track_for_each_sequence(small, tmp_path):
    place = tmp_path / "p.json"
    assert export_perfetto(small, place) == 6
    events = json.loads(place.read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"kvproof: production", "engine", "sequence 0"}
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == ["admit", "extend", "begin step", "end step", "commit", "release"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in spans)
    assert [event["ph"] for event in events if event.get("cat") == "step"] == ["b", "e"]
    held = [event["args"]["held"] for event in events if event["ph"] == "C"]
    assert (max(held), held[-1]) == (2, 0)


def test_a_part_for_perfetto_names_its_tracks_and_opens_its_steps(small, tmp_path):
    """What began before the part is named in it, and a step that was open then begins with it."""
    place = tmp_path / "p.json"
    assert export_perfetto(small, place, first=3, count=2) == 2
    events = json.loads(place.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == ["end step", "commit"]
    tracks = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} <= tracks
    steps = [event for event in events if event.get("cat") == "step"]
    assert [event["ph"] for event in steps] == ["b", "e"]
    assert steps[0]["ts"] == spans[0]["ts"]


def test_itf_states_show_tables_and_books(small, tmp_path):
    place = tmp_path / "i.json"
    assert export_itf(small, place, first=1, count=2) == 2
    whole = json.loads(place.read_text())
    assert whole["vars"] == ["op", "answer", "tables", "refcounts", "free", "cached", "retiring"]
    state = whole["states"][0]
    assert state["op"] == "extend 0 by 3"
    ((seq, (table,)),) = state["tables"]["#map"]
    assert (seq, len(table)) == (0, 2)
    assert sorted([*table, *state["free"]]) == list(range(6))


def test_nothing_is_left_behind_where_an_export_fails(small, tmp_path):
    lines = small.read_bytes().splitlines(keepends=True)
    small.write_bytes(b"".join([*lines[:2], b"{\n", *lines[2:]]))
    with pytest.raises(ValueError, match="line 3 is damaged"):
        export_perfetto(small, tmp_path / "p.json")
    assert [path.name for path in tmp_path.iterdir()] == ["small.jsonl"]


def test_steps_say_on_which_line_they_stand(small):
    assert [(step.number, step.line) for step in Reader(small) if isinstance(step, Step)] == [(n, n + 2) for n in range(6)]


def test_an_error_of_the_cache_reaches_the_caller_and_stands_in_the_trace(tmp_path):
    class Failing(SynchronousAdapter):
        def release(self, seq, reason):
            super().release(seq, reason)
            raise KeyError("lost")

    path = tmp_path / "t.jsonl"
    with record(Failing(num_blocks=4, block_size=2), path, num_blocks=4, block_size=2) as cache:
        cache.admit(0, (1, 2))
        with pytest.raises(KeyError, match="lost"):
            cache.release(0, "finish")
    assert list(Reader(path))[-1].outcome.error == "KeyError: 'lost'"
