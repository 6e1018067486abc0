"""The shell text in which people keep launch commands, read and never run.

An argument list, a command line and an sbatch script are all text of a shell. Of its language this
reads quotes, comments, lines continued by a backslash, variables, arrays, sums and `export`.
`shell_words` finds the command among the statements. A variable that the text does not define keeps
its name in the words, `$TP`, for the reader of the value to refuse.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.errors import Invalid

PATH = "launch.arguments"
"""The field that errors of a launch configuration name."""
_MAX_EXPANDED = 200_000
_MOST_COMMANDS = 4000
_NAME = r"[A-Za-z_]\w{0,99}"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.ASCII | re.DOTALL)
_VARIABLE = re.compile(
    rf"\$(?:({_NAME})|([0-9@*#?$!-])|\{{(#?)({_NAME}|[0-9@*])(\[[@*0-9]{{1,4}}\])?"
    rf"(?:(:?[-=?+])([^}}]*)|([^}}]*))\}})",
    re.ASCII,
)
_LIST = re.compile(rf'"?(?:\$\{{({_NAME})\[[@*]\]\}}|\$@|\$\{{@\}})"?', re.ASCII)
"""A word that is all elements of an array, or all arguments."""
_PLAIN = re.compile(r"[\w./:=,+@%^~-]+", re.ASCII)
"""Characters that mean nothing to a shell."""
_SUM = re.compile(r"[\d\s()+*/%-]{1,200}", re.ASCII)
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_OPERATORS = (";;", "&&", "||", ";", "&", "|", "\n", "(", ")")
_ARGUMENT_LIST = re.compile(rf"(?:\s|#[^\n]*\n|{_NAME}=[^\s(]*\s)*-", re.ASCII)
"""How a text begins that is no command, but arguments alone."""
_OPENS_BRANCH = {"if", "for", "while", "until", "case", "select"}
_CLOSES_BRANCH = {"fi", "done", "esac"}
_GROUPS = {"{", "}"}
_KEYWORDS = {"then", "else", "elif", "do", "!", *_GROUPS, *_OPENS_BRANCH, *_CLOSES_BRANCH}
_TESTS = {"[", "[[", "test"}
_REDIRECTION = re.compile(r"\d?(?:>>?|<)(&?.*)", re.DOTALL)
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}


@dataclass(slots=True)
class Statement:
    """One simple command: the variables set in front of it, and its words."""

    words: list[str]
    environment: dict[str, str]
    in_branch: bool
    """It stands in an `if`, a loop or a function, and may not run."""


@dataclass(slots=True)
class Script:
    """What a text of the shell says."""

    statements: list[Statement] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    variables: dict[str, list[str]] = field(default_factory=dict)
    """By name; an array has any number of words."""
    in_branches: list[str] = field(default_factory=list)
    """Assignments of an `if`, a loop or a function, as they were written."""
    replaced_in_branches: list[str] = field(default_factory=list)
    """Those of them that would take the place of a value that is put in."""


def read_script(
    text: str, variables: Mapping[str, list[str]], *, takes_defaults: bool = True
) -> Script:
    """The statements of a text, with variables put in. Raises Invalid where a quote or a bracket
    is not closed. Without `takes_defaults`, ${X:-1} is not 1 but unknown where X is.

    In a list of arguments, which no shell has read yet, brackets and bars are part of words.
    """
    script = Script(variables=dict(variables))
    reader = _Reader(script, takes_defaults)
    operators = ("\n",) if _ARGUMENT_LIST.match(text) else _OPERATORS
    # Lines that end as on Windows do so between quotes too, where no setting has such an end.
    found = _statements(_tokens(text.replace("\r\n", "\n"), operators))
    try:
        for count, (joint, words) in enumerate(found):
            if count == _MOST_COMMANDS:
                rule = f"has more than {_MOST_COMMANDS} commands: send the one that trains"
                raise Invalid(PATH, None, rule)
            reader.read(joint, words)
    except RecursionError:
        rule = "nests brackets too deep: write out what they stand for"
        raise Invalid(PATH, _shortened(text), rule) from None
    return script


def sbatch_words(text: str) -> list[str]:
    """The words of #SBATCH lines."""
    words: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#SBATCH"):
            try:
                words += shlex.split(line.lstrip()[len("#SBATCH") :], comments=True)
            except ValueError:
                raise _unclosed(line, "quote") from None
    return words


