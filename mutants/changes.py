"""The changes that are made to a module, one at a time.

Each is a small mistake of the kind people make: a comparison turned around, a branch dropped, an effect
forgotten, two steps in the wrong order, a number off by one.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType

Function = ast.FunctionDef | ast.AsyncFunctionDef
Apply = Callable[[ast.AST], None]

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_SILENT = ("log", "logger", "warnings")
"""What only speaks to people is left alone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One mistake in one function, and the code object that takes the place of the function's own."""

    function: str
    line: int
    kind: str
    before: str
    after: str
    code: CodeType

    @property
    def told(self) -> str:
        return f"{self.line} {self.function}: {self.kind}: {self.before}  ->  {self.after}"


def changes_of(source: str, path: str) -> list[Change]:
    """Every change of every function in a module that compiles, and to other code than before."""
    found = []
    for name, function in _functions(ast.parse(source, path)):
        own, before, nodes = _compiled(name, function, path), ast.unparse(function), _nodes(function)
        kept = pickle.dumps((function, nodes))
        for number, node in enumerate(nodes):
            for kind, line, apply in _mistakes(node):
                twin, twins = pickle.loads(kept)  # noqa: S301  # written above; a third of a deep copy's time
                apply(twins[number])
                code = _compiled(name, twin, path)
                if code is not None and own is not None and _differs(code, own):
                    found.append(Change(name, line, kind, *_shown(before, ast.unparse(twin)), code))
    return found


def _compiled(name: str, function: Function, path: str) -> CodeType | None:
    """The function alone, inside the classes that its name says: a whole module would take much longer."""
    body: ast.stmt = function
    for holder in reversed(name.split(".")[:-1]):
        body = ast.ClassDef(holder, bases=[], keywords=[], body=[body], decorator_list=[])
    try:
        module = ast.fix_missing_locations(ast.Module([body], []))
        return dict(_codes(compile(module, path, "exec"))).get(name)
    except SyntaxError:
        return None


def _differs(code: CodeType, own: CodeType) -> bool:
    """Another code that can take the place of this one."""
    return code.co_freevars == own.co_freevars and code != own


def _shown(before: str, after: str) -> tuple[str, str]:
    """The first lines that differ."""
    one, two = before.splitlines(), after.splitlines()
    at = next((at for at, (old, new) in enumerate(zip(one, two, strict=False)) if old != new), -1)
    return one[at].strip(), two[at].strip()


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods by their qualified names; what is inside a function belongs to it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if child.name != "__repr__":
                yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            name = prefix + constant.co_name
            if "__qualname__" in constant.co_names:  # the body of a class
                yield from _codes(constant, f"{name}.")
            else:
                yield name, constant


def _nodes(function: ast.AST) -> list[ast.AST]:
    """In a fixed order, without annotations, decorators, docstrings, assertions and log lines."""
    found = [function]
    for name, value in ast.iter_fields(function):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_silent(child):
                found += _nodes(child)
    return found


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
        return True
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    name: ast.AST | None = node.value.func if isinstance(node.value, ast.Call) else None
    while isinstance(name, ast.Attribute):
        name = name.value
    return isinstance(name, ast.Name) and name.id in _SILENT


def _mistakes(node: ast.AST) -> Iterator[tuple[str, int, Apply]]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=[operator]):
            yield "comparison turned", line, partial(_set_comparison, table=_TURNED)
            if type(operator) in _SHIFTED:
                yield "comparison shifted", line, partial(_set_comparison, table=_SHIFTED)
        case ast.BoolOp():
            yield "and, or exchanged", line, _exchange_junction
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", line, _negate_again
        case ast.If():
            yield "branch dropped", line, partial(_decide, junction=ast.And, constant=False)
            yield "branch always taken", line, partial(_decide, junction=ast.Or, constant=True)
        case ast.Return(value=ast.Constant(value=bool())):
            yield "answer turned", line, _turn_answer
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "sign turned", line, _turn_sign
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "off by one", line, _add_one
    for name in ("body", "orelse", "finalbody"):
        found = getattr(node, name, None)
        block: list[ast.stmt] = found if isinstance(found, list) else []
        for at, statement in enumerate(block):
            if _is_effect(statement):
                yield "effect forgotten", statement.lineno, partial(_forget, name=name, at=at)
                if at + 1 < len(block) and _is_effect(block[at + 1]) and not _commute(*block[at : at + 2]):
                    yield "steps exchanged", statement.lineno, partial(_exchange, name=name, at=at)


def _is_effect(statement: ast.stmt) -> bool:
    """A call, or something set that others see."""
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return not _is_silent(statement)
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.AugAssign() | ast.Delete():
            return True
    return False


def _commute(one: ast.stmt, two: ast.stmt) -> bool:
    """Whether nobody can tell the order.

    That is so for a meter's count and anything that does not wait, for two things set from values that call
    nothing and read neither of them, and for a local number counted up and a call that does not get it.
    """
    if (_is_count(one) or _is_count(two)) and not any(_waits(each) for each in (one, two)):
        return True
    if isinstance(one, ast.Expr) or isinstance(two, ast.Expr):
        counted, call = (two, one) if isinstance(one, ast.Expr) else (one, two)
        if not (isinstance(counted, ast.AugAssign) and isinstance(counted.target, ast.Name)):
            return False
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        return isinstance(call, ast.Expr) and counted.target.id not in names and not _calls(counted.value)
    if not (isinstance(one, ast.Assign | ast.AugAssign) and isinstance(two, ast.Assign | ast.AugAssign)):
        return False
    targets = {ast.unparse(target) for each in (one, two) for target in _targets(each)}
    parts = [node for each in (one, two) for node in ast.walk(each.value)]
    reads = any(isinstance(node, ast.expr) and ast.unparse(node) in targets for node in parts)
    return len(targets) > 1 and not reads and not _calls(one.value) and not _calls(two.value)


def _is_count(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="count" | "observe"), args=args)):
            return not any(_calls(argument) for argument in args)
    return False


def _waits(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Await) for node in ast.walk(statement))


def _calls(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call | ast.Await | ast.Subscript) for node in ast.walk(value))


def _targets(statement: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _set_comparison(node: ast.AST, table: dict[type[ast.cmpop], type[ast.cmpop]]) -> None:
    assert isinstance(node, ast.Compare)
    node.ops = [table[type(node.ops[0])]()]


def _exchange_junction(node: ast.AST) -> None:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _negate_again(node: ast.AST) -> None:
    assert isinstance(node, ast.UnaryOp)
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _decide(node: ast.AST, junction: type[ast.boolop], constant: bool) -> None:
    assert isinstance(node, ast.If)
    node.test = ast.BoolOp(junction(), [node.test, ast.Constant(constant)])


def _turn_answer(node: ast.AST) -> None:
    assert isinstance(node, ast.Return)
    assert isinstance(node.value, ast.Constant)
    node.value = ast.Constant(not node.value.value)


def _turn_sign(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()


def _add_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    node.value += 1


def _forget(node: ast.AST, name: str, at: int) -> None:
    block = getattr(node, name)
    block[at] = ast.copy_location(ast.Pass(), block[at])


def _exchange(node: ast.AST, name: str, at: int) -> None:
    block = getattr(node, name)
    block[at], block[at + 1] = block[at + 1], block[at]
