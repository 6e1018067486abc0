"""Takes the branches of a shell script apart: tests and bodies of `if`, patterns of `case`."""

from __future__ import annotations

import re

from tree_sitter import Node

from service.formats.shell.syntax import Tree

_FINDS_UNSET = re.compile(
    r"(?:\[\[?\s*-z\s+|test\s+-z\s+)\"?\$\{?(\w+)(?::?-)?\}?\"?\s*\]?\]?", re.ASCII
)


def tests_and_body(node: Node) -> tuple[list[Node], list[Node]]:
    """Returns the tests and the body of `if tests; then body`, or of an `elif`."""
    tests: list[Node] = []
    body: list[Node] = []
    place = tests  # the list that gets the next node
    for child in node.children[1:]:
        if child.type == "then":
            place = body
        elif child.type in ("elif_clause", "else_clause", "fi"):
            break
        else:
            place.append(child)
    return [test for test in tests if test.is_named], body


def case_parts(item: Node) -> tuple[list[Node], list[Node]]:
    """Returns the patterns and the body of one branch of a `case`: a and b of `a|b) body ;;`."""
    patterns = item.children_by_field_name("value")
    # The body begins behind the bracket that ends the patterns.
    brackets = (index for index, child in enumerate(item.children) if child.type == ")")
    return patterns, item.children[next(brackets, 0) + 1 :]


def is_test(tree: Tree, node: Node) -> bool:
    """Returns True for a command whose purpose is to succeed or fail, such as [ -f x ] or `grep
    -q`. Any other command may be taken to succeed."""
    if node.type == "list":
        return any(is_test(tree, child) for child in node.children)
    if node.type == "command":
        name = node.child_by_field_name("name")
        return name is not None and tree.text(name) in ("test", "command", "which", "grep")
    return node.type in ("test_command", "negated_command")


def variable_found_unset(test: str) -> str | None:
    """Returns the variable that a test checks to be empty: "X" for [ -z "$X" ]. None for any
    other test."""
    match = _FINDS_UNSET.fullmatch(test.strip())
    return match[1] if match else None
