"""Words of the shell as a command gets them: quotes taken off, variables and sums put in.

What the text does not say keeps the name of its variable, `$TP`, for the reader of the value to
refuse, or the command that would say it, `$(nproc)`: nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tree_sitter import Node

from models.errors import Invalid
from service.formats.shell import patterns
from service.formats.shell.arithmetic import value_of
from service.formats.shell.faults import PATH
from service.formats.shell.syntax import Tree
from service.formats.shell.variables import Doubt, Value, Variables

_MAX_EXPANDED = 200_000
"""Characters that all variables of a text put in: texts in which they double would never end."""
_NAME = r"[A-Za-z_]\w{0,99}"
_IN_SUM = re.compile(rf"\$?\{{?({_NAME})\}}?", re.ASCII)
_SPACES = re.compile(r"(?:\s|\\\n)*")
_ALL_ELEMENTS = re.compile(
    rf'"?\$\{{?(?:(?P<array>{_NAME})\[(?P<elements>[@*])\]|(?P<arguments>[@*]))\}}?"?', re.ASCII
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_SUBSTITUTIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
_DEFAULTS = (":-", "-", ":=", "=")
_ALTERNATIVES = (":+", "+")
_DEMANDS = (":?", "?")
_CUTS = ("#", "##", "%", "%%")
_REPLACES = ("/", "//", "/#", "/%")
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


@dataclass(slots=True)
class Budget:
    """A budget limits what the reading of one text may take, shared by all that is read in its
    place."""

    expanded: int = 0
    steps: int = 0

    def count(self, length: int) -> None:
        """Counts characters that variables were replaced by. Raises Invalid where there are too
        many."""
        self.expanded += length
        if self.expanded > _MAX_EXPANDED:
            rule = f"its variables hold more than {_MAX_EXPANDED} characters: write them out"
            raise Invalid(PATH, None, rule)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a word."""

    text: str
    splits: bool = False
    """Spaces in it separate words, as in what a variable without quotes holds."""


