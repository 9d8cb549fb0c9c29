"""Exhaustion: states are counted up to renaming, a search that was cut off goes on, and what it says is what it did."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree as ET

import msgspec
import pytest

from kvproof.fuzz.bugs import BUGS
from kvproof.fuzz.exhaust.key import covers, key
from kvproof.fuzz.exhaust.picture import svg
from kvproof.fuzz.exhaust.scope import SCOPES, Scope, operations, sentence
from kvproof.fuzz.exhaust.search import Search
from kvproof.fuzz.programs import BadFile
from kvproof.impl.production.adapter import ProductionAdapter, SynchronousAdapter
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Fork, Namespace, Release, Reset
from kvproof.properties.lockstep import Lockstep, run

LEAST = Scope(
    sequences=1, blocks=2, tokens=1, namespaces=1, length=2, drafts=0, without=frozenset({"swapin", "swapout", "append", "evict"})
)


@pytest.fixture(scope="module")
def whole():
    """The whole of the least scope, with every transition."""
    return searched(SynchronousAdapter, LEAST, draw=True)


def searched(target, scope, seconds=60.0, **options):
    search = Search(target, "target", scope, **options)
    for _ in search.run(seconds=seconds):
        pass
    return search


def after(*ops, target=SynchronousAdapter, num_blocks=4):
    lockstep = Lockstep(target, num_blocks=num_blocks, block_size=2)
    for op in ops:
        assert lockstep.do(op)
    return lockstep.spec


def computed(seq, prompt, namespace=None):
    return (Admit(seq, prompt, namespace or Namespace()), Extend(seq, len(prompt)), Commit(seq))


# -- when states are the same ---------------------------------------------------------------------------------------------------------------------


def test_states_are_the_same_whatever_the_sequences_and_blocks_are_called():
    one = after(*computed(0, (0, 1)), *computed(1, (1, 1, 1)))
    two = after(Admit(0, (1, 1, 1)), Admit(1, (0, 1)), Extend(1, 2), Commit(1), Extend(0, 3), Commit(0))
    assert key(one) == key(two)


@pytest.mark.parametrize(
    "others",
    [
        (*computed(0, (0, 1)), *computed(1, (1, 1, 0))),
        (*computed(0, (0, 1)), *computed(1, (1, 1, 1), Namespace(tenant="1"))),
        (*computed(0, (0, 1)), Admit(1, (1, 1, 1)), Extend(1, 3)),
        (*computed(0, (0, 1)), Admit(1, (1, 1, 1)), Extend(1, 2), Commit(1)),
        (*computed(0, (0, 1)), *computed(1, (1, 1, 1)), Reset()),
        (*computed(0, (0, 1)), *computed(1, (1, 1, 1)), Fork(0, 2)),
        (*computed(0, (0, 1)), *computed(1, (1, 1, 1)), Release(0)),
    ],
)
def test_states_that_differ_have_different_keys(others):
    assert key(after(*computed(0, (0, 1)), *computed(1, (1, 1, 1)))) != key(after(*others))


def test_what_a_block_still_holds_that_nobody_can_read_makes_no_difference():
    one = after(*computed(0, (0, 1)), Release(0), Reset())
    two = after(*computed(0, (1, 1)), Release(0), Reset())
    assert key(one) == key(two)
    assert key(after(*computed(0, (0, 1)), Release(0))) != key(after(*computed(0, (1, 1)), Release(0)))  # matchable


def test_tokens_are_names_too_where_that_is_asked_for():
    one = after(*computed(0, (0, 1)), *computed(1, (1, 1, 1)), Release(0))
    two = after(*computed(0, (1, 0)), *computed(1, (0, 0, 0)), Release(0))
    assert key(one) != key(two)
    assert key(one, rename_tokens=True) == key(two, rename_tokens=True)
    other = after(*computed(0, (1, 1)), *computed(1, (0, 0, 0)), Release(0))
    assert key(one, rename_tokens=True) != key(other, rename_tokens=True)


def test_of_states_that_differ_in_what_may_be_held_back_the_stricter_one_covers_the_other():
    """Block 1 was let go of while a step was open, so a cache may hold it back until that has ended; here it comes back at once."""
    step = (*computed_in_a_step(0, (0, 1)), BeginStep())
    strict = after(*step, Admit(1, (1,)), target=ProductionAdapter)
    lenient = after(*step, Admit(1, (1,)), Extend(1, 1), Release(1, "preempt"), target=ProductionAdapter)
    one, two = key(strict), key(lenient)
    assert one != two
    assert covers(one, two)
    assert not covers(two, one)
    assert covers(one, one)
    assert not covers(key(after(*step, target=ProductionAdapter)), two)


def computed_in_a_step(seq, prompt):
    return (Admit(seq, prompt), Extend(seq, len(prompt)), BeginStep(), EndStep(), Commit(seq))


# -- the search -----------------------------------------------------------------------------------------------------------------------------------


def test_a_small_scope_is_exhausted(whole):
    search = whole
    assert search.exhausted
    assert sum(search.per_depth()) == len(search.states)
    assert search.transitions == search.merged + len(search.states) - 1
    assert {"no-leak", "own-content", "release-once", "reset-forgets"} & set(search.exercised)


def test_every_state_is_reached_by_the_program_that_is_told_for_it(whole):
    search = whole
    for found, state in search.states.items():
        lockstep = Lockstep(SynchronousAdapter, num_blocks=LEAST.blocks, block_size=LEAST.block_size)
        for op in search.program(state):
            assert lockstep.do(op)
        assert search.key(lockstep.spec) == found


STEPS = msgspec.structs.replace(SCOPES["tiny"], without=frozenset({"swapin", "swapout", "evict", "reset", "fork"}))
"""Little enough, with device steps."""


@pytest.mark.parametrize(("target", "scope"), [(SynchronousAdapter, LEAST), (ProductionAdapter, STEPS)])
def test_nothing_that_any_program_of_the_scope_can_do_leads_out_of_the_states_found(target, scope):
    search = searched(target, scope)
    assert search.exhausted
    for state in range(len(search.states)):
        for op in operations(search.at(state).spec, scope):
            lockstep = search.at(state)
            lockstep.do(op)
            assert search.known(search.key(lockstep.spec)) is not None


def test_names_of_tokens_make_a_scope_smaller_and_it_breaks_at_the_same_depth():
    plain, smaller = (
        searched(BUGS["cancel-in-flight-frees-at-once"].adapter, msgspec.structs.replace(SCOPES["steps"], rename_tokens=renamed))
        for renamed in (False, True)
    )
    assert plain.failure is not None
    assert smaller.failure is not None
    assert plain.failure.violation.law == smaller.failure.violation.law == "fenced-reuse"
    assert len(plain.failure.ops) == len(smaller.failure.ops)
    assert len(smaller.states) < 0.7 * len(plain.states)


def test_a_search_that_was_cut_off_goes_on_where_it_was(tmp_path, whole):
    path = tmp_path / "search.kvx"
    search = Search(SynchronousAdapter, "target", LEAST)
    for _ in range(100_000):
        for _ in search.run(seconds=0.3):
            pass
        search.save(path)
        search = Search.load(path, SynchronousAdapter, "target", LEAST)
        if search.exhausted:
            break
    assert search.states == whole.states
    assert (search.transitions, search.merged) == (whole.transitions, whole.merged)


def test_a_file_of_another_search_is_refused(tmp_path):
    path = tmp_path / "search.kvx"
    search = Search(SynchronousAdapter, "target", LEAST)
    for _ in search.run(seconds=60, depth=1):
        pass
    search.save(path)
    with pytest.raises(BadFile, match="another scope or format"):
        Search.load(path, SynchronousAdapter, "target", SCOPES["small"])
    path.write_bytes(b"nonsense")
    with pytest.raises(BadFile, match="holds no exhaustive search"):
        Search.load(path, SynchronousAdapter, "target", LEAST)


@pytest.mark.parametrize("changed", ["adapter.py", "cache.py"])
def test_a_search_of_code_that_was_changed_since_is_refused(tmp_path, changed):
    """Else the report would say of the new code what was tried on the old."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "cache.py").write_text("class Cache:\n    pass\n")
    adapter = "from kvproof.impl.production.adapter import SynchronousAdapter\nfrom mine.cache import Cache\n\nclass Adapter(SynchronousAdapter):\n    pass\n"
    (folder / "adapter.py").write_text(adapter)
    command = [
        sys.executable,
        "-m",
        "kvproof",
        "exhaust",
        "mine.adapter:Adapter",
        "--scope",
        "tiny",
        "--depth",
        "1",
        "--state",
        "search.kvx",
    ]

    def searched_again():
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert [searched_again().returncode for _ in range(2)] == [0, 0]
    with (folder / changed).open("a") as file:
        file.write("# another line\n")
    ended = searched_again()
    assert ended.returncode == 2
    assert "search.kvx holds a search of mine.adapter:Adapter before its code changed" in ended.stderr


