"""What the spec says of single steps, for every answer that a small cache could give.

Each statement builds a spec, leads it to a fixed state, and lets the next answer be anything: the spec must accept exactly the right ones. Ids and counts range over all
that the shape allows and one beyond where that is an answer too.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    NO_NAMESPACE,
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
    Op,
    Release,
    Reset,
    Truncate,
)
from kvproof.models.outcomes import Grant, Hit, Outcome, OutOfBlocksSeen
from kvproof.models.spec import Spec
from kvproof.models.state import Books, Seen, Table

PLAIN = Capabilities()
SHARING = Capabilities(prefix=True, fork=True, truncate=True, drafts=True, evict=True, reset=True, namespace_fields=frozenset({"tenant"}))
STEPPED = Capabilities(steps=True)
BOOKED = Capabilities(snapshot=True)

Tables = Mapping[int, Table]


def _spec(capabilities: Capabilities = PLAIN, num_blocks: int = 4) -> Spec:
    return Spec(capabilities, num_blocks=num_blocks, block_size=2)


def _step(spec: Spec, op: Op, answer: Outcome, tables: Tables, books: Books | None = None) -> bool:
    """Whether the spec accepts the answer."""
    assert spec.enabled(op)
    return spec.apply(op, answer, Seen({seq: (table,) for seq, table in tables.items()}, books or Books())) is None


def _computed(
    spec: Spec, seq: int, prompt: tuple[int, ...], table: Table, others: Tables | None = None, namespace: Namespace = NO_NAMESPACE
) -> None:
    """A sequence that has computed its prompt into the blocks of `table`."""
    others = others or {}
    assert _step(spec, Admit(seq, prompt, namespace), None, {**others, seq: ()})
    assert _step(spec, Extend(seq, len(prompt)), Grant(), {**others, seq: table})
    assert _step(spec, Commit(seq), None, {**others, seq: table})


def two_blocks_of_a_table_must_differ(first: int, second: int) -> bool:
    """A sequence of four tokens may be given any two blocks, and never one twice.

    pre: 0 <= first < 4
    pre: 0 <= second < 4
    post: _
    """
    spec = _spec()
    _step(spec, Admit(0, (5, 6, 7, 8)), None, {0: ()})
    return _step(spec, Extend(0, 4), Grant(), {0: (first, second)}) == (first != second)


def a_held_block_is_never_given_to_another(block: int) -> bool:
    """With block 0 held, a second sequence may be given any other.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec()
    _computed(spec, 0, (5, 6), (0,))
    _step(spec, Admit(1, (7, 8)), None, {0: (0,), 1: ()})
    return _step(spec, Extend(1, 2), Grant(), {0: (0,), 1: (block,)}) == (block != 0)


def a_released_block_may_be_given_to_another(block: int) -> bool:
    """After the release every block is free for the next.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec()
    _computed(spec, 0, (5, 6), (0,))
    _step(spec, Release(0), None, {})
    _step(spec, Admit(1, (7, 8)), None, {1: ()})
    return _step(spec, Extend(1, 2), Grant(), {1: (block,)})


def a_table_covers_what_was_asked_for(length: int) -> bool:
    """Room for five tokens takes three blocks or more.

    pre: 0 <= length <= 4
    post: _
    """
    spec = _spec()
    _step(spec, Admit(0, (5, 6, 7, 8, 9)), None, {0: ()})
    return _step(spec, Extend(0, 5), Grant(), {0: (0, 1, 2, 3)[:length]}) == (length >= 3)


def a_computed_block_stays_where_it_is(block: int) -> bool:
    """A commit may not put another block in place of the one that was written.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec()
    _step(spec, Admit(0, (5, 6)), None, {0: ()})
    _step(spec, Extend(0, 2), Grant(), {0: (2,)})
    return _step(spec, Commit(0), None, {0: (block,)}) == (block == 2)


