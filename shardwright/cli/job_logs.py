"""The log of a run as it is sent: with its secrets masked, and without its middle where it is
long."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from shardwright.cli.job_files import UnreadableFile, file_words
from shardwright.secrets import mask_secrets

_HEAD_BYTES = 2**20  # has the arguments of the run
_TAIL_BYTES = 7 * 2**20  # with the head half of what a request may have, as JSON may double it


def log_of(name: str) -> str:
    """Returns the text of a run's log, with its secrets masked. `name` is a path, or "-" for
    standard input. Raises UnreadableFile."""
    if name == "-":
        text = _head_and_tail(sys.stdin.buffer)
    else:
        try:
            with Path(name).open("rb") as file:
                text = _head_and_tail(file)
        except OSError as error:
            raise UnreadableFile(f"{name} cannot be read: {error.strerror}") from None
    if not text:
        raise UnreadableFile(f"{file_words(name)} is empty: give the log of the run")
    return text


def _head_and_tail(file: BinaryIO) -> str:
    """Returns a log without its middle where it is long. NUL characters, which crashed nodes leave,
    are removed: a request may not have any."""
    head = file.read(_HEAD_BYTES)
    if file.seekable():
        size = file.seek(0, os.SEEK_END)
        file.seek(max(len(head), size - _TAIL_BYTES))
        is_cut = file.tell() > len(head)
        tail = file.read()
    else:
        rest = file.read()
        tail = rest[-_TAIL_BYTES:]
        is_cut = len(tail) < len(rest)
    parts = [part.decode(errors="replace").replace("\0", "") for part in (head, tail)]
    return mask_secrets(("\n" if is_cut else "").join(parts))
