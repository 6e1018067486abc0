"""Published runs as rows of a table, out of the API's document. *Scale-up* links are the fast ones
within a domain, such as NVLink."""

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
    """Returns the size and bandwidth of a chip's usual scale-up domain; None where its links form a
    torus or are not described, or where the domain has no stated size."""
    levels = chip.fabric.levels  # from the innermost links outwards
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
        """Returns the row of a run. `run` is its document in the API."""
        return cls(run, source_link(run["source"]), LayoutFields.summary(run["layout"]))

    @property
    def chip(self) -> str:
        """Returns the id of the run's chip in the catalogue."""
        cluster = self.run["cluster"]
        return str(cluster.get("chip") or catalogue.fabric_chip(cluster["preset"]))

    @property
    def scale_up(self) -> ScaleUp | None:
        """Returns the size and bandwidth of the scale-up domain that the run names, or else of its
        chip's usual one. None on a torus, or where the domain has no stated size."""
        levels = self.run["cluster"].get("levels")
        if not levels:
            return scale_up_of(catalogue.chip(self.chip))
        size = levels[0].get("size")
        return None if size is None else ScaleUp(size, levels[0]["gb_s_per_chip"])

    @property
    def domain(self) -> str:
        """Returns the scale-up domain in words, such as "8 chips at 450 GB/s"; "torus" where
        `scale_up` is None."""
        links = self.scale_up
        return "torus" if links is None else f"{links.domain:,} chips at {links.gb_s:,.0f} GB/s"

    @property
    def speed(self) -> float:
        """Returns the measured tokens per second and chip."""
        return float(self.run["measured"]["tokens_per_s_per_chip"])

    @property
    def hardware(self) -> str:
        """Returns the number and name of the chips, such as "2,048 × h800"."""
        cluster = self.run["cluster"]
        name = cluster.get("chip") or cluster.get("preset")
        chips = cluster.get("num_chips")
        return f"{chips:,} × {name}" if chips else str(name)

    @property
    def ratio(self) -> float | None:
        """Returns measured over predicted step time; None where no step time was measured."""
        measured = self.run["measured"]["step_time_s"]
        return measured and measured / self.run["predicted"]["step_time_s"]


def source_link(source: Mapping[str, str]) -> str | None:
    """Returns the address at which a source can be read; None where it names none. An address in
    the source comes first, then the file in its repository at the commit that was read, then its
    paper on arXiv."""
    where = source["where"]
    if (address := _ADDRESS.search(where)) is not None:
        return address[0]
    if (repository := _REPOSITORY.match(where)) is not None:
        return _repository_link(repository, _COMMIT.search(where))
    paper = _ARXIV.search(where) or _ARXIV.search(source["title"])
    return paper and f"https://arxiv.org/abs/{paper[1]}"


def _repository_link(repository: re.Match[str], commit: re.Match[str] | None) -> str:
    """Returns the address of a repository, or of its tree or file at a commit. `repository` matched
    the source's text, and `commit` the hash in it."""
    home = f"https://github.com/{repository['name']}"
    if commit is None:
        return home
    tree = f"{home}/tree/{commit[1]}"
    path = repository["path"]
    return tree if path is None else f"{tree}/{path}"
