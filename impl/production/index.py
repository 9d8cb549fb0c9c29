"""What is matchable: a trie of whole blocks of tokens.

A node stands for one exact prefix in one namespace. Its edge, the pair of its parent's number and its own tokens, is the key of a hash table, so the hash chains
from block to block, and every hit compares parent and tokens exactly: a hash collision costs time, never truth. A node lives as long as a block is filed under it, a
deeper node hangs on it, or a sequence stands on it, so a number cannot come to mean another prefix while anyone remembers it.

One block for each group can be filed under a node. A second block of the same content stays unfiled, private to its holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kvproof.impl.production.pool import UNFILED, BlockPool

Chunk: TypeAlias = tuple[int, ...]
"""The tokens of one whole block."""

Descriptor: TypeAlias = tuple[tuple[str, str], ...]
"""A namespace: its fields that are set, each tagged with its name, sorted."""

NOWHERE = -1
"""The cursor of a sequence that stands on no node."""


class PrefixIndex:
    """Nodes are numbers into parallel lists; the slot `node * groups + group` holds the block that is filed there, or UNFILED."""

    __slots__ = ("_children", "_edges", "_groups", "_pool", "_refs", "_root_keys", "_roots", "_slots", "_spare", "filed")

    def __init__(self, pool: BlockPool, groups: int) -> None:
        self._pool = pool
        self._groups = groups
        self.clear()

    def clear(self) -> None:
        """Forgets everything. Whoever stood on a node stands nowhere now; the caller sees to it, and to the pool's labels."""
        self._children: dict[tuple[int, Chunk], int] = {}
        self._roots: dict[tuple[int, Descriptor], int] = {}
        self._root_keys: dict[int, tuple[int, Descriptor]] = {}
        self._edges: list[tuple[int, Chunk] | None] = []
        """Parent and tokens of each node; None for a root and for a spare number."""
        self._refs: list[int] = []
        self._slots: list[int] = []
        self._spare: list[int] = []
        self.filed = 0
        """How many blocks are matchable."""

    # Nodes. A cursor counts as one reference.

    def root(self, size: int, namespace: Descriptor) -> int:
        """A cursor on the empty prefix of a namespace, for blocks of `size` tokens."""
        key = (size, namespace)
        node = self._roots.get(key)
        if node is None:
            node = self._numbers(1)[0]
            self._roots[key] = node
            self._root_keys[node] = key
            self._refs[node] = 0
        self._refs[node] += 1
        return node

    def find_root(self, size: int, namespace: Descriptor) -> int:
        """The root without a reference, NOWHERE if there is none."""
        return self._roots.get((size, namespace), NOWHERE)

    def hold(self, node: int) -> None:
        """One more cursor on a node."""
        self._refs[node] += 1

    def leave(self, node: int) -> None:
        """One cursor, child or filed block fewer; a node that nobody remembers is gone, and so may be its ancestors."""
        refs = self._refs
        while True:
            refs[node] -= 1
            if refs[node]:
                return
            edge = self._edges[node]
            self._spare.append(node)
            if edge is None:
                del self._roots[self._root_keys.pop(node)]
                return
            del self._children[edge]
            self._edges[node] = None
            node = edge[0]

    def climb(self, node: int, levels: int) -> int:
        """Moves a cursor `levels` blocks up; returns the node it stands on then."""
        target = node
        for _ in range(levels):
            edge = self._edges[target]
            assert edge is not None, "a cursor is never above its root"
            target = edge[0]
        self.hold(target)
        self.leave(node)
        return target

    def _numbers(self, count: int) -> list[int]:
        spare = self._spare
        short = count - len(spare)
        if short > 0:
            first = len(self._refs)
            self._refs.extend([0] * short)
            self._edges.extend([None] * short)
            self._slots.extend([UNFILED] * (short * self._groups))
            spare.extend(range(first, first + short))
        numbers = spare[-count:]
        del spare[-count:]
        return numbers

    # Looking up.

    def walk(self, root: int, chunks: Iterable[Chunk]) -> list[int]:
        """The nodes of the longest known prefix of these blocks of tokens, whatever is filed there."""
        child_of = self._children.get
        path = []
        node = root
        for chunk in chunks:
            child = child_of((node, chunk))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def blocks(self, group: int, path: Sequence[int]) -> list[int]:
        """The block that is filed under each node for a group, UNFILED where there is none."""
        slots, groups = self._slots, self._groups
        if groups == 1:
            return [slots[node] for node in path]
        return [slots[node * groups + group] for node in path]

    # Filing.

    def grow(self, cursor: int, chunks: Sequence[Chunk]) -> list[int]:
        """Moves a cursor down along these blocks of tokens, making the nodes that are missing; returns the nodes, the last of which it stands on now."""
        children, refs = self._children, self._refs
        path = self.walk(cursor, chunks)
        known = len(path)
        if known:
            refs[cursor] -= 1
            cursor = path[-1]
            refs[cursor] += 1
        if known == len(chunks):
            return path
        numbers = self._numbers(len(chunks) - known)
        edges = self._edges
        for node, chunk in zip(numbers, chunks[known:] if known else chunks, strict=True):
            # The cursor's reference on the parent becomes that of the new child, and the cursor moves on.
            edges[node] = edge = (cursor, chunk)
            children[edge] = node
            refs[node] = 1
            cursor = node
        path += numbers
        return path

    def file(self, group: int, path: Sequence[int], blocks: Sequence[int | None]) -> list[int]:
        """Makes blocks matchable for a group, one under each node, where none is filed there already; returns those that are now."""
        slots, refs, labels, groups = self._slots, self._refs, self._pool.labels, self._groups
        stored = []
        for node, block in zip(path, blocks, strict=True):
            slot = node * groups + group
            if slots[slot] < 0 and block is not None:
                slots[slot] = block
                labels[block] = slot
                refs[node] += 1
                stored.append(block)
        self.filed += len(stored)
        return stored

    def forget_taken(self, blocks: Iterable[int]) -> None:
        """These filed blocks were handed out by the pool: they are no longer matchable."""
        slots, labels, refs, groups = self._slots, self._pool.labels, self._refs, self._groups
        count = 0
        for block in blocks:
            slot = labels[block]
            labels[block] = slots[slot] = UNFILED
            node = slot // groups
            if refs[node] == 1:
                self.leave(node)
            else:
                refs[node] -= 1
            count += 1
        self.filed -= count

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Makes blocks unmatchable without touching their holders; returns those that were matchable."""
        labels = self._pool.labels
        gone = []
        for block in blocks:
            slot = labels[block]
            if slot >= 0:
                self._slots[slot] = UNFILED
                self._pool.unfiled(block)
                self.leave(slot // self._groups)
                gone.append(block)
        self.filed -= len(gone)
        return gone
