"""Commands of a launch script that change files in place, such as `sed -i`. They are not run, so
that what stands in such a file afterwards is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from service.formats.shell.programs import base_name

_IN_PLACE = {
    "sed": re.compile(r"-[A-Za-z]*i.*|--in-place.*"),
    "perl": re.compile(r"-[A-Za-z]*i.*"),
    "yq": re.compile(r"-[A-Za-z]*i|--inplace"),
    "tomlq": re.compile(r"-[A-Za-z]*i|--in-place"),
    "crudini": re.compile(r"--set|--del|--merge"),
}
"""By editor, the option with which it writes into the files that it reads."""
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_WRITES = re.compile(r"\.write(?:_text|lines)?\(|\bdump\(|\bfileinput\b")
_LITERAL = re.compile(r"""["']([^"'\s]{1,200})["']""")


def edited_words(words: Sequence[str], text: str | None) -> Iterator[str]:
    """Yields the words of a command that may name files which it changes in place, none for a
    command that changes none. `text` is the input of the command, such as a heredoc. Of a Python
    program in it, or behind -c, the quoted words are yielded if it writes anything."""
    editor = base_name(words[0])
    option = _IN_PLACE.get(editor)
    if option is not None and any(option.fullmatch(word) for word in words[1:]):
        yield from words[1:]
    elif _PYTHON.fullmatch(editor):
        code = words[2] if words[1:2] == ("-c",) and len(words) > 2 else text
        if code is not None and _WRITES.search(code):
            yield from _LITERAL.findall(code)