@dataclass(slots=True)
class Expansion:
    """Puts the variables of one point of a text into its words."""

    tree: Tree
    variables: Variables
    budget: Budget
    takes_defaults: bool
    output: Callable[[str], str | None]
    """Returns what a command in $( ) prints, where that is known without running it."""
    doubts: dict[Doubt, None] = field(default_factory=dict)
    """The doubts about all that was put in."""
    defaults: dict[str, None] = field(default_factory=dict)
    """The variables that nothing sets and whose defaults were put in: TP=4."""

    def words(self, node: Node) -> list[str]:
        """Returns the words that one word of the text expands to: ["-n", "8"] of $OPTIONS, where
        that is "-n 8". Variables outside quotes are split at spaces, arrays in quotes at their
        elements."""
        elements = self._elements(node)
        if elements is not None:
            return elements
        words = [""]
        is_quoted = node.type in ("string", "raw_string", "ansi_c_string")
        for piece in self._pieces(node):
            if not piece.splits:
                words[-1] += piece.text
                is_quoted = True
                continue
            parts = _split(piece.text)
            words[-1] += parts[0]
            words += parts[1:]
        return [word for word in words if word or is_quoted]

    def text(self, node: Node) -> str:
        """Returns a word of the text with variables replaced, without splitting it at spaces."""
        return "".join(piece.text for piece in self._pieces(node))

    def value(self, node: Node | None) -> tuple[tuple[str, ...], bool]:
        """Returns the words of an assigned value, and True where it is an array: (("a", "b"),
        True) of (a b)."""
        if node is None:
            return ("",), False
        if node.type != "array":
            return (self.text(node),), False
        words: list[str] = []
        for child in node.children:
            if child.is_named and child.type != "comment":
                words += self.words(child)
        return tuple(words), True

    def heredoc(self, node: Node, is_quoted: bool) -> str:
        """Returns the text of a heredoc. Variables are replaced by their values unless its mark
        is quoted."""
        if is_quoted:
            return self.tree.text(node)
        parts = self._between(node.children, node.start_byte, node.end_byte, escapes="$`\\")
        return "".join(piece.text for piece in parts)

    # -- pieces

    def _elements(self, node: Node) -> list[str] | None:
        """Returns the words of ${ARRAY[@]}, "${ARRAY[@]}", $@ or "$*"; None for anything else,
        and for an unset array."""
        is_quoted = node.type == "string"
        inner = [child for child in node.children if child.type != '"'] if is_quoted else [node]
        if len(inner) != 1 or inner[0].type not in ("simple_expansion", "expansion"):
            return None
        match = _ALL_ELEMENTS.fullmatch(self.tree.text(node))
        value = match and self._looked_up(match["array"] or match["arguments"])
        if match is None or value is None:
            return None
        if not is_quoted:
            return " ".join(value.words).split()
        is_joined = "*" in (match["elements"], match["arguments"])
        return [value.text] if is_joined else list(value.words)

    def _pieces(self, node: Node) -> Iterator[_Piece]:
        """Yields the parts of a word with variables replaced: "lr" and the value of LR for
        lr$LR."""
        kind = node.type
        text = self.tree.text(node)
        if kind in _SUBSTITUTIONS:
            # The grammar counts spaces in front of a variable in double quotes to the variable, and
            # the ends of lines that go on.
            spaces = _SPACES.match(text)
            if spaces and spaces[0]:
                yield _Piece(_unescaped(spaces[0]))
                text = text[spaces.end() :]
            value = self._substituted(node, text)
            yield _Piece(value, splits=value != text)
        elif kind == "raw_string":
            yield _Piece(text[1:-1])
        elif kind == "ansi_c_string":
            yield _Piece(_ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text[2:-1]))
        elif kind in ("string", "translated_string"):
            yield from self._string(node)
        elif kind == "concatenation" or any(
            child.type in _SUBSTITUTIONS for child in node.children
        ):
            yield from self._between(node.children, node.start_byte, node.end_byte)
        else:
            yield _Piece(_unescaped(text))

    def _string(self, node: Node) -> Iterator[_Piece]:
        """Yields the parts of a text in double quotes, none of which is split at spaces."""
        if node.type == "translated_string":
            node = node.children[-1]
        for piece in self._between(
            node.children[1:-1], node.start_byte + 1, node.end_byte - 1, escapes='$`"\\'
        ):
            yield _Piece(piece.text)

    def _between(
        self, nodes: list[Node], start: int, end: int, escapes: str | None = None
    ) -> Iterator[_Piece]:
        """Yields the parts of the text between two byte offsets, of which `nodes` are the
        variables and quotes; the grammar has no nodes for spaces between them. `escapes` are the
        characters that a backslash quotes there; None means any."""
        at = start
        for node in nodes:
            is_special = node.type in _SUBSTITUTIONS or (
                escapes is None and (node.child_count > 0 or node.type in _QUOTED)
            )
            if not is_special or node.start_byte < at:
                continue
            if node.start_byte > at:
                yield _Piece(_unescaped(self.tree.between(at, node.start_byte), escapes))
            yield from self._pieces(node)
            at = node.end_byte
        if at < end:
            yield _Piece(_unescaped(self.tree.between(at, end), escapes))

    # -- variables

    def _looked_up(self, name: str) -> Value | None:
        """Returns the value of a variable; None where it has none. Doubts and defaults of the
        value become those of the words being expanded."""
        value = self.variables.values.get(name)
        if value is not None:
            self.budget.count(sum(len(word) + 1 for word in value.words))
            self.doubts.update(dict.fromkeys(value.doubts))
            self.defaults.update(dict.fromkeys(value.defaults))
        return value

    def _substituted(self, node: Node, text: str) -> str:
        """Returns what a variable, an arithmetic expression or a command in $( ) is replaced by:
        "16" of $((8 * 2)). Where that is not known it stays as written."""
        # Behind the := of ${…} the grammar takes a sum for a command in brackets.
        is_sum = text.startswith("$((") and text.endswith("))")
        if node.type == "arithmetic_expansion" or is_sum:
            expression = text[3:-2] if is_sum else text[2:-1]
            return self.sum(expression) or f"$(({self._in_sum(expression)}))"
        if node.type == "command_substitution":
            output = self.output(text[2:-1] if text[0] == "$" else text[1:-1])
            return text if output is None else output.rstrip("\n")
        if node.type == "simple_expansion":
            name = text[1:]
            value = self._looked_up(name)
            return _first(value) if value is not None else f"${name}"
        return self._braced(node, text)

    def _braced(self, node: Node, written: str) -> str:
        """Returns the value of ${NAME}, ${NAME[2]}, ${#NAME}, ${!NAME} or ${NAME:-default}.
        Where it is not known it stays as written."""
        target = next((child for child in node.children if child.type in _NAMES), None)
        if target is None:
            return written
        index = None
        if target.type == "subscript":
            index = self._index(self.tree.text(target).partition("[")[2].rstrip("]"))
            target = target.children[0]
        name = self.tree.text(target)
        operators = [
            child for child in node.children if not child.is_named and child.type not in ("${", "}")
        ]
        before = [operator for operator in operators if operator.start_byte < target.start_byte]
        behind = [operator for operator in operators if operator.start_byte > target.start_byte]
        value = self._looked_up(name)
        text = None if value is None else _element(value, index)
        if before:
            return self._measured(before[0].type, value, index, written)
        if text is None and index is not None and "$" in index:
            return index  # which is what is not known, whatever the array holds
        if not behind:
            return f"${name}" if text is None else text
        return self._operated(name, text, behind, node, written)

    def _index(self, text: str) -> str:
        """Returns the index or key of an array's element with variables replaced: "3" of I+1
        where I is 2."""
        if text in ("@", "*"):
            return text

        def put_in(match: re.Match[str]) -> str:
            value = self._looked_up(match[1])
            return f"${match[1]}" if value is None else _first(value)

        number = self.sum(text)
        if number is not None:
            return number
        return re.sub(r"\$\{?(\w+)\}?", put_in, text.strip("'\""), flags=re.ASCII)

    def _measured(self, operator: str, value: Value | None, index: str | None, written: str) -> str:
        """Returns the length for ${#X} (`operator` "#"), or the value of the variable that X
        names for ${!X}. Returns `written`, the text itself, where that is not known."""
        if value is None or (operator == "!" and index is not None):
            return written
        if operator == "!":
            target = self._looked_up(value.text)
            return written if target is None else target.text
        return str(len(value.words) if index in ("@", "*") else len(_element(value, index) or ""))

    def _operated(
        self, name: str, text: str | None, behind: list[Node], node: Node, written: str
    ) -> str:
        """Returns the value of ${NAME…} with operators behind the name, such as :-, %% or //.
        `text` is the variable's value, None where it has none. Returns `written`, the text
        itself, where the result is not known."""
        operator = behind[0].type
        end = node.end_byte - 1
        argument = partial(self._argument, node.children, behind[0].end_byte)
        if operator in _ALTERNATIVES:
            return argument(end) if _is_set(text, operator) else ""
        if operator in _DEFAULTS:
            if text is not None and _is_set(text, operator):
                return text
            if not self.takes_defaults and text is None:
                return f"${name}"
            return self._default(name, argument(end), assigns=operator.endswith("="))
        if text is None and operator in _DEMANDS:
            reason = "the script stops unless it is set where it runs"
            self.variables.values[name] = Value((f"${name}",), reason=reason)
        if text is None or "$" in text or operator in _DEMANDS:
            return f"${name}" if text is None else text
        self.budget.count(len(text))
        if operator in _CUTS:
            self.budget.count(patterns.MAX_CHARACTERS)
            return _or(patterns.cut(text, argument(end), operator), written)
        if operator in _REPLACES:
            pattern = argument(end)
            instead = ""
            if len(behind) > 1:
                pattern = argument(behind[1].start_byte)
                instead = self._argument(node.children, behind[1].end_byte, end)
            return _or(patterns.replaced(text, pattern, instead, operator), written)
        if operator == ":":
            return self._slice(text, argument(end), written)
        return _CASES[operator](text) if operator in _CASES else written

    def _argument(self, nodes: list[Node], start: int, end: int) -> str:
        """Returns the text between two byte offsets, behind an operator, with variables
        replaced."""
        return "".join(piece.text for piece in self._between(nodes, start, end))

    def _default(self, name: str, default: str, *, assigns: bool) -> str:
        """Returns the default of a variable, such as 4 of ${TP:-4}, and notes that it was used.
        With `assigns`, as in ${TP:=4}, the variable keeps it."""
        if name.isidentifier():
            note = f"{name}={default}"
            self.defaults[note] = None
            if assigns:
                self.variables.values[name] = Value((default,), defaults=(note,))
        return default

    def _slice(self, text: str, bounds: str, otherwise: str) -> str:
        """Returns a part of a text, as ${NAME:2:3} does by the bounds "2:3"; `otherwise` where
        the bounds are not known."""
        start, _, length = bounds.partition(":")
        begin = value_of(start.strip() or "0")
        count = value_of(length.strip() or str(len(text)))
        if begin is None or count is None:
            return otherwise
        part = text[begin:]
        return part[:count] if count >= 0 else part[: len(part) + count]

    def sum(self, expression: str) -> str | None:
        """Returns the value of an arithmetic expression of whole numbers, as text; None where
        part of it is not known."""
        number = value_of(self._in_sum(expression))
        return None if number is None else str(number)

    def _in_sum(self, expression: str) -> str:
        """Returns an arithmetic expression with known variables replaced by their numbers:
        "8*GPUS" of NODES*GPUS, where only NODES is known, as 8."""

        def put_in(match: re.Match[str]) -> str:
            value = self._looked_up(match[1])
            text = _first(value) if value is not None else ""
            if re.fullmatch(r"-?\d{1,12}", text):
                return text
            # A sum that is not known stands with its unknown names, whose values can be sent.
            unknown_sum = re.fullmatch(rf"\$\(\((.{{1,{_LONGEST_SUM}}})\)\)", text)
            return f"({unknown_sum[1]})" if unknown_sum else match[1]

        without_braces = re.sub(r"\$\{(\w+)(?::?-(\d+))?\}", self._in_braces, expression)
        return _IN_SUM.sub(put_in, without_braces)

    def _in_braces(self, match: re.Match[str]) -> str:
        """Returns the name in ${NAME}, or 8 of ${NAME:-8} where nothing sets NAME."""
        value = self.variables.values.get(match[1])
        if value is None and match[2] is not None and self.takes_defaults:
            return match[2]
        return str(match[1])


