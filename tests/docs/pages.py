"""The pages of documentation: which there are, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

RUNNABLE = ("bash", "python")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- ([^\n]*?) -->\n+\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    `comment` is the text of the HTML comment directly above it, or empty. `start` and `end` delimit
    the text of the block within the page.
    """

    language: str
    text: str
    comment: str
    start: int
    end: int

    @property
    def is_example(self) -> bool:
        """Whether a reader would run it: bash or Python, unless a comment says why not."""
        return self.language in RUNNABLE and not self.comment.startswith("not run: ")

    @property
    def is_output(self) -> bool:
        """Whether it shows what the example above it prints."""
        return self.comment == "output"

    @property
    def is_refused(self) -> bool:
        """Whether the service answers the example with a problem, as the page explains."""
        return self.comment == "refused"


def pages() -> list[Path]:
    """Every page that a reader of the project may open."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def name_of(page: Path) -> str:
    """The path of a page from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for fence in _FENCE.finditer(text):
        above = _COMMENT.search(text, 0, fence.start())
        yield Block(
            language=fence[1],
            text=fence[2],
            comment=above[1] if above else "",
            start=fence.start(2),
            end=fence.end(2),
        )


def section(name: str) -> re.Pattern[str]:
    """What stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`."""
    return re.compile(rf"(?<=<!-- begin: {name} -->\n).*?(?=<!-- end: {name} -->)", re.DOTALL)
