"""The rules of single statements, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.test_layers import modules

MOST_BY_POSITION = 6
"""Arguments of one call without names. Of more, nobody sees which is which."""
MOST_AT_ONCE = 2
"""Values that one statement assigns to as many names."""


@cache
def names_with_fixed_arguments() -> set[str]:
    """Names of our functions and classes. Those that take any number of arguments have no names for
    them."""
    fixed: set[str] = set()
    variable: set[str] = set()
    for nodes in modules().values():
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                (variable if node.args.vararg else fixed).add(node.name)
            elif isinstance(node, ast.ClassDef):
                fixed.add(node.name)
    return {name for name in fixed - variable if not name.startswith("__")}


def called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[-1]


def statements() -> Iterator[tuple[str, ast.AST]]:
    for name, nodes in modules().items():
        for node in nodes:
            yield f"{name}, line {getattr(node, 'lineno', 0)}", node


def test_calls_name_their_arguments_where_these_are_many() -> None:
    assert [
        f"{place}: {called(node)}"
        for place, node in statements()
        if isinstance(node, ast.Call)
        and len(node.args) > MOST_BY_POSITION
        and called(node) in names_with_fixed_arguments()
    ] == []


def test_one_statement_assigns_at_most_two_values() -> None:
    assert [
        place
        for place, node in statements()
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and len(node.value.elts) > MOST_AT_ONCE
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    ] == []
