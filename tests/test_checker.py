"""The protocol checker, asked for operations and observations: every fault of an adapter is one sentence that names the method, the cause and the mend."""

from __future__ import annotations

import pytest
from answering import ALL, Answering, checked, fault_of, is_one_sentence

from kvproof import Capabilities, Event, Grant, Group, Hit, OutOfBlocks, Refused, Snapshot
from kvproof.impl.checker import Checked, Raises, call_of
from kvproof.models.ops import (
    NO_NAMESPACE,
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.state import Books

# -- answers ----------------------------------------------------------------------------------------------------------------------------------

OPS = {
    "admit": Admit(0, (1,)),
    "match": Match(0),
    "extend": Extend(0, 1),
    "commit": Commit(0),
    "append": Append(0, (1,)),
    "truncate": Truncate(0, 1),
    "fork": Fork(0, 1),
    "release": Release(0),
    "begin_step": BeginStep(),
    "evict": Evict((1,)),
    "reset": Reset(),
    "swap_out": SwapOut(0),
    "swap_in": SwapIn(0),
}

WRONG = [
    ("admit", True, "admit(0, (1,)) returned bool True; it must return nothing."),
    ("commit", 1, "commit(0, 0) returned int 1; it must return nothing."),
    ("append", [], "append(0, (1,)) returned list []; it must return nothing."),
    ("truncate", 1, "truncate(0, 1) returned int 1; it must return nothing."),
    ("release", 2, "release(0, 'finish') returned int 2; it must return nothing."),
    ("match", 4, "match(0) returned int 4; it must return kvproof.Hit."),
    ("match", None, "match(0) returned NoneType None; it must return kvproof.Hit."),
    ("match", Hit(-1), "match(0): Hit.tokens is -1; it cannot be negative."),
    ("match", Hit("2"), "match(0): Hit.tokens is str '2'; it must be an integer."),
    ("match", Hit(True), "match(0): Hit.tokens is bool True; it must be an integer."),
    ("match", Hit(2.0), "match(0): Hit.tokens is float 2.0; it must be an integer."),
    ("extend", None, "extend(0, 1, ()) returned NoneType None; it must return kvproof.Grant."),
    ("extend", [0, 1], "extend(0, 1, ()) returned list [0, 1]; it must return kvproof.Grant."),
    ("fork", {}, "fork(0, 1) returned dict {}; it must return kvproof.Grant."),
    ("extend", Grant(adopted=-2), "extend(0, 1, ()): Grant.adopted is -2; it cannot be negative."),
    ("extend", Grant(adopted=False), "extend(0, 1, ()): Grant.adopted is bool False; it must be an integer."),
    ("extend", Grant(adopted=None), "extend(0, 1, ()): Grant.adopted is NoneType None; it must be an integer."),
    ("extend", Grant(copies=None), "extend(0, 1, ()): Grant.copies is NoneType None; it must be a sequence."),
    ("extend", Grant(copies="abc"), "extend(0, 1, ()): Grant.copies is str 'abc'; it must be a sequence."),
    ("fork", Grant(copies=[(0, 1)]), "fork(0, 1): Grant.copies holds (0, 1); each copy is (group, source block, destination block)."),
    ("extend", Grant(copies=[7]), "extend(0, 1, ()): Grant.copies holds 7; each copy is (group, source block, destination block)."),
    ("extend", Grant(copies=[(1, 0, 1)]), "extend(0, 1, ()): Grant.copies names group 1, but there is only group 0."),
    ("extend", Grant(copies=[("0", 0, 1)]), "extend(0, 1, ()): Grant.copies names group '0', but there is only group 0."),
    ("extend", Grant(copies=[(0, 0, 4)]), "Grant.copies holds block 4, but the pool has blocks 0 to 3."),
    ("extend", Grant(copies=[(0, -1, 0)]), "Grant.copies holds block -1, but the pool has blocks 0 to 3."),
    ("extend", Grant(copies=[(0, None, 0)]), "Grant.copies holds NoneType None; block ids are integers."),
    ("extend", Grant(zeroed=3), "extend(0, 1, ()): Grant.zeroed is int 3; it must be a sequence."),
    ("extend", Grant(zeroed=[9]), "Grant.zeroed holds block 9, but the pool has blocks 0 to 3."),
    ("begin_step", None, "begin_step(): the step id is NoneType None; it must be an integer."),
    ("begin_step", "7", "begin_step(): the step id is str '7'; it must be an integer."),
    ("evict", None, "evict((1,)): the number of dropped blocks is NoneType None; it must be an integer."),
    ("evict", -1, "evict((1,)): the number of dropped blocks is -1; it cannot be negative."),
    ("evict", True, "evict((1,)): the number of dropped blocks is bool True; it must be an integer."),
    ("reset", None, "reset() returned NoneType None; it must return True or False."),
    ("swap_out", 1, "swap_out(0) returned int 1; it must return True or False."),
    ("swap_in", "yes", "swap_in(0) returned str 'yes'; it must return True or False."),
]


@pytest.mark.parametrize(("method", "answer", "told"), WRONG, ids=[f"{method}: {answer!r}" for method, answer, _ in WRONG])
def test_a_wrong_answer_names_the_call_what_it_was_and_what_it_must_be(method, answer, told):
    assert fault_of(lambda: checked(answer).do(OPS[method])) == told


def test_a_long_answer_is_cut():
    told = fault_of(lambda: checked(list(range(1000))).do(OPS["extend"]))
    assert "..." in told
    assert len(told) < 160


@pytest.mark.parametrize(("length", "told"), [(58, f"'{58 * 'x'}'"), (59, f"'{56 * 'x'}...")])
def test_an_answer_is_shown_whole_up_to_sixty_characters(length, told):
    assert fault_of(lambda: checked("x" * length).do(OPS["match"])).startswith(f"match(0) returned str {told};")


def test_an_end_of_a_step_returns_nothing():
    made = checked(5)
    made.do(BeginStep())
    assert fault_of(lambda: made.do(EndStep())) == "end_step(0) returned int 5; it must return nothing."


def test_a_step_id_may_not_be_that_of_an_open_step():
    made = checked(5)
    made.do(BeginStep())
    assert fault_of(lambda: made.do(BeginStep())) == "begin_step() returned 5, the id of a step that is still open."


def test_a_step_id_may_come_again_once_its_step_has_ended():
    made = checked(5)
    made.do(BeginStep())
    made.adapter.answer = None
    made.do(EndStep())
    made.adapter.answer = 5
    assert made.do(BeginStep()) == 5


def test_right_answers_come_back_as_plain_values():
    assert checked(Hit(3)).do(Match(0)) == Hit(3)
    assert checked(Grant([[0, 1, 2]], [3], 4)).do(Extend(0, 1)) == Grant(((0, 1, 2),), (3,), 4)
    assert checked(2).do(Evict((1,))) == 2
    assert checked(False).do(Reset()) is False
    assert checked(True).do(SwapOut(0)) is True
    assert checked().do(Commit(0)) is None


@pytest.mark.parametrize("method", ["extend", "fork"])
def test_out_of_blocks_is_an_answer_of_extend_and_fork(method):
    assert checked(OutOfBlocks()).do(OPS[method]) == OutOfBlocksSeen()


@pytest.mark.parametrize("method", sorted(OPS.keys() - {"extend", "fork"}))
def test_out_of_blocks_is_a_fault_of_every_other_method(method):
    told = fault_of(lambda: checked(OutOfBlocks()).do(OPS[method]))
    assert told == f"{call_of(OPS[method])} raised OutOfBlocks; only extend and fork may."


@pytest.mark.parametrize("method", sorted(OPS))
def test_refused_is_an_answer_of_every_method(method):
    assert checked(Refused("never here")).do(OPS[method]) == RefusedSeen("never here")


@pytest.mark.parametrize("method", sorted(OPS.keys() - {"release"}))
def test_any_other_exception_is_a_fault_that_tells_what_and_where(method):
    with pytest.raises(Raises) as caught:
        checked(KeyError("who")).do(OPS[method])
    told = str(caught.value)
    assert told.startswith(f"{call_of(OPS[method])} raised KeyError: 'who' at answering.py:")
    assert ("a cache that has no room raises kvproof.OutOfBlocks" in told) == (method in ("extend", "fork"))
    assert is_one_sentence(told)
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_is_a_mistake_in_the_code_is_not_taken_for_a_full_pool():
    for error in (AttributeError("block"), NameError("block"), NotImplementedError("later"), TypeError("no")):
        with pytest.raises(Raises) as caught:
            checked(error).do(Extend(0, 1))
        assert "OutOfBlocks" not in str(caught.value)
        assert f"raised {type(error).__name__}: " in str(caught.value)
        assert "at answering.py:" in str(caught.value)


# -- calls that a method cannot take --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "found", "told"),
    [
        (
            "extend",
            lambda self, seq, n: None,
            "extend(0, 1, ()) does not fit extend(seq, n), which the suite calls as extend(seq, count, drafts); define it as extend(self, seq, count, drafts=()).",
        ),
        (
            "release",
            lambda self, seq, *, reason="": None,
            "release(0, 'finish') does not fit release(seq, *, reason=''), which the suite calls as release(seq, reason); define it as release(self, seq, reason).",
        ),
        (
            "begin_step",
            lambda self, name: None,
            "begin_step() does not fit begin_step(name), which the suite calls as begin_step(); define it as begin_step(self).",
        ),
    ],
)
def test_an_operation_with_another_signature_is_told_how_it_is_called(method, found, told):
    made = Checked(type("Mine", (Answering,), {method: found}), ALL, num_blocks=4, block_size=2)
    assert fault_of(lambda: made.do(OPS[method])) == told


