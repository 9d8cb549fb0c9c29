"""Streams of KV events: what they can show is found, what they cannot is not claimed, and an honest engine is not accused."""

from __future__ import annotations

import json

import pytest

from kvproof.fuzz.traces.format import BadTrace
from kvproof.fuzz.traces.kv_events import audit_events, is_event_stream
from kvproof.models.laws import CACHE_LAWS


def stored(hashes, tokens, parent=None, size=2, lora=None, medium="GPU", *more):
    return ["BlockStored", hashes, parent, tokens, size, lora, medium, *more]


def removed(hashes, medium="GPU"):
    return ["BlockRemoved", hashes, medium]


CLEARED = ["AllBlocksCleared"]

HONEST = [
    stored([11, 12], [1, 2, 3, 4]),
    stored([13], [5, 6], 12),
    stored([11], [1, 2]),  # a second block with the same content: vLLM does not merge them
    removed([13]),
    stored([13], [5, 6], 12),
    removed([11]),
    removed([11, 12]),
    CLEARED,
    stored([11], [9, 9]),
    stored([21], [], size=0, medium="CPU"),  # an offloaded block, whose tokens are not told
    stored([31], [1, 2, 3, 4, 5, 6]),  # a window: the first two blocks were skipped
]
"""What an honest engine may send."""


def write(path, events, form):
    batches = [[float(number), [event]] for number, event in enumerate(events)]
    if form == "msgpack":
        msgpack = pytest.importorskip("msgpack")
        path.write_bytes(b"".join(msgpack.packb(batch) for batch in batches))
    elif form == "json":
        path.write_text("".join(json.dumps(batch) + "\n" for batch in batches))
    else:
        names = {
            "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
            "BlockRemoved": ("block_hashes", "medium"),
        }
        objects = [{"type": event[0], **dict(zip(names.get(event[0], ()), event[1:], strict=False))} for event in events]
        path.write_text("".join(json.dumps({"ts": 0.0, "events": [event]}) + "\n" for event in objects))
    return path


FORMS = ("msgpack", "json", "objects")


@pytest.mark.parametrize("form", FORMS)
def test_an_honest_stream_passes(form, tmp_path):
    path = write(tmp_path / "events", HONEST, form)
    assert is_event_stream(path)
    report = audit_events(path)
    assert (report.verdict, report.operations, report.troubles) == ("proved", len(HONEST), [])
    proved = {law for law, finding in report.laws.items() if finding.verdict == "proved"}
    assert proved == {"hit-is-true-prefix", "published-is-committed"}
    assert report.laws.keys() == {law.name for law in CACHE_LAWS}
    assert "neither blocks, block tables, counts nor requests" in report.laws["no-aliasing"].because


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("events", "law", "at"),
    [
        ([stored([1], [5, 6]), stored([1], [5, 7])], "hit-is-true-prefix", 2),
        ([stored([1, 2], [5, 6, 7, 8]), stored([2], [7, 8], 9)], "hit-is-true-prefix", 2),
        ([stored([1, 2], [5, 6, 7])], "published-is-committed", 1),
        ([CLEARED, stored([1], [5, 6]), removed([1]), removed([1])], "events-replay-index", 4),
    ],
)
def test_what_a_stream_can_show_is_found(events, law, at, form, tmp_path):
    report = audit_events(write(tmp_path / "events", events, form))
    (breach,) = report.violations
    assert (breach.law, breach.line) == (law, at)
    assert report.exit_status == 1


def test_a_stream_is_judged_to_its_end(tmp_path):
    events = [CLEARED, stored([11], [1, 2]), stored([11], [7, 7]), stored([12], [3], 11), removed([12]), removed([99]), stored([14], [1])]
    report = audit_events(write(tmp_path / "events", events, "json"))
    found = [(breach.law, breach.operation) for breach in report.violations]
    assert found == [("hit-is-true-prefix", 2), ("published-is-committed", 3), ("events-replay-index", 5)]
    assert report.operations == len(events)


def test_a_stream_that_begins_in_the_middle_accuses_nobody(tmp_path):
    report = audit_events(write(tmp_path / "events", [removed([5]), stored([6], [1, 2], 5)], "json"))
    assert report.verdict == "proved"
    assert "1 removals name a hash that this stream never stored" in report.notes[1]


def test_one_hash_for_two_adapters_is_noted_and_nobody_accused(tmp_path):
    report = audit_events(write(tmp_path / "events", [stored([1], [5, 6], None, 2, 1), stored([1], [5, 6], None, 2, 2)], "json"))
    assert report.verdict == "proved"
    assert "another adapter or salt" in report.notes[1]


def test_byte_hashes_are_read(tmp_path):
    path = write(tmp_path / "events", [stored([b"\x01\xff"], [5, 6]), stored([b"\x01\xff"], [5, 7])], "msgpack")
    assert "hash 01ff" in audit_events(path).violations[0].reason


@pytest.mark.parametrize(("form", "told"), [("json", "item 2 is no KV event"), ("msgpack", "item 2 is no KV event")])
def test_damage_is_one_message_and_the_rest_is_audited_if_asked(form, told, tmp_path):
    path = write(tmp_path / "events", HONEST, form)
    data = path.read_bytes()
    path.write_bytes(data.split(b"\n", 1)[0] + b"\n[1, [[\n" + data.split(b"\n", 1)[1] if form == "json" else data[:60])
    with pytest.raises(BadTrace, match=told):
        audit_events(path)
    report = audit_events(path, tolerant=True)
    assert told.lower() in report.troubles[0].lower()
    assert report.verdict == "proved"


@pytest.mark.parametrize("event", [["BlockMoved", [1]], ["BlockStored", 1, None, [1, 2], 2], ["BlockRemoved", [1.5]], 7, [1, 2]])
def test_what_is_no_event_is_refused(event, tmp_path):
    path = tmp_path / "events"
    path.write_text(json.dumps([0.0, [event]]) + "\n")
    with pytest.raises(BadTrace, match="item 1 is no KV event"):
        audit_events(path)
