"""The acceptor: says whether any correct cache could have answered as this one did.

It never predicts which physical block a cache picks. It takes an operation, what the cache answered, and what its block tables and books show afterwards; it
updates the ghosts and then asks every law that the operation concerns. The laws are in `checks`; here is what each operation means.

Usage:

    spec = Spec(capabilities, num_blocks=8, block_size=2)
    if spec.enabled(op):
        violation = spec.apply(op, outcome, seen)   # None: some correct cache could have done that

Every law is asked only of what an operation changed, so an operation on a large pool costs what it moves, and memory is bounded by what is live.
`Spec(..., thorough=True)` asks every law of everything after every operation; a test holds the two against each other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from typing import Final

import msgspec

from kvproof.models import checks
from kvproof.models.agenda import Agenda
from kvproof.models.aside import Aside
from kvproof.models.capabilities import Capabilities
from kvproof.models.checks import Broken
from kvproof.models.deferrals import Deferrals
from kvproof.models.evidence import NO_EVIDENCE, Evidence
from kvproof.models.layouts import blocks_for, pool_shares, window_low
from kvproof.models.memory import GhostMemory, Work
from kvproof.models.numbers import Numbers
from kvproof.models.observed import Change, Entry, Observed
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
from kvproof.models.outcomes import ContractBroken, Died, Grant, Hit, Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.prefixes import PrefixTree
from kvproof.models.recency import Recency
from kvproof.models.state import Evicted, Pass, Seen, Sequence, Table, Tables

MAX_OPEN_STEPS: Final = 3
"""Engines keep at most two or three steps in flight; more finds nothing new and makes programs long."""


TREE_SLACK: Final = 20_000
"""How many interned prefixes may be kept beyond one and a half times those that were needed at the last clearing: clearing walks the whole tree."""

LOOKS_AT_TREE: Final = 16
"""How many operations pass between two looks at how many prefixes there are."""

MOST_ASKED: Final = 64
"""How often a check is made again after one operation: one that is broken in more places has its rest judged with the next operation."""

MOST_GONE: Final = 4096
"""How many sequences that are gone are remembered with their tokens, to say what became of them."""

MOST_GONE_TOKENS: Final = 65_536
"""How many tokens those may have together, if the pool has not more slots than that."""


NO_BLOCKS: Final[frozenset[int]] = frozenset()


class FastCounter(Counter[str]):
    """A counter that is counted up as fast as a dict: a Counter pays for a `del` of its own at every `+=`."""

    __setitem__ = dict.__setitem__
    __delitem__ = dict.__delitem__  # type: ignore[assignment]


class Violation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broken law: which one, at which step of the program (0-based), why in prose, and what is accused in numbers."""

    law: str
    step: int
    reason: str
    evidence: Evidence = NO_EVIDENCE


