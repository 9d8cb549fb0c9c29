"""What a page is made of: one picture for each run, and how two of them are laid beside each other."""

from __future__ import annotations

from typing import Final

import msgspec

from kvproof.fuzz.reports.picture.differences import Accusation
from kvproof.fuzz.reports.picture.film import STATES, Film, Frame, Prefixes
from kvproof.fuzz.reports.wording import namespace
from kvproof.fuzz.verdicts import LawVerdict

VERSION: Final = 1
"""The version of the data in a page. The page and its data are made together, so it is only there for those who read the data."""


class GroupShape(msgspec.Struct, frozen=True):
    """A group of layers: its kind, its block size in tokens, its window in tokens where it has one."""

    kind: str
    block_size: int
    window: int | None


class Tree(msgspec.Struct, frozen=True):
    """Interned prefixes. `back`: how far back the parent of each node lies, 0 for a root; `roots`: node -> namespace in words."""

    back: list[int]
    tokens: list[int]
    roots: dict[int, str]


class Picture(msgspec.Struct, omit_defaults=True):
    """One run. The rows are those of the film: `kinds` index into `kind_names`, a number is None where the operation was skipped."""

    name: str
    target: str
    num_blocks: int
    stride: int
    """Slots of one block in the ghost memory: the largest block size of all groups."""
    groups: list[GroupShape]
    null_blocks: list[int]
    books: list[str]
    """Which books the cache shows."""
    kind_names: list[str]
    kinds: list[int]
    texts: list[str]
    answers: list[str]
    numbers: list[int | None]
    frames: list[Frame]
    tree: Tree
    faults: list[Accusation] = []
    """The broken laws, in the order of the run: one for a program, which ends there, and for a trace the first fault of each law that its audit tells."""
    trouble: str = ""
    """Why the run ended without a verdict: a fault of the adapter, or an operation that never answered."""
    note: str = ""
    """What else is to be said of the run."""
    gaps: list[int] = []
    """Rows in whose place operations are missing: what is drawn after them is what began later."""
    source: str = ""
    """The program as a test that stands alone, where it is short enough to be read."""
    program: str = ""
    """The program as a failure file, where it is short enough to be copied."""

    @property
    def accusation(self) -> Accusation | None:
        """The first fault."""
        return self.faults[0] if self.faults else None


class Case(msgspec.Struct, frozen=True):
    """A broken law of kernels: there is no run to draw, only the case that shows it."""

    law: str
    sentence: str
    reason: str
    case: str
    source: str


class Document(msgspec.Struct, omit_defaults=True):
    """Everything that one page shows. `pairs`: row of the first picture, row of the second one, -1 for none; only where two are compared."""

    title: str
    pictures: list[Picture]
    states: tuple[str, ...] = STATES
    kvproof: int = VERSION
    pairs: list[tuple[int, int]] = []
    cases: list[Case] = []
    laws: dict[str, LawVerdict] = {}
    summary: str = ""

    @property
    def verdict(self) -> str:
        """`broken`, `error` or `held`, for the page as a whole."""
        if self.cases or any(picture.faults for picture in self.pictures):
            return "broken"
        return "error" if any(picture.trouble or picture.gaps for picture in self.pictures) else "held"


def picture_of(film: Film, *, name: str, target: str) -> Picture:
    """The picture of a film, without any verdict."""
    spec = film.spec
    kind_names = sorted(set(film.kinds))
    index = {kind: number for number, kind in enumerate(kind_names)}
    shapes = [
        GroupShape(group.kind, size, window)
        for group, size, window in zip(spec.capabilities.groups, spec.block_sizes, spec.windows, strict=True)
    ]
    return Picture(
        name,
        target,
        film.num_blocks,
        spec.memory.stride,
        shapes,
        sorted(spec.null_blocks),
        [field for field in ("refcounts", "free", "cached", "retiring") if field in film.books],
        kind_names,
        [index[kind] for kind in film.kinds],
        film.texts,
        film.answers,
        film.numbers,
        film.frames,
        _tree(film.prefixes),
        gaps=film.gaps,
    )


def _tree(prefixes: Prefixes) -> Tree:
    back = [node - parent if parent else 0 for node, parent in enumerate(prefixes.parents)]
    return Tree(back, prefixes.tokens, {node: namespace(space).strip() for node, space in prefixes.roots.items()})
