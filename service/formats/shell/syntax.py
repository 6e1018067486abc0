"""Texts of the shell as syntax trees, by the grammar of tree-sitter-bash."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from models.errors import Invalid
from service.formats.shell.faults import PATH, shortened

_LANGUAGE = Language(tree_sitter_bash.language())
MAX_CHARACTERS = 2**18
"""Of one text. A launch and its files have fewer; what variables make of them may have more."""
_MOST_BARS = 1500
"""Bars in one text: where a text has an error the parser takes memory by the square of a pipeline,
50 MiB for so many."""
_MOST_SECONDS = 0.5
"""Of the processor for one text. A script of 64 KiB takes a tenth of it; texts that are made to
take longer take minutes."""
_PLAIN = 2**13
"""Bytes of a text that is parsed without a look at the clock: the worst takes 0.4 s. The binding
never gives back what it was handed in chunks (tree-sitter 0.26.1 keeps twice the text)."""
_CHUNK = 4096
"""Bytes that the parser asks for at a time; between two it can be stopped."""
_ENDS_CONTINUED = re.compile(r"\\[ \t]*\n?[ \t\n]*\Z")
"""A last line that goes on in one that is not there, which the grammar does not have."""
_OPENERS = ("'", '"', "`", "$(", "${", "(", "{")
_CLOSERS = {")": "(", "}": "{", "`": "`", '"': '"', "'": "'", "))": "(("}


@dataclass(frozen=True, slots=True)
class Tree:
    """The syntax tree of a text."""

    root: Node
    data: bytes

    def text(self, node: Node) -> str:
        """Returns a node as it is written."""
        return self.data[node.start_byte : node.end_byte].decode(errors="replace")

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode(errors="replace")


def parse(text: str) -> Tree:
    """Returns the tree of a text. Raises Invalid where a quote or a bracket is not closed.

    Other faults stay in the tree as errors: the grammar knows less than a shell does.
    """
    if len(text) > MAX_CHARACTERS:
        rule = f"has {len(text)} characters with its variables put in; {MAX_CHARACTERS} at most"
        raise Invalid(PATH, None, rule)
    # Lines that end as on Windows do so between quotes too, where no setting has such an end.
    data = _ENDS_CONTINUED.sub("\n", text.replace("\r\n", "\n").replace("\0", "")).encode()
    tree = Tree(_root(data), data)
    if tree.root.has_error:
        _require_closed(tree)
    return tree


def _root(data: bytes) -> Node:
    """Returns the root of the tree. Raises Invalid for a text that would take too long."""
    until = time.thread_time() + _MOST_SECONDS
    try:
        if data.count(b"|") > _MOST_BARS:
            raise ValueError
        parser = Parser(_LANGUAGE)
        if len(data) <= _PLAIN:
            return parser.parse(data).root_node
        return parser.parse(
            lambda at, _: data[at : at + _CHUNK],
            progress_callback=lambda *_: time.thread_time() > until,
        ).root_node
    except ValueError:
        rule = "is not written as a shell would read it: send the lines that start the training"
        raise Invalid(PATH, shortened(data.decode(errors="replace")), rule) from None


def line_of(node: Node) -> int:
    return node.start_point[0] + 1


def _require_closed(tree: Tree) -> None:
    for node in _errors(tree.root):
        opened = _opened(tree, node)
        if opened is not None:
            rule = (
                f"has a {opened} that is not closed in line {line_of(node)}: quote it, or close it"
            )
            raise Invalid(PATH, shortened(tree.data.decode(errors="replace")), rule)


def _errors(root: Node) -> Iterator[Node]:
    """Yields the erroneous nodes, outermost first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        waiting += [
            child for child in reversed(node.children) if child.has_error or child.is_missing
        ]


def _opened(tree: Tree, node: Node) -> str | None:
    """Returns the quote or bracket that an error leaves open; None where it is another error."""
    if node.is_missing:
        return _CLOSERS.get(node.type)
    text = tree.text(node).lstrip()
    begins = next((opener for opener in _OPENERS if text.startswith(opener)), None)
    if begins in ("'", '"', "`") and text.count(begins) % 2:
        return begins
    return None
