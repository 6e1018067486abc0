"""The parts of branches: tests, bodies and patterns."""

from __future__ import annotations

import re

from tree_sitter import Node

from service.formats.shell.syntax import Tree

_ASKS_WHETHER_SET = re.compile(
    r"(?:\[\[?\s*-z\s+|test\s+-z\s+)\"?\$\{?(\w+)(?::?-)?\}?\"?\s*\]?\]?", re.ASCII
)


def clause(node: Node) -> tuple[list[Node], list[Node]]:
    """Returns the tests and the body of `if … then …`, or of `elif`."""
    tests: list[Node] = []
    body: list[Node] = []
    place = tests
    for child in node.children[1:]:
        if child.type == "then":
            place = body
        elif child.type in ("elif_clause", "else_clause", "fi"):
            break
        else:
            place.append(child)
    return [test for test in tests if test.is_named], body


def case_parts(item: Node) -> tuple[list[Node], list[Node]]:
    patterns = item.children_by_field_name("value")
    opened = next((at for at, c in enumerate(item.children) if c.type == ")"), 0)
    return patterns, item.children[opened + 1 :]


def is_test(tree: Tree, node: Node) -> bool:
    """Returns whether a command is there to be true or false."""
    if node.type in ("negated_command", "list"):
        return node.type == "negated_command" or any(is_test(tree, c) for c in node.children)
    if node.type == "command":
        name = node.child_by_field_name("name")
        return name is not None and tree.text(name) in ("test", "command", "which", "grep")
    return node.type == "test_command"


def asked_for(test: str) -> str | None:
    """Returns the variable that a test finds unset, as in [ -z "$X" ] && X=8."""
    match = _ASKS_WHETHER_SET.fullmatch(test.strip())
    return match[1] if match else None
