"""Every law on a scripted cache: the shortest history that breaks it, its nearest lawful neighbour, and readings that must not be false alarms."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kvproof.impl.checker import AdapterFault
from kvproof.models.capabilities import Capabilities, Group
from kvproof.models.checks.naming import counted, show_holders, show_positions
from kvproof.models.laws import CACHE_LAWS, claims
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
    Namespace,
    Release,
    Reset,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvproof.models.outcomes import Event, Grant, Hit, OutOfBlocks, Refused
from kvproof.properties.scripted import Do, computed, judge, out

WINDOW_2 = (Group("sliding_window", window=2),)
BOTH = (Group(), Group("sliding_window", window=2))
EVERYTHING = {"prefix": True, "fork": True, "truncate": True, "drafts": True, "evict": True, "reset": True, "swap": True}


class Case(msgspec.Struct, frozen=True):
    """A history whose last step breaks `law`, and the steps that a lawful cache would have answered otherwise."""

    law: str
    what: str
    says: tuple[str, ...]
    """What the reason must tell: whose, and which block, wherever there is one."""
    steps: list[Do]
    mend: Mapping[int, Do]
    how: Mapping[str, Any] = {}

    @property
    def mended(self) -> list[Do]:
        steps = list(self.steps)
        for index, step in self.mend.items():
            steps[index] = step
        return steps


RUN = out(0, (1, 2), [0])
"""One sequence with one whole block, block 0, whose pass has run."""

ONE = computed(0, (1, 2), [0])
"""The same, committed."""

CASES = [
    # -- ownership
    Case(
        "refcount-equals-holders",
        "a block is counted twice for its one holder",
        ("block 0 is 2, but only sequence 0 lists it",),
        [*RUN, Do(Commit(0), counts={0: 2})],
        {-1: Do(Commit(0), counts={0: 1})},
        {"snapshot": True},
    ),
    Case(
        "refcount-equals-holders",
        "a held block is not counted",
        ("block 0 is 0, but sequence 0 lists it",),
        [Do(Admit(0, (1, 2)), counts={}), Do(Extend(0, 2), tables={0: [0]})],
        {-1: Do(Extend(0, 2), tables={0: [0]}, counts={0: 1})},
        {"snapshot": True},
    ),
    Case(
        "refcount-equals-holders",
        "a block that nobody lists is counted",
        ("block 3 is 1, but nobody lists it",),
        [Do(Admit(0, (1,)), counts={3: 1})],
        {-1: Do(Admit(0, (1,)), counts={3: 0})},
        {"snapshot": True},
    ),
    Case(
        "refcount-equals-holders",
        "a fork does not count the child",
        ("block 0 is 1, but sequences 0 and 1 list it",),
        [*ONE, Do(Fork(0, 1), tables={1: [0]}, counts={0: 1})],
        {-1: Do(Fork(0, 1), tables={1: [0]}, counts={0: 2})},
        {"snapshot": True, "fork": True},
    ),
    Case(
        "pool-conserved",
        "a held block is free",
        ("block 0 is on the free list", "sequence 0"),
        [Do(Admit(0, (1, 2))), Do(Extend(0, 2), tables={0: [0]}, free=[0, 1, 2, 3])],
        {-1: Do(Extend(0, 2), tables={0: [0]}, free=[1, 2, 3])},
        {"snapshot": True},
    ),
    Case(
        "pool-conserved",
        "a block is neither free nor held",
        ("block 2 is neither free nor held",),
        [Do(Admit(0, (1, 2))), Do(Extend(0, 2), tables={0: [0]}, free=[1, 3])],
        {-1: Do(Extend(0, 2), tables={0: [0]}, free=[1, 3, 2])},
        {"snapshot": True},
    ),
    Case(
        "pool-conserved",
        "a block is free twice",
        ("block 1 is on the free list twice",),
        [Do(Admit(0, (1,)), free=[0, 1, 2, 3, 1])],
        {-1: Do(Admit(0, (1,)), free=[0, 1, 2, 3])},
        {"snapshot": True},
    ),
    Case(
        "pool-conserved",
        "the counter and the free list disagree",
        ("counts 1 free block after admit, but its free list has 4",),
        [Do(Admit(0, (1,)), free=[0, 1, 2, 3], free_count=1)],
        {-1: Do(Admit(0, (1,)), free=[0, 1, 2, 3], free_count=4)},
        {"snapshot": True},
    ),
    Case(
        "pool-conserved",
        "a null block is free",
        ("block 0 is a null block",),
        [Do(Admit(0, (1,)), free=[0, 1, 2, 3])],
        {-1: Do(Admit(0, (1,)), free=[1, 2, 3])},
        {"snapshot": True, "null_blocks": {0}},
    ),
    Case(
        "pool-conserved",
        "a block waits for device work that nobody does",
        ("block 3 waits for device work",),
        [Do(Admit(0, (1,)), free=[0, 1, 2], retiring=[3])],
        {-1: Do(Admit(0, (1,)), free=[0, 1, 2, 3], retiring=[])},
        {"snapshot": True, "steps": True},
    ),
    Case(
        "pool-conserved",
        "a block is both free and retiring",
        ("block 0 is both free and retiring",),
        [
            *out(0, (1,), [0]),
            Do(BeginStep()),
            Do(Release(0), free=[1, 2, 3], retiring=[0]),
            Do(EndStep(), free=[0, 1, 2, 3]),
        ],
        {-1: Do(EndStep(), free=[0, 1, 2, 3], retiring=[])},
        {"snapshot": True, "steps": True},
    ),
    Case(
        "no-aliasing",
        "a held block is given to another sequence",
        ("block 0 still belongs to sequence 0", "sequence 1 was given it"),
        [*out(0, (1,), [0]), Do(Admit(1, (2,))), Do(Extend(1, 1), tables={1: [0]})],
        {-1: Do(Extend(1, 1), tables={1: [1]})},
    ),
    Case(
        "no-aliasing",
        "one sequence lists a block twice",
        ("sequence 0 lists block 0 twice",),
        [Do(Admit(0, (1, 2, 3))), Do(Extend(0, 3), tables={0: [0, 0]})],
        {-1: Do(Extend(0, 3), tables={0: [0, 1]})},
    ),
    Case(
        "no-aliasing",
        "a commit repoints a table to a block of other tokens",
        ("sequences 0 and 1 both list block 0", "tokens up to position 1 differ"),
        [*ONE, *out(1, (1, 3), [1]), Do(Commit(1), tables={1: [0]})],
        {-2: Do(Extend(1, 2), tables={1: [1]}), 3: Do(Admit(1, (1, 2)))},
    ),
    Case(
        "no-aliasing",
        "a commit repoints a table to a block of another namespace",
        ("sequences 0 and 1 both list block 0", "namespaces up to position 1 differ"),
        [*ONE, *out(1, (1, 2), [1], Namespace(tenant="a")), Do(Commit(1), tables={1: [0]})],
        {3: Do(Admit(1, (1, 2)))},
    ),
    Case(
        "no-aliasing",
        "two sequences list a block at different places",
        ("sequences 0 and 1 list block 0 at index 0", "at index 1"),
        [*computed(0, (1, 1, 1, 1), [0, 1]), Do(Fork(0, 1), tables={1: [1, 0]})],
        {-1: Do(Fork(0, 1), tables={1: [0, 1]})},
        {"fork": True},
    ),
    Case(
        "no-aliasing",
        "two groups list one block",
        ("sequence 0 lists block 0 twice",),
        [Do(Admit(0, (1,))), Do(Extend(0, 1), tables={0: ([0], [0])})],
        {-1: Do(Extend(0, 1), tables={0: ([0], [1])})},
        {"groups": (Group(), Group())},
    ),
    Case(
        "exclusive-write",
        "a fork writes into the shared tail",
        ("the pass of sequence 1 writes position 1 into block 0", "sequence 0 holds too"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Extend(1, 1)),
        ],
        {-1: Do(Extend(1, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]})},
        {"fork": True},
    ),
    Case(
        "exclusive-write",
        "a roll-back writes over what the prefix index promises",
        ("2 tokens for sequence 1", "block 0", "another pass wrote over it"),
        [
            *ONE,
            Do(Truncate(0, 1)),
            Do(Append(0, (3,))),
            Do(Extend(0, 1)),
            Do(Admit(1, (1, 2, 9))),
            Do(Match(1), Hit(2)),
        ],
        {-1: Do(Match(1), Hit(1))},
        {"prefix": True, "truncate": True},
    ),
    Case(
        "exclusive-write",
        "the policy rewrites does not let other tokens be written",
        ("the pass of sequence 1 writes position 1 into block 0", "sequence 0 holds too"),
        [*ONE, Do(Fork(0, 1), tables={1: [0]}), Do(Truncate(1, 1)), Do(Append(1, (3,))), Do(Extend(1, 1))],
        {5: Do(Append(1, (2,)))},
        {"fork": True, "truncate": True, "policy": {"rewrites"}},
    ),
    Case(
        "copy-before-write",
        "the tail of a fork moves to a new block that nothing was copied to",
        ("position 0 of sequence 1 lies in block 1",),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Extend(1, 1), tables={1: [1]}),
        ],
        {-1: Do(Extend(1, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]})},
        {"fork": True},
    ),
    Case(
        "copy-before-write",
        "a copy names another group than the one that lists the block",
        ("fork copies block 1 to block 3 for the layers of group 0", "block 3 is listed in group 1"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: ([0], [1])}),
            Do(Commit(0)),
            Do(Fork(0, 1), Grant(copies=[(0, 0, 2), (0, 1, 3)]), tables={1: ([2], [3])}),
        ],
        {-1: Do(Fork(0, 1), Grant(copies=[(0, 0, 2), (1, 1, 3)]), tables={1: ([2], [3])})},
        {"groups": (Group(), Group()), "fork": True},
    ),
    Case(
        "copy-batch-sound",
        "a block is source and destination at once",
        ("block 1 is both source and destination in one grant of fork",),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Fork(0, 1), Grant(copies=[(0, 0, 1), (0, 1, 2)]), tables={1: [1, 2]})],
        {-1: Do(Fork(0, 1), Grant(copies=[(0, 0, 3), (0, 1, 2)]), tables={1: [3, 2]})},
        {"fork": True},
    ),
    Case(
        "copy-batch-sound",
        "a destination repeats",
        ("fork copies to block 2 twice",),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Fork(0, 1), Grant(copies=[(0, 0, 2), (0, 1, 2)]), tables={1: [2, 3]})],
        {-1: Do(Fork(0, 1), Grant(copies=[(0, 0, 2), (0, 1, 3)]), tables={1: [2, 3]})},
        {"fork": True},
    ),
    Case(
        "copy-batch-sound",
        "the source of a waiting copy is handed out",
        ("block 0 takes part in a copy for sequence 1", "sequence 2 was given it"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(BeginStep()),
            Do(EndStep()),
            Do(Commit(0)),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Extend(1, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Release(0)),
            Do(Admit(2, (9,))),
            Do(Extend(2, 1), tables={2: [0]}),
        ],
        {-1: Do(Extend(2, 1), tables={2: [2]})},
        {"fork": True, "steps": True},
    ),
    Case(
        "copy-batch-sound",
        "the source of a waiting copy is free",
        ("block 0 is on the free list", "a copy for sequence 1"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(BeginStep()),
            Do(EndStep()),
            Do(Commit(0)),
            Do(Fork(0, 1), tables={1: [0]}),
            Do(Extend(1, 1), Grant(copies=[(0, 0, 1)]), tables={1: [1]}),
            Do(Release(0), free=[2, 3, 0]),
        ],
        {-1: Do(Release(0), free=[2, 3], retiring=[0])},
        {"fork": True, "steps": True, "snapshot": True},
    ),
    Case(
        "fenced-reuse",
        "a block is handed out while a cancelled pass still writes it",
        ("block 0 is still read or written by the pass of sequence 0", "sequence 1 was given it"),
        [
            *out(0, (1,), [0]),
            Do(BeginStep()),
            Do(Release(0, "cancel")),
            Do(Admit(1, (2,))),
            Do(Extend(1, 1), tables={1: [0]}),
        ],
        {-1: Do(Extend(1, 1), tables={1: [1]})},
        {"steps": True},
    ),
    Case(
        "fenced-reuse",
        "a block is free while a cancelled pass still writes it",
        ("block 0 is on the free list", "the pass of sequence 0"),
        [*out(0, (1,), [0]), Do(BeginStep()), Do(Release(0, "cancel"), free=[1, 2, 3, 0])],
        {-1: Do(Release(0, "cancel"), free=[1, 2, 3], retiring=[0])},
        {"steps": True, "snapshot": True},
    ),
    Case(
        "release-once",
        "a preempted sequence keeps its table",
        ("sequence 0 holds nothing", "[0]", "release"),
        [*out(0, (1,), [0]), Do(Release(0, "preempt"))],
        {-1: Do(Release(0, "preempt"), tables={0: []})},
    ),
    Case(
        "release-once",
        "a second release gives back a block again",
        ("sequence 0 holds nothing", "the reference count of block 0 from 1 to 0"),
        [
            *computed(0, (1, 2), [0]),
            Do(Fork(0, 1), tables={1: [0]}, counts={0: 2}),
            Do(Release(0), counts={0: 1}),
            Do(Release(0, "cancel"), counts={}),
        ],
        {-1: Do(Release(0, "cancel"), counts={0: 1})},
        {"snapshot": True, "fork": True},
    ),
    Case(
        "release-once",
        "a second release raises",
        ("sequence 0 holds nothing", "KeyError: 0"),
        [Do(Admit(0, (1,))), Do(Release(0)), Do(Release(0, "error"), KeyError(0))],
        {-1: Do(Release(0, "error"))},
    ),
    Case(
        "release-once",
        "a preempted sequence is given back again when it is preempted again",
        ("sequence 0 holds nothing", "block 1 joined"),
        [Do(Admit(0, (1,)), free=[0]), Do(Release(0, "preempt"), free=[0, 1])],
        {-1: Do(Release(0, "preempt"))},
        {"snapshot": True, "capacity": 1, "num_blocks": 2},
    ),
    Case(
        "release-once",
        "a count goes below zero",
        ("block 0 is -1",),
        [Do(Admit(0, (1,)), counts={}), Do(Release(0), counts={0: -1})],
        {-1: Do(Release(0), counts={0: 0})},
        {"snapshot": True},
    ),
    Case(
        "release-once",
        "a release frees a block twice",
        ("block 0 is on the free list twice",),
        [Do(Admit(0, (1,)), free=[0, 1, 2, 3]), Do(Release(0), free=[0, 0, 1, 2, 3])],
        {-1: Do(Release(0), free=[0, 1, 2, 3])},
        {"snapshot": True},
    ),
    Case(
        "failure-changes-nothing",
        "a refused extend leaves a block in the table",
        ("extend failed", "the block table of sequence 0 from [] to [0]"),
        [Do(Admit(0, (1,))), Do(Extend(0, 1), Refused(), tables={0: [0]})],
        {-1: Do(Extend(0, 1), Refused())},
    ),
    Case(
        "failure-changes-nothing",
        "an extend without room leaves a count",
        ("extend failed", "the reference count of block 0 from 1 to 2"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 2), tables={0: [0]}, counts={0: 1}),
            Do(Admit(1, (1, 2, 3))),
            Do(Extend(1, 3), OutOfBlocks(), counts={0: 2}),
        ],
        {-1: Do(Extend(1, 3), OutOfBlocks())},
        {"snapshot": True, "num_blocks": 2},
    ),
    Case(
        "failure-changes-nothing",
        "an extend without room takes a block from the free list",
        ("extend failed", "block 1 left"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 2), tables={0: [0]}, free=[1]),
            Do(Admit(1, (1, 2, 3))),
            Do(Extend(1, 3), OutOfBlocks(), free=[]),
        ],
        {-1: Do(Extend(1, 3), OutOfBlocks())},
        {"snapshot": True, "num_blocks": 2},
    ),
    Case(
        "failure-changes-nothing",
        "a fork without room makes a block unmatchable",
        ("fork failed", "matchable set: block 0 left"),
        [*RUN, Do(Commit(0), cached=[0]), Do(Fork(0, 1), OutOfBlocks(), cached=[])],
        {-1: Do(Fork(0, 1), OutOfBlocks())},
        {"snapshot": True, "fork": True, "prefix": True},
    ),
    Case(
        "failure-changes-nothing",
        "a swap that could not be made empties the table",
        ("swapout failed", "the block table of sequence 0 from [0] to []"),
        [*computed(0, (1,), [0]), Do(SwapOut(0), answer=False, tables={0: []})],
        {-1: Do(SwapOut(0), answer=False)},
        {"swap": True},
    ),
    Case(
        "failure-changes-nothing",
        "a match says less although nothing happened in between",
        ("match found 2 tokens for sequence 1 before and 0 now",),
        [
            *RUN,
            Do(Admit(1, (1, 2, 3))),
            Do(Match(1), Hit(2)),
            Do(Match(1), Hit(0)),
        ],
        {-1: Do(Match(1), Hit(2))},
        {"prefix": True},
    ),
    Case(
        "no-leak",
        "a released block never comes back",
        ("sequence 1", "needs 1 of 1 blocks", "got OutOfBlocks"),
        [
            *out(0, (1,), [0]),
            Do(Release(0)),
            Do(Admit(1, (2,))),
            Do(Extend(1, 1), OutOfBlocks()),
        ],
        {-1: Do(Extend(1, 1), tables={1: [0]})},
        {"num_blocks": 1},
    ),
    Case(
        "no-leak",
        "the books lose a released block",
        ("block 0 is neither free nor held nor retiring after release",),
        [*out(0, (1,), [0]), Do(Release(0), free=[1, 2, 3])],
        {-1: Do(Release(0), free=[1, 2, 3, 0])},
        {"snapshot": True},
    ),
    Case(
        "no-spurious-exhaustion",
        "a sequence that is alone finds no room in an empty pool",
        ("sequence 0 is alone and needs 1 of 1 blocks",),
        [Do(Admit(0, (1, 2))), Do(Extend(0, 1), OutOfBlocks())],
        {0: Do(Admit(0, (1, 2, 3)))},
        {"num_blocks": 1},
    ),
    Case(
        "no-spurious-exhaustion",
        "an exact cache finds no room although a block is left",
        ("sequence 1 needs at most 1 more block, and 1 block can be had, free or evictable",),
        [
            *out(0, (1,), [0]),
            Do(Admit(1, (2, 3))),
            Do(Extend(1, 1), OutOfBlocks()),
        ],
        {2: Do(Admit(1, (2, 3, 4)))},
        {"num_blocks": 2, "policy": {"exact"}},
    ),
    Case(
        "no-spurious-exhaustion",
        "an exact cache asks for blocks that it has just promised to share",
        ("sequence 1 needs at most 1 more block, and 1 block can be had, free or evictable",),
        [
            *out(0, (1, 2, 3), [0, 1, 2]),
            Do(Admit(1, (1, 2, 4))),
            Do(Match(1), Hit(2)),
            Do(Extend(1, 1), OutOfBlocks()),
        ],
        {2: Do(Admit(1, (1, 2, 4, 5)))},
        {"num_blocks": 4, "block_size": 1, "prefix": True, "policy": {"exact"}},
    ),
    Case(
        "mirror-follows",
        "the device has another table when its pass runs",
        ("[1] as the device's table of sequence 0", "the manager's is [0]"),
        [Do(Admit(0, (1,))), Do(Extend(0, 1), tables={0: [0]}, device={0: [1]})],
        {-1: Do(Extend(0, 1), tables={0: [0]}, device={0: [0]})},
        {"mirror": True},
    ),
    Case(
        "mirror-follows",
        "the device has an old table when the step begins",
        ("[] as the device's table of sequence 0", "the manager's is [0]"),
        [*out(0, (1,), [0]), Do(BeginStep())],
        {-1: Do(BeginStep(), device={0: [0]})},
        {"mirror": True, "steps": True},
    ),
    # -- content
    Case(
        "committed-is-covered",
        "the table is too short for what was granted",
        ("sequence 0 the positions 0 to 2", "[0] has no block for position 2"),
        [Do(Admit(0, (1, 2, 3))), Do(Extend(0, 3), tables={0: [0]})],
        {-1: Do(Extend(0, 3), tables={0: [0, 1]})},
    ),
    Case(
        "committed-is-covered",
        "the table is too short for the drafts",
        ("sequence 0 the positions 1 to 2", "[0] has no block for position 2"),
        [Do(Admit(0, (1, 2))), Do(Extend(0, 1), tables={0: [0]}), Do(Commit(0)), Do(Extend(0, 1, (3,)))],
        {-1: Do(Extend(0, 1, (3,)), tables={0: [0, 1]})},
        {"drafts": True},
    ),
    Case(
        "committed-is-covered",
        "a sequence that computed nothing has a table",
        ("sequence 0 holds nothing", "[3] after admit"),
        [Do(Admit(0, (1,)), tables={0: [3]})],
        {-1: Do(Admit(0, (1,)), tables={0: []})},
    ),
    Case(
        "committed-is-covered",
        "an append drops a block",
        ("sequence 0 reads position 2", "[0] has no block for it"),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Append(0, (4,)), tables={0: [0]})],
        {-1: Do(Append(0, (4,)), tables={0: [0, 1]})},
    ),
    Case(
        "committed-is-covered",
        "a table skips a block although no group has a window",
        ("sequence 0 reads position 0", "[-, 1] has no block for it"),
        [*out(0, (1, 2, 3), [0, 1]), Do(Commit(0), tables={0: [None, 1]})],
        {-1: Do(Commit(0))},
    ),
    Case(
        "committed-is-covered",
        "adopted tokens are not in the table",
        ("adopted 2 tokens, and sequence 1 reads position 0, but its table [-, 1] has no block for it",),
        [*RUN, Do(Admit(1, (1, 2, 3))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [None, 1]})],
        {-1: Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]})},
        {"prefix": True},
    ),
    Case(
        "initialised-read",
        "a commit repoints a table to a block that was never written",
        ("position 0 of sequence 0 lies in block 1", "nothing of it has been written"),
        [*out(0, (1,), [0]), Do(Commit(0), tables={0: [1]})],
        {-1: Do(Commit(0), tables={0: [0]})},
    ),
    Case(
        "initialised-read",
        "an adopted block is cleared",
        ("position 0 of sequence 1 lies in block 0", "lost from block 0 when it was cleared"),
        [*RUN, Do(Admit(1, (1, 2, 3))), Do(Extend(1, 1), Grant(adopted=2, zeroed=[0]), tables={1: [0, 1]})],
        {-1: Do(Extend(1, 1), Grant(adopted=2, zeroed=[1]), tables={1: [0, 1]})},
        {"prefix": True},
    ),
    Case(
        "own-content",
        "a commit swaps two blocks",
        ("position 0 of sequence 0 lies in block 1", "position 2 of the tokens [1, 2, 3]"),
        [*out(0, (1, 2, 3), [0, 1]), Do(Commit(0), tables={0: [1, 0]})],
        {-1: Do(Commit(0), tables={0: [0, 1]})},
    ),
    Case(
        "own-content",
        "a sequence reads what another's pass wrote",
        ("position 0 of sequence 1 lies in block 0", "the tokens [1]"),
        [*out(0, (1,), [0]), *out(1, (2,), [1]), Do(Commit(1), tables={1: [0]})],
        {-1: Do(Commit(1))},
    ),
    Case(
        "own-content",
        "a block of one group is read by another group",
        ("position 0 of sequence 0 (group 0) lies in block 1", "of group 1 was written"),
        [*out(0, (1,), ([0], [1])), Do(Commit(0), tables={0: ([1], [0])})],
        {-1: Do(Commit(0))},
        {"groups": (Group(), Group())},
    ),
    Case(
        "rejection-forgets",
        "a rejected draft is matched",
        ("4 tokens for sequence 1", "in block 1 until the draft was rejected"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1]}),
            Do(Commit(0, 0)),
            Do(Admit(1, (1, 2, 3, 4, 5))),
            Do(Match(1), Hit(4)),
        ],
        {4: Do(Commit(0, 2))},
        {"drafts": True, "prefix": True},
    ),
    Case(
        "rejection-forgets",
        "a block of rejected drafts is counted as matchable",
        ("block 1 as matchable", "the draft was rejected"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1]}),
            Do(Commit(0, 0), cached=[0, 1]),
        ],
        {-1: Do(Commit(0, 0), cached=[0])},
        {"drafts": True, "prefix": True, "snapshot": True},
    ),
    Case(
        "truncate-exact",
        "a truncation keeps the last block instead of the first",
        ("after truncate", "position 0 of sequence 0 lies in block 1"),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Truncate(0, 2), tables={0: [1]})],
        {-1: Do(Truncate(0, 2), tables={0: [0]})},
        {"truncate": True},
    ),
    Case(
        "truncate-exact",
        "a truncation drops the open block",
        ("sequence 0 reads position 2", "[0] has no block for it"),
        [*computed(0, (1, 2, 3, 4), [0, 1]), Do(Truncate(0, 3), tables={0: [0]})],
        {-1: Do(Truncate(0, 3))},
        {"truncate": True},
    ),
    Case(
        "fork-shares-then-diverges",
        "the child is given an empty block",
        ("after fork", "position 0 of sequence 1 lies in block 1"),
        [*computed(0, (1,), [0]), Do(Fork(0, 1), tables={1: [1]})],
        {-1: Do(Fork(0, 1), tables={1: [0]})},
        {"fork": True},
    ),
    Case(
        "fork-shares-then-diverges",
        "the child is given a copy of another block",
        ("after fork", "position 0 of sequence 1 lies in block 2"),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Fork(0, 1), Grant(copies=[(0, 1, 2)]), tables={1: [2, 1]})],
        {-1: Do(Fork(0, 1), Grant(copies=[(0, 0, 2)]), tables={1: [2, 1]})},
        {"fork": True},
    ),
    Case(
        "window-keeps-what-it-needs",
        "a block is dropped that the next token reads",
        ("sequence 0 reads position 2", "[-, -, -] has no block for it"),
        [*out(0, (1, 2, 3), [0, 1, 2]), Do(Commit(0), tables={0: [None, None, None]})],
        {-1: Do(Commit(0), tables={0: [None, None, 2]})},
        {"groups": WINDOW_2, "block_size": 1},
    ),
    Case(
        "window-keeps-what-it-needs",
        "drafts count as computed before they are accepted",
        ("sequence 0 reads position 1", "has no block for it"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1, 2, 3]}),
            Do(Commit(0, 0), tables={0: [None, None, None, 3]}),
        ],
        {-1: Do(Commit(0, 2), tables={0: [None, None, None, 3]})},
        {"groups": WINDOW_2, "block_size": 1, "drafts": True},
    ),
    Case(
        "window-keeps-what-it-needs",
        "the window slides under a pass that may still be rejected",
        ("sequence 0 the positions 2 to 3", "has no block for position 2"),
        [
            *computed(0, (1, 2), [0, 1]),
            Do(Append(0, (3,))),
            Do(Extend(0, 1, (4,)), tables={0: [None, 1, None, 3]}),
        ],
        {-1: Do(Extend(0, 1, (4,)), tables={0: [None, 1, 2, 3]})},
        {"groups": WINDOW_2, "block_size": 1, "drafts": True},
    ),
    Case(
        "window-keeps-what-it-needs",
        "adopted tokens in the window are not in the table",
        ("adopted 2 tokens", "sequence 1 reads position 1 (group 1)"),
        [
            *out(0, (1, 2), ([0, 1], [2, 3])),
            Do(Admit(1, (1, 2, 3))),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: ([0, 1, 4], [None, None, 5])}),
        ],
        {-1: Do(Extend(1, 1), Grant(adopted=2), tables={1: ([0, 1, 4], [None, 3, 5])})},
        {"groups": BOTH, "block_size": 1, "num_blocks": 6, "prefix": True},
    ),
    # -- prefix
    Case(
        "hit-is-true-prefix",
        "a match finds what nobody computed",
        ("1 token for sequence 0", "no sequence ever computed this prefix"),
        [Do(Admit(0, (1, 2))), Do(Match(0), Hit(1))],
        {-1: Do(Match(0), Hit(0))},
        {"prefix": True},
    ),
    Case(
        "hit-is-true-prefix",
        "equal tokens after unequal ones are adopted",
        ("position 0 of sequence 1 in block 0", "the tokens [1]"),
        [*RUN, Do(Admit(1, (9, 2, 3))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]})],
        {2: Do(Admit(1, (1, 2, 3)))},
        {"prefix": True},
    ),
    Case(
        "hit-leaves-last-token",
        "a match covers the whole prompt",
        ("2 tokens for sequence 1, which knows 2",),
        [*RUN, Do(Admit(1, (1, 2))), Do(Match(1), Hit(2))],
        {-1: Do(Match(1), Hit(1))},
        {"prefix": True},
    ),
    Case(
        "hit-leaves-last-token",
        "an adoption covers the whole prompt",
        ("2 tokens for sequence 1, which knows 2",),
        [*RUN, Do(Admit(1, (1, 2))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [0]})],
        {2: Do(Admit(1, (1, 2, 3))), -1: Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]})},
        {"prefix": True},
    ),
    Case(
        "hit-same-namespace",
        "a match crosses to another tenant",
        ("2 tokens for sequence 1", "tenant='a'", "tenant='b'"),
        [*out(0, (1, 2), [0], Namespace(tenant="a")), Do(Admit(1, (1, 2, 3), Namespace(tenant="b"))), Do(Match(1), Hit(2))],
        {2: Do(Admit(1, (1, 2, 3), Namespace(tenant="a")))},
        {"prefix": True, "namespace_fields": {"tenant"}},
    ),
    Case(
        "hit-same-namespace",
        "an adoption crosses to the empty namespace",
        ("position 0 of sequence 1 in block 0", "adapter='a'", "the empty namespace"),
        [
            *out(0, (1, 2), [0], Namespace(adapter="a")),
            Do(Admit(1, (1, 2, 3))),
            Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]}),
        ],
        {2: Do(Admit(1, (1, 2, 3), Namespace(adapter="a")))},
        {"prefix": True, "namespace_fields": {"adapter"}},
    ),
    Case(
        "published-is-committed",
        "an open block is matched as if it were whole",
        ("4 tokens for sequence 1", "only 3 of these tokens were ever computed"),
        [*out(0, (1, 2, 3), [0, 1]), Do(Admit(1, (1, 2, 3, 4, 5))), Do(Match(1), Hit(4))],
        {-1: Do(Match(1), Hit(2))},
        {"prefix": True},
    ),
    Case(
        "published-is-committed",
        "a draft is matched",
        ("4 tokens for sequence 1", "position 2 is a draft that was not accepted yet"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1]}),
            Do(Admit(1, (1, 2, 3, 4, 5))),
            Do(Match(1), Hit(4)),
        ],
        {-1: Do(Match(1), Hit(2))},
        {"prefix": True, "drafts": True},
    ),
    Case(
        "published-is-committed",
        "a draft is adopted",
        ("position 2 of sequence 1 in block 1", "a draft that was not accepted yet"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 1), tables={0: [0]}),
            Do(Commit(0)),
            Do(Extend(0, 1, (3, 4)), tables={0: [0, 1]}),
            Do(Admit(1, (1, 2, 3, 4, 5))),
            Do(Extend(1, 1), Grant(adopted=4), tables={1: [0, 1, 2]}),
        ],
        {-1: Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 2]})},
        {"prefix": True, "drafts": True},
    ),
    Case(
        "published-is-committed",
        "what an abandoned pass would have written is matched",
        ("2 tokens for sequence 1", "in block 0", "abandoned before its launch"),
        [*RUN, Do(Release(0)), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))],
        {-1: Do(Match(1), Hit(0))},
        {"prefix": True, "steps": True},
    ),
    Case(
        "published-is-committed",
        "the block that a sequence still fills is shared",
        ("position 0 of sequence 1 in block 0", "sequence 0 has filled only 1 token of that block"),
        [*out(0, (1,), [0]), Do(Admit(1, (1, 2))), Do(Extend(1, 1), Grant(adopted=1), tables={1: [0]})],
        {-1: Do(Extend(1, 1), Grant(adopted=1, copies=[(0, 0, 1)]), tables={1: [1]})},
        {"prefix": True},
    ),
    Case(
        "published-is-committed",
        "an unwritten block is counted as matchable",
        ("block 3 as matchable", "no accepted token was ever written there"),
        [Do(Admit(0, (1,)), cached=[3])],
        {-1: Do(Admit(0, (1,)), cached=[])},
        {"prefix": True, "snapshot": True},
    ),
    Case(
        "eviction-forgets",
        "an evicted block is matched",
        ("2 tokens for sequence 1", "the block that holds position 0 was made unmatchable (evicted)"),
        [*RUN, Do(Evict((0,)), 1), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))],
        {-1: Do(Match(1), Hit(0))},
        {"prefix": True, "evict": True},
    ),
    Case(
        "eviction-forgets",
        "an evicted block is adopted",
        ("position 0 of sequence 1 in block 0", "made unmatchable (evicted)"),
        [*RUN, Do(Evict((0,)), 1), Do(Admit(1, (1, 2, 3))), Do(Extend(1, 1), Grant(adopted=2), tables={1: [0, 1]})],
        {-1: Do(Extend(1, 1), tables={1: [1]})},
        {"prefix": True, "evict": True},
    ),
    Case(
        "eviction-forgets",
        "a block is matched under what it held before it was reused",
        ("2 tokens for sequence 2", "in block 0 until it was handed out again"),
        [*RUN, Do(Release(0)), Do(Admit(1, (9,))), Do(Extend(1, 1), tables={1: [0]}), Do(Admit(2, (1, 2, 3))), Do(Match(2), Hit(2))],
        {4: Do(Extend(1, 1), tables={1: [1]})},
        {"prefix": True},
    ),
    Case(
        "eviction-forgets",
        "an evicted block stays in the books",
        ("evict([0]) was not refused, yet the cache still counts block 0 as matchable",),
        [*RUN, Do(Commit(0), cached=[0]), Do(Evict((0,)), 1)],
        {-1: Do(Evict((0,)), 1, cached=[])},
        {"prefix": True, "evict": True, "snapshot": True},
    ),
    Case(
        "evict-only-unheld",
        "an eviction takes a block from its holder",
        ("evict([0]) changed the block table of sequence 0",),
        [*out(0, (1,), [0]), Do(Evict((0,)), 1, tables={0: []})],
        {-1: Do(Evict((0,)), 1)},
        {"evict": True},
    ),
    Case(
        "evict-only-unheld",
        "an eviction frees a held block",
        ("put block 0 on the free list", "a sequence holds it"),
        [
            Do(Admit(0, (1, 2))),
            Do(Extend(0, 2), tables={0: [0]}, free=[1, 2, 3]),
            Do(Evict((0, 1)), 1, free=[0, 1, 2, 3]),
        ],
        {-1: Do(Evict((0, 1)), 1)},
        {"evict": True, "snapshot": True},
    ),
    Case(
        "reset-forgets",
        "a match survives a reset",
        ("2 tokens for sequence 1", "made unmatchable (reset)"),
        [*RUN, Do(Reset(), answer=True), Do(Admit(1, (1, 2, 3))), Do(Match(1), Hit(2))],
        {2: Do(Reset(), answer=False)},
        {"prefix": True, "reset": True},
    ),
    Case(
        "reset-forgets",
        "the books still count a block as matchable after a reset",
        ("reset succeeded", "block 0"),
        [*RUN, Do(Commit(0), cached=[0]), Do(Reset(), answer=True)],
        {-1: Do(Reset(), answer=True, cached=[])},
        {"prefix": True, "reset": True, "snapshot": True},
    ),
    Case(
        "eviction-follows-policy",
        "the most recently used block is evicted",
        ("block 1, used in step 6, was evicted in step 9 before block 0, last used in step 3",),
        [
            *ONE,
            Do(Release(0), free=[0, 1], cached=[0]),
            Do(Admit(1, (3, 4))),
            Do(Extend(1, 2), tables={1: [1]}, free=[0]),
            Do(Commit(1), cached=[0, 1]),
            Do(Release(1), free=[0, 1]),
            Do(Admit(2, (5, 6))),
            Do(Extend(2, 1), tables={2: [1]}, free=[0], cached=[0]),
        ],
        {-1: Do(Extend(2, 1), tables={2: [0]}, free=[1], cached=[1])},
        {"prefix": True, "snapshot": True, "policy": {"lru"}, "num_blocks": 2},
    ),
    Case(
        "eviction-follows-policy",
        "the root of a sequence is evicted before its leaf",
        ("block 0 was evicted in step 5 before block 1, which lies deeper",),
        [
            *out(0, (1, 2, 3, 4), [0, 1]),
            Do(Commit(0), free=[], cached=[0, 1]),
            Do(Release(0), free=[1, 0]),
            Do(Admit(1, (9,))),
            Do(Extend(1, 1), tables={1: [0]}, free=[1], cached=[1]),
        ],
        {-1: Do(Extend(1, 1), tables={1: [1]}, free=[0], cached=[0])},
        {"prefix": True, "snapshot": True, "policy": {"lru"}, "num_blocks": 2},
    ),
    Case(
        "eviction-follows-policy",
        "one group goes before the end of another",
        ("block 0 was evicted in step 5 before block 3, which lies deeper in the same sequence, in group 1,",),
        [
            *out(0, (1, 2), ([0, 1], [2, 3])),
            Do(Commit(0), free=[], cached=[0, 1, 2, 3]),
            Do(Release(0), free=[1, 0, 3, 2]),
            Do(Admit(1, (9,))),
            Do(Extend(1, 1), tables={1: ([1], [0])}, free=[3, 2], cached=[3, 2]),
        ],
        {-1: Do(Extend(1, 1), tables={1: ([1], [3])}, free=[0, 2], cached=[0, 2])},
        {
            "groups": (Group(), Group()),
            "block_size": 1,
            "num_blocks": 4,
            "prefix": True,
            "snapshot": True,
            "policy": {"lru", "groups-together"},
        },
    ),
    Case(
        "eviction-follows-policy",
        "a later group goes before an earlier one",
        ("block 3 was evicted in step 5 before block", "which is of group 0, an earlier one,"),
        [
            *out(0, (1, 2), ([0, 1], [2, 3])),
            Do(Commit(0), free=[], cached=[0, 1, 2, 3]),
            Do(Release(0), free=[3, 2, 1, 0]),
            Do(Admit(1, (9,))),
            Do(Extend(1, 1), tables={1: ([3], [2])}, free=[1, 0], cached=[1, 0]),
        ],
        {-1: Do(Extend(1, 1), tables={1: ([1], [0])}, free=[3, 2], cached=[3, 2])},
        {
            "groups": (Group(), Group()),
            "block_size": 1,
            "num_blocks": 4,
            "prefix": True,
            "snapshot": True,
            "policy": {"lru", "groups-in-turn"},
        },
    ),
    Case(
        "events-replay-index",
        "an event names a block that is not matchable",
        ("gives [0], the cache matches []", "block 0"),
        [*RUN, Do(Commit(0), cached=[], events=[Event("stored", (0,))])],
        {-1: Do(Commit(0), cached=[0], events=[Event("stored", (0,))])},
        {"num_blocks": 3, "prefix": True, "snapshot": True, "events": True},
    ),
    Case(
        "events-replay-index",
        "no event says that a block is gone",
        ("gives [0], the cache matches []", "block 0"),
        [*RUN, Do(Commit(0), cached=[0], events=[Event("stored", (0,))]), Do(Reset(), answer=True, cached=[])],
        {-1: Do(Reset(), answer=True, cached=[], events=[Event("cleared")])},
        {"num_blocks": 3, "prefix": True, "snapshot": True, "events": True, "reset": True},
    ),
    Case(
        "events-replay-index",
        "no event says that a block is matchable",
        ("do not say that block 0 is matchable",),
        [*RUN, Do(Commit(0), cached=[0])],
        {-1: Do(Commit(0), cached=[0], events=[Event("stored", (0,))])},
        {"num_blocks": 3, "prefix": True, "snapshot": True, "events": True},
    ),
    # -- swap and capacity
    Case(
        "swap-round-trip",
        "a swap in does not bring the last block back",
        ("sequence 0 reads position 2", "[3] has no block for it"),
        [*computed(0, (1, 2, 3), [0, 1]), Do(SwapOut(0), tables={0: []}), Do(SwapIn(0), tables={0: [3]})],
        {-1: Do(SwapIn(0), tables={0: [3, 2]})},
        {"swap": True},
    ),
    Case(
        "ledger-adds-up",
        "more blocks are usable than claimed",
        ("claims 3 usable blocks, but 4 are free, held or retiring",),
        [Do(Admit(0, (1,)), free=[0, 1, 2, 3])],
        {-1: Do(Admit(0, (1,)), free=[1, 2, 3])},
        {"snapshot": True, "capacity": 3},
    ),
    Case(
        "tail-waste-bounded",
        "a table is longer than asked for",
        ("sequence 0 was asked to have room for 2 tokens", "[0, 1]"),
        [Do(Admit(0, (1, 2, 3))), Do(Extend(0, 2), tables={0: [0, 1]})],
        {-1: Do(Extend(0, 2), tables={0: [0]})},
        {"policy": {"tight"}},
    ),
    Case(
        "tail-waste-bounded",
        "the room of rejected drafts is kept after a truncation",
        ("sequence 0 was asked to have room for 2 tokens", "[0, 1]"),
        [*computed(0, (1, 2, 3), [0, 1]), Do(Truncate(0, 2))],
        {-1: Do(Truncate(0, 2), tables={0: [0]})},
        {"policy": {"tight"}, "truncate": True},
    ),
]


def without(steps: list[Do], index: int) -> list[Do]:
    return steps[:index] + steps[index + 1 :]


EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.law}: {case.what}")


@EVERY_CASE
def test_a_broken_law_is_named_at_its_step_and_the_reason_tells_whose(case: Case) -> None:
    found = judge(case.steps, **case.how)
    assert found is not None
    assert (found.law, found.step) == (case.law, len(case.steps) - 1), found.reason
    assert [words for words in case.says if words not in found.reason] == [], found.reason


@EVERY_CASE
def test_the_nearest_lawful_neighbour_is_accepted(case: Case) -> None:
    assert judge(case.mended, **case.how) is None


@EVERY_CASE
def test_no_step_of_the_history_can_be_left_out(case: Case) -> None:
    for index in range(len(case.steps) - 1):
        with contextlib.suppress(AdapterFault):
            found = judge(without(case.steps, index), skip=True, **case.how)
            same = found is not None and found.law == case.law and all(words in found.reason for words in case.says)
            lawful = same and judge(without(case.mended, index), skip=True, **case.how) is None
            assert not lawful, f"the same shows without {case.steps[index].op}"


@EVERY_CASE
def test_the_law_applies_to_what_the_broken_cache_claims(case: Case) -> None:
    law = next(law for law in CACHE_LAWS if law.name == case.law)
    claimed = Capabilities(**{name: value for name, value in case.how.items() if name not in ("num_blocks", "block_size")})
    assert law.applies(claimed)


def test_every_law_that_can_be_judged_today_has_a_case() -> None:
    elsewhere = Capabilities(
        transfer=True, tensors=True
    )  # nothing exercises the one yet, and what tensors show only their adapter can judge
    judged = {law.name for law in CACHE_LAWS if not claims(elsewhere, law.needs[0] if law.needs else "")}
    assert {case.law for case in CASES} == judged


# -- the words of a reason -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([], "nobody lists it"),
        ([(3, 0, 0)], "sequence 3 lists it"),
        ([(3, 0, 0), (3, 0, 1)], "sequence 3 lists it 2 times"),
        ([(1, 0, 0), (0, 0, 0)], "sequences 0 and 1 list it"),
        ([(2, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 4)], "sequences 0, 1 and 2 list it, 4 times in all"),
    ],
)
def test_who_lists_a_block(listed, words):
    assert show_holders(listed) == words


def test_numbers_and_positions_agree_with_their_nouns():
    assert (counted(1), counted(0), counted(2, "free block")) == ("1 token", "0 tokens", "2 free blocks")
    assert (show_positions(range(3, 4)), show_positions(range(3, 6))) == ("position 3", "the positions 3 to 5")


def test_a_hit_that_goes_wrong_within_a_block_is_told_by_its_first_wrong_position():
    script = [*computed(0, (1, 2, 3, 4), [0]), Do(Admit(1, (1, 2, 9, 4, 5))), Do(Match(1), Hit(4))]
    found = judge(script, prefix=True, block_size=4)
    assert (found.law, found.evidence.positions) == ("hit-is-true-prefix", (2,))
    assert "4 tokens for sequence 1, but at position 2 no sequence ever computed this prefix" in found.reason


def test_only_a_cache_with_steps_is_told_of_device_work_that_pins():
    reasons = [judge(out(0, (1, 2), [0], counts={0: 9}), snapshot=True, steps=steps).reason for steps in (True, False)]
    listed = "the reference count of block 0 is 9, but only sequence 0 lists it, and"
    assert reasons == [f"{listed} device work may pin it 1 time", f"{listed} passes that are not committed may count it 1 time"]


def test_a_null_block_in_a_table_is_named_where_a_block_was_to_be():
    how = {"num_blocks": 3, "null_blocks": frozenset({0, 2})}
    assert (
        "its table [-] has no block for position 0: the null block 0 or 2 stands there, or None" in judge(out(0, (1,), [0]), **how).reason
    )
    assert judge(out(0, (1,), []), **how).reason.endswith("has no block for position 0")
