"""The picture: what is recorded of a run, put together again; the page as a file; the columns of text; `kvproof open`."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from base64 import b64decode
from http.server import ThreadingHTTPServer
from pathlib import Path

import msgspec
import picture_runs
import pytest
from picture_runs import COPY_NOT_ISSUED, BreaksLate, faulty_trace, film, recorded, serving_program
from rich.console import Console

from kvproof.cli import main
from kvproof.fuzz.audit import audit
from kvproof.fuzz.programs import PoolConfig, Program, write_program
from kvproof.fuzz.reports.picture import film as filming
from kvproof.fuzz.reports.picture.align import align
from kvproof.fuzz.reports.picture.document import Document, Picture
from kvproof.fuzz.reports.picture.events import film_events
from kvproof.fuzz.reports.picture.film import Film, set_delta, splice, table_delta
from kvproof.fuzz.reports.picture.html import MOST_PLAIN_BYTES, SCRIPTS, STYLES, html
from kvproof.fuzz.reports.picture.stage import Prefixes, Stage
from kvproof.fuzz.reports.picture.text import show_picture
from kvproof.fuzz.reports.picture.traces import film_trace
from kvproof.fuzz.swarm import Config, Swarm
from kvproof.impl.checker import read_capabilities
from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.observed import Moved
from kvproof.models.ops import Admit, Extend, Namespace
from kvproof.open_cli import HOST, handler_of
from kvproof.properties.lockstep import Lockstep
from kvproof.targets import find_target

PAGE = Path(filming.__file__).parent / "page"


def data_of(page: bytes) -> dict:
    """The data in a page."""
    [(kind, text)] = re.findall(r'<script id="data" type="application/(json|gzip)">(.*?)</script>', page.decode(), re.DOTALL)
    return json.loads(text if kind == "json" else gzip.decompress(b64decode(text)))


# -- film and stage -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
@pytest.mark.parametrize("seed", range(4))
def test_frames_put_together_again_give_what_was_seen(adapter, seed):
    """Random programs: after every operation tables, books and ghosts are those of the run itself."""
    rng = random.Random(seed)
    capabilities = read_capabilities(adapter)
    config = Config(rng, capabilities)
    lockstep = Lockstep(adapter, num_blocks=config.num_blocks, block_size=config.block_size, keep_trace=True)
    swarm = Swarm(rng, capabilities, num_blocks=config.num_blocks, block_size=config.block_size)
    film, expected = Film(lockstep.spec, num_blocks=config.num_blocks), []
    for op in swarm.ops(lockstep.spec):
        assert lockstep.do(op)
        film.take(op, "", "", lockstep.trace[-1].seen.books.free)
        expected.append(state_of(lockstep))
    picture = picture_of(film)
    stage, prefixes = Stage(picture), Prefixes(picture)
    for row, wanted in enumerate(expected):
        stage.advance(row)
        assert shown_by(stage, prefixes) == wanted


def picture_of(film: Film) -> Picture:
    from kvproof.fuzz.reports.picture.document import picture_of

    # Through JSON, as a page has it.
    return msgspec.json.decode(msgspec.json.encode(picture_of(film, name="run", target="production")), type=Picture)


def state_of(lockstep: Lockstep) -> dict:
    spec, seen = lockstep.spec, lockstep.trace[-1].seen
    groups = len(spec.block_sizes)
    return {
        "tables": {seq: [[-1 if block is None else block for block in table] for table in tables] for seq, tables in seen.tables.items()},
        "free": list(seen.books.free),
        "cached": set(seen.books.cached),
        "retiring": set(seen.books.retiring),
        "counts": [seen.books.refcounts.get(block, 0) for block in range(lockstep.num_blocks)],
        "slots": [spec.tree.tokens(content // groups) if content else () for content in spec.memory.slots],
        "known": {seq: (tuple(known.known), known.computed) for seq, known in spec.live.items()},
        "open": len(spec.steps),
    }


def shown_by(stage: Stage, prefixes: Prefixes) -> dict:
    groups = len(stage.picture.groups)

    def tokens(node: int, length: int | None = None) -> tuple[int, ...]:
        length = depth(stage.picture, node) if length is None else length
        return tuple(prefixes.token(below) for below in prefixes.path(node, length))

    return {
        "tables": {seq: player.tables for seq, player in stage.players.items()},
        "free": stage.free,
        "cached": stage.matchable,
        "retiring": stage.retiring,
        "counts": [block.count for block in stage.blocks],
        "slots": [tokens(content // groups) if content else () for content in stage.slots],
        "known": {seq: (tokens(player.now.node, player.now.known), player.now.computed) for seq, player in stage.players.items()},
        "open": stage.open_steps,
    }


def depth(picture: Picture, node: int) -> int:
    tokens = 0
    while picture.tree.back[node]:
        tokens += 1
        node -= picture.tree.back[node]
    return tokens


@pytest.mark.parametrize("seed", range(50))
def test_a_splice_turns_the_old_list_into_the_new_one(seed):
    rng = random.Random(seed)
    old, new = (tuple(rng.sample(range(12), rng.randint(0, 12))) for _ in range(2))
    at, gone, *came = splice(old, new)
    assert [*old[:at], *came, *old[at + gone :]] == list(new)
    kept, *entries = table_delta(old, new)
    assert [*old[:kept], *entries] == list(new)
    changes = set_delta(Moved(set(new) - set(old), set(old) - set(new)))
    assert (set(old) | {c - 1 for c in changes if c > 0}) - {-c - 1 for c in changes if c < 0} == set(new)


def test_a_generation_counts_how_often_a_block_was_handed_out():
    picture = film(serving_program(200, num_blocks=16))
    stage = Stage(picture)
    stage.advance(len(picture.frames) - 1)
    handed_out = sum(block.generation for block in stage.blocks)
    came = [block for frame in picture.frames for change in frame.s for delta in change.tables for block in delta[1:]]
    assert 16 < handed_out <= len(came)


def test_prefixes_keep_their_numbers_when_the_spec_forgets_its_own():
    """The film's numbers stand for tokens, not for nodes of the spec."""
    lockstep = Lockstep(ProductionAdapter, num_blocks=8, block_size=2, keep_trace=True)
    film = Film(lockstep.spec, num_blocks=8)
    for op in (Admit(0, (5, 6)), Admit(1, (5, 7), Namespace(tenant="a")), Admit(2, (5, 6))):
        lockstep.do(op)
        film.take(op, "", "", lockstep.trace[-1].seen.books.free)
    nodes = [frame.s[0].node for frame in film.frames]
    assert nodes[0] == nodes[2] != nodes[1]
    assert sorted(space.tenant or "" for space in film.prefixes.roots.values()) == ["", "a"]


