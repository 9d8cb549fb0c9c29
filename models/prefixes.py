"""Token prefixes as integers.

Two positions hold the same content exactly if namespace, every token up to and including that position, and the position itself agree. Interning each
such prefix once turns that comparison, which the spec makes thousands of times a second, into comparing two integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.models.ops import Namespace, Tokens


class PrefixTree:
    """Interns (namespace, token prefix) as a node number. Node 0 is never used, so 0 can mean "nothing".

    A number stays until `keep_only` finds that nobody needs it any more; then it may come back for another prefix.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._roots: dict[Namespace, int] = {}
        self._begun: dict[int, dict[int, None]] = {}
        """first token -> the nodes of the prefixes of that one token, one for each namespace."""
        self._parent: list[int] = [0]
        self._token: list[int] = [-1]
        self._longer: list[int] = [0]
        """For each node, the newest that is one token longer; 0 where there is none."""
        self._beside: list[int] = [0]
        """For each node, the next older one with the same parent."""
        self._namespace: list[Namespace] = [Namespace()]
        self._unused: list[int] = []
        self.forgettings = 0
        """How often prefixes were forgotten, so that their numbers may stand for others now."""

    def __len__(self) -> int:
        return len(self._parent) - 1 - len(self._unused)

    def root(self, namespace: Namespace) -> int:
        """The node of the empty prefix in `namespace`."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = self._new(0, -1, namespace)
        return node

    def path(self, start: int, tokens: Iterable[int]) -> list[int]:
        """The nodes that `tokens` lead through, from `start`, which is not included."""
        nodes = []
        known = self._children.get
        for token in tokens:
            start = known((start, token)) or self._grow(start, token)
            nodes.append(start)
        return nodes

    def find(self, namespace: Namespace, tokens: Tokens) -> int | None:
        """The node of `tokens` in `namespace`, or None if no sequence had that prefix (lately, if old ones were let go of)."""
        node = self._roots.get(namespace)
        for token in tokens:
            if node is None:
                return None
            node = self._children.get((node, token))
        return node

    def begun(self, token: int) -> Iterable[int]:
        """The nodes of the prefix `(token,)` in every namespace."""
        return self._begun.get(token, ())

    def longer(self, node: int) -> list[int]:
        """The nodes one token longer than `node`."""
        found = []
        node = self._longer[node]
        while node:
            found.append(node)
            node = self._beside[node]
        return found[::-1]

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

    def keep_only(self, nodes: Iterable[int]) -> None:
        """Forget every prefix that is neither in `nodes` nor the beginning of one."""
        kept = bytearray(len(self._parent))
        kept[0] = 1
        for node in nodes:
            while not kept[node]:
                kept[node] = 1
                node = self._parent[node]
        self._link(kept)
        for node in self._unused:
            kept[node] = 1
        for node in [node for node, needed in enumerate(kept) if not needed]:
            self._forget(node)
        self.forgettings += 1

    def _forget(self, node: int) -> None:
        parent, token = self._parent[node], self._token[node]
        if parent:
            del self._children[parent, token]
            if not self._parent[parent]:
                begun = self._begun[token]
                del begun[node]
                if not begun:
                    del self._begun[token]
        else:
            del self._roots[self._namespace[node]]
        self._unused.append(node)

    def _link(self, kept: bytearray) -> None:
        """Link the nodes that are kept to their parents anew."""
        self._longer = [0] * len(kept)
        for node in range(1, len(kept)):
            if kept[node]:
                parent = self._parent[node]
                self._beside[node], self._longer[parent] = self._longer[parent], node

    def _grow(self, parent: int, token: int) -> int:
        node = self._children[parent, token] = self._new(parent, token, self._namespace[parent])
        if not self._parent[parent]:
            self._begun.setdefault(token, {})[node] = None
        return node

    def _new(self, parent: int, token: int, namespace: Namespace) -> int:
        if self._unused:
            node = self._unused.pop()
            self._parent[node], self._token[node], self._namespace[node] = parent, token, namespace
        else:
            node = len(self._parent)
            self._parent.append(parent)
            self._token.append(token)
            self._namespace.append(namespace)
            self._longer.append(0)
            self._beside.append(0)
        self._beside[node], self._longer[parent] = self._longer[parent], node
        return node
