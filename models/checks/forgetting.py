"""Laws on what is forgotten: eviction and its order, reset, and the events that tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.models.checks.naming import Broken
from kvproof.models.ops import Evict
from kvproof.models.state import Evicted

if TYPE_CHECKING:
    from kvproof.models.recency import LetGo
    from kvproof.models.spec import Spec


def eviction(spec: Spec, op: Evict) -> None:
    """Eviction makes blocks unmatchable and takes none from its holders."""
    for seq, tables in spec.seen.was.items():
        if spec.seen.tables.get(seq) != tables:
            raise Broken(
                "evict-only-unheld",
                f"evict({list(op.blocks)}) changed the block table of sequence {seq}",
                blocks=op.blocks,
                sequences=(seq,),
            )
    held = spec.judged.intersection(op.blocks).intersection(spec.owners)
    free = spec.seen.books.free
    if free is not None and held.intersection(free):
        raise Broken(
            "evict-only-unheld",
            f"evict({list(op.blocks)}) put block {min(held.intersection(free))} on the free list, though a sequence holds it",
            blocks=(min(held.intersection(free)),),
        )
    spec.exercised["evict-only-unheld"] += bool(held)
    cached = spec.seen.books.cached
    if cached is not None:
        left = spec.judged.intersection(op.blocks).intersection(cached)
        if left:
            raise Broken(
                "eviction-forgets",
                f"evict({list(op.blocks)}) was not refused, yet the cache still counts block {min(left)} as matchable",
                blocks=(min(left),),
            )
        spec.exercised["eviction-forgets"] += 1


def reset(spec: Spec) -> None:
    """After a successful reset nothing is matchable."""
    cached = spec.seen.books.cached
    left = cached & spec.judged if cached and spec.partial else cached
    if left:
        raise Broken("reset-forgets", f"reset succeeded, yet the cache still counts block {min(left)} as matchable", blocks=(min(left),))
    spec.exercised["reset-forgets"] += cached is not None


def events(spec: Spec) -> None:
    """Replaying the events gives the matchable set."""
    agenda, replayed, cached = spec.agenda, spec.seen.replayed, spec.seen.books.cached
    assert cached is not None
    for block in agenda.told & spec.judged if spec.partial else agenda.told:
        if (block in replayed) != (block in cached):
            agenda.mistold.add(block)
        else:
            agenda.mistold.discard(block)
    agenda.told.clear()
    if agenda.mistold:
        extra, missing = sorted(agenda.mistold & replayed), sorted(agenda.mistold & cached)
        detail = (
            f"they leave block {extra[0]} matchable, which it is not" if extra else f"they do not say that block {missing[0]} is matchable"
        )
        raise Broken(
            "events-replay-index",
            f"replaying the events gives {sorted(replayed)}, the cache matches {sorted(cached)}: {detail}",
            blocks=(extra or missing)[:1],
        )
    if cached:
        spec.exercised["events-replay-index"] += 1


def eviction_order(spec: Spec) -> None:
    """Least recently used first, deeper blocks first, judged by the books, and only where every notion of recency agrees."""
    seen, books, recency = spec.seen, spec.seen.books, spec.recency
    free, cached = books.free, books.cached
    if free is None or cached is None:
        return
    recency.idle(spec.agenda.settled)
    spec.agenda.settled.clear()
    for out in spec.evicted:
        older = recency.older(out.used_at, idle=lambda block: block in free and block in cached and block not in spec.owners)
        earlier = [block for block in recency.companions(out) if _goes_before(spec, recency.let_go[block], out.let_go)]
        for kept in [*older, *earlier]:
            if seen.was_free(kept) and seen.was_cached(kept) and kept in cached and kept not in spec.owners:
                spec.exercised["eviction-follows-policy"] += 1
                _evicted_in_turn(spec, out, kept)


def proven_order(spec: Spec, kept: int) -> None:
    """The same without books: a hit has just shown that `kept`, which nobody holds, is still matchable. What a pass may hold back is not there to be evicted."""
    let_go = None if spec.pins(kept) else spec.recency.let_go.get(kept)
    for out in spec.past_evictions:
        if let_go is not None and let_go[0] < out.step:
            spec.exercised["eviction-follows-policy"] += 1
            _evicted_in_turn(spec, out, kept)


def _evicted_in_turn(spec: Spec, out: Evicted, kept: int) -> None:
    kept_at = spec.recency.seen_at.get(kept, 0)
    if kept_at < out.used_at and not _has_longer(spec, kept):
        raise Broken(
            "eviction-follows-policy",
            f"block {out.block}, used in step {out.used_at}, was evicted in step {out.step} before block {kept}, last used in step {kept_at}",
            blocks=(out.block, kept),
            steps=(out.used_at, out.step, kept_at),
        )
    why = _goes_before(spec, spec.recency.let_go.get(kept), out.let_go)
    if why and _undisturbed(spec, out, kept):
        raise Broken(
            "eviction-follows-policy",
            f"block {out.block} was evicted in step {out.step} before block {kept}, which {why} and was let go of with it",
            blocks=(out.block, kept),
            steps=(out.step,),
        )


def _has_longer(spec: Spec, block: int) -> bool:
    """Whether the pool holds a continuation of what `block` holds: a cache that evicts leaves first has to keep it."""
    groups, memory = len(spec.block_sizes), spec.memory
    shown = [content for content in memory.slots[block * memory.stride : (block + 1) * memory.stride] if content]
    if not shown:
        return False
    node, group = divmod(shown[-1], groups)
    return any(memory.where(longer * groups + group) for longer in spec.tree.longer(node))


def _goes_before(spec: Spec, first: LetGo | None, then: LetGo | None) -> str:
    """Why the policy evicts `first` before `then`, if one release let go of both; empty if it does not say."""
    if first is None or then is None or first[:2] != then[:2]:
        return ""
    (*_, group, index), (*_, other, place) = first, then
    if group == other:
        return "lies deeper in the same sequence" if index > place else ""
    if "groups-in-turn" in spec.capabilities.policy:
        return f"is of group {group}, an earlier one," if group < other else ""
    end, other_end = (index + 1) * spec.block_sizes[group], (place + 1) * spec.block_sizes[other]
    deeper = "groups-together" in spec.capabilities.policy and end > other_end
    return f"lies deeper in the same sequence, in group {group}," if deeper else ""


def _undisturbed(spec: Spec, out: Evicted, kept: int) -> bool:
    """Whether neither block was looked at since they were let go of; of two groups, also whether both could be evicted from the same time on."""
    recency = spec.recency
    settled_at = recency.settled_at.get(kept, 0)
    if out.let_go is not None and out.let_go[2] != recency.let_go[kept][2] and out.settled_at != settled_at:
        return False
    return out.seen_at <= out.settled_at and recency.seen_at.get(kept, 0) <= settled_at
