"""Decides the tests [ ], [[ ]] and (( )) of a launch script (the *text*), which is not run: true,
false, or not decided.

A test is not decided where it depends on a variable that the text does not set, on a file that was
not sent, or on an assignment that may not have run (a *doubt*).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from service.formats.shell.expansion import Expansion
from service.formats.shell.faults import undefined_variables
from service.formats.shell.patterns import matches

Truth = bool | None
"""True, false, or not decided."""
_OPERATOR_NODES = ("test_operator", "!", "(", ")", "=", "==", "!=", "<", ">", "=~", "&&", "||")
_INNER = ("binary_expression", "unary_expression", "parenthesized_expression", "negated_command")
_FILE_TESTS = set("abcdefghLkpNOGrRsStTuwx")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_BINARY = {*_NUMBERS, "=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef"}
_WHOLE = re.compile(r"\s*[-+]?\d{1,12}\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_operator: bool = False
    is_quoted: bool = False


def condition(expansion: Expansion, node: Node, has_file: Callable[[str], bool]) -> Truth:
    """Returns whether a test, such as [ "$A" = b ] or (( N > 1 )), is true; None where the text
    does not decide it, as with a value that is in doubt. `has_file` says which files exist."""
    opener = node.children[0].type
    if opener == "((":
        value = expansion.arithmetic_value(expansion.tree.text(node)[2:-2])
        truth = None if value is None else value != "0"
    else:
        tokens = [token for child in node.children[1:-1] for token in _tokens(expansion, child)]
        truth = _Parsing(tokens, has_file, is_double=opener == "[[").parsed()
    return None if expansion.doubts else truth


def condition_of_words(words: list[str], has_file: Callable[[str], bool]) -> Truth:
    """Returns whether the command `test` with these words is true; None where that is not known."""
    signs = {*_BINARY, "!", "(", ")", "-a", "-o"}
    tokens = [
        _Token(word, is_operator=word in signs or bool(re.fullmatch(r"-[a-zA-Z]", word)))
        for word in words
    ]
    return _Parsing(tokens, has_file, is_double=False).parsed()


def _tokens(expansion: Expansion, node: Node) -> list[_Token]:
    """Returns the operators and the words of a test, with variables replaced by their values."""
    if node.type in _INNER:
        return [token for child in node.children for token in _tokens(expansion, child)]
    if node.type in _OPERATOR_NODES:
        return [_Token(expansion.tree.text(node), is_operator=True)]
    return [_Token(expansion.text(node), is_quoted=node.type in ("string", "raw_string"))]


def _negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _either(left: Truth, right: Truth) -> Truth:
    """Returns the truth of "left or right". One true part decides it, whatever is unknown."""
    if left or right:
        return True
    return None if None in (left, right) else False


class _Parsing:
    """Goes through the tokens of a test: or, and, not, and the single comparisons."""

    def __init__(
        self, tokens: list[_Token], has_file: Callable[[str], bool], *, is_double: bool
    ) -> None:
        self.tokens = tokens
        self.has_file = has_file
        self.is_double = is_double  # of [[ ]], in which = compares with a pattern
        self.position = 0

    def parsed(self) -> Truth:
        """Returns the truth of the whole test; None where it has more than this class reads."""
        truth = self._or()
        return truth if self.position == len(self.tokens) else None

    def _accepts(self, *operators: str) -> bool:
        """Returns True, and moves past it, where the next token is one of these operators."""
        is_next = self.position < len(self.tokens) and self.tokens[self.position].is_operator
        if is_next and self.tokens[self.position].text in operators:
            self.position += 1
            return True
        return False

    def _or(self) -> Truth:
        """Returns the truth of `A || B || …` or `A -o B`. One true part decides it, whatever is
        unknown."""
        truth = self._and()
        while self._accepts("||", "-o"):
            truth = _either(truth, self._and())
        return truth

    def _and(self) -> Truth:
        """Returns the truth of `A && B && …` or `A -a B`. One false part decides it, whatever is
        unknown."""
        truth = self._not()
        while self._accepts("&&", "-a"):
            # A and B is not (not A or not B).
            truth = _negated(_either(_negated(truth), _negated(self._not())))
        return truth

    def _not(self) -> Truth:
        """Returns the truth of `! A`, of a group in brackets, or of a single test."""
        if self._accepts("!"):
            return _negated(self._not())
        if self._accepts("("):
            truth = self._or()
            self._accepts(")")
            return truth
        return self._single()

    def _single(self) -> Truth:
        """Returns the truth of one test: -f FILE, LEFT = RIGHT, or a word, which is true unless
        it is empty."""
        first = self._next()
        if first is None:
            return None
        if first.is_operator:
            operand = self._next()
            return None if operand is None else self._unary(first.text, operand.text)
        following = self.tokens[self.position : self.position + 2]
        if len(following) == 2 and following[0].text in _BINARY:
            self.position += 2
            return self._binary(first, following[0].text, following[1])
        return None if undefined_variables(first.text) else bool(first.text)

    def _next(self) -> _Token | None:
        """Returns the next token and moves past it; None at the end."""
        if self.position >= len(self.tokens):
            return None
        self.position += 1
        return self.tokens[self.position - 1]

    def _unary(self, operator: str, text: str) -> Truth:
        """Returns the truth of `-z text`, `-n text` or a test of a file; None where that is not
        known, such as for a file that was not sent."""
        if undefined_variables(text):
            # A variable that the text does not set may be set where the job runs.
            return None
        if operator in ("-n", "-z"):
            return bool(text) == (operator == "-n")  # -n is true for a text, -z for none
        if operator[1:] in _FILE_TESTS:
            # A file that was not sent may exist where the job runs.
            return True if operator in ("-e", "-f", "-s") and self.has_file(text) else None
        return None

    def _binary(self, left: _Token, operator: str, right: _Token) -> Truth:
        """Returns the truth of LEFT operator RIGHT; None where a side is not known, or no number
        where the operator compares numbers."""
        if undefined_variables(left.text) or undefined_variables(right.text):
            return None
        if operator in _NUMBERS:
            if not _WHOLE.fullmatch(left.text) or not _WHOLE.fullmatch(right.text):
                return None
            return _NUMBERS[operator](int(left.text), int(right.text))
        if operator not in ("=", "==", "!="):
            return None  # <, >, =~ and tests of two files are left undecided
        # [[ ]] takes the right side for a pattern unless it is quoted; [ ] never does.
        is_pattern = self.is_double and not right.is_quoted
        is_same = matches(left.text, right.text) if is_pattern else left.text == right.text
        if is_same is None:
            return None
        return not is_same if operator == "!=" else is_same
