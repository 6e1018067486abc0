"""A reason says why an answer is as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "slip",
    "out_of_memory",
    "cluster",
    "fewest_chips",
    "fewer_chips",
    "fastest",
    "recommended",
    "micro_batch_group",
    "pipelining",
    "data_traffic",
    "memory",
    "fit",
    "bolder",
    "unsupported",
    "learned",
    "stopped",
    "groups",
    "spare_chips",
]
Figure = float | str | bool | None


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence for people, with its kind and its figures for programs.

    Times are in seconds (`_s`), memory is in GiB (`_gib`); shares and probabilities are numbers
    between 0 and 1.
    """

    kind: Kind
    sentence: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


def reasons_of(kind: Kind, sentences: Iterable[str]) -> list[Reason]:
    """Return sentences as reasons of one kind, without figures."""
    return [Reason(kind, sentence) for sentence in sentences]
