"""Mutants of a module: one comparison, number, operator, condition or statement of one function changed.

Left alone are strings and messages, annotations, assertions (they state what holds anyway), and what runs at import. A mutant is told by its function, line and change,
so its name survives edits elsewhere in the file.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from types import CodeType

import msgspec

from benchmarks.mutants.further import Change, Changes


class Mutant(msgspec.Struct, frozen=True):
    """One change: `function` is its qualified name in `module`, `number` counts the changes of that function. `operator` says which kind of change, where kinds are drawn evenly."""

    module: str
    function: str
    number: int
    line: int
    before: str
    after: str
    operator: str = ""

    @property
    def name(self) -> str:
        """What results are filed under."""
        return f"{self.module}:{self.function}:{self.number}:{self.after}"


_COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "append": "extend"}


def mutants(module: str, source: str, changes: Changes) -> Iterator[tuple[Mutant, CodeType]]:
    """Every mutant of a module that certain changes make, with the code of the changed function."""
    tree = ast.parse(source)
    for path, function in functions_of(tree):
        for number, (node, after, changed) in enumerate(_changes(function, changes)):
            before = ast.unparse(node).partition("\n")[0]
            mutant = Mutant(module, path, number, getattr(node, "lineno", function.lineno), before, after)
            yield mutant, code_of(changed, tree, path, module)


def functions_of(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module with their qualified names, those inside of functions left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")


def _changes(function: ast.FunctionDef, changes: Changes) -> Iterator[tuple[ast.AST, str, ast.FunctionDef]]:
    """(changed node, what it becomes, the function with that change)."""
    nodes = list(_inside(function))
    for index, node in enumerate(nodes):
        for change in changes(node):
            twin = copy.deepcopy(function)
            target = list(_inside(twin))[index]
            after = change(target)
            yield node, after, twin


def _inside(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of the body that may be changed, in a fixed order."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
            if isinstance(node, ast.Raise):
                yield node
            continue
        yield node
        skipped = {id(node.annotation)} if isinstance(node, ast.AnnAssign) else set()
        stack += [child for child in reversed(list(ast.iter_child_nodes(node))) if id(child) not in skipped]


def ordinary(node: ast.AST) -> Iterator[Change]:
    """The ordinary changes that fit a node: functions that make them in place and say what the node is then."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        yield _compare
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _BINARY:
        yield _operator
    elif isinstance(node, ast.BoolOp):
        yield _and_or
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _without_not
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        yield _constant
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield _other_call
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _never
    if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise | ast.Break | ast.Continue):
        yield _leave_out
    elif (
        isinstance(node, ast.Return) and node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None)
    ):
        yield _return_nothing


def _compare(node: ast.Compare) -> str:
    node.ops = [_COMPARE[type(node.ops[0])]()]
    return ast.unparse(node)


def _operator(node: ast.BinOp | ast.AugAssign) -> str:
    node.op = _BINARY[type(node.op)]()
    return ast.unparse(node)


def _and_or(node: ast.BoolOp) -> str:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return ast.unparse(node)


def _without_not(node: ast.UnaryOp) -> str:
    node.op, inner = ast.Not(), node.operand
    node.operand = ast.UnaryOp(ast.Not(), inner)
    return ast.unparse(inner)


def _constant(node: ast.Constant) -> str:
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    return ast.unparse(node)


def _other_call(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Name)
    node.func.id = _CALLS[node.func.id]
    return ast.unparse(node)


def _never(node: ast.If | ast.While | ast.IfExp) -> str:
    node.test = ast.copy_location(ast.Constant(False), node.test)
    return f"never: {ast.unparse(node).partition(chr(10))[0]}"


def _leave_out(node: ast.stmt) -> str:
    left = f"left out: {ast.unparse(node).partition(chr(10))[0]}"
    node.__class__ = ast.Pass
    node._fields = ()
    return left


def _return_nothing(node: ast.Return) -> str:
    node.value = ast.copy_location(ast.Constant(None), node)
    return "return None"


def code_of(function: ast.FunctionDef, tree: ast.Module, path: str, module: str) -> CodeType:
    """The code of a changed function, compiled where it stood: inside its class, beside the module's `from __future__`."""
    bare = copy.copy(function)
    bare.decorator_list = []
    body: list[ast.stmt] = [bare]
    for name in reversed(path.split(".")[:-1]):
        body = [ast.ClassDef(name=name, bases=[], keywords=[], body=body, decorator_list=[])]
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    compiled = compile(ast.fix_missing_locations(ast.Module(body=[*future, *body], type_ignores=[])), f"<mutant of {module}>", "exec")
    return _find(compiled, path.split("."))


def _find(code: CodeType, path: list[str]) -> CodeType:
    for part in path:
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType) and constant.co_name == part)
    return code