# -- traces -------------------------------------------------------------------------------------------------------------------------------


def test_a_trace_shows_what_the_run_of_its_program_shows(tmp_path):
    program = serving_program(400, num_blocks=24)
    trace = film_trace(recorded(program, ProductionAdapter, tmp_path / "trace.jsonl"))
    run = film(program)
    assert (trace.texts, trace.answers, trace.numbers) == (run.texts, run.answers, run.numbers)
    one, other = Stage(trace), Stage(run)
    for row in range(len(run.frames)):
        one.advance(row)
        other.advance(row)
        assert shown_by(one, Prefixes(trace)) == shown_by(other, Prefixes(run))
        assert one.blocks == other.blocks


def test_a_trace_shows_the_fault_that_its_program_shows_and_goes_on(tmp_path, capsys):
    program = serving_program(400, num_blocks=24)
    path = recorded(program, BreaksLate, tmp_path / "trace.jsonl")
    trace, run = film_trace(path), film(program, BreaksLate)
    told, expected = trace.accusation, run.accusation
    assert (told.law, told.row, told.blocks, told.slots, told.began) == (
        expected.law,
        expected.row,
        expected.blocks,
        expected.slots,
        expected.began,
    )
    assert {told.blocks[0]} <= {difference.block for difference in told.differences}
    assert len(trace.frames) > len(run.frames), "a program ends at the fault, a trace does not"
    assert trace.texts[: len(run.texts)] == run.texts
    assert main(["open", str(path), "--text"]) == 1
    assert f"{run.accusation.law} is broken at step {run.accusation.step}" in capsys.readouterr().out
    failure = tmp_path / "failure.json"
    failure.write_text(trace.program)
    assert main(["replay", str(failure), f"{picture_runs.__file__}:BreaksLate"]) == 1


