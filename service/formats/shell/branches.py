"""Branches and loops of a text, followed as far as the text decides them.

Where it does not, each branch is followed with variables of its own, and what it sets is in doubt
afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tree_sitter import Node

from service.formats.shell.clauses import asked_for, case_parts, clause, is_test
from service.formats.shell.commands import Finished
from service.formats.shell.conditions import Truth
from service.formats.shell.faults import undefined_variables
from service.formats.shell.patterns import matches
from service.formats.shell.syntax import line_of
from service.formats.shell.variables import Doubt, Value, Variables

if TYPE_CHECKING:
    from service.formats.shell.interpreter import Interpreter

_ARGUMENTS = re.compile(r"\$\{?[#1]")
_MOST_ARGUMENTS = 64
"""Rounds of a loop over arguments: each takes one at least."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Follows what runs, or runs again, on a condition."""

    reader: Interpreter

    def follow_if(self, node: Node) -> Truth:
        reader = self.reader
        clauses = [clause(node)]
        otherwise: list[Node] | None = None
        for child in node.children:
            if child.type == "elif_clause":
                clauses.append(clause(child))
            elif child.type == "else_clause":
                otherwise = child.children[1:]
        branches: list[Variables] = []
        is_whole = otherwise is not None
        for tests, body in clauses:
            truth = self._tested(tests)
            if truth is True and not branches:
                return reader.run(body)
            if truth is not False:
                branches.append(self._branch(body, self._default_of(tests)))
            if truth is True:
                is_whole = True
                break
        else:
            if otherwise is not None and not branches:
                return reader.run(otherwise)
            if otherwise is not None:
                branches.append(self._branch(otherwise))
        self._merge(branches, is_whole=is_whole)
        return None

    def _tested(self, tests: Sequence[Node]) -> Truth:
        """Returns what a condition says. Commands in it succeed or not where the script runs."""
        reader = self.reader
        return reader.run(tests) if tests else None

    def _branch(self, body: Sequence[Node], default: str | None = None) -> Variables:
        """Returns the variables behind a branch of which the text does not say whether it runs.
        `default` is a variable that the branch sets where nothing else does."""
        reader = self.reader
        outside = reader.variables
        reader.variables = outside.copied()
        reader.undecided += 1
        try:
            reader.run(body)
            inside = reader.variables
        except Finished as finished:
            # What a branch sets that ends the script is nothing to the lines behind it.
            inside = outside.copied() if finished.kind == "exit" else reader.variables
        finally:
            reader.undecided -= 1
            reader.variables = outside
        if default is not None and default in inside.values:
            value = inside.values[default]
            known = reader.takes_defaults
            outside.values[default] = Value(
                value.words if known else (f"${default}",), value.is_array, value.doubts
            )
            inside.values[default] = outside.values[default]
        return inside

    def _default_of(self, tests: Sequence[Node]) -> str | None:
        """Returns the variable that a branch behind some tests gives a default."""
        reader = self.reader
        name = asked_for(reader.tree.text(tests[0])) if len(tests) == 1 else None
        return None if name in reader.variables.values else name

    def _merge(self, branches: Sequence[Variables], *, is_whole: bool) -> None:
        reader = self.reader
        if branches:
            reader.variables.merge(branches, is_whole=is_whole, is_inside=reader.undecided > 0)

    def follow_list(self, node: Node) -> Truth:
        """Follows a && b, or a || b. A plain command in front is taken to succeed."""
        reader = self.reader
        left, right = node.children[0], node.children[-1]
        truth = reader.follow(left)
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        if truth is None and not is_test(reader.tree, left):
            truth = True if operator == "&&" else None
        if truth is None:
            default = self._default_of([left]) if operator == "&&" else None
            self._merge([self._branch([right], default)], is_whole=False)
            return None
        return reader.follow(right) if truth == (operator == "&&") else truth

    def follow_not(self, node: Node) -> Truth:
        reader = self.reader
        truth = reader.run(node.children[1:])
        return None if truth is None else not truth

    def follow_case(self, node: Node) -> Truth:
        reader = self.reader
        value = node.child_by_field_name("value")
        expansion = reader.expansion()
        text = "" if value is None else expansion.text(value)
        is_open = bool(undefined_variables(text) or expansion.doubts)
        branches: list[Variables] = []
        is_whole = False
        for item in (child for child in node.children if child.type == "case_item"):
            patterns, body = case_parts(item)
            matches = [None if is_open else self._matches(text, pattern) for pattern in patterns]
            is_rest = any(reader.tree.text(pattern) == "*" for pattern in patterns)
            if True in matches and not branches:
                return reader.run(body)
            if is_rest or True in matches or None in matches:
                branches.append(self._branch(body))
            if is_rest or True in matches:
                is_whole = True
                break
        self._merge(branches, is_whole=is_whole)
        return None

    def _matches(self, text: str, pattern: Node) -> Truth:
        reader = self.reader
        expansion = reader.expansion()
        written = expansion.text(pattern)
        return None if undefined_variables(written) else matches(text, written)

    def follow_for(self, node: Node) -> Truth:
        reader = self.reader
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        expansion = reader.expansion()
        listed = node.children_by_field_name("value")
        words = [word for word_node in listed for word in expansion.words(word_node)]
        if not any(child.type == "in" for child in node.children):
            words = list(reader.variables.values.get("@", Value(())).words)
        name = reader.tree.text(variable)
        doubt = Doubt(name, f"for {name} in …", line_of(node), replaces=True)
        if expansion.doubts or any(map(undefined_variables, words)):
            reason = f"line {line_of(node)} goes through words that are not known"
            reader.variables.values[name] = Value((f"${name}",), reason=reason)
            self._merge([self._branch(body.children)], is_whole=False)
            return None
        for word in words:
            reader.set(name, Value((word,)), doubt, keeps=False)
            try:
                reader.run(body.children)
            except Finished as finished:
                if finished.kind == "break":
                    break
                if finished.kind != "continue":
                    raise
        return None

    def follow_while(self, node: Node) -> Truth:
        """Follows a loop over the arguments as long as there are some; what another loop sets is in
        doubt."""
        body = node.child_by_field_name("body")
        tests = node.children_by_field_name("condition")
        is_until = node.children[0].type == "until"
        goes_through = any(_ARGUMENTS.search(self.reader.tree.text(test)) for test in tests)
        if body is None:
            return None
        for _ in range(_MOST_ARGUMENTS if goes_through else 1):
            truth = self._tested(tests)
            if truth is is_until:
                return None
            if truth is None or not goes_through:
                break
            try:
                self.reader.run(body.children)
            except Finished as finished:
                if finished.kind == "break":
                    return None
                if finished.kind != "continue":
                    raise
        self._merge([self._branch(body.children)], is_whole=False)
        return None

    def follow_counted(self, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        if body is not None:
            self._merge([self._branch(body.children)], is_whole=False)
        return None
