"""Interprets the simple commands of a launch script (the *text*): those of the shell itself, those
that write files, and those that start others, among which is the training.

Nothing is run. Files that a command would write are kept in memory, as the *written* files of the
script, where later commands find them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from tree_sitter import Node

from service.formats.shell.conditions import Truth, condition_of_words
from service.formats.shell.edits import edited_words
from service.formats.shell.files import LaunchFiles
from service.formats.shell.headers import as_batch_text
from service.formats.shell.programs import (
    SHELLS,
    Wrapped,
    assigned_variables,
    base_name,
    program_at,
    shell_file_at,
    wrapped_shell_text,
)
from service.formats.shell.script import Statement
from service.formats.shell.syntax import line_of
from service.formats.shell.variables import Doubt, Value

if TYPE_CHECKING:
    from service.formats.shell.interpreter import Interpreter

_SUBMITS = ("sbatch", "qsub")
_READS_STDIN = (*SHELLS, *_SUBMITS)
_STDIN = "/dev/stdin"
"""The name by which a command reads its input, such as a heredoc, as a file."""
_TRANSPARENT = ("exec", "nohup", "time", "builtin")
"""Words in front of a command that change nothing of it."""
_SHELL_FILE = re.compile(r"\.(?:sh|bash|slurm|sbatch|pbs|job|lsf|py)$")
_MOST_WRITTEN = 2**17
"""Characters of a file that a script writes, with its name. Larger files are no launch files, and
are not kept."""
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
class _Streams:
    """The input of a command, and the files that its output goes to."""

    input: str | None = None
    outputs: tuple[tuple[str, bool], ...] = ()
    """Names of files, and whether the output is appended, as by >>, or replaces what they hold."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Interprets the simple commands of a text."""

    reader: Interpreter
    """Runs the texts that a command starts, and holds the variables and the script."""

    # -- redirections

    def redirected(self, node: Node) -> Truth:
        """Interprets a command with redirections, such as `cat > run.sh <<EOF`. Returns whether it
        succeeds; None where that is not known."""
        body = node.child_by_field_name("body")
        text: str | None = None
        outputs: list[tuple[str, bool]] = []  # (file, whether the output is appended to it)
        arguments: list[str] = []
        behind: list[Node] = []  # what stands behind the heredoc's delimiter, on its line
        for child in node.children:
            if child.type == "file_redirect":
                outputs += self._output_file(child)
                arguments += self._arguments_behind(child)
            elif child.type == "heredoc_redirect":
                text = self._heredoc(child)
                for inner in child.children:
                    if inner.type == "file_redirect":
                        outputs += self._output_file(inner)
                    elif inner.is_named and not inner.type.startswith("heredoc"):
                        behind.append(inner)
        # Of `cat <<EOF | bash` cat's output is given to bash below: nothing else may receive it.
        if any(node.type == "pipeline" for node in behind):
            outputs.append(("/dev/null", False))
        truth = self._run_body(body, _Streams(text, tuple(outputs)), arguments)
        self._follow_behind_delimiter(behind, text)
        return truth

    def _run_body(self, body: Node | None, streams: _Streams, arguments: list[str]) -> Truth:
        """Interprets a command with this input and these output files; in a pipeline the last
        command gets them. `arguments` are words that follow its own."""
        if body is None:
            return None
        if body.type == "command":
            return self.run(body, streams, arguments)
        if body.type == "pipeline":
            *others, last = [child for child in body.children if child.is_named]
            self.reader.run(others)
            self._run_body(last, streams, arguments)
            return None  # whether a pipeline succeeds is not known
        return self.reader.follow(body)

    def _follow_behind_delimiter(self, nodes: Sequence[Node], text: str | None) -> None:
        """Interprets the commands that stand behind the delimiter of a heredoc, on its line: `bash`
        of `cat <<EOF | bash`. `text` is the heredoc, which the next command of a pipeline reads."""
        for node in nodes:
            inner = node.children if node.type == "pipeline" else [node]
            for child in (inner_node for inner_node in inner if inner_node.is_named):
                if child.type == "command" and node.type == "pipeline":
                    self.run(child, _Streams(text))
                else:
                    self.reader.follow(child)

    def _output_file(self, node: Node) -> list[tuple[str, bool]]:
        """Returns the file that a redirection writes, and whether it appends: [("run.sh",
        False)] for `> run.sh`. Returns an empty list for redirected input."""
        operator = next((child.type for child in node.children if not child.is_named), ">")
        destination = node.child_by_field_name("destination")
        if destination is None or operator not in (">", ">>", ">|", "&>", "&>>"):
            return []
        name = self.reader.expansion().text(destination)
        return [(name, operator.endswith(">>"))]

    def _arguments_behind(self, node: Node) -> list[str]:
        """Returns the words behind a redirection's file name, which are arguments of the command
        in front of it: ["--bf16"] for `python train.py > log --bf16`."""
        expansion = self.reader.expansion()
        behind = node.children_by_field_name("destination")[1:]
        return [word for argument in behind for word in expansion.words(argument)]

    def _heredoc(self, node: Node) -> str:
        """Returns the text of a heredoc. Variables are replaced by their values unless its
        delimiter, such as EOF, is quoted."""
        delimiters = [child for child in node.children if child.type == "heredoc_start"]
        bodies = [child for child in node.children if child.type == "heredoc_body"]
        if not delimiters or not bodies:
            return ""
        delimiter = self.reader.tree.text(delimiters[0])
        is_quoted = any(quote in delimiter for quote in ("'", '"', "\\"))
        text = self.reader.expansion().heredoc(bodies[0], is_quoted)
        if any(child.type == "<<-" for child in node.children):  # which takes tabs off each line
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        return text

    def _write(self, text: str, streams: _Streams) -> None:
        """Writes a text into the output files of a command, or prints it where there are none.
        In a file that is no shell script, variables without a known value are put in quotes, so
        that a parser of JSON or YAML reads them as texts."""
        written = self.reader.script.written  # file name: text
        if not streams.outputs:
            self.reader.print_out(text)
        for name, appends in streams.outputs:
            is_device = name.startswith("/dev/") and name != _STDIN
            if is_device or len(text) + len(name) > _MOST_WRITTEN:
                continue  # nothing can be read from it later, or it is too large to be a launch
            self.reader.budget.spend(len(text))  # so that loops cannot write without end
            content = text if _SHELL_FILE.search(name) else _BARE_VARIABLE.sub(r'"$\1"', text)
            if appends:
                if name not in written:
                    name = self.reader.files.certain_name(name) or name
                content = written.get(name, self.reader.files.texts.get(name, "")) + content
            written[name] = content

    # -- commands

    def run(self, node: Node, streams: _Streams | None = None, more: Sequence[str] = ()) -> Truth:
        """Interprets one simple command, with the words `more` behind its own. Returns whether it
        succeeds; None where that is not known."""
        reader = self.reader
        streams = streams or _Streams()
        expansion = reader.expansion()
        environment: dict[str, str] = {}
        words: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, _, _ = reader.tree.text(child).partition("=")
                values, _ = expansion.assigned_value(child.child_by_field_name("value"))
                environment[name] = " ".join(values)
            elif child.type == "herestring_redirect":
                streams = _Streams("".join(expansion.words(child.children[-1])), streams.outputs)
            elif child.type == "file_redirect":
                continue  # in front of the words, as in `>log date`: it is not followed
            elif child.is_named:
                inner = child.children[0] if child.type == "command_name" else child
                words += expansion.words(inner)
        words += more
        while words and words[0] in _TRANSPARENT:  # such as nohup, which only starts the rest
            words = words[1:]
        if not words:
            return None
        statement = Statement(
            tuple(words), environment, tuple(expansion.doubts), tuple(expansion.defaults)
        )
        return self._dispatch(statement, streams, line_of(node))

    def _dispatch(self, command: Statement, streams: _Streams, line: int) -> Truth:
        """Interprets a shell builtin, a function, or the script that a command runs. Any other
        command is added to those that the text starts."""
        reader = self.reader
        words = [*command.words]
        environment = command.environment
        # Behind a pipe in $( ), tr and xargs only change the spaces of what `printed` collects.
        if reader.printed is not None and _RESPACES.fullmatch(" ".join(words)):
            return True
        builtin = _BUILTINS.get(words[0])
        if builtin is not None:
            return builtin(self, words, streams, line)
        if words[0] in reader.functions:
            tree, body = reader.functions[words[0]]
            return reader.run_deeper(tree, [body], arguments=words[1:], is_own_shell=False)
        self._note_edits(command, streams)
        statements = reader.script.statements
        count = len(statements)
        if self._run_inner_script(words, environment, streams):
            # Statements from `count` on come from the script: this command's doubts are theirs.
            statements[count:] = [inner.with_doubts_of(command) for inner in statements[count:]]
            return None
        # The command may name its input as a file, /dev/stdin, which is then found.
        if streams.input is not None and not streams.outputs:
            self._write(streams.input, _Streams(outputs=((_STDIN, False),)))
        exported: Mapping[str, str] = {**reader.variables.environment(), **environment}
        if statements and statements[-1].environment == exported:
            exported = statements[-1].environment  # thousands of commands may share one object
        statements.append(replace(command, words=(*reader.before, *words), environment=exported))
        return None

    def _note_edits(self, command: Statement, streams: _Streams) -> None:
        """Notes the known files that a command changes in place."""
        words = dict.fromkeys(edited_words(command.words, streams.input))
        if not words:
            return
        files = self._known_files()
        names = {*map(base_name, files.texts)}
        edits = self.reader.script.edits
        for word in words:
            # Most words name no file, which is told by their last part more quickly.
            if word not in edits and base_name(word) in names and files.certain_name(word):
                edits[word] = " ".join(command.words)

    def _run_inner_script(
        self, words: list[str], environment: Mapping[str, str], streams: _Streams
    ) -> bool:
        """Interprets the shell script that a command runs, from one of its words (`sh -c`), a file
        or its input. Returns False where it runs none."""
        inner = wrapped_shell_text(words)
        if inner is None:
            inner = self._shell_file(words) or self._shell_input(words, streams)
            if inner is None:
                return False
            if any(base_name(word) in _SUBMITS for word in inner.before):
                # Its #SBATCH lines count, and the options of sbatch go before them.
                given = as_batch_text(_options_of_sbatch(inner.before))
                self.reader.script.batch_texts += [inner.text, given]
        self.reader.run_text(
            inner.text,
            before=inner.before,
            arguments=inner.arguments,
            environment={**environment, **assigned_variables(inner.before)},
            is_own_shell=True,  # another process, whose variables end with it
        )
        return True

    def _shell_file(self, words: Sequence[str]) -> Wrapped | None:
        """Returns the text of the script file that a command runs, with its arguments: `sbatch
        job.sh 8`. None where it runs none, or its text is not known."""
        index = shell_file_at(words)
        text = None if index is None else self._text_of(words[index])
        if index is None or text is None:
            return None
        return Wrapped(_without_shell(words[:index]), text, tuple(words[index + 1 :]))

    def _shell_input(self, words: Sequence[str], streams: _Streams) -> Wrapped | None:
        """Returns the script that a command reads from its input, with the words that start the
        shell, such as `srun` of `srun bash <<EOF`. None where it reads none."""
        is_input = shell_file_at(words) is None and self._reads_script_from_input(words)
        if streams.input is None or not is_input:
            return None
        return Wrapped(_without_shell(words), streams.input)

    def _reads_script_from_input(self, words: Sequence[str]) -> bool:
        """Returns True where a command takes a script from its standard input, as bash, sbatch
        and ssh do."""
        if program_at(words) is not None:
            return False  # the input is that of the program
        # A shell reads its input where its own name is the last word: `srun bash`.
        plain = [word for word in words if not word.startswith("-")] or [words[0]]
        return base_name(plain[-1]) in _READS_STDIN or base_name(words[0]) in (*_SUBMITS, "ssh")

    def _text_of(self, name: str) -> str | None:
        """Returns the text of a file that the script has written or that was sent; None for any
        other file."""
        text = self.reader.script.written.get(name)
        return self._known_files().find(name) if text is None else text

    def _known_files(self) -> LaunchFiles:
        """Returns the files that the script has written or that were sent."""
        return self.reader.files.with_written(self.reader.script.written)

    # -- commands of the shell

    def _copy(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `cp` and `mv` of one file, where its text is known."""
        names = [word for word in words[1:] if not word.startswith("-")]
        if len(names) != 2:
            return None
        source, target = names
        files = self._known_files()
        known = files.certain_name(source)
        if known is None:
            return None
        text = files.texts[known]
        name = target + base_name(source) if target.endswith("/") else target
        self.reader.budget.spend(len(text))
        self.reader.script.written[name] = text
        return True

    def _finish(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Ends the text at `exit`, `return`, `break` or `continue`, by raising Finished. An
        `exit` before any program is started is passed over: it is meant for callers that give no
        arguments, and this script is taken to train."""
        reader = self.reader
        has_started = any(
            program_at(statement.words) is not None for statement in reader.script.statements
        )
        # In a branch that may not run, Finished ends only the reading of that branch.
        if words[0] != "exit" or reader.undecided or has_started:
            raise Finished(words[0])
        return None

    def _set(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `set -- words`, which replaces the arguments of the script."""
        if words[1:2] == ["--"]:
            self.reader.set_arguments(words[2:])
        return True

    def _shift(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `shift N`, which drops the script's first N arguments. In a branch that may
        not run it changes nothing: arguments cannot be in doubt."""
        arguments = self.reader.variables.values.get("@")
        count = int(words[1]) if len(words) > 1 and re.fullmatch(r"\d{1,4}", words[1]) else 1
        if arguments is not None and arguments.words and not self.reader.undecided:
            self.reader.set_arguments(arguments.words[count:])
        return True

    def _getopts(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `getopts`, the test of a loop over arguments. Returns False, which ends the
        loop, where the script has no arguments; else None, since options are not worked out."""
        arguments = self.reader.variables.values.get("@")
        return False if arguments is not None and not arguments.words else None

    def _let(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `let N=2*M`, one assignment for each word."""
        for word in words[1:]:
            self.reader.set_by_arithmetic(word, line)
        return None  # it succeeds unless the last value is 0, which is not worked out

    def _read(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `read A B`: sets variables to the words of the input, or to unknown values
        where the input is not known."""
        names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII)]
        text = streams.input or ""
        # A $ in the input names a variable without a known value.
        is_known = streams.input is not None and "$" not in text
        parts = text.split(None, max(len(names) - 1, 0))  # the last variable gets all that is left
        for name, part in zip_longest(names, parts[: len(names)], fillvalue=""):
            if name in self.reader.variables.fixed:  # the request sends its value
                continue
            unknown = Value((f"${name}",), reason=f"line {line} reads it")
            doubt = Doubt(name, " ".join(words)[:200], line, replaces=True)
            self.reader.set(name, Value((part,)) if is_known else unknown, doubt, keeps=False)
        return True

    def _source(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets the text of the file that `source` reads, in this shell. A file that was not
        sent is noted, and taken to succeed."""
        text = self._text_of(words[1]) if len(words) > 1 else None
        if text is None:
            if len(words) > 1:
                self.reader.script.unsent_sources.append((words[1], line))
            return True
        # Without arguments of its own (None) the file sees those of this text.
        return self.reader.run_text(text, arguments=words[2:] or None, is_own_shell=False)

    def _echo(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `echo` and `printf`: writes their words. The output of a printf with a format
        counts as unknown."""
        printed = [word for word in words[1:] if word not in ("-n", "-e")]
        if words[0] == "printf" and printed and "%" in printed[0]:
            self.reader.print_out(None)
        else:
            self._write(" ".join(printed) + "\n", streams)
        return True

    def _cat(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `cat`: writes the files that it names, or its input."""
        names = [word for word in words[1:] if word != "-"]
        texts = [self._text_of(name) for name in names] or [streams.input]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            self.reader.print_out(None)
            return True
        # Outside of $( ), the next command of the pipeline reads what cat passes on.
        is_for_next = streams.input is not None and self.reader.printed is None
        to_next = ((_STDIN, False),) if is_for_next else ()
        self._write("".join(known), _Streams(outputs=streams.outputs or to_next))
        return True

    def _tee(self, words: list[str], streams: _Streams, line: int) -> Truth:
        """Interprets `tee`: writes its input into the files that it names, and to its output."""
        if streams.input is not None:
            appends = "-a" in words
            names = [(word, appends) for word in words[1:] if not word.startswith("-")]
            self._write(streams.input, _Streams(outputs=(*names, *streams.outputs)))
        return True


def _options_of_sbatch(words: Sequence[str]) -> Sequence[str]:
    """Returns the words behind sbatch, ("-N", "2"); none where these words have no sbatch."""
    names = [*map(base_name, words)]
    return words[names.index("sbatch") + 1 :] if "sbatch" in names else ()


def _without_shell(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words in front of a script without the shell that runs it: ("srun",) for `srun
    bash -x`."""
    before = [*words]
    while before and (base_name(before[-1]) in SHELLS or before[-1] in ("-s", "-", "-l", "-x")):
        before.pop()
    return tuple(before)


_Builtin = Callable[[Commands, list[str], _Streams, int], Truth]
_BUILTINS: dict[str, _Builtin] = {
    ":": lambda commands, words, streams, line: True,
    "true": lambda commands, words, streams, line: True,
    "false": lambda commands, words, streams, line: False,
    "test": lambda commands, words, streams, line: condition_of_words(
        words[1:], commands.reader.has_file
    ),
    **dict.fromkeys(("exit", "return", "break", "continue"), Commands._finish),
    **dict.fromkeys(("cp", "mv"), Commands._copy),
    "set": Commands._set,
    "shift": Commands._shift,
    "getopts": Commands._getopts,
    "let": Commands._let,
    **dict.fromkeys(("read", "mapfile", "readarray"), Commands._read),
    "eval": lambda commands, words, streams, line: commands.reader.run_text(
        " ".join(words[1:]), is_own_shell=False
    ),
    **dict.fromkeys(("source", "."), Commands._source),
    **dict.fromkeys(("echo", "printf"), Commands._echo),
    "cat": Commands._cat,
    "tee": Commands._tee,
}