def test_every_fault_of_a_trace_is_told_and_none_of_its_consequences(tmp_path):
    path = faulty_trace(tmp_path / "trace.jsonl")
    picture = film_trace(path)
    report = audit(path)
    assert [(fault.law, fault.step) for fault in picture.faults] == [(breach.law, breach.operation) for breach in report.violations]
    assert [fault.law for fault in picture.faults] == ["pool-conserved", "hit-leaves-last-token"]
    assert len(picture.frames) == report.operations
    lost, overhit = picture.faults
    stage = Stage(picture)
    stage.advance(lost.row)
    assert stage.blocks[lost.blocks[0]].state == filming.MISSING, "as it is where the law breaks"
    stage.advance(lost.row + 1)
    assert stage.blocks[lost.blocks[0]].state == filming.ASIDE, "and set aside from then on"
    assert all(difference.block != lost.blocks[0] for difference in overhit.differences), "the first fault explains that"
    assert "nothing more was asked" in picture.note
    first = printed(picture)
    assert f"pool-conserved is broken at step {lost.step}\n  The law: " in first
    assert f"hit-leaves-last-token is broken at step {overhit.step}\n2 laws are broken; --step shows another step." in first
    second = printed(picture, step=overhit.step)
    assert f"pool-conserved is broken at step {lost.step}\nhit-leaves-last-token" in second
    assert second.splitlines()[next(n for n, line in enumerate(second.splitlines()) if line.startswith("Blocks over")) + 1].count("!") == 1


