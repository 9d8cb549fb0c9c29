"""How a faulty part is put into the production cache, and the list of all that were.

A seeded bug is one small class: a part of the production cache with one method that does less, or something else, than it should. `seeded` turns it into an
adapter and enters it into `BUGS`:

    @seeded("second-release-raises", laws=("release-once",), story="...")
    class SecondReleaseRaises(PagedCache):
        def release(self, seq: int) -> bool:
            ...

After that the name of the class stands for the adapter, so a worker process, a test file and `module:Class` can all find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter, SynchronousAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.index import PrefixIndex
from kvproof.impl.production.mirror import TableLog, WorkerMirror
from kvproof.impl.production.pool import BlockPool
from kvproof.models.capabilities import Capabilities

SHORT: Final = 8
"""The most operations that the shortest program of a seeded bug may take."""

LONG: Final = 10
"""The same where a pool must first be exhausted, device work be in flight, or two sequences decode together."""


class SeededBug(msgspec.Struct, frozen=True):
    """A faulty cache that the suite must catch.

    `laws`: those that may be named for it, the expected one first. `story`: what a user of the cache would see. `like`: real bugs of the same kind.
    """

    name: str
    adapter: type
    laws: tuple[str, ...]
    story: str
    like: tuple[str, ...] = ()
    needs_long: bool = False

    @property
    def most_operations(self) -> int:
        """How long the shortest program may be."""
        return LONG if self.needs_long else SHORT


BUGS: Final[dict[str, SeededBug]] = {}
"""Every seeded bug by its name."""


class UnauditedStepsAdapter(ProductionAdapter):
    """A cache that shows no books and sends no events: what it does wrong must be seen from its answers and tables alone."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """Those of the production cache, less the two that look inside."""
        return msgspec.structs.replace(super().capabilities(), snapshot=False, events=False)


class UnauditedAdapter(UnauditedStepsAdapter):
    """The same without device steps."""

    steps = False


class SynchronousHybridAdapter(HybridAdapter):
    """A full group beside a sliding window, without device steps."""

    steps = False


def seeded(
    name: str,
    *,
    laws: tuple[str, ...],
    story: str,
    like: tuple[str, ...] = (),
    needs_long: bool = False,
    on: type[ProductionAdapter] = SynchronousAdapter,
) -> Callable[[type], Any]:
    """Enter the decorated class as a seeded bug of the adapter `on`; returns the faulty adapter. An adapter is taken as it is."""

    def enter(part: type) -> type:
        adapter = part if issubclass(part, ProductionAdapter) else _planted(part, on)
        assert name not in BUGS, f"there are two seeded bugs named {name}"
        BUGS[name] = SeededBug(name, adapter, laws, story, like, needs_long)
        return adapter

    return enter


def _planted(part: type, on: type[ProductionAdapter]) -> type:
    """The adapter `on` with a faulty part. The cache is built as always, then its part takes the class with the fault in it."""

    def build(adapter: ProductionAdapter, *, num_blocks: int, block_size: int) -> None:
        on.__init__(adapter, num_blocks=num_blocks, block_size=block_size)
        _part(adapter, part).__class__ = part

    names = {"__init__": build, "__module__": part.__module__, "__qualname__": part.__qualname__, "__doc__": part.__doc__}
    return type(part.__name__, (on,), names)


def _part(adapter: ProductionAdapter, kind: type) -> Any:  # noqa: ANN401 -- its class is about to change
    """The part of a fresh cache that `kind` is a faulty variant of."""
    cache = adapter.cache
    for part in (cache, cache._pool, cache._index, cache._log, adapter.mirror):
        if issubclass(kind, type(part)):
            return part
    parts = ", ".join(base.__name__ for base in (PagedCache, BlockPool, PrefixIndex, TableLog, WorkerMirror, ProductionAdapter))
    raise TypeError(f"{kind.__name__} derives from no part of the production cache; these can be faulty: {parts}")