def test_a_look_with_another_signature_is_told_how_it_is_called():
    looks = {"block_table": lambda self, seq: [], "snapshot": lambda self, deep: None}
    made = Checked(type("Mine", (Answering,), looks), ALL, num_blocks=4, block_size=2)
    told = "block_table(7, 0) does not fit block_table(seq), which the suite calls as block_table(seq, group); define it as block_table(self, seq, group=0)."
    assert fault_of(lambda: made.tables(7)) == told
    assert fault_of(lambda: made.all_tables([7], {})) == told
    assert (
        fault_of(made.books) == "snapshot() does not fit snapshot(deep), which the suite calls as snapshot(); define it as snapshot(self)."
    )


def test_a_class_that_cannot_be_built_so_is_told_what_to_define():
    class Mine(Answering):
        def __init__(self, num_blocks: int, block_size: int, seed: int) -> None:
            pass

    assert fault_of(lambda: Checked(Mine, ALL, num_blocks=4, block_size=2)).endswith(
        "Mine(num_blocks=4, block_size=2) does not fit test_a_class_that_cannot_be_built_so_is_told_what_to_define.<locals>.Mine(num_blocks, block_size, seed);"
        " define __init__(self, *, num_blocks, block_size), and give a default to whatever else it takes."
    )


def test_a_type_error_of_the_cache_itself_says_where():
    def extend(self, seq, count, drafts=()):
        return self.admit()

    def admit(self, seq, prompt, namespace):
        return None

    made = Checked(type("Mine", (Answering,), {"extend": extend, "admit": admit}), ALL, num_blocks=4, block_size=2)
    told = fault_of(lambda: made.do(OPS["extend"]))
    assert told.startswith("extend(0, 1, ()) raised TypeError: ")
    assert "at test_checker.py:" in told


