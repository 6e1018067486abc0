"""Goes through a launch script (the *text*) in the order in which a shell would, and runs nothing:
the purpose is to learn which commands it starts, the training among them, and with which values.
Variables are set, functions called, branches and loops followed as far as the text decides them.
A branch that it does not decide is followed too, and what it sets is *in doubt* afterwards: each of
its assignments is kept as a `Doubt`, which answers name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from service.formats.shell.branches import Branches
from service.formats.shell.commands import PRINTS, Commands, Finished
from service.formats.shell.conditions import Truth, condition
from service.formats.shell.expansion import Budget, Expansion
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import LaunchFiles
from service.formats.shell.outputs import output_of
from service.formats.shell.script import Script
from service.formats.shell.syntax import Tree, line_of, parse
from service.formats.shell.variables import Doubt, Value, Variables

_MOST_STEPS = 4000
"""Statements that are followed, those of loops and functions each time they run. Launch scripts
have far fewer; a loop without end reaches it."""
_MOST_DEPTH = 24
"""Functions, files and texts of `sh -c` in one another."""
_NO_COMMAND = ("comment", "heredoc_body", "heredoc_end", "file_redirect", "heredoc_start")
_VARIABLE = re.compile(r"\$\{?(\w+)", re.ASCII)


@dataclass(slots=True)
class Interpreter:
    """Reads one text; the texts of functions, files and `sh -c` are read by others of its kind that
    share its script."""

    tree: Tree
    script: Script
    variables: Variables
    """The variables at the current statement. Its `fixed` holds those whose values the request
    sends."""
    files: LaunchFiles
    budget: Budget = field(default_factory=Budget)
    takes_defaults: bool = True
    """True where ${X:-1} is 1 if nothing sets X. Otherwise it is unknown."""
    functions: dict[str, tuple[Tree, Node]] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """The words of the command that starts this text."""
    depth: int = 0
    undecided: int = 0
    """The number of branches around the current statement that the text does not decide."""
    printed: list[str | None] | None = None
    """The pieces that the followed command in $( ) prints; None outside of one."""

    # -- statements

    def run(self, nodes: Sequence[Node]) -> Truth:
        """Interprets statements in order. Returns whether the last one succeeds; None where that is
        not known."""
        truth: Truth = None
        for node in nodes:
            if node.is_named and node.type not in _NO_COMMAND:
                truth = self.follow(node)
        return truth

    def follow(self, node: Node) -> Truth:
        """Interprets one statement. Returns whether it succeeds; None where that is not known.
        Raises Invalid after too many statements, so that loops end."""
        self.budget.steps += 1
        if self.budget.steps > _MOST_STEPS:
            rule = f"has more than {_MOST_STEPS} commands: send the one that trains"
            raise invalid_launch(None, rule)
        if node.is_error or node.type == "ERROR":  # which may have commands that can be read
            return self.run(node.children)
        follow = _STATEMENTS.get(node.type)
        return follow(self, node) if follow else None  # nodes of other kinds are passed over

    def _assign_several(self, node: Node) -> Truth:
        """Interprets several assignments on one line: `A=1 B=2`."""
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(child)
        return True

    def _declaration(self, node: Node) -> Truth:
        """Interprets `export X=1`, `local X=1` or `declare X=1`. Exported variables are passed on
        to commands."""
        is_export = node.children[0].type == "export"
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                self.assign(child)
            if not is_export:
                continue
            name = self.tree.text(child).partition("=")[0].removesuffix("+")  # X of X=1 or X+=1
            if child.type in ("variable_assignment", "variable_name", "word"):
                self.variables.exported.add(name)
        return True

    def _unset(self, node: Node) -> Truth:
        """Interprets `unset X`. It removes no value that the request sends, and none in a branch
        that may not run."""
        for child in node.children[1:]:
            name = self.tree.text(child)
            if not self.undecided and name not in self.variables.fixed:
                self.variables.values.pop(name, None)
        return True

    def assign(self, node: Node) -> Truth:
        """Interprets an assignment, which always succeeds. A value that the request sends for the
        variable is kept, unless the assignment builds on it, as ARGS="$ARGS --bf16" does."""
        target = node.children[0]
        text = " ".join(self.tree.text(node).split())
        if target.type != "variable_name":  # an element, as in A[1]=x, is not followed
            return True
        name = self.tree.text(target)
        adds = any(child.type == "+=" for child in node.children)
        builds_on_value = adds or name in _VARIABLE.findall(text)
        if name in self.variables.fixed and not builds_on_value:
            return True
        expansion = self.expansion()
        words, is_array = expansion.assigned_value(node.child_by_field_name("value"))
        before = self.variables.values.get(name)
        if adds and before is not None:
            # += appends elements to an array, and characters to a text.
            all_words = (*before.words, *words)
            words = all_words if is_array else ("".join(all_words),)
            self.budget.spend(len(words))
            is_array = is_array or before.is_array
        self.set(
            name,
            Value(words, is_array, tuple(expansion.doubts), defaults=tuple(expansion.defaults)),
            Doubt(name, text, line_of(node), replaces=not adds and before is not None),
            keeps=builds_on_value,
        )
        return True

    def set(self, name: str, value: Value, doubt: Doubt, *, keeps: bool) -> None:
        """Gives a variable a value. `doubt` describes the assignment: in a branch that may not
        run it is kept as pending, and behind the branch it is one of the value's doubts. With
        `keeps` the old value is part of the new one, as in X="$X 1", and so are its doubts."""
        before = self.variables.values.get(name)
        doubts = value.doubts
        defaults = value.defaults
        pending: tuple[Doubt, ...] = ()
        if keeps and before is not None:
            doubts = tuple(dict.fromkeys((*before.doubts, *doubts)))
            defaults = tuple(dict.fromkeys((*before.defaults, *defaults)))
            pending = before.pending
        reason = f"line {doubt.line} sets it to {doubt.written.partition('=')[2][:80]}"
        text = value.text
        # The output of a command is not known: the variable stands for itself.
        if not value.is_array and re.fullmatch(r"\$\([^()]*\)|`[^`]*`", text):
            value = Value((f"${name}",), reason=reason)
        # Outside of undecided branches nothing is pending: the assignment has surely run.
        self.variables.values[name] = Value(
            words=value.words,
            is_array=value.is_array,
            doubts=doubts,
            pending=(*pending, doubt) if self.undecided else (),
            reason=value.reason,
            defaults=defaults,
        )

    # -- groups

    def _group(self, node: Node) -> Truth:
        """Interprets commands in { }, or an expression in (( ))."""
        if node.children and node.children[0].type == "((":
            return self._arithmetic(node)
        return self.run(node.children)

    def _arithmetic(self, node: Node) -> Truth:
        """Interprets (( )): an assignment in it, and whether it is true, which means not 0."""
        self.set_by_arithmetic(self.tree.text(node)[2:-2], line_of(node))
        return condition(self.expansion(), node, self.has_file)

    def set_by_arithmetic(self, text: str, line: int) -> None:
        """Interprets an assignment in an arithmetic expression: N=2*M, N+=1 or N++. Other texts are
        passed over."""
        # Groups for N+=1: "N", "+", "1", none. For N++: "N", none, none, "++".
        match = re.fullmatch(r"\s*(\w+)\s*(?:([-+*/%]?)=(?!=)(.*)|(\+\+|--))\s*", text, re.DOTALL)
        if match is None or match[1] in self.variables.fixed:
            return
        name, operator, right, step = match.groups()
        operator = step[0] if step else operator
        # N+=2 -> "N+(2)", N++ -> "N+(1)", N=2*M -> "2*M".
        expression = f"{name}{operator}({right or 1})" if operator else right
        value = self.expansion().arithmetic_value(expression)
        doubt = Doubt(name, text.strip(), line, replaces=True)
        words = (f"${name}" if value is None else value,)
        self.set(name, Value(words), doubt, keeps=bool(operator))

    def _subshell(self, node: Node) -> Truth:
        """Interprets commands in ( ), whose variables do not outlive it."""
        outside = self.variables
        self.variables = outside.copied()
        try:
            return self.run(node.children)
        except Finished:  # `exit` ends only the subshell
            return None
        finally:
            self.variables = outside

    def _pipeline(self, node: Node) -> Truth:
        """Interprets the commands of a pipeline in order. Whether it succeeds is not known."""
        self.run(node.children)
        return None

    def _define_function(self, node: Node) -> Truth:
        """Remembers the body of a function, which is followed where it is called."""
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.tree.text(name)] = (self.tree, body)
        return True

    # -- what commands ask for

    def expansion(self) -> Expansion:
        """Returns the expansion of words with the present variables."""
        return Expansion(
            self.tree, self.variables, self.budget, self.takes_defaults, self._output_of_command
        )

    def set_arguments(self, arguments: Sequence[str]) -> None:
        """Sets the script's arguments: $@, $*, $# and $1 upwards."""
        values = self.variables.values
        for name in [name for name in values if name.isdecimal()]:
            del values[name]
        listed = Value(tuple(arguments), is_array=True)
        values |= {"@": listed, "*": listed, "#": Value((str(len(arguments)),))}
        values |= {str(number): Value((word,)) for number, word in enumerate(arguments, start=1)}

    def has_file(self, name: str) -> bool:
        return name in self.script.written or name in self.files

    def _output_of_command(self, command: str) -> str | None:
        """Returns what a command in $( ) prints; None where only running it would tell."""

        def look_up(name: str) -> str | None:
            value = self.variables.values.get(name)
            return None if value is None else value.text

        def replace_variables(text: str) -> str:
            """Returns a text with variables replaced by their values; $X stays where X has none."""

            def value_or_reference(match: re.Match[str]) -> str:
                value = self.variables.values.get(match[1] or match[2])
                text = match[0] if value is None else value.text
                self.budget.spend(len(text))
                return text

            return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value_or_reference, text, flags=re.ASCII)

        output = output_of(command, look_up, replace_variables)
        return self._output_of_text(command) if output is None else output

    def _output_of_text(self, command: str) -> str | None:
        """Returns what a function, or a file that the launch writes, prints. None for a command
        that starts a program, or whose output the text does not decide."""
        command = re.sub(r"^\s*<(?!<)", "cat ", command)  # $(< file) is $(cat file)
        first = command.split(None, 1)[0] if command.strip() else ""
        if first not in self.functions and first not in PRINTS:
            return None
        self.budget.spend(len(command))
        tree = parse(command)
        count = len(self.script.statements)  # those added from here on are removed again
        outside = self.printed
        undecided = self.undecided
        # The branches around the assignment do not make what the command prints unknown.
        self.printed, self.undecided = [], 0
        try:
            self.run_deeper(tree, tree.root.children, is_own_shell=True)  # as $( ) is
            known = [text for text in self.printed if text is not None]
            starts_program = len(self.script.statements) > count
            is_known = not starts_program and len(known) == len(self.printed)
            return "".join(known) if is_known and known else None
        finally:
            del self.script.statements[count:]
            self.printed, self.undecided = outside, undecided

    def print_out(self, text: str | None) -> None:
        """Adds a text to the output of the command in $( ) that is being interpreted; None is
        unknown text."""
        if self.printed is not None:
            self.budget.spend(len(text or ""))
            # In a branch that may not run, nobody knows whether the text is printed.
            self.printed.append(None if self.undecided else text)

    def run_text(
        self,
        text: str,
        *,
        before: Sequence[str] = (),
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        is_own_shell: bool,
    ) -> Truth:
        """Interprets a text in place of a command: that of `sh -c`, or of a file. `before` are the
        words in front of the shell, such as `srun -N 4`, which start all of the text's commands.
        `arguments` are its $1, $2 and so on, and `environment` the variables set in front of it
        alone, as in `TP=4 bash x.sh`. With `is_own_shell` its variables do not outlive it."""
        tree = parse(text)
        outside = self.variables
        if environment:
            self.variables = outside.copied()
            self.variables.values |= {name: Value((value,)) for name, value in environment.items()}
            self.variables.exported |= environment.keys()
        try:
            return self.run_deeper(
                tree,
                tree.root.children,
                before=before,
                arguments=arguments,
                is_own_shell=is_own_shell,
            )
        finally:
            self.variables = outside

    def run_deeper(
        self,
        tree: Tree,
        nodes: Sequence[Node],
        *,
        before: Sequence[str] = (),
        arguments: Sequence[str] | None = None,
        is_own_shell: bool,
    ) -> Truth:
        """Interprets the statements of another text or of a function, one level deeper, and
        restores this text's state afterwards. `before` are the words in front of what starts it.
        `arguments` are its $1, $2, …; with None it sees the arguments of this text. With
        `is_own_shell` it is another process: its variables and its `exit` end with it. Raises
        Invalid beyond a depth that only recursion reaches."""
        if self.depth >= _MOST_DEPTH:
            rule = f"starts scripts or functions in one another, {_MOST_DEPTH} deep: write it out"
            raise invalid_launch(None, rule)
        outside = self.variables
        saved = (self.tree, self.before, self.variables, self.functions)
        saved_arguments = {name: outside.values[name] for name in _argument_names(outside)}
        if is_own_shell:
            self.variables, self.functions = outside.copied(), dict(self.functions)
        if arguments is not None:
            self.set_arguments(arguments)
        self.tree = tree
        self.before = (*self.before, *before)
        self.depth += 1
        truth: Truth = None
        try:
            truth = self.run(nodes)
        except Finished as finished:
            if finished.kind == "exit" and not is_own_shell:
                raise  # it ends the outer text too
        finally:
            self.depth -= 1
            self.tree, self.before, self.variables, self.functions = saved
            # A function has set its own $1, $2, … among the variables of this text.
            if arguments is not None:
                for name in _argument_names(outside):
                    del outside.values[name]
                outside.values |= saved_arguments
        return truth