def test_a_trace_is_drawn_to_its_end_although_its_audit_ends(tmp_path):
    """Where more than half of the pool is accused nothing more is judged, and what follows is drawn all the same."""
    path = recorded(serving_program(400, num_blocks=24), ProductionAdapter, tmp_path / "trace.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines[100:], 100):
        if b'"op":"append"' in line and b'"tables"' not in line:
            op = msgspec.json.decode(line)
            lines[number] = msgspec.json.encode(op | {"tables": [[op["op"]["seq"], 0, 0, 1, [number % 24]]]}) + b"\n"
    path.write_bytes(b"".join(lines))
    picture = film_trace(path)
    assert audit(path).operations < len(picture.frames) == len(lines) - 2
    assert "The audit ended with operation" in picture.note
    assert [fault.step for fault in picture.faults] == [breach.operation for breach in audit(path).violations]


def test_a_trace_is_drawn_beyond_lines_that_are_missing(tmp_path):
    path = recorded(serving_program(400), ProductionAdapter, tmp_path / "trace.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    whole = film_trace(path)
    path.write_text("".join([*lines[:100], *lines[104:]]))
    picture = film_trace(path)
    assert picture.gaps == [99]
    assert picture.texts[99] == "operations 99 to 102 are missing before line 101"
    assert picture.numbers == [*range(99), None, *range(103, len(whole.frames))], "steps keep their numbers"
    assert picture.note.startswith(
        "Operations 99 to 102 are missing before line 101. Beyond the gap only sequences that began later are followed."
    )
    stage, full = Stage(picture), Stage(whole)
    stage.advance(99)
    assert not stage.players
    assert {block.state for block in stage.blocks} == {filming.UNKNOWN}
    born = max(seq for frame in whole.frames[:103] for seq in (change.seq for change in frame.s))
    for row, number in enumerate(picture.numbers[100:], 100):
        stage.advance(row)
        full.advance(number)
        assert stage.players.keys() == {seq for seq in full.players if seq > born}
        assert all(stage.players[seq].tables == full.players[seq].tables for seq in stage.players)
        held = {block for player in stage.players.values() for table in player.tables for block in table}
        assert all(block in held or stage.blocks[block].state == filming.UNKNOWN for block in range(picture.num_blocks))
    assert "not followed" in picture.answers
    assert main(["open", str(path), "--html", str(tmp_path / "page.html")]) == 2


def test_a_line_that_is_damaged_is_a_gap_and_a_doubled_one_is_not(tmp_path):
    path = recorded(serving_program(60), ProductionAdapter, tmp_path / "trace.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    frames = len(film_trace(path).frames)
    path.write_text("".join([*lines[:20], lines[19], *lines[20:]]))
    doubled = film_trace(path)
    assert (doubled.gaps, len(doubled.frames)) == ([], frames)
    assert doubled.note.startswith("Line 21 repeats operation 18.")
    path.write_text("".join([*lines[:20], lines[20][:15] + "\n", *lines[21:]]))
    assert film_trace(path).gaps == [19]


EVENTS = [
    ["AllBlocksCleared"],
    ["BlockStored", [11, 12], None, [5, 6, 7, 8], 2, None, "GPU"],
    ["BlockStored", [13], 12, [9, 9], 2, None, "GPU"],
    ["BlockStored", [11], None, [5, 6], 2, None, "GPU"],
    ["BlockRemoved", [12], "GPU"],
    ["BlockStored", [14], None, [1, 2], 2, None, "GPU"],
]


def events_file(path, events):
    path.write_text("".join(json.dumps([float(at), [event]]) + "\n" for at, event in enumerate(events)))
    return path


def test_a_stream_of_events_is_drawn_as_the_index_that_it_makes(tmp_path):
    picture = film_events(events_file(tmp_path / "events.jsonl", EVENTS))
    assert picture.texts[1:3] == ["stored 11 12 on GPU", "stored 13 after 12 on GPU"]
    stage, prefixes = Stage(picture), Prefixes(picture)
    stage.advance(2)
    assert stage.matchable == {0, 1, 2}
    assert [prefixes.token(content) for content in stage.slots] == [5, 6, 7, 8, 9, 9]
    assert [prefixes.token(node) for node in prefixes.path(stage.slots[5], 6)] == [5, 6, 7, 8, 9, 9], "a hash continues its parent"
    stage.advance(4)
    assert stage.matchable == {0, 2}
    assert stage.blocks[0].count == 2, "it was stored twice"
    stage.advance(5)
    assert stage.name(1) == "b1#2", "a place is used again"


def test_a_stream_ends_at_the_law_that_it_breaks(tmp_path, capsys):
    path = events_file(tmp_path / "events.jsonl", [*EVENTS, ["BlockStored", [11], None, [8, 8], 2, None, "GPU"], ["AllBlocksCleared"]])
    accused = film_events(path).accusation
    assert (accused.law, accused.row, accused.blocks) == ("hit-is-true-prefix", 6, [0])
    assert main(["open", str(path), "--text"]) == 1
    assert "hit-is-true-prefix is broken at step 6" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["audit", str(path), "--html", str(page)]) == 1
    assert data_of(page.read_bytes())["pictures"][0]["faults"][0]["law"] == "hit-is-true-prefix"


def test_what_a_trace_recorded_is_run_again_on_another_target(tmp_path):
    path = recorded(serving_program(20), ProductionAdapter, tmp_path / "trace.jsonl")
    page = tmp_path / "page.html"
    assert main(["open", str(path), "--compare-target", "bug:copy-is-not-issued", "--html", str(page)]) == 0
    data = data_of(page.read_bytes())
    assert [picture["target"] for picture in data["pictures"]][1] == "bug:copy-is-not-issued"
    assert data["pairs"] == [[row, row] for row in range(len(data["pictures"][0]["frames"]))]


def test_an_audit_writes_the_page_too(tmp_path):
    path = recorded(serving_program(400, num_blocks=24), BreaksLate, tmp_path / "trace.jsonl")
    page = tmp_path / "page.html"
    assert main(["audit", str(path), "--html", str(page)]) == 1
    assert data_of(page.read_bytes())["pictures"][0]["faults"][0]["law"] == film_trace(path).accusation.law


# -- what is accused ----------------------------------------------------------------------------------------------------------------------


def test_a_failure_names_its_law_its_blocks_and_the_first_difference():
    picture = film(COPY_NOT_ISSUED)
    accused = picture.accusation
    assert (accused.law, accused.step, accused.row, accused.blocks, accused.sequences, accused.positions) == (
        "copy-before-write",
        4,
        4,
        [1],
        [1],
        [0],
    )
    first = accused.differences[0]
    assert (first.seq, first.position, first.block) == (1, 0, 1)
    assert first.model == "shows the prefix 0"
    assert first.cache == "block b1 offset 0 shows nothing that was written"
    assert len(picture.frames) == 5, "what comes after the violation did not run"
    assert "def test_copy_before_write" in picture.source


@pytest.mark.parametrize(
    ("bug", "where", "model", "cache"),
    [
        ("hit-is-counted-twice", "block b", "1 to 2 holders", "counts"),
        ("hit-covers-the-whole-prompt", "hit of sequence", "at most", "promises"),
        ("trimmed-blocks-are-lost", "block b", "held by nobody, so free", "neither free nor held nor retiring"),
    ],
)
def test_books_and_answers_have_differences_too(bug, where, model, cache, tmp_path):
    from kvproof.fuzz.check import check

    adapter = find_target(f"bug:{bug}")
    report = check(adapter, name=f"bug:{bug}", seconds=5, seed=1, workers=1, programs=400)
    picture = film(report.violations[0].program, adapter)
    told = [(difference.where, difference.model, difference.cache) for difference in picture.accusation.differences]
    assert any(w.startswith(where) and model.split()[-1] in m and c.startswith(cache) for w, m, c in told), told


def test_skipped_operations_keep_their_row_and_say_why():
    program = Program(1, "production", PoolConfig(4, 2), (Admit(0, (1, 2)), Extend(7, 1), Extend(0, 2)))
    picture = film(program)
    assert picture.numbers == [0, None, 1]
    assert picture.answers[1] == "skipped: unknown sequence 7"
    assert picture.frames[1] == filming.Frame()


def test_a_fault_of_the_adapter_ends_the_picture_with_its_sentence():
    class Confused(ProductionAdapter):
        def extend(self, seq, count, drafts=()):
            return "a grant"

    picture = film(Program(1, "x", PoolConfig(4, 2), (Admit(0, (1, 2)), Extend(0, 2))), Confused)
    assert picture.accusation is None
    assert "extend" in picture.trouble
    assert picture.answers == ["", "no answer"]
    assert Document("x", [picture]).verdict == "error"


# -- two runs -----------------------------------------------------------------------------------------------------------------------------


def test_equal_operations_stand_side_by_side():
    assert align("abcd", "abcd") == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert align("abcd", "acd") == [(0, 0), (1, -1), (2, 1), (3, 2)]
    assert align("ab", "axb") == [(0, 0), (-1, 1), (1, 2)]
    assert align("", "a") == [(-1, 0)]


def test_long_runs_are_laid_side_by_side_without_a_search():
    one, other = ["same", *["a"] * 3000], ["same", *["b"] * 2999]
    pairs = align(one, other)
    assert pairs[:2] == [(0, 0), (1, 1)]
    assert pairs[-1] == (3000, -1)


# -- the page as a file -------------------------------------------------------------------------------------------------------------------


def test_the_page_alone_is_small_and_asks_for_nothing():
    page = html(Document("t", [film(COPY_NOT_ISSUED)]))
    data = re.search(rb'<script id="data".*?</script>', page, re.DOTALL).group(0)
    assert len(page) - len(data) < 400_000
    text = page.replace(data, b"").decode()
    assert "default-src 'none'" in text
    links = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", text)
    assert [link for link in links if not link.startswith(("data:", "#"))] == []
    assert "fetch(" not in text
    assert "XMLHttpRequest" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_is_the_same_every_time():
    document = Document("t", [film(serving_program(200))])
    assert html(document) == html(document)


@pytest.mark.parametrize("operations", [40, 1500])
def test_the_data_of_a_page_is_the_document(operations):
    document = Document("t", [film(serving_program(operations))])
    data = msgspec.json.encode(document)
    assert (len(data) > MOST_PLAIN_BYTES) == (operations == 1500), "one of the two is packed"
    assert data_of(html(document)) == json.loads(data)


def test_nothing_in_the_data_can_leave_it():
    evil = "</script><script>alert(1)</script><!--title-->"
    program = Program(1, "production", PoolConfig(4, 2), (Admit(0, (1, 2), Namespace(tenant=evil)), Extend(0, 2)))
    page = html(Document(evil, [film(program, name=evil)]))
    assert page.count(b"</script>") == 2, "that of the data and that of the scripts"
    assert evil.encode() not in page
    assert data_of(page)["title"] == evil


def test_every_file_of_the_page_is_joined_into_it():
    assert {path.name for path in PAGE.iterdir()} == {"page.html", *SCRIPTS, *STYLES}


def test_a_long_program_is_drawn_without_its_source():
    picture = film(serving_program(450))
    assert picture.source == picture.program == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(theme):
    """Contrasts of at least 4.5 to 1 (WCAG 2.1, AA) for words, computed from the colours of the theme."""
    text = (PAGE / "theme.css").read_text()
    block = text[text.index(":root {") if theme == "light" else text.index(':root[data-theme="dark"] {') :]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block[: block.index("}")]))
    for ink in ("ink", "quiet", "alarm", "accent"):
        for ground in ("paper", "card"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["ink"], colours["alarm-wash"]) >= 4.5
    assert contrast(colours["alarm"], colours["alarm-wash"]) >= 4.5


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# -- text ---------------------------------------------------------------------------------------------------------------------------------


