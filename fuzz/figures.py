"""Numbers for an operator, from any trace or run: how full the pool is, with what, and how long operations take.

    gauge = Gauge(header)
    gauge.take(step, spec)            # after every operation
    gauge.figures()

Memory is bounded: samples are thinned out as a trace grows, and durations go into buckets of two per cent.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import msgspec

from kvproof.fuzz.traces.format import Header
from kvproof.fuzz.traces.read import Step
from kvproof.models.layouts import tail_waste_bound
from kvproof.models.ops import Evict, Extend, Match, Op, Release, Reset
from kvproof.models.outcomes import Grant, Hit, Outcome, OutOfBlocksSeen, Raised, RefusedSeen
from kvproof.models.spec import Spec

MOST_SAMPLES: Final = 512
"""Samples that are kept: more than a plot can show. When there are as many, every second one goes."""

BUCKETS_PER_E: Final = 50
"""Durations are counted in buckets that are exp(1/50), two per cent, apart."""

PERCENTILES: Final = (50, 90, 99, 99.9)


class Sample(msgspec.Struct, frozen=True):
    """The pool at one moment. Tokens are counted in slots: those of all groups add up."""

    operation: int
    at: int | None
    """Nanoseconds since the recording began."""
    sequences: int
    """Sequences that hold a block."""
    held_blocks: int
    cached_blocks: int | None
    """Blocks that nobody holds and whose content is matchable."""
    free_blocks: int | None
    """Blocks that can be handed out now, matchable ones included."""
    effective_tokens: int
    """Slots of held blocks that hold a token of a holder which is computed, or is being computed."""
    allocated_tokens: int
    """Slots of held blocks."""
    tail_bound_tokens: int
    """n(q-1), of every group: what the tails of n sequences can waste."""
    fragmentation: float | None
    """1 - (longest run of consecutive free ids) / (free blocks): what is lost to whoever needs contiguous blocks, a bulk copy for example."""


class Duration(msgspec.Struct, frozen=True):
    """How long one kind of operation takes, in microseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    most: float


class Figures(msgspec.Struct, frozen=True):
    """All numbers of one trace."""

    operations: dict[str, int]
    seconds: float | None
    """From the first operation to the last, by the recorder's clock."""
    efficiency: float | None
    """Effective over allocated bytes, on average over samples in which anything is held."""
    worst_efficiency: float | None
    tail_waste: float | None
    """Tokens of room that were allocated and not computed, on average."""
    tail_bound: float | None
    most_held_blocks: int
    fragmentation: float | None
    prompt_tokens: int
    """Tokens that were known at first extends."""
    adopted_tokens: int
    """Those of them that were reused."""
    matches: int
    hits: int
    """Matches that found anything."""
    evicted_blocks: int | None
    """Blocks that stopped being matchable otherwise than by evict or reset; None where the trace does not show what is matchable."""
    preemptions: int
    out_of_blocks: int
    refused: int
    durations: dict[str, Duration]
    samples: list[Sample]

    @property
    def hit_rate(self) -> float | None:
        """Adopted over prompt tokens."""
        return self.adopted_tokens / self.prompt_tokens if self.prompt_tokens else None


class Times(msgspec.Struct, eq=False):
    """How long the operations of one kind took, in nanoseconds."""

    buckets: dict[int, int] = {}
    spent: int = 0
    longest: int = 0