def an_append_moves_nothing(block: int) -> bool:
    """Tokens that become known change no table.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec()
    _computed(spec, 0, (5, 6), (1,))
    return _step(spec, Append(0, (7,)), None, {0: (block,)}) == (block == 1)


def running_out_of_blocks_is_no_answer_while_there_is_room(length: int) -> bool:
    """A lone prompt of up to eight tokens fits four blocks of two, and one of nine or ten does not.

    pre: 1 <= length <= 10
    post: _
    """
    spec = _spec()
    _step(spec, Admit(0, (5, 5, 5, 5, 5, 5, 5, 5, 5, 5)[:length]), None, {0: ()})
    return _step(spec, Extend(0, length), OutOfBlocksSeen(), {0: ()}) == (length > 8)


def a_failed_extend_changes_no_table(block: int) -> bool:
    """Out of blocks: the table is as it was.

    pre: 0 <= block < 2
    post: _
    """
    spec = _spec(num_blocks=2)
    _computed(spec, 0, (5, 6), (1,))
    _step(spec, Append(0, (1, 2, 3)), None, {0: (1,)})
    return _step(spec, Extend(0, 3), OutOfBlocksSeen(), {0: (block,)}) == (block == 1)


def nothing_matches_before_anything_is_computed(tokens: int) -> bool:
    """On a fresh cache a hit has no tokens.

    pre: 0 <= tokens <= 4
    post: _
    """
    spec = _spec(SHARING)
    _step(spec, Admit(0, (5, 6, 7)), None, {0: ()})
    return _step(spec, Match(0), Hit(tokens), {0: ()}) == (tokens == 0)


def a_hit_leaves_the_last_token(tokens: int) -> bool:
    """Three tokens were computed: the same prompt may hit two of them and not all.

    pre: 0 <= tokens <= 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Admit(1, (5, 6, 7)), None, {0: (0, 1), 1: ()})
    return _step(spec, Match(1), Hit(tokens), {0: (0, 1), 1: ()}) == (tokens <= 2)


def a_hit_ends_where_prompts_part(token: int, tokens: int) -> bool:
    """A prompt that differs in its second token may hit the first; one that is equal may hit two.

    pre: 5 <= token <= 7
    pre: 0 <= tokens <= 2
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Admit(1, (5, token, 7)), None, {0: (0, 1), 1: ()})
    good = tokens <= (2 if token == 6 else 1)
    return _step(spec, Match(1), Hit(tokens), {0: (0, 1), 1: ()}) == good


def another_namespace_hits_nothing(tokens: int) -> bool:
    """The same tokens of another tenant are no hit.

    pre: 0 <= tokens <= 2
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Admit(1, (5, 6, 7), Namespace(tenant="b")), None, {0: (0, 1), 1: ()})
    return _step(spec, Match(1), Hit(tokens), {0: (0, 1), 1: ()}) == (tokens == 0)


def nothing_matches_after_a_reset(tokens: int) -> bool:
    """After a successful reset a hit has no tokens.

    pre: 0 <= tokens <= 2
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Reset(), True, {0: (0, 1)})
    _step(spec, Admit(1, (5, 6, 7)), None, {0: (0, 1), 1: ()})
    return _step(spec, Match(1), Hit(tokens), {0: (0, 1), 1: ()}) == (tokens == 0)


def an_evicted_block_matches_no_more(block: int, tokens: int) -> bool:
    """Evicting the block of a prefix, and only that, makes it unmatchable.

    pre: 0 <= block < 4
    pre: tokens == 0 or tokens == 2
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Evict((block,)), 1, {0: (0, 1)})
    _step(spec, Admit(1, (5, 6, 7)), None, {0: (0, 1), 1: ()})
    return _step(spec, Match(1), Hit(tokens), {0: (0, 1), 1: ()}) == (tokens == 0 or block != 0)


