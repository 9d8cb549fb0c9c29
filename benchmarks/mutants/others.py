"""A judge's mutants: changes that neither `sources` nor `further` makes, so that a suite which was mended by those is measured by something else.

Each operator says, of a node of the syntax tree, in which other words it could stand there. Whole modules are changed, so defaults of arguments, fields of dataclasses and constants
of the module take part; left alone are messages, annotations and docstrings.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeAlias, TypeVar

from benchmarks.mutants.sources import Mutant

T = TypeVar("T")

Source: TypeAlias = Callable[[], str]
"""Gives the source of a changed module."""

Comprehension: TypeAlias = ast.ListComp | ast.GeneratorExp | ast.DictComp

Operator: TypeAlias = Callable[[Any], Iterator[str]]
"""What a node could be instead, as source text."""

_ALIKE: Final = (
    "computed target room milestone calm length known end",
    "depths passed stale",
    "refs labels",
    "before after",
    "_before _after",
    "left right",
    "start end first last",
    "parent child",
    "state twin",
    "at depth position",
    "held wanted",
    "shared promised",
    "low high middle",
    "group size chain",
    "copies zeroed sources",
    "free cached retiring",
    "refcounts cached",
    "available idle num_blocks",
    "num_blocks block_size",
    "seq step",
    "accepted count",
    "blocks gone stored",
    "cursors live",
)
"""Names of one type each, which a tired engineer could take for one another."""

_COMPARED: Final = {
    ast.Lt: ("== {}", "!= {}", "< {} - 1"),
    ast.LtE: ("== {}", "<= {} + 1"),
    ast.Gt: ("== {}", "!= {}", "> {} + 1"),
    ast.GtE: ("== {}", ">= {} - 1"),
    ast.Eq: ("<= {}", "== {} + 1"),
    ast.NotEq: ("> {}",),
}
_OPPOSED: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)
_ENDS: Final = (ast.Pass, ast.Return, ast.Raise, ast.Continue, ast.Break, ast.FunctionDef, ast.ClassDef)
"""Statements that end the way themselves, or do nothing when they are reached."""

_CONTAINERS: Final = {"set": "list", "frozenset": "list", "list": "tuple", "tuple": "list"}


def _compared(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = node.comparators[0]
        for words in _COMPARED.get(type(node.ops[0]), ()):
            if not ("1" in words and isinstance(other, ast.Constant)):
                yield f"{_text(node.left)} {words.format(_text(other))}"


def _truth(node: ast.AST) -> Iterator[str]:
    """None taken for what is false, and what is false for None."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _text(node.comparators[0]) == "None":
        yield f"not {_text(node.left)}" if isinstance(node.ops[0], ast.Is) else f"bool({_text(node.left)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({_text(node.operand)}) is None"


def _negated(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BoolOp):
        for place, value in enumerate(node.values):
            if not isinstance(value, ast.UnaryOp) and not (isinstance(value, ast.Compare) and isinstance(value.ops[0], _OPPOSED)):
                yield _but(node, values=_at(node.values, place, _not(value)))
    elif isinstance(node, _COMPREHENSIONS) and node.generators[-1].ifs:
        yield _but_its_loop(node, ifs=_at(node.generators[-1].ifs, 0, _not(node.generators[-1].ifs[0])))


def _returned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        yield f"return {', '.join(_text(one) for one in reversed(node.value.elts))}"
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield from ("return []", "return 0", _text(node.value))


def _passed(node: ast.AST) -> Iterator[str]:
    """Arguments in another order, or one given for another."""
    if not isinstance(node, ast.Call):
        return
    given, named = node.args, node.keywords
    if len(given) > 2:
        yield _but(node, args=[*given[:-2], given[-1], given[-2]])
    if len(given) > 1 and not any(isinstance(one, ast.Starred) for one in given):
        yield _but(node, args=_at(given, 0, given[1]))
        yield _but(node, args=_at(given, 1, given[0]))
    for place in range(1, len(named)):
        yield _but(node, keywords=_at(named, place, ast.keyword(named[place].arg, named[place - 1].value)))


def _default(value: ast.AST) -> Iterator[str]:
    """What else a constant could be, the value of a field, or that of an argument which is not given."""
    if isinstance(value, ast.Constant) and isinstance(value.value, bool | int):
        yield str(not value.value if isinstance(value.value, bool) else value.value + 1)
    elif isinstance(value, ast.Tuple) and value.elts:
        for place in range(len(value.elts)):
            yield _but(value, elts=_at(value.elts, place))
    else:
        yield {"None": "0", "()": "(0,)"}.get(_text(value), "None")


