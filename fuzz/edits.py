"""Operations changed one at a time: fewer tokens, smaller numbers, other names. The candidates of the shrinker are made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kvproof.models.ops import (
    NAMESPACE_FIELDS,
    Admit,
    Append,
    Commit,
    Evict,
    Extend,
    Fork,
    Namespace,
    Op,
    Release,
    SwapOut,
    Truncate,
    sequences_of,
)


def tokens_of(op: Op) -> tuple[int, ...]:
    """The tokens that an operation carries: a prompt, what is appended, or drafts."""
    if isinstance(op, Admit):
        return op.prompt
    if isinstance(op, Append):
        return op.tokens
    return op.drafts if isinstance(op, Extend) else ()


def with_tokens(op: Op, tokens: tuple[int, ...]) -> Op:
    """The same operation with other tokens."""
    if isinstance(op, Admit):
        return msgspec.structs.replace(op, prompt=tokens)
    if isinstance(op, Append):
        return Append(op.seq, tokens)
    return Extend(op.seq, op.count, tokens) if isinstance(op, Extend) else op


def weight_of(op: Op) -> int:
    """How large the numbers of an operation are, tokens left out. A plain release and a default namespace weigh nothing; a swap weighs more than a release, and a later field of a namespace more than an earlier one."""
    weight = sum(sequences_of(op)) + sum(getattr(op, field, 0) for field in ("count", "accepted", "length"))
    if isinstance(op, Release):
        weight += op.reason != "finish"
    if isinstance(op, SwapOut):
        weight += 1
    if isinstance(op, Evict):
        weight += len(op.blocks) + sum(op.blocks)
    if isinstance(op, Admit):
        weight += sum(1 + i for i, field in enumerate(NAMESPACE_FIELDS) if getattr(op.namespace, field) is not None)
    return weight


def smaller(op: Op) -> Iterator[Op]:
    """The same operation with one thing less: a shorter prompt, fewer drafts, a lower count, one block fewer."""
    if isinstance(op, Admit | Append):
        yield from (with_tokens(op, tokens) for tokens in _shorter_tokens(tokens_of(op)) if tokens)
    elif isinstance(op, Extend):
        yield from (with_tokens(op, tokens) for tokens in _shorter_tokens(op.drafts))
        yield from (msgspec.structs.replace(op, count=count) for count in _below(op.count, 1))
    elif isinstance(op, Commit):
        yield from (msgspec.structs.replace(op, accepted=accepted) for accepted in _below(op.accepted, 0))
    elif isinstance(op, Truncate):
        yield from (msgspec.structs.replace(op, length=length) for length in _below(op.length, 1))
    elif isinstance(op, Evict) and len(op.blocks) > 1:
        yield from (Evict(op.blocks[:i] + op.blocks[i + 1 :]) for i in range(len(op.blocks)))


def _shorter_tokens(tokens: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    length = len(tokens)
    yield from (tokens[:cut] for cut in sorted({0, length // 2, length - 2, length - 1}) if 0 <= cut < length)
    if length > 1:
        yield tokens[1:]
    for i, token in enumerate(tokens):
        for lower in (0, 1):
            if lower < token:
                yield (*tokens[:i], lower, *tokens[i + 1 :])


def _below(number: int, least: int) -> Iterator[int]:
    yield from (lower for lower in sorted({least, (number + least) // 2, number - 1}) if least <= lower < number)


def grown(op: Op, seq: int, tokens: int) -> Op:
    """An extend of `seq` by so many tokens more; any other operation as it is."""
    return msgspec.structs.replace(op, count=op.count + tokens) if isinstance(op, Extend) and op.seq == seq else op


def scaled(op: Op, old: int, new: int) -> Op:
    """The same operation for blocks of `new` instead of `old` tokens: as many blocks, so fewer tokens."""

    def fewer(number: int) -> int:
        return -(-number * new // old)

    if isinstance(op, Truncate):
        return Truncate(op.seq, fewer(op.length))
    if isinstance(op, Extend):
        op = msgspec.structs.replace(op, count=fewer(op.count))
    tokens = tokens_of(op)
    return with_tokens(op, tokens[: fewer(len(tokens))])


def retoken(op: Op, old: int, new: int) -> Op:
    """The same operation with token `new` for token `old`."""
    return with_tokens(op, tuple(new if token == old else token for token in tokens_of(op)))


def renamed(op: Op, name: Callable[[int], int]) -> Op:
    """The same operation with other sequence numbers."""
    if isinstance(op, Fork):
        return Fork(name(op.parent), name(op.child))
    return msgspec.structs.replace(op, seq=name(op.seq)) if hasattr(op, "seq") else op


def in_namespace(op: Op, old: Namespace, new: Namespace) -> Op:
    """An admission to namespace `old` goes to `new`; any other operation as it is."""
    return msgspec.structs.replace(op, namespace=new) if isinstance(op, Admit) and op.namespace == old else op


def with_field_moved(op: Op, old: str, new: str) -> Op:
    """An admission that says in field `new` of its namespace what it said in field `old`; any other operation as it is."""
    if not isinstance(op, Admit):
        return op
    return msgspec.structs.replace(op, namespace=msgspec.structs.replace(op.namespace, **{new: getattr(op.namespace, old), old: None}))


def without_field(op: Op, field: str) -> Op:
    """An admission without one field of its namespace; any other operation as it is."""
    return msgspec.structs.replace(op, namespace=msgspec.structs.replace(op.namespace, **{field: None})) if isinstance(op, Admit) else op
