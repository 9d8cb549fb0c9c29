"""Audits: a recorded bug is named by the same law as a check names it, and a clean trace passes."""

from __future__ import annotations

import itertools
import random
import re

import msgspec
import pytest

from kvproof.fuzz.audit import MOST_TROUBLES, audit
from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.reports.picture.traces import film_trace
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.fuzz.traces.format import BadTrace
from kvproof.fuzz.traces.header import MOST_LINE_BYTES
from kvproof.fuzz.traces.record import record
from kvproof.impl.checker import AdapterFault, Checked, read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models import remembered
from kvproof.properties.drain import drain
from kvproof.properties.lockstep import LawBroken, Lockstep

PROGRAMS = 250
"""How many swarm programs a seeded bug gets to show itself. The programs are the same everywhere; only those in `RARE` need more."""

RARE = {
    "accepted-drafts-taken-from-the-end": 645,
    "hash-is-a-polynomial": 526,
    "hash-runs-digits-together": 332,
    "key-fields-are-joined-by-a-slash": 344,
    "namespace-is-kept-by-the-last-bits": 1017,
    "truncation-keeps-the-chain": 2101,
}
"""Bugs that take many programs more, and the first program that shows them: to run those before it takes up to half a minute."""


def swarm_run(adapter, seed):
    """The operations of one swarm program, its pool, and the violation that the lockstep found."""
    rng = random.Random(seed)
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, capabilities=capabilities)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    try:
        for op in swarm.ops(lockstep.spec):
            lockstep.do(op)
        for op in drain(rng, lockstep.spec, swarm.next_seq):
            lockstep.do(op)
    except LawBroken as broken:
        return lockstep.ops, config, broken.violation
    except AdapterFault:
        pass
    return lockstep.ops, config, None


def recorded(adapter, ops, config, path, **options):
    """The trace of these operations on a fresh cache, driven without any spec beside it."""
    pool = {"num_blocks": config.num_blocks, "block_size": config.block_size}
    with record(adapter(**pool), path, **pool, **options) as cache:
        driver = Checked(lambda **_: cache, adapter.capabilities(), **pool)
        for op in ops:
            try:
                driver.do(op)
            except AdapterFault:
                break
    return path


def assert_accused(violation):
    """The evidence holds the numbers that the reason speaks of."""
    evidence = violation.evidence
    for word, accused in (("block", evidence.blocks), ("sequence", evidence.sequences), ("position", evidence.positions)):
        told = re.sub(r"\b(index|offset|tokens?) \S+", "", violation.reason)
        for run in re.findall(rf"\b{word}s? (\d+(?:(?:, | and | to )\d+)*)", told):
            numbers = {int(number) for number in re.findall(r"\d+", run)}
            assert accused, (violation.reason, evidence)
            assert word == "position" or numbers <= set(accused), (violation.reason, evidence)
    assert all(block in evidence.blocks for block, _ in evidence.slots)
    assert all(step <= violation.step for step in evidence.steps)


@pytest.mark.parametrize("name", BUGS)
def test_an_audit_names_the_law_that_a_check_names(name, tmp_path):
    """Every second bug is recorded with digests in place of tokens: no law is lost by that."""
    for program in (RARE[name],) if name in RARE else range(PROGRAMS):
        ops, config, violation = swarm_run(BUGS[name].adapter, f"audit:{program}")
        if violation is not None:
            break
    else:
        pytest.fail(f"{name} did not show itself: give it more programs, or the one that shows it in RARE")
    path = recorded(BUGS[name].adapter, ops, config, tmp_path / "trace.jsonl", redact=list(BUGS).index(name) % 2 == 1)
    report = audit(path)
    (breach,) = report.violations
    assert breach.law == violation.law or (breach.operation < violation.step and breach.law in BUGS[name].laws)
    assert_accused(breach.violation)
    assert report.laws[breach.law].verdict == "broken"
    # The suite takes events only now and then; a recorder takes them after every operation, and so sees a wrong one earlier.
    assert breach.operation == violation.step or (breach.law == "events-replay-index" and breach.operation < violation.step)


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
@pytest.mark.parametrize("redact", [False, True])
def test_a_sound_cache_passes(adapter, redact, tmp_path):
    for program in range(8):
        ops, config, violation = swarm_run(adapter, f"sound:{program}")
        assert violation is None
        report = audit(recorded(adapter, ops, config, tmp_path / "trace.jsonl", redact=redact))
        assert (report.verdict, report.operations, report.troubles, report.notes) == ("proved", len(ops), [], [])