# -- tokens


@dataclass(frozen=True, slots=True)
class _Token:
    """An operator, or a word as it is written, quotes and all."""

    text: str
    is_operator: bool = False


def _tokens(text: str, operators: Sequence[str] = _OPERATORS) -> Iterator[_Token]:
    """The words and operators of a text, without comments."""
    at = 0
    word = ""
    while at < len(text):
        char = text[at]
        if text.startswith("\\\n", at):
            at += 2
            continue
        if char in " \t":
            if word:
                yield _Token(word)
            word = ""
            at += 1
        elif char == "#" and not word:
            at = _end_of_line(text, at)
        elif word.endswith("=") and char == "(":
            end = _closing(text, at)
            word += text[at:end]
            at = end
        elif operator := next((each for each in operators if text.startswith(each, at)), None):
            if operator == "&" and word.endswith(">"):  # a redirection such as 2>&1
                word += operator
            else:
                if word:
                    yield _Token(word)
                word = ""
                yield _Token(operator, is_operator=True)
            at += len(operator)
        else:
            end = _end_of_piece(text, at)
            word += text[at:end]
            at = end
    if word:
        yield _Token(word)


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _end_of_piece(text: str, at: int) -> int:
    """Where the quoted piece, the expansion or the plain characters end that begin here."""
    plain = _PLAIN.match(text, at)
    if plain:
        return plain.end()
    char = text[at]
    if char == "\\":
        return min(at + 2, len(text))
    if char == "'":
        return _after(text, "'", at + 1, "'")
    if char == '"':
        end = at + 1
        while end < len(text) and text[end] != '"':
            end = _end_of_piece(text, end) if text[end] in "\\$`" else end + 1
        return _after(text, '"', end, '"')
    if char == "`":
        return _after(text, "`", at + 1, "`")
    if text.startswith("$(", at):
        return _closing(text, at + 1)
    if text.startswith("${", at):
        return _after(text, "}", at + 2, "${")
    return at + 1


def _after(text: str, mark: str, start: int, opened: str) -> int:
    end = text.find(mark, start)
    if end < 0:
        raise _unclosed(text, opened)
    return end + len(mark)


def _closing(text: str, at: int) -> int:
    """The place after the bracket that closes the one at `at`."""
    depth = 0
    end = at
    while end < len(text):
        char = text[end]
        if char == "#" and text[end - 1] in " \t\n(":
            end = _end_of_line(text, end)
            continue
        if char in "()":
            depth += 1 if char == "(" else -1
            end += 1
            if depth == 0:
                return end
        else:
            end = _end_of_piece(text, end)
    raise _unclosed(text, "(")


def _unclosed(text: str, opened: str) -> Invalid:
    rule = f"has a {opened} that is not closed: quote it, or close it"
    return Invalid(PATH, _shortened(text), rule)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _statements(tokens: Iterator[_Token]) -> Iterator[tuple[str, list[str]]]:
    """The words between operators, with the operator in front of them. The brackets of a function
    stay with its name."""
    words: list[str] = []
    joint = "\n"
    for token in tokens:
        if not token.is_operator:
            words.append(token.text)
        elif token.text == "(" and len(words) == 1:
            words.append("()")
        else:
            if words:
                yield joint, words
                joint = "\n"
            words = []
            joint = token.text if token.text in ("&&", "||") else joint
    if words:
        yield joint, words


# -- statements


