"""An adapter, built, driven by operations and observed in tuples: whatever is asked of a built adapter is asked here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from kvproof.impl.checker import answers
from kvproof.impl.checker.blocks import BlockIds, as_integer
from kvproof.impl.checker.faults import AdapterFault, Raises, call_of, described, told
from kvproof.impl.checker.misuse import unfit, unfit_class
from kvproof.impl.checker.snapshots import NO_BOOKS, read_books
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    Admit,
    Append,
    BeginStep,
    Commit,
    EndStep,
    Evict,
    Extend,
    Fork,
    Match,
    Op,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Died, Differs, Event, Grant, Hit, Outcome, OutOfBlocks, OutOfBlocksSeen, Raised, Refused, RefusedSeen
from kvproof.models.state import Books, Table, Tables

_MISTAKES: Final = (AttributeError, NameError, NotImplementedError, TypeError)
"""What a full pool never raises: the code is wrong, not the room short."""


class Checked:
    """One fresh cache behind its adapter, driven by operations, observed in tuples."""

    def __init__(self, target: type, capabilities: Capabilities, *, num_blocks: int, block_size: int) -> None:
        self.target = target
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.groups = len(capabilities.groups)
        self._ids = BlockIds(num_blocks, capabilities.null_blocks)
        self._open_steps: list[int] = []
        self._asked_for_one = False
        self._check_capacity()
        try:
            self.adapter = target(num_blocks=num_blocks, block_size=block_size)
        except Exception as error:
            unfitting = unfit_class(error, target, num_blocks=num_blocks, block_size=block_size)
            if unfitting:
                raise AdapterFault(unfitting) from error
            raise AdapterFault(
                f"{target.__qualname__}(num_blocks={num_blocks}, block_size={block_size}) raised {told(error)}; "
                f"the suite builds caches with these two keyword arguments, within capabilities().block_sizes and max_blocks."
            ) from error

    def _check_capacity(self) -> None:
        """A capacity that is a function must give the usable blocks of a pool of this size."""
        capacity = self.capabilities.capacity
        if not callable(capacity):
            return
        call = f"{self.target.__qualname__}.capabilities(): capacity({self.num_blocks})"
        usable = self._asked(call, capacity, self.num_blocks)
        if as_integer(usable) is None or usable < 0:
            raise AdapterFault(f"{call} gave {described(usable)}; it must give the number of usable blocks.")

    # -- operations -----------------------------------------------------------------------------------------------------------------------------

    def do(self, op: Op) -> Outcome:
        """Run one operation. Raises AdapterFault for anything but an answer, OutOfBlocks or Refused, and Differs where that is claimed."""
        try:
            return _DO[type(op)](self, op)
        except AdapterFault:
            raise
        except Differs:
            if self.capabilities.tensors:
                raise
            raise AdapterFault(f"{call_of(op)} raised Differs; claim the capability tensors, or do not raise it.") from None
        except OutOfBlocks:
            if isinstance(op, Extend | Fork):
                return OutOfBlocksSeen()
            raise AdapterFault(f"{call_of(op)} raised OutOfBlocks; only extend and fork may.") from None
        except Refused as refused:
            return RefusedSeen(str(refused))
        except (Exception, SystemExit) as error:
            call = call_of(op)
            unfitting = unfit(error, call, getattr(self.adapter, call.partition("(")[0]))
            if unfitting:
                raise AdapterFault(unfitting) from error
            by_cache = self._by_cache(error)
            if isinstance(op, Release):
                return Died(told(error)) if by_cache else Raised(told(error))
            no_room = isinstance(op, Extend | Fork) and not by_cache and not isinstance(error, _MISTAKES)
            mend = "; a cache that has no room raises kvproof.OutOfBlocks" if no_room else ""
            raise Raises(f"{call} raised {told(error)}{mend}.", told(error), by_cache=by_cache) from error

    def _by_cache(self, error: BaseException) -> bool:
        """Whether the adapter says that the cache itself failed. Adapters need not derive from CacheAdapter."""
        asked = getattr(self.adapter, "raised_by_cache", None)
        return asked is not None and isinstance(error, Exception) and bool(asked(error))

    def _admit(self, op: Admit) -> None:
        answers.nothing(op, self.adapter.admit(op.seq, op.prompt, op.namespace))

    def _match(self, op: Match) -> Hit:
        return answers.hit(op, self.adapter.match(op.seq))

    def _extend(self, op: Extend) -> Grant:
        return answers.grant(op, self.adapter.extend(op.seq, op.count, op.drafts), self._ids, self.groups)

    def _commit(self, op: Commit) -> None:
        answers.nothing(op, self.adapter.commit(op.seq, op.accepted))

    def _append(self, op: Append) -> None:
        answers.nothing(op, self.adapter.append(op.seq, op.tokens))

    def _truncate(self, op: Truncate) -> None:
        answers.nothing(op, self.adapter.truncate(op.seq, op.length))

    def _fork(self, op: Fork) -> Grant:
        return answers.grant(op, self.adapter.fork(op.parent, op.child), self._ids, self.groups)

    def _release(self, op: Release) -> None:
        answers.nothing(op, self.adapter.release(op.seq, op.reason))

    def _begin_step(self, op: BeginStep) -> int:
        step = answers.integer(op, "the step id", self.adapter.begin_step())
        if step in self._open_steps:
            raise AdapterFault(f"{call_of(op)} returned {step}, the id of a step that is still open.")
        self._open_steps.append(step)
        return step

    def _end_step(self, op: EndStep) -> None:
        answers.nothing(op, self.adapter.end_step(self._open_steps[op.step]))
        del self._open_steps[op.step]

    def _evict(self, op: Evict) -> int:
        blocks = tuple(b for b in op.blocks if 0 <= b < self.num_blocks and b not in self._ids.nulls)
        return answers.count(op, "the number of dropped blocks", self.adapter.evict(blocks))

    def _reset(self, op: Reset) -> bool:
        return answers.yes_or_no(op, self.adapter.reset())

    def _swap_out(self, op: SwapOut) -> bool:
        return answers.yes_or_no(op, self.adapter.swap_out(op.seq))

    def _swap_in(self, op: SwapIn) -> bool:
        return answers.yes_or_no(op, self.adapter.swap_in(op.seq))

    # -- observations ---------------------------------------------------------------------------------------------------------------------------

    def tables(self, seq: int) -> Tables:
        """The block table of `seq` in every group."""
        return tuple([self._table("block_table", seq, group) for group in range(self.groups)])

    def all_tables(self, seqs: Collection[int], before: Mapping[int, Tables]) -> Mapping[int, Tables]:
        """Those of all `seqs`. Where any, or all, are what they were `before`, that comes back: it was checked then."""
        try:
            now = self._unchecked_tables(seqs)
            if now == before:
                return before
        except (Exception, SystemExit) as error:
            for seq in seqs:  # to ask for one table after the other tells what it is
                self.tables(seq)
            raise AdapterFault(
                f"block_table raised {told(error)}, and no more when it was asked again; it must be a plain look."
            ) from error
        return {seq: before[seq] if before.get(seq) == tables else self._read_all(seq, tables) for seq, tables in now.items()}

    def _unchecked_tables(self, seqs: Collection[int]) -> dict[int, Tables]:
        block_table = self.adapter.block_table
        if self.groups == 1:  # this is asked of every live sequence after every operation
            return {seq: (tuple(block_table(seq, 0)),) for seq in seqs}
        groups = range(self.groups)
        return {seq: tuple([tuple(block_table(seq, group)) for group in groups]) for seq in seqs}

    def worker_tables(self, seq: int) -> Tables:
        """The device's block table of `seq` in every group."""
        return tuple([self._table("worker_table", seq, group) for group in range(self.groups)])

    def books(self, before: Books | None = None) -> Books:
        """The cache's own books; empty where it claims none. Where they are what they were `before`, that comes back: it was checked then."""
        if not self.capabilities.snapshot:
            return NO_BOOKS
        return read_books(self._asked("snapshot()", self.adapter.snapshot), before, self._ids)

    def events(self) -> list[Event]:
        """The events since the last call."""
        return answers.events(self._asked("take_events()", self.adapter.take_events), self._ids)

    def _asked(self, call: str, method: Callable[..., Any], *arguments: int) -> Any:  # noqa: ANN401 -- an adapter may return anything
        """What `method` answers where the contract has it raise nothing."""
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:
            raise AdapterFault(unfit(error, call, method) or f"{call} raised {told(error)}.") from error

    def _table(self, method: str, seq: int, group: int) -> Table:
        call = f"{method}({seq}, {group})"
        return self._ids.table(call, self._asked(call, getattr(self.adapter, method), seq, group))

    def _read_all(self, seq: int, raw: Tables) -> Tables:
        """The block tables of all groups, checked."""
        if not self._asked_for_one and any(raw):
            self._asked_for_one = True
            self.tables(seq)  # what was read is a tuple already: only here it shows whether that had an order
        return tuple([self._ids.table(f"block_table({seq}, {group})", table) for group, table in enumerate(raw)])


_DO: Final[dict[type[Op], Callable[..., Outcome]]] = {
    Admit: Checked._admit,
    Match: Checked._match,
    Extend: Checked._extend,
    Commit: Checked._commit,
    Append: Checked._append,
    Truncate: Checked._truncate,
    Fork: Checked._fork,
    Release: Checked._release,
    BeginStep: Checked._begin_step,
    EndStep: Checked._end_step,
    Evict: Checked._evict,
    Reset: Checked._reset,
    SwapOut: Checked._swap_out,
    SwapIn: Checked._swap_in,
}
