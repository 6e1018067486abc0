"""Parses launch scripts and command lines into syntax trees, by the grammar of tree-sitter-bash."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from service.formats.shell.faults import invalid_launch, shortened

_LANGUAGE = Language(tree_sitter_bash.language())
MAX_CHARACTERS = 2**18
"""Characters of one text. A launch and its files have fewer; what variables make of them may have
more."""
_MOST_BARS = 1500
"""Bars in one text: where a text has an error the parser takes memory by the square of a pipeline,
50 MiB for so many."""
_MOST_SECONDS = 0.5
"""Processor seconds for one text. A script of 64 KiB takes a tenth of it; texts that are made to
take longer take minutes."""
_CHUNK = 2**16
"""Bytes that the parser is handed at a time: nearly every text is one chunk, of which the binding
keeps some hundred bytes for good."""
_ENDS_CONTINUED = re.compile(r"\\[ \t]*\n?[ \t\n]*\Z")
"""A last line that goes on in one that is not there, which the grammar does not have."""
_QUOTES = ("'", '"', "`")
_OPENING_OF = {")": "(", "}": "{", "))": "((", "'": "'", '"': '"', "`": "`"}
"""The bracket or quote that each closing one belongs to."""


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
    """Returns the syntax tree of a shell text. Raises Invalid where a quote or bracket is not
    closed, or the text is too long.

    Other errors stay in the tree as error nodes, since the grammar does not cover all of a
    shell.
    """
    if len(text) > MAX_CHARACTERS:
        rule = f"has {len(text)} characters with its variables put in; {MAX_CHARACTERS} at most"
        raise invalid_launch(None, rule)
    # Line ends of Windows, \r\n, become \n even within quotes: no setting has a \r in its value.
    data = _ENDS_CONTINUED.sub("\n", text.replace("\r\n", "\n").replace("\0", "")).encode()
    tree = Tree(_root(data), data)
    if tree.root.has_error:
        _require_closed(tree)
    return tree


def _root(data: bytes) -> Node:
    """Returns the root of a text's syntax tree. Raises Invalid for a text that takes too long to
    parse."""
    until = time.thread_time() + _MOST_SECONDS
    try:
        if data.count(b"|") > _MOST_BARS:
            raise ValueError  # of a long pipeline, whose errors would take too much memory
        with _Chunks(data) as chunks:
            # The parser raises ValueError, too, where the callback stops it.
            tree = Parser(_LANGUAGE).parse(
                chunks.read, progress_callback=lambda *_: time.thread_time() > until
            )
            return tree.root_node
    except ValueError:
        rule = "is not written as a shell would read it: send the lines that start the training"
        raise invalid_launch(shortened(data.decode(errors="replace")), rule) from None


class _Chunks:
    """A text as the parser asks for it, a view of some bytes at a time. The binding never frees
    what it was handed (tree-sitter 0.26.1), so the views are released after parsing. Node.text
    calls `read` again later and crashes on a view, so that it then gets bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._views: list[memoryview] = []
        self._is_parsed = False

    def __enter__(self) -> _Chunks:
        return self

    def __exit__(self, *error: object) -> None:
        for view in self._views:
            view.release()
        self._is_parsed = True

    def read(self, offset: int, _: object) -> bytes | memoryview:
        """Returns the bytes from an offset on, one chunk at most."""
        if self._is_parsed:
            return self._data[offset : offset + _CHUNK]
        view = memoryview(self._data)[offset : offset + _CHUNK]
        self._views.append(view)
        return view


def line_of(node: Node) -> int:
    return node.start_point[0] + 1


def _require_closed(tree: Tree) -> None:
    """Raises Invalid at the first quote or bracket that is not closed."""
    for node in _errors(tree.root):
        opening = _unclosed(tree, node)
        if opening is not None:
            rule = (
                f"has a {opening} that is not closed in line {line_of(node)}: quote it, or close it"
            )
            raise invalid_launch(shortened(tree.data.decode(errors="replace")), rule)


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


def _unclosed(tree: Tree, error: Node) -> str | None:
    """Returns the quote or bracket that an error node leaves open; None for any other error.

    For a bracket the grammar inserts a missing node. For a quote it makes the quote and all
    behind it an error node.
    """
    if error.is_missing:
        return _OPENING_OF.get(error.type)
    text = tree.text(error).lstrip()
    quote = text[:1]
    return quote if quote in _QUOTES and text.count(quote) % 2 else None
