"""Token prefixes as integers.

Two positions hold the same content exactly if namespace, every token up to and including that position, and the position itself agree. Interning each
such prefix once turns that comparison, which the spec makes thousands of times a second, into comparing two integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.models.ops import Namespace, Tokens


class PrefixTree:
    """Interns (namespace, token prefix) as a node number. Node 0 is never used, so 0 can mean "nothing"."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._roots: dict[Namespace, int] = {}
        self._longer: dict[int, list[int]] = {}
        self._parent: list[int] = [0]
        self._token: list[int] = [-1]
        self._namespace: list[Namespace] = [Namespace()]

    def root(self, namespace: Namespace) -> int:
        """The node of the empty prefix in `namespace`."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = self._new(0, -1, namespace)
        return node

    def path(self, start: int, tokens: Iterable[int]) -> list[int]:
        """The nodes that `tokens` lead through, from `start`, which is not included."""
        nodes = []
        for token in tokens:
            key = (start, token)
            node = self._children.get(key)
            if node is None:
                node = self._children[key] = self._new(start, token, self._namespace[start])
            nodes.append(node)
            start = node
        return nodes

    def find(self, namespace: Namespace, tokens: Tokens) -> int | None:
        """The node of `tokens` in `namespace`, or None if no sequence ever had that prefix."""
        node = self._roots.get(namespace)
        for token in tokens:
            if node is None:
                return None
            node = self._children.get((node, token))
        return node

    def longer(self, node: int) -> list[int]:
        """The nodes one token longer than `node`."""
        return self._longer.get(node, [])

    def tokens(self, node: int) -> Tokens:
        """The token prefix that `node` stands for."""
        found = []
        while self._parent[node]:
            found.append(self._token[node])
            node = self._parent[node]
        return tuple(reversed(found))

    def edge(self, node: int) -> tuple[int, int]:
        """(the prefix without its last token, that token). The empty prefix of a namespace has the parent 0."""
        return self._parent[node], self._token[node]

    def namespace(self, node: int) -> Namespace:
        """The namespace that `node` belongs to."""
        return self._namespace[node]

    def namespaces(self) -> list[Namespace]:
        """Every namespace seen so far."""
        return list(self._roots)

    def _new(self, parent: int, token: int, namespace: Namespace) -> int:
        self._parent.append(parent)
        self._token.append(token)
        self._namespace.append(namespace)
        self._longer.setdefault(parent, []).append(len(self._parent) - 1)
        return len(self._parent) - 1
