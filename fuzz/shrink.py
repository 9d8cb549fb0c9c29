"""From a program that breaks a law to a short one that breaks the same law.

Every pass proposes candidates, and a candidate is kept if it breaks the law and is simpler. A program is simpler if it has fewer operations, then fewer tokens, then
a smaller pool, then smaller numbers. Operations that a candidate makes impossible are skipped by the driver and so fall out by themselves. The result is a local minimum of
all passes, unless the time runs out first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

import msgspec

from kvproof.fuzz.programs import PoolConfig, Program
from kvproof.impl.checker import AdapterFault, read_capabilities
from kvproof.models.capabilities import Capabilities
from kvproof.models.ops import NO_NAMESPACE, Admit, Append, Commit, Evict, Extend, Fork, Namespace, Op, Release, SwapOut, Truncate
from kvproof.models.spec import Violation
from kvproof.properties.lockstep import OP_SECONDS, Result, run

SHRINK_SECONDS: Final = 10.0
"""Default time for one program: most reach their minimum in well under a second."""

Ops: TypeAlias = tuple[Op, ...]
Size: TypeAlias = tuple[int, int, int, int, int]

ALSO: Final[dict[str, str]] = {"no-leak": "no-spurious-exhaustion"}
"""A shorter program may break this law instead: nothing needs to have been released for the pool to be short of blocks."""


class Candidate(msgspec.Struct, frozen=True):
    """A pool and the operations to run on it."""

    config: PoolConfig
    ops: Ops

    @property
    def size(self) -> Size:
        """What makes one program simpler than another: smaller, field by field."""
        tokens = sum(len(_tokens(op)) for op in self.ops)
        numbers = sum(sum(_tokens(op)) + _numbers(op) for op in self.ops)
        spaces = len({op.namespace for op in self.ops if isinstance(op, Admit)} - {NO_NAMESPACE})
        return len(self.ops), tokens, spaces, self.config.num_blocks + self.config.block_size, numbers


class Shrinker:
    """Shrinks one program for one kind of failure."""

    def __init__(self, target: type, wanted: Callable[[Result], bool], *, seconds: float, op_seconds: float = OP_SECONDS) -> None:
        self.target = target
        self.capabilities: Capabilities = read_capabilities(target)
        self.wanted = wanted
        self.deadline = time.monotonic() + seconds
        self.op_seconds = op_seconds
        self.runs = 0
        self.best: Candidate | None = None
        self.result: Result | None = None
        self._tried: set[Candidate] = set()

    def shrink(self, start: Candidate) -> Candidate:
        """The simplest candidate found. `self.result` is what it gave; None if not even `start` fails as wanted."""
        if not self._try(start):
            return start
        assert self.best is not None
        before: Size | None = None
        while before != self.best.size and time.monotonic() < self.deadline:
            before = self.best.size
            for propose in (_shorter, _without_sequence, _merged, _simpler_kinds, _smaller_pool, _plainer, _smaller_values, _renumbered):
                self._pass(propose)
        return self.best

    def _pass(self, propose: Callable[[Candidate, Capabilities], Iterator[Candidate]]) -> None:
        """Try what `propose` makes of the best candidate, and start over from each improvement."""
        improved = True
        while improved and time.monotonic() < self.deadline:
            improved = False
            assert self.best is not None
            for candidate in propose(self.best, self.capabilities):
                if time.monotonic() >= self.deadline:
                    return
                if self._try(candidate):
                    improved = True
                    break

    def _try(self, candidate: Candidate) -> bool:
        if candidate in self._tried:
            return False
        self._tried.add(candidate)
        self.runs += 1
        result = run(
            candidate.ops,
            self.target,
            num_blocks=candidate.config.num_blocks,
            block_size=candidate.config.block_size,
            capabilities=self.capabilities,
            op_seconds=self.op_seconds,
        )
        if not self.wanted(result):
            return False
        ran = Candidate(candidate.config, tuple(result.ran))
        if self.best is not None and ran.size >= self.best.size:
            return False
        self.best, self.result = ran, result
        return True


def shrink(program: Program, target: type, *, seconds: float = SHRINK_SECONDS, op_seconds: float = OP_SECONDS) -> Program:
    """The simplest program found that breaks the same law as `program`, with its violation. A program that breaks none comes back as it is.

    Raises AdapterFault if the target cannot be driven at all.
    """
    start = Candidate(program.config, program.ops)
    law = program.violation.law if program.violation else _first_law(start, target, op_seconds)
    if law is None:
        return program
    return _shrunk(program, target, lambda result: breaks(result, law), seconds, op_seconds)


def shrink_fault(program: Program, target: type, *, seconds: float = SHRINK_SECONDS, op_seconds: float = OP_SECONDS) -> Program:
    """The simplest program found that shows a fault of the adapter of the same kind (the same call, the same complaint)."""
    kind = _kind_of_fault(program.fault)
    return _shrunk(program, target, lambda result: bool(result.fault) and _kind_of_fault(result.fault) == kind, seconds, op_seconds)


def shrink_hang(program: Program, target: type, *, seconds: float, op_seconds: float) -> Program:
    """The simplest program found that hangs, where an operation of `op_seconds` counts as hung."""
    return _shrunk(program, target, lambda result: bool(result.hang), seconds, op_seconds)


def _shrunk(program: Program, target: type, wanted: Callable[[Result], bool], seconds: float, op_seconds: float) -> Program:
    """The simplest program found that fails as wanted, with what it shows; `program` itself if it does not fail so."""
    shrinker = Shrinker(target, wanted, seconds=seconds, op_seconds=op_seconds)
    best = shrinker.shrink(Candidate(program.config, program.ops))
    if shrinker.result is None:
        return program
    result = shrinker.result
    fault = result.fault or program.fault
    return msgspec.structs.replace(program, config=best.config, ops=best.ops, violation=result.violation, fault=fault)


def breaks(result: Result, law: str) -> bool:
    """Whether `result` breaks `law`, or the law that a shorter program may break instead."""
    violation: Violation | None = result.violation
    return violation is not None and (violation.law == law or violation.law == ALSO.get(law))


def _first_law(start: Candidate, target: type, op_seconds: float) -> str | None:
    result = run(start.ops, target, num_blocks=start.config.num_blocks, block_size=start.config.block_size, op_seconds=op_seconds)
    if result.fault:
        raise AdapterFault(result.fault)
    return result.violation.law if result.violation else None


def _kind_of_fault(fault: str) -> str:
    """A fault without its numbers: `extend(3, 1) raised KeyError: 3` and `extend(0, 2) raised KeyError: 0` are the same."""
    return "".join(character for character in fault if not character.isdigit()).partition("(")[0]


# -- passes: each proposes simpler candidates, the boldest first ----------------------------------------------------------------------------------


def _shorter(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Leave out runs of operations, long runs first, late ones first."""
    length = len(best.ops)
    run_length = length // 2
    while run_length >= 1:
        for start in range(length - run_length, -1, -max(1, run_length // 2)):
            yield _with(best, best.ops[:start] + best.ops[start + run_length :])
        run_length //= 2
    if length <= 24:
        for i in range(length):
            for j in range(i + 1, length):
                yield _with(best, best.ops[:i] + best.ops[i + 1 : j] + best.ops[j + 1 :])


def _without_sequence(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Leave out everything that one sequence does."""
    config = best.config
    for seq in sorted({seq for op in best.ops for seq in _sequences(op)}, reverse=True):
        without = tuple(op for op in best.ops if seq not in _sequences(op))
        yield _with(best, without)
        # The sequence may only have filled the pool: then a smaller pool does as well.
        yield from (
            Candidate(PoolConfig(blocks, config.block_size), without) for blocks in range(max(1, config.num_blocks - 4), config.num_blocks)
        )


def _merged(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Fold a later append into the prompt, and later passes of a sequence into its first."""
    ops = best.ops
    for i, op in enumerate(ops):
        if isinstance(op, Append):
            for j in range(i - 1, -1, -1):
                earlier = ops[j]
                if isinstance(earlier, Admit | Append) and earlier.seq == op.seq:
                    yield _with(best, (*ops[:j], _longer(earlier, op.tokens), *ops[j + 1 : i], *ops[i + 1 :]))
                    grown = [_grown(o, op.seq, len(op.tokens)) for o in ops[j + 1 : i]]
                    yield _with(best, (*ops[:j], _longer(earlier, op.tokens), *grown, *ops[i + 1 :]))
                    break
        if isinstance(op, Extend):
            for j in range(i - 1, -1, -1):
                earlier = ops[j]
                if isinstance(earlier, Extend) and earlier.seq == op.seq and not earlier.drafts:
                    whole = msgspec.structs.replace(earlier, count=earlier.count + op.count, drafts=op.drafts)
                    yield _with(best, (*ops[:j], whole, *ops[j + 1 : i], *ops[i + 1 :]))
                    break


def _simpler_kinds(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """A release instead of a swap or a truncation, and a fork from further up."""
    parents = {op.child: op.parent for op in best.ops if isinstance(op, Fork)}
    for i, op in enumerate(best.ops):
        if isinstance(op, SwapOut | Truncate):
            yield _put(best, i, Release(op.seq, "finish"))
        if isinstance(op, Fork) and op.parent in parents:
            yield _put(best, i, Fork(parents[op.parent], op.child))


def _smaller_pool(best: Candidate, capabilities: Capabilities) -> Iterator[Candidate]:
    """Fewer and smaller blocks."""
    config = best.config
    for blocks in sorted({1, 2, 3, 4, config.num_blocks // 2, config.num_blocks - 1}):
        if 1 <= blocks < config.num_blocks:
            smaller = PoolConfig(blocks, config.block_size)
            yield Candidate(smaller, best.ops)
            # Another pool hands out other ids, so an eviction by id must first name them all.
            everything = Evict(tuple(range(blocks)))
            if any(isinstance(op, Evict) for op in best.ops):
                yield Candidate(smaller, tuple(everything if isinstance(op, Evict) else op for op in best.ops))
    for size in sorted(set(capabilities.block_sizes)):
        if size < config.block_size:
            yield Candidate(PoolConfig(config.num_blocks, size), best.ops)
            yield Candidate(PoolConfig(config.num_blocks, size), tuple(_scaled(op, config.block_size, size) for op in best.ops))


def _plainer(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """One namespace instead of several, fewer fields, plain reasons, fewer distinct tokens."""
    spaces = {op.namespace for op in best.ops if isinstance(op, Admit)} - {NO_NAMESPACE}
    for space in sorted(spaces, key=repr):
        yield _map(best, partial(_in_namespace, old=space, new=NO_NAMESPACE))
        for field in space.__struct_fields__:
            if getattr(space, field) is not None:
                yield _map(best, partial(_in_namespace, old=space, new=msgspec.structs.replace(space, **{field: None})))
    for field in Namespace.__struct_fields__:
        if any(getattr(space, field) is not None for space in spaces):
            yield _map(best, partial(_without_field, field=field))
    for i, op in enumerate(best.ops):
        if isinstance(op, Release) and op.reason != "finish":
            yield _put(best, i, Release(op.seq, "finish"))
    tokens = sorted({token for op in best.ops for token in _tokens(op)})
    for new, old in enumerate(tokens):
        for smaller in (0, 1, new):
            if smaller < old:
                yield _map(best, partial(_retoken, old=old, new=smaller))


def _smaller_values(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Shorter prompts, drafts and counts, one operation at a time."""
    for i, op in enumerate(best.ops):
        for smaller in _smaller(op):
            yield _put(best, i, smaller)


def _renumbered(best: Candidate, _: Capabilities) -> Iterator[Candidate]:
    """Sequences numbered in the order in which they appear."""
    order: dict[int, int] = {}
    for op in best.ops:
        for seq in _sequences(op):
            order.setdefault(seq, len(order))
    yield _map(best, lambda op: _renumber(op, order))


def _smaller(op: Op) -> Iterator[Op]:
    if isinstance(op, Admit | Append):
        field = "prompt" if isinstance(op, Admit) else "tokens"
        yield from (msgspec.structs.replace(op, **{field: tokens}) for tokens in _shorter_tokens(_tokens(op)) if tokens)
    elif isinstance(op, Extend):
        yield from (msgspec.structs.replace(op, drafts=tokens) for tokens in _shorter_tokens(op.drafts))
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
        for smaller in (0, 1):
            if smaller < token:
                yield (*tokens[:i], smaller, *tokens[i + 1 :])


def _below(number: int, least: int) -> Iterator[int]:
    yield from (smaller for smaller in sorted({least, (number + least) // 2, number - 1}) if least <= smaller < number)


def _with(best: Candidate, ops: Ops) -> Candidate:
    return Candidate(best.config, ops)


def _put(best: Candidate, index: int, op: Op) -> Candidate:
    return _with(best, (*best.ops[:index], op, *best.ops[index + 1 :]))


def _map(best: Candidate, change: Callable[[Op], Op]) -> Candidate:
    return _with(best, tuple(change(op) for op in best.ops))


def _sequences(op: Op) -> tuple[int, ...]:
    if isinstance(op, Fork):
        return op.parent, op.child
    seq = getattr(op, "seq", None)
    return () if seq is None else (seq,)


def _tokens(op: Op) -> tuple[int, ...]:
    if isinstance(op, Admit):
        return op.prompt
    if isinstance(op, Append):
        return op.tokens
    return op.drafts if isinstance(op, Extend) else ()


def _numbers(op: Op) -> int:
    total = sum(_sequences(op)) + sum(getattr(op, field, 0) for field in ("count", "accepted", "length"))
    if isinstance(op, Release):
        total += op.reason != "finish"
    if isinstance(op, Evict):
        total += len(op.blocks) + sum(op.blocks)
    if isinstance(op, Admit):
        total += sum(getattr(op.namespace, field) is not None for field in op.namespace.__struct_fields__)
    return total


def _longer(op: Admit | Append, tokens: tuple[int, ...]) -> Op:
    if isinstance(op, Admit):
        return msgspec.structs.replace(op, prompt=op.prompt + tokens)
    return Append(op.seq, op.tokens + tokens)


def _grown(op: Op, seq: int, tokens: int) -> Op:
    return msgspec.structs.replace(op, count=op.count + tokens) if isinstance(op, Extend) and op.seq == seq else op


def _in_namespace(op: Op, old: Namespace, new: Namespace) -> Op:
    return msgspec.structs.replace(op, namespace=new) if isinstance(op, Admit) and op.namespace == old else op


def _without_field(op: Op, field: str) -> Op:
    return msgspec.structs.replace(op, namespace=msgspec.structs.replace(op.namespace, **{field: None})) if isinstance(op, Admit) else op


def _scaled(op: Op, old: int, new: int) -> Op:
    """The same operation for blocks of `new` instead of `old` tokens: as many blocks, so fewer tokens."""

    def fewer(number: int) -> int:
        return -(-number * new // old)

    if isinstance(op, Admit):
        return msgspec.structs.replace(op, prompt=op.prompt[: fewer(len(op.prompt))])
    if isinstance(op, Append):
        return Append(op.seq, op.tokens[: fewer(len(op.tokens))])
    if isinstance(op, Extend):
        return Extend(op.seq, fewer(op.count), op.drafts[: fewer(len(op.drafts))])
    return Truncate(op.seq, fewer(op.length)) if isinstance(op, Truncate) else op


def _retoken(op: Op, old: int, new: int) -> Op:
    tokens = tuple(new if token == old else token for token in _tokens(op))
    if isinstance(op, Admit):
        return msgspec.structs.replace(op, prompt=tokens)
    if isinstance(op, Append):
        return Append(op.seq, tokens)
    return Extend(op.seq, op.count, tokens) if isinstance(op, Extend) else op


def _renumber(op: Op, order: dict[int, int]) -> Op:
    if isinstance(op, Fork):
        return Fork(order[op.parent], order[op.child])
    return msgspec.structs.replace(op, seq=order[op.seq]) if hasattr(op, "seq") else op
