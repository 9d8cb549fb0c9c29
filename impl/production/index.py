"""What is matchable: a radix tree over tokens, in whole blocks.

A run is a stretch of blocks that every prompt in the tree passes in one piece; runs branch where prompts differ. A run keeps the exact
tokens of its blocks, and for each group the block that is filed at each position, so a hit compares every token from the first on, at the
speed of memory. The only hash is that of a branch's first block, and a collision there costs time, never truth: Python compares the tokens
as well.

A sequence stands on the run in which its last published block lies: its cursor. A run lives as long as a block is filed in it, a cursor
stands on it, or another run continues it; what lies behind the last of these is trimmed.

One block for each group can be filed at a position. A second block of the same content stays unfiled, private to its holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kvproof.impl.production.pool import UNFILED, BlockPool

Descriptor: TypeAlias = tuple[tuple[str, str], ...]
"""A namespace: its fields that are set, each tagged with its name, sorted."""

RootKey: TypeAlias = tuple[int, int, Descriptor]
"""What sequences must agree in to share a tree: tokens in a block, bytes in a token, namespace."""

NO_BLOCK = -1
"""Stands where no block is filed for a group."""


class Run:
    """Blocks `start` to `end` of one prefix, counted from the beginning of the prompt. The root of a tree is an empty run at 0.

    data: their tokens, `width` bytes for each block. filed: for each group, the block filed at each position. live: how many are.
    children: the runs that continue this one, by the tokens of their first block. cursors: how many sequences stand on it.
    """

    __slots__ = ("children", "cursors", "data", "end", "filed", "live", "parent", "start", "width")

    def __init__(self, parent: Run | None, start: int, width: int, groups: Iterable[int]) -> None:
        self.parent = parent
        self.start = self.end = start
        self.width = width
        self.data = bytearray()
        self.filed: dict[int, list[int]] = {group: [] for group in groups}
        self.live = self.cursors = 0
        self.children: dict[bytes, Run] = {}

    @property
    def first(self) -> bytes:
        """The tokens of its first block."""
        return bytes(self.data[: self.width])


Path: TypeAlias = list[tuple[Run, int]]
"""The runs that a prompt passes, each with the position up to which it agrees."""


class PrefixIndex:
    """The trees of all namespaces. Writes the pool's labels: where each block is filed."""

    __slots__ = ("_groups", "_pool", "_root_keys", "_roots", "_runs", "filed")

    def __init__(self, pool: BlockPool, groups: int) -> None:
        self._pool = pool
        self._groups = groups
        self._runs: list[Run | None] = [None] * pool.num_blocks
        """In which run each block is filed; the label says where in it: position * groups + group."""
        self.clear()

    def clear(self) -> None:
        """Forgets all trees. No block may be filed any more, and no cursor be used again: the caller sees to it."""
        self._roots: dict[RootKey, Run] = {}
        self._root_keys: dict[Run, RootKey] = {}
        self.filed = 0
        """How many blocks are matchable."""

    # Cursors.

    def root(self, key: RootKey, groups: Iterable[int]) -> Run:
        """A cursor at the beginning of a tree, which is made if there is none."""
        run = self._roots.get(key)
        if run is None:
            run = self._roots[key] = Run(None, 0, key[0] * key[1], groups)
            self._root_keys[run] = key
        run.cursors += 1
        return run

    def leave(self, run: Run) -> None:
        """One cursor fewer."""
        run.cursors -= 1
        if not run.cursors:
            self._shrink(run)

    # Looking up.

    def find(self, key: RootKey, data: bytes) -> Path:
        """What is known of a prompt. `data`: its tokens, in whole blocks."""
        root = self._roots.get(key)
        return [] if root is None else _walk(root, 0, data)

    # Filing.

    def publish(self, cursor: Run, depth: int, data: bytes, columns: Sequence[tuple[int, Sequence[int]]]) -> tuple[Run, list[list[int]]]:
        """Moves a cursor on from block `depth` along the tokens in `data`, and makes blocks matchable there.

        columns: for every group of the tree, its block for each position. Where one is filed already, the new one stays private.
        Returns the run on which the cursor stands now, and for each column the blocks that became matchable.
        """
        run = cursor
        while depth <= run.start and run.parent is not None:
            # The run was split since the cursor came to stand on it.
            run = run.parent
        path = _walk(run, depth, data)
        stored: list[list[int]] = [[] for _ in columns]
        at = depth
        for run, end in path:
            for (group, blocks), column in zip(columns, stored, strict=True):
                self._fill(run, group, at, blocks[at - depth : end - depth], column)
            at = end
        rest = data[(at - depth) * run.width :]
        if rest:
            run = self._open_end(run, at, rest)
            for (group, blocks), column in zip(columns, stored, strict=True):
                column += self._add(run, group, at, blocks[at - depth :] if at > depth else blocks)
        if run is not cursor:
            run.cursors += 1
            self.leave(cursor)
        return run, stored

    def publish_next(self, cursor: Run, depth: int, data: bytes, block: int) -> bool:
        """`publish` for one block of a tree with one group, and for a cursor at the end of a run that nobody continues. False where it stands elsewhere."""
        if depth != cursor.end or cursor.children or cursor.parent is None:
            return False
        cursor.data += data
        cursor.filed[0].append(block)
        cursor.end = depth + 1
        cursor.live += 1
        self._runs[block] = cursor
        self._pool.labels[block] = depth
        self.filed += 1
        return True

    def _fill(self, run: Run, group: int, at: int, blocks: Sequence[int], stored: list[int]) -> None:
        """Files blocks at known positions, where the group has none."""
        filed, labels, groups = run.filed[group], self._pool.labels, self._groups
        for position, block in enumerate(blocks, at):
            if filed[position - run.start] < 0:
                filed[position - run.start] = block
                labels[block] = position * groups + group
                self._runs[block] = run
                run.live += 1
                self.filed += 1
                stored.append(block)

    def _open_end(self, run: Run, at: int, rest: bytes) -> Run:
        """The run that goes on with `rest` at position `at` of `run`: the same, grown longer, unless others continue it already."""
        if at < run.end:
            run = self._split(run, at)
        if run.children or run.parent is None:
            parent = run
            run = Run(parent, at, parent.width, parent.filed)
            parent.children[rest[: run.width]] = run
        run.data += rest
        run.end = at + len(rest) // run.width
        return run

    def _add(self, run: Run, group: int, at: int, blocks: Sequence[int]) -> Sequence[int]:
        """Files blocks at the new end of a run."""
        runs, labels, groups = self._runs, self._pool.labels, self._groups
        run.filed[group] += blocks
        label = at * groups + group
        for block in blocks:
            runs[block] = run
            labels[block] = label
            label += groups
        run.live += len(blocks)
        self.filed += len(blocks)
        return blocks

    def _split(self, run: Run, at: int) -> Run:
        """Cuts a run in two at position `at`; returns the new front.

        The back stays what it was, so cursors and children of the end stay right.
        """
        parent = run.parent
        assert parent is not None, "a root is empty"
        kept = at - run.start
        front = Run(parent, run.start, run.width, run.filed)
        front.end = at
        parent.children[run.first] = front
        front.data = run.data[: kept * run.width]
        del run.data[: kept * run.width]
        for group, filed in run.filed.items():
            front.filed[group] = filed[:kept]
            del filed[:kept]
            for block in front.filed[group]:
                if block >= 0:
                    self._runs[block] = front
                    front.live += 1
        run.live -= front.live
        run.start = at
        run.parent = front
        front.children[run.first] = run
        return front

    # Forgetting.

    def forget_taken(self, blocks: Sequence[int]) -> None:
        """These filed blocks were handed out by the pool: they are no longer matchable."""
        runs, labels, groups = self._runs, self._pool.labels, self._groups
        at = 0
        while at < len(blocks):
            block = blocks[at]
            run = runs[block]
            assert run is not None, "the pool evicts filed blocks only"
            position, group = divmod(labels[block], groups)
            filed = run.filed[group]
            # Blocks that were let go together are evicted together, deepest first: then they stand in the run one before the other.
            last = position - run.start
            streak = min(last + 1, len(blocks) - at)
            first = last - streak + 1
            if streak > 1 and filed[first : last + 1] == blocks[at : at + streak][::-1]:
                filed[first : last + 1] = [NO_BLOCK] * streak
            else:
                streak = 1
                filed[last] = NO_BLOCK
            run.live -= streak
            if 2 * run.live <= len(run.filed) * (run.end - run.start):
                # Often enough that what is forgotten takes no more memory than what is filed, and no more often.
                self._shrink(run)
            at += streak
        for block in blocks:
            runs[block] = None
            labels[block] = UNFILED
        self.filed -= len(blocks)

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Makes blocks unmatchable without touching their holders; returns those that were matchable."""
        gone = []
        for block in blocks:
            run = self._runs[block]
            if run is not None:
                position, group = divmod(self._pool.labels[block], self._groups)
                run.filed[group][position - run.start] = NO_BLOCK
                run.live -= 1
                self._runs[block] = None
                self._pool.unfiled(block)
                self._shrink(run)
                gone.append(block)
        self.filed -= len(gone)
        return gone

    def _shrink(self, run: Run) -> None:
        """Trims what nobody remembers: the end of a run, the whole of it, and then perhaps what it continued."""
        while not run.cursors and not run.children:
            parent = run.parent
            if parent is None:
                del self._roots[self._root_keys.pop(run)]
                return
            if run.live:
                _trim(run)
                return
            del parent.children[run.first]
            run = parent


def blocks_on(path: Path, group: int) -> list[int]:
    """The block that is filed for a group at each position of a path, NO_BLOCK where there is none."""
    blocks: list[int] = []
    for run, end in path:
        blocks += run.filed[group][: end - run.start]
    return blocks


def run_at(path: Path, depth: int) -> Run:
    """The run of a path on which a cursor at block `depth`, from 1 on, stands."""
    return next(run for run, end in path if end >= depth)


def _walk(run: Run, depth: int, data: bytes) -> Path:
    """Follows `data` from block `depth` on, which lies in `run` or at its end."""
    width = run.width
    offset = 0
    path = []
    while offset < len(data):
        known = (run.end - depth) * width
        if known:
            if depth == run.start and data.startswith(run.data, offset):
                agreed = known
            else:
                part = data[offset : offset + known]
                start = (depth - run.start) * width
                other = run.data[start : start + len(part)]
                agreed = len(part) if part == other else _agreement(part, other, width)
            if not agreed:
                break
            depth += agreed // width
            offset += agreed
            path.append((run, depth))
            if depth < run.end:
                break
        child = run.children.get(data[offset : offset + width])
        if child is None:
            break
        run = child
    return path


def _agreement(one: bytes, two: bytearray, width: int) -> int:
    """How many leading bytes of two unequal strings of the same length agree, in whole blocks."""
    # By halving, so that memory is compared and not tokens: the first `low` blocks agree, the first `high` do not.
    low, high = 0, len(one) // width
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * width : middle * width] == two[low * width : middle * width]:
            low = middle
        else:
            high = middle
    return low * width


def _trim(run: Run) -> None:
    """Cuts off the positions at the end of a run where no group has a block filed."""
    kept = 0
    for filed in run.filed.values():
        length = len(filed)
        while length > kept and filed[length - 1] < 0:
            length -= 1
        kept = max(kept, length)
    for filed in run.filed.values():
        del filed[kept:]
    del run.data[kept * run.width :]
    run.end = run.start + kept
