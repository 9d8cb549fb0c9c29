"""From parsed functions to executable steps: one closure for each operation.

Handlers register themselves by operation name. A *pure* handler gives a function of arrays; a *step* handler gives a closure of the
environment and the frame, for operations that touch memory, programs or control flow.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from kvproof.kernels.machine.errors import MachineError, UnsupportedOperationError
from kvproof.kernels.machine.ir import Block, Function, Op, Program, Region, Type
from kvproof.kernels.machine.numerics import Array
from kvproof.kernels.machine.values import Outer, Value, dense

Env: TypeAlias = list[Any]
Step: TypeAlias = "Callable[[Env, Frame], None]"
PureFunction: TypeAlias = Callable[..., Any]

ABSOLUTE = -1
"""The root of a pointer that no single argument is known for; it holds byte addresses instead of element numbers."""


@dataclasses.dataclass
class Frame:
    """The programs that run together: `ids` are their linear numbers in the grid, `run` what one launch shares."""

    ids: Array
    run: Any


@dataclasses.dataclass
class CompiledBlock:
    """Steps of a block, the operation each came from, and what its terminator hands on."""

    arguments: tuple[int, ...]
    steps: list[Step]
    ops: list[Op]
    terminator: Op | None


@dataclasses.dataclass
class CompiledRegion:
    """A structured region; `free` are the values it uses from outside."""

    block: CompiledBlock
    free: tuple[int, ...]

    @property
    def yields(self) -> tuple[int, ...]:
        """The values that the terminator hands on."""
        return self.block.terminator.operands if self.block.terminator else ()


@dataclasses.dataclass
class CompiledFunction:
    """All blocks of a function by label, in order, and for each the values it uses from other blocks."""

    function: Function
    blocks: dict[str, CompiledBlock]
    free: dict[str, tuple[int, ...]]
    stored_roots: set[int]


PURE: dict[str, Callable[[Op, Builder], PureFunction]] = {}
STEPS: dict[str, Callable[[Op, Builder], Step]] = {}
TERMINATORS = {
    "tt.return",
    "scf.yield",
    "scf.condition",
    "cf.br",
    "cf.cond_br",
    "tt.reduce.return",
    "tt.scan.return",
    "tt.map_elementwise.return",
}


def pure(*names: str) -> Callable[[Callable[[Op, Builder], PureFunction]], Callable[[Op, Builder], PureFunction]]:
    """Register a builder of array functions."""

    def register(build: Callable[[Op, Builder], PureFunction]) -> Callable[[Op, Builder], PureFunction]:
        PURE.update(dict.fromkeys(names, build))
        return build

    return register


def step(*names: str) -> Callable[[Callable[[Op, Builder], Step]], Callable[[Op, Builder], Step]]:
    """Register a builder of steps."""

    def register(build: Callable[[Op, Builder], Step]) -> Callable[[Op, Builder], Step]:
        STEPS.update(dict.fromkeys(names, build))
        return build

    return register


_INSTEAD = {
    "tt.elementwise_inline_asm": "inline assembly; write that step in Triton's language where a constexpr says so, to have the rest judged"
}
"""What a user can do about an operation that will never be implemented."""

_DIVISIBILITY = re.compile(r"tt\.divisibility = dense<(\d+)>")


class Builder:
    """Compiles one function of a program."""

    def __init__(self, program: Program, function: Function, compiled: dict[str, CompiledFunction]) -> None:
        self.program, self.function, self.compiled = program, function, compiled
        self.roots: dict[int, int] = {}
        self.stored_roots: set[int] = set()
        is_kernel = function is program.kernel
        for position, value in enumerate(function.arguments):
            if self.type(value).is_pointer:
                self.roots[value] = position if is_kernel else ABSOLUTE

    def type(self, value: int) -> Type:
        """The IR type of a value."""
        return self.function.types[value]

    def root(self, value: int) -> int:
        """The argument that a pointer value comes from, or ABSOLUTE."""
        return self.roots.get(value, ABSOLUTE)

    def unsupported(self, op: Op, reason: str = "") -> UnsupportedOperationError:
        """The error for an operation, or a form of it, that the machine does not implement."""
        return UnsupportedOperationError(op.name, self.program.kernel.name, op.location, reason)

    def build(self) -> CompiledFunction:
        """Compile every block of the function."""
        blocks, free = {}, {}
        for block in self.function.region.blocks:
            blocks[block.name] = self.block(block)
            free[block.name] = tuple(sorted(_free_values(block)))
        return CompiledFunction(self.function, blocks, free, self.stored_roots)

    def block(self, block: Block) -> CompiledBlock:
        """Compile the operations of one block."""
        steps, ops, terminator = [], [], None
        for op in block.ops:
            if op.name in TERMINATORS:
                terminator = op
                self._join_successors(op)
                continue
            steps.append(self.step(op))
            ops.append(op)
        return CompiledBlock(tuple(block.arguments), steps, ops, terminator)

    def region(self, region: Region) -> CompiledRegion:
        """Compile a structured region."""
        return CompiledRegion(self.block(region.body), tuple(sorted(_free_values(region.body))))

    def step(self, op: Op) -> Step:
        """The closure of one operation, and of what the kernel promises of its result."""
        action, hint = self._step(op), _DIVISIBILITY.search(op.text)
        if hint is None or len(op.results) != 1 or self.type(op.results[0]).shape or self.type(op.results[0]).is_pointer:
            return action
        # Of tiles the promise is about the first element of each run, and kernels make it where a mask hides the others: only scalars are held to it.
        divisor, (out,) = int(hint.group(1)), op.results

        def run(env: Env, frame: Frame) -> None:
            action(env, frame)
            value = dense(env[out])
            if (value % divisor).any():
                frame.run.assertion(op, f"tl.multiple_of promises multiples of {divisor}", value % divisor == 0, frame)

        return run

    def _step(self, op: Op) -> Step:
        if op.name in ("tt.bitcast", "arith.select") and self.type(op.results[0]).is_pointer:
            return STEPS["pointer " + op.name](op, self)
        if op.name in STEPS:
            return STEPS[op.name](op, self)
        if op.name in PURE:
            self._keep_root(op)
            return _pure_step(op, PURE[op.name](op, self))
        raise self.unsupported(op, _INSTEAD.get(op.name, ""))

    def _keep_root(self, op: Op) -> None:
        """Pointers reshaped, moved or selected among equals keep their argument."""
        if not op.results or not self.type(op.results[0]).is_pointer:
            return
        roots = {self.root(value) for value in op.operands if self.type(value).is_pointer}
        for result in op.results:
            self.roots[result] = roots.pop() if len(roots) == 1 else ABSOLUTE

    def _join_successors(self, op: Op) -> None:
        for label, values in op.successors:
            target = next(block for block in self.function.region.blocks if block.name == label)
            for argument, value in zip(target.arguments, values, strict=True):
                if self.type(argument).is_pointer and self.roots.setdefault(argument, self.root(value)) != self.root(value):
                    # Blocks are compiled in order, so a join of unlike pointers would come too late for what was already compiled.
                    raise self.unsupported(op, "a branch that joins pointers into different arguments")


def _pure_step(op: Op, function: PureFunction) -> Step:
    """Wrap an array function; operands kept as outer sums are made dense first."""
    ins, outs = op.operands, op.results
    if len(outs) > 1:

        def run_many(env: Env, _frame: Frame) -> None:
            for out, value in zip(outs, function(*(dense(env[value]) for value in ins)), strict=True):
                env[out] = value

        return run_many
    (out,) = outs
    if len(ins) == 1:
        (only,) = ins

        def run_one(env: Env, _frame: Frame) -> None:
            value = env[only]
            env[out] = function(value.dense() if value.__class__ is Outer else value)

        return run_one
    if len(ins) == 2:
        first, second = ins

        def run_two(env: Env, _frame: Frame) -> None:
            left, right = env[first], env[second]
            env[out] = function(left.dense() if left.__class__ is Outer else left, right.dense() if right.__class__ is Outer else right)

        return run_two

    def run(env: Env, _frame: Frame) -> None:
        env[out] = function(*(dense(env[value]) for value in ins))

    return run


def _free_values(block: Block) -> set[int]:
    used: set[int] = set()
    defined = set(block.arguments)
    for op in block.ops:
        used.update(op.operands)
        for _, values in op.successors:
            used.update(values)
        for region in op.regions:
            for inner in region.blocks:
                used |= _free_values(inner)
        defined.update(op.results)
    return used - defined


def run_block(block: CompiledBlock, env: Env, frame: Frame) -> None:
    """Run the steps of a block; an error names the operation and its line."""
    at = 0
    try:
        for at, action in enumerate(block.steps):  # noqa: B007 - read in the handler below
            action(env, frame)
    except MachineError:
        raise
    except Exception as error:
        op = block.ops[at]
        message = f"{op.name} failed in kernel {frame.run.kernel_name!r} at {op.location}: {error}"
        raise MachineError(message) from error


def compile_program(program: Program) -> CompiledFunction:
    """The kernel of a program with all functions it calls."""
    compiled: dict[str, CompiledFunction] = {}
    return compile_function(program, program.kernel, compiled)


def compile_function(program: Program, function: Function, compiled: dict[str, CompiledFunction]) -> CompiledFunction:
    """One function, once."""
    if function.name not in compiled:
        compiled[function.name] = Builder(program, function, compiled).build()
    return compiled[function.name]


__all__ = ["ABSOLUTE", "Builder", "CompiledFunction", "Frame", "Value", "compile_program", "pure", "run_block", "step"]
