"""The laws: one sentence each, with a name that violations, seeded bugs, the command line and the documentation all use."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvproof.models.capabilities import Capabilities

Need: TypeAlias = str
"""A capability (`prefix`), a kind of group (`sliding_window`), a policy (`policy:lru`), or a means that only kernels know (`machine`)."""


class Law(msgspec.Struct, frozen=True):
    """A promise. `needs`: it applies where any of these is claimed, and always if there are none. `bugs`: entries of the bug list that it would have seen. `kernels_too`: kernels
    answer for it as well as caches.
    """

    name: str
    section: str
    sentence: str
    needs: tuple[Need, ...] = ()
    bugs: tuple[str, ...] = ()
    kernels_too: bool = False

    @property
    def judges_kernels(self) -> bool:
        """Whether this law is about kernels rather than caches."""
        return self.section == "Kernels"

    def applies(self, capabilities: Capabilities) -> bool:
        """Whether a cache with these capabilities must keep this law."""
        return not self.judges_kernels and (not self.needs or any(claims(capabilities, need) for need in self.needs))


def claims(capabilities: Capabilities, need: Need) -> bool:
    """Whether `capabilities` include what a law needs."""
    kind, _, policy = need.partition(":")
    if policy:
        return policy in capabilities.policy
    if kind == "sliding_window":
        return any(group.kind == kind for group in capabilities.groups)
    return bool(getattr(capabilities, kind, False))


LAWS: tuple[Law, ...] = (
    Law(
        "refcount-equals-holders",
        "Ownership",
        "A block's reference count is the number of its holders: sequences whose table lists it, copies in flight, steps and transfers that pin it.",
        needs=("snapshot",),
        bugs=("B01", "B17", "B25", "B50", "B55", "B61", "B71"),
    ),
    Law(
        "pool-conserved",
        "Ownership",
        "Every block is in exactly one of: free, held, cached (free but matchable), retiring (unheld, device work pending), null; and their numbers add up to the pool.",
        needs=("snapshot",),
        bugs=("B07", "B19", "B56", "B64", "B77"),
    ),
    Law(
        "no-aliasing",
        "Ownership",
        "Two live sequences list the same block only where their token prefixes and namespaces agree over that whole block's committed tokens.",
        needs=(),
        bugs=("B49", "B50"),
    ),
    Law(
        "exclusive-write",
        "Ownership",
        "A slot is written only in a block that its writer alone holds and that no prefix entry promises to others. (With policy `rewrites`, a pass may write again exactly what a shared slot already holds.)",
        needs=(),
        bugs=("B79", "B83"),
    ),
    Law(
        "copy-before-write",
        "Ownership",
        "A shared block that must be continued is first copied, with all its committed keys, values and scales, before the new table is visible.",
        needs=("fork", "prefix"),
        bugs=("B38", "B79", "B83"),
    ),
    Law(
        "copy-batch-sound",
        "Ownership",
        "In one grant no block is both source and destination, no destination repeats, and both ends stay held until the copy has run.",
        needs=("fork", "prefix"),
        bugs=(),
    ),
    Law(
        "fenced-reuse",
        "Ownership",
        "A block that launched device work may still read or write is neither free nor handed out.",
        needs=("steps",),
        bugs=("B20", "B29", "B46", "B47"),
    ),
    Law(
        "release-once",
        "Ownership",
        "Finish, cancel, preempt, error and rollback release a holder exactly once; repeating them changes nothing; no count goes below zero.",
        needs=(),
        bugs=("B26", "B44", "B49", "B70"),
    ),
    Law(
        "failure-changes-nothing",
        "Ownership",
        "An operation that raises leaves every table, count, free block and match as it was (blocks already out of a window may be freed).",
        needs=(),
        bugs=("B01", "B17"),
    ),
    Law(
        "no-leak",
        "Ownership",
        "When every sequence is released and device work has drained, the whole pool can be allocated again.",
        needs=(),
        bugs=("B01", "B28", "B52", "B71", "B88"),
    ),
    Law(
        "no-spurious-exhaustion",
        "Ownership",
        "Extend succeeds whenever the sequence is alone and the pool could hold it; with policy `exact`, whenever free and evictable blocks suffice for what it asks.",
        needs=(),
        bugs=("B07", "B19", "B56", "B64"),
    ),
    Law(
        "mirror-follows",
        "Ownership",
        "When a step begins, the block table that the device side holds equals the manager's, whatever was preempted, resumed or dropped before.",
        needs=("mirror",),
        bugs=("B14", "B31", "B43"),
    ),
    Law(
        "committed-is-covered",
        "Content",
        "The table covers every computed token, and table and computed count change together.",
        needs=(),
        bugs=("B10", "B43", "B68", "B82"),
    ),
    Law(
        "initialised-read",
        "Content",
        "Every readable position maps to a slot that has been written.",
        needs=(),
        bugs=("B05", "B32", "B80"),
    ),
    Law(
        "own-content",
        "Content",
        "Every readable position shows its own sequence's token prefix, position, namespace and scale.",
        needs=(),
        bugs=("B10", "B62", "B82"),
    ),
    Law(
        "rejection-forgets",
        "Content",
        "After a rejection the rejected tokens are neither readable nor matchable, and the next tokens take their slots.",
        needs=("drafts",),
        bugs=(),
    ),
    Law(
        "truncate-exact",
        "Content",
        "After truncation to n, exactly the first n tokens are computed, or the cache refused and nothing changed.",
        needs=("truncate",),
        bugs=(),
    ),
    Law(
        "fork-shares-then-diverges",
        "Content",
        "After a fork both sequences read the same prefix; whatever either writes later is invisible to the other.",
        needs=("fork",),
        bugs=(),
    ),
    Law(
        "window-keeps-what-it-needs",
        "Content",
        "A windowed group frees a block only when every token in it is out of the window of every token still to be computed, including those in flight.",
        needs=("sliding_window",),
        bugs=("B65",),
    ),
    Law(
        "served-equals-contiguous",
        "Content",
        "What a pass computes from real keys and values, in whatever batch and after whatever history, equals what the contiguous sequence gives.",
        needs=("tensors",),
        bugs=(),
    ),
    Law(
        "hit-is-true-prefix",
        "Prefix",
        "A match returns only tokens whose exact ids, from the first on, equal the prompt's, whatever the hash says.",
        needs=("prefix",),
        bugs=("B02", "B04", "B13", "B67", "B73", "B85", "B86"),
    ),
    Law(
        "hit-leaves-last-token",
        "Prefix",
        "A match never covers the whole prompt: at least one token is left to compute.",
        needs=("prefix",),
        bugs=("B10", "B68"),
    ),
    Law(
        "hit-same-namespace",
        "Prefix",
        "A match never crosses a difference in any namespace field the cache claims to tell apart.",
        needs=("prefix",),
        bugs=("B16", "B53"),
    ),
    Law(
        "published-is-committed",
        "Prefix",
        "Only whole blocks (or declared finer units) of accepted tokens are matchable: no draft, no open block. Content whose pass is not yet launched may be matched only by a reader whose own pass is launched with it or after it, and never survives if that pass is abandoned.",
        needs=("prefix",),
        bugs=("B11", "B80"),
    ),
    Law(
        "eviction-forgets",
        "Prefix",
        "A block that was reused or evicted is no longer matchable under any of its keys.",
        needs=("prefix",),
        bugs=("B04", "B05", "B67", "B73", "B85"),
    ),
    Law(
        "evict-only-unheld",
        "Prefix",
        "Eviction may make a held block unmatchable; it never takes one from its holders.",
        needs=("evict",),
        bugs=(),
    ),
    Law(
        "reset-forgets",
        "Prefix",
        "After a successful reset nothing matches; a reset that cannot succeed says so and changes nothing.",
        needs=("reset",),
        bugs=(),
    ),
    Law(
        "eviction-follows-policy",
        "Prefix",
        "Where a policy is claimed (for example least recently used, deeper blocks first), evictions follow it.",
        needs=("policy:lru",),
        bugs=("B08", "B22", "B23", "B91"),
    ),
    Law(
        "events-replay-index",
        "Prefix",
        "Replaying the emitted events gives exactly the matchable set.",
        needs=("events",),
        bugs=(),
    ),
    Law(
        "visible-after-install",
        "Transfer, swap, shards",
        "An imported sequence is readable only after its descriptor was checked, its data arrived whole and its blocks were installed in every group.",
        needs=("transfer",),
        bugs=("B58", "B88"),
    ),
    Law(
        "export-pinned",
        "Transfer, swap, shards",
        "A block being exported is not reused before the receiver has acknowledged or the transfer was abandoned.",
        needs=("transfer",),
        bugs=("B20", "B29", "B58"),
    ),
    Law(
        "swap-round-trip",
        "Transfer, swap, shards",
        "Swapping out and in again restores every readable position.",
        needs=("swap",),
        bugs=(),
    ),
    Law(
        "relayout-is-bijection",
        "Transfer, swap, shards",
        "Converting between layouts or shard counts moves every (layer, head, position) element exactly once, scales included.",
        needs=("transfer", "gather", "scatter", "move"),
        bugs=(),
        kernels_too=True,
    ),
    Law(
        "descriptor-mismatch-refused",
        "Transfer, swap, shards",
        "A cache whose descriptor differs in any field is a miss or a refusal, never an interpretation.",
        needs=("transfer",),
        bugs=("B40", "B41", "B74", "B76"),
    ),
    Law(
        "ledger-adds-up",
        "Capacity",
        "Bytes of blocks, scales, tables, padding and free space add up to the pool.",
        needs=("snapshot",),
        bugs=(),
    ),
    Law(
        "tail-waste-bounded",
        "Capacity",
        "With n live sequences and blocks of q tokens, allocated but uncomputed room is at most n(q-1) tokens beyond what extends have asked for.",
        needs=("policy:tight",),
        bugs=(),
    ),
    Law(
        "paged-equals-contiguous",
        "Kernels",
        "Attention over the paged pool equals attention over the contiguous sequence in float64, within the bound of its storage and accumulation types.",
        needs=(),
        bugs=("B37", "B59", "B65", "B89"),
    ),
    Law(
        "reads-only-owned",
        "Kernels",
        "Each program reads only committed slots of the sequences it serves.",
        needs=("machine",),
        bugs=(),
    ),
    Law(
        "writes-only-granted",
        "Kernels",
        "Each program writes only slots it was granted; a slot of -1 writes nothing.",
        needs=(),
        bugs=("B34",),
    ),
    Law(
        "in-bounds",
        "Kernels",
        "No access leaves its tensor.",
        needs=("machine",),
        bugs=(),
    ),
    Law(
        "no-address-overflow",
        "Kernels",
        "No address computation wraps at the largest pool the capabilities declare.",
        needs=("machine",),
        bugs=("B37",),
    ),
    Law(
        "garbage-independent",
        "Kernels",
        "Changing any slot that no live sequence owns, to NaN included, changes no output bit.",
        needs=(),
        bugs=("B32", "B35"),
    ),
    Law(
        "rename-invariant",
        "Kernels",
        "Renaming physical blocks changes no output bit.",
        needs=(),
        bugs=(),
    ),
    Law(
        "batch-invariant",
        "Kernels",
        "A sequence's output does not depend on which other sequences share the batch, within the claimed exactness.",
        needs=("batch_invariant",),
        bugs=(),
    ),
    Law(
        "padding-inert",
        "Kernels",
        "Padded lanes (captured graphs, empty sequences) write nothing and yield no NaN.",
        needs=(),
        bugs=("B34",),
    ),
    Law(
        "copy-is-complete",
        "Kernels",
        "A block copy moves keys, values and scales of every layer and nothing else.",
        needs=("copy",),
        bugs=("B38",),
    ),
    Law(
        "quantised-within-bound",
        "Kernels",
        "The stored value differs from the original by no more than its scheme allows, element by element.",
        needs=("fp8", "fp8-token", "int8", "low-bits"),
        bugs=(),
    ),
)

BY_NAME: dict[str, Law] = {law.name: law for law in LAWS}
CACHE_LAWS: tuple[Law, ...] = tuple(law for law in LAWS if not law.judges_kernels)
KERNEL_LAWS: tuple[Law, ...] = tuple(law for law in LAWS if law.judges_kernels or law.kernels_too)
