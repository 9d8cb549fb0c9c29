"""Control flow: programs that part ways run apart.

There are no execution masks. Where a condition or a trip count differs between programs, each group runs on its own with the values it
needs cut down to it, and results are put together again afterwards. So a program that has left a loop costs nothing and can touch nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from kvproof.kernels.machine.build import (
    ABSOLUTE,
    Builder,
    CompiledBlock,
    CompiledFunction,
    CompiledRegion,
    Env,
    Frame,
    Step,
    compile_function,
    run_block,
    step,
)
from kvproof.kernels.machine.errors import EndlessLoopError, MachineError, RunawayError
from kvproof.kernels.machine.ir import Op
from kvproof.kernels.machine.limits import CallStopped
from kvproof.kernels.machine.numerics import Array, container
from kvproof.kernels.machine.values import Value, dense, full, merge, take

MAX_ITERATIONS = 1 << 22
"""Trips of one loop. A paged kernel over a million tokens makes 65,536; a program that waits for another one would never end."""


def _subset(env: Env, free: tuple[int, ...], keep: Array) -> Env:
    """An environment in which the values `free` hold the programs `keep` only."""
    cut = list(env)
    for value in free:
        cut[value] = take(env[value], keep)
    return cut


def _copy_root(builder: Builder, target: int, source: int) -> None:
    if builder.type(target).is_pointer:
        builder.roots[target] = builder.root(source)


def _start_roots(builder: Builder, carried: Sequence[int], inits: Sequence[int]) -> None:
    """Pointers that a loop carries come from where they do on its first trip, until `_widen_roots` finds otherwise."""
    for argument, init in zip(carried, inits, strict=True):
        _copy_root(builder, argument, init)


def _widen_roots(builder: Builder, carried: Sequence[int], yields: Sequence[int]) -> bool:
    """Make byte addresses of the carried pointers that come back into another tensor; whether there were any, so that the body must be
    compiled again.
    """
    odd = [
        argument
        for argument, value in zip(carried, yields, strict=True)
        if builder.type(argument).is_pointer and builder.root(argument) not in (ABSOLUTE, builder.root(value))
    ]
    builder.roots.update(dict.fromkeys(odd, ABSOLUTE))
    return bool(odd)


def _absolute_positions(builder: Builder, carried: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    """Where a value into one tensor enters a place that holds byte addresses: position -> the value's root."""
    return {
        position: builder.root(value)
        for position, (argument, value) in enumerate(zip(carried, values, strict=True))
        if builder.type(argument).is_pointer and builder.root(argument) == ABSOLUTE != builder.root(value)
    }


def _as_addresses(frame: Frame, values: list[Value], positions: dict[int, int]) -> list[Value]:
    for position, root in positions.items():
        values[position] = frame.run.absolute(root, values[position])
    return values


class _Way:
    """One branch of a condition; `absolute` are the pointers it hands on that must become byte addresses, since the other branch's are into
    another argument.
    """

    def __init__(self, region: CompiledRegion, absolute: dict[int, int]) -> None:
        self.region, self.absolute = region, absolute

    def run(self, env: Env, frame: Frame) -> list[Value]:
        run_block(self.region.block, env, frame)
        values = [env[value] for value in self.region.yields]
        for position, root in self.absolute.items():
            values[position] = frame.run.absolute(root, values[position])
        return values


def _ways(op: Op, builder: Builder) -> list[_Way]:
    regions = [builder.region(region) for region in op.regions]
    ways = [_Way(region, {}) for region in regions]
    for position, result in enumerate(op.results):
        if builder.type(result).is_pointer:
            roots = [builder.root(region.yields[position]) for region in regions]
            builder.roots[result] = roots[0] if len(set(roots)) == 1 else ABSOLUTE
            if len(set(roots)) > 1:
                for way, root in zip(ways, roots, strict=True):
                    way.absolute |= {} if root == ABSOLUTE else {position: root}
    return ways