# -- a long trace with one planted violation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A few thousand operations of a serving workload on the production cache, as lines."""
    path = tmp_path_factory.mktemp("served") / "trace.jsonl"
    rng = random.Random(5)
    pool = {"num_blocks": 48, "block_size": 4}
    systems = [tuple(rng.randrange(1000) for _ in range(rng.randrange(6, 14))) for _ in range(3)]
    with record(SynchronousAdapter(**pool), path, **pool) as cache:
        known: dict[int, int] = {}
        computed: dict[int, int] = {}
        numbers = itertools.count()
        for _ in range(400):
            while len(known) < 4:
                seq, prompt = next(numbers), rng.choice(systems) + tuple(rng.randrange(1000) for _ in range(rng.randrange(1, 6)))
                cache.admit(seq, prompt)
                cache.match(seq)
                known[seq], computed[seq] = len(prompt), 0
            for seq in list(known):
                cache.extend(seq, known[seq] - computed[seq])
                cache.commit(seq, 0)
                cache.append(seq, (rng.randrange(1000),))
                computed[seq], known[seq] = known[seq], known[seq] + 1
                if rng.random() < 0.06:
                    cache.release(seq, "finish")
                    del known[seq]
    return path.read_bytes().splitlines(keepends=True)


def planted(lines, change):
    """The lines with the first one changed, beyond the middle, for which `change` gives a changed line."""
    for number in range(len(lines) // 2, len(lines) - 1):
        changed = change(msgspec.json.decode(lines[number]))
        if changed is not None:
            return [*lines[:number], msgspec.json.encode(changed) + b"\n", *lines[number + 1 :]], number
    raise AssertionError("nothing to change")


def steal(line):
    """The table of a sequence is given the block that another operation gave away."""
    if line["op"]["op"] == "extend" and line.get("tables") and line.get("free", {}).get("left"):
        (seq, group, start, stop, blocks), *more = line["tables"]
        return line | {"tables": [[seq, group, start, stop, [(blocks[0] + 1) % 48, *blocks[1:]]], *more]}
    return None


def leak(line):
    """A finished sequence's block never comes back to the free list."""
    free = line.get("free", {})
    if line["op"]["op"] == "release" and free.get("joined"):
        (at, blocks), *more = free["joined"]
        return line | {"free": free | {"joined": [[at, blocks[1:]], *more]}}
    return None


def miscount(line):
    """A block is counted once too often, where no pass may pin it."""
    if line["op"]["op"] == "release" and line.get("refcounts"):
        (block, count), *more = line["refcounts"]
        return line | {"refcounts": [[block, count + 1], *more]}
    return None


def overhit(line):
    """A match covers the whole prompt."""
    return line | {"out": {"answer": "hit", "tokens": 10_000}} if line["op"]["op"] == "match" else None


def silence(line):
    """An event is not announced."""
    return line | {"events": []} if line["op"]["op"] == "extend" and line.get("events") and line.get("cached") else None


@pytest.mark.parametrize(
    ("change", "laws"),
    [
        (steal, {"no-aliasing", "committed-is-covered", "own-content", "initialised-read", "refcount-equals-holders", "eviction-forgets"}),
        (leak, {"pool-conserved"}),
        (miscount, {"refcount-equals-holders"}),
        (overhit, {"hit-leaves-last-token"}),
        (silence, {"events-replay-index"}),
    ],
)
def test_one_planted_violation_is_found_where_it_is(served, change, laws, tmp_path):
    lines, number = planted(served, change)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path)
    assert report.verdict == "broken"
    (breach,) = report.violations
    assert (breach.law in laws, breach.line, breach.operation) == (True, number + 1, number - 1)


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory):
    """The same on the asynchronous cache: a step is begun before the one before has ended, so that device work never drains."""
    path = tmp_path_factory.mktemp("pipelined") / "trace.jsonl"
    rng = random.Random(7)
    pool = {"num_blocks": 48, "block_size": 4}
    system = tuple(rng.randrange(1000) for _ in range(9))
    with record(ProductionAdapter(**pool), path, **pool) as cache:
        numbers, rest = itertools.count(), {}
        batches, before = [[], []], None
        for turn in range(500):
            batch = batches[turn % 2]
            for seq in list(batch):
                cache.commit(seq, 0)
                rest[seq] -= 1
                if rest[seq]:
                    cache.append(seq, (rng.randrange(1000),))
                    cache.extend(seq, 1)
                else:
                    cache.release(seq, "finish")
                    batch.remove(seq)
            while len(batch) < 2:
                seq = next(numbers)
                rest[seq] = rng.randrange(2, 12)
                cache.admit(seq, (*system[: rng.choice((0, 4, 9))], rng.randrange(1000), rng.randrange(1000)))
                cache.match(seq)
                cache.extend(seq, 11)
                batch.append(seq)
            step = cache.begin_step()
            if before is not None:
                cache.end_step(before)
            before = step
    return path.read_bytes().splitlines(keepends=True)


