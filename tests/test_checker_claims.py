"""What the checker says of the capabilities that an adapter claims: every fault is one sentence that names the method, the cause and the mend."""

from __future__ import annotations

import pytest
from answering import ALL, Answering, fault_of, is_one_sentence
from toys import Toy

from kvproof import CacheAdapter, Capabilities, Group
from kvproof.impl.checker import CLAIMED, REQUIRED, Checked, read_capabilities
from kvproof.models.ops import NAMESPACE_FIELDS


def claiming(capabilities, **members):
    return type("Mine", (Toy,), {"capabilities": classmethod(lambda cls: capabilities), **members})


def test_the_capabilities_of_a_whole_adapter_come_back_as_they_were_claimed():
    assert read_capabilities(Answering) == ALL
    assert read_capabilities(Toy) == Toy.capabilities()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"capabilities": None},
            "Mine has no capabilities(); give it a classmethod that returns kvproof.Capabilities for a cache, or kvproof.KernelCapabilities for kernels.",
        ),
        ({"capabilities": lambda self: ALL}, "could not be called on the class"),
        (
            {"capabilities": classmethod(lambda cls: {"prefix": True})},
            "returned dict {'prefix': True}; it must return kvproof.Capabilities.",
        ),
        ({"capabilities": classmethod(lambda cls: 1 / 0)}, "Mine.capabilities() raised ZeroDivisionError: division by zero"),
        (
            {"capabilities": classmethod(lambda cls: len(3))},
            "Mine.capabilities() raised TypeError: object of type 'int' has no len() at test_checker_claims.py:",
        ),
        (
            {"capabilities": classmethod(lambda cls: Capabilities(prefixes=True))},
            "Mine.capabilities(): kvproof.Capabilities has no field 'prefixes'; the nearest one is 'prefix'; all fields stand in docs/contract.md",
        ),
        (
            {"capabilities": classmethod(lambda cls: Capabilities(groups=(Group(windows=3),)))},
            "Mine.capabilities(): kvproof.Group has no field 'windows'; the nearest one is 'window'; all",
        ),
        (
            {"capabilities": classmethod(lambda cls: Capabilities(zzz=True))},
            "Mine.capabilities(): kvproof.Capabilities has no field 'zzz'; all fields stand in",
        ),
    ],
)
def test_capabilities_that_cannot_be_read_are_a_fault(members, words):
    told = fault_of(lambda: read_capabilities(type("Mine", (Toy,), members)))
    assert words in told
    assert is_one_sentence(told)


@pytest.mark.parametrize("method", ["capabilities", "commit", "match"])
def test_a_method_that_is_async_is_told_before_anything_is_called(method):
    async def later(*_):
        return None

    async def each(*_):
        yield None

    for found in (later, each):
        target = type("Mine", (Toy,), {"capabilities": classmethod(lambda cls: ALL), method: found})
        told = fault_of(lambda target=target: read_capabilities(target))
        assert told.startswith(
            f"Mine.{method}() is async, but the suite calls it and takes what comes back for the answer; define it with def"
        )
        assert is_one_sentence(told)


def test_a_method_that_is_async_and_never_called_may_stay():
    async def later(*_):
        return None

    assert read_capabilities(claiming(Capabilities(), match=later)) == Capabilities()