def _without_redirections(words: list[str]) -> list[str]:
    """Words as they are written, without those that say where output goes."""
    kept = []
    skip = False
    for word in words:
        match = _REDIRECTION.fullmatch(word)
        if match and not skip:
            skip = not match.group(1)
        elif skip:
            skip = False
        else:
            kept.append(word)
    return kept


class _Reader:
    """Goes through statements in order and remembers variables."""

    def __init__(self, script: Script, takes_defaults: bool) -> None:
        self.script = script
        self.takes_defaults = takes_defaults
        self.open: list[str] = []
        """The branches, functions and groups that are open."""
        self.follows_test = False
        self.expanded = 0

    def read(self, joint: str, words: list[str]) -> None:
        if words[1:] == ["()"]:
            self.open.append("function")
            return
        while words and words[0] in _KEYWORDS:
            keyword = words[0]
            self._open_or_close(keyword)
            words = words[1:]
            if keyword in ("for", "case", "select"):
                return
        if not words:
            return
        may_not_run = joint == "||" or (joint == "&&" and self.follows_test)
        self.follows_test = words[0] in _TESTS or may_not_run
        if words[0] in _DECLARES:
            self._declare(words, may_not_run)
        else:
            self._run(words, may_not_run)

    def _open_or_close(self, keyword: str) -> None:
        opens_group = keyword == "{" and self.open[-1:] != ["function"]
        if keyword in _OPENS_BRANCH or opens_group:
            self.open.append(keyword)
        elif keyword in ("}", *_CLOSES_BRANCH) and self.open:
            self.open.pop()

    def _is_in_branch(self, may_not_run: bool) -> bool:
        return may_not_run or any(each != "{" for each in self.open)

    def _declare(self, words: list[str], may_not_run: bool) -> None:
        for word in words[1:]:
            match = _ASSIGNMENT.fullmatch(word)
            if match:
                self._assign(match, word, may_not_run)
            if words[0] == "export" and not word.startswith("-"):
                name = match.group(1) if match else word
                value = self.script.variables.get(name)
                if value is not None:
                    self.script.exported[name] = " ".join(value)

    def _run(self, words: list[str], may_not_run: bool) -> None:
        prefix = []
        for word in words:
            match = _ASSIGNMENT.fullmatch(word)
            if match is None:
                break
            prefix.append((match, word))
        words = words[len(prefix) :]
        if not words:
            for match, word in prefix:
                self._assign(match, word, may_not_run)
            return
        environment = {match.group(1): " ".join(self._value(match.group(3))) for match, _ in prefix}
        kept = _without_redirections(words)
        if not kept:
            return
        expanded = [part for word in kept for part in self._words(word)]
        in_branch = self._is_in_branch(may_not_run)
        self.script.statements.append(Statement(expanded, environment, in_branch))

    def _assign(self, match: re.Match[str], word: str, may_not_run: bool) -> None:
        """Set a variable. A branch changes none, for it may not run: what it sets is listed."""
        name, adds, text = match.groups()
        variables = self.script.variables
        if self._is_in_branch(may_not_run):
            written = " ".join(word.split())
            self.script.in_branches.append(written)
            if not adds and name in variables:
                self.script.replaced_in_branches.append(written)
            return
        value = self._value(text)
        if not adds:
            variables[name] = value
        elif text.startswith("("):
            variables[name] = [*variables.get(name, []), *value]
        else:
            variables[name] = ["".join([*variables.get(name, []), *value])]

    def _value(self, text: str) -> list[str]:
        """The words of an array, or the one word of another value."""
        if text.startswith("("):
            written = [token.text for token in _tokens(text[1:-1]) if not token.is_operator]
            return [part for word in written for part in self._words(word)]
        return ["".join(piece for piece, _ in self._pieces(text))]

    def _words(self, written: str) -> list[str]:
        """What a written word becomes: unquoted variables are split at spaces, quoted lists at
        their elements."""
        whole = _LIST.fullmatch(written)
        name = whole and (whole.group(1) or "@")
        if name in self.script.variables:
            listed = self.script.variables[name]
            self._count(sum(len(word) + 1 for word in listed))
            if written.startswith('"'):
                return list(listed)
            return [part for word in listed for part in word.split()]
        words = [""]
        is_quoted = False
        for piece, splits in self._pieces(written):
            if not splits:
                words[-1] += piece
                is_quoted = True
                continue
            parts = re.split(r"\s+", piece)
            words[-1] += parts[0]
            words += parts[1:]
        return [word for word in words if word or is_quoted]

    def _pieces(self, written: str) -> Iterator[tuple[str, bool]]:
        """The pieces of a word with their quotes taken off, and whether spaces in them separate
        words, as they do in what an unquoted variable holds."""
        at = 0
        while at < len(written):
            end = _end_of_piece(written, at)
            piece = written[at:end]
            if piece[0] == "$":
                match = _VARIABLE.match(written, at)
                end = match.end() if match else end
                value = self._expand(written[at:end])
                yield value, value != written[at:end]
            elif piece[0] == "'":
                yield piece[1:-1], False
            elif piece[0] == '"':
                yield self._inside(piece[1:-1]), False
            else:
                yield piece[1:] if piece[0] == "\\" else piece, False
            at = end

    def _inside(self, quoted: str) -> str:
        """What stands between double quotes."""
        found = ""
        at = 0
        while at < len(quoted):
            if quoted[at] == "$":
                match = _VARIABLE.match(quoted, at)
                end = match.end() if match else _end_of_piece(quoted, at)
                found += self._expand(quoted[at:end])
            elif quoted[at] == "\\":
                end = min(at + 2, len(quoted))
                escaped = quoted[at + 1 : end]
                found += escaped if escaped in ("$", '"', "\\", "`") else quoted[at:end]
                found = found.removesuffix("\\\n")
            else:
                end = at + 1
                found += quoted[at]
            at = end
        return found

    def _expand(self, written: str) -> str:
        """The value of a variable or of a sum; as it is written where the text does not say."""
        if written.startswith("$(("):
            return self._sum(written[3:-2]) or written
        match = _VARIABLE.fullmatch(written)
        if match is None:
            return written
        name = match.group(1) or match.group(4) or match.group(2)
        value = self.script.variables.get(name)
        otherwise, default, other = match.group(6), match.group(7), match.group(8)
        if match.group(3) or other or match.group(5) not in (None, "[@]", "[*]", "[0]"):
            return written
        if otherwise in (":+", "+"):
            is_empty = value is not None and not any(value)
            return "" if is_empty else self._inside(default.replace('"', ""))
        if value is None and otherwise in (":-", "-", ":=", "=") and self.takes_defaults:
            return self._inside(default.strip("\"'"))
        if value is None:
            return f"${name}"
        text = " ".join(value)
        self._count(len(text))
        return text

    def _sum(self, expression: str) -> str | None:
        """The value of a sum of whole numbers; None where something in it is not known."""
        named = re.sub(rf"(?<![\w$]){_NAME}", lambda match: f"${match.group(0)}", expression)
        text = self._inside(re.sub(r"\$\{\$(\w+)\}", r"${\1}", named)).strip()
        if not _SUM.fullmatch(text):
            return None
        try:
            return str(_value_of(ast.parse(text, mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None

    def _count(self, length: int) -> None:
        self.expanded += length
        if self.expanded > _MAX_EXPANDED:
            rule = f"its variables hold more than {_MAX_EXPANDED} characters: write them out"
            raise Invalid(PATH, None, rule)


def _value_of(node: ast.expr) -> int:
    """The value of a parsed sum. Raises ValueError where it is something else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_value_of(node.left), _value_of(node.right))
        if abs(value) < 10**12:
            return value
    raise ValueError(node)
