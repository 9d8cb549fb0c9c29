"""Further changes, as the maintained tools (mutmut, cosmic-ray) make them and `sources` does not: broader, so more of them fall at once, and more of them change no answer.

Each change edits a node in place and says what the node is then. Left alone are, besides what `sources` leaves alone, default arguments and decorators: they are no part of a
function's code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

Change: TypeAlias = Callable[[Any], str]
"""Edits a node in place; returns what it is then."""

Changes: TypeAlias = Callable[[ast.AST], Iterator[Change]]
"""The changes that fit a node."""

_TURNED: Final = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.GtE,
    ast.NotEq: ast.Lt,
}
_BORDER: Final = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_BINARY: Final = {ast.Add: ast.Mult, ast.Sub: ast.Mult, ast.Mult: ast.Add, ast.FloorDiv: ast.Mod, ast.Mod: ast.Mult, ast.BitOr: ast.BitXor}
_WRAPPERS: Final = {"list", "tuple", "sorted", "reversed", "set", "frozenset", "bytes", "iter"}
"""Calls that give, in another order or apart from it, what they are given."""

_SYMMETRIC: Final = {"min", "max"}
"""Calls that do not mind in which order their arguments come."""


def further(node: ast.AST) -> Iterator[Change]:
    """The further changes that fit a node."""
    for kind, change in _ALWAYS:
        if isinstance(node, kind):
            yield change
    for kind, changes in _CHANGES:
        if isinstance(node, kind):
            yield from changes(node)


def _comparison(node: ast.Compare) -> Iterator[Change]:
    for place, op in enumerate(node.ops):
        if type(op) in _TURNED:
            yield partial(_compared, place, _TURNED[type(op)])
        if len(node.ops) > 1 and type(op) in _BORDER:
            yield partial(_compared, place, _BORDER[type(op)])


def _compared(place: int, op: type[ast.cmpop], node: ast.Compare) -> str:
    node.ops[place] = op()
    return ast.unparse(node)


def _operation(node: ast.BinOp) -> Iterator[Change]:
    if type(node.op) in _BINARY:
        yield partial(_operated, _BINARY[type(node.op)])
    yield partial(_only, "left")
    yield partial(_only, "right")


def _operated(op: type[ast.operator], node: ast.BinOp) -> str:
    node.op = op()
    return ast.unparse(node)


def _only(field: str, node: ast.AST) -> str:
    """The node becomes one of its parts."""
    return _becomes(node, getattr(node, field))


def _becomes(node: ast.AST, other: ast.AST) -> str:
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(vars(other))
    return ast.unparse(node).partition("\n")[0]


def _junction(node: ast.BoolOp) -> Iterator[Change]:
    for place in range(len(node.values)):
        yield partial(_without, "values", place)


def _without(field: str, place: int, node: ast.AST) -> str:
    """A list of parts loses one; a junction of one part is that part."""
    parts = getattr(node, field)
    del parts[place]
    if isinstance(node, ast.BoolOp) and len(parts) == 1:
        return _becomes(node, parts[0])
    return ast.unparse(node)


def _negative(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.USub):
        yield partial(_only, "operand")


def _constant(node: ast.Constant) -> Iterator[Change]:
    if type(node.value) is int:
        yield _less
    elif type(node.value) is str and node.value and " " not in node.value:  # a key or a name, no message
        yield _other_text


def _less(node: ast.Constant) -> str:
    assert isinstance(node.value, int)
    node.value -= 1
    return ast.unparse(node)


def _other_text(node: ast.Constant) -> str:
    assert isinstance(node.value, str)
    node.value += "_"
    return ast.unparse(node)


def _always(node: ast.If | ast.IfExp) -> str:
    node.test = ast.copy_location(ast.Constant(True), node.test)
    return f"always: {ast.unparse(node).partition(chr(10))[0]}"


def _opposite(node: ast.If | ast.While | ast.IfExp) -> str:
    node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
    return ast.unparse(node).partition("\n")[0]


def _once(node: ast.For | ast.While) -> str:
    node.body.append(ast.copy_location(ast.Break(), node))
    return f"once: {ast.unparse(node).partition(chr(10))[0]}"


def _no_time(node: ast.For) -> str:
    node.iter = ast.copy_location(ast.Tuple([], ast.Load()), node.iter)
    return ast.unparse(node).partition("\n")[0]


def _other_jump(node: ast.stmt) -> str:
    return _becomes(node, ast.copy_location(ast.Continue() if isinstance(node, ast.Break) else ast.Break(), node))


def _generator(node: ast.comprehension) -> Iterator[Change]:
    for place in range(len(node.ifs)):
        yield partial(_without, "ifs", place)


def _slice(node: ast.Slice) -> Iterator[Change]:
    for field in ("lower", "upper", "step"):
        end = getattr(node, field)
        if end is not None:
            yield partial(_open, field)
            if field != "step" and not isinstance(end, ast.Constant):
                yield partial(_moved, field, ast.Add)
                yield partial(_moved, field, ast.Sub)


def _open(field: str, node: ast.Slice) -> str:
    setattr(node, field, None)
    return ast.unparse(node)


def _moved(field: str, op: type[ast.operator], node: ast.Slice) -> str:
    end = getattr(node, field)
    setattr(node, field, ast.copy_location(ast.BinOp(end, op(), ast.Constant(1)), end))
    return ast.unparse(node)


def _copy(node: ast.Subscript) -> Iterator[Change]:
    whole = isinstance(node.slice, ast.Slice) and node.slice.lower is node.slice.upper is None
    if whole and isinstance(node.ctx, ast.Load):  # a copy, or the other way round
        yield partial(_only, "value")


def _call(node: ast.Call) -> Iterator[Change]:
    arguments = len(node.args)
    for place, argument in enumerate(node.args):
        if not (isinstance(argument, ast.Constant) and argument.value is None):
            yield partial(_nothing_for, place)
        if arguments > 1:
            yield partial(_without, "args", place)
    if arguments > 1 and ast.unparse(node.func) not in _SYMMETRIC:
        yield _swapped
    for place in range(len(node.keywords)):
        yield partial(_without, "keywords", place)
    if isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS and arguments == 1:
        yield _unwrapped
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not arguments:
        yield _from_the_front
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        yield _to_the_front


def _nothing_for(place: int, node: ast.Call) -> str:
    node.args[place] = ast.copy_location(ast.Constant(None), node.args[place])
    return ast.unparse(node)


def _swapped(node: ast.Call) -> str:
    node.args[:2] = reversed(node.args[:2])
    return ast.unparse(node)


def _unwrapped(node: ast.Call) -> str:
    return _becomes(node, node.args[0])


def _from_the_front(node: ast.Call) -> str:
    node.args.append(ast.copy_location(ast.Constant(0), node))
    return ast.unparse(node)


def _to_the_front(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Attribute)
    node.func.attr = "insert"
    node.args.insert(0, ast.copy_location(ast.Constant(0), node))
    return ast.unparse(node)


def _elements(node: ast.Tuple | ast.List) -> Iterator[Change]:
    if isinstance(node.ctx, ast.Load):
        for place in range(len(node.elts)):
            yield partial(_without, "elts", place)


def _attempt(node: ast.Try) -> Iterator[Change]:
    if node.finalbody:
        yield _unfinished
    for place in range(len(node.handlers)):
        yield partial(_uncaught, place)


def _unfinished(node: ast.Try) -> str:
    told = f"left out: finally: {ast.unparse(node.finalbody[0])}"
    node.finalbody = [ast.copy_location(ast.Pass(), node)]
    return told


def _uncaught(place: int, node: ast.Try) -> str:
    caught = node.handlers[place]
    told = f"left out: {ast.unparse(caught).partition(chr(10))[0]}"
    caught.body = [ast.copy_location(ast.Raise(), caught)]
    return told


def _outside(node: ast.With) -> str:
    told = f"left out: {ast.unparse(node).partition(chr(10))[0]}"
    _becomes(node, ast.copy_location(ast.If(ast.Constant(True), node.body, []), node))
    return told


def _assignment(node: ast.Assign | ast.AnnAssign) -> Iterator[Change]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield _assigned_nothing
    if isinstance(node, ast.Assign):
        for place in range(len(node.targets) if len(node.targets) > 1 else 0):
            yield partial(_without, "targets", place)


def _assigned_nothing(node: ast.Assign | ast.AnnAssign) -> str:
    assert node.value is not None
    node.value = ast.copy_location(ast.Constant(None), node.value)
    return ast.unparse(node)


def _instead(node: ast.AugAssign) -> str:
    return _becomes(node, ast.copy_location(ast.Assign([node.target], node.value), node))


_ALWAYS: Final[tuple[tuple[Any, Change], ...]] = (
    (ast.If | ast.While | ast.IfExp, _opposite),
    (ast.If | ast.IfExp, _always),
    (ast.For | ast.While, _once),
    (ast.For, _no_time),
    (ast.Break | ast.Continue, _other_jump),
    (ast.With, _outside),
    (ast.AugAssign, _instead),
)
"""Kind of node -> a change that fits every such node."""

_CHANGES: Final[tuple[tuple[Any, Callable[[Any], Iterator[Change]]], ...]] = (
    (ast.Compare, _comparison),
    (ast.BinOp, _operation),
    (ast.BoolOp, _junction),
    (ast.UnaryOp, _negative),
    (ast.Constant, _constant),
    (ast.comprehension, _generator),
    (ast.Slice, _slice),
    (ast.Subscript, _copy),
    (ast.Call, _call),
    (ast.Tuple | ast.List, _elements),
    (ast.Try, _attempt),
    (ast.Assign | ast.AnnAssign, _assignment),
)
"""Kind of node -> the changes that fit, by what is in it."""
