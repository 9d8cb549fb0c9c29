"""What an operation of the production cache does not do: the ways that are left out where there is nothing to look at, by the calls that are made. No test here takes a time."""

from __future__ import annotations

import pytest

from kvproof.impl.checker import Checked, read_capabilities
from kvproof.impl.checker.blocks import BlockIds
from kvproof.impl.production import GroupSpec, PagedCache
from kvproof.impl.production.adapter import ProductionAdapter
from kvproof.impl.production.index import PrefixIndex
from kvproof.impl.production.reuse import Reuse

SIZE, WINDOW = 4, 7
FULL = (GroupSpec(),)
HYBRID = (GroupSpec(), GroupSpec("sliding_window", window=WINDOW))


class Counting(PagedCache):
    """Notes the lengths at which it looks at its tables, and those at which it looks for blocks that filled up or left a window."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.grown = []
        self.passed = []

    def _grow(self, state, end):
        self.grown.append(end)
        return super()._grow(state, end)

    def _pass_milestone(self, state):
        self.passed.append(state.computed)
        super()._pass_milestone(state)


def decode(cache, seq, tokens, drafts=(), accepted=0):
    """Computes so many tokens, one after another."""
    for token in range(tokens):
        cache.append(seq, [token])
        cache.extend(seq, 1, drafts)
        cache.commit(seq, accepted)


def made(groups=FULL, **options):
    cache = Counting(64, SIZE, groups=groups, steps=False, **options)
    cache.admit(0, [7])
    cache.extend(0, 1)
    cache.commit(0)
    return cache


@pytest.mark.parametrize("groups", [FULL, HYBRID])
def test_a_token_that_fits_its_block_looks_at_no_table(groups):
    cache = made(groups)
    decode(cache, 0, 20)
    assert cache.grown == [length for length in range(2, 22) if length % SIZE == 1]


def test_after_rejected_drafts_too():
    cache = made()
    decode(cache, 0, 1, drafts=(1, 2, 3, 4), accepted=0)
    cache.grown.clear()
    decode(cache, 0, 8)
    assert cache.grown == [5, 9]


def first_needed(length):
    return max(0, length - WINDOW + 1) // SIZE


@pytest.mark.parametrize("groups", [FULL, HYBRID])
def test_a_commit_looks_only_where_a_block_fills_up_or_leaves_a_window(groups):
    cache = made(groups)
    decode(cache, 0, 30)
    leaves = [length for length in range(2, 32) if groups is HYBRID and first_needed(length) > first_needed(length - 1)]
    assert cache.passed == sorted({*leaves, *range(SIZE, 32, SIZE)})


def test_a_sequence_that_a_reset_stopped_looks_for_no_full_block():
    cache = made()
    decode(cache, 0, 2)
    cache.reset()
    decode(cache, 0, 20)
    assert cache.passed == []


def test_nothing_is_published_where_no_block_filled_up(monkeypatch):
    published = []
    publish = PrefixIndex.publish
    monkeypatch.setattr(
        PrefixIndex, "publish", lambda self, run, depth, data, columns: published.append(depth) or publish(self, run, depth, data, columns)
    )
    cache = made(HYBRID)
    decode(cache, 0, 30)
    assert published == list(range(7))


@pytest.mark.parametrize("drafts", [{}, {1: [5]}])
def test_a_batch_settles_only_what_filled_a_block_or_needs_one(monkeypatch, drafts):
    settled = []
    settle = PagedCache._settle

    def noted(self, state, accepted):
        if state.seq == 0:
            settled.append(state.target)
        settle(self, state, accepted)

    monkeypatch.setattr(PagedCache, "_settle", noted)
    cache = made(HYBRID)
    cache.append(0, [7])
    cache.extend(0, 1)
    cache.admit(1, [7])
    cache.extend(1, 1)
    settled.clear()
    for token in range(20):
        assert cache.decode([0, 1], [token, token], drafts=drafts) == ()
    leaves = [length for length in range(2, 22) if first_needed(length) > first_needed(length - 1)]
    assert settled == sorted({2, *leaves, *range(SIZE, 22, SIZE)})  # at the first, nobody had looked yet


def test_where_there_is_room_for_the_longest_hit_no_costs_are_counted(monkeypatch):
    cache = made()
    decode(cache, 0, 10)
    cache.admit(1, cache.tokens(0))
    monkeypatch.setattr(Reuse, "costs", None)
    assert cache.extend(1, 3).adopted == 8


def test_a_step_that_changed_nothing_sends_nothing_and_remembers_nothing():
    cache = PagedCache(8, SIZE)
    cache.admit(0, [1, 2])
    cache.extend(0, 2)
    assert len(cache.begin_step().tables) == 1
    assert not cache._log._changed
    assert cache.begin_step().tables == ()


def test_plain_block_ids_are_not_looked_at_one_by_one(monkeypatch):
    made = Checked(ProductionAdapter, read_capabilities(ProductionAdapter), num_blocks=4, block_size=2)
    monkeypatch.setattr(BlockIds, "block", None)
    monkeypatch.setattr(ProductionAdapter, "block_table", lambda self, seq, group: [0, 1])
    assert made.tables(0) == ((0, 1),)
    assert made.books().free == (0, 1, 2, 3)
