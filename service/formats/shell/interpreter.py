"""Goes through the syntax tree of a text in the order in which a shell would, and runs nothing.

Variables are set, functions called, branches and loops followed as far as the text decides them.
Where it does not, what a branch sets is in doubt afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from models.errors import Invalid
from service.formats.shell.clauses import asked_for, case_parts, clause, is_test
from service.formats.shell.commands import Commands, Finished
from service.formats.shell.conditions import Truth, condition
from service.formats.shell.expansion import Budget, Expansion
from service.formats.shell.faults import PATH, undefined_variables
from service.formats.shell.files import LaunchFiles
from service.formats.shell.outputs import output_of
from service.formats.shell.patterns import matches
from service.formats.shell.script import Script
from service.formats.shell.syntax import Tree, line_of, parse
from service.formats.shell.variables import Doubt, Value, Variables

_MOST_STEPS = 4000
"""Statements that are followed, those of loops and functions each time they run."""
_MOST_DEPTH = 24
"""Functions, files and texts of `sh -c` in one another."""
_NO_COMMAND = ("comment", "heredoc_body", "heredoc_end", "file_redirect", "heredoc_start")
_OWN_NAME = re.compile(r"\$\{?(\w+)", re.ASCII)


@dataclass(slots=True)
class Interpreter:
    """Reads one text; the texts of functions, files and `sh -c` are read by others of its kind that
    share its script."""

    tree: Tree
    script: Script
    variables: Variables
    files: LaunchFiles
    budget: Budget = field(default_factory=Budget)
    takes_defaults: bool = True
    """Whether ${X:-1} is 1 where nothing sets X; else it is unknown."""
    functions: dict[str, tuple[Tree, Node]] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """The words of the command that starts this text."""
    depth: int = 0
    undecided: int = 0
    """How many branches around the current statement the text does not decide."""

    # -- statements

    def run(self, nodes: Sequence[Node]) -> Truth:
        """Follows statements in order. Returns whether the last one succeeds, where that is
        known."""
        truth: Truth = None
        for node in nodes:
            if node.is_named and node.type not in _NO_COMMAND:
                truth = self.follow(node)
        return truth

    def follow(self, node: Node) -> Truth:
        self.budget.steps += 1
        if self.budget.steps > _MOST_STEPS:
            rule = f"has more than {_MOST_STEPS} commands: send the one that trains"
            raise Invalid(PATH, None, rule)
        if node.is_error or node.type == "ERROR":
            self.script.not_understood.append(line_of(node))
            return self.run(node.children)
        follow = _STATEMENTS.get(node.type)
        return follow(self, node) if follow else None

    def _assignment(self, node: Node) -> Truth:
        self.assign(node)
        return True

    def _assignments(self, node: Node) -> Truth:
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(child)
        return True

    def _declaration(self, node: Node) -> Truth:
        is_export = node.children[0].type == "export"
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                self.assign(child)
            if not is_export:
                continue
            name = self.tree.text(child).partition("=")[0].removesuffix("+")
            if child.type in ("variable_assignment", "variable_name", "word"):
                self.variables.exported.add(name)
        return True

    def _unset(self, node: Node) -> Truth:
        for child in node.children[1:]:
            name = self.tree.text(child)
            if not self.undecided and name not in self.variables.fixed:
                self.variables.values.pop(name, None)
        return True

    def assign(self, node: Node) -> None:
        """Sets a variable, unless the request has a value for it that goes first."""
        target = node.children[0]
        written = " ".join(self.tree.text(node).split())
        if target.type != "variable_name":
            return
        name = self.tree.text(target)
        adds = any(child.type == "+=" for child in node.children)
        is_own = adds or name in _OWN_NAME.findall(written)
        if name in self.variables.fixed and not is_own:
            return
        expansion = self.expansion()
        words, is_array = expansion.value(node.child_by_field_name("value"))
        before = self.variables.values.get(name)
        if adds and before is not None:
            joined = (*before.words, *words)
            words = joined if is_array else ("".join(joined),)
            self.budget.count(len(words))
            is_array = is_array or before.is_array
        self.set(
            name,
            Value(words, is_array, tuple(expansion.doubts)),
            Doubt(name, written, line_of(node), replaces=not adds and before is not None),
            keeps=is_own,
        )

    def set(self, name: str, value: Value, doubt: Doubt, *, keeps: bool) -> None:
        """Gives a variable a value. In an undecided branch the assignment is remembered: outside
        it is a doubt; `keeps` says that the value before is part of it."""
        before = self.variables.values.get(name)
        doubts = value.doubts
        pending: tuple[Doubt, ...] = ()
        if keeps and before is not None:
            doubts = tuple(dict.fromkeys((*before.doubts, *doubts)))
            pending = before.pending
        reason = f"line {doubt.line} sets it to {doubt.written.partition('=')[2][:80]}"
        text = value.text
        if not value.is_array and re.fullmatch(r"\$\([^()]*\)|`[^`]*`", text):
            value = Value((f"${name}",), reason=reason)
        self.variables.values[name] = Value(
            value.words,
            value.is_array,
            doubts,
            (*pending, doubt) if self.undecided else (),
            value.reason,
        )

    # -- branches

    def _if(self, node: Node) -> Truth:
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
                return self.run(body)
            if truth is not False:
                branches.append(self._branch(body, self._default_of(tests)))
            if truth is True:
                is_whole = True
                break
        else:
            if otherwise is not None and not branches:
                return self.run(otherwise)
            if otherwise is not None:
                branches.append(self._branch(otherwise))
        self._merge(branches, is_whole=is_whole)
        return None

    def _tested(self, tests: Sequence[Node]) -> Truth:
        """Returns what a condition says. Commands in it succeed or not where the script runs."""
        return self.run(tests) if tests else None

    def _branch(self, body: Sequence[Node], default: str | None = None) -> Variables:
        """Returns the variables behind a branch of which the text does not say whether it runs.
        `default` is a variable that the branch sets where nothing else does."""
        outside = self.variables
        self.variables = outside.copied()
        self.undecided += 1
        try:
            self.run(body)
            inside = self.variables
        except Finished as finished:
            # What a branch sets that ends the script is nothing to the lines behind it.
            inside = outside.copied() if finished.kind == "exit" else self.variables
        finally:
            self.undecided -= 1
            self.variables = outside
        if default is not None and default in inside.values:
            value = inside.values[default]
            known = self.takes_defaults
            outside.values[default] = Value(
                value.words if known else (f"${default}",), value.is_array, value.doubts
            )
            inside.values[default] = outside.values[default]
        return inside

    def _default_of(self, tests: Sequence[Node]) -> str | None:
        """Returns the variable that a branch behind some tests gives a default."""
        name = asked_for(self.tree.text(tests[0])) if len(tests) == 1 else None
        return None if name in self.variables.values else name

    def _merge(self, branches: Sequence[Variables], *, is_whole: bool) -> None:
        if branches:
            self.variables.merge(branches, is_whole=is_whole, is_inside=self.undecided > 0)

    def _list(self, node: Node) -> Truth:
        """Follows a && b, or a || b. A plain command in front is taken to succeed."""
        left, right = node.children[0], node.children[-1]
        truth = self.follow(left)
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        if truth is None and not is_test(left):
            truth = True if operator == "&&" else None
        if truth is None:
            default = self._default_of([left]) if operator == "&&" else None
            self._merge([self._branch([right], default)], is_whole=False)
            return None
        return self.follow(right) if truth == (operator == "&&") else truth

    def _negated(self, node: Node) -> Truth:
        truth = self.run(node.children[1:])
        return None if truth is None else not truth

    def _case(self, node: Node) -> Truth:
        value = node.child_by_field_name("value")
        expansion = self.expansion()
        text = "" if value is None else expansion.text(value)
        is_open = bool(undefined_variables(text) or expansion.doubts)
        branches: list[Variables] = []
        is_whole = False
        for item in (child for child in node.children if child.type == "case_item"):
            patterns, body = case_parts(item)
            found = [None if is_open else self._matches(text, each) for each in patterns]
            is_rest = any(self.tree.text(each) == "*" for each in patterns)
            if True in found and not branches:
                return self.run(body)
            if is_rest or True in found or None in found:
                branches.append(self._branch(body))
            if is_rest or True in found:
                is_whole = True
                break
        self._merge(branches, is_whole=is_whole)
        return None

    def _matches(self, text: str, pattern: Node) -> Truth:
        expansion = self.expansion()
        written = expansion.text(pattern)
        return None if undefined_variables(written) else matches(text, written)

    # -- loops

    def _for(self, node: Node) -> Truth:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        expansion = self.expansion()
        listed = node.children_by_field_name("value")
        words = [word for each in listed for word in expansion.words(each)]
        if not any(child.type == "in" for child in node.children):
            words = list(self.variables.values.get("@", Value(())).words)
        name = self.tree.text(variable)
        doubt = Doubt(name, f"for {name} in …", line_of(node), replaces=True)
        if expansion.doubts or any(map(undefined_variables, words)):
            reason = f"line {line_of(node)} goes through words that are not known"
            self.variables.values[name] = Value((f"${name}",), reason=reason)
            self._merge([self._branch(body.children)], is_whole=False)
            return None
        for word in words:
            self.set(name, Value((word,)), doubt, keeps=False)
            try:
                self.run(body.children)
            except Finished as finished:
                if finished.kind == "break":
                    break
                if finished.kind != "continue":
                    raise
        return None

    def _while(self, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        tests = node.children_by_field_name("condition")
        is_until = node.children[0].type == "until"
        if self._tested(tests) is not is_until and body is not None:
            self._merge([self._branch(body.children)], is_whole=False)
        return None

    def _c_style_for(self, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        if body is not None:
            self._merge([self._branch(body.children)], is_whole=False)
        return None

    # -- groups

    def _group(self, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return self._arithmetic(node)
        return self.run(node.children)

    def _arithmetic(self, node: Node) -> Truth:
        self.set_by_sum(self.tree.text(node)[2:-2], line_of(node))
        return condition(self.expansion(), node, self.has_file)

    def set_by_sum(self, text: str, line: int) -> None:
        """Follows an assignment among sums, such as ((N=2*M)), ((N+=1)) or ((N++))."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:([-+*/%]?)=(?!=)(.*)|(\+\+|--))\s*", text, re.DOTALL)
        if match is None or match[1] in self.variables.fixed:
            return
        name, operator, right, step = match.groups()
        operator = step[0] if step else operator
        expression = f"{name}{operator}({right or 1})" if operator else right
        value = self.expansion().sum(expression)
        doubt = Doubt(name, text.strip(), line, replaces=True)
        words = (f"${name}" if value is None else value,)
        self.set(name, Value(words), doubt, keeps=bool(operator))

    def _subshell(self, node: Node) -> Truth:
        outside = self.variables
        self.variables = outside.copied()
        try:
            return self.run(node.children)
        except Finished:
            return None
        finally:
            self.variables = outside

    def _pipeline(self, node: Node) -> Truth:
        children = [child for child in node.children if child.is_named]
        self.run(children)
        return None

    def _test(self, node: Node) -> Truth:
        return condition(self.expansion(), node, self.has_file)

    def _function(self, node: Node) -> Truth:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.tree.text(name)] = (self.tree, body)
        return True

    def _command(self, node: Node) -> Truth:
        return Commands(self).run(node)

    def _redirected(self, node: Node) -> Truth:
        return Commands(self).redirected(node)

    # -- what commands ask for

    def expansion(self) -> Expansion:
        return Expansion(self.tree, self.variables, self.budget, self.takes_defaults, self._printed)

    def set_arguments(self, arguments: Sequence[str]) -> None:
        """Sets $@, $# and $1 upwards."""
        values = self.variables.values
        for name in [name for name in values if name.isdecimal()]:
            del values[name]
        listed = Value(tuple(arguments), is_array=True)
        values |= {"@": listed, "*": listed, "#": Value((str(len(arguments)),))}
        values |= {str(at): Value((word,)) for at, word in enumerate(arguments, start=1)}

    def has_file(self, name: str) -> bool:
        return name in self.script.written or name in self.files

    def _printed(self, command: str) -> str | None:
        def look_up(name: str) -> str | None:
            value = self.variables.values.get(name)
            return None if value is None else value.text

        def put_in(text: str) -> str:
            def put(match: re.Match[str]) -> str:
                value = self.variables.values.get(match[1] or match[2])
                text = match[0] if value is None else value.text
                self.budget.count(len(text))
                return text

            return re.sub(r"\$(?:\{(\w+)\}|(\w+))", put, text, flags=re.ASCII)

        return output_of(command, look_up, put_in)

    def inner(
        self,
        text: str,
        *,
        before: Sequence[str] = (),
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        is_own_shell: bool,
    ) -> Truth:
        """Reads a text in the place of a command: that of `sh -c`, or of a file. A shell of its own
        leaves no variables behind. `arguments` are its $1, $2 and so on."""
        tree = parse(text)
        outside = self.variables
        if environment:
            self.variables = outside.copied()
            self.variables.values |= {name: Value((v,)) for name, v in environment.items()}
            self.variables.exported |= environment.keys()
        try:
            return self.at_depth(
                tree, tree.root.children, before, arguments, is_own_shell=is_own_shell
            )
        finally:
            self.variables = outside

    def at_depth(
        self,
        tree: Tree,
        nodes: Sequence[Node],
        before: Sequence[str],
        arguments: Sequence[str] | None,
        *,
        is_own_shell: bool,
    ) -> Truth:
        """Follows statements of another text, or of a function."""
        if self.depth >= _MOST_DEPTH:
            rule = f"starts scripts or functions in one another, {_MOST_DEPTH} deep: write it out"
            raise Invalid(PATH, None, rule)
        outside, functions, own = self.variables, self.functions, self.tree
        prefix = self.before
        saved = {name: outside.values.get(name) for name in _positions(outside, arguments)}
        if is_own_shell:
            self.variables, self.functions = outside.copied(), dict(functions)
        if arguments is not None:
            self.set_arguments(arguments)
        self.tree, self.before, self.depth = tree, (*prefix, *before), self.depth + 1
        truth: Truth = None
        try:
            truth = self.run(nodes)
        except Finished as finished:
            if finished.kind == "exit" and not is_own_shell:
                raise
        finally:
            self.tree, self.before, self.depth = own, prefix, self.depth - 1
            self.variables, self.functions = outside, functions
            if not is_own_shell and arguments is not None:
                _restore(outside, saved)
        return truth


