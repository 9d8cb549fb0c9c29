"""What each operation means: how the state that the spec remembers moves when it succeeds, and which laws it is put to on the way.

Each function is given the spec, the operation and what the cache answered, after the spec has taken in what was seen. The laws that hold after every operation are asked
later (`checks.everything`). A meaning never looks into the cache: what it needs to know of the cache's choices is in `spec.seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Final

from kvproof.models import checks, device, holders, uses
from kvproof.models.memory import How, Work
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
from kvproof.models.outcomes import ContractBroken, Died, Grant, Hit, Outcome, Raised
from kvproof.models.state import NO_BLOCKS, Sequence, listed_blocks

if TYPE_CHECKING:
    from kvproof.models.spec import Spec


# -- requests --------------------------------------------------------------------------------------------------------------------------------


def admit(spec: Spec, op: Admit, outcome: Outcome) -> None:
    """A sequence is known."""
    path = spec.tree.path(spec.tree.root(op.namespace), op.prompt)
    spec.know(Sequence(op.seq, op.namespace, list(op.prompt), path))


def match(spec: Spec, op: Match, outcome: Outcome) -> None:
    """The hit is true. Nothing moves, but a cache may take the look-up for a use of the blocks."""
    if not isinstance(outcome, Hit):
        raise ContractBroken("match must return a Hit")
    sequence = spec.live[op.seq]
    spec.ask(checks.hit, sequence, outcome.tokens)
    spec.ask(checks.steady_hit, op, outcome.tokens)
    if spec.lru:
        uses.seen_content(spec, sequence, min(outcome.tokens, len(sequence.path)))


def append(spec: Spec, op: Append, outcome: Outcome) -> None:
    """Tokens become known."""
    sequence = spec.live[op.seq]
    start = sequence.path[-1] if sequence.path else spec.tree.root(sequence.namespace)
    sequence.known.extend(op.tokens)
    sequence.path.extend(spec.tree.path(start, op.tokens))
    uses.publish_again(spec, sequence)


def fork(spec: Spec, op: Fork, outcome: Outcome) -> None:
    """The child knows and has computed what its parent does, in shared blocks and in copies."""
    grant = _grant(spec, outcome)
    parent = spec.live[op.parent]
    child = Sequence(op.child, parent.namespace, list(parent.known), list(parent.path), computed=parent.computed, asked=parent.asked)
    spec.know(child)
    spec.agenda.grown(spec, child, 0)
    targets = _targets(spec, op, grant)
    shared = {block for table in spec.tables(parent) for block in table if block is not None} - targets
    holders.take_blocks(spec, child, child.computed, targets, shared)
    # The copies of a fork are queued at once: whatever is queued later comes after them.
    spec.memory.run(Work(grant.zeroed, [(source, target) for _, source, target in grant.copies]), launched=True)
    if grant.copies:
        device.copied_by_fork(spec, grant)
    uses.use(spec, child)
    uses.publish_again(spec, parent)
    spec.exercised["fork-shares-then-diverges"] += 1


def truncate(spec: Spec, op: Truncate, outcome: Outcome) -> None:
    """What comes after `length` was never known."""
    sequence = spec.live[op.seq]
    del sequence.known[op.length :]
    del sequence.path[op.length :]
    sequence.computed = sequence.asked = op.length
    if any(spec.windows):
        spec.agenda.grown(spec, sequence, 0)  # what had left a window may be readable again
    holders.take_blocks(spec, sequence, op.length, NO_BLOCKS)
    uses.publish_again(spec, sequence)
    spec.exercised["truncate-exact"] += 1


def release(spec: Spec, op: Release, outcome: Outcome) -> None:
    """The sequence lets go of all it holds. Where it held nothing any more, nothing may happen."""
    sequence = spec.live.get(op.seq)
    if sequence is None or (op.reason == "preempt" and sequence.computed == 0 and sequence.out is None and not sequence.swapped):
        spec.ask(checks.repeated_release, op, outcome)
        spec.idle_release = sequence is None
        return
    if type(outcome) is Died:
        checks.dead_release(op, outcome.error)
    if type(outcome) is Raised:
        raise ContractBroken(f"release raised {outcome.error}")
    if sequence.out is not None:
        device.drop(spec, sequence.out)
    if spec.lru:
        uses.seen_content(spec, sequence, sequence.computed)
    sequence.out, sequence.computed, sequence.asked, sequence.swapped, sequence.saved = None, 0, 0, False, ()
    if op.reason != "preempt":
        spec.bury(sequence)
    spec.exercised["release-once"] += 1


# -- passes ----------------------------------------------------------------------------------------------------------------------------------


def extend(spec: Spec, op: Extend, outcome: Outcome) -> None:
    """A first extend adopts a prefix; then a pass is queued that writes its tokens and drafts into blocks of the sequence's own."""
    grant = _grant(spec, outcome)
    sequence = spec.live[op.seq]
    _adopt(spec, sequence, grant)
    out = device.new_pass(spec, sequence, op, grant)
    targets = _targets(spec, op, grant)
    holders.take_blocks(spec, sequence, out.start, targets, holders.rewritten(spec, sequence, out) if spec.rewrites else NO_BLOCKS)
    spec.ask(checks.room, sequence, out)
    spec.ask(checks.exclusive_write, sequence, out, targets)
    checks.whole_pool_again(spec, sequence)
    device.queue(spec, sequence, out, grant)
    sequence.asked = max(sequence.asked, out.end)
    if out.launched:
        spec.ask(checks.mirror, [out])
    uses.use(spec, sequence)