def _argument_names(variables: Variables) -> list[str]:
    """Returns the names of the arguments that are set: $1 and so on, $@, $* and $#."""
    return [name for name in variables.values if name.isdecimal() or name in ("@", "*", "#")]


_STATEMENTS: dict[str, Callable[[Interpreter, Node], Truth]] = {
    "command": lambda self, node: Commands(self).run(node),
    "redirected_statement": lambda self, node: Commands(self).redirected(node),
    "variable_assignment": Interpreter.assign,
    "variable_assignments": Interpreter._assign_several,
    "declaration_command": Interpreter._declaration,
    "unset_command": Interpreter._unset,
    "if_statement": lambda self, node: Branches(self).follow_if(node),
    "case_statement": lambda self, node: Branches(self).follow_case(node),
    "list": lambda self, node: Branches(self).follow_list(node),
    "negated_command": lambda self, node: Branches(self).follow_not(node),
    "for_statement": lambda self, node: Branches(self).follow_for(node),
    "while_statement": lambda self, node: Branches(self).follow_while(node),
    "c_style_for_statement": lambda self, node: Branches(self).follow_counted(node),
    "compound_statement": Interpreter._group,
    "do_group": Interpreter._group,
    "subshell": Interpreter._subshell,
    "pipeline": Interpreter._pipeline,
    "test_command": lambda self, node: condition(self.expansion(), node, self.has_file),
    "function_definition": Interpreter._define_function,
    "program": lambda self, node: self.run(node.children),
}
