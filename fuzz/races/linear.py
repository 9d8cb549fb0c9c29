"""Is there one order of the calls in which a correct cache could have answered like this?

    verdict = linearise(history, capabilities)
    verdict.good
    verdict.order        # such an order, or the longest beginning of one
    verdict.reasons      # then: why each call that could have come next could not

The spec is the acceptor, as everywhere: it never says which block a cache must pick. While threads run, only answers and the tables of the sequence concerned are
seen, so only the laws that these show are asked; what is seen after the last thread is asked every law. The search is that of Wing and Gong (1993): try each call
that no other unplaced call precedes in time, and step back where the spec refuses.

What cannot be known is not judged. Where another thread released a sequence before the table that it had just been given was read, nobody saw that table. Such a
history is judged by its end alone: once everything is let go of, the whole pool must be there again.

A cache may take blocks one by one and give them back where they do not suffice. So two extends that run at once may both find no room, unless the policy `exact` is claimed: neither sequence
is alone, as the contract has it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import msgspec

from kvproof.fuzz.races.history import Call, History, Look, changed_sequence
from kvproof.models.capabilities import Capabilities
from kvproof.models.layouts import blocks_for
from kvproof.models.observed import Change
from kvproof.models.ops import Admit, BeginStep, Commit, EndStep, Extend, Fork, Op, Release, SwapIn, Truncate
from kvproof.models.outcomes import ContractBroken, Grant, Hit, Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.spec import Spec
from kvproof.models.state import Tables


class Reason(msgspec.Struct, frozen=True):
    """Why `call` could not come next. `law` is empty where the answer alone rules it out."""

    call: Call
    reason: str
    law: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """`order`: the calls of the threads in an order that the spec accepts, or the longest beginning of one; `reasons`: what spoke against going on from there.

    `by_its_end`: tables were never seen, so that only the end was judged.
    """

    good: bool
    order: list[Call]
    reasons: list[Reason] = []
    by_its_end: bool = False


class SetupBroken(Exception):
    """The setup, on which no two threads are at work yet, breaks a law: no matter of threads."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.law or 'the contract'}: {reason.reason}")
        self.reason = reason


def linearise(history: History, capabilities: Capabilities) -> Verdict:
    """Search for an order of all calls that the spec accepts. Raises SetupBroken."""
    start = Position.after_setup(history, capabilities)
    if any(_hidden(call, history) for calls in history.threads for call in calls):
        reason = _wrong_end(history.drain, start.spec)
        return Verdict(reason is None, [], [reason] if reason else [], by_its_end=True)
    search = _Search(history)
    found = search.go_on(start, [0] * len(history.threads), [])
    return Verdict(True, found) if found is not None else Verdict(False, search.longest, search.reasons)


