"""Program files: they come back as they were written, or they are refused in one sentence; and they are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.programs import FORMAT, BadFile, PoolConfig, Program, read_program, write_program, write_whole
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import OP_TYPES, RELEASE_REASONS, Admit, Extend, Namespace, op_name
from kvproof.models.spec import Violation
from kvproof.properties import strategies

ALL = Capabilities(
    prefix=True, fork=True, truncate=True, drafts=True, steps=True, evict=True, reset=True, swap=True, namespace_fields={"tenant", "dtype"}
)

# msgspec writes integers of 64 bits; no generator makes larger tokens.
numbers = st.integers(-(2**63), 2**63 - 1)
many = st.lists(numbers, max_size=4).map(tuple)
FIELDS = {"namespace": strategies.namespaces(), "reason": st.sampled_from(RELEASE_REASONS), "prompt": many, "tokens": many, "drafts": many}
anything = st.one_of(
    [
        st.builds(kind, **{field: FIELDS.get(field, many if field == "blocks" else numbers) for field in kind.__struct_fields__})
        for kind in OP_TYPES
    ]
)
ops = st.one_of(strategies.programs(ALL).map(tuple), st.lists(anything, max_size=6).map(tuple))
programs = st.builds(
    Program,
    kvproof=st.just(FORMAT),
    target=st.text(max_size=20),
    config=st.builds(PoolConfig, st.integers(1, 2**40), st.integers(1, 2**40)),
    ops=ops,
    seed=st.none() | st.text(max_size=20),
    violation=st.none() | st.builds(Violation, st.text(max_size=20), st.integers(0, 99), st.text(max_size=60)),
    fault=st.text(max_size=60),
)

ONE = Program(FORMAT, "mypkg.kv:Adapter", PoolConfig(4, 2), (Admit(0, (1, 2), Namespace(tenant="a")), Extend(0, 2)), "7:1")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(programs)
def test_a_program_comes_back_as_it_was_written(tmp_path, program):
    write_program(tmp_path / "p.json", program)
    assert read_program(tmp_path / "p.json") == program


@pytest.mark.parametrize("kind", OP_TYPES, ids=op_name)
def test_every_operation_is_written_under_its_name(tmp_path, kind):
    fields = {"prompt": (1,), "tokens": (1,), "blocks": (1,), "reason": "finish"}
    op = kind(**{field: fields.get(field, 1) for field in kind.__struct_fields__ if field not in ("namespace", "drafts")})
    write_program(tmp_path / "p.json", msgspec.structs.replace(ONE, ops=(op,)))
    [written] = json.loads((tmp_path / "p.json").read_text())["ops"]
    assert written["op"] == kind.__name__.lower()
    assert read_program(tmp_path / "p.json").ops == (op,)


def test_a_program_file_is_json_that_a_reader_can_read(tmp_path):
    write_program(tmp_path / "p.json", ONE)
    text = (tmp_path / "p.json").read_text()
    assert json.loads(text) == {
        "kvproof": 1,
        "target": "mypkg.kv:Adapter",
        "config": {"num_blocks": 4, "block_size": 2},
        "ops": [
            {"op": "admit", "seq": 0, "prompt": [1, 2], "namespace": {"tenant": "a"}},
            {"op": "extend", "seq": 0, "count": 2, "drafts": []},
        ],
        "seed": "7:1",
    }
    assert text.endswith("}\n")
    assert text.count("\n") > 10


def read(tmp_path, content):
    path = tmp_path / "p.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(BadFile) as caught:
        read_program(path)
    told = str(caught.value)
    assert told.startswith(f"{path} ")
    assert told.endswith(".")
    assert "\n" not in told
    return told.removeprefix(f"{path} ")


WHOLE = json.loads(msgspec.json.encode(ONE))


@pytest.mark.parametrize(
    ("version", "mend"),
    [
        (0, "record it again with this release"),
        (2, "use the kvproof that wrote it, or a later one"),
        (99, "use the kvproof that wrote it, or a later one"),
    ],
)
def test_another_format_version_is_refused_and_both_are_named(tmp_path, version, mend):
    told = read(tmp_path, {**WHOLE, "kvproof": version})
    assert told == f"has format version {version}, and this kvproof reads version 1; {mend}."


def test_a_seed_may_be_a_number(tmp_path):
    text = {"kvproof": 1, "target": "production", "config": {"num_blocks": 2, "block_size": 1}, "seed": 7, "ops": []}
    (tmp_path / "written by hand.json").write_text(json.dumps(text))
    assert read_program(tmp_path / "written by hand.json").seed == 7


def test_a_failure_of_kernels_is_told_apart(tmp_path):
    failure = {"kvproof": 1, "target": "kernels", "law": "in-bounds", "case": "Case('attend')", "reason": "It is so."}
    assert read(tmp_path, failure).startswith("holds a case of kernels, not a program of a cache; judge it with `kvproof replay ")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_told_so(tmp_path, content):
    assert read(tmp_path, content).startswith("is empty, so it is no program")


def test_the_version_is_looked_at_before_anything_else(tmp_path):
    assert "format version 2" in read(tmp_path, {"kvproof": 2, "steps": "of a later release"})


@pytest.mark.parametrize(
    "content", [b"not json", b"[]", b'{"kvproof": "1"}', b"{}", b'{"kvproof": null}', b"\xff\xfe", b'{"kvproof": 1', b'"kvproof"']
)
def test_what_is_no_program_is_told_so(tmp_path, content):
    told = read(tmp_path, content)
    assert told.startswith("is not a kvproof program (")
    assert told.endswith("it is JSON with the keys kvproof, target, config and ops.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ops": None}, "Expected `array`"),
        ({"ops": [{"op": "explode", "seq": 0}]}, "Invalid value 'explode' - at `$.ops[0].op`"),
        ({"ops": [{"seq": 0}]}, "missing required field `op`"),
        ({"ops": [{"op": "commit", "seq": "0"}]}, "at `$.ops[0].seq`"),
        ({"ops": [{"op": "commit", "seq": 0, "accept": 1}]}, "unknown field `accept`"),
        ({"ops": [{"op": "release", "seq": 0, "reason": "tired"}]}, "Invalid enum value 'tired'"),
        ({"ops": [{"op": "admit", "seq": 0, "prompt": [1.5]}]}, "Expected `int`, got `float` - at `$.ops[0].prompt"),
        ({"config": {"num_blocks": 4}}, "missing required field `block_size` - at `$.config`"),
        ({"violation": {"law": "no-leak"}}, "at `$.violation`"),
        ({"target": 3}, "at `$.target`"),
    ],
)
def test_a_damaged_program_names_the_place(tmp_path, change, words):
    told = read(tmp_path, {**WHOLE, **change})
    assert told.startswith("is damaged: ")
    assert words in told


def test_a_file_that_nests_too_deeply_is_no_program(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"kvproof": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(BadFile, match="is not a kvproof program"):
        read_program(path)


@pytest.mark.parametrize("missing", ["target", "config", "ops"])
def test_a_missing_key_is_named(tmp_path, missing):
    told = read(tmp_path, {key: value for key, value in WHOLE.items() if key != missing})
    assert told == f"is damaged: Object missing required field `{missing}`."


def test_a_cut_file_is_told(tmp_path):
    assert "truncated" in read(tmp_path, msgspec.json.encode(ONE)[:-20])


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(BadFile, match=r"nowhere\.json cannot be read: No such file or directory\."):
        read_program(tmp_path / "nowhere.json")
    with pytest.raises(BadFile, match="cannot be read: Is a directory"):
        read_program(tmp_path)


# -- writing ----------------------------------------------------------------------------------------------------------------------------------------


def test_folders_are_made_and_the_file_can_be_read_by_others(tmp_path):
    path = tmp_path / "a" / "b" / "p.json"
    write_program(path, ONE)
    assert read_program(path) == ONE
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "p.json"
    write_whole(path, b"x" * 1000)
    write_whole(path, b"short")
    assert path.read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("method", ["replace", "chmod"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, method):
    path = tmp_path / "p.json"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, method, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    path.write_bytes(b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_or_the_new_file_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    path.write_bytes(b"old")
    seen = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (seen.append(path.read_bytes()), replace(self, target))[1])
    write_whole(path, b"new")
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"
