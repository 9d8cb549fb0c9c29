"""What the cache raises. Every message names the sequence and the mend, and an operation that raised has changed nothing."""

from __future__ import annotations


class CacheError(Exception):
    """Base of everything that the cache raises."""


class OutOfBlocks(CacheError):
    """The pool cannot make the room that was asked for, eviction included. Preempt or wait, then ask again."""


class BadConfiguration(CacheError):
    """The constructor was given numbers that no cache can have."""


class UnknownSequence(CacheError):
    """The sequence was never admitted, or is gone."""


class SequenceExists(CacheError):
    """A sequence of that number is known already."""


class UncommittedPass(CacheError):
    """The last extend of the sequence was not committed yet, so nothing else may happen to it but a release."""


class NothingToCommit(CacheError):
    """The sequence has no uncommitted extend: it was committed already, or a release dropped it."""


class NothingToExtend(CacheError):
    """Every known token of the sequence is computed, or a count below one was asked for."""


class DraftsNotAllowed(CacheError):
    """Drafts follow the last known token, and never come with a first extend."""


class TooManyAccepted(CacheError):
    """More drafts were accepted than the extend had made room for."""


class StillPrefilling(CacheError):
    """The pass of the sequence did not reach its last known token, so no token was sampled after it."""


class BadBatch(CacheError):
    """A batch names a sequence twice, its lists differ in length, or drafts were given for a sequence that it does not have."""


class PassNotFinished(CacheError):
    """The pass of the sequence was not launched yet, or its step has not ended."""


class TokenOutOfRange(CacheError):
    """A token id does not fit in 64 bits."""


class LengthOutOfRange(CacheError):
    """A truncation keeps at least one token and at most the computed ones."""


class WindowPassed(CacheError):
    """The truncation would need blocks that a sliding window has let go already."""


class SwappedOut(CacheError):
    """The sequence is on the host tier; swap it in first."""


class NotSwappedOut(CacheError):
    """The sequence is not on the host tier."""


class UnknownStep(CacheError):
    """No open step has this number."""


class StepsDisabled(CacheError):
    """The cache was built with steps=False: its passes run at once and have finished at their commit."""


class BlockOutOfRange(CacheError):
    """The pool has no block of that number."""


class BlockNotHeld(CacheError):
    """A block was let go more often than it was held. The books are wrong: do not go on with this cache."""
