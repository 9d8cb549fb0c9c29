"""Limits of the checker of the protocol that mutants showed to be untested: the least values that it must still take."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from types import MappingProxyType

import msgspec
import pytest

from kvproof.impl.checker import AdapterFault, Checked, Raises, read_capabilities
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.capabilities import Group
from kvproof.models.ops import Admit, Append, BeginStep, EndStep, Extend, Namespace, Reset
from kvproof.models.outcomes import Event, Refused, Snapshot
from kvproof.models.spec import RefusedSeen


def claiming(**claims):
    class Adapter(ProductionAdapter):
        @classmethod
        def capabilities(cls):
            return msgspec.structs.replace(super().capabilities(), **claims)

    return Adapter


def test_a_pool_may_have_no_usable_block():
    target = claiming(capacity=lambda num_blocks: num_blocks - 2)
    Checked(target, read_capabilities(target), num_blocks=2, block_size=2)


def test_a_window_and_a_block_may_be_of_one_token():
    groups = (Group(block_size=1), Group(kind="sliding_window", window=1, block_size=1))
    assert read_capabilities(claiming(groups=groups)).groups == groups


def test_a_capacity_may_be_nothing():
    assert read_capabilities(claiming(capacity=0)).capacity == 0


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("full", "groups holds str 'full'"),
        (Group(kind="half"), "there is no group kind 'half'"),
        (Group(kind="sliding_window"), "needs a window of 1 token or more, not None"),
    ],
)
def test_every_group_is_checked(group, told):
    with pytest.raises(AdapterFault, match=told):
        read_capabilities(claiming(groups=(Group(), group)))


@pytest.mark.parametrize("capacity", ["", 0.0, -1])
def test_a_capacity_is_a_number_of_blocks(capacity):
    with pytest.raises(AdapterFault, match=f"capacity is {type(capacity).__name__} {capacity!r}; give a number"):
        read_capabilities(claiming(capacity=capacity))


@pytest.mark.parametrize("sizes", [(), (2, 0), (2, 2.0)])
def test_block_sizes_are_numbers_of_tokens(sizes):
    with pytest.raises(AdapterFault, match=r"block_sizes is \(.*\); give at least one, each 1 or more"):
        read_capabilities(claiming(block_sizes=sizes))


def showing(**books):
    """A checked cache whose snapshot says what the dictionary says when it is asked."""
    shown = {"refcounts": {1: 1}, "free": [0, 2], "cached": {2}, "retiring": {3}, "free_count": 2, **books}

    class Adapter(ProductionAdapter):
        def snapshot(self):
            return Snapshot(**shown)

    return Checked(Adapter, read_capabilities(Adapter), num_blocks=4, block_size=2), shown


def test_books_that_say_what_they_said_before_come_back_as_they_were():
    made, _ = showing()
    before = made.books()
    assert made.books(before) is before


@pytest.mark.parametrize(
    ("field", "value"), [("refcounts", {1: 2}), ("free", [2, 0]), ("cached", {0}), ("retiring", {1}), ("free_count", 1), ("cached", None)]
)
def test_books_that_differ_in_one_field_are_read_anew(field, value):
    made, shown = showing()
    before = made.books()
    shown[field] = value
    now = made.books(before)
    assert now is not before
    assert now != before
    assert now == made.books()


@pytest.mark.parametrize("count", [True, "2", 1.0])
def test_a_counter_of_free_blocks_is_an_integer(count):
    made, _ = showing(free_count=count)
    with pytest.raises(AdapterFault, match="it must be the number that the cache's counter shows"):
        made.books()


def test_tables_that_are_what_they_were_before_come_back():
    for groups in ((Group(),), (Group(), Group())):
        target = claiming(groups=groups)
        target.block_table = lambda self, seq, group: [seq, group]
        made = Checked(target, read_capabilities(target), num_blocks=4, block_size=2)
        before = made.all_tables([1], {})
        assert before == {1: tuple((1, group) for group in range(len(groups)))}
        assert made.all_tables([1], before) is before
        both = made.all_tables([1, 2], before)
        assert both[1] is before[1]
        assert both[2] != before[1]


def test_a_number_of_numpy_is_no_answer_to_a_yes_or_no_question():
    numpy = pytest.importorskip("numpy")

    class Adapter(ProductionAdapter):
        answer = numpy.bool_(True)

        def reset(self):
            return self.answer

    made = Checked(Adapter, read_capabilities(Adapter), num_blocks=4, block_size=2)
    assert made.do(Reset()) is True
    Adapter.answer = numpy.int64(1)
    with pytest.raises(AdapterFault, match="it must return True or False"):
        made.do(Reset())


def test_blocks_that_are_counted_zero_times_are_left_out():
    made, _ = showing(refcounts={1: 0, 2: 3})
    assert made.books().refcounts == {2: 3}


def test_counts_of_another_type_of_integer_are_read_like_plain_ones():
    class Number(int):
        """Not a plain integer."""

    counts = {Number(1): Number(0), Number(2): Number(3)}
    made, _ = showing(refcounts=counts)
    assert made.books().refcounts == {2: 3}
    target = claiming(null_blocks=frozenset({2}))
    target.snapshot = lambda self: Snapshot(refcounts=counts)
    assert Checked(target, read_capabilities(target), num_blocks=4, block_size=2).books().refcounts == {}


def test_the_reason_of_an_event_is_kept():
    target = claiming()
    target.take_events = lambda self: [Event("removed", [1], "evicted")]
    assert Checked(target, read_capabilities(target), num_blocks=4, block_size=2).events() == [Event("removed", (1,), "evicted")]


def test_the_step_that_is_named_ends_and_is_open_still_where_its_end_is_refused():
    target = claiming()
    target.begin_step = lambda self: 7 + len(made._open_steps)
    target.end_step = lambda self, step: ended.append(step)
    ended = []
    made = Checked(target, read_capabilities(target), num_blocks=4, block_size=2)
    assert [made.do(BeginStep()) for _ in range(3)] == [7, 8, 9]
    made.do(EndStep(1))
    made.do(EndStep(1))
    assert ended == [8, 9]
    target.end_step = refuse
    assert made.do(EndStep()) == RefusedSeen("not now")
    target.begin_step = lambda self: 7
    with pytest.raises(AdapterFault, match="returned 7, the id of a step that is still open"):
        made.do(BeginStep())


def refuse(self, step):
    raise Refused("not now")


def test_an_adapter_need_not_derive_from_the_base_class():
    class Plain:
        def __init__(self, *, num_blocks, block_size):
            pass

        def admit(self, seq, prompt, namespace):
            raise ValueError("no")

    made = Checked(Plain, ProductionAdapter.capabilities(), num_blocks=4, block_size=2)
    with pytest.raises(Raises, match=r"admit\(0, \(1,\)\) raised ValueError: no at") as caught:
        made.do(Admit(0, (1,)))
    assert not caught.value.by_cache


def test_an_adapter_that_exits_has_raised():
    target = claiming()
    target.admit = lambda self, seq, prompt, namespace: sys.exit("enough")
    with pytest.raises(Raises, match=r"admit\(0, \(1,\)\) raised SystemExit: enough at"):
        Checked(target, read_capabilities(target), num_blocks=4, block_size=2).do(Admit(0, (1,)))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_wrong_table_among_all_is_named_by_its_sequence_and_group(groups):
    target = claiming(groups=(Group(),) * groups)
    target.block_table = lambda self, seq, group: [seq, group]
    made = Checked(target, read_capabilities(target), num_blocks=4, block_size=2)
    with pytest.raises(AdapterFault, match=r"block_table\(4, 0\) holds block 4, but the pool has blocks 0 to 3"):
        made.all_tables([1, 4], {})


def test_a_capacity_that_is_no_number_is_named():
    target = claiming(capacity=lambda num_blocks: 1 // 0 if num_blocks == 4 else None)
    for num_blocks, told in ((4, "raised ZeroDivisionError"), (3, "gave NoneType None; it must give the number of usable blocks")):
        with pytest.raises(AdapterFault, match=rf"Adapter\.capabilities\(\): capacity\({num_blocks}\) {told}"):
            Checked(target, read_capabilities(target), num_blocks=num_blocks, block_size=2)


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_null_blocks_may_come_in_any_collection(kind):
    target = claiming(null_blocks=kind([2]))
    target.block_table = lambda self, seq, group: [2, 1]
    assert Checked(target, read_capabilities(target), num_blocks=4, block_size=2).tables(0) == ((None, 1),)


class OddHash:
    """An id that cannot be hashed, in a way of its own."""

    def __init__(self, block):
        self.block = block

    def __hash__(self):
        raise ValueError("no hash")

    def __index__(self):
        return self.block


class OddNumber:
    def __index__(self):
        raise RuntimeError("the device is lost")


def started(target):
    checked = Checked(target, read_capabilities(target), num_blocks=4, block_size=2)
    checked.do(Admit(0, (1, 2, 3), Namespace()))
    checked.do(Extend(0, 3))
    return checked


def test_ids_that_cannot_be_hashed_are_read_one_by_one():
    class Adapter(ProductionAdapter):
        def block_table(self, seq, group=0):
            return [OddHash(block) for block in super().block_table(seq, group)]

        def snapshot(self):
            return msgspec.structs.replace(super().snapshot(), free=[OddHash(2), OddHash(3)])

    checked = started(Adapter)
    assert checked.all_tables([0], {}) == {0: ((0, 1),)}
    assert checked.books().free == (2, 3)


def test_a_number_that_cannot_be_read_is_a_fault_of_the_adapter():
    class Adapter(ProductionAdapter):
        def block_table(self, seq, group=0):
            return [OddNumber() for _ in super().block_table(seq, group)]

    with pytest.raises(AdapterFault, match=r"a OddNumber was returned .*RuntimeError: the device is lost at test_checker_corners.py"):
        started(Adapter).tables(0)


def test_books_that_cannot_be_compared_are_a_fault_of_the_adapter():
    class Odd:
        def __eq__(self, other):
            raise ValueError("the truth of this is ambiguous")

        __hash__ = None

    class Adapter(ProductionAdapter):
        odd = False

        def snapshot(self):
            shot = super().snapshot()
            return msgspec.structs.replace(shot, refcounts=dict.fromkeys(shot.refcounts, Odd())) if self.odd else shot

    checked = started(Adapter)
    known = checked.books()
    Adapter.odd = True
    with pytest.raises(AdapterFault, match=r"what snapshot\(\) returned could not be read: ValueError: the truth of this is ambiguous at"):
        checked.books(known)


def test_a_list_that_breaks_while_it_is_read_is_named():
    class Lost(list):
        def __iter__(self):
            raise RuntimeError("the device is lost")

    class Adapter(ProductionAdapter):
        def snapshot(self):
            return msgspec.structs.replace(super().snapshot(), free=Lost([0]))

    with pytest.raises(AdapterFault, match=r"^Snapshot.free could not be read: RuntimeError: the device is lost at"):
        started(Adapter).books()


def test_the_place_in_code_that_has_no_module_is_told_too():
    names = {"ProductionAdapter": ProductionAdapter}
    exec("class Adapter(ProductionAdapter):\n    def append(self, seq, tokens):\n        raise KeyError(seq)", names)
    checked = started(names["Adapter"])
    with pytest.raises(Raises, match=r"raised KeyError: 0 at <string>:3"):
        checked.do(Append(0, (4,)))


def test_a_block_table_that_ends_the_program_is_a_fault_of_the_adapter():
    class Adapter(ProductionAdapter):
        def block_table(self, seq, group=0):
            sys.exit(3)

    with pytest.raises(AdapterFault, match=r"block_table\(0, 0\) raised SystemExit: 3 at test_checker_corners.py"):
        started(Adapter).all_tables([0], {})


def test_a_cache_does_not_end_the_program_of_its_adapter():
    class Adapter(ProductionAdapter):
        def raised_by_cache(self, error):
            return True

        def append(self, seq, tokens):
            sys.exit(3)

    with pytest.raises(Raises, match=r"append\(0, \(4,\)\) raised SystemExit: 3") as caught:
        started(Adapter).do(Append(0, (4,)))
    assert not caught.value.by_cache


@pytest.mark.parametrize("kind", [Counter, MappingProxyType])
def test_counts_may_come_in_any_mapping(kind):
    class Adapter(ProductionAdapter):
        def snapshot(self):
            shot = super().snapshot()
            return msgspec.structs.replace(shot, refcounts=kind(shot.refcounts))

    assert started(Adapter).books().refcounts == {0: 1, 1: 1}


def test_a_class_that_cannot_be_built_is_not_told_to_take_other_arguments():
    class Adapter(ABC):
        def __init__(self, *, num_blocks, block_size):
            self.size = num_blocks, block_size

        @abstractmethod
        def more(self):
            """Left to others."""

    with pytest.raises(AdapterFault, match=r"block_size=2\) raised TypeError: Can't instantiate abstract class Adapter"):
        Checked(Adapter, ProductionAdapter.capabilities(), num_blocks=4, block_size=2)
