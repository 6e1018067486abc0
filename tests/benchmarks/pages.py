"""Tables in docs/ that a benchmark writes: no figure of them is typed in by hand.

A page holds its place as `<!-- begin: NAME -->` and `<!-- end: NAME -->`, each on a line of its
own; what a command writes goes between the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.paths import ROOT


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def write_between_markers(page: str, name: str, text: str, command: str) -> None:
    """Puts `text` between the markers of `name` in docs/`page`, with the command and the day.

    Raises SystemExit where the page has no such markers.
    """
    path = ROOT / "docs" / page
    stamp = f"_Written by `{command}` on {datetime.now(UTC):%Y-%m-%d}._"
    path.write_text(between_markers(path, name, f"{stamp}\n\n{text}"))


def between_markers(path: Path, name: str, text: str) -> str:
    """The page at `path` with `text` between the markers of `name`."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    found = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    page, count = found.subn(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", path.read_text())
    if count != 1:
        raise SystemExit(f"{path}: has {begin} … {end} {count} times, must have it once")
    return page