def printed(picture: Picture, *, step: int | None = None, width: int = 120) -> str:
    out = io.StringIO()
    show_picture(Console(file=out, width=width, markup=False, highlight=False), picture, step=step)
    return out.getvalue()


def test_the_text_has_the_map_the_changes_and_the_first_difference():
    text = printed(film(COPY_NOT_ISSUED))
    assert "copy-before-write is broken at step 4" in text
    assert "  b0     .00+0  b0#1 s0\n> b1     ....1  b1 s1\n" in text
    assert ">    4  extend 1 by 1          s1 table -b0#1 +b1; b0#1 shared to held; b1 free to held" in text
    assert "      model  0 0\n      cache  !. 0\n      table  b1\n             first difference at position 0\n" in text


def test_the_text_shows_any_step():
    text = printed(film(COPY_NOT_ISSUED), step=1)
    assert ">    1  extend 0 by 1" in text
    assert "s0  0 of 2 tokens computed, a pass writes position 0" in text
    assert "first difference at position" not in text


def test_the_text_of_a_long_run_is_as_wide_as_the_terminal():
    program = serving_program(900, num_blocks=16)
    text = printed(film(program), width=100)
    rows = [line for line in text.splitlines() if re.match(r"[> ] b\d+ ", line)]
    assert len(rows) == 16
    assert all(len(line) <= 100 for line in rows)
    assert re.search(r"one column for \d", text)


