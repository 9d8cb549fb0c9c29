"""Decoding in batches: one token more for every sequence that runs, in one call.

Most tokens fill no block, leave no window and find a slot in the last block. For such a token nothing is done but to count, and `calm` says up
to which length that is so. The others are `busy`, about one in a block's tokens, and take the way of a single commit and extend.

Between `passes.py` and `cache.py`. A failure is found before anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvproof.impl.production.errors import BadBatch, OutOfBlocks, StillPrefilling
from kvproof.impl.production.passes import Passes
from kvproof.impl.production.sequence import NOT_LAUNCHED, SequenceState
from kvproof.impl.production.tokens import extended, pack

NONE_ACCEPTED: Final[Mapping[int, int]] = MappingProxyType({})
NO_DRAFTS: Final[Mapping[int, Sequence[int]]] = MappingProxyType({})


class Decoding(Passes):
    """The batch operation. Private to the cache."""

    def _decode(
        self, seqs: Sequence[int], sampled: Sequence[int], accepted: Mapping[int, int], drafts: Mapping[int, Sequence[int]]
    ) -> tuple[int, ...]:
        """Commits, then appends, then extends: what commits let go of can be handed out to all."""
        states, busy = self._decodable(seqs, sampled, accepted, drafts)
        for state in busy:
            if state.drafts or state.sources or not (self._plain and self._publish_next(state, state.target)):
                self._settle(state, accepted.get(state.seq, 0))
                state.target = state.computed
        for state, token in zip(states, sampled, strict=True):
            state.computed = end = state.target
            state.target = end + 1
            try:
                state.tokens.append(token)
            except OverflowError:
                self._widen(state, extended(state.tokens, [token]))
        short = self._grow_plainly(busy) if self._plain and not drafts else None
        if short is None:
            short = self._grow_in_turn(busy, drafts)
        if self._steps:
            self._await_launch(states)
        return short

    # May they?

    def _decodable(
        self, seqs: Sequence[int], sampled: Sequence[int], accepted: Mapping[int, int], drafts: Mapping[int, Sequence[int]]
    ) -> tuple[list[SequenceState], list[SequenceState]]:
        """The sequences of a batch, and the busy ones among them. Raises what `decode` raises."""
        pack(sampled)  # for the error that it may raise
        named = set(seqs)
        if len(seqs) != len(named) or len(seqs) != len(sampled) or not named.issuperset((*accepted, *drafts)):
            raise _bad_batch(seqs, sampled)
        known = self._sequences
        try:
            states = [known[seq] for seq in seqs]
        except KeyError:
            raise self._why_not(next(seq for seq in seqs if seq not in known), "decode") from None
        busy = [state for state in states if state.target >= state.calm]
        if drafts:
            busy = [state for state in states if state.target >= state.calm or state.seq in drafts]
        for state in busy:
            if not state.target:
                raise self._why_not(state.seq, "decode")
            if state.target < len(state.tokens):
                raise StillPrefilling(
                    f"the pass of sequence {state.seq} ends at token {state.target} of {len(state.tokens)};"
                    " commit and extend it until all are computed, then decode"
                )
        if self._steps:
            unfinished = {NOT_LAUNCHED, *self._open}.intersection([state.step for state in states])
            if unfinished:
                raise self._unfinished(next(state for state in states if state.step in unfinished))
        for seq, count in accepted.items():
            state = known[seq]
            self._check_accepted(state, count)
            pack(state.drafts[:count])  # for the error that it may raise
        return states, busy

    # Room for the next token. There is nothing to copy: the tail of a sequence whose pass is out was made its own when that was granted, and
    # nobody can have shared it since.

    def _grow_plainly(self, busy: list[SequenceState]) -> tuple[int, ...] | None:
        """A block for each that needs one, taken at once; None if there are not enough. For caches of one full group."""
        [layout] = self._layouts
        full = [state for state in busy if state.target > state.room]
        if len(full) > self._pool.available:
            return None
        for state, block in zip(full, self._take(len(full)), strict=True):
            table = state.tables[0]
            if self._steps:
                state.stale[0] = min(state.stale[0], len(table))
                self._log.changed(state)
            table.append(block)
            state.room = state.computed + layout.size
        for state in busy:
            room, milestone = state.room, state.milestone
            state.calm = room if room < milestone else milestone  # a third of the time of min()
        return ()

    def _grow_in_turn(self, busy: list[SequenceState], drafts: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
        """Room for the next token of each, and for its drafts, in this order until one finds none. Returns the sequences without."""
        short: list[int] = []
        for state in busy:
            ahead = drafts.get(state.seq, ())
            end = state.target + len(ahead)
            # Once a sequence is short, nobody behind it may take the blocks that it waits for.
            if end > state.room and (short or not self._grown(state, end)):
                state.target = state.calm = 0
                short.append(state.seq)
            else:
                state.drafts = tuple(ahead)
                state.calm = 0 if ahead else min(state.room, state.milestone)
        return tuple(short)

    def _grown(self, state: SequenceState, end: int) -> bool:
        try:
            self._grow(state, end)
        except OutOfBlocks:
            return False
        return True

    def _await_launch(self, states: list[SequenceState]) -> None:
        """The next step launches the passes that were granted."""
        for state in states:
            if state.target:
                state.step = NOT_LAUNCHED
                self._unlaunched[state.seq] = state


def _bad_batch(seqs: Sequence[int], sampled: Sequence[int]) -> BadBatch:
    if len(seqs) != len(sampled):
        return BadBatch(f"{len(sampled)} tokens were sampled for {len(seqs)} sequences; pass one for each")
    twice = [seq for seq in seqs if seqs.count(seq) > 1]
    if twice:
        return BadBatch(f"sequence {twice[0]} is in the batch twice; name each sequence once")
    return BadBatch("accepted or drafts name a sequence that is not in the batch; leave it out")
