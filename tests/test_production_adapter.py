"""The production cache under the contract."""

import pytest

from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.models.capabilities import Group
from kvproof.models.ops import NAMESPACE_FIELDS, NO_NAMESPACE
from kvproof.models.outcomes import OutOfBlocks, Refused


class TestAdapter:
    @pytest.mark.parametrize("adapter", [ProductionAdapter, HybridAdapter, SynchronousAdapter])
    def test_it_claims_what_it_defines(self, adapter):
        claims = adapter.capabilities()
        for capability in ("prefix", "fork", "truncate", "drafts", "evict", "reset", "swap", "snapshot", "events"):
            assert getattr(claims, capability), capability
        assert claims.steps == claims.mirror == (adapter is not SynchronousAdapter)
        assert claims.groups == adapter.groups
        assert claims.policy - {"groups-together"} == {"lru", "tight", "exact"}
        assert ("groups-together" in claims.policy) == (adapter is HybridAdapter)
        assert claims.namespace_fields == set(NAMESPACE_FIELDS)
        assert not claims.transfer

    def test_a_life_through_the_contract(self):
        adapter = ProductionAdapter(num_blocks=4, block_size=2)
        adapter.admit(0, (1, 2, 3), NO_NAMESPACE)
        assert adapter.match(0).tokens == 0
        assert adapter.extend(0, 3).copies == ()
        number = adapter.begin_step()
        assert adapter.worker_table(0) == adapter.block_table(0) == [0, 1]
        adapter.end_step(number)
        adapter.commit(0, 0)
        assert [event.kind for event in adapter.take_events()] == ["stored"]
        assert adapter.fork(0, 1).copies == ()
        assert adapter.swap_out(1)
        assert adapter.swap_in(1)
        adapter.append(0, (4,) * 5)
        with pytest.raises(OutOfBlocks):
            adapter.extend(0, 5)
        adapter.truncate(0, 1)
        assert adapter.evict([0]) == 1
        assert adapter.reset()
        adapter.release(0, "preempt")
        adapter.release(0, "finish")
        adapter.release(1, "error")
        assert sorted(adapter.snapshot().free) == [0, 1, 2, 3]

    def test_the_reason_of_an_event_is_told(self):
        adapter = ProductionAdapter(num_blocks=2, block_size=1)
        adapter.admit(0, (1,), NO_NAMESPACE)
        adapter.extend(0, 1)
        adapter.end_step(adapter.begin_step())
        adapter.commit(0, 0)
        adapter.evict([0])
        assert [(event.kind, event.reason) for event in adapter.take_events()] == [("stored", ""), ("removed", "requested")]

    def test_groups_may_have_blocks_of_their_own_size(self):
        class Unequal(ProductionAdapter):
            groups = (Group(), Group(kind="sliding_window", window=3, block_size=4))

        adapter = Unequal(num_blocks=8, block_size=2)
        adapter.admit(0, (1, 2, 3, 4, 5), NO_NAMESPACE)
        adapter.extend(0, 5)
        assert [len(adapter.block_table(0, group)) for group in (0, 1)] == [3, 2]

    def test_a_group_of_another_kind_is_an_error(self):
        class Odd(ProductionAdapter):
            groups = (Group(kind="state"),)

        with pytest.raises(ValueError, match="no groups of kind 'state'; use full or sliding_window"):
            Odd(num_blocks=2, block_size=1)

    def test_a_passed_window_is_a_refusal(self):
        adapter = HybridAdapter(num_blocks=16, block_size=2)
        adapter.admit(0, range(12), NO_NAMESPACE)
        adapter.extend(0, 12)
        adapter.end_step(adapter.begin_step())
        adapter.commit(0, 0)
        with pytest.raises(Refused, match="left the window"):
            adapter.truncate(0, 6)