def _adopt(spec: Spec, sequence: Sequence, grant: Grant) -> None:
    """The tokens that the grant says are there already are computed."""
    if grant.adopted and sequence.computed:
        raise ContractBroken(f"extend reported adopted={grant.adopted} for a sequence that has already computed {sequence.computed} tokens")
    if grant.adopted and not spec.capabilities.prefix:
        raise ContractBroken(f"extend reported adopted={grant.adopted}, but the capability prefix is not claimed")
    if not sequence.computed:
        spec.ask(checks.adoption, sequence, grant)
        sequence.computed = min(grant.adopted, len(sequence.known) - 1)
        spec.agenda.grown(spec, sequence, 0)


def commit(spec: Spec, op: Commit, outcome: Outcome) -> None:
    """The pass has computed its tokens; the accepted drafts become known, the others never were."""
    sequence = spec.live[op.seq]
    out = sequence.out
    assert out is not None
    rejected = len(out.drafts) - op.accepted
    device.reject_drafts(spec, out, op.accepted)
    sequence.known.extend(out.drafts[: op.accepted])
    sequence.path.extend(out.path[: op.accepted])
    before, sequence.computed = sequence.computed, out.known_end + op.accepted
    sequence.asked = sequence.computed
    spec.agenda.grown(spec, sequence, before)
    sequence.out = None
    device.finish(spec, out)
    holders.take_blocks(spec, sequence, sequence.computed, NO_BLOCKS)
    uses.use(spec, sequence, certainly=True)
    spec.exercised["computed"] += 1  # no law: where it stays 0, no law was really put to the test
    if rejected:
        spec.exercised["rejection-forgets"] += 1


def begin_step(spec: Spec, op: BeginStep, outcome: Outcome) -> None:
    """All passes that wait are launched."""
    launched = [out for out in spec.passes if not out.launched]
    for out in launched:
        out.launched = True
    spec.memory.launch()
    spec.steps.append(launched)
    uses.publish_all_again(spec)
    spec.agenda.launched.extend(launched)
    spec.ask(checks.mirror, launched)


def end_step(spec: Spec, op: EndStep, outcome: Outcome) -> None:
    """The passes of the step have finished. Nobody commits those whose sequence let go of them."""
    for out in spec.steps.pop(op.step):
        out.finished = True
        device.work_is_over(spec, out)
        if spec.live.get(out.seq) is None or spec.live[out.seq].out is not out:
            spec.unowned -= 1
            device.finish(spec, out)
    uses.publish_all_again(spec)
    device.end_transfers(spec)
    device.forget_deferrals(spec)


