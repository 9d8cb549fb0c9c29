"""Sliding windows: what leaves them too early, and what is not noticed to have left."""

from __future__ import annotations

from kvproof.fuzz.bugs.registry import SynchronousHybridAdapter, seeded
from kvproof.impl.production.cache import PagedCache
from kvproof.impl.production.records import ExtendGrant
from kvproof.impl.production.sequence import SequenceState


@seeded(
    "window-is-one-token-short",
    laws=("window-keeps-what-it-needs",),
    story="Long answers drift, because the oldest token of each window is missing.",
    like=("B65",),
    on=SynchronousHybridAdapter,
)
class WindowIsOneTokenShort(PagedCache):
    """Counts the token to come as one that the window has seen."""

    def _pass_windows(self, state: SequenceState) -> None:
        state.computed += 1
        super()._pass_windows(state)
        state.computed -= 1


@seeded(
    "window-slides-before-the-pass",
    laws=("window-keeps-what-it-needs",),
    story="With large chunks, the first tokens of each chunk do not see what came before it.",
    like=("B65",),
    on=SynchronousHybridAdapter,
)
class WindowSlidesBeforeThePass(PagedCache):
    """Frees what the last token of a pass does not need when the pass begins, though its first token reads it."""

    def _grow(self, state: SequenceState, end: int) -> ExtendGrant:
        grant = super()._grow(state, end)
        computed, state.computed = state.computed, end
        self._pass_windows(state)
        state.computed = computed
        return grant


@seeded(
    "truncation-reaches-behind-the-window",
    laws=("truncate-exact", "window-keeps-what-it-needs"),
    story="After a long roll-back, the model attends to blocks that were freed.",
    on=SynchronousHybridAdapter,
)
class TruncationReachesBehindTheWindow(PagedCache):
    """Does not notice that what it needs has left the window."""

    def truncate(self, seq: int, length: int) -> None:
        """The first `length` tokens stay."""
        self._cut_back(self._sequences[seq], length)