def lose(line):
    """A block of a finished sequence is on no list of the books."""
    return leak(line) if line["op"]["op"] in ("release", "endstep") else None


def vanish(line):
    """A free block is on no list any more, whatever is done to others."""
    return line | {"free": {"left": [47]}} if line["op"]["op"] == "append" and "free" not in line else None


def count_free(line):
    """A block that is given back is still counted."""
    counts = line.get("refcounts", [])
    if line["op"]["op"] == "release" and line.get("free", {}).get("joined") and counts and counts[-1][1] == 0:
        return line | {"refcounts": [*counts[:-1], [counts[-1][0], 1]]}
    return None


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lose, "pool-conserved"),
        (vanish, "pool-conserved"),
        (count_free, "refcount-equals-holders"),
    ],
)
def test_device_work_that_never_drains_hides_nothing(pipelined, change, law, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(pipelined))
    assert audit(path).verdict == "proved"
    lines, number = planted(pipelined, change)
    path.write_bytes(b"".join(lines))
    (breach,) = audit(path).violations
    assert (breach.law, breach.line) == (law, number + 1)


def test_a_block_that_the_table_lacks_is_no_second_fault(pipelined, tmp_path):
    """The free list and the counts say that it was taken, and the device's table has it: all of that goes with the fault of the table."""

    def forget(line):
        return (
            {key: value for key, value in line.items() if key != "tables"} if line["op"]["op"] == "extend" and line.get("tables") else None
        )

    def mislead(line):
        if line["op"]["op"] != "extend" or not line.get("tables") or not line["tables"][0][4] or line["op"]["count"] != 1:
            return None
        (seq, group, start, stop, blocks), *more = line["tables"]
        return line | {"tables": [[seq, group, start, stop, [*blocks[:-1], (blocks[-1] + 20) % 48]], *more]}

    for change in (forget, mislead):
        lines, number = planted(pipelined, change)
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"".join(lines))
        assert [breach.line for breach in audit(path).violations] == [number + 1]


def planted_all(served, *changes):
    """The lines with each change planted in its own part of the trace, and the line numbers of a file at which they were."""
    lines, places = list(served), []
    for number, change in enumerate(changes):
        start = len(lines) * (number + 1) // (len(changes) + 1)
        for place in range(start, len(lines) - 1):
            changed = change(msgspec.json.decode(lines[place]))
            if changed is not None:
                lines[place] = msgspec.json.encode(changed) + b"\n"
                places.append(place + 1)
                break
    return lines, places


@pytest.mark.parametrize(
    ("changes", "laws"),
    [
        ((leak, overhit), ["pool-conserved", "hit-leaves-last-token"]),
        ((overhit, silence), ["hit-leaves-last-token", "events-replay-index"]),
        ((silence, miscount, overhit), ["events-replay-index", "refcount-equals-holders", "hit-leaves-last-token"]),
    ],
)
def test_an_audit_goes_on_to_the_first_fault_of_each_broken_law(served, changes, laws, tmp_path):
    lines, places = planted_all(served, *changes)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path)
    assert [(breach.law, breach.line) for breach in report.violations] == list(zip(laws, places, strict=True))
    assert report.operations == len(served) - 2, "it was read to its end"
    assert any("may be a consequence" in note for note in report.notes)
    first = audit(path, first=True)
    assert first.violations == report.violations[:1]
    assert first.operations == places[0] - 1