# -- what is matchable, and the slower tier ---------------------------------------------------------------------------------------------------


def evict(spec: Spec, op: Evict, outcome: Outcome) -> None:
    """These blocks are not matchable until somebody publishes them again."""
    _forget(spec, spec.universe.intersection(op.blocks), "evicted")
    spec.ask(checks.eviction, op)


def reset(spec: Spec, op: Reset, outcome: Outcome) -> None:
    """The same for all blocks."""
    _forget(spec, spec.universe, "reset")
    spec.ask(checks.reset)


def _forget(spec: Spec, blocks: Iterable[int], how: How) -> None:
    """What the books show to be no longer matchable. A block that was not matchable, and is held or kept back for device work, has its first publication still before it."""
    for block in blocks:
        held = block in spec.owners or spec.deferrals.count(block)
        if not (held and spec.seen.was_private(block)):
            spec.memory.forget(block, how)


def swap_out(spec: Spec, op: SwapOut, outcome: Outcome) -> None:
    """What the blocks of the sequence showed is saved, right or wrong."""
    sequence = spec.live[op.seq]
    tables = spec.seen.tables_before(op.seq) or spec.seen.no_tables
    sequence.saved = tuple(
        tuple((p, spec.memory.slots[slot]) for p in range(sequence.computed) if (slot := spec.slot(g, table, p)) is not None)
        for g, table in enumerate(tables)
    )
    sequence.swapped = True
    device.transfer(spec, listed_blocks(tables))
    uses.publish_again(spec, sequence)


def swap_in(spec: Spec, op: SwapIn, outcome: Outcome) -> None:
    """What was saved is written into the blocks that the sequence has now."""
    sequence = spec.live[op.seq]
    sequence.swapped = False
    spec.agenda.grown(spec, sequence, 0)
    # A block that still shows what the sequence needs may be shared again; every other one was handed out and is filled from the slower tier.
    holders.take_blocks(spec, sequence, sequence.computed, holders.stale(spec, sequence))
    writes = []
    for group, saved in enumerate(sequence.saved):
        for position, content in saved:
            slot = spec.slot(group, spec.tables(sequence)[group], position)
            if slot is not None:
                writes.append((slot, content))
    spec.memory.run(Work(writes=tuple(writes)), launched=True)
    spec.memory.proven.difference_update(*spec.tables(sequence))  # nobody knows whether they were shared, or taken and filled anew
    device.transfer(spec, listed_blocks(spec.tables(sequence)))
    sequence.saved = ()
    sequence.asked = sequence.computed
    uses.use(spec, sequence)
    spec.exercised["swap-round-trip"] += 1


# -- grants ----------------------------------------------------------------------------------------------------------------------------------


def _grant(spec: Spec, outcome: Outcome) -> Grant:
    if not isinstance(outcome, Grant):
        raise ContractBroken("extend and fork must return a Grant")
    for group, _, _ in outcome.copies:
        if not 0 <= group < len(spec.block_sizes):
            raise ContractBroken(f"Grant.copies names group {group}, but there are {len(spec.block_sizes)} groups")
    return outcome


def _targets(spec: Spec, op: Op, grant: Grant) -> Set[int]:
    """The blocks that the copies of a grant fill."""
    if not grant.copies:
        return NO_BLOCKS
    spec.ask(checks.copy_batch, op, grant)
    return {target for _, _, target in grant.copies}


MEANING: Final[dict[type[Op], Callable[..., None]]] = {
    Admit: admit,
    Match: match,
    Extend: extend,
    Commit: commit,
    Append: append,
    Truncate: truncate,
    Fork: fork,
    Release: release,
    BeginStep: begin_step,
    EndStep: end_step,
    Evict: evict,
    Reset: reset,
    SwapOut: swap_out,
    SwapIn: swap_in,
}
"""The meaning of each operation."""