def an_adopted_block_is_the_one_that_shows_the_prefix(block: int) -> bool:
    """A sequence that adopts two tokens lists the block that holds them.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7), (0, 1))
    _step(spec, Admit(1, (5, 6, 7)), None, {0: (0, 1), 1: ()})
    return _step(spec, Extend(1, 1), Grant(adopted=2), {0: (0, 1), 1: (block, 2)}) == (block == 0)


def a_fork_shares_the_blocks_of_its_parent(block: int) -> bool:
    """Without copies the child lists its parent's block.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6), (0,))
    return _step(spec, Fork(0, 1), Grant(), {0: (0,), 1: (block,)}) == (block == 0)


def a_fork_may_copy_into_any_block_that_is_free(target: int) -> bool:
    """A copy of the parent's block may lie in any block but that one.

    pre: 0 <= target < 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6), (0,))
    return _step(spec, Fork(0, 1), Grant(copies=((0, 0, target),)), {0: (0,), 1: (target,)}) == (target != 0)


def a_shared_tail_is_copied_before_it_is_continued(copied: bool) -> bool:
    """Two sequences share a block that is half full: who goes on needs a copy.

    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5,), (0,))
    _step(spec, Fork(0, 1), Grant(), {0: (0,), 1: (0,)})
    _step(spec, Append(1, (6,)), None, {0: (0,), 1: (0,)})
    if copied:
        return _step(spec, Extend(1, 1), Grant(copies=((0, 0, 1),)), {0: (0,), 1: (1,)})
    return not _step(spec, Extend(1, 1), Grant(), {0: (0,), 1: (0,)})


def a_copy_reads_the_block_that_is_continued(source: int) -> bool:
    """The copy before a shared tail is written must be of that tail.

    pre: 0 <= source < 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5,), (0,))
    _step(spec, Fork(0, 1), Grant(), {0: (0,), 1: (0,)})
    _step(spec, Append(1, (6,)), None, {0: (0,), 1: (0,)})
    return _step(spec, Extend(1, 1), Grant(copies=((0, source, 3),)), {0: (0,), 1: (3,)}) == (source == 0)


def truncation_keeps_exactly_what_was_asked_for(length: int) -> bool:
    """After a truncation so many tokens are computed and known.

    pre: 1 <= length <= 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6, 7, 8), (0, 1))
    accepted = _step(spec, Truncate(0, length), None, {0: (0, 1)})
    sequence = spec.live[0]
    return accepted and sequence.computed == length and sequence.known == [5, 6, 7, 8][:length]


def a_commit_computes_its_tokens_and_the_accepted_drafts(accepted: int) -> bool:
    """One known token and two drafts: 1 + `accepted` tokens more are computed, and so many drafts are known.

    pre: 0 <= accepted <= 2
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6), (0,))
    _step(spec, Append(0, (7,)), None, {0: (0,)})
    _step(spec, Extend(0, 1, (8, 9)), Grant(), {0: (0, 1, 2)})
    good = _step(spec, Commit(0, accepted), None, {0: (0, 1, 2)})
    sequence = spec.live[0]
    return good and sequence.computed == 3 + accepted and sequence.known == [5, 6, 7, 8, 9][: 3 + accepted]


def more_drafts_than_there_were_cannot_be_accepted(accepted: int) -> bool:
    """The spec takes a commit of 0 to 2 of two drafts.

    pre: -1 <= accepted <= 4
    post: _
    """
    spec = _spec(SHARING)
    _computed(spec, 0, (5, 6), (0,))
    _step(spec, Append(0, (7,)), None, {0: (0,)})
    _step(spec, Extend(0, 1, (8, 9)), Grant(), {0: (0, 1, 2)})
    return spec.enabled(Commit(0, accepted)) == (0 <= accepted <= 2)


def a_block_in_flight_is_out_of_reach(block: int) -> bool:
    """A sequence released inside a step leaves its block to the device.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec(STEPPED)
    _step(spec, Admit(0, (5, 6)), None, {0: ()})
    _step(spec, Extend(0, 2), Grant(), {0: (0,)})
    _step(spec, BeginStep(), 1, {0: (0,)})
    _step(spec, Release(0), None, {})
    _step(spec, Admit(1, (7, 8)), None, {1: ()})
    return _step(spec, Extend(1, 2), Grant(), {1: (block,)}) == (block != 0)


