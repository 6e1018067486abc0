"""Evaluates the arithmetic of whole numbers that launch scripts have in $(( )), such as 8 * 2."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_SUM = re.compile(r"[\d\s()+*/%<>=!&|-]{1,400}", re.ASCII)
_CHOICE = re.compile(r"([^?]{1,200})\?([^?:]{1,200}):([^?:]{1,200})")
_MOST = 10**12
"""Numbers from here on are refused: no count of a job is as large."""
_OPERATIONS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: _truncated(left, right),
    ast.Mod: lambda left, right: left - right * _truncated(left, right),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def value_of(expression: str) -> int | None:
    """Returns the value of an arithmetic expression of whole numbers: 16 for "8 * 2". None where
    it has names, divides by 0, has a number of 10**12 or more, or is no such expression."""
    choice = _CHOICE.fullmatch(expression)  # CONDITION ? VALUE : OTHER_VALUE
    if choice is not None:
        condition = value_of(choice[1])
        return None if condition is None else value_of(choice[2] if condition else choice[3])
    if not _SUM.fullmatch(expression):
        return None
    # What is left has the syntax of Python, except for these two operators.
    spelt = expression.replace("&&", " and ").replace("||", " or ").strip()
    try:
        return int(_evaluated(ast.parse(spelt, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError):
        return None


def _truncated(left: int, right: int) -> int:
    """Returns a quotient rounded towards 0, as shells divide."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _evaluated(node: ast.expr) -> int:
    """Returns the value of a parsed expression. Raises ValueError for anything but arithmetic on
    whole numbers below a limit."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _MOST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BoolOp):
        values = [_evaluated(value) != 0 for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _operation_value(type(node.ops[0]), node.left, node.comparators[0])
    if isinstance(node, ast.BinOp):
        return _operation_value(type(node.op), node.left, node.right)
    raise ValueError(node)


def _operation_value(kind: type[ast.AST], left: ast.expr, right: ast.expr) -> int:
    """Returns the value of a binary operation or a comparison, which is 0 or 1. Raises
    ValueError for an operator that shells do not have, and for too large a value."""
    if kind not in _OPERATIONS:
        raise ValueError(kind)
    value = int(_OPERATIONS[kind](_evaluated(left), _evaluated(right)))
    if abs(value) >= _MOST:
        raise ValueError(value)
    return value
