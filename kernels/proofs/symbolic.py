"""Symbolic values of a kernel.

Integers of the IR become mathematical integers, and every operation that the IR does at a fixed width leaves a *side condition*: the exact
result fits that width. A tensor is a function from lanes to an expression, evaluated at fresh lane variables where an access needs it.
Loops are taken by induction: a carried value that grows by an invariant amount is `init + trip * amount`; any other is an opaque unknown,
and so is what floats decide. What single operations compute is in `rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import z3

from kvproof.kernels.machine.ir import Block, Function, Op, Type
from kvproof.kernels.proofs.rules import RULES, Expr, Lanes, Rule

INDUCTION_MILLISECONDS = 500
"""For showing that a `while` loop keeps its values in a range: a binary search takes a few."""


@dataclasses.dataclass(frozen=True)
class Side:
    """`expr`, the exact result of `op`, must fit `bits` signed bits."""

    expr: Expr
    bits: int
    op: Op


@dataclasses.dataclass(frozen=True)
class Content:
    """What is known of the integers in a tensor: their range. `source` says why."""

    low: int
    high: int
    source: str


@dataclasses.dataclass
class Access:
    """A load or store, and the conditions under which it runs."""

    op: Op
    guards: list[Callable[[], Expr]]


class Evaluator:
    """Symbolic evaluation of one launched function. `scalars` are the concrete integer arguments, `contents` what pointer arguments point
    to.
    """

    def __init__(self, function: Function, scalars: dict[int, int], contents: dict[int, Content], grid: tuple[int, int, int]) -> None:
        self.function, self.scalars, self.contents, self.grid = function, scalars, contents, grid
        self.ranges: dict[str, tuple[Expr, int, int]] = {}
        self.opaque: dict[str, str] = {}
        self.loaded: dict[str, str] = {}
        self.sides: list[Side] = []
        self.facts: list[Expr] = []
        self.accesses: list[Access] = []
        self.roots: dict[int, int] = {value: at for at, value in enumerate(function.arguments) if function.types[value].is_pointer}
        self._defs: dict[int, Callable[[Lanes], Expr]] = {}
        self._memo: dict[tuple[int, ...], tuple[Lanes, Expr]] = {}
        for position, value in enumerate(function.arguments):
            self._defs[value] = self._argument(position, value)
        self._blocks()

    # Walking ---------------------------------------------------------------------------------------------------------

    def _argument(self, position: int, value: int) -> Callable[[Lanes], Expr]:
        if self.function.types[value].is_pointer:
            return lambda _lanes: z3.IntVal(0)
        if position in self.scalars:
            return lambda _lanes: z3.IntVal(self.scalars[position])
        return self._unknown(value, "a floating-point argument")

    def _blocks(self) -> None:
        """Blocks of the function body; each runs under the disjunction of the edges that lead to it."""
        incoming: dict[str, list[tuple[Callable[[], Expr], tuple[int, ...]]]] = {}
        for index, block in enumerate(self.function.region.blocks):
            edges = incoming.get(block.name, [])
            guards = [] if index == 0 else [_any_of([edge for edge, _ in edges])]
            for position, argument in enumerate(block.arguments):
                self._defs[argument] = self._merge([(edge, values[position]) for edge, values in edges])
                self._keep_root(argument, [values[position] for _, values in edges])
            self._walk(block, guards)
            end = block.ops[-1] if block.ops else None
            if end is not None and end.name.startswith("cf."):
                for way, (label, values) in enumerate(end.successors):
                    incoming.setdefault(label, []).append((self._edge(end, way, guards), values))

    def _edge(self, op: Op, way: int, guards: list[Callable[[], Expr]]) -> Callable[[], Expr]:
        def taken() -> Expr:
            before = [guard() for guard in guards]
            if op.name == "cf.cond_br":
                condition = self.at(op.operands[0], ())
                before.append(condition if way == 0 else z3.Not(condition))
            return z3.And(*before) if before else z3.BoolVal(True)

        return taken

    def _merge(self, edges: list[tuple[Callable[[], Expr], int]]) -> Callable[[Lanes], Expr]:
        def value(lanes: Lanes) -> Expr:
            result = self.at(edges[-1][1], lanes)
            for guard, source in reversed(edges[:-1]):
                result = z3.If(guard(), self.at(source, lanes), result)
            return result

        return value

    def _walk(self, block: Block, guards: list[Callable[[], Expr]]) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                self._for(op, guards)
            elif op.name == "scf.if":
                self._if(op, guards)
            elif op.name == "scf.while":
                self._while(op, guards)
            elif op.name == "tt.call":
                for value in op.results:
                    self._defs[value] = self._unknown(value, f"{op.name} at {op.location}")
            else:
                self._simple(op, guards)

    def _simple(self, op: Op, guards: list[Callable[[], Expr]]) -> None:
        if op.name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
            self.accesses.append(Access(op, list(guards)))
        for position, value in enumerate(op.results):
            self._keep_root(value, op.operands if op.name != "tt.load" else ())
            rule = RULES.get(op.name)
            self._defs[value] = self._by_rule(rule, op) if rule and position == 0 else self._unknown(value, f"{op.name} at {op.location}")

    def _by_rule(self, rule: Rule, op: Op) -> Callable[[Lanes], Expr]:
        return lambda lanes: rule(self, op, lanes)

    def _keep_root(self, value: int, sources: Sequence[int]) -> None:
        found = {self.roots.get(source, -1) for source in sources if self.type(source).is_pointer}
        if self.type(value).is_pointer and len(found) == 1:
            self.roots[value] = found.pop()

    def _if(self, op: Op, guards: list[Callable[[], Expr]]) -> None:
        condition = op.operands[0]
        for way, region in enumerate(op.regions):
            extra = (lambda: self.at(condition, ())) if way == 0 else (lambda: z3.Not(self.at(condition, ())))
            self._walk(region.body, [*guards, extra])
        for position, value in enumerate(op.results):
            then, other = (region.body.ops[-1].operands[position] for region in op.regions)
            self._defs[value] = lambda lanes, a=then, b=other: z3.If(self.at(condition, ()), self.at(a, lanes), self.at(b, lanes))  # type: ignore[misc]
            self._keep_root(value, (then, other))

    def _for(self, op: Op, guards: list[Callable[[], Expr]]) -> None:
        low, high, step, *inits = op.operands
        body = op.regions[0].body
        induction, *carried = body.arguments
        trip = self.fresh(f"trip{op.location.line}", 0, 2**62)

        def index() -> Expr:
            return self.at(low, ()) + trip * self.at(step, ())

        self._defs[induction] = lambda _lanes: index()
        # A loop that carries nothing is printed without its yield.
        yields = body.ops[-1].operands if carried else ()
        amounts = [self._amount(body, argument, value) for argument, value in zip(carried, yields, strict=True)]
        for argument, init, amount in zip(carried, inits, amounts, strict=True):
            self._keep_root(argument, (init,))
            self._defs[argument] = self._carried(argument, init, amount, lambda: trip, op)
        self._walk(body, [*guards, lambda: z3.And(trip >= 0, index() < self.at(high, ()))])

        def trips() -> Expr:
            span, by = self.at(high, ()) - self.at(low, ()), self.at(step, ())
            return z3.If(span > 0, (span + by - 1) / by, 0)

        for value, argument, init, amount in zip(op.results, carried, inits, amounts, strict=True):
            self._keep_root(value, (init,))
            self._defs[value] = self._carried(argument, init, amount, trips, op)

    def _while(self, op: Op, guards: list[Callable[[], Expr]]) -> None:
        """Carried integers are unknowns. They stay between the smallest and the largest value that they start from where that is inductive, as
        in a binary search; otherwise they may be anything.
        """
        before, after = (region.body for region in op.regions)
        condition, *passed = before.ops[-1].operands
        for argument in before.arguments:
            self._defs[argument] = self._variable(argument, f"a value carried by {op.name} at {op.location}")
        self._walk(before, guards)
        for argument, value in zip(after.arguments, passed, strict=True):
            self._alias(argument, value)
        self._walk(after, [*guards, lambda: self.at(condition, ())])
        for result, value in zip(op.results, passed, strict=True):
            self._alias(result, value)
        self._bound(before.arguments, op.operands, after.ops[-1].operands if after.ops else (), condition)

    def _variable(self, value: int, why: str) -> Callable[[Lanes], Expr]:
        """One unknown for a scalar, the same wherever it is used; a tensor differs from lane to lane."""
        make = self._unknown(value, why)
        if self.type(value).shape or self.type(value).is_pointer:
            return make
        made = make(())
        return lambda _lanes: made

    def _alias(self, target: int, source: int) -> None:
        self._defs[target] = lambda lanes: self.at(source, lanes)
        self._keep_root(target, (source,))

    def _bound(self, arguments: Sequence[int], inits: Sequence[int], nexts: Sequence[int], condition: int) -> None:
        """Narrow the unknowns of a `while` to the range of its constant initial values, if one more trip stays in it."""
        starts = {
            argument: start.as_long()
            for argument, init in zip(arguments, inits, strict=True)
            if not self.type(argument).shape and not self.type(argument).is_float and not self.type(argument).is_pointer
            if z3.is_int_value(start := z3.simplify(self.at(init, ())))
        }
        if not starts or len(nexts) != len(arguments):
            return
        low, high = min(starts.values()), max(starts.values())
        inside = [z3.And(low <= self.at(argument, ()), self.at(argument, ()) <= high) for argument in starts]
        after = [self.at(value, ()) for argument, value in zip(arguments, nexts, strict=True) if argument in starts]
        solver = z3.Solver()
        solver.set("timeout", INDUCTION_MILLISECONDS)
        solver.add(*inside, self.at(condition, ()), *self.facts, z3.Or(*(z3.Or(value < low, value > high) for value in after)))
        if solver.check() == z3.unsat:
            for argument in starts:
                name = str(self.at(argument, ()))
                self.ranges[name] = (self.ranges[name][0], low, high)
        self.forget()

    def _amount(self, body: Block, argument: int, value: int) -> int | None:
        """The value by which a carried one grows each trip, where it is one operation and does not depend on the loop."""
        inside = {result for op in body.ops for result in op.results} | set(body.arguments)
        for op in body.ops:
            if value in op.results and op.name in ("arith.addi", "tt.addptr") and argument in op.operands:
                other = next((operand for operand in op.operands if operand != argument), None)
                return other if other is not None and other not in inside else None
        return argument if value == argument else None

    def _carried(self, argument: int, init: int, amount: int | None, count: Callable[[], Expr], op: Op) -> Callable[[Lanes], Expr]:
        if amount is None:
            return self._unknown(argument, f"a value carried by the loop at {op.location}, which does not grow by a fixed amount")
        if amount == argument:
            return lambda lanes: self.at(init, lanes)
        return lambda lanes: self.at(init, lanes) + count() * self.at(amount, lanes)

    # Evaluation ------------------------------------------------------------------------------------------------------

    def type(self, value: int) -> Type:
        """The IR type of a value."""
        return self.function.types[value]

    def at(self, value: int, lanes: Lanes) -> Expr:
        """A value at given lanes."""
        key = (value, *(lane.get_id() for lane in lanes))
        if key not in self._memo:
            # The lanes are kept with the result: an id may be given to another expression once its own is gone.
            self._memo[key] = (lanes, self._defs[value](lanes))
        return self._memo[key][1]

    def forget(self) -> None:
        """Start a new access: no value and no side condition of the last one counts."""
        self.sides.clear()
        self.facts.clear()
        self._memo.clear()

    def fresh(self, hint: str, low: int, high: int) -> Expr:
        """An unknown integer in a range."""
        name = f"{hint}!{len(self.ranges)}"
        variable = z3.Int(name)
        self.ranges[name] = (variable, low, high)
        return variable

    def fit(self, expr: Expr, op: Op) -> Expr:
        """Note that the exact result must fit the operation's type."""
        bits = self.type(op.results[0]).bits
        self.sides.append(Side(expr, bits, op))
        return expr

    def _unknown(self, value: int, why: str) -> Callable[[Lanes], Expr]:
        def make(_lanes: Lanes) -> Expr:
            kind = self.type(value)
            if kind.elem == "i1":
                name = f"opaque!{len(self.opaque)}"
                self.opaque[name] = why
                return z3.Bool(name)
            bits = kind.bits
            variable = self.fresh("opaque", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            self.opaque[str(variable)] = why
            return variable

        return make

    def unknown(self, op: Op, lanes: Lanes, why: str = "") -> Expr:
        """An opaque value in place of an operation's result."""
        return self._unknown(op.results[0], why or f"{op.name} at {op.location}")(lanes)


def _any_of(edges: list[Callable[[], Expr]]) -> Callable[[], Expr]:
    return lambda: z3.Or(*(edge() for edge in edges)) if edges else z3.BoolVal(False)