class Spec:
    """The state that a correct cache must be in, up to its free choices, and the laws that judge each step."""

    def __init__(
        self, capabilities: Capabilities, *, num_blocks: int, block_size: int, thorough: bool = False, concurrent: bool = False
    ) -> None:
        """`concurrent`: several threads drive the cache, so completions may come in any order and any number of steps may be open."""
        self.thorough = thorough
        self.concurrent = concurrent
        self.capabilities = capabilities
        self.num_blocks = num_blocks
        self.block_sizes = tuple(group.block_size or block_size for group in capabilities.groups)
        self.windows = tuple(group.window if group.kind == "sliding_window" else None for group in capabilities.groups)
        self.groups = tuple(zip(range(len(self.windows)), self.block_sizes, self.windows, strict=True))
        """(number, tokens of a block, window) of each group."""
        self.lru = "lru" in capabilities.policy
        self.tight = "tight" in capabilities.policy
        self.exact = "exact" in capabilities.policy
        self.rewrites = "rewrites" in capabilities.policy
        self.null_blocks = frozenset(capabilities.null_blocks)
        self.universe = frozenset(range(num_blocks)) - self.null_blocks
        self.judged = self.universe
        """The blocks that laws are asked of: all, until some are set aside."""
        self.partial = False
        """Whether anything was set aside."""
        self.aside: Aside | None = None
        """Where the spec goes on after broken laws: what they accuse."""
        self.usable = _usable(capabilities, num_blocks, len(self.universe))
        self.shares: list[frozenset[int]] = []
        """The blocks of each group, where the groups do not share the pool."""
        if capabilities.split_pool:
            self.shares = [self.universe.intersection(share) for share in pool_shares(num_blocks, len(self.groups))]
        self.tree = PrefixTree()
        self.memory = GhostMemory(num_blocks, max(self.block_sizes))
        self.sequences: dict[int, Sequence] = {}
        """Every sequence, those that are gone included as long as they are remembered."""
        self.live: dict[int, Sequence] = {}
        self.born = 0
        self.numbers = Numbers()
        """Every number that a sequence ever had."""
        self.gone: deque[Sequence] = deque()
        self.gone_tokens = 0
        self.passes: list[Pass] = []
        """Passes that were extended and are neither committed, abandoned nor (if released in flight) finished."""
        self.steps: list[list[Pass]] = []
        """The passes of each open step, oldest step first."""
        self.deferrals = Deferrals()
        """Drops of blocks while work was out or a step was open: a cache may go on counting them, or keep the blocks back, for a while."""
        self.awaited: set[int] = set()
        """Those of them that launched work still touches, so that they must be kept back."""
        self.unowned = 0
        """How many launched passes belong to a sequence that let go of them."""
        self.recency = Recency()
        self.hits: dict[int, int] = {}
        """What match said of a prompt (its last interned prefix), since anything last changed."""
        self.idle_release = False
        """Whether this operation is a release of what was released before."""
        self.evicted: list[Evicted] = []
        """Matchable blocks that this operation handed out."""
        self.past_evictions: deque[Evicted] = deque(maxlen=16)
        """The last such blocks of earlier operations."""
        self.any_drop = False
        """Whether any holder has let go of any block so far."""
        self.seen = Observed(len(self.block_sizes))
        self.owners: dict[int, dict[Entry, None]] = self.seen.owners
        """Block -> (sequence, group, index) of every table entry that lists it."""
        self.agenda = Agenda(self.universe, books=capabilities.snapshot)
        self.step = 0
        self.exercised: Counter[str] = FastCounter()
        self._most_nodes = TREE_SLACK

    # -- what a program may do ----------------------------------------------------------------------------------------------------------------

    def enabled(self, op: Op) -> bool:
        """Whether the precondition of `op` holds now. Operations that are not enabled are skipped."""
        return _ENABLED[type(op)](self, op)

    # -- what the cache did -------------------------------------------------------------------------------------------------------------------

    def apply(self, op: Op, outcome: Outcome, seen: Seen) -> Violation | None:
        """Judge one enabled operation by a full observation. After a violation the spec must not be used again, unless it goes on."""
        return self.judge(op, outcome, self.seen.difference(seen))

    def judge(self, op: Op, outcome: Outcome, change: Change) -> Violation | None:
        """Judge one enabled operation by what was seen to change. After a violation the spec must not be used again, unless it goes on."""
        memory, seen, kind = self.memory, self.seen, type(op)
        memory.step = self.step
        memory.touched.clear()
        if self.evicted:
            self.past_evictions.extend(self.evicted)
            self.evicted.clear()
        self.idle_release = False
        if self.aside is not None:
            self.aside.begin()
        seen.take(change)
        self.agenda.begin(seen)
        try:
            if outcome is not None and _failed(op, outcome):
                self.ask(checks.failure_changes_nothing, op)
                if isinstance(op, Extend) and isinstance(outcome, OutOfBlocksSeen | Died) and not memory.blurred:
                    raised = "OutOfBlocks" if isinstance(outcome, OutOfBlocksSeen) else outcome.error
                    self.ask(checks.no_spurious_exhaustion, op, raised)
                if isinstance(outcome, Died):
                    self.ask(checks.dead, op)
            else:
                _APPLY[kind](self, op, outcome)
                if self.hits and kind is not Match and kind is not Admit and not self.idle_release:
                    self.hits.clear()
            if seen.unlisted:
                self._note_drops(op)
            if self.awaited:
                self._note_returns(change)
            checks.everything(self, op)
        except Broken as broken:
            return self._violation(broken)
        first = self.aside.found[0] if self.aside is not None and self.aside.found else None
        violation = None if first is None else self._violation(first)
        self.step += 1
        if self.step % LOOKS_AT_TREE == 0 and len(self.tree) > self._most_nodes:
            self._forget_prefixes()
        return violation

    def _violation(self, broken: Broken) -> Violation:
        return Violation(broken.law, self.step, broken.reason, broken.evidence)

    def go_on(self) -> None:
        """Do not end at a broken law: set aside what it accuses, and judge the rest. Must be said before the first operation."""
        self.aside = Aside(self)

    def ask(self, check: Callable[..., None], *what: object) -> None:
        """Put the operation to the check of a law. A spec that goes on asks again, of what is left when the accused are set aside."""
        if self.aside is None:
            check(self, *what)
            return
        for _ in range(MOST_ASKED):
            try:
                check(self, *what)
            except Broken as broken:
                if self.aside.take(broken):
                    continue
            return

    def left_out(self, seq: int) -> bool:
        """Whether this sequence was set aside, so that no law is asked of it."""
        return self.aside is not None and seq in self.aside.sequences

    def stop_judging(self, blocks: set[int]) -> None:
        """Ask no law of these blocks any more."""
        self.partial = True
        self.judged = self.judged - blocks
        self.usable -= len(blocks)
        self.agenda.leave_out(blocks)

    # -- queries that checks and generators share -----------------------------------------------------------------------------------------------

    def content(self, sequence: Sequence, group: int, position: int) -> int:
        """The ghost that `position` of `sequence` must show in `group`."""
        return sequence.path[position] * len(self.block_sizes) + group

    def slot(self, group: int, table: Table, position: int) -> int | None:
        """The slot in ghost memory of `position`, or None where the table has no block for it."""
        index, offset = divmod(position, self.block_sizes[group])
        block = table[index] if index < len(table) else None
        return None if block is None else block * self.memory.stride + offset

    def readable(self, sequence: Sequence, group: int) -> range:
        """The positions that the next token of `sequence` reads in `group`."""
        return range(window_low(sequence.computed, self.windows[group]), sequence.computed)

    def tables(self, sequence: Sequence) -> Tables:
        """The block tables last seen of `sequence`."""
        return self.seen.tables.get(sequence.seq) or self.seen.no_tables

    def pins(self, block: int) -> int:
        """How many holders of `block` besides tables a cache may count: passes out, their copies, and drops deferred until they finish."""
        pins = self.deferrals.count(block)
        for out in self.passes:
            pins += (block in out.listed) + (block in out.copied)
        return pins

    def pinned(self) -> set[int]:
        """All blocks that have pins."""
        return set(self.deferrals).union(*(out.listed for out in self.passes))

    def fenced(self) -> dict[int, Pass]:
        """The blocks that launched device work may still read or write."""
        if not self.steps:
            return {}
        return {block: out for step in self.steps for out in step for block in out.blocks}

    def fence(self, block: int) -> Pass | None:
        """The launched device work that may still read or write `block`."""
        return next((out for step in self.steps for out in step if block in out.blocks), None)

    def exhausted(self, op: Op) -> bool:
        """Whether the pool has no room for `op`, an extend or fork, even if everything evictable is taken and the tail need not be copied."""
        taken = set(self.owners) | self.fenced().keys()
        if isinstance(op, Fork):
            return not self.room_for([1] * max(1, len(self.shares)), taken)
        if not isinstance(op, Extend):
            return False
        sequence = self.live[op.seq]
        end = min(sequence.computed + op.count, len(sequence.known)) + len(op.drafts)
        need = [blocks_for(end, size) - len(table) for size, table in zip(self.block_sizes, self.tables(sequence), strict=True)]
        return not self.room_for(need, taken)

    def room_for(self, need: Iterable[int], taken: Set[int]) -> bool:
        """Whether so many blocks of each group fit beside the blocks that are `taken`."""
        if not self.shares:
            return sum(need) <= self.usable - len(taken)
        spare = len(self.judged) - self.usable
        return all(blocks <= len((share & self.judged) - taken) - spare for blocks, share in zip(need, self.shares, strict=True))

    # -- preconditions --------------------------------------------------------------------------------------------------------------------------

    def _idle(self, seq: int) -> Sequence | None:
        """The sequence, if it is live, on the device, and has no pass out."""
        sequence = self.live.get(seq)
        return sequence if sequence and sequence.out is None and not sequence.swapped else None

    def _can_admit(self, op: Admit) -> bool:
        return op.seq not in self.numbers and len(op.prompt) > 0

    def _can_match(self, op: Match) -> bool:
        sequence = self._idle(op.seq)
        return self.capabilities.prefix and sequence is not None and sequence.computed == 0 and len(sequence.known) > 0

    def _can_extend(self, op: Extend) -> bool:
        sequence = self._idle(op.seq)
        if sequence is None or op.count < 1 or sequence.computed >= len(sequence.known):
            return False
        if not op.drafts:
            return True
        return self.capabilities.drafts and sequence.computed > 0 and sequence.computed + op.count >= len(sequence.known)

    def _can_commit(self, op: Commit) -> bool:
        sequence = self.live.get(op.seq)
        return sequence is not None and sequence.out is not None and sequence.out.finished and 0 <= op.accepted <= len(sequence.out.drafts)

    def _can_append(self, op: Append) -> bool:
        return self._idle(op.seq) is not None and len(op.tokens) > 0

    def _can_truncate(self, op: Truncate) -> bool:
        sequence = self._idle(op.seq)
        return self.capabilities.truncate and sequence is not None and 1 <= op.length <= sequence.computed

    def _can_fork(self, op: Fork) -> bool:
        return self.capabilities.fork and self._idle(op.parent) is not None and op.child not in self.numbers

    def _can_release(self, op: Release) -> bool:
        return op.seq in self.numbers

    def _can_begin(self, op: BeginStep) -> bool:
        return self.capabilities.steps and (self.concurrent or len(self.steps) < MAX_OPEN_STEPS)

    def _can_end(self, op: EndStep) -> bool:
        return self.capabilities.steps and 0 <= op.step < (len(self.steps) if self.concurrent else min(1, len(self.steps)))

    def _can_evict(self, op: Evict) -> bool:
        return self.capabilities.evict and any(block in self.universe for block in op.blocks)

    def _can_reset(self, op: Reset) -> bool:
        return self.capabilities.reset

    def _can_swap_out(self, op: SwapOut) -> bool:
        sequence = self._idle(op.seq)
        return self.capabilities.swap and sequence is not None and sequence.computed > 0

    def _can_swap_in(self, op: SwapIn) -> bool:
        sequence = self.live.get(op.seq)
        return self.capabilities.swap and sequence is not None and sequence.swapped

    # -- meanings -------------------------------------------------------------------------------------------------------------------------------

    def _admit(self, op: Admit, outcome: Outcome) -> None:
        path = self.tree.path(self.tree.root(op.namespace), op.prompt)
        self._know(Sequence(op.seq, op.namespace, list(op.prompt), path))

    def _match(self, op: Match, outcome: Outcome) -> None:
        if not isinstance(outcome, Hit):
            raise ContractBroken("match must return a Hit")
        sequence = self.live[op.seq]
        self.ask(checks.hit, sequence, outcome.tokens)
        self.ask(checks.steady_hit, op, outcome.tokens)
        if self.lru:
            self._seen_content(sequence, min(outcome.tokens, len(sequence.path)))

    def _extend(self, op: Extend, outcome: Outcome) -> None:
        grant = self._grant(outcome)
        sequence = self.live[op.seq]
        if grant.adopted and sequence.computed:
            raise ContractBroken(
                f"extend reported adopted={grant.adopted} for a sequence that has already computed {sequence.computed} tokens"
            )
        if grant.adopted and not self.capabilities.prefix:
            raise ContractBroken(f"extend reported adopted={grant.adopted}, but the capability prefix is not claimed")
        if not sequence.computed:
            self.ask(checks.adoption, sequence, grant)
            sequence.computed = min(grant.adopted, len(sequence.known) - 1)
            self.agenda.grown(self, sequence, 0)
        out = self._new_pass(sequence, op, grant)
        targets = self._targets(op, grant)
        self._take_blocks(sequence, out.start, targets, self._rewritten(sequence, out) if self.rewrites else NO_BLOCKS)
        self.ask(checks.room, sequence, out)
        self.ask(checks.exclusive_write, sequence, out, targets)
        checks.whole_pool_again(self, sequence)
        out.work = self._work(sequence, out, grant)
        self.memory.run(out.work, launched=out.launched)
        if out.drafts:
            self._mark_drafts(out)
        sequence.out = out
        sequence.asked = max(sequence.asked, out.end)
        self.passes.append(out)
        self.agenda.places |= out.copied
        out.finished = out.launched
        if out.launched:
            self.ask(checks.mirror, [out])
        self._use(sequence)

    def _commit(self, op: Commit, outcome: Outcome) -> None:
        sequence = self.live[op.seq]
        out = sequence.out
        assert out is not None
        rejected = len(out.drafts) - op.accepted
        self._reject_drafts(out, op.accepted)
        sequence.known.extend(out.drafts[: op.accepted])
        sequence.path.extend(out.path[: op.accepted])
        before, sequence.computed = sequence.computed, out.known_end + op.accepted
        sequence.asked = sequence.computed
        self.agenda.grown(self, sequence, before)
        sequence.out = None
        self._finish(out)
        self._take_blocks(sequence, sequence.computed, NO_BLOCKS)
        self._use(sequence, certainly=True)
        if rejected:
            self.exercised["rejection-forgets"] += 1

    def _append(self, op: Append, outcome: Outcome) -> None:
        sequence = self.live[op.seq]
        start = sequence.path[-1] if sequence.path else self.tree.root(sequence.namespace)
        sequence.known.extend(op.tokens)
        sequence.path.extend(self.tree.path(start, op.tokens))

    def _truncate(self, op: Truncate, outcome: Outcome) -> None:
        sequence = self.live[op.seq]
        del sequence.known[op.length :]
        del sequence.path[op.length :]
        sequence.computed = sequence.asked = op.length
        if any(self.windows):
            self.agenda.grown(self, sequence, 0)  # what had left a window may be readable again
        self._take_blocks(sequence, op.length, NO_BLOCKS)
        self.exercised["truncate-exact"] += 1

    def _fork(self, op: Fork, outcome: Outcome) -> None:
        grant = self._grant(outcome)
        parent = self.live[op.parent]
        child = Sequence(op.child, parent.namespace, list(parent.known), list(parent.path), computed=parent.computed, asked=parent.asked)
        self._know(child)
        self.agenda.grown(self, child, 0)
        targets = self._targets(op, grant)
        shared = {block for table in self.tables(parent) for block in table if block is not None} - targets
        self._take_blocks(child, child.computed, targets, shared)
        # The copies of a fork are queued at once: whatever is queued later comes after them.
        self.memory.run(Work(grant.zeroed, [(source, target) for _, source, target in grant.copies]), launched=True)
        self._use(child)
        self.exercised["fork-shares-then-diverges"] += 1

    def _release(self, op: Release, outcome: Outcome) -> None:
        sequence = self.live.get(op.seq)
        if sequence is None:
            self._release_again(op, outcome)
            return
        held_nothing = sequence.computed == 0 and sequence.out is None and not sequence.swapped
        if op.reason == "preempt" and held_nothing:
            self._release_again(op, outcome)
            return
        if isinstance(outcome, Died):
            checks.dead_release(op, outcome.error)
        if isinstance(outcome, Raised):
            raise ContractBroken(f"release raised {outcome.error}")
        if sequence.out is not None:
            self._drop_pass(sequence.out)
        if self.lru:
            self._seen_content(sequence, sequence.computed)
        sequence.out, sequence.computed, sequence.asked, sequence.swapped, sequence.saved = None, 0, 0, False, ()
        if op.reason != "preempt":
            self._bury(sequence)
        self.exercised["release-once"] += 1

    def _release_again(self, op: Release, outcome: Outcome) -> None:
        self.ask(checks.repeated_release, op, outcome)
        self.idle_release = True

    def _bury(self, sequence: Sequence) -> None:
        """The sequence is gone; the oldest of those that are gone are forgotten, but for their numbers."""
        sequence.gone = True
        del self.live[sequence.seq]
        self.gone.append(sequence)
        self.gone_tokens += len(sequence.known)
        most = max(MOST_GONE_TOKENS, len(self.memory.slots))
        while len(self.gone) > MOST_GONE or (self.gone_tokens > most and len(self.gone) > 1):
            oldest = self.gone.popleft()
            self.gone_tokens -= len(oldest.known)
            del self.sequences[oldest.seq]

    def _begin(self, op: BeginStep, outcome: Outcome) -> None:
        launched = [out for out in self.passes if not out.launched]
        for out in launched:
            out.launched = True
        self.memory.launch()
        self.steps.append(launched)
        self.agenda.launched.extend(launched)
        self.ask(checks.mirror, launched)

    def _end(self, op: EndStep, outcome: Outcome) -> None:
        for out in self.steps.pop(op.step):
            out.finished = True
            self._work_is_over(out)
            if self.live.get(out.seq) is None or self.live[out.seq].out is not out:
                self.unowned -= 1
                self._finish(out)
        self._forget_deferrals()

    def _evict(self, op: Evict, outcome: Outcome) -> None:
        for block in self.universe.intersection(op.blocks):
            self.memory.forget(block, "evicted")
        self.ask(checks.eviction, op)

    def _reset(self, op: Reset, outcome: Outcome) -> None:
        for block in self.universe:
            self.memory.forget(block, "reset")
        self.ask(checks.reset)

    def _swap_out(self, op: SwapOut, outcome: Outcome) -> None:
        sequence = self.live[op.seq]
        sequence.saved = tuple(
            tuple((p, self.memory.slots[slot]) for p in range(sequence.computed) if (slot := self.slot(g, table, p)) is not None)
            for g, table in enumerate(self.seen.tables_before(op.seq) or self.seen.no_tables)
        )
        sequence.swapped = True

    def _swap_in(self, op: SwapIn, outcome: Outcome) -> None:
        sequence = self.live[op.seq]
        sequence.swapped = False
        self.agenda.grown(self, sequence, 0)
        # A block that still shows what the sequence needs may be shared again; every other one was handed out and is filled from the slower tier.
        self._take_blocks(sequence, sequence.computed, self._stale_blocks(sequence))
        writes = []
        for group, saved in enumerate(sequence.saved):
            for position, content in saved:
                slot = self.slot(group, self.tables(sequence)[group], position)
                if slot is not None:
                    writes.append((slot, content))
        self.memory.run(Work(writes=tuple(writes)), launched=True)
        self.memory.proven.difference_update(*self.tables(sequence))  # nobody knows whether they were shared, or taken and filled anew
        sequence.saved = ()
        sequence.asked = sequence.computed
        self._use(sequence)
        self.exercised["swap-round-trip"] += 1

    # -- pieces of meanings -----------------------------------------------------------------------------------------------------------------------

    def _know(self, sequence: Sequence) -> None:
        self.sequences[sequence.seq] = self.live[sequence.seq] = sequence
        self.numbers.add(sequence.seq)
        sequence.born, self.born = self.born, self.born + 1

    def _grant(self, outcome: Outcome) -> Grant:
        if not isinstance(outcome, Grant):
            raise ContractBroken("extend and fork must return a Grant")
        for group, _, _ in outcome.copies:
            if not 0 <= group < len(self.block_sizes):
                raise ContractBroken(f"Grant.copies names group {group}, but there are {len(self.block_sizes)} groups")
        return outcome

    def _targets(self, op: Op, grant: Grant) -> Set[int]:
        """The blocks that the copies of a grant fill."""
        if not grant.copies:
            return NO_BLOCKS
        self.ask(checks.copy_batch, op, grant)
        return {target for _, _, target in grant.copies}

    def _new_pass(self, sequence: Sequence, op: Extend, grant: Grant) -> Pass:
        start = sequence.computed
        count = min(op.count, len(sequence.known) - start)
        path = self.tree.path(sequence.path[-1], op.drafts) if op.drafts else []
        end = start + count + len(op.drafts)
        return Pass(
            op.seq,
            start,
            count,
            start + count,
            end,
            op.drafts,
            path,
            tables=self.tables(sequence),
            reach=tuple([(window_low(start, window) // size, blocks_for(end, size)) for _, size, window in self.groups]),
            copied=frozenset([block for _, *both in grant.copies for block in both]) if grant.copies else NO_BLOCKS,
            launched=not self.capabilities.steps,
        )

    def _work(self, sequence: Sequence, out: Pass, grant: Grant) -> Work:
        writes: list[tuple[int, int]] = []
        groups, stride = len(self.groups), self.memory.stride
        path = sequence.path[out.start : out.known_end] + out.path
        for group, size, _ in self.groups:
            table = out.tables[group]
            for index in range(out.start // size, out.reach[group][1]):
                block = table[index] if index < len(table) else None
                if block is None:
                    continue
                low, high = max(index * size, out.start), min((index + 1) * size, out.end)
                nodes = path[low - out.start : high - out.start]
                contents = nodes if groups == 1 else [node * groups + group for node in nodes]
                writes.extend(enumerate(contents, block * stride + low - index * size))
        return Work(grant.zeroed, [(source, target) for _, source, target in grant.copies] if grant.copies else (), writes)

    def _mark_drafts(self, out: Pass) -> None:
        for group, table in enumerate(out.tables):
            for position in range(out.known_end, out.end):
                slot = self.slot(group, table, position)
                if slot is not None:
                    self.memory.drafts.add(slot)

    def _reject_drafts(self, out: Pass, accepted: int) -> None:
        """The first `accepted` drafts become tokens, the others never were."""
        if not out.drafts:
            return
        groups = len(self.block_sizes)
        never = set(out.path[accepted:])
        for slot, content in out.work.writes:
            if content // groups in never:
                self.memory.reject(slot, content)
            elif self.memory.slots[slot] == content:
                self.memory.drafts.discard(slot)

    def _drop_pass(self, out: Pass) -> None:
        """The sequence of a pass was released: before the launch it never runs, after it nothing stops it."""
        if out.launched:
            self._reject_drafts(out, 0)
            if out.finished:
                self._finish(out)
            else:
                self.unowned += 1
        else:
            self.memory.abandon(out.work)
            self._finish(out)

    def _finish(self, out: Pass) -> None:
        out.over = True
        self.passes.remove(out)
        self.agenda.finished.append(out)
        self._work_is_over(out)
        for step in self.steps:
            if out in step:
                step.remove(out)
        if self.deferrals:
            self._forget_deferrals()

    def _work_is_over(self, out: Pass) -> None:
        """A cache may take the end of device work for the last use of blocks, or for the time at which they were let go of. Those that are held still are let go of later."""
        if self.lru and (out.copied or self.seen.tables.get(out.seq) is not out.tables):
            self.recency.settle(out.listed, self.step)

    def _forget_deferrals(self) -> None:
        """Once the device work of that time is over nothing may be kept back; while a step is open, a cache need not know which blocks it touches."""
        forgotten = self.deferrals.forget(self.passes, self.steps)
        if forgotten:
            if self.lru:
                self.recency.settle(forgotten, self.step)
            self.agenda.unpinned.update(forgotten)
            self.awaited.difference_update(forgotten)

    def _take_blocks(self, sequence: Sequence, computed: int, filled: Set[int], shared: Set[int] = NO_BLOCKS) -> None:
        """Judge and clear every block that `sequence` was handed: newly listed, and not there for tokens that are already computed.

        `filled` are blocks that were handed out although they lie under computed tokens (copy destinations), `shared` are blocks that a fork shares.
        """
        if sequence.seq not in self.seen.was:
            return
        for group, index, block in self._handed(sequence):
            if block in shared or self._shared_for_its_content(sequence, group, index, block):
                continue
            if block in filled or index * self.block_sizes[group] >= computed:
                self.ask(checks.handed_out, sequence, group, index, block)
                self.memory.clear(block, "reused")
                if block in self.awaited:
                    self.deferrals.back(block, self.steps)

    def _handed(self, sequence: Sequence) -> list[tuple[int, int, int]]:
        """(group, index, block) of every block that this operation put into a table of `sequence` where it was not listed before."""
        had, tables = self.seen.was[sequence.seq], self.tables(sequence)
        found = []
        for seq, group, index in self.seen.listed:
            if seq == sequence.seq:
                block = tables[group][index]
                if block is not None and block not in had[group]:
                    found.append((group, index, block))
        return found

    def _shared_for_its_content(self, sequence: Sequence, group: int, index: int, block: int) -> bool:
        """Whether others hold the block and it shows what `sequence` would compute there: then it was shared, not handed out."""
        position = index * self.block_sizes[group]
        return (
            len(self.owners[block]) > 1
            and position < len(sequence.path)
            and self.memory.slots[block * self.memory.stride] == self.content(sequence, group, position)
        )

    def _rewritten(self, sequence: Sequence, out: Pass) -> frozenset[int]:
        """The blocks that already show all that the pass writes there: with the policy `rewrites` they may be shared by it."""
        shown: dict[int, bool] = {}
        for group, table in enumerate(self.tables(sequence)):
            for position in range(out.start, out.known_end):
                slot = self.slot(group, table, position)
                if slot is not None:
                    block = self.memory.block_of(slot)
                    same = self.memory.slots[slot] == self.content(sequence, group, position)
                    shown[block] = shown.get(block, True) and same
        return frozenset(block for block, same in shown.items() if same)

    def _stale_blocks(self, sequence: Sequence) -> set[int]:
        """The blocks of `sequence` that do not show what its computed positions need."""
        stale = set()
        for group, table in enumerate(self.tables(sequence)):
            for position in self.readable(sequence, group):
                slot = self.slot(group, table, position)
                if slot is not None and self.memory.slots[slot] != self.content(sequence, group, position):
                    stale.add(self.memory.block_of(slot))
        return stale

    def _use(self, sequence: Sequence, *, certainly: bool = False) -> None:
        """The sequence touches its blocks now; what it holds, or held until now, may be published (again). Recency matters once nobody holds a block: see `_drop`.

        Only at a commit is every notion of recency bound to call that a use: a cache may stamp blocks when work is done, not when it is asked for.
        """
        if self.memory.forgotten:
            self._publish_again(sequence)
        if self.lru:
            self._seen_elsewhere(sequence)
            if certainly:
                sequence.used_at, sequence.used = self.step, self.tables(sequence)

    def _publish_again(self, sequence: Sequence) -> None:
        """What was made unmatchable may be matchable again where `sequence` holds it, or held it until now."""
        forgotten = self.memory.forgotten
        for table in (*(self.seen.tables_before(sequence.seq) or ()), *self.tables(sequence)):
            for block in forgotten.keys() & set(table):
                del forgotten[block]

    def _seen_elsewhere(self, sequence: Sequence) -> None:
        """Blocks besides its own may show what `sequence` has computed: those that a window has passed, and those that hold the same as another."""
        if len(self.groups) > 1 or self.windows[0] is not None:
            self._seen_content(sequence, sequence.computed)
        elif self.memory.doubled:
            doubled = self.memory.doubled.intersection(sequence.path[0 : sequence.computed : self.block_sizes[0]])
            self._see_contents(doubled)

    def _seen_content(self, sequence: Sequence, tokens: int) -> None:
        """Every block that shows one of the first `tokens` positions may count as used now: a cache may look at, or switch to, an equal block."""
        groups = len(self.groups)
        for group, size, _ in self.groups:
            nodes = sequence.path[0:tokens:size]  # whoever shows a position also shows the first one of its block
            self._see_contents(nodes if groups == 1 else [node * groups + group for node in nodes])

    def _see_contents(self, contents: Iterable[int]) -> None:
        stride, where = self.memory.stride, self.memory.where
        self.recency.see([slot // stride for content in contents for slot in where(content)], self.step)

    def _note_drops(self, op: Op) -> None:
        """Remember every block that a table let go of, and which device work was out at that time."""
        for (seq, group, index), block in self.seen.unlisted:
            tables = self.seen.tables.get(seq)
            if tables is None or block not in tables[group]:
                self._drop(op, block, (self.step, seq, group, index))

    def _note_returns(self, change: Change) -> None:
        """Remember which of the blocks that had to be kept back are held again for what they hold, and which are free."""
        for block in self.seen.newly_held & self.awaited:
            self.deferrals.held(block)
        for block in change.free.joined if change.free else ():
            if block in self.awaited and self.fence(block) is None:
                self.deferrals.back(block, self.steps)

    def _drop(self, op: Op, block: int, where: tuple[int, int, int, int]) -> None:
        self.any_drop = True
        if self.lru:
            self._last_use(block, where)
            self.recency.settle((block,), self.step)
            if block not in self.owners:
                self.recency.drop(block, where)
        if isinstance(op, Release):
            self.memory.forgotten.pop(block, None)
        if self.capabilities.steps and (self.passes or self.steps):
            touched = any(out.launched and not out.finished and block in out.blocks for out in self.passes)
            self.deferrals.add(block, touched=touched and block not in self.owners)
            if touched:
                self.awaited.add(block)

    def _last_use(self, block: int, where: tuple[int, int, int, int]) -> None:
        """The sequence that lets go of `block` used it at its last commit, if its table listed it then."""
        _, seq, group, _ = where
        sequence = self.sequences.get(seq)
        if sequence is not None and sequence.used and block in sequence.used[group]:
            self.recency.use(block, sequence.used_at)

    def _forget_prefixes(self) -> None:
        """Let go of the interned prefixes that neither a sequence nor a slot needs, once there are many."""
        groups = len(self.block_sizes)
        needed = {content // groups for content in self.memory.contents()}
        for sequence in self.sequences.values():
            needed.update(sequence.path)
            needed.update(content // groups for saved in sequence.saved for _, content in saved)
        for out in self.passes:
            needed.update(out.path)
            needed.update(content // groups for _, content in out.work.writes)
        self.tree.keep_only(needed | self.hits.keys())
        self._most_nodes = len(self.tree) * 3 // 2 + TREE_SLACK


def _failed(op: Op, outcome: Outcome) -> bool:
    """Whether the cache says that nothing has changed. What a repeated release raises is judged by the release itself."""
    kind = type(outcome)
    if kind is Raised or kind is Died:
        return type(op) is not Release
    return outcome is False or kind is OutOfBlocksSeen or kind is RefusedSeen


def _usable(capabilities: Capabilities, num_blocks: int, universe: int) -> int:
    capacity = capabilities.capacity
    if capacity is None:
        return universe
    return min(universe, capacity if isinstance(capacity, int) else capacity(num_blocks))


_ENABLED: Final[dict[type[Op], Callable[..., bool]]] = {
    Admit: Spec._can_admit,
    Match: Spec._can_match,
    Extend: Spec._can_extend,
    Commit: Spec._can_commit,
    Append: Spec._can_append,
    Truncate: Spec._can_truncate,
    Fork: Spec._can_fork,
    Release: Spec._can_release,
    BeginStep: Spec._can_begin,
    EndStep: Spec._can_end,
    Evict: Spec._can_evict,
    Reset: Spec._can_reset,
    SwapOut: Spec._can_swap_out,
    SwapIn: Spec._can_swap_in,
}

_APPLY: Final[dict[type[Op], Callable[..., None]]] = {
    Admit: Spec._admit,
    Match: Spec._match,
    Extend: Spec._extend,
    Commit: Spec._commit,
    Append: Spec._append,
    Truncate: Spec._truncate,
    Fork: Spec._fork,
    Release: Spec._release,
    BeginStep: Spec._begin,
    EndStep: Spec._end,
    Evict: Spec._evict,
    Reset: Spec._reset,
    SwapOut: Spec._swap_out,
    SwapIn: Spec._swap_in,
}