class Uncopied(SynchronousAdapter):
    """Cannot be copied, so every state is made again from its program."""

    def __reduce__(self):
        raise TypeError("no copies of this")


def test_a_cache_that_cannot_be_copied_is_run_from_the_beginning():
    shallow = msgspec.structs.replace(LEAST, without=LEAST.without | {"fork", "evict", "reset", "truncate", "match"})
    assert searched(Uncopied, shallow).states == searched(SynchronousAdapter, shallow).states


@pytest.mark.parametrize("name", ["canary", "second-release-raises"])
def test_a_seeded_bug_is_found_and_its_program_breaks_the_same_law(name):
    scope = Scope(sequences=2, blocks=2, tokens=1, namespaces=1, length=2, drafts=0)
    search = searched(BUGS[name].adapter, scope)
    assert search.failure is not None
    again = run(search.failure.ops, BUGS[name].adapter, num_blocks=2, block_size=2)
    assert again.violation == search.failure.violation


@pytest.mark.nightly
@pytest.mark.parametrize("target", [SynchronousAdapter, ProductionAdapter], ids=lambda target: target.__name__)
@pytest.mark.parametrize("name", ["tiny", "one", "steps"])
def test_the_production_cache_keeps_every_law_in_a_whole_scope(target, name):
    search = searched(target, SCOPES[name], seconds=3600)
    assert search.failure is None
    assert search.exhausted


# -- words and pictures ---------------------------------------------------------------------------------------------------------------------------


def test_the_scope_is_told_in_words():
    assert sentence(SCOPES["steps"], ProductionAdapter.capabilities()).endswith(
        "and up to 1 open step; left out: append, evict, reset, swapin and swapout; states that differ only in the names of tokens are the same"
    )
    assert sentence(LEAST, SynchronousAdapter.capabilities()) == (
        "programs of 1 sequence, 2 blocks of 2 tokens, 1 token value, 1 namespace, up to 2 tokens in a sequence and no drafts; left out: append, evict, swapin and swapout"
    )


def test_the_picture_has_a_dot_for_each_state_and_a_line_for_each_operation_that_leads_elsewhere(whole):
    search = whole
    picture = ET.fromstring(svg(search, "a title with <signs>"))
    name = "{http://www.w3.org/2000/svg}"
    dots = [group for group in picture.iter(f"{name}g") if group.find(f"{name}circle") is not None]
    assert len(dots) == len(search.states)
    assert len(list(picture.iter(f"{name}path"))) == sum(state != other for state, _, other in search.edges)