class Gauge:
    """Collects the numbers, operation by operation."""

    def __init__(self, header: Header) -> None:
        self._shows_cached = "cached" in header.sees
        self._kinds: dict[type[Op], int] = {}
        self._failed: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._first_at: int | None = None
        self._last_at: int | None = None
        self._times: dict[type[Op], Times] = {}
        self._samples: list[Sample] = []
        self._stride = 1
        self._next = 0
        self._most_held = 0

    def take(self, step: Step, spec: Spec) -> None:
        """Count one operation, after it was judged."""
        op, outcome = step.op, step.outcome
        kind = type(op)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if step.took is not None:
            self._time(kind, step.took)
        if step.at is not None:
            self._last_at = step.at
            if self._first_at is None:
                self._first_at = step.at - (step.took or 0)
        if outcome is not None or kind is Release:
            self._count(op, outcome, spec)
        cached = step.change.cached
        if cached is not None and cached.left and kind is not Evict and kind is not Reset:
            self._counts["evicted"] += len(cached.left)
        held = len(spec.owners)
        if held > self._most_held:
            self._most_held = held
        if step.number >= self._next:
            self._take_sample(step, spec, held)

    def _count(self, op: Op, outcome: Outcome, spec: Spec) -> None:
        if isinstance(op, Extend) and isinstance(outcome, Grant):
            self._count_extend(op, outcome, spec)
        elif isinstance(outcome, OutOfBlocksSeen | RefusedSeen | Raised):
            self._failed[outcome.__struct_config__.tag] += 1  # type: ignore[index]
        elif isinstance(op, Match) and isinstance(outcome, Hit):
            self._counts["hits"] += outcome.tokens > 0
        elif isinstance(op, Release):
            self._counts["preemptions"] += op.reason == "preempt"

    def _count_extend(self, op: Extend, grant: Grant, spec: Spec) -> None:
        sequence = spec.live.get(op.seq)
        if sequence is not None and sequence.out is not None and sequence.out.start == grant.adopted:
            self._counts["prompt"] += len(sequence.known)
            self._counts["adopted"] += grant.adopted

    def _time(self, kind: type[Op], took: int) -> None:
        times = self._times.get(kind)
        if times is None:
            times = self._times[kind] = Times()
        bucket = int(math.log(took) * BUCKETS_PER_E) if took > 0 else 0
        times.buckets[bucket] = times.buckets.get(bucket, 0) + 1
        times.spent += took
        if took > times.longest:
            times.longest = took

    def _take_sample(self, step: Step, spec: Spec, held: int) -> None:
        self._samples.append(self._sample(step, spec))
        if len(self._samples) >= MOST_SAMPLES:
            del self._samples[1::2]
            self._stride *= 2
        free = len(spec.seen.books.free or ())
        self._next = step.number + max(
            self._stride, held + free
        )  # a sample walks these blocks: so it costs an operation no more than a block

    def _sample(self, step: Step, spec: Spec) -> Sample:
        books = spec.seen.books
        owners, sizes = spec.owners, spec.block_sizes
        effective = allocated = 0
        for entries in owners.values():
            group = next(iter(entries))[1]
            allocated += sizes[group]
            effective += max(_filled(spec, *entry) for entry in entries)
        holding = len(spec.seen.holding)
        return Sample(
            step.number,
            step.at,
            holding,
            len(owners),
            None if books.cached is None else len(books.cached - owners.keys()),
            None if books.free is None else len(books.free),
            effective,
            allocated,
            sum(tail_waste_bound(holding, size) for size in sizes),
            _fragmentation(books.free) if books.free else None,
        )

    def figures(self) -> Figures:
        """All numbers so far."""
        operations = {kind.__name__.lower(): count for kind, count in sorted(self._kinds.items(), key=lambda item: -item[1])}
        busy = [sample for sample in self._samples if sample.allocated_tokens]
        ratios = [sample.effective_tokens / sample.allocated_tokens for sample in busy]
        fragmentation = [sample.fragmentation for sample in self._samples if sample.fragmentation is not None]
        timed = self._first_at is not None and self._last_at is not None
        return Figures(
            operations=operations,
            seconds=(self._last_at - self._first_at) / 1e9 if timed else None,  # type: ignore[operator]  # both are numbers where it is timed
            efficiency=_mean(ratios),
            worst_efficiency=min(ratios, default=None),
            tail_waste=_mean([sample.allocated_tokens - sample.effective_tokens for sample in busy]),
            tail_bound=_mean([sample.tail_bound_tokens for sample in busy]),
            most_held_blocks=self._most_held,
            fragmentation=_mean(fragmentation),
            prompt_tokens=self._counts["prompt"],
            adopted_tokens=self._counts["adopted"],
            matches=operations.get("match", 0),
            hits=self._counts["hits"],
            evicted_blocks=self._counts["evicted"] if self._shows_cached else None,
            preemptions=self._counts["preemptions"],
            out_of_blocks=self._failed["out-of-blocks"],
            refused=self._failed["refused"],
            durations={
                name: _duration(times) for name, times in sorted((kind.__name__.lower(), times) for kind, times in self._times.items())
            },
            samples=self._samples,
        )


def _duration(times: Times) -> Duration:
    count = sum(times.buckets.values())
    p50, p90, p99, p999 = [min(_percentile(times.buckets, count, percent), times.longest) / 1e3 for percent in PERCENTILES]
    return Duration(count, times.spent / count / 1e3, p50, p90, p99, p999, times.longest / 1e3)


def _filled(spec: Spec, seq: int, group: int, index: int) -> int:
    """How many slots of this place in a block table hold a token that is computed, or is being computed by the pass that is out."""
    sequence = spec.live.get(seq)
    if sequence is None:
        return 0
    size = spec.block_sizes[group]
    end = sequence.out.end if sequence.out else sequence.computed
    return max(0, min(end - index * size, size))


def _percentile(buckets: dict[int, int], count: int, percent: float) -> float:
    """The upper end, in nanoseconds, of the bucket in which the percentile lies."""
    rank, passed = math.ceil(count * percent / 100), 0
    for bucket in sorted(buckets):
        passed += buckets[bucket]
        if passed >= rank:
            return math.exp((bucket + 1) / BUCKETS_PER_E)
    return 0.0


def _fragmentation(free: dict[int, int]) -> float:
    longest = run = 0
    previous = -2
    for block in sorted(free):
        run = run + 1 if block == previous + 1 else 1
        longest = max(longest, run)
        previous = block
    return 1 - longest / len(free)


def _mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None
