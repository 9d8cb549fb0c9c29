"""What is exhausted: how many sequences, blocks, tokens and namespaces, and every operation that such a program can do next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import msgspec

from kvproof.fuzz.reports.wording import counted, joined
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import (
    NO_NAMESPACE,
    Admit,
    AnyOp,
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
    Tokens,
    Truncate,
    op_name,
)
from kvproof.models.spec import Spec
from kvproof.models.state import Sequence


class Scope(msgspec.Struct, frozen=True):
    """The bounds of a search. `length`: the most tokens that a sequence knows. `steps`: the most that are open. `drafts`: the most of one pass. `without`: operations
    that are left out, by their names. `rename_tokens`: states that differ only in the names of token values are the same.
    """

    sequences: int = 2
    blocks: int = 3
    block_size: int = 2
    tokens: int = 2
    namespaces: int = 2
    length: int = 4
    steps: int = 1
    drafts: int = 1
    without: frozenset[str] = frozenset()
    rename_tokens: bool = False


SCOPES: Final[dict[str, Scope]] = {
    "tiny": Scope(sequences=1, blocks=2, tokens=1, namespaces=1, length=2, drafts=0),
    "one": Scope(sequences=1, blocks=3, tokens=2, namespaces=1, length=3, drafts=1),
    "steps": Scope(
        sequences=2,
        blocks=3,
        tokens=2,
        namespaces=1,
        length=2,
        drafts=0,
        without=frozenset({"append", "evict", "reset", "swapin", "swapout"}),
        rename_tokens=True,
    ),
    "small": Scope(sequences=2, blocks=3, tokens=2, namespaces=2, length=3, drafts=1),
    "large": Scope(sequences=3, blocks=4, tokens=2, namespaces=2, length=4, drafts=1),
}
"""`tiny` can be drawn, `one` and `steps` end in minutes: `steps` is what two sequences can do with device work; `small` and `large` go as deep as their time allows, and can be gone on with."""


def sentence(scope: Scope, capabilities: Capabilities) -> str:
    """The scope in words."""
    one = [
        counted(scope.sequences, "sequence"),
        f"{scope.blocks} blocks of {scope.block_size} tokens",
        counted(scope.tokens, "token value"),
        counted(_namespaces(scope, capabilities), "namespace"),
        f"up to {counted(scope.length, 'token')} in a sequence",
    ]
    if capabilities.drafts:
        one.append(f"up to {counted(scope.drafts, 'draft')} in a pass" if scope.drafts else "no drafts")
    if capabilities.steps:
        one.append(f"up to {counted(scope.steps, 'open step')}")
    renamed = "; states that differ only in the names of tokens are the same" if scope.rename_tokens and scope.tokens > 1 else ""
    left_out = f"; left out: {joined(sorted(scope.without))}" if scope.without else ""
    return f"programs of {joined(one)}{left_out}{renamed}"


def operations(spec: Spec, scope: Scope) -> Iterator[AnyOp]:
    """Every operation that can come next, one for each class that cannot be told apart by renaming: a new sequence takes the next free number."""
    for op in _all(spec, scope):
        if op_name(op) not in scope.without and spec.enabled(op):
            yield op


def _all(spec: Spec, scope: Scope) -> Iterator[AnyOp]:
    fresh = len(spec.sequences)
    if fresh < scope.sequences:
        yield from _admissions(fresh, scope, spec.capabilities)
    for sequence in spec.sequences.values():
        if sequence.gone:
            yield Release(sequence.seq)
        else:
            yield from _of_sequence(sequence, scope, fresh)
    if len(spec.steps) < scope.steps:
        yield BeginStep()
    yield EndStep()
    yield Reset()
    cached = spec.seen.books.cached
    yield from (Evict((block,)) for block in sorted(spec.universe if cached is None else cached))


def _admissions(seq: int, scope: Scope, capabilities: Capabilities) -> Iterator[AnyOp]:
    for length in range(1, scope.length + 1):
        for prompt in product(range(scope.tokens), repeat=length):
            for number in range(_namespaces(scope, capabilities)):
                yield Admit(seq, prompt, _namespace(number, capabilities))


def _of_sequence(sequence: Sequence, scope: Scope, fresh: int) -> Iterator[AnyOp]:
    seq, known, computed = sequence.seq, len(sequence.known), sequence.computed
    yield Match(seq)
    for count in range(1, known - computed + 1):
        yield Extend(seq, count)
    for drafts in _words(scope, min(scope.drafts, scope.length - known)):
        yield Extend(seq, known - computed, drafts)
    if sequence.out is not None:
        yield from (Commit(seq, accepted) for accepted in range(len(sequence.out.drafts) + 1))
    if known < scope.length:
        yield from (Append(seq, (token,)) for token in range(scope.tokens))
    yield from (Truncate(seq, length) for length in range(1, computed + 1))
    if fresh < scope.sequences:
        yield Fork(seq, fresh)
    yield Release(seq, "finish")
    if computed or sequence.out is not None or sequence.swapped:
        yield Release(seq, "preempt")
    yield SwapOut(seq)
    yield SwapIn(seq)


def _words(scope: Scope, longest: int) -> Iterator[Tokens]:
    for length in range(1, longest + 1):
        yield from product(range(scope.tokens), repeat=length)


def _namespaces(scope: Scope, capabilities: Capabilities) -> int:
    return scope.namespaces if capabilities.namespace_fields else 1


def _namespace(number: int, capabilities: Capabilities) -> Namespace:
    """Namespace 0 sets nothing, every other one the first field that the cache tells apart."""
    if not number:
        return NO_NAMESPACE
    return Namespace(**{min(capabilities.namespace_fields): str(number)})
