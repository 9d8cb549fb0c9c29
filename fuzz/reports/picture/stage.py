"""The state after any row of a picture, put together again from its frames: what the page does in JavaScript, for text.

stage = Stage(picture)
stage.advance(picture.faults[0].row)
stage.tables[3]                        # the block tables of sequence 3
"""

from __future__ import annotations

import msgspec

from kvproof.fuzz.reports.picture.document import Picture
from kvproof.fuzz.reports.picture.film import ASIDE, FREE, LEFT_OUT, NO_BLOCK, NOBODY, NULL, SWAPPED, Frame, SequenceChange


class Player(msgspec.Struct):
    """A live sequence: the last change of it, and its block tables, one for each group."""

    now: SequenceChange
    tables: list[list[int]]

    @property
    def swapped(self) -> bool:
        """Whether it is on the slower tier."""
        return bool(self.now.flags & SWAPPED)

    @property
    def left_out(self) -> bool:
        """Whether a fault before accuses it, so that no law is asked of it any more."""
        return bool(self.now.flags & LEFT_OUT)


class Block(msgspec.Struct, frozen=True):
    """A block: its state by number, its reference count, its generation, its holder (the last one, where nobody holds it)."""

    state: int = FREE
    count: int = 0
    generation: int = 0
    holder: int = NOBODY


class Stage:
    """A picture at one row; it starts before the first one and only goes forwards."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.row = -1
        self.players: dict[int, Player] = {}
        self.blocks = [Block(NULL if block in picture.null_blocks else FREE) for block in range(picture.num_blocks)]
        self.slots = [0] * (picture.num_blocks * picture.stride)
        self.free: list[int] = []
        self.matchable: set[int] = set()
        self.retiring: set[int] = set()
        self.open_steps = 0

    def advance(self, row: int) -> None:
        """Go on until after `row`."""
        while self.row < row:
            self.row += 1
            self._apply(self.picture.frames[self.row])

    def name(self, block: int) -> str:
        """`b7#3`: block 7, handed out for the third time."""
        if block == NO_BLOCK:
            return "-"
        generation = self.blocks[block].generation
        return f"b{block}#{generation}" if generation else f"b{block}"

    def is_judged(self, player: Player, block: int) -> bool:
        """Whether laws are asked of what `player` shows in `block`: no fault before accuses either of them."""
        return not player.left_out and (block == NO_BLOCK or self.blocks[block].state != ASIDE)

    def holders(self, block: int) -> list[int]:
        """The sequences whose tables list `block`."""
        return [seq for seq, player in self.players.items() if any(block in table for table in player.tables)]

    def _apply(self, frame: Frame) -> None:
        for change in frame.s:
            old = self.players.get(change.seq)
            kept = [old.tables[group][: delta[0]] if old else [] for group, delta in enumerate(change.tables)]
            self.players[change.seq] = Player(change, [head + list(delta[1:]) for head, delta in zip(kept, change.tables, strict=True)])
        for seq in frame.x:
            del self.players[seq]
        groups = len(self.picture.groups)
        for slot, content, length in zip(frame.m[::3], frame.m[1::3], frame.m[2::3], strict=True):
            self.slots[slot : slot + length] = [content + k * groups if content else 0 for k in range(length)]
        for at in range(0, len(frame.b), 5):
            self.blocks[frame.b[at]] = Block(*frame.b[at + 1 : at + 5])
        for at, gone, *came in frame.f:
            self.free[at : at + gone] = came
        for members, changes in ((self.matchable, frame.c), (self.retiring, frame.r)):
            members.update(change - 1 for change in changes if change > 0)
            members.difference_update(-change - 1 for change in changes if change < 0)
        if frame.o is not None:
            self.open_steps = frame.o


class Prefixes:
    """The interned prefixes of a picture: what tokens lie on the way to a node."""

    def __init__(self, picture: Picture) -> None:
        self._back = picture.tree.back
        self._tokens = picture.tree.tokens
        self._roots = picture.tree.roots

    def path(self, node: int, length: int) -> list[int]:
        """The nodes of the last `length` positions of the prefix that ends in `node`."""
        nodes = []
        for _ in range(length):
            nodes.append(node)
            node -= self._back[node]
        return nodes[::-1]

    def token(self, node: int) -> int:
        """The last token of a prefix."""
        return self._tokens[node]

    def namespace(self, node: int) -> str:
        """The namespace of a prefix in words, empty for that without any field."""
        while self._back[node]:
            node -= self._back[node]
        return self._roots.get(node, "")
