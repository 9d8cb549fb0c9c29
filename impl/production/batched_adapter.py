"""The production cache under the suite, decoding in batches.

The contract takes one sequence at a time, an engine decodes all that run. So a *round*, in which sequences are committed, sample a token and are extended by
it, is taken back and done again: before it the cache is copied, and at each extend the copy goes the same way once more, with one `decode` for all sequences
that were extended, and takes the place of the cache. What the laws see from then on is what the batch did.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from kvproof.impl.production.adapter import HybridAdapter, ProductionAdapter
from kvproof.impl.production.cache import PagedCache
from kvproof.models.ops import Namespace, ReleaseReason
from kvproof.models.outcomes import Event, Grant, OutOfBlocks


class Turn(NamedTuple):
    """One sequence in a round. `token`: what it sampled, if it did. `drafts`: those it was extended by, None if it was not extended."""

    seq: int
    accepted: int
    token: int | None = None
    drafts: tuple[int, ...] | None = None


class BatchedAdapter(ProductionAdapter):
    """Keeps the round; whatever else takes or frees blocks ends it."""

    locked = False  # a lock cannot be copied

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.largest_batch = 0
        """How many sequences were decoded together at most."""
        self._earlier: list[Event] = []
        """Events of earlier rounds that nobody took yet."""
        self._events: list[Event] = []
        """Those of this round, where it was done again."""
        self._end_round()

    def _end_round(self) -> None:
        self._before: PagedCache | None = None
        self._round: list[Turn] = []
        self._arrived: list[tuple[int, Sequence[int], Namespace]] = []
        self._earlier += self._events
        self._events = []
        self._told = 0
        """How many events of this round were taken."""

    def _turn_of(self, seq: int) -> int | None:
        """Its place in the round, if it has one."""
        return next((place for place, turn in enumerate(self._round) if turn.seq == seq), None)

    # The operations of a round.

    def commit(self, seq: int, accepted: int) -> None:
        """Begins a round once somebody was extended, or else goes on with it."""
        if self._before is None or any(turn.seq == seq or turn.drafts is not None for turn in self._round):
            self._end_round()
            self._before = deepcopy(self.cache)
        super().commit(seq, accepted)
        self._round.append(Turn(seq, accepted))

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """The token that a sequence sampled; where it is anything else, the round ends."""
        super().append(seq, tokens)
        place = self._turn_of(seq)
        if place is not None and len(tokens) == 1 and len(self.cache.tokens(seq)) == self.cache.computed(seq) + 1:
            self._round[place] = self._round[place]._replace(token=tokens[0])
        else:
            self._end_round()

    def extend(self, seq: int, count: int, drafts: Sequence[int] = ()) -> Grant:
        """Room for a pass: by `decode`, where the sequences of the round were extended in the order in which they were committed."""
        place = self._turn_of(seq)
        if place is None or self._round[place].token is None or any(turn.drafts is not None for turn in self._round[place:]):
            self._end_round()
            return super().extend(seq, count, drafts)
        turns = [*self._round]
        turns[place] = turns[place]._replace(drafts=tuple(drafts))
        first = next(place for place, turn in enumerate(turns) if turn.drafts is not None)
        if any(turn.drafts is None for turn in turns[first:]):
            # Others were committed in between. They may still be extended: then the batch is whole.
            grant = super().extend(seq, count, drafts)
        else:
            grant = Grant()
            if seq in self._decode(turns[:first], turns[first:]):
                raise OutOfBlocks(f"sequence {seq} found no room in its batch")
        self._round = turns
        return grant

    def _decode(self, before: list[Turn], batch: list[Turn]) -> tuple[int, ...]:
        """The round once more, on a copy of what the cache was before it; returns the sequences without room."""
        assert self._before is not None, "a round begins with a copy"
        self.cache = deepcopy(self._before)
        for arrival in self._arrived:
            super().admit(*arrival)
        for turn in before:
            super().commit(turn.seq, turn.accepted)
            if turn.token is not None:
                super().append(turn.seq, [turn.token])
        short = self.cache.decode(
            [turn.seq for turn in batch],
            [turn.token for turn in batch if turn.token is not None],
            accepted={turn.seq: turn.accepted for turn in batch},
            drafts={turn.seq: turn.drafts for turn in batch if turn.drafts},
        )
        self._events = self._one_by_one()[self._told :]
        self.largest_batch = max(self.largest_batch, len(batch) - len(short))
        return short

    def _one_by_one(self) -> list[Event]:
        """What the cache tells, each block by itself: a batch takes blocks together that single operations take in turn."""
        single: list[Event] = []
        for event in super().take_events():
            single += [Event(kind=event.kind, blocks=(block,), reason=event.reason) for block in event.blocks] or [event]
        return single

    def take_events(self) -> Sequence[Event]:
        """What became matchable and unmatchable; in a round that was done again, only what was not told before."""
        taken = [*self._events, *self._one_by_one()]
        self._told += len(taken)
        earlier, self._earlier, self._events = self._earlier, [], []
        return [*earlier, *taken]

    def admit(self, seq: int, prompt: Sequence[int], namespace: Namespace) -> None:
        """A request is known: it holds nothing, so a round goes on."""
        super().admit(seq, prompt, namespace)
        if self._before is not None:
            self._arrived.append((seq, prompt, namespace))

    # Everything else ends a round.

    def truncate(self, seq: int, length: int) -> None:
        """Roll back."""
        self._end_round()
        super().truncate(seq, length)

    def fork(self, parent: int, child: int) -> Grant:
        """Shares all blocks."""
        self._end_round()
        return super().fork(parent, child)

    def release(self, seq: int, reason: ReleaseReason) -> None:
        """Lets go of everything."""
        self._end_round()
        super().release(seq, reason)

    def begin_step(self) -> int:
        """Launches."""
        self._end_round()
        return super().begin_step()

    def end_step(self, step: int) -> None:
        """The device work has finished."""
        self._end_round()
        super().end_step(step)

    def evict(self, blocks: Sequence[int]) -> int:
        """Makes blocks unmatchable."""
        self._end_round()
        return super().evict(blocks)

    def reset(self) -> bool:
        """Makes everything unmatchable."""
        self._end_round()
        return super().reset()

    def swap_out(self, seq: int) -> bool:
        """Moves a sequence to the host tier."""
        self._end_round()
        return super().swap_out(seq)

    def swap_in(self, seq: int) -> bool:
        """Moves a sequence back."""
        self._end_round()
        return super().swap_in(seq)


class BatchedHybridAdapter(BatchedAdapter):
    """A full group beside a sliding window of five tokens."""

    groups = HybridAdapter.groups


class BatchedSynchronousAdapter(BatchedAdapter):
    """Without device steps."""

    steps = False
