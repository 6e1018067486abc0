"""Commands of a launch script that change files in place, such as `sed -i`. They are not run, so
that what stands in such a file afterwards is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from service.formats.shell.programs import base_name, is_python

_IN_PLACE = {
    "sed": re.compile(r"-[A-Za-z]{0,9}i|--in-place"),
    "perl": re.compile(r"-[acnpsStTuUwWX\d]{0,9}i"),  # no -M or -I, which have names behind them
    "yq": re.compile(r"-[A-Za-z]{0,9}i$|--inplace$"),
    "tomlq": re.compile(r"-[A-Za-z]{0,9}i$|--in-place$"),
    "crudini": re.compile(r"--(?:set|del|merge)$"),
}
"""By editor, the beginning of the option with which it writes into the files that it reads."""
_WRITES = re.compile(r"\.write(?:_text|lines)?\(|\bdump\(|\bfileinput\b")
_LITERAL = re.compile(r"""["']([^"'\s]{1,200})["']""")


def edited_words(words: Sequence[str], text: str | None) -> Iterator[str]:
    """Yields the words of a command that may name files which it changes in place, none for a
    command that changes none. `text` is the input of the command, such as a heredoc. Of a Python
    program in it, or behind -c, the quoted words are yielded if it writes anything."""
    option = _IN_PLACE.get(base_name(words[0]))
    if option is not None and any(map(option.match, words[1:])):
        yield from words[1:]
    elif is_python(words[0]):
        code = words[2] if len(words) > 2 and words[1] == "-c" else text
        if code is not None and _WRITES.search(code):
            yield from _LITERAL.findall(code)
