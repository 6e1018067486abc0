"""A log as numbered lines, whatever wrapped them: colours are removed, and the updates of a
progress bar are taken apart.

Dialects match only a limited number of characters around the mark that they look for, so that a
line of many megabytes costs no more than its length. A *mark* is plain text, such as "step:", that
each line of a kind contains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count, pairwise

from shardwright.secrets import mask_secrets

NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:e[-+]?\d{1,4})?|[-+]?(?:nan|inf(?:inity)?)"
"""For a regular expression that ignores case."""

_REACH = 4000  # characters before and after a mark
_LABEL_REACH = 300  # at the start of a line
_TIMESTAMP_REACH = 80  # at the start of a line, behind a level and the name of a logger
_COLOUR = re.compile(r"(?:\x1b|\\u001b)\[[0-9;?]{0,32}[ -/]{0,4}[@-~]")
_RANK = re.compile(
    r"\[(?:rank|default|pod/)[^\]\s]{0,120}\]|^\s{0,20}\d{1,6}:(?=\s)"
    r"|\[[^\]\s<]{0,80}\d{1,6},\d{1,6}\](?:<std(?:out|err)>)?:"
)
"""The rank that torchrun, kubectl, srun or mpirun puts before a line."""
_TIME_OF_DAY = r"[ T](\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?(Z|[-+]\d\d:?\d\d)?(?![\d:])"
_YEAR_FIRST = re.compile(rf"\b(\d{{4}})([-/]?)(\d\d)\2(\d\d){_TIME_OF_DAY}")
_MONTH_FIRST = re.compile(rf"\b(\d\d)/(\d\d)/(\d{{4}}){_TIME_OF_DAY}")
"""Dates as the examples of transformers and LLaMA-Factory print them (datefmt="%m/%d/%Y
%H:%M:%S")."""
_BINARY_CHARACTERS = frozenset(
    "\0\x01\x02\x03\x04\x05\x06\x0e\x0f\x10\x11\x12\x14\x15\x16\x17\x18\x19\ufffd"
)
MAX_LINE_CHARACTERS = 1 << 16
"""Characters of a line that are read. Dozens of patterns are sought in all of a log, and a line of
megabytes has nothing more for them: the longest lines of real logs, dumps of a configuration, have
a tenth of this."""
_SAMPLE_CHARACTERS = 1 << 20
"""Shows whether a terminal wrapped the log, without a pass over all of it."""
_TERMINAL_COLUMNS = range(40, 401)  # narrower lines are lists, wider ones no terminal's
_TRIMMED_SPACES = 8
"""At most so many spaces at the end of a terminal's line are lost when it is copied."""
_MOST_PIECES = 40
"""Pieces into which a terminal wraps a line, at most."""
_RECORD_START = re.compile(
    r"\s{0,20}(?:\[|\d{1,6}:\s|[\d/-]{8,10}[ T]\d\d:|iteration\s|(?:validate )?step:\s"
    r"|completed step|samples/sec|-{4}|Traceback|[A-Za-z_]\w{0,99} \.{1,60} "
    r"|[A-Za-z_.]{1,60}(?:Error|Exception):)"
)
"""The start of a line that no terminal has wrapped."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that looks like a step and could not be read."""

    line: int
    text: str
    reason: str

    @classmethod
    def of(cls, line: Line, reason: str) -> Unread:
        """Returns the note on a line that could not be read, shortened and without secrets."""
        return cls(line.number, printable(mask_secrets(line.text[:_REACH])[:200]), reason)


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """From 1."""
    text: str

    @property
    def label(self) -> str:
        """Returns the name of the rank or pod at the start of the line; "" where it has none."""
        match = _RANK.search(self.text[:_LABEL_REACH])
        return match.group() if match else ""

    def around(self, mark: str) -> Iterator[tuple[str, str]]:
        """Yields, for each `mark` in the line, the text between the previous mark and it, and
        the text between it and the next one. Both are cut to a fixed length."""
        parts = self.text.split(mark)
        for before, after in pairwise(parts):
            yield before[-_REACH:], after[:_REACH]


def cut_lines(text: str) -> tuple[str, int]:
    """Returns the text with its lines cut to MAX_LINE_CHARACTERS, and the number of lines that
    were longer. Updates of a progress bar, which carriage returns divide, count as lines. Longer
    lines would take long to search, and tell nothing more."""
    if len(text) <= MAX_LINE_CHARACTERS:
        return text, 0
    cut = 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if len(line) > MAX_LINE_CHARACTERS:
            updates = line.split("\r")
            cut += sum(len(update) > MAX_LINE_CHARACTERS for update in updates)
            lines[number] = "\r".join(update[:MAX_LINE_CHARACTERS] for update in updates)
    return ("\n".join(lines), cut) if cut else (text, 0)


class Log:
    def __init__(self, text: str) -> None:
        # Colours begin with an escape character, or with its code where a log is inside of JSON.
        self.text = _COLOUR.sub("", text) if "\x1b" in text or "\\u001b" in text else text
        """The whole log, without colours."""
        self._lines = self.text.split("\n")
        self._first_pieces: list[int] | None = None
        """The number in the file of the first piece of each line; None where no line is joined."""

    def unwrapped(self, *, every_full_line: bool = False) -> Log | None:
        """Returns the log with lines joined again that a terminal wrapped at its width; None where
        no line looks wrapped.

        The longest line of a log copied from a terminal is as long as the terminal is wide. A
        line of that length is joined to the next one, unless the next begins like a new record.
        With `every_full_line` it is joined even then.
        """
        width = max(len(line.rstrip("\r")) for line in self._lines)
        if width not in _TERMINAL_COLUMNS:
            return None
        joined: list[str] = []
        first_pieces: list[int] = []  # the number in the file where each joined line begins
        pieces = 1
        last_piece = 0
        for number, raw in enumerate(self._lines, 1):
            line = raw.rstrip("\r")
            # The line before reaches the terminal's width, so that this one may be its rest.
            is_full = last_piece >= width - _TRIMMED_SPACES
            if not every_full_line:
                is_full = is_full and not _RECORD_START.match(line)
            if is_full and line and pieces < _MOST_PIECES:
                # The spaces at the end of the piece, which were lost when it was copied.
                joined[-1] += " " * (width - last_piece) + line
                pieces += 1
            else:
                joined.append(line)
                first_pieces.append(number)
                pieces = 1
            last_piece = len(line)
        if len(joined) == len(self._lines):
            return None
        log = Log("\n".join(joined))
        log._first_pieces = first_pieces
        return log

    def _numbered_lines(self) -> Iterator[tuple[int, str]]:
        """Yields the lines with their numbers. A joined line has the number of its first piece."""
        return zip(self._first_pieces or count(1), self._lines, strict=False)

    def lines(self, *marks: str) -> Iterator[Line]:
        """Yields the lines that contain one of the marks. Updates of a progress bar are lines of
        their own."""
        if not any(mark in self.text for mark in marks):
            return
        for number, line in self._numbered_lines():
            if any(mark in line for mark in marks):
                yield from (
                    Line(number, part)
                    for part in line.split("\r")
                    if any(mark in part for mark in marks)
                )

    def around(self, mark: str) -> Iterator[tuple[Line, str, str]]:
        """Yields each occurrence of `mark` in the log: its line, the text before it and the text
        after it, both within the line and cut to a fixed length."""
        for line in self.lines(mark):
            for before, after in line.around(mark):
                yield line, before, after

    def section(self, first: str, last: str) -> Iterator[Line]:
        """Yields the lines from behind each line that contains `first` up to the next one that
        contains `last`, or to the end."""
        if first not in self.text:
            return
        inside = False
        for number, line in self._numbered_lines():
            if last in line or first in line:  # a ruler, which is itself not part of a section
                inside = last not in line
            elif inside:
                yield Line(number, line.rstrip("\r"))

    @property
    def timestamp(self) -> datetime | None:
        """Returns the log's last timestamp at the start of a line, or behind a logger's level
        and name there; None where there is none."""
        for line in reversed(self._lines):
            if timestamp := parse_timestamp(line[:_TIMESTAMP_REACH]):
                return timestamp
        return None

    @property
    def is_text(self) -> bool:
        """Returns False for binary data, by a sample of the beginning."""
        # A twentieth: damaged logs have a few such characters, binary data has far more.
        sample = self.text[:_SAMPLE_CHARACTERS]
        return sum(map(sample.count, _BINARY_CHARACTERS)) <= len(sample) / 20

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def parse_timestamp(text: str) -> datetime | None:
    """Returns the last date with a time of day in a text, to the second, with its time zone
    where it has one: 2024-05-01 12:34:56 of "[2024-05-01 12:34:56,789] step 7". None where there
    is none."""
    # 2024-05-01 12:34:56 or 2024/05/01 12:34:56; in a text without these also 05/01/2024 12:34:56.
    timestamps = [
        f"{match[1]}-{match[3]}-{match[4]}T{match[5]}{match[6] or ''}"
        for match in _YEAR_FIRST.finditer(text)
    ]
    if not timestamps and "/" in text:
        timestamps = [
            f"{match[3]}-{match[1]}-{match[2]}T{match[4]}{match[5] or ''}"
            for match in _MONTH_FIRST.finditer(text)
        ]
    for printed in reversed(timestamps):
        try:
            return datetime.fromisoformat(printed)
        except ValueError:
            continue
    return None


def is_finite(loss: re.Match[str] | None) -> bool:
    """Returns True unless the loss in a match's first group is NaN or infinite. A loss that is
    not printed counts as finite."""
    return loss is None or math.isfinite(float(loss[1]))


def positive_number(match: re.Match[str] | None) -> float | None:
    """Returns the number in a match's first group; None without a match, and where it is not
    positive and finite."""
    value = float(match.group(1)) if match else 0.0
    return value if 0 < value < math.inf else None


def is_printed_in_full(text: str, after: str) -> bool:
    """Returns True where the end of a log cannot have cut off digits in front of the decimal
    point of a printed number, `text`: it has decimals, text follows it, or it is nan or inf."""
    # 532 at the very end of a log may be the beginning of 5321.0.
    return "." in text.rstrip(".") or bool(after) or not text[-1].isdigit()


def printable(text: str) -> str:
    """Returns a text with control characters replaced."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