def test_a_type_error_of_compiled_code_is_told_without_a_place():
    """No frame of it is seen, and what it takes may not be known: the place is never that of the suite."""
    made = Checked(type("Mine", (Answering,), {"extend": staticmethod(min)}), ALL, num_blocks=4, block_size=2)
    assert (
        fault_of(lambda: made.do(OPS["extend"]))
        == "extend(0, 1, ()) raised TypeError: '<' not supported between instances of 'tuple' and 'int'."
    )
    made = Checked(type("Mine", (Answering,), {"commit": staticmethod(divmod)}), ALL, num_blocks=4, block_size=2)
    told = fault_of(lambda: made.do(Commit(0, 0)))
    assert told.startswith("commit(0, 0) raised ZeroDivisionError: ")
    assert "test_checker.py" not in told


def test_what_a_release_raises_is_left_to_the_laws():
    outcome = checked(KeyError(0)).do(Release(0))
    assert isinstance(outcome, Raised)
    assert outcome.error.startswith("KeyError: 0 at answering.py:")


def test_a_message_of_many_lines_is_told_by_its_first():
    told = fault_of(lambda: checked(ValueError("one\ntwo")).do(Commit(0)))
    assert "ValueError: one at" in told
    assert "two" not in told


# -- observations -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["block_table", "worker_table"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned NoneType None; it must return a sequence of block ids."),
        (3, "returned int 3; it must return a sequence of block ids."),
        ({0: 2}, "returned dict {0: 2}; it must return a sequence of block ids, in the order of positions."),
        ({2}, "returned set {2}; it must return a sequence of block ids, in the order of positions."),
        ([0, "1"], "holds str '1'; block ids are integers."),
        ("01", "holds str '0'; block ids are integers."),
        ([1.0], "holds float 1.0; block ids are integers."),
        ([True], "holds bool True; block ids are integers."),
        ([[0]], "holds list [0]; block ids are integers."),
        ([4], "holds block 4, but the pool has blocks 0 to 3."),
        ([-1], "holds block -1, but the pool has blocks 0 to 3."),
        (KeyError(7), "raised KeyError: 7 at answering.py:"),
    ],
)
def test_a_wrong_table_names_the_call(method, answer, words):
    made = checked(answer)
    told = fault_of(lambda: made.tables(7) if method == "block_table" else made.worker_tables(7))
    assert told.startswith(f"{method}(7, 0) {words}")
    assert is_one_sentence(told)
    if method == "block_table":
        assert fault_of(lambda: made.all_tables([7], {})) == told


