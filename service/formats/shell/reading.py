"""Reads a launch (the *text*: an argument list, a command line or a script) as the commands that it
would run.
*Variables* come from three places: the request, which nothing overrides; the scheduler, for a job
with these options; and the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.formats.shell.commands import Finished
from service.formats.shell.faults import invalid_launch, shortened
from service.formats.shell.files import NO_FILES, LaunchFiles
from service.formats.shell.interpreter import Interpreter
from service.formats.shell.script import Script
from service.formats.shell.syntax import parse
from service.formats.shell.variables import Value, sent_variables

ARGUMENTS = ":arguments"
"""A word that stands for the program where a text has arguments alone."""
_ARGUMENT_LIST = re.compile(
    r"""(?:\s|#[^\n]*\n|[A-Za-z_]\w{0,99}=(?:"[^"]*+"|'[^']*+'|[^\s("'])*+\s)*+-""", re.ASCII
)
"""The start of a text that has arguments alone and no command. A quoted text is one value, so that
a variable that holds a program and its flags is not taken for arguments."""
_PIECE = re.compile(
    r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\([^)\n]*\)|\$\{[^}\n]*\}|(?<!\S)#[^\n]*"
    r"|(?P<mark>[()|&;<>])|(?P<end>\n)",
    re.DOTALL,
)


def read_script(
    text: str,
    variables: Mapping[str, str],
    files: LaunchFiles = NO_FILES,
    *,
    takes_defaults: bool = True,
) -> Script:
    """Returns the commands that a text runs, with variables replaced. `variables` are those that
    the scheduler sets; values that the request sends override those of the text. Raises Invalid
    where a quote or bracket is not closed.

    Without `takes_defaults`, ${X:-1} is unknown rather than 1 where nothing sets X.
    """
    shell_text = _as_command(text) if _ARGUMENT_LIST.match(text) else text
    tree = parse(shell_text)
    known = sent_variables(files.environment)
    known.values |= {
        name: Value((value,)) for name, value in variables.items() if name not in known.values
    }
    script = Script(batch_texts=[text])
    reader = Interpreter(tree, script, known, files, takes_defaults=takes_defaults)
    reader.set_arguments([])
    try:
        reader.run([tree.root])
        if not script.statements:  # the text may be a part of a script, which calls its functions
            for function_tree, body in [*reader.functions.values()]:
                reader.run_deeper(function_tree, [body], is_own_shell=True)
    except Finished:  # an `exit`: what was read so far is the script
        pass
    except RecursionError:
        rule = "nests brackets too deep: write out what they stand for"
        raise invalid_launch(shortened(text), rule) from None
    script.values = reader.variables.values
    return script


def _as_command(text: str) -> str:
    """Returns an argument list, such as "--tp 2 --pp 4", as a shell command, whose program is the
    placeholder ARGUMENTS. A list behind assignments, "TP=2 --tp 2", gets no placeholder: its first
    flag stands in the place of the program. The list was not written for a shell, so brackets and
    bars are escaped, and comments and ends of lines become spaces."""

    def escaped(match: re.Match[str]) -> str:
        if match["mark"]:  # one of ()|&;<>
            return f"\\{match['mark']}"
        if match["end"] or match[0].startswith("#"):
            return " "
        return " " if match[0] == "\\\n" else match[0]  # a line that goes on; quotes stay

    written = _PIECE.sub(escaped, text).strip()
    return f"{ARGUMENTS} {written}" if written.startswith("-") else written