def _without_a_word(decorator: ast.AST) -> Iterator[str]:
    if isinstance(decorator, ast.Call):
        for place in range(len(decorator.keywords)):
            yield _but(decorator, keywords=_at(decorator.keywords, place))


def _rounds(node: ast.AST) -> Iterator[str]:
    """The first round is left out, or the last, or all come the other way round."""
    for part in ("[1:]", "[:-1]", "[::-1]"):
        if isinstance(node, ast.For):
            yield _but(node, iter=_parsed(f"list({_text(node.iter)}){part}"))
        elif isinstance(node, _COMPREHENSIONS):
            yield _but_its_loop(node, iter=_parsed(f"list({_text(node.generators[-1].iter)}){part}"))


def _lazily(node: ast.AST) -> Iterator[str]:
    """What is kept in a list is made when it is looked at, or the other way round; an order turned; a copy left out."""
    if isinstance(node, ast.ListComp):
        yield f"({_text(node)[1:-1]})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        argument = _text(node.args[0])
        if node.func.id == "sorted":
            yield f"sorted({argument}, reverse=True)"
        elif node.func.id == "deepcopy":
            yield argument
        elif node.func.id in _CONTAINERS:
            yield f"{_CONTAINERS[node.func.id]}({argument})"
        elif node.func.id == "range":
            yield from (f"range({argument} - 1)", f"range({argument} + 1)")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
        yield _text(node.func.value)