def test_a_table_holds_ids_and_skipped_entries():
    assert checked([0, None, 3]).tables(0) == ((0, None, 3),)
    assert checked(iter((2, 1))).tables(0) == ((2, 1),)


def test_null_blocks_in_a_table_are_skipped_entries():
    made = checked([0, 1, 3], Capabilities(null_blocks={0, 3}))
    assert made.tables(0) == ((None, 1, None),)


def test_every_group_is_asked_for_its_table():
    class Grouped(Answering):
        def block_table(self, seq, group=0):
            return [seq + group]

    made = Checked(Grouped, Capabilities(groups=(Group(), Group())), num_blocks=4, block_size=2)
    assert made.tables(1) == ((1,), (2,))


def test_a_table_that_raises_only_the_first_time_is_told_too():
    class Moody(Answering):
        asked = 0

        def block_table(self, seq, group=0):
            self.asked += 1
            if self.asked == 1:
                raise KeyError(seq)
            return [0]

    made = Checked(Moody, Capabilities(), num_blocks=4, block_size=2)
    told = fault_of(lambda: made.all_tables([1], {}))
    assert told.startswith("block_table raised KeyError: 1 at test_checker.py:")
    assert told.endswith(", and no more when it was asked again; it must be a plain look.")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "snapshot() returned NoneType None; it must return kvproof.Snapshot."),
        ({"free": []}, "snapshot() returned dict {'free': []}; it must return kvproof.Snapshot."),
        (Snapshot(free=[[1]]), "Snapshot.free holds list [1]; block ids are integers."),
        (Snapshot(refcounts=[0]), "Snapshot.refcounts is list [0]; it must map block ids to counts."),
        (Snapshot(refcounts={0: "1"}), "Snapshot.refcounts counts str '1' for block 0; counts are integers."),
        (Snapshot(refcounts={0: None}), "Snapshot.refcounts counts NoneType None for block 0; counts are integers."),
        (Snapshot(refcounts={9: 1}), "Snapshot.refcounts holds block 9, but the pool has blocks 0 to 3."),
        (Snapshot(refcounts={"a": 1}), "Snapshot.refcounts holds str 'a'; block ids are integers."),
        (Snapshot(refcounts={None: 1}), "Snapshot.refcounts holds NoneType None; block ids are integers."),
        (Snapshot(free=2), "Snapshot.free is int 2; it must be a collection of block ids."),
        (Snapshot(free=[4]), "Snapshot.free holds block 4, but the pool has blocks 0 to 3."),
        (Snapshot(free=[None]), "Snapshot.free holds NoneType None; block ids are integers."),
        (Snapshot(cached={"x"}), "Snapshot.cached holds str 'x'; block ids are integers."),
        (Snapshot(retiring=[-1]), "Snapshot.retiring holds block -1, but the pool has blocks 0 to 3."),
    ],
)
def test_wrong_books_name_the_field(answer, told):
    assert fault_of(lambda: checked(answer).books()) == told