_IN_BRACKETS = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\))*+"
"""A text inside brackets, with brackets three deep in it."""
_UNKNOWN_OUTPUT = re.compile(rf"(\$\({_IN_BRACKETS}\)|`[^`]*+`)")
"""A command, or a sum, of which nobody knows what it gives."""
_LONGEST_SUM = 200
"""Characters of a sum that is put into another; sums of sums would double at every line."""
_NAMES = ("variable_name", "special_variable_name", "subscript")
_QUOTED = ("raw_string", "ansi_c_string", "string")


def _unescaped(text: str, escapes: str | None = None) -> str:
    """Returns a text without the backslashes that quote one of `escapes`, or any character where
    that is None. An escaped end of line is removed."""
    if "\\" not in text:
        return text

    def put(match: re.Match[str]) -> str:
        char = match[1]
        if char == "\n":
            return ""
        return char if escapes is None or char in escapes else match[0]

    return re.sub(r"\\(.)", put, text, flags=re.DOTALL)


def _split(text: str) -> list[str]:
    """Returns a text split at spaces. A command in $( ) whose output is not known stays in one
    piece."""
    if "$(" not in text and "`" not in text:
        return re.split(r"\s+", text)
    parts = [""]
    for piece in _UNKNOWN_OUTPUT.split(text):
        if _UNKNOWN_OUTPUT.fullmatch(piece):
            parts[-1] += piece
        else:
            first, *others = re.split(r"\s+", piece)
            parts[-1] += first
            parts += others
    return parts


def _first(value: Value) -> str:
    """Returns the value of $X, which for an array is its first element."""
    if not value.is_array:
        return value.text
    return value.words[0] if value.words else ""


def _element(value: Value, index: str | None) -> str | None:
    """Returns the element of an array at an index or key; None where there is none. The index
    "@" or "*" means all elements, joined by spaces."""
    if index in ("@", "*"):
        return value.text
    if index is None:
        return _first(value)
    key = f"[{index}]="  # as an associative array is written
    keyed = next((word for word in value.words if word.startswith(key)), None)
    if keyed is not None:
        return keyed.removeprefix(key)
    if not re.fullmatch(r"-?\d{1,6}", index):
        return None
    place = int(index)
    return value.words[place] if -len(value.words) <= place < len(value.words) else None


def _is_set(text: str | None, operator: str) -> bool:
    """Returns True where a variable has a value. Operators with a colon, such as :-, count an
    empty one as unset."""
    return bool(text) if operator[0] == ":" else text is not None


def _or(text: str | None, otherwise: str) -> str:
    return otherwise if text is None else text
