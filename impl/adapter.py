"""The contract for a cache under test. Subclass `CacheAdapter`; the suite builds a fresh one for every program.

`capabilities`, `admit`, `extend`, `commit`, `append`, `release` and `block_table` are needed always; every other method only where
`capabilities()` claims it. An operation that raises `OutOfBlocks` or `Refused` has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Self

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Event, Grant, Hit, Snapshot


class CacheAdapter:
    """Base class of caches under test; every method that is not overridden says so when it is called."""

    def __new__(cls, *args: object, **pool: object) -> Self:  # noqa: ARG004 -- whatever a constructor takes
        """Remember the pool that was asked for, so that `kvproof.record` can name it in a trace."""
        made = super().__new__(cls)
        made.__dict__["pool_asked_for"] = pool
        return made

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        """A fresh cache of `num_blocks` physical blocks, ids 0 to num_blocks-1, of `block_size` tokens each."""

    @classmethod
    def capabilities(cls) -> Capabilities:
        """What this cache claims to do."""
        _missing(cls, "capabilities")

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request is known; it holds nothing yet."""
        _missing(type(self), "admit")

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Make room for the next `count` known tokens and then the drafts; the first extend may adopt a prefix. Raises OutOfBlocks."""
        _missing(type(self), "extend")

    def commit(self, seq: int, accepted: int) -> None:
        """The pass is done: the tokens of the last extend and its first `accepted` drafts are computed."""
        _missing(type(self), "commit")

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens become known; none is computed yet."""
        _missing(type(self), "append")

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """`finish`, `cancel`, `error`: the sequence is gone. `preempt`: it holds nothing, but stays known. A second release changes nothing."""
        _missing(type(self), "release")

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """The physical block of each logical block, position order; None is a skipped (null) block. Empty if the sequence holds nothing."""
        _missing(type(self), "block_table")

    def match(self, seq: int) -> Hit:
        """Needs `prefix`. How many leading tokens could be reused now."""
        _missing(type(self), "match")

    def fork(self, parent: int, child: int) -> Grant:
        """Needs `fork`. `child` knows and has computed what `parent` does. Raises OutOfBlocks."""
        _missing(type(self), "fork")

    def truncate(self, seq: int, length: int) -> None:
        """Needs `truncate`. Exactly the first `length` tokens stay known and computed."""
        _missing(type(self), "truncate")

    def begin_step(self) -> int:
        """Needs `steps`. Device work is launched for every uncommitted extend; returns the id of the step."""
        _missing(type(self), "begin_step")

    def end_step(self, step: int) -> None:
        """Needs `steps`. The device work of that step has finished."""
        _missing(type(self), "end_step")

    def evict(self, blocks: Sequence[int]) -> int:
        """Needs `evict`. Make these blocks unmatchable; returns how many were dropped."""
        _missing(type(self), "evict")

    def reset(self) -> bool:
        """Needs `reset`. Make everything unmatchable; returns whether it could. If not, nothing has changed."""
        _missing(type(self), "reset")

    def swap_out(self, seq: int) -> bool:
        """Needs `swap`. Move the sequence to the slower tier; returns whether it could. If not, nothing has changed."""
        _missing(type(self), "swap_out")

    def swap_in(self, seq: int) -> bool:
        """Needs `swap`. Move the sequence back; returns whether it could. If not, nothing has changed."""
        _missing(type(self), "swap_in")

    def snapshot(self) -> Snapshot:
        """Needs `snapshot`. What the cache's own books say now."""
        _missing(type(self), "snapshot")

    def worker_table(self, seq: int, group: int = 0) -> Sequence[int | None]:
        """Needs `mirror`. The block table that the device side holds, where it is fed by deltas."""
        _missing(type(self), "worker_table")

    def take_events(self) -> Sequence[Event]:
        """Needs `events`. What was stored, removed and cleared since the last call, in order."""
        _missing(type(self), "take_events")

    def raised_by_cache(self, error: Exception) -> bool:
        """Whether `error`, which an operation raised, is the cache's own failure, such as an assertion of its own, and not this adapter's.

        No by default: the suite then takes it for the adapter's. An adapter to a cache whose code can be told from its own may know better.
        """
        return False


def _missing(cls: type, method: str) -> NoReturn:
    raise NotImplementedError(f"{cls.__qualname__} does not define {method}()")