def test_a_snapshot_that_raises_is_named():
    assert fault_of(lambda: checked(KeyError(1)).books()).startswith("snapshot() raised KeyError: 1 at")


def test_books_are_normalised():
    shot = Snapshot(refcounts={0: 5, 1: 2, 2: 0}, free=[3, 2], cached=[0, 1, 1], retiring=iter([0]))
    made = checked(shot, Capabilities(snapshot=True, null_blocks={0}))
    assert made.books() == Books({1: 2}, (3, 2), frozenset({1}), frozenset())


def test_books_that_are_not_kept_stay_none_and_are_not_asked_for_without_the_claim():
    assert checked(Snapshot()).books() == Books()
    assert checked(KeyError(), Capabilities()).books() == Books()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "take_events() returned NoneType None; it must return a sequence of kvproof.Event."),
        ("abc", "take_events() returned str 'abc'; it must return a sequence of kvproof.Event."),
        ([("stored", [0])], "take_events() returned ('stored', [0]); each must be a kvproof.Event of kind stored, removed or cleared."),
        ([Event("lost", [0])], "each must be a kvproof.Event of kind stored, removed or cleared."),
        ([Event("stored", [4])], "Event.blocks holds block 4, but the pool has blocks 0 to 3."),
        ([Event("stored", "01")], "Event.blocks is str '01'; it must be a collection of block ids."),
        (KeyError(2), "take_events() raised KeyError: 2 at"),
    ],
)
def test_wrong_events_are_named(answer, words):
    assert words in fault_of(lambda: checked(answer).events())


def test_an_event_may_name_one_block_or_many():
    taken = checked([Event("stored", 2), Event("removed", [0, 1]), Event("cleared")]).events()
    assert taken == [Event("stored", (2,)), Event("removed", (0, 1)), Event("cleared", ())]


def test_the_blocks_of_an_eviction_that_the_pool_lacks_are_left_out():
    class Evicting(Answering):
        def evict(self, blocks):
            self.asked = blocks
            return 0

    made = Checked(Evicting, Capabilities(evict=True, null_blocks={0}), num_blocks=4, block_size=2)
    made.do(Evict((-1, 0, 1, 3, 4)))
    assert made.adapter.asked == (1, 3)


def late(*values, error):
    """Gives some values, and then raises."""
    yield from values
    raise error


@pytest.mark.parametrize(
    "ask",
    [
        lambda: checked(late(0, error=KeyError(1))).tables(0),
        lambda: checked(Snapshot(free=late(0, error=KeyError(1)))).books(),
        lambda: checked(late(Event("cleared"), error=KeyError(1))).events(),
        lambda: checked([[0]], Capabilities(null_blocks={1})).tables(0),
    ],
    ids=["a table", "a free list", "events", "a nested table where blocks are null"],
)
def test_an_answer_that_fails_while_it_is_read_is_a_fault(ask):
    assert is_one_sentence(fault_of(ask))


# -- copies and foreign integers ------------------------------------------------------------------------------------------------------------------