class _Search:
    """Depth first through the orders of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.longest: list[Call] = []
        self.reasons: list[Reason] = []

    def go_on(self, position: Position, placed: list[int], order: list[Call]) -> list[Call] | None:
        """An order that begins with `order`, of which `placed` counts the calls of each thread; None if there is none."""
        candidates = list(self._next(placed))
        if not candidates:
            reason = _look_on(position, self.history.drain)
            if reason is None:
                return order
            self._stuck(order, [reason])
            return None
        refused = []
        for thread, call in candidates:
            branch = position.branch() if len(candidates) > 1 else position
            reason = branch.place(call)
            if reason is not None:
                refused.append(reason)
                continue
            further = [count + (number == thread) for number, count in enumerate(placed)]
            found = self.go_on(branch, further, [*order, call])
            if found is not None:
                return found
        if len(refused) == len(candidates):
            self._stuck(order, refused)
        return None

    def _next(self, placed: list[int]) -> Iterator[tuple[int, Call]]:
        """The calls that can come next: none that is left had ended before they began."""
        heads = [
            (number, calls[at]) for number, (calls, at) in enumerate(zip(self.history.threads, placed, strict=True)) if at < len(calls)
        ]
        for number, call in heads:
            if all(other.ended >= call.began for _, other in heads):
                yield number, call

    def _stuck(self, order: list[Call], reasons: list[Reason]) -> None:
        if not self.reasons or len(order) > len(self.longest):
            self.longest, self.reasons = order, reasons


class Position:
    """The spec after the calls placed so far, and which steps are open."""

    def __init__(self, spec: Spec, open_steps: list[int], crowded: frozenset[int] = frozenset()) -> None:
        self.spec = spec
        self.open = open_steps
        """Their ids, oldest first."""
        self.crowded = crowded
        """Identities of the calls that found no room and need not say why: others were taking blocks at the time."""

    @classmethod
    def after_setup(cls, history: History, capabilities: Capabilities) -> Position:
        """The position in which the threads begin. Raises SetupBroken."""
        scenario = history.scenario
        spec = Spec(capabilities, num_blocks=scenario.num_blocks, block_size=scenario.block_size, concurrent=True)
        position = cls(spec, [], _crowded(history, capabilities))
        for look in history.setup:
            reason = position.look(look)
            if reason is not None:
                raise SetupBroken(reason)
        return position

    def branch(self) -> Position:
        """A copy to go on from."""
        known = {id(self.spec.capabilities): self.spec.capabilities}
        return Position(copy.deepcopy(self.spec, known), list(self.open), self.crowded)

    def place(self, call: Call) -> Reason | None:
        """Take `call` as the next, judged by what its thread saw."""
        op = self._enabled(call)
        if op is None:
            return None if _declined(call.answer) else Reason(call, "there was nothing left that it could have done")
        return self._unanswered(op, call) or self._judge(op, call, Change(tables=self._tables_after(op, call)))

    def look(self, look: Look) -> Reason | None:
        """Take a call of the setup or the drain, judged by everything that the cache showed after it."""
        call = look.call
        op = self._enabled(call)
        if op is None:
            return Reason(call, "its sequence or step is not in the state that it should be in")
        live = set(self.spec.live)
        if isinstance(op, Admit):
            live.add(op.seq)
        elif isinstance(op, Fork) and isinstance(call.answer, Grant):
            live.add(op.child)
        elif isinstance(op, Release) and op.reason != "preempt":
            live.discard(op.seq)
        seen = msgspec.structs.replace(look.seen, tables={seq: tables for seq, tables in look.seen.tables.items() if seq in live})
        return self._unanswered(op, call) or self._judge(op, call, self.spec.seen.difference(seen))

    def moved(self, look: Look) -> Reason | None:
        """Whether a sequence has another table than its own thread last saw, though nothing in this order has changed it."""
        for seq, tables in self.spec.seen.tables.items():
            shown = look.seen.tables.get(seq)
            if shown != tables:
                return Reason(look.call, f"sequence {seq} was left with the tables {_plain(tables)}, and now shows {_plain(shown)}")
        return None

    def _enabled(self, call: Call) -> Op | None:
        """The operation as the spec counts steps, from the oldest that is open; None where its precondition does not hold."""
        op: Op = call.op
        if isinstance(op, EndStep):
            if op.step not in self.open:
                return None
            op = EndStep(self.open.index(op.step))
        return op if self.spec.enabled(op) else None

    def _unanswered(self, op: Op, call: Call) -> Reason | None:
        if isinstance(call.answer, Raised) and not isinstance(op, Release):
            return Reason(call, f"it raised {call.answer.error}, and here it could have been done")
        if isinstance(op, BeginStep) and call.answer in self.open:
            return Reason(call, f"it returned {call.answer}, which is the id of a step that is open")
        return None

    def _judge(self, op: Op, call: Call, change: Change) -> Reason | None:
        answer = RefusedSeen() if id(call) in self.crowded else call.answer
        try:
            violation = self.spec.judge(op, answer, change)
        except ContractBroken as error:
            return Reason(call, str(error))
        if violation is not None:
            return Reason(call, violation.reason, violation.law)
        if isinstance(op, BeginStep) and isinstance(call.answer, int):
            self.open.append(call.answer)
        elif isinstance(op, EndStep):
            del self.open[op.step]
        return None

    def _tables_after(self, op: Op, call: Call) -> dict[int, Tables | None]:
        """What the operation did to the tables of its sequence, as far as it was seen."""
        nothing = self.spec.seen.no_tables
        if isinstance(op, Admit):
            return {op.seq: nothing}
        if isinstance(op, Release):
            live = op.seq in self.spec.live
            return ({op.seq: None} if op.reason != "preempt" else {op.seq: nothing}) if live else {}
        seq = changed_sequence(op)
        if seq is None or isinstance(call.answer, OutOfBlocksSeen | RefusedSeen) or call.answer is False:
            return {}
        if call.tables is not None and (any(call.tables) or not isinstance(op, Commit | Truncate)):
            return {seq: call.tables}
        # Released before it was looked at: a commit changes nothing that must change, a truncation cuts.
        if isinstance(op, Truncate):
            tables = self.spec.tables(self.spec.live[seq])
            return {seq: tuple([table[: blocks_for(op.length, size)] for table, size in zip(tables, self.spec.block_sizes, strict=True)])}
        return {}


def _look_on(position: Position, drain: list[Look]) -> Reason | None:
    """Judge what the cache showed after the last thread."""
    reason = position.moved(drain[0])
    for look in drain:
        if reason is not None:
            return reason
        if isinstance(look.call.op, Release) and look.call.op.seq not in position.spec.numbers:
            return Reason(look.call, "its sequence was forked, and in this order it could not be")
        reason = position.look(look)
    return reason


def _crowded(history: History, capabilities: Capabilities) -> frozenset[int]:
    """Calls that found no room while another thread was taking blocks, of which it may have had more for a moment than it kept."""
    if "exact" in capabilities.policy:
        return frozenset()
    calls = [call for calls in history.threads for call in calls]
    takers = [call for call in calls if isinstance(call.op, Extend | Fork | SwapIn)]
    return frozenset(
        id(call)
        for call in calls
        if isinstance(call.answer, OutOfBlocksSeen)
        and any(taker.thread != call.thread and taker.began <= call.ended and call.began <= taker.ended for taker in takers)
    )


def _hidden(call: Call, history: History) -> bool:
    """Whether `call` gave its sequence a table that nobody saw, because another thread released the sequence first."""
    if not isinstance(call.op, Extend | Fork | SwapIn) or not (isinstance(call.answer, Grant) or call.answer is True):
        return False
    seq = changed_sequence(call.op)
    others = (other for calls in history.threads for other in calls if other.thread != call.thread)
    released = any(isinstance(other.op, Release) and other.op.seq == seq for other in others)
    return released and not any(call.tables or ())


def _wrong_end(drain: list[Look], spec: Spec) -> Reason | None:
    """What is wrong with a cache that everybody has let go of."""
    for look in drain:
        if isinstance(look.call.answer, Raised):
            return Reason(look.call, f"it raised {look.call.answer.error}", "release-once" if isinstance(look.call.op, Release) else "")
    last = drain[-1]
    if isinstance(last.call.answer, OutOfBlocksSeen):
        return Reason(
            last.call, "every sequence is released and device work has drained, and the pool cannot be allocated again", "no-leak"
        )
    given = [block for table in last.call.tables or () for block in table]
    if len(set(given)) < len(given):
        return Reason(last.call, f"it was given a block twice: {_plain(last.call.tables)}", "no-aliasing")
    if not spec.universe.issuperset(given):
        return Reason(last.call, f"it was given blocks that there are not: {_plain(last.call.tables)}", "no-aliasing")
    return None


def _declined(answer: Outcome) -> bool:
    """Whether a call that came too late did nothing, as far as its answer goes."""
    return answer is None or answer is False or answer == Hit(0) or isinstance(answer, Raised | RefusedSeen | OutOfBlocksSeen)


def _plain(tables: Tables | None) -> str:
    if tables is None:
        return "none"
    return " and ".join("[" + ", ".join("-" if block is None else str(block) for block in table) + "]" for table in tables)