def a_block_is_free_once_its_step_has_ended(block: int) -> bool:
    """After the end of the step every block may be given.

    pre: 0 <= block < 4
    post: _
    """
    spec = _spec(STEPPED)
    _step(spec, Admit(0, (5, 6)), None, {0: ()})
    _step(spec, Extend(0, 2), Grant(), {0: (0,)})
    _step(spec, BeginStep(), 1, {0: (0,)})
    _step(spec, Release(0), None, {})
    _step(spec, EndStep(), None, {})
    _step(spec, Admit(1, (7, 8)), None, {1: ()})
    return _step(spec, Extend(1, 2), Grant(), {1: (block,)})


def a_pass_is_committed_only_after_its_step(ended: bool) -> bool:
    """With steps a commit is possible exactly when the step of the pass has ended.

    post: _
    """
    spec = _spec(STEPPED)
    _step(spec, Admit(0, (5, 6)), None, {0: ()})
    _step(spec, Extend(0, 2), Grant(), {0: (0,)})
    _step(spec, BeginStep(), 1, {0: (0,)})
    if ended:
        _step(spec, EndStep(), None, {0: (0,)})
    return spec.enabled(Commit(0)) == ended


def a_reference_count_is_the_number_of_holders(count: int) -> bool:
    """One table lists block 0, so its count is 1.

    pre: 0 <= count <= 3
    post: _
    """
    spec = _spec(BOOKED, num_blocks=2)
    fresh = Books({}, (0, 1), frozenset(), frozenset())
    _step(spec, Admit(0, (5, 6)), None, {0: ()}, fresh)
    _step(spec, Extend(0, 2), Grant(), {0: (0,)}, Books({0: 1}, (1,), frozenset(), frozenset()))
    books = Books({0: count} if count else {}, (1,), frozenset(), frozenset())
    return _step(spec, Commit(0), None, {0: (0,)}, books) == (count == 1)


def every_block_is_in_exactly_one_place(free: int) -> bool:
    """With block 0 of two held, the free list is block 1.

    pre: 0 <= free <= 3
    post: _
    """
    spec = _spec(BOOKED, num_blocks=2)
    fresh = Books({}, (0, 1), frozenset(), frozenset())
    _step(spec, Admit(0, (5, 6)), None, {0: ()}, fresh)
    books = Books({0: 1}, ((), (0,), (1,), (1, 1))[free], frozenset(), frozenset())
    return _step(spec, Extend(0, 2), Grant(), {0: (0,)}, books) == (free == 2)


def a_release_leaves_no_count_behind(count: int) -> bool:
    """After the last release no block is counted.

    pre: 0 <= count <= 2
    post: _
    """
    spec = _spec(BOOKED, num_blocks=2)
    held = Books({0: 1}, (1,), frozenset(), frozenset())
    _step(spec, Admit(0, (5, 6)), None, {0: ()}, Books({}, (0, 1), frozenset(), frozenset()))
    _step(spec, Extend(0, 2), Grant(), {0: (0,)}, held)
    _step(spec, Commit(0), None, {0: (0,)}, held)
    books = Books({0: count} if count else {}, (0, 1), frozenset(), frozenset())
    return _step(spec, Release(0), None, {}, books) == (count == 0)


def a_second_release_changes_nothing(extra: int) -> bool:
    """Releasing again puts no block on the free list a second time.

    pre: 0 <= extra <= 2
    post: _
    """
    spec = _spec(BOOKED, num_blocks=2)
    empty = Books({}, (0, 1), frozenset(), frozenset())
    _step(spec, Admit(0, (5, 6)), None, {0: ()}, empty)
    _step(spec, Release(0), None, {}, empty)
    books = Books({}, (0, 1) + (0,) * extra, frozenset(), frozenset())
    return _step(spec, Release(0), None, {}, books) == (extra == 0)
