"""The script of a job and the files that it names, as they are sent: with their secrets masked."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from shardwright.secrets import mask_secrets

_FILE_NAME = re.compile(
    r"(?<![\w./~-])[\w./~-]*[\w-]\.(?:ya?ml|json|toml|sh|env|conf|cfg|py)\b", re.ASCII
)
"""A word that looks like the name of a file of settings or of a script. It is looked for where a
word begins, since a long one, such as data in base64, would else be read once for each letter."""
_MOST_CHARACTERS = 2**16  # of a script: what the service reads of a text
_MOST_FILES = 16  # of a job: script, settings, DeepSpeed document, model; recipes have a few more
_MOST_BYTES = _MOST_CHARACTERS  # of one file beside it
_SENT_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".env", ".conf", ".cfg")
"""The endings of files that are sent. What a program of Python does is not read of its text."""


class UnreadableFile(Exception):
    """A file that a command names cannot be read."""


def read_text(name: str) -> str:
    """Returns the text of a file, or of standard input for the name "-". Raises UnreadableFile."""
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnreadableFile(f"{name} cannot be read: {error.strerror}") from None


def file_words(name: str) -> str:
    """Returns the name by which a sentence calls a file."""
    return "standard input" if name == "-" else name


def script_of(name: str) -> str:
    """Returns the text of a job's script, with its secrets masked. `name` is a path, or "-" for
    standard input. Raises UnreadableFile where the text is no script."""
    text = read_text(name)
    place = file_words(name)
    if "\0" in text:
        raise UnreadableFile(f"{place} is no script but a binary file: it has NUL characters")
    if not text.strip():
        raise UnreadableFile(f"{place} is empty: give the script that launches the job")
    if len(text) > _MOST_CHARACTERS:
        raise UnreadableFile(
            f"{place} has {len(text):,} characters, and a script may have {_MOST_CHARACTERS:,}:"
            " give the part that launches the training"
        )
    return mask_secrets(text)


def files_beside(script: str, folder: Path) -> dict[str, str]:
    """Returns the text of the files that a script names, by the names that it gives them, with
    their secrets masked.

    Files that these name in turn are included. Files outside the folder are not: a script may name
    anything.
    """
    files: dict[str, str] = {}
    texts = [script]
    while texts and len(files) < _MOST_FILES:
        for name, path in _files_named_in(texts.pop(), folder):
            if name not in files and len(files) < _MOST_FILES:
                files[name] = mask_secrets(path.read_text(encoding="utf-8", errors="replace"))
                texts.append(files[name])
    return files


def _files_named_in(text: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the name and the path of each file that a text names and that may be sent."""
    inside = folder.resolve()
    for name in dict.fromkeys(_FILE_NAME.findall(text)):
        path = _beside(name, inside)
        if (
            path is not None
            and path.suffix in _SENT_SUFFIXES
            and path.stat().st_size <= _MOST_BYTES
        ):
            yield name, path


def _beside(name: str, folder: Path) -> Path | None:
    """Returns the file in the folder that a name stands for; None where there is none.
    "conf/a.yaml" is also found as "a.yaml", since a script may run in another folder."""
    steps = Path(name).parts
    for start in range(len(steps)):
        path = folder.joinpath(*steps[start:]).resolve()
        if path.is_relative_to(folder) and path.is_file():
            return path
    return None
