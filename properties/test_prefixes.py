"""Interned prefixes: two of them are one number exactly if namespace and tokens agree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.models.ops import NO_NAMESPACE, Namespace
from kvproof.models.prefixes import PrefixTree
from kvproof.properties import strategies

TENANT = Namespace(tenant="a")
named = strategies.namespaces()
# Numbers that are equal where they are cut to a byte, joined as text, or taken for truth values.
prompts = st.lists(st.sampled_from((0, 1, 2, 11, 12, 21, 112, 256, 257, 65536)), max_size=6).map(tuple)


@settings(deadline=None)
@given(st.lists(st.tuples(named, prompts), min_size=1, max_size=8))
def test_two_paths_are_equal_exactly_if_namespaces_and_tokens_are(pairs):
    tree = PrefixTree()
    last = {}
    for namespace, tokens in pairs:
        root = tree.root(namespace)
        last.setdefault((namespace, tokens), set()).add(([root, *tree.path(root, tokens)])[-1])
    nodes = [node for found in last.values() for node in found]
    assert all(len(found) == 1 for found in last.values())
    assert len(set(nodes)) == len(last)


@settings(deadline=None)
@given(named, prompts, prompts, prompts)
def test_two_paths_share_exactly_their_common_prefix(namespace, common, one, two):
    tree = PrefixTree()
    root = tree.root(namespace)
    paths = [tree.path(root, common + rest) for rest in (one, two)]
    for a, b, index in zip(*paths, range(99), strict=False):
        assert (a == b) == ((common + one)[: index + 1] == (common + two)[: index + 1])


@settings(deadline=None)
@given(named, prompts, prompts)
def test_a_path_goes_on_from_where_another_ended(namespace, one, two):
    tree = PrefixTree()
    root = tree.root(namespace)
    first = tree.path(root, one)
    assert first + tree.path([root, *first][-1], two) == tree.path(root, one + two)


@settings(deadline=None)
@given(named, prompts)
def test_a_node_tells_its_tokens_and_its_namespace(namespace, tokens):
    tree = PrefixTree()
    root = tree.root(namespace)
    node = [root, *tree.path(root, tokens)][-1]
    assert (tree.tokens(node), tree.namespace(node)) == (tokens, namespace)
    assert tree.find(namespace, tokens) == node


@settings(deadline=None)
@given(st.lists(st.tuples(named, prompts), max_size=5), named, prompts)
def test_find_makes_nothing_up(pairs, namespace, tokens):
    tree = PrefixTree()
    for other, said in pairs:
        tree.path(tree.root(other), said)
    known = any(other == namespace and said[: len(tokens)] == tokens for other, said in pairs)
    assert (tree.find(namespace, tokens) is not None) == known
    assert set(tree.namespaces()) == {other for other, _ in pairs}


def test_no_prefix_is_number_zero():
    tree = PrefixTree()
    nodes = [tree.root(NO_NAMESPACE), tree.root(TENANT), *tree.path(tree.root(NO_NAMESPACE), (0, 0))]
    assert 0 not in nodes


def test_the_longer_prefixes_of_a_node_are_one_token_longer():
    tree = PrefixTree()
    root = tree.root(NO_NAMESPACE)
    a, ab = tree.path(root, (1, 2))
    _, ac = tree.path(root, (1, 3))
    assert tree.longer(a) == [ab, ac]
    assert tree.longer(root) == [a]
    assert tree.longer(ab) == []