def test_laws_of_the_whole_pool_cannot_be_told_after_a_fault(served, tmp_path):
    lines, (line,) = planted_all(served, leak)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    finding = audit(path).laws["ledger-adds-up"]
    assert (finding.verdict, finding.until) == ("proved", line)
    assert f"after line {line} it cannot be told, because the broken pool-conserved may be the cause of what it shows" in finding.because


def random_fault(rng):
    """A change of one line that a faulty cache could have shown: a stolen, doubled or lost block, a wrong count, a wrong answer."""

    def doubled(line):
        free = line.get("free", {})
        if line["op"]["op"] == "release" and free.get("joined"):
            (at, blocks), *more = free["joined"]
            return line | {"free": free | {"joined": [[at, [*blocks, blocks[0]]], *more]}}
        return None

    def repointed(line):
        wrong = [[line["op"]["seq"], 0, 0, 1, [rng.randrange(48)]]]
        return line | {"tables": wrong} if line["op"]["op"] == "append" and not line.get("tables") else None

    return rng.choice([steal, leak, miscount, overhit, silence, doubled, repointed])


@pytest.mark.parametrize("seed", range(6))
def test_the_consequences_of_one_fault_are_not_told_as_faults(served, seed, tmp_path):
    """The recording goes on as if nothing had happened, so that everything that the fault touches looks wrong later."""
    lines, places = planted_all(served, random_fault(random.Random(seed)))
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    assert [breach.line for breach in audit(path).violations] == places


def test_a_block_that_never_came_back_leaves_the_free_list_only_once(tmp_path):
    """While a step is open a block may be kept back, so that its loss is told later; that it is handed out again is no fault of its own."""
    path, pool = tmp_path / "trace.jsonl", {"num_blocks": 4, "block_size": 2}
    with record(ProductionAdapter(**pool), path, **pool) as cache:
        for seq in range(3):
            cache.admit(seq, (seq, 1))
            cache.extend(seq, 2)
            step = cache.begin_step()
            if seq == 0:
                cache.release(0, "cancel")
            cache.end_step(step)
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        told = msgspec.json.decode(line)
        if told.get("free", {}).get("joined"):
            del told["free"]
            lines[number] = msgspec.json.encode(told) + b"\n"
    path.write_bytes(b"".join(lines))
    laws = [breach.law for breach in audit(path).violations]
    assert laws in (["no-leak"], ["pool-conserved"])
    film_trace(path)


def test_damage_after_a_fault_ends_the_audit_and_keeps_the_verdict(served, tmp_path):
    lines, (line,) = planted_all(served, overhit)
    lines[line + 100] = b"{}\n"
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path)
    assert [breach.line for breach in report.violations] == [line]
    assert f"Line {line + 101} is damaged" in report.troubles[0]
    assert "the trace cannot be followed any further; add --tolerant" in report.notes[0]
    assert audit(path, tolerant=True).operations > report.operations


def test_the_same_trace_passes_as_it_was_recorded(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(served))
    report = audit(path)
    assert (report.verdict, report.troubles, report.notes) == ("proved", [], [])
    assert report.laws["own-content"].verdict == "proved"
    assert report.laws["fenced-reuse"] == type(report.laws["fenced-reuse"])("unknown", 0, "the recorded cache does not claim steps")
    assert report.figures.hit_rate > 0.3
    assert report.figures.tail_waste <= report.figures.tail_bound


# -- damaged files --------------------------------------------------------------------------------------------------------------------------------