# -- kvproof open -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def failure(tmp_path) -> Path:
    path = tmp_path / "failure.json"
    write_program(path, COPY_NOT_ISSUED)
    return path


def test_open_writes_a_page(failure, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["open", str(failure), "--html", str(page)]) == 1
    assert data_of(page.read_bytes())["pictures"][0]["faults"][0]["law"] == "copy-before-write"
    assert f"Wrote {page}" in capsys.readouterr().err


def test_open_prints_text(failure, capsys):
    assert main(["open", str(failure), "--text"]) == 1
    assert "copy-before-write is broken at step 4" in capsys.readouterr().out


def test_open_on_another_target_and_beside_it(failure, tmp_path):
    page = tmp_path / "page.html"
    assert main(["open", str(failure), "production-sync", "--html", str(page)]) == 0
    assert main(["open", str(failure), "--compare-target", "production-sync", "--html", str(page)]) == 1
    data = data_of(page.read_bytes())
    assert [picture["target"] for picture in data["pictures"]] == ["bug:copy-is-not-issued", "production-sync"]
    assert data["pairs"] == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [-1, 5]]


def test_the_page_of_a_check_has_its_laws_and_a_run_for_each_broken_one(tmp_path):
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    options = ["--budget", "5", "--programs", "300", "--seed", "1", "-n", "1", "--failures", str(tmp_path), "--json", str(report)]
    assert main(["check", "bug:copy-is-not-issued", *options, "--html", str(page)]) == 1
    data = data_of(page.read_bytes())
    assert [picture["faults"][0]["law"] for picture in data["pictures"]] == [
        violation["law"] for violation in json.loads(report.read_text())["violations"]
    ]
    assert data["laws"]["copy-before-write"]["verdict"] == "broken"
    again = tmp_path / "again.html"
    assert main(["open", str(report), "--html", str(again)]) == 1
    assert data_of(again.read_bytes())["laws"] == data["laws"]


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_other_commands_write_the_page_too(command, failure, tmp_path):
    page = tmp_path / "page.html"
    assert main([command, str(failure), "--html", str(page)]) == 1
    assert data_of(page.read_bytes())["pictures"][0]["faults"][0]["law"] == "copy-before-write"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing.json"], "cannot be read"),
        (["broken.json"], "is not a kvproof program"),
        (["failure.json", "--html", "file/page.html"], "cannot be written"),
        (["failure.json", "--html", "page.html", "--compare", "missing.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(arguments, complaint, failure, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    Path("file").write_text("")
    assert main(["open", *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not Path("page.html").exists()


def test_the_page_is_served_to_this_machine_alone():
    server = ThreadingHTTPServer((HOST, 0), handler_of(b"the page"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://{HOST}:{server.server_port}"
        with urllib.request.urlopen(address) as answer:
            assert answer.read() == b"the page"
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        for request, status in (
            (urllib.request.Request(f"{address}/other"), 404),
            (urllib.request.Request(address, headers={"Host": "evil.example:80"}), 403),
        ):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request)
            assert error.value.code == status
            error.value.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_open_serves_until_it_is_interrupted(failure):
    """The exit status is that of the picture. A shell that starts the tests in the background makes its children deaf to SIGINT, so the child listens anew."""
    command = [
        sys.executable,
        "-c",
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from kvproof.cli import main; sys.exit(main(sys.argv[1:]))",
        "open",
        str(failure),
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        told = served.stdout.readline()
        [address] = re.findall(r"http://\S+", told)
        with urllib.request.urlopen(address) as answer:
            assert data_of(answer.read())["pictures"][0]["faults"][0]["law"] == "copy-before-write"
        served.send_signal(signal.SIGINT)
        try:
            assert served.wait(timeout=30) == 1
        finally:
            served.kill()
        assert served.stderr.read() == ""


def test_a_port_that_is_taken_is_said(failure, capsys):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        assert main(["open", str(failure), "--no-browser", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_a_late_violation_is_found_in_a_long_run():
    picture = film(serving_program(200, num_blocks=24, target=f"{picture_runs.__file__}:BreaksLate"), BreaksLate)
    assert picture.accusation is not None
    assert picture.accusation.row == len(picture.frames) - 1 > 100