def test_what_an_adapter_returns_is_copied_at_once():
    row, free, counts, copies = [0, 1], [2, 3], {0: 1}, [(0, 1, 2)]
    made = checked(row)
    table = made.tables(0)
    made.adapter.answer = Snapshot(counts, free, free, free)
    books = made.books()
    made.adapter.answer = Grant(copies, free)
    grant = made.do(Extend(0, 1))
    row[0], free[0], counts[0], copies[0] = 3, 0, 9, None
    assert table == ((0, 1),)
    assert books == Books({0: 1}, (2, 3), frozenset({2, 3}), frozenset({2, 3}))
    assert grant == Grant(((0, 1, 2),), (2, 3))


def test_what_an_adapter_is_given_cannot_be_changed():
    class Greedy(Answering):
        def __init__(self, **kwargs):
            self.given = []

        def admit(self, seq, prompt, namespace):
            self.given.append(prompt)

        def append(self, seq, tokens):
            self.given.append(tokens)

    made = Checked(Greedy, ALL, num_blocks=4, block_size=2)
    made.do(Admit(0, (1, 2), NO_NAMESPACE))
    made.do(Append(0, (3,)))
    assert made.adapter.given == [(1, 2), (3,)]
    assert all(isinstance(tokens, tuple) for tokens in made.adapter.given)


class Index:
    """An integer that is none of ours: what numpy's are."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __hash__(self):
        return hash(self.value)

    def __eq__(self, other):
        return self.value == other


def foreign_answers(number):
    return [
        (checked(Hit(number(3))).do(Match(0)), Hit(3)),
        (checked(Grant([(number(0), number(1), number(2))], [number(3)], number(4))).do(Fork(0, 1)), Grant(((0, 1, 2),), (3,), 4)),
        (checked(number(2)).do(Evict((1,))), 2),
        (checked(number(7)).do(BeginStep()), 7),
        (checked([number(0), None, number(3)]).tables(0), ((0, None, 3),)),
        (
            checked(Snapshot({number(0): number(1)}, [number(3)], {number(2)}, [number(1)])).books(),
            Books({0: 1}, (3,), frozenset({2}), frozenset({1})),
        ),
        (checked([Event("stored", [number(1)])]).events(), [Event("stored", (1,))]),
    ]


@pytest.mark.parametrize("kind", ["an integer by its index", "numpy.int32", "numpy.int64"])
def test_foreign_integers_are_taken_as_plain_ones(kind):
    if kind.startswith("numpy"):
        numpy = pytest.importorskip("numpy")
        number = getattr(numpy, kind.partition(".")[2])
    else:
        number = Index
    for found, plain in foreign_answers(number):
        assert found == plain
        assert "Index" not in repr(found)
        assert "int64" not in repr(found)


@pytest.mark.parametrize("name", ["bool", "bool_"])
def test_truth_values_of_numpy_are_known_without_numpy(name):
    no = type(name, (), {"__module__": "numpy", "__bool__": lambda _: False})()
    assert checked(no).do(Reset()) is False
    other = type(name, (), {"__module__": "mine", "__bool__": lambda _: False})()
    assert fault_of(lambda: checked(other).do(Reset())).startswith("reset() returned")


def test_numpy_truth_values_and_arrays_are_taken():
    numpy = pytest.importorskip("numpy")
    assert checked(numpy.True_).do(Reset()) is True
    assert checked(numpy.array([0, 3])).tables(0) == ((0, 3),)


def test_null_blocks_given_as_foreign_integers_are_skipped_entries():
    made = checked([Index(0), 1], Capabilities(null_blocks={0}))
    assert made.tables(0) == ((None, 1),)


@pytest.mark.parametrize(
    ("op", "call"),
    [
        (Admit(1, (2, 3)), "admit(1, (2, 3))"),
        (Extend(1, 2, (3,)), "extend(1, 2, (3,))"),
        (BeginStep(), "begin_step()"),
        (EndStep(), "end_step(0)"),
        (SwapOut(1), "swap_out(1)"),
        (SwapIn(1), "swap_in(1)"),
        (Release(1, "error"), "release(1, 'error')"),
        (Evict((1, 2)), "evict((1, 2))"),
    ],
)
def test_a_call_is_told_as_a_reader_would_write_it(op, call):
    assert call_of(op) == call