def test_an_adapter_without_capabilities_is_told_to_define_them():
    told = fault_of(lambda: read_capabilities(type("Bare", (CacheAdapter,), {})))
    assert told == "Bare does not define capabilities(); give it a classmethod that returns kvproof.Capabilities."


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"groups": ()}, "groups is empty; a cache has at least one group of layers"),
        ({"groups": "full"}, "groups is str 'full'; it must be a collection"),
        ({"groups": ("full",)}, "groups holds str 'full'; it must hold kvproof.Group"),
        ({"groups": (Group("half"),)}, "there is no group kind 'half'; there are full, sliding_window, compressed and state"),
        ({"groups": (Group("compressed"),)}, "the group kind 'compressed' is not driven yet; full and sliding_window are"),
        ({"groups": (Group("state"),)}, "the group kind 'state' is not driven yet"),
        ({"groups": (Group("sliding_window"),)}, "a sliding_window group needs a window of 1 token or more, not None"),
        ({"groups": (Group("sliding_window", window=0),)}, "a sliding_window group needs a window of 1 token or more, not 0"),
        ({"groups": (Group(block_size=0),)}, "a group's block_size must be 1 token or more, not 0"),
        ({"namespace_fields": {"tenants"}}, "namespace_fields names 'tenants'; the fields are tenant, model"),
        ({"namespace_fields": "tenant"}, "namespace_fields is str 'tenant'; it must be a collection"),
        ({"policy": {"fifo"}}, "policy names 'fifo'; the policies are lru, tight, exact, rewrites, groups-together, groups-in-turn"),
        ({"policy": "lru"}, "policy is str 'lru'; it must be a collection"),
        ({"null_blocks": 0}, "null_blocks is int 0; it must be a collection"),
        ({"block_sizes": ()}, "block_sizes is (); give at least one, each 1 or more"),
        ({"block_sizes": (2, 0)}, "block_sizes is (2, 0); give at least one, each 1 or more"),
        ({"block_sizes": 16}, "block_sizes is int 16; it must be a collection"),
        ({"max_blocks": 0}, "max_blocks is 0; it must be 1 or more"),
        ({"max_blocks": None}, "max_blocks is None; it must be 1 or more"),
        ({"capacity": "all"}, "capacity is str 'all'; give a number, a function of num_blocks, or None"),
    ],
)
def test_a_claim_that_makes_no_sense_is_a_fault(claim, words):
    told = fault_of(lambda: read_capabilities(claiming(Capabilities(**claim))))
    assert told.startswith("Mine.capabilities(): ")
    assert words in told
    assert is_one_sentence(told)


@pytest.mark.parametrize(
    "claim",
    [
        {"groups": iter((Group(),))},
        {"block_sizes": iter((2,))},
        {"namespace_fields": {1, "x"}},
        {"policy": [["lru"]]},
        {"null_blocks": {"a"}},
        {"capacity": -1},
    ],
    ids=[
        "groups that can be read once",
        "sizes that can be read once",
        "mixed fields",
        "nested policies",
        "a null block by name",
        "less than none",
    ],
)
def test_a_claim_that_would_fail_later_is_a_fault_at_once(claim):
    assert is_one_sentence(fault_of(lambda: read_capabilities(claiming(Capabilities(**claim)))))


@pytest.mark.parametrize(
    "claim",
    [
        {"groups": [Group(), Group("sliding_window", window=1, block_size=4)]},
        {"namespace_fields": list(NAMESPACE_FIELDS)},
        {"policy": ["lru", "tight", "exact", "rewrites"]},
        {"capacity": 3},
        {"capacity": lambda blocks: blocks - 1},
        {"null_blocks": [0]},
        {"block_sizes": [16], "max_blocks": 1},
    ],
)
def test_any_collection_will_do_for_a_claim(claim):
    assert read_capabilities(claiming(Capabilities(**claim))) == Capabilities(**claim)


@pytest.mark.parametrize("method", REQUIRED)
def test_a_method_that_every_cache_needs_is_named_where_it_is_missing(method):
    members = {name: getattr(Toy, name) for name in REQUIRED if name != method}
    bare = type("Bare", (CacheAdapter,), {"capabilities": classmethod(lambda cls: Capabilities()), **members})
    told = fault_of(lambda: read_capabilities(bare))
    assert f"Bare does not define {method}(), but every cache needs it; define it" in told
    assert is_one_sentence(told)


@pytest.mark.parametrize(("capability", "method"), [(name, method) for name, methods in CLAIMED.items() for method in methods])
def test_a_method_that_is_claimed_is_named_where_it_is_missing(capability, method):
    members = {other: lambda self: None for other in CLAIMED[capability] if other != method}
    bare = type("Bare", (Toy,), {"capabilities": classmethod(lambda cls: Capabilities(**{capability: True})), **members})
    if method == "snapshot":
        bare.snapshot = CacheAdapter.snapshot
    told = fault_of(lambda: read_capabilities(bare))
    assert (
        told == f"Bare does not define {method}(), but the capability {capability} is claimed; define it, or do not claim the capability."
    )


def test_a_method_that_is_no_method_is_named():
    told = fault_of(lambda: read_capabilities(claiming(Capabilities(), commit=3)))
    assert told == "Mine.commit is int 3, not a method."


def test_a_cache_that_cannot_be_built_says_how_the_suite_builds_it():
    class Picky(Toy):
        def __init__(self, *, num_blocks, block_size):
            raise ValueError("no")

    told = fault_of(lambda: Checked(Picky, Capabilities(), num_blocks=8, block_size=2))
    assert "Picky(num_blocks=8, block_size=2) raised ValueError: no at test_checker_claims.py:" in told
    assert "the suite builds caches with these two keyword arguments" in told
    assert is_one_sentence(told)