@step("scf.if")
def _if(op: Op, builder: Builder) -> Step:
    (condition,) = op.operands
    ways = _ways(op, builder)

    def run(env: Env, frame: Frame) -> None:
        chosen = dense(env[condition])
        if chosen.all() or not chosen.any():
            at = 0 if chosen.all() else 1
            if at < len(ways):
                for out, value in zip(op.results, ways[at].run(env, frame), strict=True):
                    env[out] = value
            return
        parts: list[tuple[Array, list[Value]]] = []
        for way, keep in zip(ways, (np.flatnonzero(chosen), np.flatnonzero(~chosen)), strict=False):
            cut = _subset(env, way.region.free, keep)
            parts.append((keep, way.run(cut, Frame(frame.ids[keep], frame.run))))
        for position, out in enumerate(op.results):
            env[out] = merge(len(frame.ids), [(keep, values[position]) for keep, values in parts])

    return run


class _Leavers:
    """Loop results of programs that have finished, kept until all have."""

    def __init__(self) -> None:
        self.parts: list[tuple[Array, list[Value]]] = []

    def leave(self, positions: Array, values: list[Value]) -> None:
        if len(positions):
            self.parts.append((positions, values))

    def results(self, count: int, width: int) -> list[Value]:
        if len(self.parts) == 1:
            return self.parts[0][1]
        return [merge(count, [(keep, values[at]) for keep, values in self.parts]) for at in range(width)]


