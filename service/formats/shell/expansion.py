"""Expands the words of a launch script (the *text*) to what a command gets: quotes are taken off,
variables and arithmetic replaced by their values.
What the text does not say keeps the name of its variable, `$TP`, for the reader of the value to
refuse, or the command that would say it, `$(nproc)`: nothing is run. Doubts (assignments that may
not have run) and defaults (the 4 of ${TP:-4}) of every value that is put in are collected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tree_sitter import Node

from service.formats.shell import patterns
from service.formats.shell.arithmetic import value_of
from service.formats.shell.faults import invalid_launch
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
    """Limits the work of reading one text. The scripts and functions that it runs share its
    budget, so that texts that grow or loop without end are refused."""

    expanded: int = 0
    """Characters that variables were replaced by."""
    steps: int = 0
    """Statements that were interpreted."""

    def spend(self, length: int) -> None:
        """Takes characters that variables were replaced by from the budget. Raises Invalid where it
        is used up."""
        self.expanded += length
        if self.expanded > _MAX_EXPANDED:
            rule = f"its variables hold more than {_MAX_EXPANDED} characters: write them out"
            raise invalid_launch(None, rule)


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
    """True where ${X:-1} is 1 if nothing sets X. Otherwise it is unknown."""
    output: Callable[[str], str | None]
    """Returns what a command in $( ) prints, where that is known without running it."""
    doubts: dict[Doubt, None] = field(default_factory=dict)
    """The doubts about all that was put in."""
    defaults: dict[str, None] = field(default_factory=dict)
    """The variables that nothing sets and whose defaults were put in: TP=4."""

    def words(self, node: Node) -> list[str]:
        """Returns the words that one word of the text expands to: ["-n", "8"] for $OPTIONS, where
        that is "-n 8". Variables outside quotes are split at spaces, arrays in quotes at their
        elements."""
        elements = self._elements(node)
        if elements is not None:
            return elements
        words = [""]  # the last one grows until a space ends it
        # An empty variable outside quotes is no word, but "" is an empty one.
        keeps_empty = node.type in ("string", "raw_string", "ansi_c_string")
        for piece in self._pieces(node):
            if not piece.splits:
                words[-1] += piece.text
                keeps_empty = True
                continue
            parts = _split(piece.text)
            words[-1] += parts[0]
            words += parts[1:]
        return [word for word in words if word or keeps_empty]

    def text(self, node: Node) -> str:
        """Returns a word of the text with variables replaced, without splitting it at spaces."""
        return "".join(piece.text for piece in self._pieces(node))

    def assigned_value(self, node: Node | None) -> tuple[tuple[str, ...], bool]:
        """Returns the words of an assigned value, and True where it is an array: (("a", "b"),
        True) for (a b)."""
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
        """Returns the text of a heredoc. Variables are replaced by their values unless
        `is_quoted`, which says that its delimiter, such as EOF, has quotes."""
        if is_quoted:
            return self.tree.text(node)
        # In a heredoc a backslash quotes only these three characters.
        parts = self._pieces_between(node.children, node.start_byte, node.end_byte, escapes="$`\\")
        return "".join(piece.text for piece in parts)

    # -- pieces

    def _elements(self, node: Node) -> list[str] | None:
        """Returns the words of ${ARRAY[@]}, "${ARRAY[@]}", $@ or "$*"; None for an unset array
        and for anything else, which is expanded as a text."""
        is_quoted = node.type == "string"
        inner = [child for child in node.children if child.type != '"'] if is_quoted else [node]
        # An array beside other text, as in "a ${X[@]}", is expanded as a text.
        if len(inner) != 1 or inner[0].type not in ("simple_expansion", "expansion"):
            return None
        match = _ALL_ELEMENTS.fullmatch(self.tree.text(node))
        value = match and self._value_of(match["array"] or match["arguments"])
        if match is None or value is None:
            return None
        if not is_quoted:  # a shell then splits the elements themselves at spaces
            return " ".join(value.words).split()
        is_joined = "*" in (match["elements"], match["arguments"])
        return [value.text] if is_joined else list(value.words)

    def _pieces(self, node: Node) -> Iterator[_Piece]:
        """Yields the parts of a word with variables replaced: "lr" and the value of LR for
        lr$LR."""
        kind = node.type
        text = self.tree.text(node)
        if kind in _SUBSTITUTIONS:
            # In double quotes the grammar's node of a variable includes the spaces and continued
            # line ends in front of it.
            spaces = _SPACES.match(text)
            if spaces and spaces[0]:
                yield _Piece(_unescaped(spaces[0]))
                text = text[spaces.end() :]
            value = self._substituted(node, text)
            yield _Piece(value, splits=value != text)  # what is not known stays in one piece
        elif kind == "raw_string":  # 'a b'
            yield _Piece(text[1:-1])
        elif kind == "ansi_c_string":  # $'a\tb'
            yield _Piece(_ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text[2:-1]))
        elif kind in ("string", "translated_string"):
            yield from self._string(node)
        elif kind == "concatenation" or any(
            child.type in _SUBSTITUTIONS for child in node.children
        ):
            yield from self._pieces_between(node.children, node.start_byte, node.end_byte)
        else:
            yield _Piece(_unescaped(text))

    def _string(self, node: Node) -> Iterator[_Piece]:
        """Yields the parts of a text in double quotes, none of which is split at spaces."""
        if node.type == "translated_string":  # $"text", of which the last child is "text"
            node = node.children[-1]
        # The nodes and bytes between the two quotes.
        for piece in self._pieces_between(
            node.children[1:-1], node.start_byte + 1, node.end_byte - 1, escapes='$`"\\'
        ):
            yield _Piece(piece.text)

    def _pieces_between(
        self, nodes: list[Node], start: int, end: int, escapes: str | None = None
    ) -> Iterator[_Piece]:
        """Yields the parts of the text between two byte offsets, of which `nodes` are the
        variables and quotes; the grammar has no nodes for spaces between them. `escapes` are the
        characters that a backslash quotes there; None means any."""
        position = start
        for node in nodes:
            # Inside double quotes, where `escapes` is given, other quotes are plain characters.
            is_special = node.type in _SUBSTITUTIONS or (
                escapes is None and (node.child_count > 0 or node.type in _QUOTED)
            )
            if not is_special or node.start_byte < position:
                continue
            if node.start_byte > position:
                yield _Piece(_unescaped(self.tree.between(position, node.start_byte), escapes))
            yield from self._pieces(node)
            position = node.end_byte
        if position < end:
            yield _Piece(_unescaped(self.tree.between(position, end), escapes))

    # -- variables

    def _value_of(self, name: str) -> Value | None:
        """Returns the value of a variable; None where it has none. Doubts and defaults of the
        value become those of the words being expanded."""
        value = self.variables.values.get(name)
        if value is not None:
            # Refuses texts whose variables grow without end, as X=$X$X does in a loop.
            self.budget.spend(sum(len(word) + 1 for word in value.words))
            self.doubts.update(dict.fromkeys(value.doubts))
            self.defaults.update(dict.fromkeys(value.defaults))
        return value

    def _substituted(self, node: Node, text: str) -> str:
        """Returns what a variable, an arithmetic expression or a command in $( ) is replaced by:
        "16" for $((8 * 2)). Where that is not known it stays as written. `text` is the node
        without the spaces in front that the grammar may count to it."""
        # Behind the := of ${…} the grammar takes a sum for a command in brackets.
        is_sum = text.startswith("$((") and text.endswith("))")
        if node.type == "arithmetic_expansion" or is_sum:
            expression = text[3:-2] if is_sum else text[2:-1]  # else $[8 * 2], the old form
            return self.arithmetic_value(expression) or f"$(({self._with_numbers(expression)}))"
        if node.type == "command_substitution":
            # $(command), or `command` in backquotes.
            output = self.output(text[2:-1] if text[0] == "$" else text[1:-1])
            return text if output is None else output.rstrip("\n")
        if node.type == "simple_expansion":
            name = text[1:]
            value = self._value_of(name)
            return value.first if value is not None else f"${name}"
        value_in_braces = self._value_in_braces(node)
        return text if value_in_braces is None else value_in_braces

    def _value_in_braces(self, node: Node) -> str | None:
        """Returns the value of ${NAME}, ${NAME[2]}, ${#NAME}, ${!NAME} or ${NAME:-default}, or
        "$NAME" where nothing sets it; None where what is done to it is not known."""
        target = next((child for child in node.children if child.type in _NAMES), None)
        if target is None:
            return None
        index = None
        if target.type == "subscript":
            # The 2 of NAME[2].
            index = self._expanded_index(self.tree.text(target).partition("[")[2].rstrip("]"))
            target = target.children[0]
        name = self.tree.text(target)
        operators = [
            child for child in node.children if not child.is_named and child.type not in ("${", "}")
        ]
        # "#" or "!" in front of the name, and ":-", "%" and the like behind it.
        before = [operator for operator in operators if operator.start_byte < target.start_byte]
        behind = [operator for operator in operators if operator.start_byte > target.start_byte]
        value = self._value_of(name)
        text = None if value is None else value.element(index)
        if before:
            return self._length_or_target(before[0].type, value, index)
        if text is None and index is not None and "$" in index:
            return index  # its variable is what has to be known first
        if not behind:
            return f"${name}" if text is None else text
        return self._with_operator(name, text, behind, node)

    def _expanded_index(self, text: str) -> str:
        """Returns the index or key of an array's element with variables replaced: "3" for I+1
        where I is 2."""
        if text in ("@", "*"):
            return text

        def value_or_reference(match: re.Match[str]) -> str:
            value = self._value_of(match[1])
            return f"${match[1]}" if value is None else value.first

        number = self.arithmetic_value(text)
        if number is not None:
            return number
        # A key of an associative array, which may stand in quotes.
        return re.sub(r"\$\{?(\w+)\}?", value_or_reference, text.strip("'\""), flags=re.ASCII)

    def _length_or_target(
        self, operator: str, value: Value | None, index: str | None
    ) -> str | None:
        """Returns the length for ${#X} (`operator` "#"), or the value of the variable that X
        names for ${!X}; None where that is not known."""
        if value is None or (operator == "!" and index is not None):
            return None  # ${!X[@]} asks for the indices of an array, which are not kept
        if operator == "!":
            target = self._value_of(value.text)
            return None if target is None else target.text
        # ${#X[@]} counts the elements of an array; ${#X} and ${#X[2]} count characters.
        return str(len(value.words) if index in ("@", "*") else len(value.element(index) or ""))

    def _with_operator(
        self, name: str, text: str | None, behind: list[Node], node: Node
    ) -> str | None:
        """Returns the value of ${NAME…} with operators behind the name, such as :-, %% or //.
        `text` is the variable's value, None where it has none. Returns None where what the
        operator does to the value is not known."""
        operator = behind[0].type
        end = node.end_byte - 1  # in front of the closing brace
        # argument(end) is the text from behind the first operator up to `end`, variables replaced.
        argument = partial(self._argument, node.children, behind[0].end_byte)
        if operator in _ALTERNATIVES:  # ${NAME:+words}
            return argument(end) if _is_set(text, operator) else ""
        if operator in _DEFAULTS:  # ${NAME:-words}
            if text is not None and _is_set(text, operator):
                return text
            if not self.takes_defaults and text is None:
                return f"${name}"  # the name alone, which marks an unknown value
            return self._default(name, argument(end), assigns=operator.endswith("="))
        if text is None:
            if operator in _DEMANDS:  # ${NAME:?words}
                reason = "the script stops unless it is set where it runs"
                self.variables.values[name] = Value((f"${name}",), reason=reason)
            return f"${name}"
        # A $ marks an unknown part of the value: nothing can be cut from it or replaced in it.
        # ${NAME:?words} leaves a value as it is.
        if "$" in text or operator in _DEMANDS:
            return text
        self.budget.spend(len(text))
        if operator in _CUTS:  # ${NAME%pattern}
            self.budget.spend(patterns.MAX_CHARACTERS)  # a slow pattern takes as long as so many
            return patterns.cut(text, argument(end), operator)
        if operator in _REPLACES:  # ${NAME/pattern/words}
            if len(behind) == 1:  # ${NAME/pattern}, which removes what matches
                return patterns.replaced(text, argument(end), "", operator)
            pattern = argument(behind[1].start_byte)
            instead = self._argument(node.children, behind[1].end_byte, end)
            return patterns.replaced(text, pattern, instead, operator)
        if operator == ":":  # ${NAME:2:3}
            return _substring(text, argument(end))
        return _CASES[operator](text) if operator in _CASES else None

    def _argument(self, nodes: list[Node], start: int, end: int) -> str:
        """Returns the text between two byte offsets, behind an operator, with variables
        replaced."""
        return "".join(piece.text for piece in self._pieces_between(nodes, start, end))

    def _default(self, name: str, default: str, *, assigns: bool) -> str:
        """Returns the default of a variable, such as 4 of ${TP:-4}, and notes that it was used.
        With `assigns`, as in ${TP:=4}, the variable keeps it."""
        if name.isidentifier():  # an argument, as in ${1:-4}, is not noted
            note = f"{name}={default}"
            self.defaults[note] = None
            if assigns:
                self.variables.values[name] = Value((default,), defaults=(note,))
        return default

    def arithmetic_value(self, expression: str) -> str | None:
        """Returns the value of an arithmetic expression of whole numbers, as text; None where
        part of it is not known."""
        number = value_of(self._with_numbers(expression))
        return None if number is None else str(number)

    def _with_numbers(self, expression: str) -> str:
        """Returns an arithmetic expression with known variables replaced by their numbers:
        "8*GPUS" for NODES*GPUS, where only NODES is known, as 8."""

        def number_or_name(match: re.Match[str]) -> str:
            value = self._value_of(match[1])
            text = value.first if value is not None else ""
            if re.fullmatch(r"-?\d{1,12}", text):
                return text
            # In place of a sum that is not known, its expression is put in: the error then names
            # the unknown variables, whose values can be sent.
            unknown_sum = re.fullmatch(rf"\$\(\((.{{1,{_LONGEST_SUM}}})\)\)", text)
            return f"({unknown_sum[1]})" if unknown_sum else match[1]

        # First ${NODES} becomes NODES, and ${NODES:-8} the 8 where nothing sets NODES.
        without_braces = re.sub(r"\$\{(\w+)(?::?-(\d+))?\}", self._name_or_default, expression)
        return _IN_SUM.sub(number_or_name, without_braces)

    def _name_or_default(self, match: re.Match[str]) -> str:
        """Returns the name in ${NAME}, which stands in arithmetic without its $; or 8 for
        ${NAME:-8} where nothing sets NAME."""
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

    def without_backslash(match: re.Match[str]) -> str:
        char = match[1]
        if char == "\n":
            return ""
        return char if escapes is None or char in escapes else match[0]

    return re.sub(r"\\(.)", without_backslash, text, flags=re.DOTALL)


def _split(text: str) -> list[str]:
    """Returns a text split at spaces. A command in $( ) whose output is not known stays in one
    piece."""
    if "$(" not in text and "`" not in text:
        return re.split(r"\s+", text)
    parts = [""]
    for piece in _UNKNOWN_OUTPUT.split(text):  # whose group keeps the commands among the pieces
        if _UNKNOWN_OUTPUT.fullmatch(piece):
            parts[-1] += piece
        else:
            first, *others = re.split(r"\s+", piece)
            parts[-1] += first
            parts += others
    return parts


def _is_set(text: str | None, operator: str) -> bool:
    """Returns True where a variable has a value. Operators with a colon, such as :-, count an
    empty one as unset."""
    return bool(text) if operator[0] == ":" else text is not None


def _substring(text: str, bounds: str) -> str | None:
    """Returns a part of a text, as ${NAME:2:3} does by the bounds "2:3"; None where the bounds
    are not known."""
    start, _, length = bounds.partition(":")
    # As in a shell, a missing length means all, and a negative one counts from the end.
    begin = value_of(start.strip() or "0")
    count = value_of(length.strip() or str(len(text)))
    if begin is None or count is None:
        return None
    part = text[begin:]
    return part[:count] if count >= 0 else part[: len(part) + count]
