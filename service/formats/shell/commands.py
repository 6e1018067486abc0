"""Simple commands of a text: those of the shell itself, those that write files, and those that
start others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tree_sitter import Node

from service.formats.shell.conditions import Truth, condition_of_words
from service.formats.shell.programs import SHELLS, base_name, program_at, shell_file_at, wrapped
from service.formats.shell.script import Statement
from service.formats.shell.syntax import line_of
from service.formats.shell.variables import Doubt, Value

if TYPE_CHECKING:
    from service.formats.shell.interpreter import Interpreter

_SUBMITS = ("sbatch", "qsub")
_READS_STDIN = (*SHELLS, *_SUBMITS)
_STDIN = "/dev/stdin"
"""A command calls a heredoc this way that goes into no file."""
_TRANSPARENT = ("exec", "nohup", "time", "builtin")
"""Words in front of a command that change nothing of it."""
_SHELL_FILE = re.compile(r"\.(?:sh|bash|slurm|sbatch|pbs|job|lsf|py)$")
PRINTS = ("cat", "echo", "printf")
"""Commands of which it is known what they print."""
_RESPACES = re.compile(r"tr (?:-[ds] )?(?:\\n|[\\rnt ]{1,9})( .)?|xargs(?: echo)?", re.DOTALL)
"""Commands that only put other spaces between the words that they are given."""
_BARE_VARIABLE = re.compile(r"(?<![\w\"'/.$\\-])\$\{?(\w+)\}?(?![\w\"'/.])", re.ASCII)


class Finished(Exception):
    """A text ends before its last line: `exit`, `return`, `break` or `continue`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Input:
    """The input of a command, and where its output goes."""

    text: str | None = None
    outputs: tuple[tuple[str, bool], ...] = ()
    """Names of files, and whether the output is added to them."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Follows the simple commands of a text."""

    reader: Interpreter

    # -- redirections

    def redirected(self, node: Node) -> Truth:
        """Follows a command with heredocs or files behind it."""
        body = node.child_by_field_name("body")
        text: str | None = None
        outputs: list[tuple[str, bool]] = []
        arguments: list[str] = []
        behind: list[Node] = []
        for child in node.children:
            if child.type == "file_redirect":
                outputs += self._output(child)
                arguments += self._arguments_behind(child)
            elif child.type == "heredoc_redirect":
                text = self._heredoc(child)
                for inner in child.children:
                    if inner.type == "file_redirect":
                        outputs += self._output(inner)
                    elif inner.is_named and not inner.type.startswith("heredoc"):
                        behind.append(inner)
        if any(node.type == "pipeline" for node in behind):
            outputs.append(("/dev/null", False))  # for all of it is for the next command
        truth = self._with_input(body, _Input(text, tuple(outputs)), arguments)
        self._follow_behind(behind, text)
        return truth

    def _with_input(self, body: Node | None, given: _Input, arguments: list[str]) -> Truth:
        if body is None:
            return None
        if body.type == "command":
            return self.run(body, given, arguments)
        if body.type in ("pipeline", "list"):
            *others, last = [child for child in body.children if child.is_named]
            if body.type == "pipeline":
                self.reader.run(others)
                self._with_input(last, given, arguments)
                return None
        return self.reader.follow(body)

    def _follow_behind(self, nodes: Sequence[Node], text: str | None) -> None:
        """Follows what stands on the line of a heredoc behind its mark."""
        for node in nodes:
            inner = node.children if node.type == "pipeline" else [node]
            for child in (inner_node for inner_node in inner if inner_node.is_named):
                if child.type == "command" and node.type == "pipeline":
                    self.run(child, _Input(text))
                else:
                    self.reader.follow(child)

    def _output(self, node: Node) -> list[tuple[str, bool]]:
        operator = next((child.type for child in node.children if not child.is_named), ">")
        destination = node.child_by_field_name("destination")
        if destination is None or operator not in (">", ">>", ">|", "&>", "&>>"):
            return []
        name = self.reader.expansion().text(destination)
        return [(name, operator.endswith(">>"))]

    def _arguments_behind(self, node: Node) -> list[str]:
        """Returns words behind the name of a file, which are of the command in front of it."""
        expansion = self.reader.expansion()
        behind = node.children_by_field_name("destination")[1:]
        return [word for argument in behind for word in expansion.words(argument)]

    def _heredoc(self, node: Node) -> str:
        marks = [child for child in node.children if child.type == "heredoc_start"]
        bodies = [child for child in node.children if child.type == "heredoc_body"]
        if not marks or not bodies:
            return ""
        is_quoted = any(quote in self.reader.tree.text(marks[0]) for quote in ("'", '"', "\\"))
        text = self.reader.expansion().heredoc(bodies[0], is_quoted)
        if any(child.type == "<<-" for child in node.children):
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        return text

    def _write(self, text: str, given: _Input) -> None:
        written = self.reader.script.written
        if not given.outputs:
            self.reader.print_out(text)
        for name, adds in given.outputs:
            is_kept = not name.startswith("/dev/") or name == _STDIN
            if is_kept and len(text) + len(name) <= 2**17:
                self.reader.budget.count(len(text))
                shown = text if _SHELL_FILE.search(name) else _BARE_VARIABLE.sub(r'"$\1"', text)
                written[name] = (written.get(name, "") if adds else "") + shown

    # -- commands

    def run(self, node: Node, given: _Input | None = None, more: Sequence[str] = ()) -> Truth:
        """Follows one command. Returns whether it succeeds, where that is known."""
        reader = self.reader
        given = given or _Input()
        expansion = reader.expansion()
        environment: dict[str, str] = {}
        words: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, _, _ = reader.tree.text(child).partition("=")
                environment[name] = " ".join(expansion.value(child.child_by_field_name("value"))[0])
            elif child.type == "herestring_redirect":
                given = _Input("".join(expansion.words(child.children[-1])), given.outputs)
            elif child.type == "file_redirect":
                continue
            elif child.is_named:
                inner = child.children[0] if child.type == "command_name" else child
                words += expansion.words(inner)
        words += more
        while words and words[0] in _TRANSPARENT:
            words = words[1:]
        if not words:
            return None
        start = Statement(
            tuple(words), environment, tuple(expansion.doubts), tuple(expansion.defaults)
        )
        return self._dispatch(start, given, line_of(node))

    def _dispatch(self, command: Statement, given: _Input, line: int) -> Truth:
        reader = self.reader
        words, environment = [*command.words], command.environment
        if reader.printed is not None and _RESPACES.fullmatch(" ".join(words)):
            return True
        builtin = _BUILTINS.get(words[0])
        if builtin is not None:
            return builtin(self, words, given, line)
        if words[0] in reader.functions:
            tree, body = reader.functions[words[0]]
            return reader.at_depth(tree, [body], (), words[1:], is_own_shell=False)
        others = reader.script.statements
        num_before = len(others)
        if self._runs_text(words, environment, given):
            others[num_before:] = [command.with_doubts_of(other) for other in others[num_before:]]
            return None
        if given.text is not None and not given.outputs:
            self._write(given.text, _Input(outputs=((_STDIN, False),)))
        started: Mapping[str, str] = {**reader.variables.environment(), **environment}
        if others and others[-1].environment == started:
            started = others[-1].environment  # shared, or thousands of commands would have copies
        others.append(replace(command, words=(*reader.before, *words), environment=started))
        return None

    def _runs_text(self, words: list[str], environment: Mapping[str, str], given: _Input) -> bool:
        """Follows a command that starts another text of the shell, if it is one."""
        reader = self.reader
        inner = wrapped(words)
        if inner is not None:
            reader.inner(
                inner.text,
                before=inner.before,
                arguments=inner.arguments,
                environment=environment,
                is_own_shell=True,
            )
            return True
        at = shell_file_at(words)
        text = None if at is None else self._text_of(words[at])
        arguments = [] if at is None else words[at + 1 :]
        if text is None and given.text is not None and at is None and self._reads_shell(words):
            text, at = given.text, len(words)
        if text is None or at is None:
            return False
        before = [*words[:at]]
        while before and (base_name(before[-1]) in SHELLS or before[-1] in ("-s", "-", "-l", "-x")):
            before.pop()
        if any(base_name(word) in _SUBMITS for word in before):
            reader.script.batch_texts.append(text)
        reader.inner(
            text,
            before=before,
            arguments=arguments,
            environment=environment,
            is_own_shell=True,
        )
        return True

    def _reads_shell(self, words: Sequence[str]) -> bool:
        """Returns whether a command takes a script from its input."""
        if program_at(words) is not None:
            return False
        plain = [word for word in words if not word.startswith("-")] or [words[0]]
        return base_name(plain[-1]) in _READS_STDIN or base_name(words[0]) in (*_SUBMITS, "ssh")

    def _text_of(self, name: str) -> str | None:
        written = self.reader.script.written
        return (
            written[name] if name in written else self.reader.files.with_written(written).find(name)
        )

    # -- commands of the shell

    def _test(self, words: list[str], given: _Input, line: int) -> Truth:
        return condition_of_words(words[1:], self.reader.has_file)

    def _finish(self, words: list[str], given: _Input, line: int) -> Truth:
        """Ends the text where that is sure. A script that is sent trains: an `exit` in front of
        what it starts is for callers that give it no arguments."""
        reader = self.reader
        has_started = any(
            program_at(statement.words) is not None for statement in reader.script.statements
        )
        if words[0] != "exit" or reader.undecided or has_started:
            raise Finished(words[0])
        return None

    def _set(self, words: list[str], given: _Input, line: int) -> Truth:
        if words[1:2] == ["--"]:
            self.reader.set_arguments(words[2:])
        return True

    def _shift(self, words: list[str], given: _Input, line: int) -> Truth:
        listed = self.reader.variables.values.get("@")
        count = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,4}", words[1]) else 1
        if listed is not None and listed.words and not self.reader.undecided:
            self.reader.set_arguments(listed.words[count:])
        return True

    def _getopts(self, words: list[str], given: _Input, line: int) -> Truth:
        """Fails where the text is started without arguments."""
        listed = self.reader.variables.values.get("@")
        return False if listed is not None and not listed.words else None

    def _let(self, words: list[str], given: _Input, line: int) -> Truth:
        for word in words[1:]:
            self.reader.set_by_sum(word, line)
        return None

    def _read(self, words: list[str], given: _Input, line: int) -> Truth:
        """Sets the variables of `read` to the words of its input, where that is here."""
        names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII)]
        parts = (given.text or "").split(None, max(len(names) - 1, 0))
        for at, name in enumerate(names):
            if name in self.reader.variables.fixed:
                continue
            is_here = given.text is not None and "$" not in given.text
            value = Value((parts[at] if at < len(parts) else "",)) if is_here else None
            unknown = Value((f"${name}",), reason=f"line {line} reads it")
            doubt = Doubt(name, " ".join(words)[:200], line, replaces=True)
            self.reader.set(name, value or unknown, doubt, keeps=False)
        return True

    def _eval(self, words: list[str], given: _Input, line: int) -> Truth:
        return self.reader.inner(" ".join(words[1:]), is_own_shell=False)

    def _source(self, words: list[str], given: _Input, line: int) -> Truth:
        text = self._text_of(words[1]) if len(words) > 1 else None
        if text is None:
            if len(words) > 1:
                self.reader.script.unsent_sources.append((words[1], line))
            return True
        return self.reader.inner(text, arguments=words[2:] or None, is_own_shell=False)

    def _echo(self, words: list[str], given: _Input, line: int) -> Truth:
        said = [word for word in words[1:] if word not in ("-n", "-e")]
        if words[0] == "printf" and said and "%" in said[0]:
            self.reader.print_out(None)
            return True
        self._write(" ".join(said) + "\n", given)
        return True

    def _cat(self, words: list[str], given: _Input, line: int) -> Truth:
        names = [word for word in words[1:] if word != "-"]
        texts = [self._text_of(name) for name in names] or [given.text]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            self.reader.print_out(None)
        else:
            is_passed_on = given.text is not None and self.reader.printed is None
            nowhere = ((_STDIN, False),) if is_passed_on else ()
            self._write("".join(known), _Input(outputs=given.outputs or nowhere))
        return True

    def _tee(self, words: list[str], given: _Input, line: int) -> Truth:
        if given.text is not None:
            adds = "-a" in words
            names = [(word, adds) for word in words[1:] if not word.startswith("-")]
            self._write(given.text, _Input(outputs=(*names, *given.outputs)))
        return True


_Builtin = Callable[[Commands, list[str], _Input, int], Truth]
_BUILTINS: dict[str, _Builtin] = {
    ":": lambda commands, words, given, line: True,
    "true": lambda commands, words, given, line: True,
    "false": lambda commands, words, given, line: False,
    "test": Commands._test,
    **dict.fromkeys(("exit", "return", "break", "continue"), Commands._finish),
    "set": Commands._set,
    "shift": Commands._shift,
    "getopts": Commands._getopts,
    "let": Commands._let,
    **dict.fromkeys(("read", "mapfile", "readarray"), Commands._read),
    "eval": Commands._eval,
    **dict.fromkeys(("source", "."), Commands._source),
    **dict.fromkeys(("echo", "printf"), Commands._echo),
    "cat": Commands._cat,
    "tee": Commands._tee,
}