@step("scf.for")
def _for(op: Op, builder: Builder) -> Step:
    low, high, by, *inits = op.operands
    induction, *carried = op.regions[0].body.arguments
    _start_roots(builder, carried, inits)
    region = builder.region(op.regions[0])
    while _widen_roots(builder, carried, region.yields):
        region = builder.region(op.regions[0])
    for result, argument in zip(op.results, carried, strict=True):
        _copy_root(builder, result, argument)
    entering, turning = _absolute_positions(builder, carried, inits), _absolute_positions(builder, carried, region.yields)
    kind = container(builder.type(induction).elem)

    def run(env: Env, frame: Frame) -> None:
        start, stop, stride = (dense(env[value]).astype(np.int64) for value in (low, high, by))
        if (stride <= 0).any():
            raise MachineError(f"a loop of {frame.run.kernel_name!r} at {op.location} has a step of {int(stride.min())}")
        trips = np.maximum(0, -(-(stop - start) // stride))
        frame.run.check_trips(int(trips.max(initial=0)), MAX_ITERATIONS, op)
        values: list[Value] = _as_addresses(frame, [env[init] for init in inits], entering)

        def body(inner: Env, current: Frame, index: Array, carry: list[Value]) -> list[Value]:
            return _as_addresses(current, _trip(region, inner, current, index.astype(kind), carry), turning)

        if int(trips.min()) == int(trips.max()):
            for trip in range(int(trips.flat[0])):
                values = body(env, frame, start + trip * stride, values)
        else:
            values = _uneven(region, body, env, frame, (start, stride, trips), values)
        for out, value in zip(op.results, values, strict=True):
            env[out] = value

    return run


def _trip(region: CompiledRegion, env: Env, frame: Frame, index: Array, values: list[Value]) -> list[Value]:
    for argument, value in zip(region.block.arguments, (index, *values), strict=True):
        env[argument] = value
    run_block(region.block, env, frame)
    return [env[value] for value in region.yields]


Body: TypeAlias = Callable[[Env, Frame, Array, list[Value]], list[Value]]


def _uneven(
    region: CompiledRegion, body: Body, env: Env, frame: Frame, bounds: tuple[Array, Array, Array], values: list[Value]
) -> list[Value]:
    """A loop whose trip count differs between programs: those that are done leave, the others go on without them."""
    count = len(frame.ids)
    start, stride, trips = (np.broadcast_to(bound, (count,)) for bound in bounds)
    alive, done, leavers, trip = np.arange(count), 0, _Leavers(), 0
    inner, current = env, frame
    for trip in range(int(trips.max()) + 1):
        stay = trips[alive] > trip
        if not stay.all():
            gone, kept = np.flatnonzero(~stay), np.flatnonzero(stay)
            leavers.leave(alive[gone], [take(value, gone) for value in values])
            alive, values = alive[kept], [take(value, kept) for value in values]
            inner = _subset(inner, region.free, kept)
            current = Frame(frame.ids[alive], frame.run)
            done += len(gone)
        if len(alive):
            values = body(inner, current, start[alive] + trip * stride[alive], values)
    return leavers.results(count, len(values))


def _while_regions(op: Op, builder: Builder) -> tuple[CompiledRegion, CompiledRegion]:
    """Condition and body; what the condition passes on keeps its tensor."""
    before = builder.region(op.regions[0])
    for argument, value in zip(op.regions[1].body.arguments, before.yields[1:], strict=True):
        _copy_root(builder, argument, value)
    return before, builder.region(op.regions[1])


@step("scf.while")
def _while(op: Op, builder: Builder) -> Step:
    carried = op.regions[0].body.arguments
    _start_roots(builder, carried, op.operands)
    before, after = _while_regions(op, builder)
    while _widen_roots(builder, carried, after.yields):
        before, after = _while_regions(op, builder)
    passed = before.yields[1:]
    for result, value in zip(op.results, passed, strict=True):
        _copy_root(builder, result, value)
    entering, turning = _absolute_positions(builder, carried, op.operands), _absolute_positions(builder, carried, after.yields)
    free = tuple(sorted({*before.free, *after.free}))
    waits = any(inner.name.startswith("tt.atomic") for region in op.regions for inner in region.operations())

    def loop(env: Env, frame: Frame) -> None:
        values: list[Value] = _as_addresses(frame, [env[value] for value in op.operands], entering)
        alive, leavers, inner, current = np.arange(len(frame.ids)), _Leavers(), env, frame
        for trip in range(MAX_ITERATIONS + 1):
            if trip == MAX_ITERATIONS:
                raise (RunawayError if waits else EndlessLoopError)(f"{_place(op, frame)} made {MAX_ITERATIONS} trips")
            _bind(before.block, inner, values)
            run_block(before.block, inner, current)
            go, values = dense(inner[before.yields[0]]), [inner[value] for value in passed]
            if not go.all():
                go = np.broadcast_to(go, (len(alive),))
                gone, kept = np.flatnonzero(~go), np.flatnonzero(go)
                leavers.leave(alive[gone], [take(value, gone) for value in values])
                alive, values = alive[kept], [take(value, kept) for value in values]
                if not len(alive):
                    break
                inner, current = _subset(inner, free, kept), Frame(frame.ids[alive], frame.run)
            _bind(after.block, inner, values)
            run_block(after.block, inner, current)
            values = _as_addresses(current, [inner[value] for value in after.yields], turning)
        for out, value in zip(op.results, leavers.results(len(frame.ids), len(op.results)), strict=True):
            env[out] = value

    return _located(loop, op, waits=waits)


def _place(op: Op, frame: Frame) -> str:
    return f"a while loop of {frame.run.kernel_name!r} at {op.location}"


def _located(loop: Step, op: Op, *, waits: bool) -> Step:
    """The loop; one that is stopped by the time limit says where it is, or that it `waits` for another program."""

    def run(env: Env, frame: Frame) -> None:
        try:
            loop(env, frame)
        except CallStopped as stopped:
            if waits:
                raise RunawayError(
                    f"{_place(op, frame)} does not end; it waits for another program, which never runs beside it"
                ) from stopped
            stopped.place = stopped.place or _place(op, frame)
            raise

    return run


def _bind(block: CompiledBlock, env: Env, values: list[Value]) -> None:
    for argument, value in zip(block.arguments, values, strict=True):
        env[argument] = value


@step("tt.call")
def _call(op: Op, builder: Builder) -> Step:
    symbol = re.search(r'@("[^"]+"|[^"(]+)\(', op.text)
    assert symbol is not None
    name = symbol[1].strip('"')
    callee = compile_function(builder.program, builder.program.functions[name], builder.compiled)
    builder.stored_roots |= callee.stored_roots
    pointers = {value: builder.root(value) for value in op.operands if builder.type(value).is_pointer and builder.root(value) != ABSOLUTE}
    for result in op.results:
        if builder.type(result).is_pointer:
            builder.roots[result] = ABSOLUTE

    def run(env: Env, frame: Frame) -> None:
        values: list[Value] = [
            frame.run.absolute(pointers[value], env[value]) if value in pointers else env[value] for value in op.operands
        ]
        for out, value in zip(op.results, run_function(callee, values, frame), strict=True):
            env[out] = value

    return run


@step("tt.map_elementwise")
def _map_elementwise(op: Op, builder: Builder) -> Step:
    """Each element runs the region as if it were a program of its own, so that elements part ways where the region branches."""
    if op.integer("pack", 1) != 1:
        raise builder.unsupported(op, "several elements at a time")
    shape = builder.type(op.operands[0]).shape
    region = builder.region(op.regions[0])

    def run(env: Env, frame: Frame) -> None:
        programs, count = len(frame.ids), math.prod(shape)
        everyone = np.repeat(np.arange(programs), count)
        inner = _subset(env, region.free, everyone)
        _bind(region.block, inner, [np.broadcast_to(full(env[value], shape), (programs, *shape)).reshape(-1) for value in op.operands])
        run_block(region.block, inner, Frame(frame.ids[everyone], frame.run))
        for out, value in zip(op.results, region.yields, strict=True):
            env[out] = np.broadcast_to(dense(inner[value]), (programs * count,)).reshape(programs, *shape)

    return run


def run_function(compiled: CompiledFunction, arguments: list[Value], frame: Frame) -> list[Value]:
    """Run all blocks of a function on the programs of a frame. Each block comes after those that jump to it, since `return` makes no loops."""
    count = len(frame.ids)
    everyone = np.arange(count)
    names = list(compiled.blocks)
    arriving: dict[str, list[tuple[Array, list[Value]]]] = {names[0]: [(everyone, arguments)]}
    defined: dict[int, tuple[Array, Value]] = dict(
        zip(compiled.function.arguments, ((everyone, value) for value in arguments), strict=True)
    )
    returned: list[tuple[Array, list[Value]]] = []
    for name in names:
        if name not in arriving:
            continue
        block, (here, values) = compiled.blocks[name], _arrive(arriving.pop(name))
        env: Env = [None] * len(compiled.function.types)
        for value in compiled.free[name]:
            env[value] = _fetch(defined[value], here)
        # The entry block's arguments are the function's, already free values of it.
        _bind(block, env, values if name != names[0] else [])
        run_block(block, env, Frame(frame.ids[here], frame.run))
        if len(names) > 1:
            defined.update({result: (here, env[result]) for op in block.ops for result in op.results})
            defined.update({argument: (here, env[argument]) for argument in block.arguments})
        _depart(block, env, here, arriving, returned)
    if arriving:
        raise MachineError(f"{compiled.function.name!r} jumps backward between blocks, which the machine does not follow")
    width = len(compiled.function.result_types)
    if len(returned) == 1:
        return returned[0][1]
    return [merge(count, [(keep, values[at]) for keep, values in returned]) for at in range(width)]


def _arrive(edges: list[tuple[Array, list[Value]]]) -> tuple[Array, list[Value]]:
    if len(edges) == 1:
        return edges[0]
    here = np.sort(np.concatenate([keep for keep, _ in edges]))
    parts = [(np.searchsorted(here, keep), values) for keep, values in edges]
    return here, [merge(len(here), [(keep, values[at]) for keep, values in parts]) for at in range(len(edges[0][1]))]


def _fetch(definition: tuple[Array, Value], here: Array) -> Value:
    where, value = definition
    return value if len(where) == len(here) else take(value, np.searchsorted(where, here))


def _depart(
    block: CompiledBlock,
    env: Env,
    here: Array,
    arriving: dict[str, list[tuple[Array, list[Value]]]],
    returned: list[tuple[Array, list[Value]]],
) -> None:
    """Send the programs on to the successors of a block."""
    op = block.terminator
    if op is None or op.name == "tt.return":
        returned.append((here, [env[value] for value in op.operands] if op else []))
        return
    groups = [np.arange(len(here))]
    if op.name == "cf.cond_br":
        chosen = np.broadcast_to(dense(env[op.operands[0]]), (len(here),))
        groups = [np.flatnonzero(chosen), np.flatnonzero(~chosen)]
    for keep, (label, values) in zip(groups, op.successors, strict=True):
        if len(keep):
            arriving.setdefault(label, []).append((here[keep], [take(env[value], keep) for value in values]))
