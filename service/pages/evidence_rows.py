"""Published runs as rows of a table, out of the API's document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.spec import catalogue
from models.spec.hardware import Chip
from service.schemas.layout import LayoutFields

_ADDRESS = re.compile(r"https?://[^\s()]+")
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")
_PATH = r"[\w.+-]+(?:/[\w+][\w.+-]*)*/?"
_REPOSITORY = re.compile(rf"(?P<name>[\w.-]+/[\w.-]+)(?=$|[ ,])(?: (?P<path>{_PATH}) @)?")
_COMMIT = re.compile(r"@([0-9a-f]{7,40})\b")


class ScaleUp(NamedTuple):
    """Switched links within a scale-up domain."""

    domain: int
    """Chips."""
    gb_s: float
    """The bandwidth of one chip."""


def scale_up_of(chip: Chip) -> ScaleUp | None:
    """Returns the links of a chip within its usual scale-up domain; None where that is a torus."""
    levels = chip.fabric.levels
    if chip.fabric.torus is not None or not levels or levels[0].size is None:
        return None
    return ScaleUp(levels[0].size, levels[0].gb_s_per_chip)


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    run: Mapping[str, Any]
    """The run in the form of the API."""
    link: str | None
    layout: str | None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> EvidenceRow:
        return cls(run, source_link(run["source"]), LayoutFields.summary(run["layout"]))

    @property
    def chip(self) -> str:
        cluster = self.run["cluster"]
        return str(cluster.get("chip") or catalogue.fabric_chip(cluster["preset"]))

    @property
    def scale_up(self) -> ScaleUp | None:
        """The links within a scale-up domain: those that the run names, or those of its chips. None
        on a torus."""
        levels = self.run["cluster"].get("levels")
        if not levels:
            return scale_up_of(catalogue.chip(self.chip))
        size = levels[0].get("size")
        return None if size is None else ScaleUp(size, levels[0]["gb_s_per_chip"])

    @property
    def domain(self) -> str:
        """The scale-up domain, in words."""
        links = self.scale_up
        return "torus" if links is None else f"{links.domain:,} chips at {links.gb_s:,.0f} GB/s"

    @property
    def speed(self) -> float:
        """Tokens a second and chip, as measured."""
        return float(self.run["measured"]["tokens_per_s_per_chip"])

    @property
    def hardware(self) -> str:
        cluster = self.run["cluster"]
        name = cluster.get("chip") or cluster.get("preset")
        chips = cluster.get("num_chips")
        return f"{chips:,} × {name}" if chips else str(name)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted step time."""
        measured = self.run["measured"]["step_time_s"]
        return measured and measured / self.run["predicted"]["step_time_s"]


def source_link(source: Mapping[str, str]) -> str | None:
    """Returns the address at which a source can be read: the one that it names itself, that of its
    paper, or that of the file in the repository, at the commit where that was read. None for a
    source that names none of these."""
    where = source["where"]
    if (address := _ADDRESS.search(where)) is not None:
        return address[0]
    if (repository := _REPOSITORY.match(where)) is not None:
        return _repository_link(repository, _COMMIT.search(where))
    paper = _ARXIV.search(where) or _ARXIV.search(source["title"])
    return paper and f"https://arxiv.org/abs/{paper[1]}"


def _repository_link(repository: re.Match[str], commit: re.Match[str] | None) -> str:
    home = f"https://github.com/{repository['name']}"
    if commit is None:
        return home
    tree = f"{home}/tree/{commit[1]}"
    path = repository["path"]
    return tree if path is None else f"{tree}/{path}"