def _positions(variables: Variables, arguments: Sequence[str] | None) -> list[str]:
    if arguments is None:
        return []
    names = [name for name in variables.values if name.isdecimal() or name in "@*#"]
    return [*{*names, "@", "*", "#", *map(str, range(1, len(arguments) + 1))}]


def _restore(variables: Variables, saved: dict[str, Value | None]) -> None:
    for name, value in saved.items():
        if value is None:
            variables.values.pop(name, None)
        else:
            variables.values[name] = value


_STATEMENTS: dict[str, Callable[[Interpreter, Node], Truth]] = {
    "command": Interpreter._command,
    "redirected_statement": Interpreter._redirected,
    "variable_assignment": Interpreter._assignment,
    "variable_assignments": Interpreter._assignments,
    "declaration_command": Interpreter._declaration,
    "unset_command": Interpreter._unset,
    "if_statement": Interpreter._if,
    "case_statement": Interpreter._case,
    "list": Interpreter._list,
    "negated_command": Interpreter._negated,
    "for_statement": Interpreter._for,
    "while_statement": Interpreter._while,
    "c_style_for_statement": Interpreter._c_style_for,
    "compound_statement": Interpreter._group,
    "do_group": Interpreter._group,
    "subshell": Interpreter._subshell,
    "pipeline": Interpreter._pipeline,
    "test_command": Interpreter._test,
    "function_definition": Interpreter._function,
    "program": lambda self, node: self.run(node.children),
}
