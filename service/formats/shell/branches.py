"""Follows the branches and loops of a launch script (the *text*) as far as it decides them. Nothing
is run: the purpose is to learn with which values the script starts the training.

A branch is *undecided* where its test depends on a value that the text does not give. It is then
followed with variables of its own. What it sets is *in doubt* afterwards: the answer names the
assignment as one that may not have run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tree_sitter import Node

from service.formats.shell.clauses import case_parts, is_test, tests_and_body, variable_found_unset
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
"""Rounds that are followed of a loop over arguments. Each round takes at least one of them: a loop
that goes on longer takes none, and never ends."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Follows the statements that run, or run again, on a condition."""

    reader: Interpreter
    """Runs the statements inside, and holds the variables."""

    def follow_if(self, node: Node) -> Truth:
        """Follows the first branch of an `if` whose test is true. Where the text does not decide
        a test, every branch that may run is followed, and what they set is in doubt."""
        reader = self.reader
        clauses: list[tuple[list[Node] | None, list[Node]]] = [tests_and_body(node)]
        for child in node.children:
            if child.type == "elif_clause":
                clauses.append(tests_and_body(child))
            elif child.type == "else_clause":
                clauses.append((None, child.children[1:]))  # which has no test
        branches: list[Variables] = []
        one_ran = False
        for tests, body in clauses:
            truth = True if tests is None else reader.run(tests)
            if truth is True and not branches:
                return reader.run(body)  # every test before it is surely false
            if truth is not False:
                # In `if [ -z "$TP" ]; then TP=4; fi` the branch gives TP its default: nothing else
                # in the text sets TP, so it has that value behind the branch.
                branches.append(self._branch(body, self._default_of(tests or ())))
            if truth is True:
                one_ran = True
                break
        self._merge(branches, one_ran=one_ran)
        return None

    def _branch(self, body: Sequence[Node], default: str | None = None) -> Variables:
        """Follows a branch that may or may not run, and returns the variables at its end. The
        variables outside stay as they are, except for the variable named `default`, to which the
        branch gives a value only if it has none, as [ -z "$TP" ] && TP=4 does."""
        reader = self.reader
        outside = reader.variables
        reader.variables = outside.copied()
        reader.undecided += 1  # until it falls again, assignments become doubts
        try:
            reader.run(body)
            inside = reader.variables
        except Finished as finished:
            # The lines behind a branch that ends the script never see its variables.
            inside = outside.copied() if finished.kind == "exit" else reader.variables
        finally:
            reader.undecided -= 1
            reader.variables = outside
        if default is not None and default in inside.values:
            # Nothing else in the text sets the variable, so it has its default behind the branch.
            # Where defaults are not taken, "$TP" says that it is unknown.
            value = inside.values[default]
            words = value.words if reader.takes_defaults else (f"${default}",)
            outside.values[default] = Value(words, value.is_array, value.doubts)
            inside.values[default] = outside.values[default]
        return inside

    def _default_of(self, tests: Sequence[Node]) -> str | None:
        """Returns the variable to which a branch behind these tests gives a default: X for [ -z
        "$X" ]. None for other tests, and where X has a value."""
        if len(tests) != 1:
            return None
        name = variable_found_unset(self.reader.tree.text(tests[0]))
        return None if name in self.reader.variables.values else name

    def _merge(self, branches: Sequence[Variables], *, one_ran: bool) -> None:
        """Sets variables to what they may be after these undecided branches. `one_ran` says
        that one of them surely runs."""
        reader = self.reader
        if branches:
            reader.variables.merge(branches, one_ran=one_ran, is_inside=reader.undecided > 0)

    def follow_list(self, node: Node) -> Truth:
        """Follows `a && b` or `a || b`. Returns whether it succeeds; None where that is not
        known. In front of &&, a command that is not a test counts as successful."""
        reader = self.reader
        left = node.children[0]
        right = node.children[-1]
        truth = reader.follow(left)
        operators = [child.type for child in node.children if child.type in ("&&", "||")]
        operator = operators[0] if operators else "&&"
        # `cd x && python train.py`: a script is written for commands that succeed.
        if truth is None and operator == "&&" and not is_test(reader.tree, left):
            truth = True
        if truth is None:
            # [ -z "$TP" ] && TP=4 gives a default.
            default = self._default_of([left]) if operator == "&&" else None
            self._merge([self._branch([right], default)], one_ran=False)
            return None
        # The right side runs after success of `a &&`, and after failure of `a ||`.
        return reader.follow(right) if truth == (operator == "&&") else truth

    def follow_not(self, node: Node) -> Truth:
        """Follows `! command`. Returns True where the command fails; None where that is not
        known."""
        reader = self.reader
        truth = reader.run(node.children[1:])
        return None if truth is None else not truth

    def follow_case(self, node: Node) -> Truth:
        """Follows the first branch of a `case` whose pattern matches. Where the text does not
        decide a match, every branch that may run is followed, and what they set is in doubt."""
        reader = self.reader
        value = node.child_by_field_name("value")
        expansion = reader.expansion()  # which collects the doubts about the value
        text = "" if value is None else expansion.text(value)
        is_known = not undefined_variables(text) and not expansion.doubts
        branches: list[Variables] = []
        one_ran = False
        for item in (child for child in node.children if child.type == "case_item"):
            patterns, body = case_parts(item)
            truths = [self._matches(text, pattern) if is_known else None for pattern in patterns]
            # *) matches any value, even one that is not known.
            takes_all = any(reader.tree.text(pattern) == "*" for pattern in patterns)
            if True in truths and not branches:  # no earlier branch can have run in its place
                return reader.run(body)
            if takes_all or True in truths or None in truths:
                branches.append(self._branch(body))
            if takes_all or True in truths:
                one_ran = True
                break
        self._merge(branches, one_ran=one_ran)
        return None

    def _matches(self, text: str, node: Node) -> Truth:
        """Returns whether a text matches a pattern of a `case`; None where the pattern is not
        known."""
        pattern = self.reader.expansion().text(node)
        return None if undefined_variables(pattern) else matches(text, pattern)

    def follow_for(self, node: Node) -> Truth:
        """Follows the body of a `for` loop once for each word. Where the words are not known it
        follows the body once, and what that sets is in doubt."""
        reader = self.reader
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        expansion = reader.expansion()
        words: list[str] = []
        for value in node.children_by_field_name("value"):
            words += expansion.words(value)
        if not any(child.type == "in" for child in node.children):
            words = list(reader.variables.values.get("@", Value(())).words)  # `for x`: all of $@
        name = reader.tree.text(variable)
        doubt = Doubt(name, f"for {name} in …", line_of(node), replaces=True)
        if expansion.doubts or any(map(undefined_variables, words)):
            reason = f"line {line_of(node)} goes through words that are not known"
            reader.variables.values[name] = Value((f"${name}",), reason=reason)
            self._merge([self._branch(body.children)], one_ran=False)
            return None
        for word in words:
            reader.set(name, Value((word,)), doubt, keeps=False)
            if self._ends_loop(body):
                break
        return None

    def _ends_loop(self, body: Node) -> bool:
        """Follows the body of a loop once. Returns True where a `break` ends the loop there."""
        try:
            self.reader.run(body.children)
        except Finished as finished:
            if finished.kind not in ("break", "continue"):
                raise
            return finished.kind == "break"
        return False

    def follow_while(self, node: Node) -> Truth:
        """Follows a loop over the script's arguments, `while [ $# -gt 0 ]`, until there are none
        left. It follows the body of any other loop once, and what that sets is in doubt. Returns
        None: whether a loop succeeds is not known."""
        body = node.child_by_field_name("body")
        tests = node.children_by_field_name("condition")
        is_until = node.children[0].type == "until"
        reads_arguments = any(_ARGUMENTS.search(self.reader.tree.text(test)) for test in tests)
        if body is None:
            return None
        for _ in range(_MOST_ARGUMENTS):
            truth = self.reader.run(tests)
            if truth is is_until:  # `while` ends at a false test, `until` at a true one
                return None
            # How often a loop runs is known only where it reads arguments and its test is decided.
            # The body of any other loop is followed once, below.
            if truth is None or not reads_arguments:
                break
            if self._ends_loop(body):
                return None
        self._merge([self._branch(body.children)], one_ran=False)
        return None

    def follow_counted(self, node: Node) -> Truth:
        """Follows the body of `for ((i=0; i<8; i++))` once; what it sets is in doubt. Returns None:
        whether the loop succeeds is not known."""
        body = node.child_by_field_name("body")
        if body is not None:
            self._merge([self._branch(body.children)], one_ran=False)
        return None
