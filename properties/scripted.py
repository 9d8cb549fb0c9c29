"""A cache that answers from a script, so that one history after the other can be put before the spec.

    found = judge(
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 2), tables={0: [3]}, counts={3: 2}),
        ],
        snapshot=True,
    )
    assert found.law == "refcount-equals-holders"

Each step says what the cache answers and what its tables, books and device show from then on. What a step does not mention stays as it was, and
an answer that it does not give is the plainest one: no hit, a grant without copies, yes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from kvproof.impl.adapter import CacheAdapter
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Namespace,
    Op,
    ReleaseReason,
    Reset,
    SwapIn,
    SwapOut,
)
from kvproof.models.outcomes import Event, Grant, Hit, Snapshot
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import LawBroken, Lockstep

Rows: TypeAlias = "Sequence[int | None] | tuple[Sequence[int | None], ...]"
"""The block table of a sequence: a list, or a tuple of lists where the cache has several groups."""

_PLAINEST: Final[dict[type[Op], object]] = {
    Match: Hit(),
    Extend: Grant(),
    Fork: Grant(),
    Evict: 0,
    Reset: True,
    SwapOut: True,
    SwapIn: True,
}


class Do(msgspec.Struct, frozen=True):
    """One operation, what the cache answers (an exception is raised), and what it shows afterwards."""

    op: Op
    answer: Any = ...
    tables: Mapping[int, Rows] = {}
    counts: Mapping[int, int] | None = None
    free: Sequence[int] | None = None
    cached: Collection[int] | None = None
    retiring: Collection[int] | None = None
    free_count: int | None = None
    device: Mapping[int, Rows] = {}
    events: Sequence[Event] = ()


class Script(CacheAdapter):
    """Says and shows what the current step tells it to."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:  # noqa: ARG002 -- the contract's signature
        self.step: Do | None = None
        self.rows: dict[int, Rows] = {}
        self.device: dict[int, Rows] = {}
        self.books: dict[str, Any] = {}
        self.pending: list[Event] = []
        self.ended: list[int] = []
        self.begun = 0

    def turn(self, step: Do) -> None:
        """From now on, answer as `step` says."""
        self.step = step
        self.rows.update(step.tables)
        self.device.update(step.device)
        shown = {
            "refcounts": step.counts,
            "free": step.free,
            "cached": step.cached,
            "retiring": step.retiring,
            "free_count": step.free_count,
        }
        self.books.update({name: value for name, value in shown.items() if value is not None})
        self.pending += step.events

    def _answer(self) -> Any:  # noqa: ANN401 -- a script may answer anything
        assert self.step is not None
        answer = self.step.answer
        if answer is ...:
            return _PLAINEST.get(type(self.step.op))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:  # noqa: D102, ARG002
        return self._answer()

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:  # noqa: D102, ARG002
        return self._answer()

    def commit(self, seq: int, accepted: int) -> None:  # noqa: D102, ARG002
        return self._answer()

    def append(self, seq: int, tokens: Sequence[int]) -> None:  # noqa: D102, ARG002
        return self._answer()

    def release(self, seq: int, reason: ReleaseReason) -> None:  # noqa: D102, ARG002
        return self._answer()

    def match(self, seq: int) -> Hit:  # noqa: D102, ARG002
        return self._answer()

    def fork(self, parent: int, child: int) -> Grant:  # noqa: D102, ARG002
        return self._answer()

    def truncate(self, seq: int, length: int) -> None:  # noqa: D102, ARG002
        return self._answer()

    def begin_step(self) -> int:  # noqa: D102
        answer = self._answer()
        if answer is None:
            self.begun += 1
            return self.begun - 1
        return answer

    def end_step(self, step: int) -> None:  # noqa: D102
        self.ended.append(step)
        return self._answer()

    def evict(self, blocks: Sequence[int]) -> int:  # noqa: D102, ARG002
        return self._answer()

    def reset(self) -> bool:  # noqa: D102
        return self._answer()

    def swap_out(self, seq: int) -> bool:  # noqa: D102, ARG002
        return self._answer()

    def swap_in(self, seq: int) -> bool:  # noqa: D102, ARG002
        return self._answer()

    def block_table(self, seq: int, group: int = 0) -> Sequence[int | None]:  # noqa: D102
        return _row(self.rows.get(seq, ()), group)

    def worker_table(self, seq: int, group: int = 0) -> Sequence[int | None]:  # noqa: D102
        return _row(self.device.get(seq, ()), group)

    def snapshot(self) -> Snapshot:  # noqa: D102
        return Snapshot(**self.books)

    def take_events(self) -> Sequence[Event]:  # noqa: D102
        taken, self.pending = self.pending, []
        return taken


def _row(rows: Rows, group: int) -> Sequence[int | None]:
    return rows[group] if isinstance(rows, tuple) and rows else rows  # type: ignore[return-value]


def play(script: Sequence[Do], *, num_blocks: int = 4, block_size: int = 2, skip: bool = False, **claims: Any) -> Lockstep:  # noqa: ANN401
    """Run the script beside the spec, with `claims` as capabilities. Raises LawBroken and AdapterFault as the lockstep does.

    An operation that is not enabled is a slip of the script and raises AssertionError, unless `skip`.
    """
    lockstep = Lockstep(Script, num_blocks=num_blocks, block_size=block_size, capabilities=Capabilities(**claims))
    cache = lockstep.cache.adapter
    assert isinstance(cache, Script)
    for step in script:
        if not lockstep.spec.enabled(step.op):
            assert skip, f"{step.op} is not enabled here; the script must make it so"
            continue
        cache.turn(step)
        lockstep.do(step.op)
    return lockstep


def judge(script: Sequence[Do], **how: Any) -> Violation | None:  # noqa: ANN401 -- see `play`
    """The violation that the script shows, or None if a correct cache could have answered so."""
    try:
        play(script, **how)
    except LawBroken as broken:
        return broken.violation
    return None


def law(script: Sequence[Do], **how: Any) -> str | None:  # noqa: ANN401 -- see `play`
    """The law that the script breaks, or None."""
    found = judge(script, **how)
    return found.law if found else None


STEP: Final = (Do(BeginStep()), Do(EndStep()))
"""What is launched by now runs, and has finished."""


def out(seq: int, tokens: Sequence[int], table: Rows, namespace: Namespace | None = None, **shown: Any) -> list[Do]:  # noqa: ANN401 -- see `Do`
    """Two steps: admit a prompt and extend over all of it. Without steps, its pass has run."""
    return [Do(Admit(seq, tuple(tokens), namespace or Namespace())), Do(Extend(seq, len(tokens)), tables={seq: table}, **shown)]


def computed(seq: int, tokens: Sequence[int], table: Rows, namespace: Namespace | None = None, **shown: Any) -> list[Do]:  # noqa: ANN401
    """The same and the commit."""
    return [*out(seq, tokens, table, namespace), Do(Commit(seq), **shown)]