def damaged(kind, lines):
    """(the lines with one thing wrong, what a message must name)."""
    middle = len(lines) // 2
    if kind == "missing":
        return [
            *lines[:middle],
            *lines[middle + 1 :],
        ], f"line {middle + 1} holds operation {middle}, where operation {middle - 1} should be"
    if kind == "doubled":
        return [*lines[:middle], lines[middle - 1], *lines[middle:]], f"line {middle + 1} repeats operation {middle - 2}"
    if kind == "swapped":
        swapped = [*lines[:middle], lines[middle + 1], lines[middle], *lines[middle + 2 :]]
        return swapped, f"line {middle + 1} holds operation {middle}, where operation {middle - 1} should be"
    if kind == "garbage":
        return [*lines[:middle], lines[middle][:20] + b"\x00\xff\n", *lines[middle + 1 :]], f"line {middle + 1} is damaged"
    if kind == "out of range":
        line = msgspec.json.encode(msgspec.json.decode(lines[middle]) | {"free": {"left": [999]}}) + b"\n"
        return [
            *lines[:middle],
            line,
            *lines[middle + 1 :],
        ], f"line {middle + 1} is damaged: it names block 999, but the pool has blocks 0 to 47"
    assert kind == "cut"
    return [*lines[:middle], lines[middle][: len(lines[middle]) // 2]], f"line {middle + 1} is cut off"


KINDS = ("missing", "doubled", "swapped", "garbage", "out of range", "cut")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_one_message_with_the_line(served, kind, tmp_path):
    lines, told = damaged(kind, served)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadTrace) as caught:
        audit(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_damaged_trace_is_audited_and_a_sound_cache_is_not_accused(served, kind, tmp_path):
    lines, told = damaged(kind, served)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path, tolerant=True)
    assert report.verdict == "proved"
    assert any(told.lower() in trouble.lower() for trouble in report.troubles)
    if kind in ("doubled", "swapped"):
        assert report.operations == len(served) - 2, "nothing is missing, so everything is judged"
        assert not any("could not be judged" in note for note in report.notes)
    if kind in ("missing", "garbage", "out of range"):
        assert any("could not be judged" in note for note in report.notes)
        assert report.operations == len(served) - 3


@pytest.mark.parametrize("kind", ["missing", "garbage"])
def test_a_violation_after_the_damage_is_still_found(served, kind, tmp_path):
    """Two sequences that begin after the damage are given the same block."""
    lines, _ = damaged(kind, served)
    first = next(i for i, line in enumerate(lines) if i > len(lines) * 2 // 3 and b'"op":"admit"' in line)
    fresh = msgspec.json.decode(lines[first])["op"]["seq"]
    for number in range(first, len(lines)):
        line = msgspec.json.decode(lines[number])
        if line.get("op", {}).get("op") == "extend" and line["op"]["seq"] > fresh and line.get("tables"):
            mine = next(t for later in lines[first:number] for t in msgspec.json.decode(later).get("tables", []) if t[0] == fresh)
            seq, group, start, stop, blocks = line["tables"][0]
            line["tables"] = [[seq, group, start, stop, [*blocks[:-1], mine[4][-1]]]]
            lines[number] = msgspec.json.encode(line) + b"\n"
            break
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path, tolerant=True)
    assert report.verdict == "broken"
    assert report.violations[0].line == number + 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda whole, _: b"\xef\xbb\xbf" + whole, "line 1 of {path} begins with a byte order mark"),
        (lambda whole, _: whole.decode().encode("utf-16"), "line 1 of {path} begins with a byte order mark"),
        (lambda whole, _: whole.replace(b"\n", b"\r"), "line 1 of {path} is no trace header"),
        (lambda whole, half: whole[:half] + b"\0" * 100 + whole[half:], "is damaged: "),
        (lambda whole, half: whole[:half] + b"\0" * 100, "is cut off: "),
        (lambda whole, half: whole[:half] + b"x" * (2 * MOST_LINE_BYTES) + b"\n" + whole[half:], "is longer than 16,777,216 bytes"),
        (lambda whole, half: whole[:half] + b'{"i":' + b"[" * 100_000 + b"\n" + whole[half:], "is damaged: "),
    ],
)
def test_bytes_that_are_no_lines_are_one_message(served, damage, told, tmp_path):
    path = tmp_path / "trace.jsonl"
    half = sum(map(len, served[: len(served) // 2]))
    path.write_bytes(damage(b"".join(served), half))
    with pytest.raises(BadTrace, match=re.escape(told.format(path=path))):
        audit(path)


def test_lines_end_as_they_like(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(served).replace(b"\n", b"\r\n"))
    report = audit(path)
    assert (report.verdict, report.troubles) == ("proved", [])
    assert "its checksum is another one" in report.notes[0]


def test_a_huge_line_is_skipped_and_the_rest_is_audited(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    half = len(served) // 2
    path.write_bytes(b"".join([*served[:half], b"x" * (2 * MOST_LINE_BYTES) + b"\n", *served[half:]]))
    report = audit(path, tolerant=True)
    assert report.operations == len(served) - 2
    assert [trouble.split(" is ")[0] for trouble in report.troubles] == [f"Line {half + 1}"]


def test_of_very_many_troubles_the_first_are_told(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join([served[0], *(twice for line in served[1:-1] for twice in (line, line)), served[-1]]))
    report = audit(path, tolerant=True)
    assert report.verdict == "proved"
    assert len(report.troubles) == MOST_TROUBLES + 1
    assert report.troubles[-1] == f"Something is wrong with {len(served) - 2 - MOST_TROUBLES:,} more lines."


def test_a_clock_that_goes_back_is_noted(served, tmp_path):
    line = msgspec.json.decode(served[100])
    lines = [*served[:100], msgspec.json.encode(line | {"at": 1}) + b"\n", *served[101:]]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit(path)
    assert report.verdict == "proved"
    assert report.notes[0].startswith("The clock goes back on line 101, from ")


def test_an_unclosed_recording_is_audited_and_says_so(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(served[:-1]))
    report = audit(path)
    assert report.verdict == "proved"
    assert "has no end line" in report.notes[0]


def test_a_changed_byte_that_breaks_nothing_is_noted(served, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(served).replace(b'"took":', b'"took": ', 1))
    assert "was changed after it was recorded" in audit(path).notes[0]


# -- memory ---------------------------------------------------------------------------------------------------------------------------------------


def test_memory_is_bounded_by_what_is_live(served, tmp_path, monkeypatch):
    """With the slack taken away, what the spec keeps of a long trace does not exceed what its pool and its live sequences need."""
    monkeypatch.setattr(remembered, "TREE_SLACK", 100)
    monkeypatch.setattr(remembered, "MOST_GONE", 4)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(served))
    from kvproof.fuzz.auditor import Auditor
    from kvproof.fuzz.traces.read import Reader

    reader = Reader(path)
    auditor = Auditor(reader.header)
    auditor.spec.memory._most_losses = 50
    admitted = 0
    for step in reader:
        assert auditor.judge(step) == ""
        admitted += step.op.__class__.__name__ == "Admit"
        spec = auditor.spec
        assert len(spec.sequences) <= 4 + len(spec.live)
        assert len(spec.memory.lost) <= 50
    assert auditor.breach is None
    assert admitted > 50
    assert len(spec.tree) < 1500
    assert len(spec.numbers._starts) == 1


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
def test_no_sound_cache_is_accused_whatever_line_is_missing(adapter, tmp_path):
    rng = random.Random(2)
    for program in range(30):
        ops, config, _ = swarm_run(adapter, f"lost:{program}")
        path = recorded(adapter, ops, config, tmp_path / "trace.jsonl")
        lines = path.read_bytes().splitlines(keepends=True)
        lost = rng.randrange(1, len(lines) - 1)
        path.write_bytes(b"".join([*lines[:lost], *lines[lost + rng.choice((1, 1, 3)) :]]))
        report = audit(path, tolerant=True)
        assert (report.verdict, report.violations) == ("proved", []), (program, lost)


def mutated(value, rng):
    """The same JSON value with one number or key changed."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: mutated(value[key], rng)} if rng.random() < 0.9 else {k: v for k, v in value.items() if k != key}
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(value[at], rng), *value[at + 1 :]]
    return rng.choice((-1, 0, 1, 3, 47, 48, 2**40, None, "x", [], {}, True))


@pytest.mark.parametrize("tolerant", [False, True])
def test_whatever_stands_on_a_line_an_audit_ends_with_a_verdict_or_a_message(served, tolerant, tmp_path):
    rng = random.Random(7)
    path = tmp_path / "trace.jsonl"
    for _ in range(60):
        lines = served[:300]
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(lines))
            lines[at] = msgspec.json.encode(mutated(msgspec.json.decode(lines[at]), rng)) + b"\n"
        path.write_bytes(b"".join(lines))
        try:
            audit(path, tolerant=tolerant)
        except BadTrace as error:
            assert "\n" not in str(error)  # noqa: PT017 -- there may be none