def _fallback(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault") and node.args:
        owner, key, *default = _text(node.func.value), *map(_text, node.args)
        yield f"{owner}[{key}]"
        if node.func.attr != "get":
            yield f"{owner}.get({', '.join([key, *default])})"
        if default not in ([], ["None"]):
            yield default[0]


def _early(node: ast.AST) -> Iterator[str]:
    """The way ends before a statement."""
    if isinstance(node, ast.stmt) and not isinstance(node, _ENDS):
        yield from (f"{jump}\n{_text(node)}" for jump in ("return", "continue"))


def _index(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Constant | ast.Tuple | ast.UnaryOp):
        yield from (f"{_text(node.value)}[{_text(node.slice)} {step} 1]" for step in "+-")


def _swallowed(node: ast.AST) -> Iterator[str]:
    """An exception goes unseen, more of them are caught than should be, or another is raised."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"try:\n    {_text(node)}\nexcept Exception:\n    pass"
    elif isinstance(node, ast.Try):
        for place, caught in enumerate(node.handlers):
            if caught.type is not None and _text(caught.type) != "Exception":
                yield _but(node, handlers=_at(node.handlers, place, ast.ExceptHandler(_parsed("Exception"), caught.name, caught.body)))
            if not isinstance(caught.body[0], ast.Raise):
                yield _but(node, handlers=_at(node.handlers, place, ast.ExceptHandler(caught.type, caught.name, [ast.Pass()])))
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield f"raise {_but(node.exc, func=_parsed('RuntimeError'))}{f' from {_text(node.cause)}' if node.cause else ''}"


def _branches(node: ast.AST) -> Iterator[str]:
    """Both branches run, or none; a loop is a condition."""
    if isinstance(node, ast.If) and node.orelse:
        yield "pass"
        yield _but(node, body=[*node.body, *node.orelse], orelse=[])
    elif isinstance(node, ast.While) and not any(isinstance(one, ast.Break | ast.Continue) for one in ast.walk(node)):
        yield _text(ast.If(node.test, node.body, []))


def _again(node: ast.AST) -> Iterator[str]:
    """A statement runs twice, an assignment adds, two names are assigned the other way round."""
    if isinstance(node, ast.Expr | ast.AugAssign | ast.For):
        yield f"{_text(node)}\n{_text(node)}"
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield f"{_text(node.targets[0])} += {_text(node.value)}"
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        yield f"{', '.join(_text(one) for one in reversed(node.targets[0].elts))} = {_text(node.value)}"


def _other_name(node: ast.AST) -> Iterator[str]:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    for alike in _ALIKE:
        for other in alike.split() if name in alike.split() else ():
            if other != name and isinstance(getattr(node, "ctx", None), ast.Load):
                yield f"{_text(node.value)}.{other}" if isinstance(node, ast.Attribute) else other


def _rounded(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.BinOp):
        numerator, divisor = _text(node.operand.left), _text(node.operand.right)
        yield from (f"{numerator[1:]} // {divisor}", f"{numerator[1:]} // {divisor} + 1")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        yield from (f"-(-({_text(node.left)}) // {_text(node.right)})", f"({_text(node.left)}) / {_text(node.right)}")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        yield f"abs({_text(node)})"
        yield f"{_text(node.right)} - ({_text(node.left)})"


def _literal(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value:
        yield from ("0" if node.value not in (-1, 1) else "3", str(-node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value and " " not in node.value:
        yield "''"
    elif isinstance(node, ast.Set):
        yield from (_but(node, elts=_at(node.elts, place)) for place in range(len(node.elts)))
    elif isinstance(node, ast.Dict):
        yield from (_but(node, keys=_at(node.keys, place), values=_at(node.values, place)) for place in range(len(node.keys)))


_OPERATORS: Final[dict[str, Operator]] = {
    "comparison": _compared,
    "truth": _truth,
    "negated": _negated,
    "returned": _returned,
    "passed": _passed,
    "rounds": _rounds,
    "container": _lazily,
    "fallback": _fallback,
    "early": _early,
    "index": _index,
    "exception": _swallowed,
    "branches": _branches,
    "again": _again,
    "other name": _other_name,
    "rounded": _rounded,
    "literal": _literal,
}


def others(module: str, source: str) -> Iterator[tuple[Mutant, Source]]:
    """Every such mutant of a module, with what gives its source."""
    starts = [0, *accumulate(len(line) for line in source.encode().splitlines(keepends=True))]
    for number, (node, scope, operator, text) in enumerate(_changes(ast.parse(source))):
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before, after = _unlike(_text(node), text)
        mutant = Mutant(module, scope, number, node.lineno, before, after, operator)
        yield mutant, partial(_replaced, source.encode(), first, last, text, node)


def _changes(node: Any, scope: str = "<module>", way: str = "") -> Iterator[tuple[Any, str, str, str]]:  # noqa: ANN401
    """(node, where it stands, operator, what it becomes). `way`: the kinds of nodes that it stands in."""
    for operator, words in _OPERATORS.items():
        for text in words(node):
            if operator != "early" or _may_jump(text, way):
                yield node, scope, operator, text
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = node.name if scope == "<module>" else f"{scope}.{node.name}"
        for decorator in node.decorator_list:
            for text in _without_a_word(decorator):
                yield decorator, scope, "default", text
    for value in _defaults(node):
        for text in _default(value):
            yield value, scope, "default", text
    for child in _parts(node):
        yield from _changes(child, scope, f"{way}{type(node).__name__}.")


def _may_jump(text: str, way: str) -> bool:
    return "FunctionDef" in way if text.startswith("return") else "For." in way or "While" in way


def _defaults(node: Any) -> list[Any]:  # noqa: ANN401 -- the fields of a node depend on its kind
    """Values that stand outside of the bodies of functions."""
    if isinstance(node, ast.FunctionDef):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, ast.ClassDef | ast.Module):
        return [child.value for child in _parts(node) if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None]
    return []


def _parts(node: Any) -> list[Any]:  # noqa: ANN401 -- the fields of a node depend on its kind
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return []
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        return [child for child in node.body if not _only_for_readers(child)]
    if isinstance(node, ast.AnnAssign):
        return [node.value] if node.value is not None else []
    return list(ast.iter_child_nodes(node))


def _only_for_readers(node: ast.stmt) -> bool:
    """A docstring, or a name for a type."""
    if isinstance(node, ast.AnnAssign):
        return _text(node.annotation) == "TypeAlias"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replaced(source: bytes, first: int, last: int, text: str, node: Any) -> str:  # noqa: ANN401
    lines = (text if isinstance(node, ast.stmt) else f"({text})").splitlines(keepends=True)
    if source.startswith(b"elif", first):
        lines = ["else:\n", *[f"    {line}" for line in lines]]
    indented = "".join([lines[0], *[" " * node.col_offset + line for line in lines[1:]]])
    return (source[:first] + indented.encode() + source[last:]).decode()


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _not(condition: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), condition)


def _with(node: T, **fields: object) -> T:
    """A node with other fields."""
    twin = copy.copy(node)
    for field, value in fields.items():
        setattr(twin, field, value)
    return twin


def _but(node: ast.AST, **fields: object) -> str:
    """The same, as text."""
    return _text(_with(node, **fields))


def _but_its_loop(node: Comprehension, **fields: object) -> str:
    return _but(node, generators=[*node.generators[:-1], _with(node.generators[-1], **fields)])


def _at(parts: Sequence[T], place: int, *others: T) -> list[T]:
    """`parts` with others, or none, in place of one."""
    return [*parts[:place], *others, *parts[place + 1 :]]


def _unlike(before: str, after: str) -> tuple[str, str]:
    """The two without the lines in which both begin, and not more than three of the rest."""
    told = [[line.strip() for line in text.splitlines()] for text in (before, after)]
    while len(told[0]) > 1 and len(told[1]) > 1 and told[0][0] == told[1][0]:
        told = [lines[1:] for lines in told]
    return " ; ".join(told[0][:3]), " ; ".join(told[1][:3])
