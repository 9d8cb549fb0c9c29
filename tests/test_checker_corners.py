"""Limits of the checker of the protocol that mutants showed to be untested: the least values that it must still take."""

from __future__ import annotations

import msgspec
import pytest

from kvproof.impl.checker import AdapterFault, Checked, read_capabilities
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.models.capabilities import Group
from kvproof.models.ops import Reset
from kvproof.models.outcomes import Snapshot


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


def test_counts_of_another_type_of_integer_are_read_like_plain_ones():
    class Number(int):
        """Not a plain integer."""

    counts = {Number(1): Number(0), Number(2): Number(3)}
    made, _ = showing(refcounts=counts)
    assert made.books().refcounts == {2: 3}
    target = claiming(null_blocks=frozenset({2}))
    target.snapshot = lambda self: Snapshot(refcounts=counts)
    assert Checked(target, read_capabilities(target), num_blocks=4, block_size=2).books().refcounts == {}
